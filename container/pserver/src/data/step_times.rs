//! How long pushes wait for other lanes and take to be applied, for `heddle bench train --steps`: an event of the log for each
//! step. Clocks are read only if the filter of the log has its target.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Instant;

use heddle_protocol::ids::{ShardId, Step};
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
    pub(super) shard: ShardId,
    /// BSP: its lane is done with the step.
    pub(super) is_last: bool,
    /// BSP: the step before it.
    pub(super) step: Option<Step>,
    pub(super) begun: Instant,
}

impl PushTimes {
    pub(super) fn new() -> Self {
        let is_on = tracing::enabled!(target: STEP_TIMES, Level::TRACE);
        Self { is_on, first: RefCell::default() }
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// A push was handled. `step`: of its shard, in BSP.
    pub(super) fn handled(&self, push: HandledPush, step: Option<Step>) {
        let HandledPush { shard, is_last, step: before, begun } = push;
        let apply_us = begun.elapsed().as_micros() as u64;
        let (Some(before), Some(step)) = (before, step) else {
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
