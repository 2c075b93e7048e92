//! An operator's orderly stop: a last checkpoint, then the end.
//!
//! **Rule.** The stop ends the job when its checkpoint is committed. A try that fails (storage, a shard that gave up) is
//! repeated until `checkpoint.timeout` has passed since the first one began; then the job stops without it and the
//! outcome names the cause. A step that was named too late is not a failure: the cut names a later one, as every cut
//! does.
//!
//! **Limits.** A lost pserver ends the wait at once: its shards exist in the last checkpoint alone, so a new one
//! would hold the same state. A second stop does not wait either.

use crate::action::OperationId;
use crate::context::Context;
use crate::context::deadlines::Purpose;
use crate::time::MonotonicMs;

/// An orderly stop that waits for its checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StopOrder {
    /// The order; answered when the checkpoint is committed or given up.
    pub id: OperationId,
    /// No try of the checkpoint begins or goes on after this; none before the first one has begun.
    until: Option<MonotonicMs>,
    /// Tries that failed.
    failures: u32,
}

impl StopOrder {
    pub(crate) fn new(id: OperationId) -> Self {
        Self { id, until: None, failures: 0 }
    }

    /// A try of the checkpoint begins. Returns when it is given up; `timeout` for the first one.
    pub(crate) fn cut_begins(&mut self, timeout: MonotonicMs) -> MonotonicMs {
        *self.until.get_or_insert(timeout)
    }

    /// A try of the checkpoint failed. Returns whether there is time for another one, after a wait.
    pub(crate) fn cut_failed(&mut self, ctx: &mut Context) -> bool {
        self.failures += 1;
        let at = ctx.now() + ctx.backoff_ms(self.failures);
        if self.until.is_some_and(|until| at >= until) {
            return false;
        }
        ctx.set_deadline(Purpose::StopCutRetry, at);
        true
    }
}
