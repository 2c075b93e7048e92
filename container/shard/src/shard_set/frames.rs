//! What a host does with each frame before its shard sees it, and what it holds back.

use heddle_protocol::frame::{Header, Kind, Status};
use heddle_protocol::ids::Member;
use heddle_protocol::mutation::Mutation;

use super::{Connection, HELD_BYTES_MAX, ShardSet};
use crate::effect::{Conn, Effect, Flow};
use crate::shard::Waiting;

impl ShardSet {
    /// Takes one whole frame: `keys` and `values` as the header announces (keys of eight bytes as
    /// pairs of words). When the answer is [`Flow::Wait`] nothing has happened.
    pub fn on_frame(
        &mut self,
        conn: Conn,
        header: &Header,
        keys: &[u32],
        values: &[f32],
        out: &mut Vec<Effect>,
    ) -> Flow {
        let Some(connection) = self.conns.get(&conn) else {
            return Flow::Taken;
        };
        let member = connection.member;
        if let Err(status) = self.standing(member) {
            return self.refuse(conn, header, status, out);
        }
        if header.kind.is_reply() {
            return self.refuse(conn, header, Status::Unsupported, out);
        }
        if header.epoch != self.epoch && !Mutation::AnyEpoch.is_on() {
            return self.refuse(conn, header, Status::WrongEpoch, out);
        }
        if header.kind == Kind::Barrier {
            self.barrier(member, header, out);
            return Flow::Taken;
        }
        if !self.shards.contains_key(&header.shard) {
            let missing = self.missing.contains(&header.shard);
            let status = if missing { Status::NotReady } else { Status::WrongShard };
            return self.refuse(conn, header, status, out);
        }
        let changes = match header.kind {
            Kind::Push | Kind::Done | Kind::TaskDone => true,
            Kind::Pull | Kind::Query | Kind::Barrier => false,
            Kind::Values | Kind::Ack | Kind::Standing | Kind::Refused => false,
        };
        let behind = !self.conns[&conn].held.is_empty();
        let passed = self.open.as_ref().is_some_and(|open| open.has_passed(member.slot));
        if changes && (behind || passed) {
            return self.keep_back(conn, header, keys, values);
        }
        let Some(shard) = self.shards.get_mut(&header.shard) else {
            return Flow::Taken;
        };
        match shard.on_frame(conn, header, keys, values, out) {
            Flow::Taken => Flow::Taken,
            // Kept here, so that pulls behind it go on.
            Flow::Wait => self.keep_back(conn, header, keys, values),
        }
    }

    /// The values of a range ([`crate::Rows::Range`]) whose turn to be sent has come, as they lie in the table.
    /// Nothing if the shard has moved on: whoever asked is superseded, or hears of a new epoch.
    #[must_use]
    pub fn range(&self, header: &Header) -> Option<&[f32]> {
        let shard = self.shards.get(&header.shard)?;
        (header.epoch == self.epoch).then(|| shard.range(header))?
    }

    /// As [`Self::range`], of [`crate::Rows::Keys`]: put at the end of `out`.
    #[must_use]
    pub fn gather(&self, header: &Header, keys: &[u32], out: &mut Vec<f32>) -> Option<()> {
        let shard = self.shards.get(&header.shard)?;
        (header.epoch == self.epoch).then(|| shard.gather(header, keys, out))?
    }

    fn barrier(&mut self, member: Member, header: &Header, out: &mut Vec<Effect>) {
        let Some(open) = &mut self.open else { return };
        // One of an earlier generation may have waited for its connection all the time.
        let same_number = open.cut.number == header.cut.number;
        if open.cut != header.cut && !(same_number && Mutation::BarrierByNumber.is_on()) {
            return;
        }
        open.pass(member);
        self.snap_if_complete(out);
    }

    fn keep_back(&mut self, conn: Conn, header: &Header, keys: &[u32], values: &[f32]) -> Flow {
        let Some(connection) = self.conns.get_mut(&conn) else {
            return Flow::Taken;
        };
        let waiting = Waiting::new(conn, header, keys, values);
        let most = self
            .shards
            .values()
            .fold(0usize, |sum, shard| sum.saturating_add(shard.waiting_bytes_max));
        if self.held_bytes + waiting.bytes() > HELD_BYTES_MAX.min(most) {
            return Flow::Wait;
        }
        self.held_bytes += waiting.bytes();
        connection.held.push_back(waiting);
        Flow::Taken
    }

    /// Takes up what was held back and need not be any more, in the order it came in.
    pub(super) fn release(&mut self, out: &mut Vec<Effect>) {
        let waiting = |(conn, c): (&Conn, &Connection)| (!c.held.is_empty()).then_some(*conn);
        let conns: Vec<Conn> = self.conns.iter().filter_map(waiting).collect();
        for conn in conns {
            self.release_one(conn, out);
        }
    }

    pub(super) fn release_one(&mut self, conn: Conn, out: &mut Vec<Effect>) {
        while let Some(connection) = self.conns.get_mut(&conn) {
            let slot = connection.member.slot;
            if self.open.as_ref().is_some_and(|open| open.has_passed(slot)) {
                return;
            }
            let Some(waiting) = connection.held.pop_front() else {
                return;
            };
            let Waiting { header, keys, values, .. } = &waiting;
            let Some(shard) = self.shards.get_mut(&header.shard) else {
                self.held_bytes -= waiting.bytes();
                let _ = self.refuse(conn, header, Status::NotReady, out);
                continue;
            };
            match shard.on_frame(conn, header, keys, values, out) {
                Flow::Taken => self.held_bytes -= waiting.bytes(),
                Flow::Wait => {
                    connection.held.push_front(waiting);
                    return;
                }
            }
        }
    }

    /// Goes on with what waits for the saver: call it when pieces of a snapshot were read.
    pub fn pump(&mut self, out: &mut Vec<Effect>) {
        for shard in self.shards.values_mut() {
            shard.pump(out);
        }
        self.release(out);
    }

    pub(super) fn refuse(
        &mut self,
        conn: Conn,
        header: &Header,
        status: Status,
        out: &mut Vec<Effect>,
    ) -> Flow {
        self.refused += u64::from(status != Status::NotReady);
        out.push(Effect::Reply { conn, header: header.reply(Kind::Refused, status) });
        Flow::Taken
    }
}
