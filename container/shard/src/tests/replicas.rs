//! Copies of one shard: a primary, its backups, and a trainer, without sockets. What breaks simpler protocols has the number of
//! its schedule in its name.

mod clocks;
mod fills;
mod hand_over;
mod hostile;
mod optimizers;
mod random;
mod schedules;
mod snapshots;
mod survivors;

use std::collections::VecDeque;
use std::net::SocketAddr;

use heddle_protocol::control::{
    BackupPlace, FillOrder, ReplicaState, ReplicationLag, SetViews, ShardView,
};
use heddle_protocol::ids::{Term, ViewVersion};

use super::*;
use crate::{Peer, ReplicationLimits, StreamEntry};

/// `liveness.lag`, and how long a refill may make no progress.
const LAG: Duration = Duration::from_secs(2);

fn pserver(index: usize) -> Member {
    Member { slot: Slot::pserver(index as u32), incarnation: Incarnation(1) }
}

fn peer(index: usize) -> Peer {
    (pserver(index), SocketAddr::from(([127, 0, 0, 1], 7000 + index as u16)))
}

/// A view whose in-sync set are its holders, the primary first.
fn view(term: u64, version: u64, holders: &[usize]) -> ShardView {
    let place = |&holder: &usize| BackupPlace {
        member: peer(holder).0,
        endpoint: peer(holder).1,
        fill: None,
    };
    ShardView {
        shard: ShardId(0),
        term: Term(term),
        version: ViewVersion(version),
        primary: pserver(holders[0]),
        in_sync: holders.iter().map(|&holder| pserver(holder)).collect(),
        backups: holders[1..].iter().map(place).collect(),
        began_at: None,
    }
}

/// A view whose holders are in sync, and which orders to fill another copy. `order` is the version of the view that ordered it.
fn filling(term: u64, version: u64, holders: &[usize], to: usize, order: u64) -> ShardView {
    let mut view = view(term, version, holders);
    let fill = Some(FillOrder { version: ViewVersion(order), thread: 0 });
    view.backups.push(BackupPlace { member: peer(to).0, endpoint: peer(to).1, fill });
    view
}

/// Pservers with a copy each, and a trainer that is connected to all of them.
struct Copies {
    hosts: Vec<ShardSet>,
    conns: Vec<Conn>,
    /// Connections of primaries: from, to, number at the receiver.
    streams: Vec<(usize, usize, Conn)>,
    /// Answers of backups on their way: from, to, answer.
    back: VecDeque<(usize, usize, Header)>,
    /// Answers to the trainer.
    answers: Vec<(usize, Header)>,
    reports: Vec<(usize, ShardReport)>,
    /// Reports to the process.
    local: Vec<(usize, LocalReport)>,
    settled: Vec<u64>,
    /// Copies that were to serve and cannot.
    cannot_serve: Vec<(usize, ShardId)>,
    config: ShardConfig,
    now: Duration,
}

impl Copies {
    /// A primary and its backups.
    fn new(count: usize, sharing: Sharing, config: ShardConfig) -> Self {
        let holders: Vec<_> = (0..count).collect();
        Self::with(count, sharing, config, &holders)
    }

    /// A primary without backups. The other pservers are in the epoch and hold nothing.
    fn alone(count: usize, sharing: Sharing, config: ShardConfig) -> Self {
        let mut copies = Self::with(count, sharing, config, &[0]);
        let load = LoadShards {
            lost: None,
            views: vec![view(1, 1, &[0])],
            shards: Vec::new(),
            ..load(1, (0, sharing), 0, None)
        };
        for host in 1..count {
            let held = copies.act(host, |set, _, out| set.load(&load, &[], out));
            assert_eq!(held.expect("a later epoch"), []);
        }
        let all: Vec<_> = (0..count).collect();
        copies.connect(&all);
        copies
    }

    fn with(count: usize, sharing: Sharing, config: ShardConfig, holders: &[usize]) -> Self {
        let mut copies = Self {
            hosts: (0..count).map(|index| ShardSet::new(pserver(index), 0)).collect(),
            conns: Vec::new(),
            streams: Vec::new(),
            back: VecDeque::new(),
            answers: Vec::new(),
            reports: Vec::new(),
            local: Vec::new(),
            settled: Vec::new(),
            cannot_serve: Vec::new(),
            config,
            now: Duration::from_secs(100),
        };
        for host in 0..count {
            copies.act(host, |set, _, out| set.members(&[member(0), member(1)], out));
            let conn = copies.act(host, |set, _, out| set.connect(member(0), out));
            copies.conns.push(conn.expect("a member"));
        }
        copies.load(1, sharing, holders);
        copies
    }

    /// A new epoch from initial values. The first holder is the primary.
    fn load(&mut self, count: u32, sharing: Sharing, holders: &[usize]) {
        let views = vec![view(1, 1, holders)];
        let load = LoadShards { views, ..load(count, (0, sharing), 0, None) };
        for &host in holders {
            let held = self.act(host, |set, _, out| set.load(&load, &load.shards, out));
            assert_eq!(held.expect("a later epoch"), [ShardId(0)]);
            let shard = Shard::initial(&self.config);
            let installed = self.act(host, |set, _, out| set.install(epoch(count), shard, out));
            installed.expect("initial values fit");
        }
        if self.streams.is_empty() {
            self.connect(holders);
        }
    }

    /// Opens the streams of the primary.
    fn connect(&mut self, holders: &[usize]) {
        self.streams.clear();
        self.back.clear();
        for &to in &holders[1..] {
            let from = holders[0];
            let conn = self.act(to, |set, _, out| set.connect(pserver(from), out));
            self.streams.push((from, to, conn.expect("replicas are on")));
            self.hosts[from].peer_connected(peer(to));
        }
    }

    fn act<T>(
        &mut self,
        host: usize,
        act: impl FnOnce(&mut ShardSet, Duration, &mut Vec<ShardEffect>) -> T,
    ) -> T {
        let mut out = Vec::new();
        self.hosts[host].advance(self.now);
        let result = act(&mut self.hosts[host], self.now, &mut out);
        for effect in out {
            match effect {
                ShardEffect::Reply { conn, header } | ShardEffect::Values { conn, header, .. } => {
                    let stream =
                        self.streams.iter().find(|(_, to, own)| (*to, *own) == (host, conn));
                    match stream {
                        Some(&(from, to, _)) => self.back.push_back((to, from, header)),
                        None => self.answers.push((host, header)),
                    }
                }
                ShardEffect::Local(LocalReport::FillOrdered { order, .. }) => {
                    let epoch = self.hosts[host].epoch();
                    self.hosts[host].install_empty(epoch, order, Shard::new(&self.config));
                }
                ShardEffect::Report(report) => self.reports.push((host, report)),
                ShardEffect::Local(report) => self.local.push((host, report)),
                ShardEffect::Settled { ask } => self.settled.push(ask),
                ShardEffect::CannotServe { shard } => self.cannot_serve.push((host, shard)),
                ShardEffect::Close { .. } | ShardEffect::Replicate => {}
            }
        }
        result
    }

    fn header(&self, kind: Kind, at: At) -> Header {
        let mut header = Header::new(kind, self.hosts[0].epoch().max(epoch(1)));
        (header.unit, header.step, header.part) = (at.unit, Step(at.step), Part(at.part));
        header.flags = if at.last { flags::LAST } else { 0 };
        header
    }

    fn send(&mut self, host: usize, header: Header, keys: &[u32], values: &[f32]) -> Flow {
        let conn = self.conns[host];
        let frame = Frame { conn, header, keys, values };
        self.act(host, |set, _, out| set.on_frame(&frame, out))
    }

    /// Pushes one value to row 0. `request` names the answer.
    fn push(&mut self, host: usize, request: u64, at: At, value: f32) {
        let header =
            Header { request, count: 1, rows: 1, value_bytes: 4, ..self.header(Kind::Push, at) };
        assert_eq!(self.send(host, header, &[], &[value]), Flow::Taken);
    }

    fn ask(&mut self, host: usize, request: u64, kind: Kind, at: At) {
        let rows = u32::from(kind == Kind::Done);
        let header = Header { request, rows, ..self.header(kind, at) };
        assert_eq!(self.send(host, header, &[], &[]), Flow::Taken);
    }

    /// Pulls row 0 at a step.
    fn pull(&mut self, host: usize, request: u64, step: u64) {
        let header = Header { request, count: 1, ..self.header(Kind::Pull, whole(0, step)) };
        assert_eq!(self.send(host, header, &[], &[]), Flow::Taken);
    }

    /// The answer to a request, if it has come from this pserver.
    fn answer(&self, host: usize, request: u64) -> Option<(Kind, Status)> {
        let of =
            self.answers.iter().find(|(from, header)| (*from, header.request) == (host, request));
        of.map(|(_, header)| (header.kind, header.status))
    }

    /// Takes the next entries from the primary's stream.
    fn entries(&mut self, from: usize, to: usize, count: usize) -> Vec<StreamEntry> {
        let host = &mut self.hosts[from];
        (0..count).map_while(|_| host.next_entry(peer(to), ShardId(0))).collect()
    }

    /// Passes an entry to a backup.
    fn give(&mut self, from: usize, to: usize, entry: &StreamEntry) -> Flow {
        let stream = self.streams.iter().find(|stream| (stream.0, stream.1) == (from, to));
        let conn = stream.expect("a stream").2;
        let head = Frame { conn, header: entry.head, keys: &[], values: &[] };
        assert_eq!(self.act(to, |set, _, out| set.on_frame(&head, out)), Flow::Taken);
        let change = Frame { conn, ..entry.change.frame() };
        self.act(to, |set, _, out| set.on_frame(&change, out))
    }

    /// Delivers up to `count` entries; their answers are on their way then.
    fn deliver(&mut self, from: usize, to: usize, count: usize) -> usize {
        let entries = self.entries(from, to, count);
        for entry in &entries {
            assert_eq!(self.give(from, to, entry), Flow::Taken);
        }
        entries.len()
    }

    /// Delivers the answers of backups.
    fn acknowledge(&mut self) {
        while let Some((from, to, header)) = self.back.pop_front() {
            self.act(to, |set, now, out| set.on_peer_reply(peer(from), &header, now, out));
        }
    }

    /// Everything arrives.
    fn replicate(&mut self, from: usize, to: usize) {
        while self.deliver(from, to, 1) > 0 {}
        self.acknowledge();
    }

    fn view(&mut self, host: usize, view: ShardView) {
        let command = SetViews { epoch: self.hosts[host].epoch(), views: vec![view] };
        self.act(host, |set, now, out| set.views(&command, now, out)).expect("this epoch");
    }

    /// The backup `to` is the primary and the only holder; the trainer's connection to it stays.
    fn promote(&mut self, to: usize, term: u64) {
        self.view(to, view(term, 1, &[to]));
    }

    fn state(&self, host: usize) -> ReplicaState {
        let states = self.hosts[host].states();
        states.first().map(|state| state.replica).expect("a copy")
    }

    fn values(&self, host: usize) -> Vec<u32> {
        let shard = self.hosts[host].shard(ShardId(0)).expect("a copy");
        let values = shard.table_values(TableId(0)).expect("a table");
        values.iter().map(|value| value.to_bits()).collect()
    }

    fn reports_of(&self, host: usize) -> Vec<&ShardReport> {
        self.reports.iter().filter(|(from, _)| *from == host).map(|(_, report)| report).collect()
    }

    fn local_of(&self, host: usize) -> Vec<&LocalReport> {
        self.local.iter().filter(|(from, _)| *from == host).map(|(_, report)| report).collect()
    }
}
