//! The trainers that may send frames.

use std::collections::BTreeMap;

use heddle_protocol::frame::Status;
use heddle_protocol::ids::{Incarnation, Member, Role, Slot};

/// Members, as the ApplicationMaster's last list has them.
#[derive(Default)]
pub(super) struct Members {
    /// By slot.
    current: BTreeMap<u32, Incarnation>,
    /// The highest incarnation of each slot that was ever a member.
    highest: BTreeMap<u32, Incarnation>,
}

impl Members {
    /// Replaces the list.
    pub(super) fn set(&mut self, trainers: &[Member]) {
        self.current.clear();
        for member in trainers.iter().filter(|member| member.slot.role == Role::Trainer) {
            self.current.insert(member.slot.index, member.incarnation);
            let highest = self.highest.entry(member.slot.index).or_default();
            *highest = (*highest).max(member.incarnation);
        }
    }

    /// Whether a trainer may send frames. One that is newer than the list has to wait: the list with it is on its way.
    ///
    /// # Errors
    /// `NotMember` for a superseded or removed trainer, `NotReady` for a newer one.
    pub(super) fn check(&self, member: Member) -> Result<(), Status> {
        let slot = member.slot.index;
        if self.current.get(&slot) == Some(&member.incarnation) {
            return Ok(());
        }
        match self.highest.get(&slot) {
            Some(&highest) if member.incarnation <= highest => Err(Status::NotMember),
            _ => Err(Status::NotReady),
        }
    }

    /// Whether the trainer is not a member any more.
    pub(super) fn has_left(&self, member: Member) -> bool {
        self.check(member) == Err(Status::NotMember)
    }

    /// The members.
    pub(super) fn iter(&self) -> impl Iterator<Item = Member> {
        let member = |(&index, &incarnation)| Member { slot: Slot::trainer(index), incarnation };
        self.current.iter().map(member)
    }

    pub(super) fn contains(&self, member: Member) -> bool {
        self.check(member).is_ok()
    }
}
