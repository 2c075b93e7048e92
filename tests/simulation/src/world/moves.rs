//! Moves of shards cost no rollback, and they end.

use std::collections::BTreeMap;

use heddle_am_core::{Record, RecordedFill, RecordedView};
use heddle_protocol::ids::{ShardId, Slot};
use heddle_protocol::view::JobEvent;

use super::World;
use crate::fault::Fault;

/// Faults that leave all pservers where they are.
const HARMLESS: [Fault; 3] = [Fault::Scale, Fault::KillAm, Fault::Cut];
/// Far above the copies of one shard that one pserver gets between two faults.
const FILLS_MAX: u32 = 8;

/// Refills since the last fault.
#[derive(Debug, Default)]
pub(super) struct Moves {
    newest: BTreeMap<ShardId, Vec<RecordedFill>>,
    counts: BTreeMap<(ShardId, Slot), u32>,
}

impl Moves {
    /// Something has gone wrong: copies may be made again.
    pub(super) fn begin_again(&mut self) {
        self.counts.clear();
    }

    fn add(&mut self, view: &RecordedView) -> Result<(), String> {
        let shard = view.shard;
        let before = self.newest.insert(shard, view.fills.clone()).unwrap_or_default();
        for fill in view.fills.iter().filter(|fill| !before.contains(fill)) {
            let slot = fill.member.slot;
            let count = self.counts.entry((shard, slot)).or_default();
            *count += 1;
            if *count > FILLS_MAX {
                return Err(format!("shard {shard} is copied to {slot} again and again"));
            }
        }
        Ok(())
    }
}

impl World {
    /// Without copies: only a pserver that is lost costs a rollback, and one that is not wanted any more is not lost.
    pub(super) fn check_moves(&mut self, event: &JobEvent) {
        let JobEvent::RollbackStarted { cause, .. } = event else { return };
        let is_elastic = self.job.replicas == 0 && self.job.spec().pservers.moves_shards();
        let is_harmless = self.injected.iter().all(|(_, fault)| HARMLESS.contains(fault));
        if is_elastic && is_harmless && self.ams.len() == 1 {
            self.broken = Some(format!("a rollback though no pserver was lost: {cause}"));
        }
    }

    /// Views that an attempt writes down.
    pub(super) fn check_fills(&mut self, record: &Record) -> Result<(), String> {
        match record {
            Record::Views { views, .. } => views.iter().try_for_each(|view| self.moves.add(view)),
            _ => Ok(()),
        }
    }
}
