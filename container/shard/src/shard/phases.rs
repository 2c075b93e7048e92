//! How a shard comes into a phase: its start, a file, a snapshot in memory.

use heddle_protocol::control::{Phase, Sharing};
use heddle_protocol::frame::Status;
use heddle_protocol::ids::{CutId, Step};

use super::{Mode, Shard, Snapshot, Waiting, parked_bytes};
use crate::content::ContentError;
use crate::copy_on_write::Which;
use crate::dedup::Seen;
use crate::effect::{Conn, Effect};
use crate::lanes::Lanes;
use crate::task_progress::TaskProgress;

impl Shard {
    /// Serves a new phase from its start. Whatever waits is answered: it belongs to the one before.
    pub(crate) fn begin(&mut self, phase: Phase, out: &mut Vec<Effect>) {
        self.answer_waiting(Status::WrongPhase, out);
        self.loaded = None;
        let none_ended = |lanes: u32| vec![false; lanes as usize];
        self.serve(
            phase,
            Step(0),
            match phase.sharing {
                Sharing::Lanes { lanes } => Seen::Lanes { step: Step(0), ended: none_ended(lanes) },
                Sharing::Queue => Seen::Queue(TaskProgress::default()),
                Sharing::ReadOnly => Seen::ReadOnly,
            },
        );
    }

    /// Serves the phase from where the state that was loaded or returned to stands.
    pub(crate) fn resume(
        &mut self,
        phase: Phase,
        step: Step,
        out: &mut Vec<Effect>,
    ) -> Result<(), ContentError> {
        let shard = self.id;
        let Some(memory) = self.loaded.take().filter(|memory| memory.phase >= phase.no) else {
            // Initial values, or a cut at the end of an earlier phase.
            if step != Step(0) {
                return Err(ContentError::Step { shard, saved: Step(0), wanted: step });
            }
            self.begin(phase, out);
            return Ok(());
        };
        if memory.phase > phase.no {
            return Err(ContentError::Phase { shard, saved: memory.phase, wanted: phase.no });
        }
        match (&memory.seen, phase.sharing) {
            (Seen::Lanes { step: saved, .. }, Sharing::Lanes { .. }) if *saved != step => {
                return Err(ContentError::Step { shard, saved: *saved, wanted: step });
            }
            (Seen::Lanes { ended, .. }, Sharing::Lanes { lanes })
                if ended.len() == lanes as usize => {}
            (Seen::Queue(_), Sharing::Queue) | (Seen::ReadOnly, Sharing::ReadOnly) => {}
            _ => return Err(ContentError::Sharing { shard }),
        }
        self.answer_waiting(Status::WrongEpoch, out);
        self.serve(phase, step, memory.seen);
        self.report_end(out);
        Ok(())
    }

    fn serve(&mut self, phase: Phase, step: Step, seen: Seen) {
        self.phase = phase.no;
        self.armed = None;
        self.mode = match seen {
            Seen::Lanes { ended, .. } => {
                Mode::Lanes(Lanes::new(step, ended, self.tables.len(), self.early_bytes_max))
            }
            Seen::Queue(marks) => Mode::Queue(marks),
            Seen::ReadOnly => Mode::ReadOnly,
        };
    }

    /// Returns to the snapshot of `cut`, if it is still whole, and to what was seen then.
    pub(crate) fn restore(&mut self, cut: CutId) -> bool {
        let is = |snapshot: &Option<Snapshot>| snapshot.as_ref().is_some_and(|s| s.cut == cut);
        let which = match (is(&self.kept), is(&self.open)) {
            (true, _) => Which::Kept,
            (false, true) => Which::Open,
            (false, false) => return false,
        };
        if which == Which::Open {
            self.kept = self.open.take();
        }
        self.open = None;
        if !self.arena.restore(which) {
            self.arena.drop_open();
            self.arena.drop_kept();
            self.kept = None;
            return false;
        }
        self.loaded = self.kept.as_ref().map(|snapshot| snapshot.memory.clone());
        true
    }

    /// Drops parked and staged requests and serves nothing until it is told what.
    pub(crate) fn stop_serving(&mut self, out: &mut Vec<Effect>) {
        self.answer_waiting(Status::WrongEpoch, out);
        self.mode = Mode::Idle;
        self.armed = None;
    }

    fn answer_waiting(&mut self, status: Status, out: &mut Vec<Effect>) {
        let parked = std::mem::take(&mut self.parked);
        let ahead = std::mem::take(&mut self.ahead);
        (self.ahead_bytes, self.parked_bytes) = (0, 0);
        for (conn, header, _) in parked {
            self.refuse(conn, &header, status, out);
        }
        for waiting in ahead {
            self.refuse(waiting.conn, &waiting.header, status, out);
        }
    }

    /// Forgets what this connection waits for: it comes again on the next one.
    pub(crate) fn disconnect(&mut self, conn: Conn) {
        self.parked.retain(|(of, ..)| *of != conn);
        self.parked_bytes = self.parked.iter().map(|(.., keys)| parked_bytes(keys)).sum();
        self.ahead.retain(|waiting| waiting.conn != conn);
        self.ahead_bytes = self.ahead.iter().map(Waiting::bytes).sum();
    }
}
