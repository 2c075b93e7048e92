//! A shard as a copy: the primary's changes are recorded, and a backup applies them.

use std::sync::Arc;

use heddle_protocol::begun_frame::begun_phase;
use heddle_protocol::frame::{Kind, Status};
use heddle_protocol::ids::{CutId, TaskId};

use super::Shard;
use crate::asp;
use crate::change::ShardChange;
use crate::effect::{Flow, ShardEffect};
use crate::frame::Frame;
use crate::lanes::StepPart;
use crate::phase_progress::PhaseProgress;
use crate::table::NoRoom;
use crate::task_progress::Judgement;

/// A change does not fit the copy: it is not the state that the primary changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unfit;

impl Shard {
    /// Records what changes the shard from now on, or stops doing so.
    pub(crate) fn record_changes(&mut self, record: bool) {
        if record != self.changes.is_some() {
            self.changes = record.then(Vec::new);
        }
    }

    /// Moves the recorded changes to `all`, each with the number of effects before it.
    pub(crate) fn take_changes(&mut self, all: &mut Vec<(usize, Arc<ShardChange>)>) {
        if let Some(changes) = &mut self.changes {
            all.append(changes);
        }
    }

    /// Applies a change of the primary, which judged it. No reply and no report follows from it. [`Flow::Wait`]: nothing has
    /// happened, try again after [`Self::pump`]. It may wait for the saver of the
    /// shard's snapshot; a snapshot that no saver reads is dropped when its room is needed.
    ///
    /// # Errors
    /// [`Unfit`]; the copy is of no use any more.
    pub(crate) fn follow(&mut self, change: &Frame<'_>) -> Result<Flow, Unfit> {
        let mut unsent = Vec::new();
        match change.header.kind {
            Kind::Begun => {
                let phase = begun_phase(&change.header).ok_or(Unfit)?;
                if self.waits_for_room() {
                    return Ok(Flow::Wait);
                }
                self.begin(phase, &mut unsent);
                return Ok(Flow::Taken);
            }
            _ if self.waits_for_room() => return Ok(Flow::Wait),
            // Rows are missing: the snapshot would be of no use.
            Kind::Barrier if self.is_filling() => {}
            Kind::Barrier => self.snap(change.header.cut, &mut unsent),
            _ if change.header.phase != self.phase => return Err(Unfit),
            Kind::Push => return self.follow_push(change),
            Kind::Done => self.follow_done(change, &mut unsent)?,
            Kind::TaskDone => {
                let PhaseProgress::Queue(tasks) = &mut self.progress else { return Err(Unfit) };
                if !tasks.finish(TaskId(change.header.unit)) {
                    return Err(Unfit);
                }
            }
            Kind::Query => match &mut self.progress {
                PhaseProgress::Lanes(lanes) => {
                    lanes.ask(change.header.unit, change.header.hand_out).map_err(|_| Unfit)?;
                }
                _ => return Err(Unfit),
            },
            _ => return Err(Unfit),
        }
        Ok(Flow::Taken)
    }

    /// Whether a step or the end of a pass stays partially applied. The primary went on after it, so it is finished first.
    fn waits_for_room(&mut self) -> bool {
        if self.is_busy() {
            self.make_room();
            self.pump(&mut Vec::new());
        }
        self.is_busy()
    }

    /// Whether a step or the end of a pass is partially applied.
    pub(crate) fn is_busy(&self) -> bool {
        self.pass_end.is_some() || self.progress.lanes().is_some_and(|lanes| lanes.is_applying())
    }

    /// Drops the snapshot that takes the room, unless a saver reads it.
    fn make_room(&mut self) {
        if !self.memory.snapshots.is_read() {
            self.memory.drop_open();
        }
    }

    /// The saver of a backup's snapshot is too slow: changes wait for it no longer. A file fewer costs less than a backup
    /// that lags.
    pub(crate) fn stop_saving(&mut self) {
        self.memory.drop_open();
    }

    fn follow_push(&mut self, change: &Frame<'_>) -> Result<Flow, Unfit> {
        let header = &change.header;
        match &mut self.progress {
            PhaseProgress::Lanes(lanes) => {
                let gradient = self.memory.tables.check_push(change).map_err(|_| Unfit)?;
                let fits = header.step == lanes.step()
                    && lanes.check_part(header.unit, header.part).is_ok();
                if !fits {
                    return Err(Unfit);
                }
                let finite = heddle_optimizer::all_finite(change.values);
                let tables = self.memory.tables.all();
                match lanes.follow(tables, StepPart::of(header), gradient.filter(|_| finite)) {
                    Status::Ok => Ok(Flow::Taken),
                    _ => Err(Unfit),
                }
            }
            PhaseProgress::Queue(tasks) => {
                let part = (TaskId(header.unit), header.step, header.part);
                if tasks.check_part(part.0, part.1, part.2) != Judgement::Next {
                    return Err(Unfit);
                }
                let (steps, memory) = (&mut self.steps, &mut self.memory);
                let mut applied = asp::apply(tasks, steps, memory, change);
                if applied == Err(NoRoom::Copies) && !memory.snapshots.is_read() {
                    memory.drop_open();
                    applied = asp::apply(tasks, steps, memory, change);
                }
                match applied {
                    Ok(Status::Ok | Status::NotFinite) => Ok(Flow::Taken),
                    Err(NoRoom::Copies) => Ok(Flow::Wait),
                    Ok(_) | Err(NoRoom::Rows) => Err(Unfit),
                }
            }
            PhaseProgress::ReadOnly | PhaseProgress::Idle => Err(Unfit),
        }
    }

    fn follow_done(
        &mut self,
        change: &Frame<'_>,
        unsent: &mut Vec<ShardEffect>,
    ) -> Result<(), Unfit> {
        let header = &change.header;
        let PhaseProgress::Lanes(lanes) = &mut self.progress else { return Err(Unfit) };
        if header.step != lanes.step() || lanes.done(self.memory.tables.all(), header) != Status::Ok
        {
            return Err(Unfit);
        }
        self.pump(unsent);
        Ok(())
    }

    /// Becomes a primary: what waits for the saver continues. The snapshot of the `open` cut stays: this pserver saves it if
    /// its primary did not, or receives the end of the cut. Changes that need its room wait until then. Any other snapshot has
    /// no saver and no end to come.
    pub(crate) fn promote(&mut self, open: Option<CutId>, out: &mut Vec<ShardEffect>) {
        self.memory.snapshots.disarm();
        if !open.is_some_and(|cut| self.has_snapshot(cut)) {
            self.memory.drop_open();
        }
        self.pump(out);
        self.report_end(out);
    }
}
