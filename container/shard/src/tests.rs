//! Schedules that break simpler protocols, each driven by frames and commands, without sockets.
//!
//! A [`Node`] is a shard set with one shard of one table. Requests return the status of their reply, or nothing while they
//! are parked or held. Later replies are in [`Node::later`].

mod asp;
mod bsp;
mod counting;
mod cuts;
mod local;
mod passes;
mod random;
mod refused;
mod replicas;
mod rollback;
mod sparse;
mod ssp;

use std::collections::BTreeMap;
use std::time::Duration;

use heddle_protocol::control::{
    Base, BeginPhase, CutAt, EndCut, LoadShards, Phase, ShardReport, Sharing, TakeCut,
};
use heddle_protocol::frame::{Header, Kind, Status, flags};
use heddle_protocol::ids::{
    CutId, Epoch, Generation, HandOut, Incarnation, Member, Part, PhaseNo, Role, RunId, ShardId,
    Slot, Step, TableId,
};
use heddle_protocol::job_spec::{Optimizer, dense_table};

use crate::{
    Conn, Flow, Frame, LocalReport, PulledRows, Shard, ShardConfig, ShardEffect, ShardSet,
    SparseLimits,
};

/// Rows of the table that all tests use, one value each.
const ROWS: u64 = 8;
const SGD: Optimizer = Optimizer::sgd(1.0);

fn epoch(count: u32) -> Epoch {
    Epoch { generation: Generation(1), count }
}

/// The command to load shard 0 in the phase `no` of an epoch.
fn load(count: u32, (no, sharing): (u32, Sharing), step: u64, base: Option<CutId>) -> LoadShards {
    LoadShards {
        epoch: epoch(count),
        shards: vec![ShardId(0)],
        base: base.map(|cut| Base {
            cut,
            run: RunId::default(),
            epoch: Epoch::default(),
            dir: String::new(),
            files: BTreeMap::new(),
            initial: false,
        }),
        phase: Phase { no: PhaseNo(no), sharing },
        step: Step(step),
        lost: None,
        views: Vec::new(),
    }
}

/// The command to take a cut of phase 0.
fn take(cut: CutId, epoch: Epoch, at: CutAt) -> TakeCut {
    let (phase, staging, copies) = (PhaseNo(0), String::new(), Vec::new());
    TakeCut { cut, epoch, phase, at, staging, copies, initial: false, last: false }
}

fn cut(number: u32) -> CutId {
    CutId { generation: Generation(1), number }
}

fn hand_out(generation: u32, count: u32) -> HandOut {
    HandOut { generation: Generation(generation), count }
}

/// The pserver under test.
const OWN: Member =
    Member { slot: Slot { role: Role::Pserver, index: 0 }, incarnation: Incarnation(1) };

fn member(index: u32) -> Member {
    Member { slot: Slot::trainer(index), incarnation: Incarnation(1) }
}

fn config(optimizer: Optimizer) -> ShardConfig {
    let table = dense_table(0, "w", ROWS, 1, optimizer);
    ShardConfig {
        shard: ShardId(0),
        shards: 1,
        tables: vec![table],
        sparse: SparseLimits::default(),
        seed: 0,
        training_from: PhaseNo(0),
        copy_bytes_max: 1 << 20,
        early_bytes_max: 1 << 20,
        waiting_bytes_max: usize::MAX,
        fill_values: 8,
    }
}

/// One data thread with one shard.
struct Node {
    host: ShardSet,
    now: Duration,
    config: ShardConfig,
    /// Under which lanes are asked, pushed and done from now on.
    hand_out: HandOut,
    /// Answers to requests that were parked or held, with the values of pulls.
    later: Vec<(Conn, Kind, Status)>,
    reports: Vec<ShardReport>,
    /// Reports to the process.
    local: Vec<LocalReport>,
    closed: Vec<Conn>,
}

/// Position of a push.
#[derive(Clone, Copy)]
struct At {
    unit: u32,
    step: u64,
    part: u32,
    last: bool,
}

/// The only part of a step.
fn whole(unit: u32, step: u64) -> At {
    At { unit, step, part: 0, last: true }
}

fn part(unit: u32, step: u64, part: u32, last: bool) -> At {
    At { unit, step, part, last }
}

impl Node {
    /// In epoch 1, phase 0, with two registered trainers.
    fn new(sharing: Sharing) -> Self {
        Self::with(sharing, config(SGD))
    }

    fn bsp(lanes: u32) -> Self {
        Self::new(Sharing::Lanes { lanes })
    }

    fn asp() -> Self {
        Self::new(Sharing::Queue)
    }

    fn with(sharing: Sharing, config: ShardConfig) -> Self {
        let mut node = Self {
            host: ShardSet::new(OWN, 0),
            now: Duration::ZERO,
            config,
            hand_out: HandOut::default(),
            later: Vec::new(),
            reports: Vec::new(),
            local: Vec::new(),
            closed: Vec::new(),
        };
        node.members(&[member(0), member(1)]);
        node.load(1, sharing, 0, None);
        node
    }

    fn act<T>(
        &mut self,
        act: impl FnOnce(&mut ShardSet, Duration, &mut Vec<ShardEffect>) -> T,
    ) -> T {
        let mut out = Vec::new();
        self.host.advance(self.now);
        let result = act(&mut self.host, self.now, &mut out);
        self.keep(out);
        result
    }

    fn keep(&mut self, out: Vec<ShardEffect>) {
        for effect in out {
            match effect {
                ShardEffect::Reply { conn, header } => {
                    self.later.push((conn, header.kind, header.status))
                }
                ShardEffect::Values { conn, header, .. } => {
                    self.later.push((conn, header.kind, header.status))
                }
                ShardEffect::Close { conn } => self.closed.push(conn),
                ShardEffect::Report(report) => self.reports.push(report),
                ShardEffect::Local(report) => self.local.push(report),
                ShardEffect::Replicate
                | ShardEffect::CannotServe { .. }
                | ShardEffect::Settled { .. } => {}
            }
        }
    }

    fn members(&mut self, trainers: &[Member]) {
        self.act(|host, _, out| host.members(trainers, out));
    }

    fn connect(&mut self, index: u32) -> Conn {
        self.act(|host, _, out| host.connect(member(index), out)).expect("not superseded")
    }

    fn disconnect(&mut self, conn: Conn) {
        self.act(|host, _, out| host.disconnect(conn, out));
    }

    /// Moves to an epoch, and installs a missing shard with initial values. Returns whether it was missing.
    fn load(&mut self, count: u32, sharing: Sharing, step: u64, base: Option<CutId>) -> bool {
        let load = load(count, (0, sharing), step, base);
        let missing =
            self.act(|host, _, out| host.load(&load, &load.shards, out)).expect("a later epoch");
        for _ in &missing {
            let shard = Shard::new(&self.config);
            self.act(|host, _, out| host.install(epoch(count), shard, out))
                .expect("initial values fit");
        }
        !missing.is_empty()
    }

    fn begin(&mut self, phase: u32, sharing: Sharing) {
        let phase = Phase { no: PhaseNo(phase), sharing };
        let begin = BeginPhase { epoch: self.host.epoch(), phase };
        self.act(|host, _, out| host.begin(begin, out)).expect("this epoch");
    }

    fn header(&self, kind: Kind, at: At) -> Header {
        let mut header = Header::new(kind, self.host.epoch());
        header.hand_out = self.hand_out;
        (header.unit, header.step, header.part) = (at.unit, Step(at.step), Part(at.part));
        header.phase = self.host.states().first().map_or(PhaseNo(0), |state| state.phase);
        header
    }

    /// Sends a frame. The answer to it, if it came at once.
    fn send(
        &mut self,
        conn: Conn,
        header: &Header,
        keys: &[u32],
        values: &[f32],
    ) -> Option<Header> {
        let mut out = Vec::new();
        self.host.advance(self.now);
        let flow = self.host.on_frame(&Frame { conn, header: *header, keys, values }, &mut out);
        assert_eq!(flow, Flow::Taken, "only full buffers make a frame wait");
        let is_answer = |effect: &ShardEffect| match effect {
            ShardEffect::Reply { conn: to, header: reply }
            | ShardEffect::Values { conn: to, header: reply, .. } => {
                // A clock is answered only if it is refused; it may release a pull of the same connection.
                *to == conn
                    && (header.kind != Kind::Clock || reply.kind == Kind::Refused)
                    && reply.request == header.request
                    && reply.unit == header.unit
                    && reply.step == header.step
                    || matches!(reply.kind, Kind::Progress)
            }
            ShardEffect::Close { .. }
            | ShardEffect::Report(_)
            | ShardEffect::Local(_)
            | ShardEffect::Replicate
            | ShardEffect::CannotServe { .. }
            | ShardEffect::Settled { .. } => false,
        };
        let answer = out.iter().position(is_answer).map(|at| match out.remove(at) {
            ShardEffect::Reply { header, .. } | ShardEffect::Values { header, .. } => header,
            ShardEffect::Close { .. }
            | ShardEffect::Report(_)
            | ShardEffect::Local(_)
            | ShardEffect::Replicate
            | ShardEffect::CannotServe { .. }
            | ShardEffect::Settled { .. } => {
                unreachable!("these are not replies")
            }
        });
        self.keep(out);
        answer
    }

    /// Pushes `values` to rows from 0 on, as sums over one record.
    fn push(&mut self, conn: Conn, at: At, values: &[f32]) -> Option<Status> {
        let mut header = self.header(Kind::Push, at);
        header.flags = if at.last { flags::LAST } else { 0 };
        (header.count, header.rows) = (values.len() as u32, 1);
        header.value_bytes = 4 * values.len() as u32;
        self.send(conn, &header, &[], values).map(|reply| reply.status)
    }

    /// Pushes `values` to `keys`.
    fn push_keys(&mut self, conn: Conn, at: At, keys: &[u32], values: &[f32]) -> Option<Status> {
        let mut header = self.header(Kind::Push, at);
        header.flags = flags::KEYS | if at.last { flags::LAST } else { 0 };
        (header.count, header.rows) = (keys.len() as u32, 1);
        header.key_bytes = 4 * keys.len() as u32;
        header.value_bytes = 4 * values.len() as u32;
        self.send(conn, &header, keys, values).map(|reply| reply.status)
    }

    fn done(&mut self, conn: Conn, lane: u32, step: u64) -> Option<Status> {
        self.done_with(conn, lane, step, 0)
    }

    fn done_with(&mut self, conn: Conn, lane: u32, step: u64, flags: u16) -> Option<Status> {
        let mut header = self.header(Kind::Done, whole(lane, step));
        (header.flags, header.rows) = (flags, u32::from(flags & flags::EMPTY == 0));
        self.send(conn, &header, &[], &[]).map(|reply| reply.status)
    }

    /// A lane's whole step.
    fn step(&mut self, conn: Conn, lane: u32, step: u64, values: &[f32]) {
        assert_eq!(self.push(conn, whole(lane, step), values), Some(Status::Ok));
        assert_eq!(self.done(conn, lane, step), Some(Status::Ok));
    }

    fn task_done(&mut self, conn: Conn, task: u32) -> Option<Status> {
        let header = self.header(Kind::TaskDone, whole(task, 0));
        self.send(conn, &header, &[], &[]).map(|reply| reply.status)
    }

    /// Pulls the whole table.
    fn pull(&mut self, conn: Conn, step: u64) -> Option<Status> {
        let mut header = self.header(Kind::Pull, whole(0, step));
        header.count = ROWS as u32;
        self.send(conn, &header, &[], &[]).map(|reply| reply.status)
    }

    /// Where a unit stands: step, next part, flags.
    fn query(&mut self, conn: Conn, unit: u32) -> (u64, u32, u16) {
        let header = self.header(Kind::Query, whole(unit, 0));
        let reply = self.send(conn, &header, &[], &[]).expect("a query is answered at once");
        assert_eq!(reply.kind, Kind::Progress);
        (reply.step.0, reply.part.0, reply.flags)
    }

    /// A query that is refused.
    fn query_refused(&mut self, conn: Conn, unit: u32) -> Option<Status> {
        let header = self.header(Kind::Query, whole(unit, 0));
        let reply = self.send(conn, &header, &[], &[])?;
        assert_eq!(reply.kind, Kind::Refused);
        Some(reply.status)
    }

    fn barrier(&mut self, conn: Conn, number: u32) {
        let header = Header::barrier(cut(number), self.host.epoch());
        assert_eq!(self.send(conn, &header, &[], &[]), None);
    }

    fn cut(&mut self, number: u32, at: CutAt) {
        let command = take(cut(number), self.host.epoch(), at);
        self.act(|host, now, out| host.cut(&command, now, out)).expect("this epoch");
    }

    /// A cut with which the job ends.
    fn last_cut(&mut self, number: u32, at: CutAt) {
        let command = TakeCut { last: true, ..take(cut(number), self.host.epoch(), at) };
        self.act(|host, now, out| host.cut(&command, now, out)).expect("this epoch");
    }

    fn cut_end(&mut self, number: u32, committed: bool) {
        let end = EndCut { cut: cut(number), committed };
        self.act(|host, _, out| host.cut_end(end, out));
    }

    fn values(&self) -> Vec<f32> {
        self.host
            .shard(ShardId(0))
            .and_then(|shard| shard.table_values(TableId(0)))
            .expect("it is here")
            .to_vec()
    }

    fn value(&self, row: usize) -> f32 {
        self.values()[row]
    }

    /// Reads the snapshot of a cut as a saver does, and makes a shard of it.
    fn saved(&mut self, number: u32) -> Shard {
        let mut shard = Shard::new(&self.config);
        let head = self.host.snapshot_head(ShardId(0), cut(number)).expect("the cut is open");
        for (section, of) in self.config.sections(&head.sparse_rows).iter().enumerate() {
            let mut piece = vec![0.0; of.values()];
            self.act(|host, _, _| host.save(ShardId(0), cut(number), section, 0, &mut piece))
                .expect("the cut is open");
            let into = shard.section_mut(section).expect("as many sections");
            into[..piece.len()].copy_from_slice(&piece);
        }
        shard.load_head(&head).expect("our own bytes");
        shard
    }

    /// A new pserver that holds what was saved.
    fn from_saved(shard: Shard, sharing: Sharing, step: u64) -> Self {
        let mut node = Self::new(sharing);
        let load = load(2, (0, sharing), step, Some(cut(999)));
        assert_eq!(
            node.act(|host, _, out| host.load(&load, &load.shards, out)).expect("a later epoch"),
            [ShardId(0)],
            "no snapshot of that cut in memory"
        );
        node.act(|host, _, out| host.install(epoch(2), shard, out)).expect("it fits");
        node
    }

    /// Steps at which cuts were taken, so far.
    fn snapped(&self) -> Vec<(u32, u64)> {
        let snapped = |report: &ShardReport| match report {
            ShardReport::SnapshotTaken { cut, step, .. } => Some((cut.number, step.0)),
            _ => None,
        };
        self.reports.iter().filter_map(snapped).collect()
    }

    fn aborted(&self) -> Vec<u32> {
        let aborted = |report: &ShardReport| match report {
            ShardReport::CutAborted { cut, .. } => Some(cut.number),
            _ => None,
        };
        self.reports.iter().filter_map(aborted).collect()
    }

    fn ended(&self) -> Option<u64> {
        self.reports.iter().find_map(|report| match report {
            ShardReport::PhaseEnded { step, .. } => Some(step.0),
            _ => None,
        })
    }
}

#[test]
fn keys_and_ranges_name_the_same_rows() {
    let mut node = Node::asp();
    let conn = node.connect(0);
    node.push(conn, part(0, 0, 0, false), &[-1.0, -2.0, -3.0]);
    node.push_keys(conn, part(0, 0, 1, true), &[1, 7], &[-10.0, -20.0]);
    assert_eq!(node.values(), [1.0, 12.0, 3.0, 0.0, 0.0, 0.0, 0.0, 20.0]);
    let mut header = node.header(Kind::Pull, whole(0, 0));
    header.flags = flags::KEYS;
    (header.count, header.key_bytes) = (2, 8);
    let mut out = Vec::new();
    let frame = Frame { conn, header, keys: &[0, 7], values: &[] };
    assert_eq!(node.host.on_frame(&frame, &mut out), Flow::Taken);
    let [ShardEffect::Values { header, rows: PulledRows::Keys(keys), .. }] = &out[..] else {
        panic!("{out:?}")
    };
    let mut values = Vec::new();
    assert_eq!(node.host.gather(header, keys, &mut values), Some(()));
    assert_eq!((values, header.value_bytes), (vec![1.0, 20.0], 8));
}

#[test]
fn wrong_rows_and_unsorted_keys_are_rejected() {
    let mut node = Node::asp();
    let conn = node.connect(0);
    assert_eq!(node.push(conn, whole(0, 0), &[1.0; ROWS as usize + 1]), Some(Status::BadRange));
    for keys in [[2, 1], [1, 1], [7, 8]] {
        assert_eq!(node.push_keys(conn, whole(0, 0), &keys, &[1.0, 1.0]), Some(Status::BadRange));
    }
    assert_eq!(node.push_keys(conn, whole(0, 0), &[1, 2], &[1.0]), Some(Status::BadLength));
    assert_eq!((node.values(), node.query(conn, 0).0), (vec![0.0; ROWS as usize], 0));
}

#[test]
fn gradient_with_nan_is_left_out_and_counts_as_seen() {
    let mut node = Node::asp();
    let conn = node.connect(0);
    assert_eq!(node.push(conn, whole(0, 0), &[f32::NAN]), Some(Status::NotFinite));
    assert_eq!((node.value(0), node.query(conn, 0).0), (0.0, 1));
    let mut node = Node::bsp(1);
    let conn = node.connect(0);
    assert_eq!(node.push(conn, part(0, 0, 0, false), &[f32::INFINITY]), Some(Status::NotFinite));
    assert_eq!(node.push(conn, part(0, 0, 1, true), &[-1.0]), Some(Status::Ok));
    assert_eq!(node.done(conn, 0, 0), Some(Status::Ok));
    assert_eq!(node.value(0), 1.0);
}

#[test]
fn evaluation_changes_nothing() {
    let mut node = Node::new(Sharing::ReadOnly);
    let conn = node.connect(0);
    assert_eq!(node.push(conn, whole(0, 0), &[1.0]), Some(Status::Unsupported));
    assert_eq!(node.pull(conn, 5), Some(Status::Ok));
}
