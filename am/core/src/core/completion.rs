//! Completion: final checkpoint, model, outcome, end of the containers; and an operator's stop.
//!
//! To save is to cut: the final cut is committed, one trainer exports the committed files, and the store publishes them. The
//! outcome is journaled before any process gets it: an attempt that finds it does no work.

use heddle_protocol::control::Command;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::Role;
use heddle_protocol::view::{self, JobState};

use super::Core;
use super::exports::AT_THE_END;
use crate::action::{Action, OperationId};
use crate::checkpoint::cut::CutReason;
use crate::context::deadlines::{Purpose, Retried};
use crate::failure::JobFailure;
use crate::outcome::Outcome;
use crate::record::Record;
use crate::stage::export::ModelExport;
use crate::stage::stop::{StopCause, StopOrder};
use crate::stage::{JobStage, StageKind};

/// After the grace, the time for the cluster to report that containers ended.
const REPORT_MS: u64 = 5_000;

impl Core {
    /// Training is over: without a checkpoint of exactly this, one is taken first.
    pub(super) fn advance_end(&mut self) -> bool {
        let base = self.checkpoints.base_manifest();
        let is_saved = base.is_some_and(|base| self.work.is_over_before(base.phase, &self.ctx));
        if is_saved || !self.checkpoints.has_state() {
            self.checkpoints.unwant();
            self.ctx.clear_deadline(Purpose::CutDue);
            self.stage.go(JobStage::Exporting(ModelExport::default()));
            return true;
        }
        if self.ctx.waits_to_retry(Retried::FinalCut) {
            return false;
        }
        if self.checkpoints.is_open() {
            // A cut that holds exactly this becomes the final one; another is replaced.
            let tasks = self.ctx.config().plan.train.len();
            if self.checkpoints.serves_as_final(self.work.phase(), tasks) {
                return false;
            }
            let cause = "replaced by the final one";
            let ended = self.checkpoints.give_up(cause, &self.fleet, &mut self.ctx);
            self.cut_ended(ended);
        }
        self.checkpoints.want(CutReason::Final);
        true
    }

    pub(super) fn advance_exporting(&mut self) -> bool {
        if self.saves.open().is_some() {
            // `advance_save` goes on with it; it ends, or is given up.
            return false;
        }
        let has_output = self.ctx.config().output.is_some();
        if !has_output || self.checkpoints.to_export().is_none() {
            self.finish(None);
            return true;
        }
        self.advance_export(AT_THE_END)
    }

    pub(super) fn finish(&mut self, model: Option<String>) {
        let (state, message) = (JobState::Finished, String::new());
        self.end(
            Outcome { state, exit_code: ExitCode::Ok, message, model },
            self.ctx.limits().grace_ms,
        );
    }

    /// Ends the job with an error.
    pub(super) fn fail(&mut self, failure: JobFailure) {
        self.end(failure.into(), self.ctx.limits().grace_ms);
    }

    /// A stage was to follow that cannot: the job would wait without an end.
    pub(super) fn end_on_illegal_transition(&mut self) {
        let Some(illegal) = self.stage.take_illegal() else { return };
        debug_assert!(!self.stage.is_stopping(), "{illegal}");
        self.fail(JobFailure::new(
            ExitCode::Internal,
            format!("{illegal}; this is a defect of Heddle: the same command continues the job"),
        ));
    }

    /// Ends the job because an operator stopped it.
    pub(super) fn end_stopped(&mut self, message: &str, grace_ms: u64) {
        let (state, message) = (JobState::Stopped, message.to_owned());
        self.end(Outcome { state, exit_code: ExitCode::Killed, message, model: None }, grace_ms);
    }

    /// Settles the outcome: it is recorded, then sent to all containers.
    fn end(&mut self, outcome: Outcome, grace_ms: u64) {
        if matches!(self.stage.kind(), StageKind::Stopping | StageKind::Over) {
            return;
        }
        let (outcome, asked_by) = match self.stage.take_stop_order().map(StopOrder::into_cause) {
            // What came first is reported.
            Some(StopCause::Failed(first)) => (self.unsaved(first, &outcome.message).into(), None),
            Some(StopCause::Operator(id)) => (outcome, Some(id)),
            Some(StopCause::TokensEnd) | None => (outcome, None),
        };
        self.ctx.journal(Record::Outcome(outcome.clone()));
        if let Some(id) = asked_by {
            self.ctx.answer(id, Ok("stopping".to_owned()));
        }
        self.checkpoints.end(&mut self.ctx);
        self.ctx.set_message(outcome.message.clone());
        let reason = match outcome.message.is_empty() {
            true => "the job is finished".to_owned(),
            false => outcome.message.clone(),
        };
        self.stage.go(JobStage::Stopping(outcome));
        self.ctx.clear_all_deadlines();
        self.ctx.set_deadline(Purpose::Stopped, self.ctx.now() + grace_ms + REPORT_MS);
        self.send_stop(&reason);
        self.fleet.stop_all(grace_ms, &mut self.ctx);
    }

    pub(super) fn advance_stopping(&mut self) -> bool {
        let quiet = self.fleet.is_empty() && self.ctx.is_journal_durable();
        if quiet {
            self.leave();
        }
        quiet
    }

    /// A container does not end: the cluster or the end of this process will end it.
    pub(super) fn stop_timed_out(&mut self) {
        if self.stage.is_stopping() && self.ctx.is_journal_durable() {
            self.leave();
        } else {
            self.ctx.set_deadline(Purpose::Stopped, self.ctx.now() + REPORT_MS);
        }
    }

    fn leave(&mut self) {
        let JobStage::Stopping(outcome) = self.stage.now() else {
            debug_assert!(false, "only a job that is stopping leaves");
            return;
        };
        let outcome = outcome.clone();
        self.stage.recoveries_mut().job_over(&mut self.ctx);
        self.stage.go(JobStage::Over(outcome.state));
        self.ctx.clear_all_deadlines();
        self.ctx.notice(view::JobEvent::Ended {
            state: outcome.state,
            exit_code: outcome.exit_code,
            message: outcome.message.clone(),
            model: outcome.model.clone(),
            view: Box::new(self.view()),
        });
        self.ctx.push(Action::Finish(Box::new(outcome)));
    }

    /// Another ApplicationMaster leads: nothing is written, deleted or commanded any more.
    pub(super) fn fenced(&mut self, reason: &str) {
        self.disowned(format!("another ApplicationMaster has taken this job over: {reason}"));
        self.leave();
    }

    /// The cluster has ended the application: nothing is written or deleted any more, and containers are ordered to stop. The
    /// cluster reports none of their ends any more.
    pub(super) fn application_over(&mut self, reason: &str) {
        let reason = format!("the ResourceManager has ended the application: {reason}");
        self.disowned(reason.clone());
        self.ctx.clear_all_deadlines();
        self.ctx.set_deadline(Purpose::Stopped, self.ctx.now() + REPORT_MS);
        self.send_stop(&reason);
    }

    fn disowned(&mut self, message: String) {
        self.ctx.abandon();
        let (state, exit_code) = (JobState::Failed, ExitCode::Fenced);
        self.stage.go(JobStage::Stopping(Outcome { state, exit_code, message, model: None }));
    }

    fn send_stop(&mut self, reason: &str) {
        for role in [Role::Pserver, Role::Trainer] {
            let stop = Command::Stop { reason: reason.to_owned() };
            self.fleet.send_to_all(role, stop, &mut self.ctx);
        }
    }

    /// A decision cannot be recorded any more, so none may be made.
    pub(super) fn journal_failed(&mut self, exit_code: ExitCode, error: &str) {
        self.ctx.abandon();
        let message = format!("the journal cannot be written: {error}; run it again to continue");
        let exit_code = match self.stage.now() {
            // The job was ending for another reason, which is reported.
            JobStage::Stopping(outcome) if outcome.exit_code != ExitCode::Ok => outcome.exit_code,
            _ => exit_code,
        };
        let state = JobState::Failed;
        self.stage.go(JobStage::Stopping(Outcome { state, exit_code, message, model: None }));
        self.fleet.stop_all(0, &mut self.ctx);
        self.leave();
    }

    /// An operator stops the job. Returns the answer, or nothing if it follows with the checkpoint.
    pub(super) fn stop(&mut self, id: OperationId, checkpoint: bool) -> Option<&'static str> {
        let can_save = self.can_cut_soon();
        if checkpoint && self.stage.stop_order().is_none() && can_save {
            self.stage.set_stop_order(StopOrder::by_operator(id));
            self.checkpoints.want(CutReason::Stop);
            return None;
        }
        if checkpoint && self.stage.stop_order().is_some() {
            // Also of a command line that ends, and of a second SIGTERM: what is being saved is not lost.
            return Some("stopping; its last checkpoint is being saved");
        }
        let grace_ms = self.ctx.limits().grace_ms;
        self.end_stopped("stopped by an operator; run it again to continue", grace_ms);
        Some("stopping")
    }

    /// The stop's checkpoint is committed.
    pub(super) fn stop_with_checkpoint(&mut self) {
        let Some(order) = self.stage.take_stop_order() else {
            // New tokens came meanwhile: it is a checkpoint as any other.
            return self.plan_next_cut(false, self.stage.is_working());
        };
        let StopCause::Operator(id) = order.into_cause() else {
            return self.end_saved_without_tokens();
        };
        self.ctx.answer(id, Ok("checkpoint taken, stopping".to_owned()));
        let grace_ms = self.ctx.limits().grace_ms;
        let message = "stopped by an operator after a checkpoint; run it again to continue";
        self.end_stopped(message, grace_ms);
    }

    /// A try of the stop's checkpoint failed: another follows after a wait, as long as there is time for one. After a
    /// rollback nothing newer than the base is left to save.
    pub(super) fn stop_cut_failed(&mut self, cause: &str, rolls_back: bool) {
        let order = self.stage.stop_order().filter(|_| !rolls_back);
        if let Some(order) = order
            && order.cut_failed(&mut self.ctx)
        {
            return self.checkpoints.want(order.cut_reason());
        }
        let Some(order) = self.stage.take_stop_order() else {
            return self.plan_next_cut(true, self.stage.is_working() && !rolls_back);
        };
        let id = match order.into_cause() {
            StopCause::Operator(id) => id,
            StopCause::TokensEnd => return self.end_without_tokens(Some(cause)),
            StopCause::Failed(failure) => return self.fail(self.unsaved(failure, cause)),
        };
        self.ctx.answer(id, Err(format!("stopping without a new checkpoint: {cause}")));
        let from = match self.checkpoints.base_manifest() {
            Some(base) => format!("from checkpoint {}", base.cut),
            None => "from the beginning: no checkpoint exists yet".to_owned(),
        };
        let message = format!(
            "stopped by an operator without a new checkpoint ({cause}); run it again to continue {from}"
        );
        self.end_stopped(&message, self.ctx.limits().grace_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, Event, MonotonicMs, Now};

    #[test]
    fn illegal_transition_ends_the_job_and_names_both_stages() {
        let spec = heddle_protocol::job_spec::job::sample();
        let mut core = Core::new(crate::tables::config(spec));
        core.stage.go(JobStage::Working);
        let actions = core.on(Event::Timer, Now { mono: MonotonicMs(1), wall_ms: 1 });
        let outcome = actions.iter().find_map(|action| match action {
            Action::Journal { record, .. } => match &**record {
                Record::Outcome(outcome) => Some(outcome),
                _ => None,
            },
            _ => None,
        });
        let outcome = outcome.expect("the job ends");
        assert_eq!((outcome.state, outcome.exit_code), (JobState::Failed, ExitCode::Internal));
        let names = "illegal transition of the job from New to Working";
        assert!(outcome.message.starts_with(names), "{}", outcome.message);
        assert!(core.stage.is_stopping());
    }
}
