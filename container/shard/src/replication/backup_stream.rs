//! The stream of a primary's changes to one backup: what was sent, what is acknowledged, and since when it is slow.

use std::net::SocketAddr;
use std::time::Duration;

use heddle_protocol::control::BackupPlace;
use heddle_protocol::ids::Member;
use heddle_protocol::mutation::Mutation;

use super::outgoing_fill::OutgoingFill;

/// A backup's pserver, and the address of its data thread.
pub type Peer = (Member, SocketAddr);

/// The stream to a backup of one shard.
pub(crate) struct BackupStream {
    pub(super) place: BackupPlace,
    /// Answers wait for it.
    pub(crate) in_sync: bool,
    pub(crate) acknowledged: u64,
    pub(super) sent: u64,
    /// Since when it has owed an acknowledgement, without progress.
    pub(super) owes_since: Option<Duration>,
    /// It cannot follow any more, or needs changes that the tail does not have.
    pub(crate) lost: bool,
    /// When it was last reported to lag.
    pub(super) reported: Option<Duration>,
    /// It is brought up to date by a refill.
    pub(super) fill: Option<Box<OutgoingFill>>,
    /// Since when it has taken nothing of its refill, though it was asked to or cannot be reached; or when that was reported.
    pub(super) fill_silent_since: Option<Duration>,
    pub(super) alignment: Alignment,
}

/// What a primary that was promoted has received from another copy of the set. The two may differ by changes that were not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alignment {
    /// Nothing; it is to be asked.
    Unknown,
    /// Nothing; it is asked.
    Asked,
    /// It has more changes; when that was reported last.
    Ahead { reported: Option<Duration> },
    /// It has no other changes than the primary: all later ones are sent to it.
    Known,
}

impl BackupStream {
    /// A backup that has the changes up to `number`.
    pub(super) fn new(place: BackupPlace, number: u64) -> Self {
        Self {
            place,
            in_sync: false,
            acknowledged: number,
            sent: number,
            owes_since: None,
            lost: false,
            reported: None,
            fill: None,
            fill_silent_since: None,
            alignment: Alignment::Known,
        }
    }

    /// Whether nothing may change before the copy has answered.
    pub(super) fn is_awaited(&self) -> bool {
        self.in_sync && !self.lost && self.alignment != Alignment::Known
    }

    /// Whether the copy is to be asked now. True once for each connection.
    pub(super) fn asks(&mut self) -> bool {
        let asks = self.alignment == Alignment::Unknown;
        if asks {
            self.alignment = Alignment::Asked;
        }
        asks
    }

    /// The copy has the changes up to `number`; the term began at `began`.
    pub(super) fn is_at(&mut self, number: u64, began: u64, now: Duration) {
        if number > began {
            self.alignment = Alignment::Ahead { reported: None };
            return;
        }
        self.alignment = Alignment::Known;
        (self.acknowledged, self.sent) = (number, number);
        self.owes_since = None;
        self.reported = None;
        if number < began {
            self.owes(now);
        }
    }

    /// When the copy was last reported to be ahead.
    pub(super) fn ahead_since(&self) -> Option<Duration> {
        match self.alignment {
            Alignment::Ahead { reported } => reported,
            Alignment::Unknown | Alignment::Asked | Alignment::Known => None,
        }
    }

    /// Whether the copy is to be reported to be ahead now: again after a while.
    pub(super) fn reports_ahead(&mut self, now: Duration, again: Duration) -> bool {
        let Alignment::Ahead { reported } = &mut self.alignment else { return false };
        let is_due = reported.is_none_or(|at| now >= at + again);
        if is_due {
            *reported = Some(now);
        }
        is_due
    }

    /// Whether answers wait for it: it is in the set, or will be, since it was filled to the end.
    pub(super) fn counts(&self) -> bool {
        let is_filled = self.fill.as_ref().is_some_and(|fill| fill.is_caught_up());
        self.in_sync || (is_filled && !Mutation::FilledCopyIsNotCounted.is_on())
    }

    /// Whether it takes changes now, so that the tail has to keep those after the acknowledged one.
    pub(super) fn follows(&self) -> bool {
        !self.lost && self.fill.as_ref().is_none_or(|fill| fill.has_begun())
    }

    /// Whether it is sent a refill.
    pub(super) fn fills_now(&self) -> bool {
        self.fill.as_ref().is_some_and(|fill| fill.has_begun() && !fill.is_reported())
    }

    /// Whether the refill makes no progress.
    pub(super) fn is_stuck_in_fill(&self, now: Duration, lag: Duration) -> bool {
        let silent = self.owes_since.is_some_and(|since| now >= since + lag);
        self.fills_now() && (silent || self.lost)
    }

    /// The refill begins again, not before a moment: what was sent of it does not count.
    pub(super) fn fill_again(&mut self, not_before: Duration) {
        if let Some(fill) = &mut self.fill {
            fill.restart(not_before);
            let owed = self.owes_since.take();
            self.fill_silent_since = self.fill_silent_since.or(owed);
        }
    }

    /// Whether it is to be reported that the refill makes no progress, attempt after attempt: again after `limit`.
    pub(super) fn reports_silent_fill(
        &mut self,
        is_connected: bool,
        now: Duration,
        limit: Duration,
    ) -> bool {
        if self.fill.as_ref().is_none_or(|fill| fill.is_caught_up()) {
            self.fill_silent_since = None;
            return false;
        }
        // One that waits for the shard is not asked yet.
        let asked_since = if is_connected { self.owes_since } else { Some(now) };
        self.fill_silent_since = self.fill_silent_since.or(asked_since);
        let is_due = self.fill_silent_since.is_some_and(|since| now >= since + limit);
        if is_due {
            self.fill_silent_since = Some(now);
        }
        is_due
    }

    /// When [`Self::reports_silent_fill`] has to be asked at the latest.
    pub(super) fn silent_fill_deadline(
        &self,
        is_connected: bool,
        limit: Duration,
    ) -> Option<Duration> {
        self.fill.as_ref().filter(|fill| !fill.is_caught_up())?;
        match self.fill_silent_since {
            Some(since) => Some(since + limit),
            None => (!is_connected).then_some(Duration::ZERO),
        }
    }

    pub(super) fn set_place(&mut self, place: BackupPlace) {
        if self.place != place {
            self.place = place;
            self.sent = self.acknowledged;
        }
    }

    pub(super) fn peer(&self) -> Peer {
        (self.place.member, self.place.endpoint)
    }

    /// The backup owes an acknowledgement from now on, if it did not before.
    pub(super) fn owes(&mut self, now: Duration) {
        self.owes_since.get_or_insert(now);
    }

    /// Whether it is to be reported that it was slow for too long: again after `again`, since the report may be lost with the
    /// ApplicationMaster before the view is durable.
    pub(super) fn reports_lag(&mut self, now: Duration, lag: Duration, again: Duration) -> bool {
        let slow = self.owes_since.is_some_and(|since| now >= since + lag);
        let is_due = self.reported.is_none_or(|at| now >= at + again);
        let reports = self.in_sync && (slow || self.lost) && is_due;
        if reports {
            self.reported = Some(now);
        }
        reports
    }
}
