//! An operator's orderly stop: a last checkpoint, then the end.
//!
//! **Rule.** The stop ends the job when its checkpoint is committed. A try that fails (storage, a shard that gave up) is
//! repeated until `checkpoint.timeout` has passed since the first one began; then the job stops without it and the
//! outcome names the cause. A step that was named too late is not a failure: the cut names a later one, as every cut
//! does.
//!
//! **Limits.** A lost pserver ends the wait at once: its shards exist in the last checkpoint alone, so a new one
//! would hold the same state. A second stop does not wait either.

use heddle_protocol::exit_code::ExitCode;

use crate::action::OperationId;
use crate::checkpoint::cut::Reason;
use crate::context::deadlines::Purpose;
use crate::core::{Core, JobStage};
use crate::time::MonotonicMs;

/// An orderly stop that waits for its checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StopOrder {
    /// Who ordered it; answered when the checkpoint is committed or given up.
    pub id: OperationId,
    /// No try of the checkpoint begins or goes on after this; none before the first one has begun.
    until: Option<MonotonicMs>,
    /// The next try waits for its deadline.
    waits: bool,
    /// Tries that failed.
    failures: u32,
}

impl Core {
    /// An operator wants the job to end. Returns the answer, or nothing if it comes with the checkpoint.
    pub(crate) fn stop(&mut self, id: OperationId, checkpoint: bool) -> Option<&'static str> {
        // A takeover has state that no checkpoint holds; it can be cut as soon as its shards are known.
        let can_save = self.can_cut() || matches!(self.stage, JobStage::Takeover(_));
        if checkpoint && self.stop_wanted.is_none() && can_save {
            self.stop_wanted = Some(StopOrder { id, until: None, waits: false, failures: 0 });
            self.cuts.want(Reason::Stop);
            return None;
        }
        // A second one does not wait for the checkpoint.
        self.end(
            self.stopped(ExitCode::Killed, "stopped by an operator; run it again to continue"),
            self.config.limits.grace_ms,
        );
        Some("stopping")
    }

    /// Whether the next try of the stop's checkpoint waits for its deadline.
    pub(crate) fn stop_cut_waits(&self) -> bool {
        self.stop_wanted.is_some_and(|order| order.waits)
    }

    /// A try of the stop's checkpoint begins. Returns when it is given up; `timeout` for the first one.
    pub(crate) fn stop_cut_begins(&mut self, timeout: MonotonicMs) -> MonotonicMs {
        match &mut self.stop_wanted {
            Some(order) => *order.until.get_or_insert(timeout),
            None => timeout,
        }
    }

    /// The stop's checkpoint is committed.
    pub(crate) fn stop_with_checkpoint(&mut self) {
        if let Some(order) = self.stop_wanted.take() {
            self.answer(order.id, Ok("checkpoint taken, stopping".to_owned()));
        }
        let outcome = self.stopped(
            ExitCode::Killed,
            "stopped by an operator after a checkpoint; run it again to continue",
        );
        self.end(outcome, self.config.limits.grace_ms);
    }

    /// A try of the stop's checkpoint failed: again after a wait, as long as there is time for one.
    pub(crate) fn stop_cut_failed(&mut self, reason: &str) {
        let (now, retry_ms) = (self.now.mono, self.config.limits.retry_ms);
        // Shards go back to the last checkpoint: there is nothing newer to save.
        let rolls_back = matches!(self.stage, JobStage::AwaitingCommit { .. });
        let Some(order) = self.stop_wanted.as_mut().filter(|_| !rolls_back) else {
            return self.stop_without_checkpoint(reason);
        };
        order.failures += 1;
        let at = now + (retry_ms << order.failures.min(6));
        if order.until.is_some_and(|until| at >= until) {
            return self.stop_without_checkpoint(reason);
        }
        order.waits = true;
        self.cuts.want(Reason::Stop);
        self.deadlines.at_latest(Purpose::Retry, at);
    }

    /// The wait before the next try is over.
    pub(crate) fn retry_stop(&mut self) {
        if let Some(order) = &mut self.stop_wanted {
            order.waits = false;
        }
    }

    fn stop_without_checkpoint(&mut self, reason: &str) {
        if let Some(order) = self.stop_wanted.take() {
            let text = format!("stopping without a new checkpoint: {reason}");
            self.answer(order.id, Err(text));
        }
        let from = match &self.base {
            Some(base) => format!("from checkpoint {}", base.manifest.cut),
            None => "from the beginning, since there is no checkpoint yet".to_owned(),
        };
        let outcome = self.stopped(
            ExitCode::Killed,
            &format!(
                "stopped by an operator without a new checkpoint ({reason}); run it again to continue {from}"
            ),
        );
        self.end(outcome, self.config.limits.grace_ms);
    }
}
