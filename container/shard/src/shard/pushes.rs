//! What changes a shard: pushes, and words that a step or a task is over.

use heddle_protocol::frame::{Header, Status, flags};
use heddle_protocol::ids::TaskId;

use super::{Mode, Shard, Waiting};
use crate::copy_on_write::Full;
use crate::effect::{Conn, Effect, Flow};
use crate::lanes::Gradient;
use crate::optimizer::all_finite;
use crate::task_progress::Judgement;

impl Shard {
    pub(super) fn push(
        &mut self,
        conn: Conn,
        header: &Header,
        keys: &[u32],
        values: &[f32],
        out: &mut Vec<Effect>,
    ) -> Flow {
        match &self.mode {
            Mode::Lanes(_) => {
                self.stage(conn, header, keys, values, out);
                Flow::Taken
            }
            Mode::Queue(_) => self.apply(conn, header, keys, values, out),
            Mode::ReadOnly | Mode::Idle => {
                self.refuse(conn, header, Status::Unsupported, out);
                Flow::Taken
            }
        }
    }

    /// Which rows a push names, checked.
    fn gradient<'a>(
        &self,
        header: &Header,
        keys: &'a [u32],
        values: &'a [f32],
    ) -> Result<Gradient<'a>, Status> {
        if header.count == 0 {
            return if values.is_empty() { Ok(None) } else { Err(Status::BadLength) };
        }
        let index = usize::from(header.table.0);
        let table = self.tables.get(index).ok_or(Status::BadRange)?;
        let target = table.target(header, keys)?;
        if target.len().checked_mul(table.cols) != Some(values.len()) {
            return Err(Status::BadLength);
        }
        Ok(Some((index, target, values)))
    }

    /// ASP: applies the part at once.
    fn apply(
        &mut self,
        conn: Conn,
        header: &Header,
        keys: &[u32],
        values: &[f32],
        out: &mut Vec<Effect>,
    ) -> Flow {
        let gradient = match self.gradient(header, keys, values) {
            Ok(gradient) => gradient,
            Err(status) => {
                self.refuse(conn, header, status, out);
                return Flow::Taken;
            }
        };
        let Mode::Queue(marks) = &mut self.mode else {
            return Flow::Taken;
        };
        let task = TaskId(header.unit);
        let status = match marks.judge(task, header.step, header.part) {
            Judgement::Already => Status::Already,
            Judgement::Ahead => {
                self.refuse(conn, header, Status::OutOfOrder, out);
                return Flow::Taken;
            }
            Judgement::Next => {
                let mut status = Status::Ok;
                if let Some((index, target, sums)) = gradient {
                    let table = &self.tables[index];
                    if table.rule.takes_mean() && header.rows == 0 {
                        self.refuse(conn, header, Status::BadLength, out);
                        return Flow::Taken;
                    }
                    if !all_finite(sums) {
                        status = Status::NotFinite;
                    } else if let Err(Full) =
                        table.apply(&mut self.arena, target, sums, u64::from(header.rows))
                    {
                        return Flow::Wait;
                    }
                }
                marks.advance(task, header.step, header.part, header.has(flags::LAST));
                self.counts.pushes += 1;
                status
            }
        };
        self.acknowledge(conn, header, status, out);
        Flow::Taken
    }

    /// BSP: stages the part.
    pub(super) fn stage(
        &mut self,
        conn: Conn,
        header: &Header,
        keys: &[u32],
        values: &[f32],
        out: &mut Vec<Effect>,
    ) {
        let Mode::Lanes(lanes) = &self.mode else {
            return;
        };
        if let Err(status) = lanes.admit(header.unit, header.hand_out) {
            return self.refuse(conn, header, status, out);
        }
        // While a step is half applied, all of it is here.
        if header.step < lanes.step() {
            return self.acknowledge(conn, header, Status::Already, out);
        }
        if header.step == lanes.step().next() && lanes.may_be_ahead(header.unit) {
            return self.keep_ahead(conn, header, keys, values, out);
        }
        if header.step > lanes.step() {
            return self.refuse(conn, header, Status::OutOfOrder, out);
        }
        if let Err(status) = lanes.judge(header.unit, header.part) {
            return self.acknowledge(conn, header, status, out);
        }
        let mut gradient = match self.gradient(header, keys, values) {
            Ok(gradient) => gradient,
            Err(status) => return self.refuse(conn, header, status, out),
        };
        let finite = all_finite(values);
        if !finite {
            gradient = None;
        }
        let Mode::Lanes(lanes) = &mut self.mode else {
            return;
        };
        let last = header.has(flags::LAST);
        let part = (header.unit, header.part, last, header.rows);
        let status = lanes.push(&self.tables, part, gradient);
        self.counts.pushes += u64::from(status == Status::Ok);
        let status = if finite { status } else { Status::NotFinite };
        self.acknowledge(conn, header, status, out);
    }

    /// A shard that no pull of a lane waits for may hear of the next step before other lanes are done with this one.
    fn keep_ahead(
        &mut self,
        conn: Conn,
        header: &Header,
        keys: &[u32],
        values: &[f32],
        out: &mut Vec<Effect>,
    ) {
        let waiting = Waiting::new(conn, header, keys, values);
        if self.ahead_bytes + waiting.bytes() > self.early_bytes_max {
            if let Mode::Lanes(lanes) = &mut self.mode {
                lanes.defer(header.unit);
            }
            return self.acknowledge(conn, header, Status::Later, out);
        }
        self.ahead_bytes += waiting.bytes();
        self.ahead.push_back(waiting);
    }

    pub(super) fn done(&mut self, conn: Conn, header: &Header, out: &mut Vec<Effect>) {
        let Mode::Lanes(lanes) = &mut self.mode else {
            return self.refuse(conn, header, Status::Unsupported, out);
        };
        if let Err(status) = lanes.admit(header.unit, header.hand_out) {
            return self.refuse(conn, header, status, out);
        }
        let status = match header.step.cmp(&lanes.step()) {
            std::cmp::Ordering::Less => Status::Already,
            std::cmp::Ordering::Greater => Status::OutOfOrder,
            std::cmp::Ordering::Equal => lanes.done(&self.tables, header),
        };
        self.acknowledge(conn, header, status, out);
        self.pump(out);
    }

    pub(super) fn task_done(&mut self, conn: Conn, header: &Header, out: &mut Vec<Effect>) {
        let status = match &mut self.mode {
            Mode::Queue(marks) => match marks.finish(TaskId(header.unit)) {
                true => Status::Ok,
                false => Status::Already,
            },
            Mode::Lanes(_) | Mode::ReadOnly | Mode::Idle => Status::Unsupported,
        };
        self.acknowledge(conn, header, status, out);
    }
}
