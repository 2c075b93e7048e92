//! Connections between pservers, from primaries to backups of their shards.

use std::collections::BTreeSet;

use heddle_am_core::{Record, RecordedFill};
use heddle_protocol::frame::Header;
use heddle_protocol::ids::{ShardId, TableId};
use heddle_shard::{Conn, Peer, Shard, StreamEntry};

use super::super::job::{COUNTS, WEIGHTS};
use super::super::pserver::Pserver;
use super::{Item, Wire, World};

/// How long a primary waits before it connects again, simulated time.
const REDIAL_MS: u64 = 50;

/// A connection from a data thread of a primary to the data thread of a backup.
pub(super) struct PeerLink {
    /// The primary's container; 0: its end is gone.
    pub(super) from: u64,
    pub(super) thread: usize,
    peer: Peer,
    /// The shard of the last entry that was sent.
    last: ShardId,
    /// The backup's container.
    pub(super) to: u64,
    pub(super) to_thread: usize,
    pub(super) conn: Conn,
}

impl World {
    /// Opens the connections that a pserver wants, closes the others, and sends what can be sent.
    pub(super) fn pump_peers(&mut self, number: u64) -> Result<(), String> {
        let threads = self.pserver(number).map_or(0, |pserver| pserver.hosts.len());
        for thread in 0..threads {
            let Some(pserver) = self.pserver(number) else { return Ok(()) };
            let wanted = pserver.hosts[thread].peers();
            let own = |link: &PeerLink| link.from == number && link.thread == thread;
            let links: Vec<(u64, Peer)> =
                self.peers.iter().filter(|(_, it)| own(it)).map(|(&n, it)| (n, it.peer)).collect();
            for (link, peer) in &links {
                if !wanted.contains(peer) {
                    self.end_peer_link_at_primary(*link);
                }
            }
            for peer in wanted {
                let wire = Wire::PeerOpening(number, thread, peer.1);
                let opens = self.wires.get(&wire).is_some_and(|items| !items.is_empty());
                if !opens && !links.iter().any(|(_, of)| *of == peer) {
                    self.push(wire, Item::OpenPeer(peer));
                }
            }
            self.send_entries(number, thread);
        }
        Ok(())
    }

    fn send_entries(&mut self, number: u64, thread: usize) {
        let own = |link: &PeerLink| link.from == number && link.thread == thread;
        let links: Vec<u64> =
            self.peers.iter().filter(|(_, it)| own(it)).map(|(&n, _)| n).collect();
        for link in links {
            while let Some((peer, last)) = self.peers.get(&link).map(|it| (it.peer, it.last)) {
                let Some(pserver) = self.pserver(number) else { return };
                let Some(entry) = pserver.hosts[thread].next_entry(peer, last) else { break };
                if let Some(it) = self.peers.get_mut(&link) {
                    it.last = entry.head.shard;
                }
                self.push(Wire::PeerUp(link), Item::EntryHead(Box::new(entry.head)));
                self.push(Wire::PeerUp(link), Item::EntryChange(Box::new(entry)));
            }
        }
    }

    pub(super) fn open_peer(
        &mut self,
        number: u64,
        thread: usize,
        peer: Peer,
    ) -> Result<(), String> {
        let Some(member) = self.containers.get(&number).map(|it| it.member) else {
            return Ok(());
        };
        let wanted =
            self.pserver(number).is_some_and(|it| it.hosts[thread].peers().contains(&peer));
        if !wanted {
            return Ok(());
        }
        let events = self.events;
        let at = |pserver: &Pserver| pserver.thread_at(peer.1);
        let target = self.containers.iter().find_map(|(&n, it)| match &it.body {
            super::Body::Pserver(pserver) => Some((n, at(pserver)?)),
            super::Body::Trainer(_) => None,
        });
        let open = target.filter(|(to, _)| {
            !self.trouble.cuts_off(number, *to, events)
                && !self.trouble.cuts_off(*to, number, events)
        });
        let mut out = Vec::new();
        let connected = open.and_then(|(to, to_thread)| {
            let conn = self.pserver(to)?.connect(to_thread, member, &mut out).ok()?;
            Some((to, to_thread, conn))
        });
        if let Some((to, ..)) = open {
            self.pserver_wants(to, out)?;
        }
        let Some((to, to_thread, conn)) = connected else {
            let wire = Wire::PeerOpening(number, thread, peer.1);
            self.push(wire, Item::OpenPeer(peer));
            self.next_at_ms.insert(wire, self.now_ms + REDIAL_MS);
            return Ok(());
        };
        let link = self.number();
        let last = ShardId(0);
        self.peers.insert(link, PeerLink { from: number, thread, peer, last, to, to_thread, conn });
        self.tell(format_args!("{member} streams to {} on {link}", peer.0));
        if let Some(pserver) = self.pserver(number) {
            pserver.hosts[thread].peer_connected(peer);
        }
        self.send_entries(number, thread);
        Ok(())
    }

    /// Part of an entry reaches the backup.
    pub(super) fn entry_up(&mut self, link: u64, item: Item) -> Result<(), String> {
        let at = |it: &PeerLink| (it.to, it.to_thread, it.conn);
        let Some((to, thread, conn)) = self.peers.get(&link).map(at) else { return Ok(()) };
        let (head, change) = match &item {
            Item::EntryHead(head) => (&**head, None),
            Item::EntryChange(entry) => (&entry.head, Some(&**entry)),
            _ => return Err("not part of an entry".to_owned()),
        };
        let (shard, epoch, term) = (head.shard, head.epoch, head.term());
        if let Some(StreamEntry { head, change }) = change {
            let what = format_args!(
                "entry {link} shard {} number {} {change:?}",
                head.shard, head.request
            );
            self.log.note(self.events, self.now_ms, what);
        }
        let Some(pserver) = self.pserver(to) else { return Ok(()) };
        let mut out = Vec::new();
        let before = pserver.copy_position(thread, shard);
        let taken = pserver.peer_frame(thread, conn, head, change, &mut out);
        // The position follows a change, or the begin of a refill.
        if pserver.copy_position(thread, shard) != before {
            self.changed.insert((to, shard), (epoch, term));
        }
        if !taken {
            self.wires.entry(Wire::PeerUp(link)).or_default().push_front(item);
        }
        self.pserver_wants(to, out)
    }

    /// An answer of a backup reaches the primary.
    pub(super) fn entry_answered(&mut self, link: u64, header: &Header) -> Result<(), String> {
        let at = |it: &PeerLink| (it.from, it.thread, it.peer);
        let Some((from, thread, peer)) = self.peers.get(&link).map(at) else { return Ok(()) };
        let what = format_args!(
            "followed {link} {:?} {:?} shard {} number {}",
            header.kind, header.status, header.shard, header.request
        );
        self.log.note(self.events, self.now_ms, what);
        let now_ms = self.now_ms;
        let mut out = Vec::new();
        if let Some(pserver) = self.pserver(from) {
            pserver.peer_reply(thread, peer, header, now_ms, &mut out);
        }
        self.pserver_wants(from, out)?;
        self.pump_peers(from)
    }

    /// Copies of a shard that have the same changes have the same content, and so the same bytes in a checkpoint: compares those
    /// of the pservers that did something with all others.
    pub(super) fn check_copies(&mut self) -> Result<(), String> {
        let mut active = std::mem::take(&mut self.active);
        let checked = match self.job.spec().pservers.moves_shards() && !active.is_empty() {
            true => self.compare_copies(&active),
            false => Ok(()),
        };
        active.clear();
        self.active = active;
        checked
    }

    fn compare_copies(&mut self, active: &[u64]) -> Result<(), String> {
        let (pservers, shards) = (self.job.pservers as usize, self.job.shards as usize);
        let mut copies = Vec::with_capacity(pservers * shards);
        for (&number, container) in &self.containers {
            let super::Body::Pserver(pserver) = &container.body else { continue };
            for host in &pserver.hosts {
                for shard in host.shards() {
                    let id = shard.id();
                    let copy = host.replica(id);
                    if !copy.whole {
                        continue;
                    }
                    if copy.primary {
                        self.changed.insert((number, id), (host.epoch(), copy.term));
                    }
                    // One that has heard of a new term and nothing else in it may have more of the term before than the new
                    // primary: it will be left out (`Ahead`), whatever the number.
                    let last = self.changed.get(&(number, id));
                    let last = last.filter(|(epoch, _)| *epoch == host.epoch());
                    let term = last.map_or(copy.term, |(_, term)| *term);
                    // While a step is being applied at one of them their steps differ.
                    let at = (id, host.epoch(), term, copy.number, shard.step());
                    copies.push((container.member, number, at, shard));
                }
            }
        }
        for (one, number, at, first) in &copies {
            if !active.contains(number) {
                continue;
            }
            let own = first.state();
            for (other, _, _, second) in
                copies.iter().filter(|copy| copy.1 != *number && copy.2 == *at)
            {
                let theirs = second.state();
                let equal = (own.phase, &own.tasks, &own.done)
                    == (theirs.phase, &theirs.tasks, &theirs.done);
                let same = |table| have_same_values(first, second, table);
                if !equal || ![WEIGHTS, COUNTS].into_iter().all(same) {
                    return Err(format!(
                        "copies of shard {} at {one} and {other} differ",
                        own.shard
                    ));
                }
            }
        }
        Ok(())
    }

    /// Copies that refills have brought up to date, by the journal.
    pub(super) fn refills(&self) -> usize {
        let views = self.durable.journal.iter().flat_map(|record| match record {
            Record::Views { views, .. } => &views[..],
            _ => &[],
        });
        let filled = views.flat_map(|view| {
            let is_in_sync = |fill: &&RecordedFill| view.in_sync.contains(&fill.member);
            view.fills.iter().filter(is_in_sync).map(|fill| (view.shard, fill.member, fill.version))
        });
        filled.collect::<BTreeSet<_>>().len()
    }

    /// The link of a backup's connection.
    pub(super) fn peer_link_of(&self, to: u64, thread: usize, conn: Conn) -> Option<u64> {
        let is_it = |it: &PeerLink| (it.to, it.to_thread, it.conn) == (to, thread, conn);
        self.peers.iter().find(|(_, it)| is_it(it)).map(|(&link, _)| link)
    }

    /// The primary closes its end: what it had sent arrives in part.
    fn end_peer_link_at_primary(&mut self, link: u64) {
        self.wires.remove(&Wire::PeerDown(link));
        self.cut_short(Wire::PeerUp(link));
        if let Some(it) = self.peers.get_mut(&link) {
            it.from = 0;
        }
    }

    /// The end of a primary's stream reaches the backup.
    pub(super) fn peer_ended_at_backup(&mut self, link: u64) -> Result<(), String> {
        self.wires.remove(&Wire::PeerUp(link));
        let at = |it: &PeerLink| (it.to, it.to_thread, it.conn);
        let Some((to, thread, conn)) = self.peers.get(&link).map(at) else { return Ok(()) };
        let mut out = Vec::new();
        if let Some(pserver) = self.pserver(to) {
            pserver.disconnect(thread, conn, &mut out);
        }
        self.pserver_wants(to, out)
    }

    /// The end of a backup's connection reaches the primary, which connects again.
    pub(super) fn peer_ended_at_primary(&mut self, link: u64) -> Result<(), String> {
        self.wires.remove(&Wire::PeerDown(link));
        let at = |it: &PeerLink| (it.from, it.thread, it.peer);
        let Some((from, thread, peer)) = self.peers.get(&link).map(at) else { return Ok(()) };
        if let Some(it) = self.peers.get_mut(&link) {
            it.from = 0;
        }
        if let Some(pserver) = self.pserver(from) {
            pserver.hosts[thread].peer_disconnected(peer);
        }
        self.pump_peers(from)
    }

    /// The streams of a process that ends.
    pub(super) fn end_peers_of(&mut self, number: u64) {
        let links: Vec<(u64, bool, bool)> = self
            .peers
            .iter()
            .map(|(&n, it)| (n, it.from == number, it.to == number))
            .filter(|(_, from, to)| *from || *to)
            .collect();
        for (link, from, _) in links {
            if from {
                self.end_peer_link_at_primary(link);
            } else {
                self.wires.remove(&Wire::PeerUp(link));
                self.cut_short(Wire::PeerDown(link));
            }
        }
    }

    /// A stream breaks in both directions.
    pub(super) fn break_peer(&mut self, link: u64) {
        self.cut_short(Wire::PeerUp(link));
        self.cut_short(Wire::PeerDown(link));
    }
}

fn have_same_values(one: &Shard, other: &Shard, table: TableId) -> bool {
    let bits = |value: &f32| value.to_bits();
    match (one.table_values(table), other.table_values(table)) {
        (Some(one), Some(other)) => one.iter().map(bits).eq(other.iter().map(bits)),
        (one, other) => one.is_none() && other.is_none(),
    }
}
