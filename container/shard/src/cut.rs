//! A cut by barriers: the trainers whose barrier is missing, and how long to wait for them.
//!
//! After a trainer's barrier, its frames that change a shard are held; pulls are not. So the shard's state at the cut is one
//! point of every trainer's stream. The wait is bounded: an ApplicationMaster that dies with a cut open must not stop
//! training.

use std::collections::BTreeSet;
use std::time::Duration;

use heddle_protocol::ids::{CutId, Member, Slot};

/// How long a cut may hold frames before the shards abort it.
pub const WAIT_MAX: Duration = Duration::from_secs(10);

/// The cut that waits for barriers.
pub(crate) struct OpenCut {
    pub(crate) cut: CutId,
    /// Trainers whose barrier is missing.
    waiting: BTreeSet<Member>,
    /// Slots whose barrier has come: their changes are after the cut.
    passed: BTreeSet<Slot>,
    pub(crate) deadline: Duration,
}

impl OpenCut {
    pub(crate) fn new(cut: CutId, set: impl IntoIterator<Item = Member>, now: Duration) -> Self {
        Self {
            cut,
            waiting: set.into_iter().collect(),
            passed: BTreeSet::new(),
            deadline: now + WAIT_MAX,
        }
    }

    /// A member's barrier has come.
    pub(crate) fn pass(&mut self, member: Member) {
        self.waiting.remove(&member);
        self.passed.insert(member.slot);
    }

    /// Removes trainers that are not members any more.
    pub(crate) fn retain(&mut self, is_member: impl Fn(&Member) -> bool) {
        self.waiting.retain(is_member);
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn has_passed(&self, slot: Slot) -> bool {
        self.passed.contains(&slot)
    }

    /// Names of the trainers whose barrier is missing, for messages.
    pub(crate) fn missing(&self) -> String {
        let names: Vec<_> = self.waiting.iter().take(4).map(Member::to_string).collect();
        let more = self.waiting.len().saturating_sub(names.len());
        match more {
            0 => names.join(", "),
            _ => format!("{} and {more} more", names.join(", ")),
        }
    }
}
