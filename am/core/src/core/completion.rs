//! Completion: final checkpoint, model, outcome, end of the containers; and an operator's stop.
//!
//! To save is to cut: the final cut is committed, one trainer exports the committed files, and the store publishes them. The
//! outcome is journaled before any process gets it: an attempt that finds it does no work.

use heddle_protocol::control::{Command, ExportedFile};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{Member, Role};
use heddle_protocol::view::{self, JobState};

use super::Core;
use crate::action::{Action, OperationId, StoreCall};
use crate::checkpoint::cut::CutReason;
use crate::checkpoint::exit_after_tries;
use crate::context::StoreCallPurpose;
use crate::context::deadlines::Purpose;
use crate::event::Stored;
use crate::failure::JobFailure;
use crate::outcome::Outcome;
use crate::record::Record;
use crate::stage::export::{ExportStep, ModelExport};
use crate::stage::stop::StopOrder;
use crate::stage::{JobStage, StageKind};

/// After the grace, the time for the cluster to report that containers ended.
const REPORT_MS: u64 = 5_000;

impl Core {
    /// Training is over: without a checkpoint of exactly this, one is taken first.
    pub(super) fn advance_end(&mut self) -> bool {
        let base = self.checkpoints.base_manifest();
        if base.is_some_and(|base| self.work.is_over_before(base.phase, &self.ctx)) {
            self.checkpoints.unwant();
            self.ctx.clear_deadline(Purpose::CutDue);
            self.stage.go(JobStage::Exporting(ModelExport::default()));
            return true;
        }
        if self.ctx.is_waiting_for(Purpose::FinalCutRetry) {
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
        let config = self.ctx.config();
        let Some(export) = self.stage.export() else {
            return false;
        };
        let (Some(output), Some(base)) = (&config.output, self.checkpoints.to_export()) else {
            self.finish(None);
            return true;
        };
        if self.ctx.is_waiting_for(Purpose::ExportRetry) {
            return false;
        }
        match export.next() {
            ExportStep::Wait => false,
            ExportStep::Publish(model, files) => {
                let (dir, checkpoint) = (output.clone(), base.manifest.cut);
                let call = StoreCall::PublishModel { dir, model, files, checkpoint };
                self.ctx.store(StoreCallPurpose::Publish, call);
                export.publishing();
                true
            }
            ExportStep::Elect => {
                let Some(member) = self.fleet.exporter() else {
                    self.ctx.set_message("waiting for a trainer that writes the model");
                    return false;
                };
                self.ctx.clear_message();
                export.elect(member);
                let (checkpoint, dir) = (base.dir.clone(), output.clone());
                self.fleet.send(member.slot, Command::Export { checkpoint, dir }, &mut self.ctx);
                true
            }
        }
    }

    /// A trainer's connection came back: its order may be lost. It exports once however often it is ordered, and
    /// another one would leave a second copy in the output directory.
    pub(super) fn export_again(&mut self, member: Member) {
        let config = self.ctx.config();
        let is_writer = self.stage.export().is_some_and(|export| export.is_writer(member));
        if let (Some(dir), Some(base), true) =
            (&config.output, self.checkpoints.to_export(), is_writer)
        {
            let (checkpoint, dir) = (base.dir.clone(), dir.clone());
            self.fleet.send(member.slot, Command::Export { checkpoint, dir }, &mut self.ctx);
        }
    }

    /// The export, if this trainer writes the model of this checkpoint.
    fn export_of(&mut self, member: Member, checkpoint: &str) -> Option<&mut ModelExport> {
        let current = self.checkpoints.to_export().is_some_and(|base| base.dir == checkpoint);
        self.stage.export().filter(|export| current && export.is_writer(member))
    }

    pub(super) fn exported(
        &mut self,
        member: Member,
        checkpoint: &str,
        dir: String,
        files: Vec<ExportedFile>,
    ) {
        if let Some(export) = self.export_of(member, checkpoint) {
            export.written(dir, files);
        }
    }

    pub(super) fn export_failed(&mut self, member: Member, checkpoint: &str, failure: &Failure) {
        let Some(export) = self.export_of(member, checkpoint) else {
            return;
        };
        export.elect_again();
        if failure.class == ErrorClass::Corrupt && self.checkpoints.give_up_best() {
            return self.ctx.warn(format!(
                "the checkpoint of the best pass is damaged; the model is that of the last pass: {failure}"
            ));
        }
        self.retry_export("the model could not be written", failure);
    }

    pub(super) fn published(&mut self, outcome: Stored) {
        if let Some(export) = self.stage.export() {
            export.publish_answered();
        }
        let what = "the model could not be published";
        match outcome {
            Stored::Published(model) => self.finish(Some(model)),
            // This job has no fault, and another try would find the same.
            Stored::Taken { error } => self.fail(JobFailure::new(ExitCode::Input, error)),
            Stored::NotDone { failure } | Stored::Unknown { failure } => {
                self.retry_export(what, &failure);
            }
            other => self.fail(JobFailure::new(
                ExitCode::Internal,
                format!("the store replied to an export with {other:?}"),
            )),
        }
    }

    /// A try of the export failed. One that was denied is repeated too: rights or room may come between two tries.
    fn retry_export(&mut self, what: &str, failure: &Failure) {
        let Some(export) = self.stage.export() else {
            return;
        };
        let failures = export.failed();
        if failures >= self.ctx.limits().store_tries {
            let base = self.checkpoints.to_export();
            let checkpoint = base.map(|base| base.dir.clone()).unwrap_or_default();
            return self.fail(JobFailure::new(
                exit_after_tries(failure),
                format!(
                    "{what}: {failure}; `heddle export {checkpoint}` tries again without training"
                ),
            ));
        }
        self.ctx.retry_later(Purpose::ExportRetry, failures);
        self.ctx.warn(format!("{what}, trying again: {failure}"));
    }

    fn finish(&mut self, model: Option<String>) {
        let (state, message) = (JobState::Finished, String::new());
        self.end(
            Outcome { state, exit_code: ExitCode::Ok, message, model },
            self.ctx.limits().grace_ms,
        );
    }

    /// Ends the job with an error.
    pub(super) fn fail(&mut self, failure: JobFailure) {
        let JobFailure { exit_code, message } = failure;
        let outcome = Outcome { state: JobState::Failed, exit_code, message, model: None };
        self.end(outcome, self.ctx.limits().grace_ms);
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
        self.ctx.journal(Record::Outcome(outcome.clone()));
        if let Some(id) = self.stage.take_stop_order().and_then(|order| order.operation()) {
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
        for role in [Role::Pserver, Role::Trainer] {
            let reason = reason.clone();
            self.fleet.send_to_all(role, Command::Stop { reason }, &mut self.ctx);
        }
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
        self.ctx.abandon();
        let message = format!("another ApplicationMaster has taken this job over: {reason}");
        let state = JobState::Failed;
        self.stage.go(JobStage::Stopping(Outcome {
            state,
            exit_code: ExitCode::Fenced,
            message,
            model: None,
        }));
        self.leave();
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
        // A takeover has state that no checkpoint holds; it can be cut as soon as its shards are known.
        let can_save = self.stage.can_cut() || self.stage.kind() == StageKind::Takeover;
        if checkpoint && self.stage.stop_order().is_none() && can_save {
            self.stage.set_stop_order(StopOrder::by_operator(id));
            self.checkpoints.want(CutReason::Stop);
            return None;
        }
        // A second stop does not wait for the checkpoint.
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
        let Some(id) = order.operation() else {
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
        if order.is_some_and(|order| order.cut_failed(&mut self.ctx)) {
            return self.checkpoints.want(CutReason::Stop);
        }
        let Some(order) = self.stage.take_stop_order() else {
            return self.plan_next_cut(true, self.stage.is_working() && !rolls_back);
        };
        let Some(id) = order.operation() else {
            return self.end_without_tokens(Some(cause));
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
