//! An orderly stop, by an operator or before the job's tokens end: a last checkpoint, then the end.
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

/// Why a job stops in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopCause {
    Operator(OperationId),
    TokensEnd,
}

/// An orderly stop that waits for its checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StopOrder {
    cause: StopCause,
    /// No try of the checkpoint begins or goes on after this; none before the first one has begun.
    until: Option<MonotonicMs>,
    /// Tries that failed.
    failures: u32,
}

impl StopOrder {
    pub(crate) fn by_operator(id: OperationId) -> Self {
        Self { cause: StopCause::Operator(id), until: None, failures: 0 }
    }

    /// A stop before the tokens are of no use.
    pub(crate) fn for_tokens(end: MonotonicMs) -> Self {
        Self { cause: StopCause::TokensEnd, until: Some(end), failures: 0 }
    }

    /// Whether it is one before the tokens end.
    pub(crate) fn is_for_tokens(&self) -> bool {
        self.cause == StopCause::TokensEnd
    }

    /// The operator's order; answered when the checkpoint is committed or given up.
    pub(crate) fn operation(&self) -> Option<OperationId> {
        match self.cause {
            StopCause::Operator(id) => Some(id),
            StopCause::TokensEnd => None,
        }
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
