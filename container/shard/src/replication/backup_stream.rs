//! The stream of a primary's changes to one backup: what was sent, what is acknowledged, and since when it is slow.

use std::net::SocketAddr;
use std::time::Duration;

use heddle_protocol::control::BackupPlace;
use heddle_protocol::ids::Member;

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
    pub(super) is_reported: bool,
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
            is_reported: false,
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

    /// Whether it was slow for too long and is not reported yet.
    pub(super) fn lags(&self, now: Duration, lag: Duration) -> bool {
        let slow = self.owes_since.is_some_and(|since| now >= since + lag);
        self.in_sync && !self.is_reported && (slow || self.lost)
    }
}
