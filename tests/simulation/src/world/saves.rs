//! Saves of the model: only what the last elected trainer wrote is published, and every granted save ends.

use heddle_am_core::{Checkpoint, GrantedSave, Record, StoreCall};
use heddle_protocol::control::{Command, ExportOrder};
use heddle_protocol::ids::{CutId, SaveNo};

use super::{Body, Container, World};

impl World {
    /// The ApplicationMaster elects a trainer.
    pub(super) fn elects(&mut self, command: &Command) {
        if let Command::Export(ExportOrder { save, lease, .. }) = command {
            let last = self.leases.entry(*save).or_default();
            *last = (*last).max(*lease);
        }
    }

    /// A trainer reports: an export that it reports again is that of its last lease.
    pub(super) fn exports_again(&mut self, number: u64) {
        if let Some(Container { body: Body::Trainer(trainer), .. }) = self.containers.get(&number) {
            trainer.exporter.store(&mut self.durable);
        }
    }

    /// What the store has published of this save.
    pub(super) fn published_of(&self, call: &StoreCall) -> Option<(SaveNo, Option<CutId>)> {
        let StoreCall::PublishModel { save, .. } = call else { return None };
        let published = match save {
            SaveNo(0) => self.durable.published,
            save => self.durable.saves.get(save).copied(),
        };
        Some((*save, published))
    }

    /// A model was published: it is that of the last lease.
    pub(super) fn check_publication(
        &mut self,
        call: &StoreCall,
        before: Option<(SaveNo, Option<CutId>)>,
    ) -> Result<(), String> {
        let after = self.published_of(call);
        let (StoreCall::PublishModel { save, model, .. }, true) = (call, before != after) else {
            return Ok(());
        };
        let of = self.durable.exports.get(model).map(|export| export.lease);
        let last = self.leases.get(save).copied();
        if of != last {
            return Err(format!("save {save} is published of lease {of:?}, the last is {last:?}"));
        }
        self.saves += u64::from(save.0 > 0);
        Ok(())
    }

    /// The job is finished: each save that was granted is published, of a cut after the request or of what the job ended
    /// with, or is given up.
    pub(super) fn check_saves(&self) -> Result<(), String> {
        let journal = &self.durable.journal;
        let holds = |checkpoint: &Checkpoint| -> Result<_, String> {
            Ok((checkpoint.manifest.phase, self.bits_of(checkpoint)?))
        };
        let last = self.last_checkpoint().map(holds).transpose()?;
        for record in journal {
            let Record::SaveGranted(GrantedSave { save, after, .. }) = record else { continue };
            let is_end =
                |it: &&Record| matches!(it, Record::SaveEnded { save: of, .. } if of == save);
            let ends = journal.iter().filter(is_end).count();
            let is_given_up = |end| matches!(end, &Record::SaveEnded { model: None, .. });
            if journal.iter().find(is_end).is_some_and(is_given_up) {
                // Its tries failed, with a warning.
                continue;
            }
            let Some(cut) = self.durable.saves.get(save) else {
                return Err(format!("save {save} was granted and is not there ({ends} ends)"));
            };
            let made_from = self.committed.iter().find(|one| one.manifest.cut == *cut);
            if cut <= after && made_from.map(holds).transpose()? != last {
                return Err(format!("save {save} is of {cut}, asked for after {after}"));
            }
        }
        Ok(())
    }
}
