//! Nothing is published and nothing deleted by an attempt that may have been replaced without knowing it.
//!
//! **Intuition.** The ResourceManager starts a successor only after it has given this attempt up, and says so in
//! its next answer. Who has been answered a moment ago therefore leads; who has not may not, however well everything
//! else goes.
//!
//! **Rule.** A manifest is committed, a model published, an old checkpoint removed or set aside only while the last answer
//! is younger than the lease. What is due meanwhile waits, and is done with the next answer; training goes on. A
//! process that stood still is not forgiven this silence as it forgives that of others: it may have stood still
//! for longer than a whole successor took.
//!
//! **Limit.** The store checks claim and lease again right before it renames: the lease makes the window small, the claim makes what
//! falls into it harmless.

use heddle_protocol::mutation::Mutation;

use crate::action::{Action, CallId, StoreCall};
use crate::checkpoint::cut::Progress;
use crate::core::Core;

impl Core {
    /// Whether the ResourceManager has been heard lately enough to be sure that this attempt still leads.
    fn leads(&self) -> bool {
        let lease_ms = self.config.cluster_lease_ms;
        lease_ms.is_none_or(|lease_ms| self.now.mono.since(self.cluster_heard) <= lease_ms)
            || Mutation::NoLease.is_on()
    }

    /// Whether what is ordered now is done now: nothing waits for the journal either, which may take longer than
    /// the lease.
    pub(crate) fn surely_leads(&self) -> bool {
        self.leads() && self.out.is_settled()
    }

    /// Performs a store call, or keeps it until this attempt surely leads.
    pub(crate) fn store_or_hold_back(&mut self, id: CallId, call: StoreCall) {
        match call {
            // A directory for a cut is seen by nobody; a commit has been judged when its manifest was made.
            StoreCall::Stage { .. } | StoreCall::Commit { .. } => {
                self.out.push(Action::Store { id, call: Box::new(call) })
            }
            StoreCall::Discard { .. }
            | StoreCall::Retain { .. }
            | StoreCall::OlderBase { .. }
            | StoreCall::PublishModel { .. } => self.held_back.push_back((id, call)),
        }
    }

    /// Performs what was held back, if this attempt surely leads.
    pub(crate) fn store_held_back(&mut self) {
        if self.held_back.is_empty() || !self.surely_leads() {
            return;
        }
        for (id, call) in std::mem::take(&mut self.held_back) {
            self.out.push(Action::Store { id, call: Box::new(call) });
        }
    }

    /// People hear once that a checkpoint is late because of the ResourceManager.
    pub(crate) fn tell_late_commit(&mut self) {
        let (leads, silent_ms) = (self.leads(), self.now.mono.since(self.cluster_heard));
        let Some(cut) = self
            .cuts
            .open
            .as_mut()
            .filter(|cut| !leads && cut.progress == Progress::Committing(None))
        else {
            return;
        };
        if !std::mem::replace(&mut cut.late_is_told, true) {
            let text = format!(
                "checkpoint {} is late: it is saved, and committed once the ResourceManager answers, which it has not for {} s; training goes on",
                cut.id,
                silent_ms / 1000
            );
            self.warn(text);
        }
    }
}
