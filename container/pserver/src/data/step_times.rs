//! How long pushes wait for other lanes and take to be applied, for `heddle bench train --steps`: an event of the log for each
//! step. Clocks are read only if the filter of the log has its target.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Instant;

use heddle_protocol::frame::{Header, Kind};
use heddle_protocol::ids::{ShardId, Step};
use heddle_shard::ShardSet;
use heddle_telemetry::STEP_TIMES;
use tracing::Level;

/// The steps of this thread's shards.
pub(super) struct PushTimes {
    is_on: bool,
    /// BSP: when the first lane was done with the step of a shard.
    first: RefCell<BTreeMap<ShardId, (Step, Instant)>>,
}

/// A push, or the end of a lane's pushes, that is being handled.
pub(super) struct HandledPush {
    shard: ShardId,
    /// BSP: its lane is done with the step.
    is_last: bool,
    /// BSP: the step before it.
    step: Option<Step>,
    begun: Instant,
}

impl PushTimes {
    pub(super) fn new() -> Self {
        let is_on = tracing::enabled!(target: STEP_TIMES, Level::TRACE);
        Self { is_on, first: RefCell::default() }
    }

    /// A frame is about to be handled. Its clock, if it is timed.
    pub(super) fn begin(&self, header: &Header, shards: &RefCell<ShardSet>) -> Option<HandledPush> {
        let is_timed = self.is_on && matches!(header.kind, Kind::Push | Kind::Done);
        is_timed.then(|| HandledPush {
            shard: header.shard,
            is_last: header.kind == Kind::Done,
            step: lane_step(shards, header.shard),
            begun: Instant::now(),
        })
    }

    /// It was handled.
    pub(super) fn handled(&self, push: HandledPush, shards: &RefCell<ShardSet>) {
        let HandledPush { shard, is_last, step: before, begun } = push;
        let apply_us = begun.elapsed().as_micros() as u64;
        let (Some(before), Some(step)) = (before, lane_step(shards, shard)) else {
            return tracing::trace!(target: STEP_TIMES, apply_us, "push_applied");
        };
        if is_last {
            let mut first = self.first.borrow_mut();
            let of_step = first.entry(shard).or_insert((before, begun));
            if of_step.0 != before {
                *of_step = (before, begun);
            }
            if step > before {
                let wait_us = begun.duration_since(of_step.1).as_micros() as u64;
                tracing::trace!(target: STEP_TIMES, wait_us, apply_us, "step_applied");
            }
        }
    }
}

/// BSP: the step that the lanes of a shard push.
fn lane_step(shards: &RefCell<ShardSet>, shard: ShardId) -> Option<Step> {
    shards.borrow().shards().find(|own| own.id() == shard)?.lane_step()
}
