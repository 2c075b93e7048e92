//! Failures of trainers for which a task was to blame: they count against no slot and no node.

use heddle_protocol::ids::{Member, Role};

use super::restart_policy::FailureClass;
use super::{Fleet, Loss};

impl Loss {
    /// It counts against no slot and no node.
    pub(crate) fn excuse(&mut self) {
        self.class = FailureClass::None;
    }
}

impl Fleet {
    /// The trainer whose own process failed, and its node: it was neither taken by the cluster nor stopped by us.
    pub(crate) fn failed_trainer<'a>(&self, loss: &'a Loss) -> Option<(Member, &'a str)> {
        let failed = loss.class == FailureClass::Failure && !loss.node.is_empty();
        let holder = self.slots.holder(loss.slot).filter(|_| loss.slot.role == Role::Trainer)?;
        failed.then_some((holder.member, &*loss.node))
    }

    /// A task was to blame for the ends of these containers.
    pub(crate) fn excuse(&mut self, members: &[Member]) {
        self.failures.excuse(members);
    }
}
