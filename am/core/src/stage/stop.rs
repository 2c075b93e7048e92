//! An orderly stop, by an operator, before the job's tokens end, or of a job that has failed: a last checkpoint, then the end.
//!
//! **Rule.** The stop ends the job when its checkpoint is committed. A try that fails (storage, a shard that gave up) is
//! repeated until `checkpoint.timeout` has passed since the first one began; then the job stops without it and the
//! outcome names the cause. A step that was named too late is not a failure: the cut names a later one, as every cut
//! does.
//!
//! **Limits.** A lost pserver ends the wait at once: its shards exist in the last checkpoint alone, so a new one
//! would hold the same state. A second stop does not wait either. A job that has failed waits for `checkpoint.last-save`.

use crate::action::OperationId;
use crate::checkpoint::cut::CutReason;
use crate::context::Context;
use crate::context::deadlines::{Purpose, Retried};
use crate::failure::JobFailure;
use crate::time::MonotonicMs;

/// Why a job stops in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StopCause {
    /// The order is answered when the checkpoint is committed or given up.
    Operator(OperationId),
    TokensEnd,
    /// It ends with this failure.
    Failed(JobFailure),
}

/// An orderly stop that waits for its checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
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

    /// The job has failed; its last checkpoint may take until then.
    pub(crate) fn for_failure(failure: JobFailure, until: MonotonicMs) -> Self {
        Self { cause: StopCause::Failed(failure), until: Some(until), failures: 0 }
    }

    /// Whether the job has failed.
    pub(crate) fn is_for_failure(&self) -> bool {
        matches!(self.cause, StopCause::Failed(_))
    }

    /// The cut that it waits for.
    pub(crate) fn cut_reason(&self) -> CutReason {
        match self.cause {
            StopCause::Operator(_) | StopCause::TokensEnd => CutReason::Stop,
            StopCause::Failed(_) => CutReason::LastSave,
        }
    }

    /// Whether it is one before the tokens end.
    pub(crate) fn is_for_tokens(&self) -> bool {
        self.cause == StopCause::TokensEnd
    }

    /// Why the job stops.
    pub(crate) fn into_cause(self) -> StopCause {
        self.cause
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
        ctx.set_deadline(Purpose::Retry(Retried::StopCut), at);
        true
    }
}
