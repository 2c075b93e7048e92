//! Admission of connections that have not proved the job's secret.
//!
//! Place: the ApplicationMaster's HTTP port and the data ports of parameter servers listen on open networks. Every
//! connection starts as *unproven*; it leaves this list when it proves the secret or ends. This module decides which
//! unproven connection is closed in favour of a new one. It holds no socket, clock or lock: the caller hands in the
//! time and closes the connections that this module names.
//!
//! **Intuition.** A process of the job proves the secret within one or two round trips. A peer that does not know the
//! secret can only wait. So age separates them, and the newest connection is the one to keep.
//!
//! **Rule.**
//! - At most `total` unproven connections exist. At the limit the oldest connection of the address with the most
//!   connections is closed.
//! - An address that already has `per_peer` of them loses its oldest one for its next.
//! - A connection younger than `grace` is not closed for those. An address above `per_peer` can therefore fill the list with
//!   young connections: all containers of one node reconnect at the same moment after a restart of the ApplicationMaster.
//! - A full list of which one address has half or more: the oldest of these, also a young one, is closed for an address with
//!   fewer. The address itself gets no further connection while all of its own are young. Its next ones must not wait in
//!   front of those of others in the kernel's queue, so the caller closes them at once; a container tries again.
//! - A full list of young connections without such an address: the caller waits and leaves the new one in the kernel's queue.
//!
//! **Rejected.** Refusing the newest: 512 silent connections then keep every container out until they time out, and a
//! local run has one address only. Closing young connections for any address with fewer: when many containers connect at once,
//! each would cut off others in the middle of their proofs. Reserved places for containers: before the proof nothing distinguishes a container
//! from another peer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

/// How many unproven connections are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// Of all peers together, at least 1.
    pub total: usize,
    /// Of one address, before it loses its own oldest.
    pub per_peer: usize,
    /// The age up to which a connection is left alone: time for a proof on a busy machine.
    pub grace: Duration,
}

impl Default for AdmissionLimits {
    /// 512 connections, 64 of one address, 250 ms: about 17 MiB of an HTTP server, 2,000 new connections a second.
    fn default() -> Self {
        Self { total: 512, per_peer: 64, grace: Duration::from_millis(250) }
    }
}

impl AdmissionLimits {
    /// The default, or less where the process may open few files: an eighth of them.
    #[must_use]
    pub fn within(files: u64) -> Self {
        let default = Self::default();
        let total = usize::try_from(files / 8).unwrap_or(usize::MAX);
        let total = total.clamp(16, default.total);
        Self { total, per_peer: default.per_peer.min(total.div_ceil(2)), ..default }
    }
}

/// Whether a new connection may be taken.
#[derive(Debug, PartialEq, Eq)]
pub enum Room<H> {
    /// Yes.
    Free,
    /// Yes, after this one is closed. It has left the list.
    Close(H),
    /// Not before this time has passed, or a connection has left.
    After(Duration),
    /// No: the address has half of a full list, in connections that still have time for a proof.
    Refused,
}

struct Unproven<H> {
    peer: IpAddr,
    since: Duration,
    handle: H,
}

/// The unproven connections of one listener. `H` is the caller's way to close one.
pub struct UnprovenConnections<H> {
    limits: AdmissionLimits,
    /// By number; numbers are given in the order of arrival.
    connections: BTreeMap<u64, Unproven<H>>,
    peers: BTreeMap<IpAddr, BTreeSet<u64>>,
    next: u64,
}

impl<H> UnprovenConnections<H> {
    /// An empty list.
    #[must_use]
    pub fn new(limits: AdmissionLimits) -> Self {
        Self { limits, connections: BTreeMap::new(), peers: BTreeMap::new(), next: 0 }
    }

    /// Unproven connections at present.
    #[must_use]
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Whether a connection of `peer` may be taken at `now`, a monotonic time.
    pub fn room(&mut self, peer: IpAddr, now: Duration) -> Room<H> {
        let peer = peer.to_canonical();
        let of_peer = self.count(peer);
        let is_full = self.connections.len() >= self.limits.total.max(1);
        let largest = self.largest().filter(|_| is_full);
        let half = self.limits.total.div_ceil(2);
        let has_half = largest.filter(|largest| self.count(*largest) >= half);
        let fewer = has_half.filter(|largest| of_peer < self.count(*largest));
        let of_its_own = Some(peer).filter(|_| of_peer >= self.limits.per_peer.max(1));
        let payer = fewer.or(of_its_own).or(largest);
        let Some(oldest) = payer.and_then(|payer| self.oldest(payer)) else {
            return Room::Free;
        };
        let since = self.connections.get(&oldest).map_or(now, |oldest| oldest.since);
        let young = self.limits.grace.saturating_sub(now.saturating_sub(since));
        if !young.is_zero() && fewer.is_none() {
            return match (is_full, has_half) {
                (false, _) => Room::Free,
                (true, None) => Room::After(young),
                (true, Some(_)) => Room::Refused,
            };
        }
        match self.leave(oldest) {
            Some(handle) => Room::Close(handle),
            None => Room::Free,
        }
    }

    /// Enters a connection for which there was room; its number is what [`Self::leave`] takes.
    pub fn enter(&mut self, peer: IpAddr, now: Duration, handle: H) -> u64 {
        let peer = peer.to_canonical();
        self.next += 1;
        let unproven = Unproven { peer, since: now, handle };
        self.connections.insert(self.next, unproven);
        self.peers.entry(peer).or_default().insert(self.next);
        self.next
    }

    /// Takes out a connection that has proved the secret or ended; none if it was closed before.
    pub fn leave(&mut self, number: u64) -> Option<H> {
        let left = self.connections.remove(&number)?;
        if let Some(numbers) = self.peers.get_mut(&left.peer) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.peers.remove(&left.peer);
            }
        }
        Some(left.handle)
    }

    fn count(&self, peer: IpAddr) -> usize {
        self.peers.get(&peer).map_or(0, BTreeSet::len)
    }

    fn oldest(&self, peer: IpAddr) -> Option<u64> {
        self.peers.get(&peer)?.first().copied()
    }

    /// The address with the most connections; among equals the one whose oldest is the oldest.
    fn largest(&self) -> Option<IpAddr> {
        self.peers
            .iter()
            .max_by_key(|(_, numbers)| (numbers.len(), std::cmp::Reverse(numbers.first().copied())))
            .map(|(peer, _)| *peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_millis(100);

    fn book(total: usize, per_peer: usize) -> UnprovenConnections<u64> {
        UnprovenConnections::new(AdmissionLimits { total, per_peer, grace: GRACE })
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn peer(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    /// The connection that was closed for another one, if any. Else why it was not taken: the wait, or none if it is refused.
    type Taken = Result<Option<u64>, Option<Duration>>;

    fn take(book: &mut UnprovenConnections<u64>, from: u8, at: u64, handle: u64) -> Taken {
        let closed = match book.room(peer(from), ms(at)) {
            Room::Free => None,
            Room::Close(closed) => Some(closed),
            Room::After(wait) => return Err(Some(wait)),
            Room::Refused => return Err(None),
        };
        book.enter(peer(from), ms(at), handle);
        Ok(closed)
    }

    #[test]
    fn the_oldest_of_the_largest_peer_yields() {
        let mut book = book(4, 3);
        assert_eq!(take(&mut book, 1, 0, 10), Ok(None));
        assert_eq!(take(&mut book, 2, 1, 20), Ok(None));
        assert_eq!(take(&mut book, 2, 2, 21), Ok(None));
        assert_eq!(take(&mut book, 3, 3, 30), Ok(None));
        // Full: address 1 has the oldest connection, address 2 the most.
        assert_eq!(take(&mut book, 4, 500, 40), Ok(Some(20)));
        assert_eq!(book.len(), 4);
    }

    #[test]
    fn a_peer_at_its_limit_loses_its_own_connection() {
        let mut book = book(100, 2);
        for n in 0..2 {
            assert_eq!(take(&mut book, 1, n, n), Ok(None));
        }
        assert_eq!(take(&mut book, 2, 3, 90), Ok(None));
        assert_eq!(take(&mut book, 1, 500, 2), Ok(Some(0)));
        assert_eq!(take(&mut book, 1, 501, 3), Ok(Some(1)));
        assert_eq!(book.len(), 3);
    }

    #[test]
    fn a_burst_of_one_node_is_not_cut_off_before_it_can_prove() {
        let mut book = book(8, 2);
        for n in 0..8 {
            assert_eq!(take(&mut book, 1, n, n), Ok(None), "{n}");
        }
        assert_eq!(take(&mut book, 1, 10, 8), Err(None));
        // A proof makes room at once.
        assert_eq!(book.leave(3), Some(2));
        assert_eq!(take(&mut book, 1, 11, 9), Ok(None));
        // What had its time yields.
        assert_eq!(take(&mut book, 1, 100, 10), Ok(Some(0)));
    }

    #[test]
    fn young_connections_of_several_nodes_are_awaited() {
        let mut book = book(6, 2);
        for n in 0..6 {
            assert_eq!(take(&mut book, (n % 3) as u8, n, n), Ok(None), "{n}");
        }
        for from in [0, 3] {
            assert_eq!(take(&mut book, from, 10, 9), Err(Some(ms(90))), "{from}");
        }
        assert_eq!(take(&mut book, 3, 100, 9), Ok(Some(0)));
    }

    /// Of 8 connections, all young: those of each address, and what a further one of an address comes to.
    #[test]
    fn address_with_half_of_a_full_list_yields_to_others() {
        let refused = Err(None);
        let waits = Err(Some(GRACE));
        let cases: [(&[usize], u8, Taken); 8] = [
            (&[8], 1, Ok(Some(0))),
            (&[8], 0, refused),
            (&[5, 3], 1, Ok(Some(0))),
            (&[5, 3], 2, Ok(Some(0))),
            (&[5, 3], 0, refused),
            (&[4, 4], 2, Ok(Some(0))),
            (&[4, 4], 1, refused),
            (&[3, 3, 2], 3, waits),
        ];
        for (counts, from, expected) in cases {
            let mut book = book(8, 2);
            let mut handle = 0;
            for (address, count) in (0..).zip(counts) {
                for _ in 0..*count {
                    assert_eq!(take(&mut book, address, 0, handle), Ok(None));
                    handle += 1;
                }
            }
            assert_eq!(take(&mut book, from, 0, 99), expected, "{counts:?}, {from}");
        }
    }

    /// A host opens connections as fast as the port takes them. Another one gets its connection, and keeps it while it is young.
    #[test]
    fn flood_of_one_host_leaves_the_others_their_connections() {
        let mut book = book(16, 4);
        let (mut handle, mut refused) = (0, 0);
        for at in 0..GRACE.as_millis() as u64 * 3 {
            for _ in 0..20 {
                handle += 1;
                match take(&mut book, 1, at, handle) {
                    Ok(closed) => assert_ne!(closed, Some(0)),
                    Err(wait) => {
                        assert_eq!(wait, None, "the queue of the port is emptied");
                        refused += 1;
                    }
                }
            }
            if at == 10 {
                assert!(matches!(take(&mut book, 2, at, 0), Ok(Some(_))));
            }
        }
        assert!(refused > 0);
        assert!(book.connections.values().any(|it| it.handle == 0));
    }

    #[test]
    fn a_connection_that_left_is_not_closed() {
        let mut book = book(1, 1);
        assert_eq!(take(&mut book, 1, 0, 7), Ok(None));
        assert_eq!(book.leave(1), Some(7));
        assert_eq!(book.leave(1), None);
        assert!(book.is_empty());
        assert_eq!(take(&mut book, 1, 500, 8), Ok(None));
    }

    #[test]
    fn mapped_addresses_are_the_same_peer() {
        let mut book = book(100, 1);
        assert_eq!(take(&mut book, 1, 0, 1), Ok(None));
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().expect("an address");
        assert_eq!(book.room(mapped, ms(500)), Room::Close(1));
    }

    #[test]
    fn few_descriptors_mean_few_unproven_connections() {
        assert_eq!(AdmissionLimits::within(1_048_576), AdmissionLimits::default());
        let few = AdmissionLimits::within(1024);
        assert_eq!((few.total, few.per_peer), (128, 64));
        let fewer = AdmissionLimits::within(64);
        assert_eq!((fewer.total, fewer.per_peer), (16, 8));
    }
}
