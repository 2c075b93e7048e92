//! Saves of the model during training: from a trainer's request to the published folder. The export itself is in `exports`.

use heddle_protocol::control::{Command, SaveAnswer, SaveRequest};
use heddle_protocol::failure::Failure;
use heddle_protocol::ids::{Member, Role};
use heddle_protocol::manifest::Manifest;
use heddle_protocol::view::{JobEvent, WarningCode};

use super::Core;
use crate::action::Checkpoint;
use crate::checkpoint::cut::CutReason;
use crate::context::deadlines::{Purpose, Retried};
use crate::record::Record;
use crate::stage::StageKind;

/// When a trainer asks again whose request comes while it is not known where the job stands.
const ASK_AGAIN_MS: u64 = 1_000;

impl Core {
    /// A trainer's program asks for a save.
    pub(super) fn save_asked(&mut self, member: Member, request: &SaveRequest) {
        let outcome = self.answer_save(member, request);
        let request = request.request;
        self.fleet.send(member.slot, Command::SaveAnswer { request, outcome }, &mut self.ctx);
    }

    fn answer_save(&mut self, member: Member, request: &SaveRequest) -> SaveAnswer {
        let refused = |reason: String| SaveAnswer::Refused { reason };
        if let Some(reason) = request.block_error() {
            return refused(reason);
        }
        if self.ctx.config().output.is_none() {
            return refused("the job has no output.model".to_owned());
        }
        if !self.checkpoints.has_state() {
            return refused("no phase of the job changes a model".to_owned());
        }
        if let Some(answer) = self.saves.answer(member, request, self.ctx.now()) {
            return answer;
        }
        match self.stage.kind() {
            StageKind::Takeover => {
                return SaveAnswer::Wait { holder: member, wait_ms: ASK_AGAIN_MS };
            }
            StageKind::Exporting | StageKind::Stopping | StageKind::Over => {
                return refused("training is over: the job writes its last model".to_owned());
            }
            _ => {}
        }
        let is_member = |holder: &crate::fleet::slots::RegisteredContainer| {
            holder.joined && holder.draining.is_none()
        };
        if member.slot.role != Role::Trainer || !self.fleet.member(member).is_some_and(is_member) {
            return refused(format!("{member} is not a member of the job"));
        }
        let after = self.checkpoints.last_cut(&self.ctx);
        let granted = self.saves.grant(member, request, after, self.ctx.time());
        let save = granted.save;
        self.ctx.journal(Record::SaveGranted(granted));
        self.ctx.notice(JobEvent::SaveGranted { save, slot: member.slot });
        SaveAnswer::Granted { save }
    }

    /// Moves the save that is under way on: its checkpoint first, then its export.
    pub(super) fn advance_save(&mut self) -> bool {
        let (Some(open), Some(after)) = (self.saves.open(), self.saves.after()) else {
            return false;
        };
        let save = open.save;
        let kind = self.stage.kind();
        if !(self.stage.is_in_phase()
            || matches!(kind, StageKind::Restoring | StageKind::Exporting))
        {
            return false;
        }
        if self.ctx.config().output.is_none() {
            // An earlier attempt had another job file.
            self.give_save_up("the job has no output.model any more");
            return true;
        }
        if self.saves.source().is_some() {
            return self.advance_export(save);
        }
        // The last checkpoint of training holds all of it, also if it was open when the save was asked for.
        let serves = |base: &Checkpoint| {
            let Manifest { cut, phase, initial, .. } = *base.manifest;
            (cut > after && !initial) || self.work.is_over_before(phase, &self.ctx)
        };
        if let Some(base) = self.checkpoints.base().filter(|base| serves(base)) {
            let base = base.clone();
            self.checkpoints.hold(Some(base.manifest.cut));
            self.saves.set_source(base);
            return true;
        }
        let is_coming = self.checkpoints.wanted() >= Some(CutReason::Ordered)
            || self.checkpoints.open_cut() > Some(after);
        if is_coming || !self.can_cut() || self.ctx.waits_to_retry(Retried::SaveCut) {
            return false;
        }
        self.checkpoints.want(CutReason::Ordered);
        true
    }

    /// A cut failed that a save may have waited for: it is tried again after a wait, or the save is given up.
    pub(super) fn save_cut_failed(&mut self, failure: &Failure) {
        if self.saves.open().is_none() || self.saves.source().is_some() {
            return;
        }
        let failures = self.saves.cut_failed();
        self.retry_save_cut(failures, failure);
    }

    /// The checkpoint of the save is damaged: it is made from another one.
    pub(super) fn save_source_damaged(&mut self, failure: &Failure) {
        let after = self.checkpoints.last_cut(&self.ctx);
        self.checkpoints.hold(None);
        let failures = self.saves.source_is_damaged(after);
        self.retry_save_cut(failures, failure);
    }

    fn retry_save_cut(&mut self, failures: u32, failure: &Failure) {
        if failures >= self.ctx.limits().store_tries {
            return self.give_save_up(&format!("no checkpoint could be taken for it: {failure}"));
        }
        self.ctx.retry_later(Retried::SaveCut, failures);
    }

    /// The save that is under way is not made; the job goes on.
    pub(super) fn give_save_up(&mut self, cause: &str) {
        if let Some(open) = self.saves.open() {
            self.ctx.warn(
                WarningCode::SaveGivenUp,
                format!("save {} of the model is given up: {cause}", open.save),
            );
            self.end_save(None);
        }
    }

    /// The save that is under way is published.
    pub(super) fn save_published(&mut self, dir: String) {
        let cut = self.saves.source().map(|source| source.manifest.cut);
        if let (Some(open), Some(checkpoint)) = (self.saves.open(), cut) {
            let save = open.save;
            self.ctx.notice(JobEvent::ModelSaved { save, checkpoint, dir: dir.clone() });
            self.end_save(Some(dir));
        }
    }

    fn end_save(&mut self, model: Option<String>) {
        let Some(open) = self.saves.open() else { return };
        let (save, at_ms) = (open.save, self.ctx.wall_ms());
        self.ctx.journal(Record::SaveEnded { save, model: model.clone(), at_ms });
        self.saves.end(model);
        self.checkpoints.hold(None);
        for purpose in [
            Purpose::ExportLease,
            Purpose::Retry(Retried::Export),
            Purpose::Retry(Retried::SaveCut),
        ] {
            self.ctx.clear_deadline(purpose);
        }
    }
}
