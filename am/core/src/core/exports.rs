//! Exports: a trainer is elected, writes the model of a checkpoint under a lease, and the store publishes it.
//!
//! The model at the end of the job and saves during training take the same way. One is under way at a time: the end of the
//! job waits for a save. What differs is the last line: a save that fails is given up, the job's own model fails the job.

use heddle_protocol::control::{
    Command, ExportFailure, ExportOrder, ExportProgress, ExportedModel,
};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{Member, SaveLease, SaveNo};
use heddle_protocol::view::WarningCode;

use super::Core;
use crate::action::{Checkpoint, StoreCall};
use crate::context::StoreCallPurpose;
use crate::context::deadlines::{Purpose, Retried};
use crate::event::Stored;
use crate::failure::{JobFailure, exit_after_tries};
use crate::stage::export::{ExportStep, ModelExport};

/// The save at the end of the job.
pub(super) const AT_THE_END: SaveNo = SaveNo(0);

impl Core {
    /// The export that is under way: of the save, or of the job's own model.
    fn export(&mut self) -> Option<&mut ModelExport> {
        match self.saves.open().is_some() {
            true => self.saves.export(),
            false => self.stage.export(),
        }
    }

    /// The checkpoint of the export that is under way.
    fn export_source(&self, save: SaveNo) -> Option<&Checkpoint> {
        if save == AT_THE_END { self.checkpoints.to_export() } else { self.saves.source() }
    }

    /// The number of the save whose export is under way.
    fn exported_save(&self) -> SaveNo {
        self.saves.open().map_or(AT_THE_END, |open| open.save)
    }

    /// Moves an export on.
    pub(super) fn advance_export(&mut self, save: SaveNo) -> bool {
        let config = self.ctx.config();
        let (Some(output), Some(source)) = (&config.output, self.export_source(save)) else {
            debug_assert!(false, "an export has an output directory and a checkpoint");
            return false;
        };
        let (checkpoint, source) = (source.manifest.cut, source.dir.clone());
        if self.ctx.waits_to_retry(Retried::Export) {
            return false;
        }
        let Some(export) = self.export() else { return false };
        match export.next() {
            ExportStep::Wait => false,
            ExportStep::Publish(model, files) => {
                export.publishing();
                self.ctx.clear_deadline(Purpose::ExportLease);
                let dir = output.clone();
                let after = self.saves.open().map(|open| open.after).unwrap_or_default();
                let call = StoreCall::PublishModel { save, after, dir, model, files, checkpoint };
                self.ctx.store(StoreCallPurpose::Publish, call);
                true
            }
            ExportStep::Elect => {
                let Some(member) = self.elect(save) else {
                    if save == AT_THE_END {
                        self.ctx.set_message("waiting for a trainer that writes the model");
                    }
                    return false;
                };
                if save == AT_THE_END {
                    self.ctx.clear_message();
                }
                let lease = self.saves.next_lease(self.ctx.generation());
                if let Some(export) = self.export() {
                    export.elect(member, lease);
                }
                self.renew_lease();
                let order = ExportOrder { save, lease, checkpoint: source, dir: output.clone() };
                self.fleet.send(member.slot, Command::Export(order), &mut self.ctx);
                true
            }
        }
    }

    /// The trainer to write a model: the one that asked for it, if there is one that has not failed at it.
    fn elect(&mut self, save: SaveNo) -> Option<Member> {
        let asked = self.saves.open().filter(|open| open.save == save).map(|open| open.member);
        let fleet = &self.fleet;
        let export = match save == AT_THE_END {
            true => self.stage.export(),
            false => self.saves.export(),
        };
        let failed = |member| export.as_ref().is_some_and(|export| export.has_failed(member));
        fleet.exporter(|member| (failed(member), Some(member) != asked))
    }

    fn renew_lease(&mut self) {
        let lease_ms = self.ctx.config().spec.output.save_lease.0;
        self.ctx.set_deadline(Purpose::ExportLease, self.ctx.now() + lease_ms);
    }

    /// A heartbeat shows how far a trainer has written a model.
    pub(super) fn export_progressed(&mut self, member: Member, progress: ExportProgress) {
        if self.export().is_some_and(|export| export.progress(member, progress)) {
            self.renew_lease();
        }
    }

    /// A lease has lapsed: the trainer's next report of it does not count.
    pub(super) fn export_lease_lapsed(&mut self) {
        let Some(export) = self.export() else { return };
        let Some(writer) = export.writer() else { return };
        export.writer_failed();
        let lease = self.ctx.config().spec.output.save_lease;
        let text = format!(
            "{} has made no progress with it for {lease} (output.save-lease)",
            writer.member.slot
        );
        self.retry_export(
            "the model was not written",
            &Failure::new(ErrorClass::Unreachable, text),
        );
    }

    /// A trainer's connection came back: its order may be lost. It exports once however often it is ordered, and
    /// another one would leave a second copy in the output directory.
    pub(super) fn export_again(&mut self, member: Member) {
        let config = self.ctx.config();
        let save = self.exported_save();
        let source = self.export_source(save).map(|source| source.dir.clone());
        let writer = self.export().and_then(|export| export.writer());
        if let (Some(dir), Some(checkpoint), Some(writer)) = (&config.output, source, writer)
            && writer.member == member
        {
            let order = ExportOrder { save, lease: writer.lease, checkpoint, dir: dir.clone() };
            self.fleet.send(member.slot, Command::Export(order), &mut self.ctx);
        }
    }

    /// A trainer is gone: if it was writing a model, another one is elected.
    pub(super) fn exporter_left(&mut self, member: Member) {
        if let Some(export) = self.export()
            && export.writer().is_some_and(|writer| writer.member == member)
        {
            export.elect_again();
            self.ctx.clear_deadline(Purpose::ExportLease);
        }
    }

    /// The export, if this trainer has its last lease.
    fn export_of(&mut self, member: Member, lease: SaveLease) -> Option<&mut ModelExport> {
        self.export().filter(|export| export.is_writer(member, lease))
    }

    pub(super) fn exported(&mut self, member: Member, model: ExportedModel) {
        if let Some(export) = self.export_of(member, model.lease) {
            export.written(model);
        }
    }

    pub(super) fn export_failed(&mut self, member: Member, failed: &ExportFailure) {
        let ExportFailure { lease, failure } = failed;
        let is_corrupt = failure.class == ErrorClass::Corrupt;
        match self.export_of(member, *lease) {
            None => return,
            // The trainer has no fault.
            Some(export) if is_corrupt => export.elect_again(),
            Some(export) => export.writer_failed(),
        }
        self.ctx.clear_deadline(Purpose::ExportLease);
        if is_corrupt {
            if self.exported_save() != AT_THE_END {
                return self.save_source_damaged(failure);
            }
            if self.checkpoints.give_up_best() {
                return self.ctx.warn(WarningCode::BestPassLost, format!(
                    "the checkpoint of the best pass is damaged; the model is that of the last pass: {failure}"
                ));
            }
        }
        let what = "the model could not be written";
        match failure.class {
            // Another trainer would find the same.
            ErrorClass::Training | ErrorClass::Input => {
                self.export_fails(what, failure, failure.class.exit_code());
            }
            _ => self.retry_export(what, failure),
        }
    }

    pub(super) fn published(&mut self, outcome: Stored) {
        if let Some(export) = self.export() {
            export.publish_answered();
        }
        let what = "the model could not be published";
        let is_save = self.exported_save() != AT_THE_END;
        match outcome {
            Stored::Published(model) if is_save => self.save_published(model),
            Stored::Published(model) => self.finish(Some(model)),
            Stored::NotDone { failure } | Stored::Unknown { failure } => {
                self.retry_export(what, &failure);
            }
            Stored::Taken { error } if is_save => self.give_save_up(&error),
            // This job has no fault, and another try would find the same.
            Stored::Taken { error } => self.fail(JobFailure::new(ExitCode::Input, error)),
            other => self.fail(JobFailure::new(
                ExitCode::Internal,
                format!("the store replied to an export with {other:?}"),
            )),
        }
    }

    /// A try of the export failed. One that was denied is repeated too: rights or room may come between two tries.
    fn retry_export(&mut self, what: &str, failure: &Failure) {
        let Some(export) = self.export() else {
            return;
        };
        let failures = export.count_failure();
        if failures < self.ctx.limits().store_tries {
            self.ctx.retry_later(Retried::Export, failures);
            return self
                .ctx
                .warn(WarningCode::ExportRetried, format!("{what}, trying again: {failure}"));
        }
        self.export_fails(what, failure, exit_after_tries(failure));
    }

    /// The export that is under way has failed for good: a save is given up, the job's own model fails the job.
    fn export_fails(&mut self, what: &str, failure: &Failure, exit_code: ExitCode) {
        let mut message = format!("{what}: {failure}");
        if self.exported_save() != AT_THE_END {
            return self.give_save_up(&message);
        }
        if failure.class != ErrorClass::Training {
            let base = self.checkpoints.to_export();
            let checkpoint = base.map(|base| base.dir.clone()).unwrap_or_default();
            message
                .push_str(&format!("; `heddle export {checkpoint}` tries again without training"));
        }
        self.fail(JobFailure::new(exit_code, message));
    }
}
