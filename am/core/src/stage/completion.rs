//! The end: last checkpoint, model, outcome, goodbye.
//!
//! To save is to cut: the final cut is committed, one trainer is elected and exports the committed files into a folder of
//! its own, and the store moves them to their names. So two winners of a split brain never write one file. The outcome is
//! journaled before anybody hears of it: an attempt that finds it does no work.

use heddle_protocol::control::{Command, ExportedFile};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{Member, Role};
use heddle_protocol::view::{self, JobState};

use crate::action::{Action, Outcome, StoreCall};
use crate::checkpoint::cut::Reason;
use crate::context::deadlines::Purpose;
use crate::core::{Core, JobStage, StoreCallPurpose};
use crate::event::Stored;
use crate::fleet::slots::SlotStatus;
use crate::record::Record;

/// After the grace, the time for the cluster to report that containers ended.
const REPORT_MS: u64 = 5_000;

/// The exit code when the storage failed at every try. All classes but one are [`ExitCode::Unreachable`], so that the next
/// attempt of the application tries again.
fn exit_after_tries(failure: &Failure) -> ExitCode {
    match failure.class {
        ErrorClass::Denied => ExitCode::Denied,
        _ => ExitCode::Unreachable,
    }
}

/// The model on its way out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Export {
    /// The trainer that writes it.
    trainer: Option<Member>,
    /// What it wrote: the folder below the output directory, and the files.
    written: Option<(String, Vec<ExportedFile>)>,
    publishing: bool,
    failures: u32,
    /// The next try waits for its deadline.
    waits: bool,
}

impl Core {
    /// Training is over: without a checkpoint of exactly this, one is taken first.
    pub(crate) fn settle_end(&mut self) -> bool {
        if let Some(base) = &self.base
            && self.is_over_before(base.manifest.phase)
        {
            self.cuts.unwant();
            self.deadlines.clear(Purpose::CutDue);
            self.stage = JobStage::Exporting(Export::default());
            return true;
        }
        if self.cuts.final_waits {
            return false;
        }
        if let Some(cut) = &self.cuts.open {
            // One that holds exactly this becomes the final one; another is replaced.
            let serves = cut.reason == Reason::Final
                || cut.phase == self.phase.no && cut.all_snapped() && self.holds_whole_phase(cut);
            if serves || cut.commit_is_under_way() {
                return false;
            }
            self.end_cut("replaced by the final one");
        }
        self.cuts.want(Reason::Final);
        true
    }

    pub(crate) fn final_cut_failed(&mut self, failure: &Failure) {
        self.cuts.failures += 1;
        if self.cuts.failures >= self.config.limits.store_tries {
            return self.fail(
                exit_after_tries(failure),
                format!("the final checkpoint could not be taken: {failure}"),
            );
        }
        self.cuts.final_waits = true;
        let wait_ms = self.config.limits.retry_ms << self.cuts.failures.min(6);
        self.deadlines.at_latest(Purpose::Retry, self.now.mono + wait_ms);
    }

    pub(crate) fn retry_end(&mut self) {
        self.cuts.final_waits = false;
        self.retry_stop();
        if let JobStage::Exporting(export) = &mut self.stage {
            export.waits = false;
        }
    }

    pub(crate) fn settle_exporting(&mut self) -> bool {
        let JobStage::Exporting(export) = &self.stage else {
            return false;
        };
        let (Some(output), Some(base)) = (self.config.output.clone(), &self.base) else {
            self.finished(None);
            return true;
        };
        if export.waits || export.publishing {
            return false;
        }
        if let Some((model, files)) = export.written.clone() {
            let checkpoint = base.manifest.cut;
            self.store(
                StoreCallPurpose::Publish,
                StoreCall::PublishModel { dir: output, model, files, checkpoint },
            );
            self.set_export(|export| export.publishing = true);
            return true;
        }
        if export.trainer.is_some() {
            return false;
        }
        let connected = |holder: &&crate::fleet::slots::RegisteredContainer| {
            holder.connection.is_some() && holder.draining.is_none()
        };
        let elected = self.slots.holders(Role::Trainer).find(connected).map(|holder| holder.member);
        let Some(member) = elected else {
            self.message = "waiting for a trainer that writes the model".to_owned();
            return false;
        };
        let checkpoint = base.dir.clone();
        self.message.clear();
        self.set_export(|export| export.trainer = Some(member));
        self.send(member.slot, Command::Export { checkpoint, dir: output });
        true
    }

    fn set_export(&mut self, change: impl FnOnce(&mut Export)) {
        if let JobStage::Exporting(export) = &mut self.stage {
            change(export);
        }
    }

    /// A trainer's connection came back: its order may be lost. It exports once however often it is ordered, and
    /// another one would leave a second copy in the output directory.
    pub(crate) fn export_again(&mut self, member: Member) {
        if let (Some(dir), Some(base), true) =
            (&self.config.output, &self.base, self.is_exporter(member))
        {
            let (checkpoint, dir) = (base.dir.clone(), dir.clone());
            self.send(member.slot, Command::Export { checkpoint, dir });
        }
    }

    /// A trainer is gone: another one writes the model.
    pub(crate) fn exporter_gone(&mut self, member: Member) {
        if self.is_exporter(member) {
            self.set_export(|export| export.trainer = None);
        }
    }

    /// Whether this trainer writes the model and has not reported it.
    fn is_exporter(&self, member: Member) -> bool {
        matches!(&self.stage, JobStage::Exporting(export)
            if export.trainer == Some(member) && export.written.is_none())
    }

    pub(crate) fn exported(
        &mut self,
        member: Member,
        checkpoint: &str,
        dir: String,
        files: Vec<ExportedFile>,
    ) {
        let current = self.base.as_ref().is_some_and(|base| base.dir == checkpoint);
        if let JobStage::Exporting(export) = &mut self.stage
            && export.trainer == Some(member)
            && export.written.is_none()
            && current
        {
            export.written = Some((dir, files));
        }
    }

    pub(crate) fn export_failed(&mut self, member: Member, checkpoint: &str, failure: &Failure) {
        let current = self.base.as_ref().is_some_and(|base| base.dir == checkpoint);
        let JobStage::Exporting(export) = &mut self.stage else {
            return;
        };
        if export.trainer != Some(member) || export.written.is_some() || !current {
            return;
        }
        export.trainer = None;
        self.export_stumbled("the model could not be written", failure);
    }

    pub(crate) fn published(&mut self, outcome: Stored) {
        self.set_export(|export| export.publishing = false);
        match outcome {
            Stored::Published(model) => self.finished(Some(model)),
            // Nothing is amiss with this job, and another try would find the same.
            Stored::Taken { error } => self.fail(ExitCode::Input, error),
            Stored::NotDone { failure } | Stored::Unknown { failure } => {
                self.export_stumbled("the model could not be published", &failure);
            }
            other => {
                self.fail(ExitCode::Internal, format!("an answer to another question: {other:?}"))
            }
        }
    }

    /// A try of the export failed. One that was denied is repeated too: rights or room may come between two tries.
    fn export_stumbled(&mut self, what: &str, failure: &Failure) {
        let JobStage::Exporting(export) = &mut self.stage else {
            return;
        };
        export.failures += 1;
        export.waits = true;
        let failures = export.failures;
        if failures >= self.config.limits.store_tries {
            let checkpoint = self.base.as_ref().map(|base| base.dir.clone()).unwrap_or_default();
            return self.fail(
                exit_after_tries(failure),
                format!(
                    "{what}: {failure}; `heddle export {checkpoint}` tries again without training"
                ),
            );
        }
        let wait_ms = self.config.limits.retry_ms << failures.min(6);
        self.deadlines.at_latest(Purpose::Retry, self.now.mono + wait_ms);
        self.warn(format!("{what}, trying again: {failure}"));
    }

    fn finished(&mut self, model: Option<String>) {
        let outcome = Outcome {
            state: JobState::Finished,
            exit_code: ExitCode::Ok,
            message: String::new(),
            model,
        };
        self.end(outcome, self.config.limits.grace_ms);
    }

    /// Settles the outcome: recorded, then told to everybody.
    pub(crate) fn end(&mut self, outcome: Outcome, grace_ms: u64) {
        if matches!(self.stage, JobStage::Stopping(_) | JobStage::Over) {
            return;
        }
        self.out.journal(Record::Outcome(outcome.clone()));
        if let Some(order) = self.stop_wanted.take() {
            self.answer(order.id, Ok("stopping".to_owned()));
        }
        if let Some(cut) = self.cuts.open.take() {
            for id in cut.asked_by {
                self.answer(id, Err("the job is ending".to_owned()));
            }
        }
        for id in std::mem::take(&mut self.cuts.asked_by) {
            self.answer(id, Err("the job is ending".to_owned()));
        }
        self.message.clone_from(&outcome.message);
        let reason = if outcome.message.is_empty() {
            "the job is finished".to_owned()
        } else {
            outcome.message.clone()
        };
        self.stage = JobStage::Stopping(outcome);
        self.deadlines.clear_all();
        self.deadlines.set(Purpose::Stopped, self.now.mono + grace_ms + REPORT_MS);
        for slot in self
            .registered_slots(Role::Pserver)
            .into_iter()
            .chain(self.registered_slots(Role::Trainer))
        {
            self.send(slot, Command::Stop { reason: reason.clone() });
        }
        self.stop_containers(grace_ms);
    }

    /// Ends all containers and asks.
    pub(crate) fn stop_containers(&mut self, grace_ms: u64) {
        let containers: Vec<_> = self.slots.containers.keys().cloned().collect();
        for container in containers {
            self.stop_container(&container, grace_ms);
        }
        let mut cancelled = Vec::new();
        for (slot, entry) in &mut self.slots.entries {
            entry.wanted = false;
            if let SlotStatus::Asked = entry.place {
                entry.place = SlotStatus::Empty { not_before: self.now.mono };
                cancelled.push((*slot, entry.incarnation));
            }
        }
        for (slot, incarnation) in cancelled {
            self.out.push(Action::CancelAsk { slot, incarnation });
        }
    }

    pub(crate) fn settle_stopping(&mut self) -> bool {
        let quiet = self.slots.containers.is_empty() && self.out.is_settled();
        if quiet {
            self.leave();
        }
        quiet
    }

    /// Somebody does not end: the cluster or the end of this process will do it.
    pub(crate) fn stopped_late(&mut self) {
        if matches!(self.stage, JobStage::Stopping(_)) && self.out.is_settled() {
            self.leave();
        } else {
            self.deadlines.set(Purpose::Stopped, self.now.mono + REPORT_MS);
        }
    }

    fn leave(&mut self) {
        let JobStage::Stopping(outcome) = std::mem::replace(&mut self.stage, JobStage::Over) else {
            return;
        };
        self.deadlines.clear_all();
        self.ended = Some(outcome.clone());
        self.notice(view::Event::Ended {
            state: outcome.state,
            exit_code: outcome.exit_code,
            message: outcome.message.clone(),
            model: outcome.model.clone(),
            view: Box::new(self.view()),
        });
        self.out.push(Action::Finish(Box::new(outcome)));
    }

    /// Another ApplicationMaster leads: nothing is written, deleted or commanded any more.
    pub(crate) fn fenced(&mut self, reason: &str) {
        self.out.abandon();
        self.held_back.clear();
        let message = format!("another ApplicationMaster has taken this job over: {reason}");
        self.stage = JobStage::Stopping(Outcome {
            state: JobState::Failed,
            exit_code: ExitCode::Fenced,
            message,
            model: None,
        });
        self.leave();
    }

    /// What is decided cannot be recorded any more, so nothing may be decided.
    pub(crate) fn journal_failed(&mut self, exit_code: ExitCode, error: &str) {
        self.out.abandon();
        self.held_back.clear();
        let message = format!("the journal cannot be written: {error}; run it again to continue");
        let exit_code = match &self.stage {
            // The job was ending for another reason; that one is told.
            JobStage::Stopping(outcome) if outcome.exit_code != ExitCode::Ok => outcome.exit_code,
            _ => exit_code,
        };
        self.stage = JobStage::Stopping(Outcome {
            state: JobState::Failed,
            exit_code,
            message,
            model: None,
        });
        self.stop_containers(0);
        self.leave();
    }
}
