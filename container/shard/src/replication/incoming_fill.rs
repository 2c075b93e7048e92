//! A refill at the backup: which attempt it takes, and which piece is next.
//!
//! A copy takes a refill only if its view orders it, and of its attempts only later ones than before: what arrives late of an
//! earlier attempt, or of an earlier order, changes nothing. Once a view has the copy in the in-sync set, no refill is taken.

use heddle_protocol::fill_frame::FillName;
use heddle_protocol::frame::{Header, Kind, Status, flags};
use heddle_protocol::ids::{Part, ViewVersion};
use heddle_protocol::mutation::Mutation;

use super::{CopyRole, Replication, ShardReplica};

/// The refill that a view has ordered.
pub(crate) struct IncomingFill {
    pub(super) name: FillName,
    /// Pieces that were taken, the end included.
    pieces: u32,
    ended: bool,
}

/// What becomes of a part of a refill.
pub(crate) enum FillTurn {
    /// Take it; it is the next one.
    Next,
    /// Answer with this.
    Answer(Header),
    /// A later epoch is on its way.
    Wait,
    /// It was superseded.
    Ignore,
}

impl IncomingFill {
    pub(super) fn new(order: ViewVersion) -> Self {
        Self { name: FillName { order, attempt: 0 }, pieces: 0, ended: false }
    }

    /// Whether all rows have come.
    pub(super) fn is_whole(&self) -> bool {
        self.ended
    }
}

impl ShardReplica {
    /// Whether a refill is ordered of which nothing has come.
    pub(crate) fn awaits_fill(&self) -> bool {
        self.filling.as_ref().is_some_and(|filling| filling.name.attempt == 0)
    }

    /// An answer of this copy, with the name of its refill and the next piece.
    pub(crate) fn named(&self, answer: Header) -> Header {
        let Some(filling) = &self.filling else { return answer };
        let flags = if filling.ended { flags::END } else { 0 };
        filling.name.on(Header { part: Part(filling.pieces), flags, ..answer })
    }
}

impl Replication {
    /// Decides about a part of a refill. `installed`: there is a shard to fill.
    pub(crate) fn check_fill(&self, entry: &Header, part: &Header, installed: bool) -> FillTurn {
        let name = FillName::of(part);
        if entry.epoch > self.epoch {
            return FillTurn::Wait;
        }
        let copy = self.copies.get(&entry.shard).filter(|_| entry.epoch == self.epoch);
        let term = copy.map_or(entry.term(), ShardReplica::term);
        let refuse = |status| {
            let head = Header::position(Kind::Refused, entry.epoch, entry.shard, term, 0);
            FillTurn::Answer(name.on(Header { status, ..head }))
        };
        let Some(copy) = copy else { return refuse(Status::NotReady) };
        if entry.term() < term {
            return refuse(Status::WrongTerm);
        }
        let is_backup = matches!(copy.role, CopyRole::Backup);
        if Mutation::StaleFillBegin.is_on() && part.kind == Kind::FillBegin && is_backup {
            return if installed { FillTurn::Next } else { refuse(Status::NotReady) };
        }
        let Some(filling) = copy.filling.as_ref().filter(|_| is_backup) else {
            return FillTurn::Ignore;
        };
        if part.kind == Kind::FillBegin {
            let is_ordered = entry.term() == term && name.order == filling.name.order;
            return match () {
                () if is_ordered && name.attempt <= filling.name.attempt => FillTurn::Ignore,
                // The view that orders it may be on its way.
                () if !is_ordered || !installed => {
                    let head =
                        Header::position(Kind::Refused, entry.epoch, entry.shard, entry.term(), 0);
                    FillTurn::Answer(name.on(Header { status: Status::NotReady, ..head }))
                }
                () => FillTurn::Next,
            };
        }
        if name != filling.name || entry.term() != term {
            return FillTurn::Ignore;
        }
        let is_next = !filling.ended && part.part.0 == filling.pieces;
        if is_next && entry.request == copy.number() {
            return FillTurn::Next;
        }
        let head = Header::position(Kind::Position, entry.epoch, entry.shard, term, copy.number());
        FillTurn::Answer(copy.named(head))
    }

    /// A part of a refill was taken. Returns its answer.
    pub(crate) fn filled(&mut self, entry: &Header, part: &Header) -> Header {
        let head = Header::position(Kind::Followed, entry.epoch, entry.shard, entry.term(), 0);
        let Some(copy) = self.copies.get_mut(&entry.shard) else { return head };
        let name = FillName::of(part);
        if part.kind == Kind::FillBegin {
            copy.start_at(entry.request);
            copy.filling = Some(IncomingFill { name, pieces: 0, ended: false });
        } else if let Some(filling) = &mut copy.filling {
            filling.pieces += 1;
            filling.ended = part.kind == Kind::FillEnd;
        }
        let number = copy.number();
        copy.named(Header { request: number, ..head })
    }
}
