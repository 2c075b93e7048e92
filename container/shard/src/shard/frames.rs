//! What a shard does with each frame, and pulls.

use heddle_protocol::frame::{Header, Kind, Status, VALUE_BYTES_MAX, flags};
use heddle_protocol::ids::TaskId;

use super::{Mode, PARKED_BYTES_MAX, Shard, parked_bytes};
use crate::effect::{Conn, Effect, Flow, Rows, ShardReport};
use crate::table::Table;

impl Shard {
    /// Takes a frame of this shard, of this epoch, from a member.
    pub(crate) fn on_frame(
        &mut self,
        conn: Conn,
        header: &Header,
        keys: &[u32],
        values: &[f32],
        out: &mut Vec<Effect>,
    ) -> Flow {
        if matches!(self.mode, Mode::Idle) || header.phase > self.phase {
            self.refuse(conn, header, Status::NotReady, out);
            return Flow::Taken;
        }
        if header.phase < self.phase {
            self.refuse(conn, header, Status::WrongPhase, out);
            return Flow::Taken;
        }
        match header.kind {
            Kind::Pull => self.pull(conn, header, keys, values, out),
            Kind::Push => return self.push(conn, header, keys, values, out),
            Kind::Done => self.done(conn, header, out),
            Kind::TaskDone => self.task_done(conn, header, out),
            Kind::Query => self.query(conn, header, out),
            // The host's, and replies, which nobody sends here.
            Kind::Barrier | Kind::Values | Kind::Ack | Kind::Standing | Kind::Refused => {
                self.refuse(conn, header, Status::Unsupported, out);
            }
        }
        Flow::Taken
    }

    /// Goes on with what had to wait for the saver.
    pub(crate) fn pump(&mut self, out: &mut Vec<Effect>) {
        let Mode::Lanes(lanes) = &mut self.mode else {
            return;
        };
        if matches!(lanes.apply(&self.tables, &mut self.arena), Ok(true)) {
            self.step_applied(out);
        }
    }

    /// The values of a range whose turn to be sent has come; nothing if they are of another step by now.
    pub(crate) fn range(&self, header: &Header) -> Option<&[f32]> {
        let table = self.serving(header)?;
        let first = header.start.checked_sub(table.rows.start)? as usize;
        Some(table.range(&self.arena, first, header.count as usize))
    }

    /// As [`Self::range`], of rows by key, put at the end of `out`.
    pub(crate) fn gather(&self, header: &Header, keys: &[u32], out: &mut Vec<f32>) -> Option<()> {
        self.serving(header)?.gather(&self.arena, keys, out);
        Some(())
    }

    fn serving(&self, header: &Header) -> Option<&Table> {
        if let (Mode::Lanes(lanes), false) = (&self.mode, header.has(flags::FREE))
            && (lanes.step() != header.step || lanes.is_applying())
        {
            return None;
        }
        self.tables.get(usize::from(header.table.0))
    }

    fn pull(
        &mut self,
        conn: Conn,
        header: &Header,
        keys: &[u32],
        values: &[f32],
        out: &mut Vec<Effect>,
    ) {
        if !values.is_empty() {
            return self.refuse(conn, header, Status::BadLength, out);
        }
        if let Err(status) = self.pull_bytes(header, keys) {
            return self.refuse(conn, header, status, out);
        }
        if let (Mode::Lanes(lanes), false) = (&self.mode, header.has(flags::FREE)) {
            let (at, half) = (lanes.step(), lanes.is_applying());
            if header.step < at || (half && header.step == at) {
                return self.refuse(conn, header, Status::Stale, out);
            }
            // A lane that is done with this step here may be further elsewhere, and ask ahead. Without
            // it no such step is reached, and the pull goes with the phase.
            if header.step > at {
                if self.parked_bytes + parked_bytes(keys)
                    > PARKED_BYTES_MAX.min(self.waiting_bytes_max)
                {
                    return self.refuse(conn, header, Status::Later, out);
                }
                self.parked_bytes += parked_bytes(keys);
                self.parked.push((conn, *header, keys.into()));
                return;
            }
        }
        self.serve_pull(conn, header, keys.into(), out);
    }

    pub(super) fn pull_bytes(&self, header: &Header, keys: &[u32]) -> Result<u32, Status> {
        let table = self.tables.get(usize::from(header.table.0)).ok_or(Status::BadRange)?;
        let values = table.target(header, keys)?.len().checked_mul(table.cols);
        let bytes = values.and_then(|values| u32::try_from(values).ok()?.checked_mul(4));
        bytes.filter(|&bytes| bytes <= VALUE_BYTES_MAX).ok_or(Status::BadLength)
    }

    fn serve_pull(&self, conn: Conn, header: &Header, keys: Box<[u32]>, out: &mut Vec<Effect>) {
        let mut reply = header.reply(Kind::Values, Status::Ok);
        // Kept for when the values are read, which must know whether the step matters.
        reply.flags = header.flags & flags::FREE;
        reply.value_bytes =
            self.pull_bytes(header, &keys).expect("it was checked when the pull came");
        let rows = if header.has(flags::KEYS) { Rows::Keys(keys) } else { Rows::Range };
        out.push(Effect::Values { conn, header: reply, rows });
    }

    fn query(&mut self, conn: Conn, header: &Header, out: &mut Vec<Effect>) {
        let mut reply = header.reply(Kind::Standing, Status::Ok);
        match &mut self.mode {
            Mode::Lanes(lanes) => {
                if let Err(status) = lanes.ask(header.unit, header.hand_out) {
                    return self.refuse(conn, header, status, out);
                }
                let Some((part, rows, standing)) = lanes.standing(header.unit) else {
                    return self.refuse(conn, header, Status::BadRange, out);
                };
                (reply.step, reply.part, reply.flags) = (lanes.step(), part, standing);
                // Who has only the `Done` left to send must say how many records there were.
                reply.rows = rows;
            }
            Mode::Queue(marks) => {
                let task = TaskId(header.unit);
                let mark = marks.mark(task);
                (reply.step, reply.part) = (mark.step, mark.part);
                reply.flags = if marks.is_done(task) { flags::DONE } else { 0 };
            }
            Mode::ReadOnly | Mode::Idle => {
                return self.refuse(conn, header, Status::Unsupported, out);
            }
        }
        out.push(Effect::Reply { conn, header: reply });
    }

    /// A step was applied: the cut that waits for it is taken before anything else happens.
    fn step_applied(&mut self, out: &mut Vec<Effect>) {
        self.take_armed(out);
        let step = self.step();
        for (conn, header, keys) in std::mem::take(&mut self.parked) {
            if header.step == step {
                self.parked_bytes -= parked_bytes(&keys);
                self.serve_pull(conn, &header, keys, out);
            } else {
                self.parked.push((conn, header, keys));
            }
        }
        let ahead = std::mem::take(&mut self.ahead);
        self.ahead_bytes = 0;
        for waiting in ahead {
            self.stage(waiting.conn, &waiting.header, &waiting.keys, &waiting.values, out);
        }
        self.report_end(out);
    }

    pub(super) fn report_end(&self, out: &mut Vec<Effect>) {
        if let Mode::Lanes(lanes) = &self.mode
            && lanes.all_ended()
        {
            let (shard, phase, step) = (self.id, self.phase, lanes.step());
            out.push(Effect::Report(ShardReport::PhaseEnded { shard, phase, step }));
        }
    }

    /// Answers a request that changes something: done, seen before, or refused.
    pub(super) fn acknowledge(
        &mut self,
        conn: Conn,
        header: &Header,
        status: Status,
        out: &mut Vec<Effect>,
    ) {
        match status {
            Status::Ok | Status::Already => {
                out.push(Effect::Reply { conn, header: header.reply(Kind::Ack, status) });
            }
            _ => self.refuse(conn, header, status, out),
        }
    }

    pub(super) fn refuse(
        &mut self,
        conn: Conn,
        header: &Header,
        status: Status,
        out: &mut Vec<Effect>,
    ) {
        // A parked frame that is told to come again is no fault of anybody's.
        self.counts.refused += u64::from(!matches!(status, Status::Later | Status::NotReady));
        out.push(Effect::Reply { conn, header: header.reply(Kind::Refused, status) });
    }
}
