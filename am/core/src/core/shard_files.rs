//! Copies of a shard in a checkpoint (`checkpoint.copies`): which pservers save them, and what follows when two differ.
//!
//! Copies are equal by construction, so two that differ show a defect: of a memory, or of this program. The cut is given up,
//! and the backup leaves the in-sync set, so that its copy can never be promoted. A cause that stays is not an accident: the
//! third time within an hour ends the job.

use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{CutId, Epoch, ShardId, Slot};
use heddle_protocol::manifest::ShardFile;
use heddle_protocol::table_statistics::TableStatistics;
use heddle_protocol::view::WarningCode;

use super::Core;
use crate::checkpoint::CutEnded;
use crate::checkpoint::saved_files::DifferingFiles;
use crate::failure::JobFailure;

/// How often copies may differ within an hour before the job ends.
const DIFFERED_MAX: usize = 3;

impl Core {
    /// Whether a file of the shard that this pserver saves belongs to the open cut.
    pub(super) fn saves(&self, slot: Slot, shard: ShardId) -> bool {
        self.stage.holds(slot, shard) || self.checkpoints.awaits_copy(slot, shard)
    }

    /// The file of a shard, or of a copy of it, is durable.
    pub(super) fn shard_saved(
        &mut self,
        slot: Slot,
        cut: CutId,
        epoch: Epoch,
        file: ShardFile,
        tables: Vec<TableStatistics>,
    ) {
        if !self.saves(slot, file.shard) {
            return;
        }
        let saved = self.checkpoints.saved(cut, epoch, slot, file, tables, &self.ctx);
        if let Err(differing) = saved {
            self.copies_differ(differing);
        }
    }

    fn copies_differ(&mut self, DifferingFiles { shard, holders }: DifferingFiles) {
        let [first, second] = holders;
        let what =
            format!("copies of shard {shard} differ: {first} and {second} saved other bytes");
        let times = self.checkpoints.copies_differed(&self.ctx);
        let ended = self.checkpoints.give_up(&what, &self.fleet, &mut self.ctx);
        if times >= DIFFERED_MAX {
            let message = format!("{what}, for the {DIFFERED_MAX}rd time within an hour");
            return self.fail(JobFailure::new(ExitCode::Internal, message));
        }
        self.cut_ended(ended.map(CutEnded::with_own_limit));
        let backup = holders.into_iter().find(|slot| !self.stage.holds(*slot, shard));
        let (Some(backup), Some(views)) = (backup, self.stage.views_in_phase()) else {
            return;
        };
        if let Some(changed) = views.leave_out_copy(shard, backup) {
            self.ctx.warn(
                WarningCode::CopiesDiffer,
                format!("{what}; the copy of {backup} is not used any more"),
            );
            self.change_views(&changed, what);
        }
    }
}
