//! BSP: what the successor of a lane has to do, decided from the lane's status on every shard.
//!
//! A shard without the lane's `Done` of a step proves that no trainer left that step's state, if no other shard has the
//! `Done` either: computing again is exact. A shard that has it proves that every shard holds the whole gradient: then
//! only the missing `Done`s are left to send.

use std::collections::BTreeMap;

use heddle_protocol::frame::{Header, flags};
use heddle_protocol::ids::{ShardId, Step};
use heddle_protocol::metrics::LossSum;

/// Status of a lane on one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaneStatus {
    /// Job steps that the shard has applied.
    pub(super) step: Step,
    /// The shard holds the lane's whole gradient of that step.
    pub(super) staged: bool,
    /// The shard has the lane's `Done` of that step.
    done: bool,
    /// The lane has ended.
    ended: bool,
    /// Records behind the staged gradient.
    pub(super) rows: u32,
    /// Their losses.
    pub(super) loss: LossSum,
}

impl LaneStatus {
    pub(super) fn of(reply: &Header) -> Self {
        Self {
            step: reply.step,
            staged: reply.has(flags::STAGED),
            done: reply.has(flags::DONE),
            ended: reply.has(flags::END),
            rows: reply.rows,
            loss: reply.loss,
        }
    }

    /// The step whose `Done` the shard takes next.
    fn next_done(&self) -> Step {
        if self.done { self.step.next() } else { self.step }
    }
}

/// What the successor does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LaneContinuation {
    /// Compute this step: no trainer left the state before it.
    Compute(Step),
    /// Send a `Done` to these shards. Then the lane continues at `next`, or has ended.
    Complete { missing: Vec<ShardId>, next: Option<Step> },
    /// All shards have recorded the end of the lane.
    Ended,
    /// Ask again: frames of the predecessor are in flight, or a shard is behind.
    Unsure,
}

/// Decides from the status on all shards.
pub(super) fn continuation(statuses: &BTreeMap<ShardId, LaneStatus>) -> LaneContinuation {
    let open: Vec<_> = statuses.iter().filter(|(_, s)| !s.ended).map(|(&id, s)| (id, *s)).collect();
    if open.is_empty() {
        return LaneContinuation::Ended;
    }
    if open.len() < statuses.len() {
        // Some shards have the lane's last `Done`. A shard that holds the `Done` before it has to catch up first.
        if open.iter().any(|(_, s)| s.done) {
            return LaneContinuation::Unsure;
        }
        return LaneContinuation::Complete {
            missing: open.into_iter().map(|(id, _)| id).collect(),
            next: None,
        };
    }
    let low = open.iter().map(|(_, s)| s.next_done()).min().unwrap_or_default();
    let high = open.iter().map(|(_, s)| s.next_done()).max().unwrap_or_default();
    if low == high {
        return LaneContinuation::Compute(low);
    }
    let behind: Vec<_> = open.iter().filter(|(_, s)| s.next_done() == low).collect();
    if high == low.next() && behind.iter().all(|(_, s)| s.step == low) {
        LaneContinuation::Complete {
            missing: behind.into_iter().map(|(id, _)| *id).collect(),
            next: Some(high),
        }
    } else {
        LaneContinuation::Unsure
    }
}
