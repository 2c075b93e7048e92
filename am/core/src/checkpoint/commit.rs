//! Making a checkpoint of a cut that is saved.
//!
//! Committed is what lies under its final name; the store call does that and nothing else does. **Gate:** `lease`. **Unknown outcome:** the call is repeated, since the store recognises its own manifest by its
//! salt; nothing of the cut is deleted. Then the journal's record, then older ones may go.

use heddle_protocol::control::Command;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::Role;
use heddle_protocol::view;

use crate::action::{CallId, Checkpoint, StoreCall};
use crate::checkpoint::cut::{Progress, Reason};
use crate::context::deadlines::Purpose;
use crate::core::{Core, StoreCallPurpose};
use crate::event::Stored;
use crate::record::Record;
use crate::stage::takeover::checkpoint_view;

impl Core {
    pub(crate) fn complete_cut(&mut self) -> bool {
        let Some(cut) = &mut self.cuts.open else {
            return false;
        };
        if !(cut.all_snapped() && cut.all_saved() && cut.set.values().all(|reached| *reached)) {
            return false;
        }
        cut.progress = Progress::Committing(None);
        self.deadlines.clear(Purpose::CutTimeout);
        true
    }

    pub(crate) fn try_commit(&mut self) -> bool {
        if self.cuts.open.as_ref().is_none_or(|cut| cut.commit_waits) {
            return false;
        }
        if !self.surely_leads() {
            self.tell_late_commit();
            return false;
        }
        let Some((staging, manifest)) = self.manifest() else {
            return false;
        };
        let call = self.store(
            StoreCallPurpose::Commit,
            StoreCall::Commit { staging, manifest: Box::new(manifest) },
        );
        if let Some(cut) = &mut self.cuts.open {
            cut.progress = Progress::Committing(Some(call));
        }
        true
    }

    pub(crate) fn commit_answered(&mut self, call: CallId, outcome: Stored) {
        let tries = self.config.limits.store_tries;
        let Some(cut) =
            self.cuts.open.as_mut().filter(|cut| cut.progress == Progress::Committing(Some(call)))
        else {
            return;
        };
        let failure = match outcome {
            Stored::Committed(checkpoint) => return self.committed(*checkpoint),
            Stored::Unknown { failure } => {
                cut.commit_unknown = true;
                failure
            }
            Stored::NotDone { failure } => failure,
            other => Failure::new(
                ErrorClass::Internal,
                format!("an answer to another question: {other:?}"),
            ),
        };
        cut.commit_tries += 1;
        cut.progress = Progress::Committing(None);
        if cut.commit_tries >= tries {
            return self.cut_failed(failure.preventing("its manifest could not be committed"));
        }
        cut.commit_waits = true;
        let wait_ms = self.config.limits.retry_ms << cut.commit_tries.min(6);
        self.deadlines.at_latest(Purpose::Retry, self.now.mono + wait_ms);
        self.warn(format!("a checkpoint's commit is tried again: {failure}"));
    }

    /// The cut is a checkpoint.
    pub(crate) fn committed(&mut self, checkpoint: Checkpoint) {
        let Some(cut) = self.cuts.open.take() else {
            return;
        };
        let manifest = &checkpoint.manifest;
        let took_ms = self.now.mono.since(cut.ordered.mono);
        let view = checkpoint_view(&checkpoint, took_ms);
        self.out.journal(Record::Commit {
            cut: cut.id,
            dir: checkpoint.dir.clone(),
            phase: manifest.phase,
            step: manifest.step(),
            at_ms: self.now.wall_ms,
        });
        self.base = Some(checkpoint);
        self.progress += 1;
        self.cuts.committed += 1;
        self.cuts.late_tries = 0;
        self.cuts.failures = 0;
        for slot in self.registered_slots(Role::Pserver) {
            self.send(slot, Command::CutEnd { cut: cut.id, committed: true });
        }
        let keep = self.config.spec.checkpoint.keep.max(2);
        let retain = StoreCall::Retain { keep, generation: self.generation, base: cut.id };
        self.store(StoreCallPurpose::Housekeeping, retain);
        self.checkpoints.push(view.clone());
        let surplus = self.checkpoints.len().saturating_sub(keep as usize);
        self.checkpoints.drain(..surplus);
        for id in cut.asked_by {
            self.answer(id, Ok(format!("checkpoint {} committed in {}", cut.id, view.dir)));
        }
        self.notice(view::Event::CheckpointCommitted(view));
        match cut.reason {
            Reason::Due | Reason::Ordered | Reason::First => {
                self.plan_next_cut(false);
                self.leave_nodes();
                self.return_shards();
            }
            Reason::Stop => self.stop_with_checkpoint(),
            Reason::Final => {}
        }
    }

    pub(crate) fn retry_commit(&mut self) {
        if let Some(cut) = &mut self.cuts.open {
            cut.commit_waits = false;
        }
    }
}
