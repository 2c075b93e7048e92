//! The lease: an attempt that may have been replaced publishes nothing and deletes nothing.
//!
//! **Intuition.** The ResourceManager starts a successor only after it has given this attempt up, and its next answer
//! reports that. An attempt that was answered a moment ago therefore leads. An attempt that was not may not lead, however
//! well everything else goes.
//!
//! **Rule.** A manifest is committed, a model published, an old checkpoint removed or set aside only while the last answer
//! is younger than the lease. Calls that come meanwhile wait for the next answer; training goes on. A process that stood
//! still does not get credit for its own silence, as containers do: it may have stood still for longer than a whole
//! successor took.
//!
//! **Limit.** The store checks claim and lease again right before it renames. The lease makes the window small; the claim
//! makes what falls into it harmless.

use std::collections::VecDeque;

use heddle_protocol::mutation::Mutation;

use crate::action::{CallId, RecordId, StoreCall};
use crate::time::MonotonicMs;

/// A store call that waits.
#[derive(Clone, Debug)]
pub(crate) struct HeldCall {
    /// The last record before it.
    pub(crate) after: RecordId,
    pub(crate) id: CallId,
    pub(crate) call: StoreCall,
}

/// The last answer of the ResourceManager, and the store calls that wait for the next one.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterLease {
    answered: MonotonicMs,
    held_back: VecDeque<HeldCall>,
}

impl ClusterLease {
    /// The ResourceManager has answered.
    pub(crate) fn renew(&mut self, now: MonotonicMs) {
        self.answered = now;
    }

    /// How long the ResourceManager has not answered.
    pub(crate) fn silent_ms(&self, now: MonotonicMs) -> u64 {
        now.since(self.answered)
    }

    /// Whether the last answer is younger than the lease. Without a cluster there is no lease.
    pub(crate) fn holds(&self, now: MonotonicMs, lease_ms: Option<u64>) -> bool {
        lease_ms.is_none_or(|lease_ms| self.silent_ms(now) <= lease_ms) || Mutation::NoLease.is_on()
    }

    /// Keeps a store call until this attempt surely leads.
    pub(crate) fn hold_back(&mut self, call: HeldCall) {
        self.held_back.push_back(call);
    }

    /// The record that the first store call that waits follows.
    pub(crate) fn next_follows(&self) -> Option<RecordId> {
        self.held_back.front().map(|held| held.after)
    }

    /// Takes out the first store call that waits.
    pub(crate) fn take_next(&mut self) -> Option<HeldCall> {
        self.held_back.pop_front()
    }

    /// Drops the store calls that wait.
    pub(crate) fn abandon(&mut self) {
        self.held_back.clear();
    }
}

/// Whether a store call waits for the lease. All variants by name, so that a new one makes its author choose.
pub(crate) fn needs_lease(call: &StoreCall) -> bool {
    match call {
        // No one reads the staging directory of a cut; a commit is judged when its manifest is made.
        StoreCall::Stage { .. } | StoreCall::Commit { .. } => false,
        StoreCall::Discard { .. }
        | StoreCall::Retain { .. }
        | StoreCall::OlderBase { .. }
        | StoreCall::ReplaceCopies { .. }
        | StoreCall::PublishModel { .. } => true,
    }
}
