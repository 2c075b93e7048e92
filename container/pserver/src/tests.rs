//! A whole pserver without an ApplicationMaster: tests send its commands, and trainers are plain sockets.

mod replicas;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use heddle_protocol::control::{
    Base, Command, CutAt, EndCut, LoadShards, Phase, PserverCommand, PserverReport, Report,
    ShardCommand, ShardReport, Sharing, TakeCut,
};
use heddle_protocol::failure::ErrorClass;
use heddle_protocol::frame::{HEADER_BYTES, Header, Kind, Status, flags};
use heddle_protocol::handshake::{Channel, Hello, MECHANISM_HMAC, Secret, Verdict};
use heddle_protocol::ids::{
    CutId, Epoch, Generation, Incarnation, Member, PhaseNo, RunId, ShardId, Slot, Step,
};
use heddle_protocol::job_spec::{Optimizer, dense_table};
use heddle_protocol::manifest::{ShardCopy, ShardFile};
use heddle_shard::SparseLimits;

use crate::Options;
use crate::standalone::{Standalone, StandaloneSettings};

const RUN: RunId = RunId(uuid::Uuid::from_u128(7));
/// A report that has not come in this time never comes.
const LIMIT: Duration = Duration::from_secs(20);

fn secret(byte: u8) -> Secret {
    Secret::from_hex(&format!("{byte:02x}").repeat(32)).expect("64 digits")
}

fn epoch(count: u32) -> Epoch {
    Epoch { generation: Generation(1), count }
}

fn cut(number: u32) -> CutId {
    CutId { generation: Generation(1), number }
}

fn trainer(index: u32, incarnation: u32) -> Member {
    Member { slot: Slot::trainer(index), incarnation: Incarnation(incarnation) }
}

/// A pserver driven by hand.
struct Rig {
    pserver: Standalone,
    endpoints: Vec<SocketAddr>,
}

impl Rig {
    /// `threads` data threads for a job of `shards` shards and one table of `rows` × `cols`.
    fn start(threads: usize, shards: u32, rows: u64, cols: u32, optimizer: Optimizer) -> Self {
        Self::with_copies(threads, shards, rows, cols, optimizer, 1 << 28)
    }

    fn with_copies(
        threads: usize,
        shards: u32,
        rows: u64,
        cols: u32,
        optimizer: Optimizer,
        copy_bytes: u64,
    ) -> Self {
        let table = dense_table(0, "w", rows, cols, optimizer);
        let pserver = Standalone::start(StandaloneSettings {
            run: RUN,
            secret: secret(1),
            tables: vec![table],
            shards,
            sparse: SparseLimits::default(),
            copy_bytes,
            member: Member { slot: Slot::pserver(0), incarnation: Incarnation(1) },
            options: Options { threads, ..Options::default() },
        })
        .expect("loopback has ports");
        let endpoints = pserver.endpoints().to_vec();
        Self { pserver, endpoints }
    }

    fn command(&self, command: Command) {
        self.pserver.command(command);
    }

    /// The next report that `pick` takes; others are passed over.
    fn wait<T>(&self, mut pick: impl FnMut(&Report) -> Option<T>) -> T {
        let mut passed = Vec::new();
        loop {
            match self.pserver.reports().recv_timeout(LIMIT) {
                Ok(report) => match pick(&report) {
                    Some(picked) => return picked,
                    None => passed.push(report),
                },
                Err(_) => panic!("the report has not come; others were {passed:?}"),
            }
        }
    }

    fn load(&self, count: u32, shards: u32, sharing: Sharing, base: Option<Base>, step: u64) {
        let shards = (0..shards).map(ShardId).collect();
        let phase = Phase { no: PhaseNo(0), sharing };
        self.command(Command::Pserver(PserverCommand::LoadShards(LoadShards {
            epoch: epoch(count),
            shards,
            base,
            phase,
            step: Step(step),
            lost: None,
            views: Vec::new(),
        })));
    }

    fn members(&self, trainers: &[Member]) {
        self.command(Command::Shards(ShardCommand::Members { trainers: trainers.to_vec() }));
    }

    fn cut(&self, number: u32, at: CutAt, staging: &std::path::Path) {
        self.cut_of(number, at, staging, false);
    }

    fn cut_of(&self, number: u32, at: CutAt, staging: &std::path::Path, initial: bool) {
        let staging = staging.display().to_string();
        let phase = PhaseNo(0);
        self.command(Command::Pserver(PserverCommand::Cut(TakeCut {
            cut: cut(number),
            epoch: epoch(1),
            phase,
            at,
            staging,
            copies: Vec::new(),
            initial,
            last: false,
        })));
    }

    fn saved(&self, shards: usize) -> BTreeMap<ShardId, ShardFile> {
        let mut files = BTreeMap::new();
        while files.len() < shards {
            let file = self.wait(|up| match up {
                Report::Pserver(PserverReport::Saved { file, .. }) => Some(file.clone()),
                Report::Pserver(PserverReport::SaveFailed { failure, .. }) => panic!("{failure}"),
                _ => None,
            });
            files.insert(file.shard, file);
        }
        files
    }

    /// From memory, from storage.
    fn holding(&self) -> (u32, u32) {
        self.wait(|up| match up {
            Report::Pserver(PserverReport::ShardsReady { from_memory, from_storage, .. }) => {
                Some((*from_memory, *from_storage))
            }
            Report::Pserver(PserverReport::LoadFailed { failure, .. }) => panic!("{failure}"),
            _ => None,
        })
    }
}

/// A trainer's connection to one data thread.
#[derive(Debug)]
struct Peer {
    stream: TcpStream,
    epoch: Epoch,
    request: u64,
}

impl Peer {
    fn connect(
        endpoint: SocketAddr,
        member: Member,
        key: u8,
        run: RunId,
    ) -> Result<Self, Option<Verdict>> {
        let mut stream = TcpStream::connect(endpoint).expect("listening");
        stream.set_nodelay(true).expect("a socket");
        stream.set_read_timeout(Some(LIMIT)).expect("a socket");
        let hello = Hello::new(run, Some(member)).expect("random numbers");
        stream.write_all(&[MECHANISM_HMAC]).expect("open");
        stream.write_all(&hello.encode()).expect("open");
        let mut answer = [0; 64];
        stream.read_exact(&mut answer).expect("an answer");
        // A wrong secret is sent on here, to see that the server notices too.
        let proof = hello.client_proof(&secret(key), Channel::Data, &answer).unwrap_or([0; 32]);
        stream.write_all(&proof).expect("open");
        let mut verdict = [0];
        stream.read_exact(&mut verdict).expect("a verdict");
        match Verdict::from_byte(verdict[0]) {
            Some(Verdict::Welcome) => Ok(Self { stream, epoch: epoch(1), request: 0 }),
            other => Err(other),
        }
    }

    fn header(&mut self, kind: Kind, shard: u32) -> Header {
        self.request += 1;
        let mut header = Header::new(kind, self.epoch);
        header.request = self.request;
        header.shard = ShardId(shard);
        header
    }

    fn send(&mut self, mut header: Header, values: &[f32]) {
        header.value_bytes = 4 * values.len() as u32;
        self.stream.write_all(&header.encode()).expect("open");
        self.stream.write_all(bytemuck::cast_slice(values)).expect("open");
    }

    fn receive(&mut self) -> (Header, Vec<f32>) {
        let mut head = [0; HEADER_BYTES];
        self.stream.read_exact(&mut head).expect("a reply");
        let header = Header::decode(&head).expect("a frame");
        let mut values = vec![0.0f32; header.value_bytes as usize / 4];
        self.stream.read_exact(bytemuck::cast_slice_mut(&mut values)).expect("its values");
        (header, values)
    }

    fn ask(&mut self, header: Header, values: &[f32]) -> (Header, Vec<f32>) {
        self.send(header, values);
        self.receive()
    }

    /// BSP: pushes `values` to rows from `start` on as the only part of a step, and is done.
    fn step(&mut self, shard: u32, lane: u32, step: u64, start: u64, values: &[f32]) {
        let mut push = self.header(Kind::Push, shard);
        (push.unit, push.step, push.flags) = (lane, Step(step), flags::LAST);
        (push.start, push.count) = (start, values.len() as u32);
        assert_eq!(self.ask(push, values).0.status, Status::Ok);
        let mut done = self.header(Kind::Done, shard);
        (done.unit, done.step, done.rows) = (lane, Step(step), 1);
        assert_eq!(self.ask(done, &[]).0.status, Status::Ok);
    }

    fn pull(&mut self, shard: u32, step: u64, start: u64, count: u32) -> Vec<f32> {
        let mut pull = self.header(Kind::Pull, shard);
        (pull.step, pull.start, pull.count) = (Step(step), start, count);
        let (header, values) = self.ask(pull, &[]);
        assert_eq!((header.kind, header.status), (Kind::Values, Status::Ok));
        values
    }
}

const SGD: Optimizer = Optimizer::sgd(1.0);
const LANES: Sharing = Sharing::Lanes { lanes: 1 };

#[test]
fn values_go_from_socket_to_table_to_socket() {
    let rig = Rig::start(2, 4, 1000, 1, SGD);
    rig.members(&[trainer(0, 1)]);
    rig.load(1, 4, LANES, None, 0);
    assert_eq!(rig.holding(), (0, 0));
    for (thread, shard) in [(0, 0), (1, 1), (0, 2), (1, 3)] {
        let mut peer =
            Peer::connect(rig.endpoints[thread], trainer(0, 1), 1, RUN).expect("welcome");
        let start = u64::from(shard) * 250;
        peer.step(shard, 0, 0, start + 10, &[-1.0, -2.0]);
        assert_eq!(peer.pull(shard, 1, start + 9, 4), [0.0, 1.0, 2.0, 0.0]);
        let other = peer.header(Kind::Query, (shard + 1) % 4);
        assert_eq!(peer.ask(other, &[]).0.status, Status::WrongShard);
    }
}

#[test]
fn wrong_secret_and_other_runs_get_their_verdict() {
    let rig = Rig::start(1, 1, 10, 1, SGD);
    let denied =
        |key, run| Peer::connect(rig.endpoints[0], trainer(0, 1), key, run).err().flatten();
    assert_eq!(denied(2, RUN), Some(Verdict::WrongSecret));
    assert_eq!(denied(1, RunId(uuid::Uuid::from_u128(8))), Some(Verdict::WrongRun));
    assert!(Peer::connect(rig.endpoints[0], trainer(0, 1), 1, RUN).is_ok());
}

#[test]
fn rollback_restores_from_memory_and_from_storage() {
    let dir = tempfile::tempdir().expect("a directory");
    let ftrl = Optimizer::ftrl(0.5, 1.0, 0.0, 0.0);
    let rows = 600_000;
    let rig = Rig::start(2, 2, rows, 1, ftrl);
    rig.members(&[trainer(0, 1)]);
    rig.load(1, 2, LANES, None, 0);
    rig.holding();
    let connect = |rig: &Rig, epoch| {
        let mut peers: Vec<_> = rig
            .endpoints
            .iter()
            .map(|endpoint| Peer::connect(*endpoint, trainer(0, 1), 1, RUN).expect("welcome"))
            .collect();
        peers.iter_mut().for_each(|peer| peer.epoch = epoch);
        peers
    };
    let mut peers = connect(&rig, epoch(1));
    rig.cut(1, CutAt::Steps(Step(1)), dir.path());
    rig.wait(|up| matches!(up, Report::Pserver(PserverReport::CutArmed { .. })).then_some(()));
    for (shard, peer) in (0..).zip(&mut peers) {
        peer.step(shard, 0, 0, u64::from(shard) * rows / 2, &[1.0, -3.0]);
    }
    let files = rig.saved(2);
    rig.command(Command::Shards(ShardCommand::CutEnd(EndCut { cut: cut(1), committed: true })));
    let at_cut: Vec<_> = (0..)
        .zip(&mut peers)
        .map(|(shard, peer)| peer.pull(shard, 1, u64::from(shard) * rows / 2, 3))
        .collect();
    let further = |rig: &Rig, peers: &mut Vec<Peer>| -> Vec<Vec<f32>> {
        let _ = rig;
        (0..)
            .zip(peers)
            .map(|(shard, peer)| {
                peer.step(shard, 0, 1, u64::from(shard) * rows / 2 + 1, &[2.0]);
                peer.pull(shard, 2, u64::from(shard) * rows / 2, 3)
            })
            .collect()
    };
    let went_on = further(&rig, &mut peers);
    assert_ne!(went_on, at_cut);

    let base = Base {
        cut: cut(1),
        run: RUN,
        epoch: epoch(1),
        dir: dir.path().display().to_string(),
        files,
        initial: false,
    };
    rig.load(2, 2, LANES, Some(base.clone()), 1);
    assert_eq!(rig.holding(), (2, 0));
    peers.iter_mut().for_each(|peer| peer.epoch = epoch(2));
    assert_eq!(further(&rig, &mut peers), went_on, "the optimizer's state is back too");

    let other = Rig::start(1, 2, rows, 1, ftrl);
    other.members(&[trainer(0, 1)]);
    other.load(3, 2, LANES, Some(base), 1);
    assert_eq!(other.holding(), (0, 2));
    let mut peer = connect(&other, epoch(3)).remove(0);
    for shard in 0..2u32 {
        let start = u64::from(shard) * rows / 2;
        assert_eq!(peer.pull(shard, 1, start, 3), at_cut[shard as usize]);
        peer.step(shard, 0, 1, start + 1, &[2.0]);
        assert_eq!(peer.pull(shard, 2, start, 3), went_on[shard as usize]);
    }
    assert_eq!(other.endpoints[0].ip(), Ipv4Addr::LOCALHOST);
}

#[test]
fn a_cut_of_initial_values_leaves_no_file_and_is_restored() {
    let dir = tempfile::tempdir().expect("a directory");
    let rows = 60_000;
    // The memory for copies has room for a few of 1,875 units: no write waits for a saver.
    let rig = Rig::with_copies(1, 1, rows, 1, SGD, 20_000);
    rig.members(&[trainer(0, 1)]);
    rig.load(1, 1, LANES, None, 0);
    rig.holding();
    rig.cut_of(1, CutAt::Steps(Step(0)), dir.path(), true);
    rig.saved(1);
    assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 0);
    let mut peer = Peer::connect(rig.endpoints[0], trainer(0, 1), 1, RUN).expect("welcome");
    peer.step(0, 0, 0, 0, &vec![-1.0; rows as usize]);
    assert_eq!(peer.pull(0, 1, 0, 2), [1.0, 1.0]);
    rig.command(Command::Shards(ShardCommand::CutEnd(EndCut { cut: cut(1), committed: true })));

    let base = Base {
        cut: cut(1),
        run: RUN,
        epoch: epoch(1),
        dir: dir.path().display().to_string(),
        files: BTreeMap::new(),
        initial: true,
    };
    let other = Rig::start(1, 1, rows, 1, SGD);
    other.members(&[trainer(0, 1)]);
    for (rig, sources) in [(rig, (0, 1)), (other, (0, 1))] {
        rig.load(2, 1, LANES, Some(base.clone()), 0);
        assert_eq!(rig.holding(), sources, "its memory for copies was full, or it is new");
        let mut peer = Peer::connect(rig.endpoints[0], trainer(0, 1), 1, RUN).expect("welcome");
        peer.epoch = epoch(2);
        assert_eq!(peer.pull(0, 0, 0, 2), [0.0, 0.0]);
    }
}

#[test]
fn initial_values_are_restored_from_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let rig = Rig::start(1, 1, 1000, 1, SGD);
    rig.members(&[trainer(0, 1)]);
    rig.load(1, 1, LANES, None, 0);
    rig.holding();
    rig.cut_of(1, CutAt::Steps(Step(0)), dir.path(), true);
    rig.saved(1);
    rig.command(Command::Shards(ShardCommand::CutEnd(EndCut { cut: cut(1), committed: true })));
    let mut peer = Peer::connect(rig.endpoints[0], trainer(0, 1), 1, RUN).expect("welcome");
    peer.step(0, 0, 0, 0, &[-1.0]);
    let (dir, files) = (dir.path().display().to_string(), BTreeMap::new());
    let base = Base { cut: cut(1), run: RUN, epoch: epoch(1), dir, files, initial: true };
    rig.load(2, 1, LANES, Some(base), 0);
    assert_eq!(rig.holding(), (1, 0));
    peer.epoch = epoch(2);
    assert_eq!(peer.pull(0, 0, 0, 1), [0.0]);
}

#[test]
fn another_copy_is_loaded_and_the_bad_ones_are_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let rig = Rig::start(1, 1, 1000, 1, SGD);
    rig.load(1, 1, Sharing::Queue, None, 0);
    rig.holding();
    rig.cut(1, CutAt::Barriers(vec![]), dir.path());
    let mut files = rig.saved(1);
    let file = files.get_mut(&ShardId(0)).expect("saved");
    // Three copies: one flipped, one missing, one good.
    for n in 1..=3 {
        let uuid = uuid::Uuid::from_u128(n);
        let name = ShardFile::name(ShardId(0), uuid);
        file.copies.push(ShardCopy { uuid, file: name.clone(), ..file.first() });
        if n != 2 {
            std::fs::copy(dir.path().join(&file.file), dir.path().join(&name)).expect("copied");
            let line = heddle_storage::sidecar_line(file.md5, &name);
            let sidecar = dir.path().join(heddle_storage::sidecar_name(&name));
            std::fs::write(sidecar, line).expect("written");
        }
    }
    let names: Vec<String> = file.copies.iter().map(|copy| copy.file.clone()).collect();
    let mut bytes = std::fs::read(dir.path().join(&names[0])).expect("copied");
    let last = bytes.len() - 100;
    bytes[last] ^= 1;
    std::fs::write(dir.path().join(&names[0]), bytes).expect("writable");
    let place = dir.path().display().to_string();
    let base = Base { cut: cut(1), run: RUN, epoch: epoch(1), dir: place, files, initial: false };
    let other = Rig::start(1, 1, 1000, 1, SGD);
    other.load(1, 1, Sharing::Queue, Some(base), 0);
    let passed = other.wait(|up| match up {
        Report::Pserver(PserverReport::CopiesPassedOver { passed, .. }) => Some(passed.clone()),
        Report::Pserver(PserverReport::LoadFailed { failure, .. }) => panic!("{failure}"),
        _ => None,
    });
    assert_eq!(passed.len(), 2, "{passed:?}");
    assert!(passed[0].contains(&names[0]) && passed[1].contains(&names[1]), "{passed:?}");
    assert_eq!(other.holding(), (0, 1));
}

#[test]
fn a_file_of_another_cut_is_another_version() {
    let dir = tempfile::tempdir().expect("a directory");
    let rig = Rig::start(1, 1, 1000, 1, SGD);
    rig.load(1, 1, Sharing::Queue, None, 0);
    rig.holding();
    rig.cut(1, CutAt::Barriers(vec![]), dir.path());
    let files = rig.saved(1);
    let place = dir.path().display().to_string();
    // File, sidecar and sums fit; the manifest is of a later cut.
    let base = Base { cut: cut(2), run: RUN, epoch: epoch(1), dir: place, files, initial: false };
    let other = Rig::start(1, 1, 1000, 1, SGD);
    other.load(1, 1, Sharing::Queue, Some(base), 0);
    let failure = other.wait(|up| match up {
        Report::Pserver(PserverReport::LoadFailed { failure, .. }) => Some(failure.clone()),
        _ => None,
    });
    assert_eq!(failure.class, ErrorClass::Corrupt, "{failure}");
    let (found, expected) = (cut(1).to_string(), cut(2).to_string());
    assert!(failure.text.contains(&found) && failure.text.contains(&expected), "{failure}");
}

#[test]
fn damaged_file_is_reported_as_corrupt_with_its_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let rig = Rig::start(1, 1, 1000, 1, SGD);
    rig.load(1, 1, Sharing::Queue, None, 0);
    rig.holding();
    rig.cut(1, CutAt::Barriers(vec![]), dir.path());
    let files = rig.saved(1);
    let name = files[&ShardId(0)].file.clone();
    let path = dir.path().join(&name);
    let mut bytes = std::fs::read(&path).expect("saved");
    let last = bytes.len() - 100;
    bytes[last] ^= 1;
    std::fs::write(&path, bytes).expect("writable");
    let base = Base {
        cut: cut(1),
        run: RUN,
        epoch: epoch(1),
        dir: dir.path().display().to_string(),
        files,
        initial: false,
    };
    let other = Rig::start(1, 1, 1000, 1, SGD);
    other.load(1, 1, Sharing::Queue, Some(base), 0);
    let failure = other.wait(|up| match up {
        Report::Pserver(PserverReport::LoadFailed { failure, .. }) => Some(failure.clone()),
        _ => None,
    });
    assert_eq!(failure.class, ErrorClass::Corrupt, "{failure}");
    assert!(failure.text.contains(&name), "{failure}");
}

#[test]
fn later_incarnation_closes_the_older_connection() {
    let rig = Rig::start(1, 1, 10, 1, SGD);
    rig.members(&[trainer(0, 1)]);
    rig.load(1, 1, Sharing::Queue, None, 0);
    rig.holding();
    let mut old = Peer::connect(rig.endpoints[0], trainer(0, 1), 1, RUN).expect("welcome");
    let query = old.header(Kind::Query, 0);
    assert_eq!(old.ask(query, &[]).0.kind, Kind::Progress);
    let mut new = Peer::connect(rig.endpoints[0], trainer(0, 2), 1, RUN).expect("welcome");
    let mut byte = [0];
    assert_eq!(old.stream.read(&mut byte).ok(), Some(0), "closed");
    let query = new.header(Kind::Query, 0);
    assert_eq!(
        new.ask(query, &[]).0.status,
        Status::NotReady,
        "the list that names it has not come"
    );
    assert_eq!(
        Peer::connect(rig.endpoints[0], trainer(0, 1), 1, RUN).err(),
        Some(Some(Verdict::NotMember))
    );
    rig.members(&[trainer(0, 2)]);
    // The command has no answer: the next hold has, and comes after it.
    rig.load(2, 1, Sharing::Queue, None, 0);
    rig.holding();
    new.epoch = epoch(2);
    let query = new.header(Kind::Query, 0);
    assert_eq!(new.ask(query, &[]).0.kind, Kind::Progress);
}

/// A stream that ends in the middle of a frame leaves nothing of it, and the frame counts when it comes again.
#[test]
fn truncated_frame_changes_nothing() {
    let rig = Rig::start(1, 1, 100_000, 1, SGD);
    rig.members(&[trainer(0, 1)]);
    rig.load(1, 1, Sharing::Queue, None, 0);
    rig.holding();
    let values = vec![-1.0f32; 60_000];
    let connect = || Peer::connect(rig.endpoints[0], trainer(0, 1), 1, RUN).expect("welcome");
    let push = |peer: &mut Peer| {
        let mut header = peer.header(Kind::Push, 0);
        (header.count, header.rows, header.flags) = (values.len() as u32, 1, flags::LAST);
        header.value_bytes = 4 * header.count;
        header
    };
    let mut peer = connect();
    let header = push(&mut peer);
    peer.stream.write_all(&header.encode()).expect("open");
    peer.stream.write_all(&bytemuck::cast_slice(&values)[..150_001]).expect("open");
    drop(peer);
    let mut peer = connect();
    assert_eq!(peer.pull(0, 0, 0, 1), [0.0]);
    let header = push(&mut peer);
    assert_eq!(peer.ask(header, &values).0.status, Status::Ok);
    assert_eq!(peer.ask(header, &values).0.status, Status::Already);
    assert_eq!(peer.pull(0, 0, 59_999, 2), [1.0, 0.0]);
}

/// Bytes that are not a frame close their connection and change nothing else.
#[test]
fn stream_without_a_frame_is_closed() {
    let rig = Rig::start(1, 1, 10, 1, SGD);
    rig.members(&[trainer(0, 1), trainer(1, 1)]);
    rig.load(1, 1, Sharing::Queue, None, 0);
    rig.holding();
    let mut other = Peer::connect(rig.endpoints[0], trainer(1, 1), 1, RUN).expect("welcome");
    let mut peer = Peer::connect(rig.endpoints[0], trainer(0, 1), 1, RUN).expect("welcome");
    peer.stream.write_all(&[7; 200]).expect("open");
    let mut byte = [0];
    assert_eq!(peer.stream.read(&mut byte).unwrap_or(0), 0, "closed");
    assert_eq!(other.pull(0, 0, 0, 1), [0.0]);
}

/// A peer that requests much and reads nothing yet blocks no other one, and gets all of it in the end.
#[test]
fn slow_reader_does_not_block_other_trainers() {
    let rig = Rig::start(1, 1, 1 << 20, 1, SGD);
    rig.members(&[trainer(0, 1), trainer(1, 1)]);
    rig.load(1, 1, Sharing::Queue, None, 0);
    rig.holding();
    let mut slow = Peer::connect(rig.endpoints[0], trainer(0, 1), 1, RUN).expect("welcome");
    let mut quick = Peer::connect(rig.endpoints[0], trainer(1, 1), 1, RUN).expect("welcome");
    for _ in 0..200 {
        let mut pull = slow.header(Kind::Pull, 0);
        (pull.count, pull.step) = (65_536, Step(0));
        slow.send(pull, &[]);
    }
    for step in 0..50 {
        let mut push = quick.header(Kind::Push, 0);
        (push.unit, push.step, push.flags, push.count, push.rows) =
            (1, Step(step), flags::LAST, 1, 1);
        assert_eq!(quick.ask(push, &[-1.0]).0.status, Status::Ok);
    }
    assert_eq!(quick.pull(0, 0, 0, 1), [50.0]);
    for _ in 0..200 {
        let (header, values) = slow.receive();
        assert_eq!((header.status, values.len()), (Status::Ok, 65_536));
    }
}

/// Training continues while a cut is saved, with little memory for copies: the file has the state at the cut.
#[test]
fn file_has_the_state_at_the_cut() {
    let dir = tempfile::tempdir().expect("a directory");
    let rows = 1 << 20;
    let rig = Rig::with_copies(1, 1, rows, 1, SGD, 64 << 10);
    rig.members(&[trainer(0, 1)]);
    rig.load(1, 1, Sharing::Queue, None, 0);
    rig.holding();
    let mut peer = Peer::connect(rig.endpoints[0], trainer(0, 1), 1, RUN).expect("welcome");
    let mut step = 0;
    let mut round = |peer: &mut Peer| {
        for start in (0..rows).step_by(65_536) {
            let mut push = peer.header(Kind::Push, 0);
            (push.step, push.flags, push.rows) = (Step(step), flags::LAST, 1);
            (push.start, push.count) = (start, 65_536);
            assert_eq!(peer.ask(push, &vec![-1.0; 65_536]).0.status, Status::Ok);
            step += 1;
        }
    };
    round(&mut peer);
    rig.cut(1, CutAt::Barriers(vec![]), dir.path());
    rig.wait(|up| {
        matches!(up, Report::Shard { report: ShardReport::SnapshotTaken { .. }, .. }).then_some(())
    });
    round(&mut peer);
    round(&mut peer);
    let files = rig.saved(1);
    let base = Base {
        cut: cut(1),
        run: RUN,
        epoch: epoch(1),
        dir: dir.path().display().to_string(),
        files,
        initial: false,
    };
    rig.load(2, 1, Sharing::Queue, Some(base), 0);
    assert_eq!(rig.holding(), (0, 1), "the snapshot in memory had to make room");
    peer.epoch = epoch(2);
    for start in (0..rows).step_by(65_536) {
        assert!(peer.pull(0, 0, start, 65_536).iter().all(|&value| value == 1.0));
    }
    let query = peer.header(Kind::Query, 0);
    assert_eq!(peer.ask(query, &[]).0.step, Step(16));
}

/// A repeated command for the current epoch is only answered; nothing is dropped.
#[test]
fn repeated_hold_is_only_answered() {
    let rig = Rig::start(2, 2, 10, 1, SGD);
    rig.members(&[trainer(0, 1)]);
    rig.load(1, 2, LANES, None, 0);
    rig.holding();
    let mut peer = Peer::connect(rig.endpoints[0], trainer(0, 1), 1, RUN).expect("welcome");
    peer.step(0, 0, 0, 0, &[-1.0]);
    rig.load(1, 2, LANES, None, 0);
    rig.holding();
    assert_eq!(peer.pull(0, 1, 0, 1), [1.0]);
}

/// Trainers get a cut after all data threads have it: no snapshot is reported before that.
#[test]
fn cut_is_armed_before_any_snapshot_is_reported() {
    let dir = tempfile::tempdir().expect("a directory");
    let rig = Rig::start(3, 6, 100, 1, SGD);
    rig.load(1, 6, Sharing::Queue, None, 0);
    rig.holding();
    for number in 1..20 {
        rig.cut(number, CutAt::Barriers(vec![]), dir.path());
        let mut armed = false;
        let mut snapped = 0;
        while snapped < 6 {
            rig.wait(|up| match up {
                Report::Pserver(PserverReport::CutArmed { cut, .. }) => {
                    armed = cut.number == number;
                    Some(())
                }
                Report::Shard { report: ShardReport::SnapshotTaken { cut, .. }, .. }
                    if cut.number == number =>
                {
                    assert!(armed);
                    snapped += 1;
                    Some(())
                }
                _ => None,
            });
        }
        rig.command(Command::Shards(ShardCommand::CutEnd(EndCut {
            cut: cut(number),
            committed: false,
        })));
    }
}
