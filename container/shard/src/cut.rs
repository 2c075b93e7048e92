//! A cut by barriers: the trainers whose barrier is missing, and how long to wait for them.
//!
//! After a trainer's barrier, its frames that change a shard and its clocks are held; pulls are not. So the shard's state at the cut is one
//! point of every trainer's stream. The wait is bounded: an ApplicationMaster that dies with a cut open must not stop
//! training.
//!
//! From the snapshot of a cut with which the job ends to the end of the cut, a shard takes no change at all: it would be lost.
//! No limit is needed: an operator has stopped the job, and the next ApplicationMaster ends the cut.

use std::collections::BTreeSet;
use std::time::Duration;

use heddle_protocol::control::{CutAt, ShardReport};
use heddle_protocol::ids::{CutId, Member, ShardId, Slot};
use heddle_protocol::mutation::Mutation;

use crate::effect::ShardEffect;
use crate::shard::Shard;

/// How long a cut may hold frames before the shards abort it.
pub const WAIT_MAX: Duration = Duration::from_secs(10);

/// Why the shards cannot take a cut in their phase, if so.
pub(crate) fn refusal<'s>(
    at: &CutAt,
    mut shards: impl Iterator<Item = &'s Shard> + Clone,
) -> Option<&'static str> {
    if shards.clone().any(|shard| !shard.is_serving()) {
        return Some("the shard is between two phases");
    }
    match at {
        CutAt::Steps(_) if shards.any(|shard| shard.progress().is_queue()) => {
            Some("the phase has no job steps")
        }
        CutAt::Barriers(_) if shards.any(|shard| shard.progress().lanes().is_some()) => {
            Some("lanes are cut at job steps")
        }
        CutAt::Steps(_) | CutAt::Barriers(_) => None,
    }
}

/// The report of a shard that does not take a cut.
pub(crate) fn aborted(shard: ShardId, cut: CutId, reason: &str) -> ShardEffect {
    let reason = reason.to_owned();
    ShardEffect::Report(ShardReport::CutAborted { shard, cut, step: None, reason })
}

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

    /// A member's barrier has come. False if it is of another cut.
    pub(crate) fn pass(&mut self, member: Member, cut: CutId) -> bool {
        // A barrier of an earlier generation may have waited for its connection.
        let same_number = self.cut.number == cut.number;
        if self.cut != cut && !(same_number && Mutation::BarrierByNumber.is_on()) {
            return false;
        }
        self.waiting.remove(&member);
        self.passed.insert(member.slot);
        true
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
