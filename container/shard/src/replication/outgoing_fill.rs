//! A refill at the primary: it begins, sends rows between the changes, and ends when the backup has all.
//!
//! What is read at one place of the stream is sent at this place: a piece has the number of the last change that is in it, and
//! leaves after the entry with this number and before the next one. Once the backup is whole, answers wait for it; when it has
//! what was acknowledged before, it is reported to be in sync. A refill whose connection breaks, or whose backup is silent or
//! refuses, begins again as another attempt, and answers to the earlier one do not count.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use heddle_protocol::fill_frame::FillName;
use heddle_protocol::frame::{Header, Kind, flags};
use heddle_protocol::ids::{Part, ViewVersion};
use heddle_protocol::mutation::Mutation;

use crate::change::ShardChange;
use crate::shard::{FillCursor, FillPiece};

/// Pieces that are not acknowledged: enough to keep a stream busy for a round trip, and at most 1 MiB between two changes.
const PIECES_MAX: u32 = 4;
/// When a backup is asked again that was not ready.
pub(super) const RETRY: Duration = Duration::from_millis(100);

/// A refill of one backup.
pub(crate) struct OutgoingFill {
    pub(super) name: FillName,
    stage: FillStage,
    /// It does not begin before.
    not_before: Option<Duration>,
    /// Bytes of rows that were sent.
    pub(super) bytes: u64,
}

enum FillStage {
    /// It begins when the state of the shard can be sent.
    Wanted,
    /// The beginning; none once it is sent. It is not acknowledged.
    Begun(u64, Option<Arc<ShardChange>>),
    /// Rows are sent.
    Rows(FillRows),
    /// The backup is whole and counts. It has everything once it has acknowledged `target`; when that was reported last.
    CaughtUp { target: u64, reported: Option<Duration> },
}

#[derive(Default)]
struct FillRows {
    /// None once the end is read.
    next: Option<FillCursor>,
    /// Pieces that are not sent, each with the number of the last change in it.
    queue: VecDeque<(u64, Arc<ShardChange>)>,
    /// Pieces that were read, the end included.
    read: u32,
    acknowledged: u32,
}

/// What a refill needs from the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FillNeed {
    /// Its state.
    Begin,
    /// The piece at this place.
    Piece(FillCursor),
}

impl OutgoingFill {
    pub(super) fn new(order: ViewVersion) -> Self {
        Self {
            name: FillName { order, attempt: 0 },
            stage: FillStage::Wanted,
            not_before: None,
            bytes: 0,
        }
    }

    /// Whether the backup is whole.
    pub(super) fn is_caught_up(&self) -> bool {
        matches!(self.stage, FillStage::CaughtUp { .. })
    }

    /// Whether the backup needs the changes after those that it has acknowledged.
    pub(super) fn has_begun(&self) -> bool {
        !matches!(self.stage, FillStage::Wanted)
    }

    pub(super) fn need(&self, now: Duration) -> Option<FillNeed> {
        match &self.stage {
            FillStage::Wanted if self.not_before.is_none_or(|at| at <= now) => {
                Some(FillNeed::Begin)
            }
            FillStage::Rows(rows) if rows.read - rows.acknowledged < PIECES_MAX => {
                rows.next.map(FillNeed::Piece)
            }
            FillStage::Wanted
            | FillStage::Begun(..)
            | FillStage::Rows(_)
            | FillStage::CaughtUp { .. } => None,
        }
    }

    /// Begins with the state at this number, if it is to begin. Returns whether it does.
    pub(super) fn begin(&mut self, number: u64, state: &ShardChange) -> bool {
        if !matches!(self.stage, FillStage::Wanted) {
            return false;
        }
        self.name.attempt += 1;
        self.bytes = 0;
        self.not_before = None;
        self.stage = FillStage::Begun(number, Some(Arc::new(state.named(self.name))));
        true
    }

    /// The next piece was read at this number.
    pub(super) fn push(&mut self, number: u64, piece: FillPiece) {
        let name = self.name;
        let FillStage::Rows(rows) = &mut self.stage else { return };
        let frame = piece.frame.named(name).numbered(Part(rows.read));
        self.bytes += frame.frame().header.value_bytes as u64;
        rows.read += 1;
        rows.next = piece.next;
        rows.queue.push_back((number, Arc::new(frame)));
    }

    /// What has to be sent after the entry `sent` and before the next one, with its number.
    pub(super) fn take(&mut self, sent: u64) -> Option<(u64, Arc<ShardChange>)> {
        match &mut self.stage {
            FillStage::Begun(number, frame) => Some((*number, frame.take()?)),
            FillStage::Rows(rows) => {
                let overtakes = Mutation::ChunksOvertakeChanges.is_on();
                let is_due = |(number, _): &&(u64, _)| *number <= sent || overtakes;
                rows.queue.front().filter(is_due)?;
                let (number, frame) = rows.queue.pop_front()?;
                Some((if overtakes { sent } else { number }, frame))
            }
            FillStage::Wanted | FillStage::CaughtUp { .. } => None,
        }
    }

    /// Whether changes are sent to the backup.
    pub(super) fn takes_changes(&self) -> bool {
        matches!(self.stage, FillStage::Rows(_) | FillStage::CaughtUp { .. })
    }

    /// Whether this is an answer to the present attempt.
    pub(super) fn is_named(&self, reply: &Header) -> bool {
        FillName::of(reply) == self.name || Mutation::AnyFillName.is_on()
    }

    /// Takes an answer to the present attempt. `committed`: what was acknowledged so far. Returns false if the attempt is of no
    /// use any more.
    pub(super) fn answered(&mut self, reply: &Header, committed: u64) -> bool {
        if reply.kind != Kind::Followed {
            return false;
        }
        if let FillStage::Begun(..) = self.stage {
            let rows = FillRows { next: Some(FillCursor::default()), ..FillRows::default() };
            self.stage = FillStage::Rows(rows);
        }
        let FillStage::Rows(rows) = &mut self.stage else { return true };
        rows.acknowledged = rows.acknowledged.max(reply.part.0.min(rows.read));
        if reply.has(flags::END) {
            self.stage = FillStage::CaughtUp { target: committed, reported: None };
        }
        true
    }

    /// Whether answers for it are outstanding, besides those to changes.
    pub(super) fn owes(&self) -> bool {
        match &self.stage {
            FillStage::Begun(..) => true,
            FillStage::Rows(rows) => rows.acknowledged < rows.read,
            FillStage::Wanted | FillStage::CaughtUp { .. } => false,
        }
    }

    /// The attempt is over; the next one does not begin before a moment.
    pub(super) fn restart(&mut self, not_before: Duration) {
        self.stage = FillStage::Wanted;
        self.not_before = Some(not_before);
    }

    /// Whether it was reported to be in sync, which only a view ends.
    pub(super) fn is_reported(&self) -> bool {
        matches!(self.stage, FillStage::CaughtUp { reported: Some(_), .. })
    }

    /// Whether the backup is to be reported in sync now: it has everything, and was not reported for `again`.
    pub(super) fn reports(&mut self, acknowledged: u64, now: Duration, again: Duration) -> bool {
        let FillStage::CaughtUp { target, reported } = &mut self.stage else { return false };
        let is_due = reported.is_none_or(|at| now >= at + again);
        let reports = is_due && acknowledged >= *target;
        if reports {
            *reported = Some(now);
        }
        reports
    }

    /// When something has to be done without an answer.
    pub(super) fn deadline(&self, again: Duration) -> Option<Duration> {
        match &self.stage {
            FillStage::Wanted => self.not_before,
            FillStage::CaughtUp { reported, .. } => reported.map(|at| at + again),
            FillStage::Begun(..) | FillStage::Rows(_) => None,
        }
    }

    /// Whether the wait before an attempt is over. True once.
    pub(super) fn wait_ends(&mut self, now: Duration) -> bool {
        self.not_before.take_if(|at| *at <= now).is_some()
    }
}
