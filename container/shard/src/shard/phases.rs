//! The phases of a shard: from one to the next, after a loading or a rollback, and the end of a training pass.

use std::sync::Arc;

use heddle_protocol::begun_frame::begun;
use heddle_protocol::control::{LostShards, Phase};
use heddle_protocol::frame::Status;
use heddle_protocol::ids::{Epoch, PhaseNo, Step};

use super::Shard;
use crate::change::ShardChange;
use crate::content::ContentError;
use crate::copy_on_write::Full;
use crate::dedup::{DedupState, Seen};
use crate::effect::ShardEffect;
use crate::pass_end::PassEnd;
use crate::phase_progress::{self, PhaseProgress};

/// Values whose end of a pass is carried out between two checks of the snapshots' room.
const END_VALUES: usize = 16 * 1024;

impl Shard {
    /// Serves a new phase from its start. Waiting frames belong to the previous one and are rejected.
    pub(crate) fn begin(&mut self, phase: Phase, out: &mut Vec<ShardEffect>) {
        let left = self.progress.takes_pushes().then_some(self.phase);
        self.begin_after(left, phase, out);
        if let Some(changes) = &mut self.changes {
            let header = begun(Epoch::default(), self.id, phase);
            changes.push((out.len(), Arc::new(ShardChange::bare(header))));
        }
    }

    /// Serves a new phase after `left`, if that had pushes. If it was a training pass, rules that take values from the sums
    /// of a pass do so first: once, since the state of `left` is never served again, but for a rollback, which brings the
    /// sums back too.
    fn begin_after(&mut self, left: Option<PhaseNo>, phase: Phase, out: &mut Vec<ShardEffect>) {
        self.refuse_waiting(Status::WrongPhase, out);
        self.loaded = None;
        self.counted = self.counted();
        let ends = self.memory.tables.all().iter().any(|table| table.rule.ends_passes());
        let left = left.filter(|left| ends && self.steps.counts_in(*left));
        if left.is_none() && self.pass_end.is_none() {
            return self.serve(phase, phase_progress::start_of(phase, self.id));
        }
        let (table, row) = self.pass_end.take().map_or((0, 0), |ending| (ending.table, ending.row));
        self.pass_end = Some(PassEnd { table, row, next: phase });
        self.phase = phase.no;
        self.progress = PhaseProgress::Idle;
        self.memory.snapshots.disarm();
        self.end_pass();
    }

    /// Carries out the end of a pass, as far as the snapshots have room, and serves the phase after it.
    pub(super) fn end_pass(&mut self) {
        let Some(mut ending) = self.pass_end.take() else { return };
        while let Some(table) = self.memory.tables.all().get(ending.table) {
            let rows_max = (END_VALUES / table.cols).max(1);
            match table.end_pass(&mut self.memory.arena, ending.row, rows_max) {
                Ok(Some(row)) => ending.row = row,
                Ok(None) => (ending.table, ending.row) = (ending.table + 1, 0),
                Err(Full) => {
                    self.pass_end = Some(ending);
                    return;
                }
            }
        }
        self.serve(ending.next, phase_progress::start_of(ending.next, self.id));
    }

    /// Serves the phase from the loaded or restored state.
    pub(crate) fn resume(
        &mut self,
        phase: Phase,
        step: Step,
        out: &mut Vec<ShardEffect>,
    ) -> Result<(), ContentError> {
        let shard = self.id;
        // Of a phase that may come again.
        self.counted = None;
        let loaded = self.loaded.take();
        let pushed = |state: &DedupState| !matches!(state.seen, Seen::ReadOnly);
        let left = loaded.as_ref().filter(|state| pushed(state)).map(|state| state.phase);
        self.steps.restore(loaded.as_ref().map_or(self.steps.count(), |state| state.steps));
        let Some(state) = loaded.filter(|state| state.phase >= phase.no) else {
            // Initial values, or a cut at the end of an earlier phase.
            if step != Step(0) {
                return Err(ContentError::Step { shard, saved: Step(0), wanted: step });
            }
            self.begin_after(left, phase, out);
            return Ok(());
        };
        phase_progress::check(&state, shard, phase, step)?;
        self.refuse_waiting(Status::WrongEpoch, out);
        self.serve(phase, state.seen);
        self.report_end(out);
        Ok(())
    }

    /// Goes on in a new epoch with the state that it has, in this phase or in the one before.
    pub(crate) fn keep(&mut self, phase: Phase, out: &mut Vec<ShardEffect>) {
        self.refuse_waiting(Status::WrongEpoch, out);
        self.memory.snapshots.disarm();
        if self.phase < phase.no {
            self.begin(phase, out);
        }
    }

    /// The shard went back alone: it takes nothing of the phase that the job does not send again.
    pub(crate) fn move_up(&mut self, lost: &LostShards) {
        self.steps.restore(self.steps.count().saturating_add(lost.steps));
        if let PhaseProgress::Queue(tasks) = &mut self.progress {
            for task in lost.done.iter() {
                tasks.finish(task);
            }
            for (task, step) in &lost.tasks {
                tasks.skip_to(*task, *step);
            }
        }
    }

    fn serve(&mut self, phase: Phase, seen: Seen) {
        self.phase = phase.no;
        self.steps.serve(phase.no);
        self.memory.snapshots.disarm();
        self.progress =
            PhaseProgress::of(seen, self.memory.tables.all().len(), self.early_bytes_max);
    }

    /// Rejects parked and staged requests, and serves nothing until [`Self::resume`].
    pub(crate) fn stop_serving(&mut self, out: &mut Vec<ShardEffect>) {
        self.refuse_waiting(Status::WrongEpoch, out);
        self.progress = PhaseProgress::Idle;
        self.pass_end = None;
        self.memory.snapshots.disarm();
    }
}
