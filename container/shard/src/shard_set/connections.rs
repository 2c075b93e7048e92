//! Who is connected and who may speak.

use std::collections::VecDeque;

use heddle_protocol::frame::Status;
use heddle_protocol::ids::{Incarnation, Member, Role};

use super::{Connection, ShardSet};
use crate::effect::{Conn, Effect};
use crate::shard::Waiting;

impl ShardSet {
    /// A trainer has proven who it is on a new connection; its older one is closed unread.
    ///
    /// # Errors
    /// `NotMember`: it has been superseded or has left; close the connection.
    pub fn connect(&mut self, member: Member, out: &mut Vec<Effect>) -> Result<Conn, Status> {
        let later = |incarnation: &Incarnation| *incarnation > member.incarnation;
        if member.slot.role != Role::Trainer || self.standing(member) == Err(Status::NotMember) {
            return Err(Status::NotMember);
        }
        let same_slot = |c: &&Conn| self.conns[c].member.slot == member.slot;
        let older: Vec<Conn> = self.conns.keys().filter(same_slot).copied().collect();
        if older.iter().any(|conn| later(&self.conns[conn].member.incarnation)) {
            return Err(Status::NotMember);
        }
        for conn in older {
            out.push(Effect::Close { conn });
            self.disconnect(conn);
        }
        self.conns_made += 1;
        let conn = Conn(self.conns_made);
        self.conns.insert(conn, Connection { member, held: VecDeque::new() });
        Ok(conn)
    }

    /// The connection is gone: what it waited for comes again on another.
    pub fn disconnect(&mut self, conn: Conn) {
        let Some(connection) = self.conns.remove(&conn) else {
            return;
        };
        self.held_bytes -= connection.held.iter().map(Waiting::bytes).sum::<usize>();
        for shard in self.shards.values_mut() {
            shard.disconnect(conn);
        }
    }

    /// Exactly these trainers may speak from now on. Connections of those who no longer may are closed,
    /// and an open cut does not wait for them.
    pub fn members(&mut self, trainers: &[Member], out: &mut Vec<Effect>) {
        self.members.clear();
        for member in trainers.iter().filter(|member| member.slot.role == Role::Trainer) {
            self.members.insert(member.slot.index, member.incarnation);
            let known = self.known.entry(member.slot.index).or_default();
            *known = (*known).max(member.incarnation);
        }
        let gone = |c: &&Conn| self.standing(self.conns[c].member) == Err(Status::NotMember);
        let gone: Vec<Conn> = self.conns.keys().filter(gone).copied().collect();
        for conn in gone {
            out.push(Effect::Close { conn });
            self.disconnect(conn);
        }
        let members = &self.members;
        if let Some(open) = &mut self.open {
            open.retain(|member| members.get(&member.slot.index) == Some(&member.incarnation));
        }
        self.snap_if_complete(out);
    }

    /// Whether a trainer may speak. One that is newer than all that was heard of it is told to wait: the
    /// list that names it is on its way.
    pub(super) fn standing(&self, member: Member) -> Result<(), Status> {
        let slot = member.slot.index;
        if self.members.get(&slot) == Some(&member.incarnation) {
            return Ok(());
        }
        match self.known.get(&slot) {
            Some(&known) if member.incarnation <= known => Err(Status::NotMember),
            _ => Err(Status::NotReady),
        }
    }
}
