//! Connections of trainers, and the frames that they hold.

use std::collections::{BTreeMap, VecDeque};

use heddle_protocol::ids::{Member, Slot};

use crate::effect::{Conn, Flow};
use crate::frame::{Frame, WaitingFrame};

/// Bytes of frames that the set holds during a cut before it stops reading the connections that send them: some hundred
/// parts, more than trainers have in flight in a cut's few milliseconds.
const HELD_BYTES_MAX: usize = 64 << 20;

/// All connections.
#[derive(Default)]
pub(super) struct TrainerConnections {
    open: BTreeMap<Conn, OpenConnection>,
    opened: u64,
    held_bytes: usize,
}

struct OpenConnection {
    member: Member,
    /// Frames that wait for the end of a cut or for the saver, and all later frames that change a shard.
    held: VecDeque<WaitingFrame>,
}

impl TrainerConnections {
    pub(super) fn open(&mut self, member: Member) -> Conn {
        let conn = self.number();
        self.open.insert(conn, OpenConnection { member, held: VecDeque::new() });
        conn
    }

    /// Numbers a connection.
    pub(super) fn number(&mut self) -> Conn {
        self.opened += 1;
        Conn(self.opened)
    }

    /// Removes a connection and its frames, and returns its trainer. None if it is not open.
    pub(super) fn close(&mut self, conn: Conn) -> Option<Member> {
        let connection = self.open.remove(&conn)?;
        self.held_bytes -= connection.held.iter().map(WaitingFrame::bytes).sum::<usize>();
        Some(connection.member)
    }

    pub(super) fn member(&self, conn: Conn) -> Option<Member> {
        self.open.get(&conn).map(|connection| connection.member)
    }

    /// Connections of a slot.
    pub(super) fn of_slot(&self, slot: Slot) -> Vec<(Conn, Member)> {
        self.list(|member| member.slot == slot)
    }

    /// Connections of some members.
    pub(super) fn list(&self, matches: impl Fn(Member) -> bool) -> Vec<(Conn, Member)> {
        let all = self.open.iter().map(|(&conn, connection)| (conn, connection.member));
        all.filter(|(_, member)| matches(*member)).collect()
    }

    pub(super) fn has_held(&self, conn: Conn) -> bool {
        self.open.get(&conn).is_some_and(|connection| !connection.held.is_empty())
    }

    /// Connections that hold frames.
    pub(super) fn with_held(&self) -> Vec<Conn> {
        let holds = |(&conn, connection): (&Conn, &OpenConnection)| {
            (!connection.held.is_empty()).then_some(conn)
        };
        self.open.iter().filter_map(holds).collect()
    }

    /// Holds a copy of a frame, up to `bytes_max` bytes of frames on all connections.
    pub(super) fn hold_frame(&mut self, frame: &Frame<'_>, bytes_max: usize) -> Flow {
        let Some(connection) = self.open.get_mut(&frame.conn) else {
            debug_assert!(false, "frames come from open connections");
            return Flow::Taken;
        };
        let waiting = frame.to_waiting();
        if self.held_bytes + waiting.bytes() > HELD_BYTES_MAX.min(bytes_max) {
            return Flow::Wait;
        }
        self.held_bytes += waiting.bytes();
        connection.held.push_back(waiting);
        Flow::Taken
    }

    /// Removes the oldest frame that a connection holds.
    pub(super) fn pop(&mut self, conn: Conn) -> Option<WaitingFrame> {
        let waiting = self.open.get_mut(&conn)?.held.pop_front()?;
        self.held_bytes -= waiting.bytes();
        Some(waiting)
    }

    /// Returns a frame of [`Self::pop`] that still has to wait.
    pub(super) fn put_back(&mut self, waiting: WaitingFrame) {
        let connection = self.open.get_mut(&waiting.conn);
        debug_assert!(connection.is_some(), "handling a frame closes no connection");
        if let Some(connection) = connection {
            self.held_bytes += waiting.bytes();
            connection.held.push_front(waiting);
        }
    }

    /// Drops all held frames.
    pub(super) fn drop_held(&mut self) {
        self.open.values_mut().for_each(|connection| connection.held.clear());
        self.held_bytes = 0;
    }
}
