//! Two pservers with copies of each other's shards: streams over real sockets, promotion, and the loss of a backup.

use std::thread;

use heddle_protocol::control::{
    BackupPlace, BeginPhase, Command, PserverCommand, PserverReport, Report, SetViews,
    ShardCommand, ShardReport, ShardView,
};
use heddle_protocol::handshake::Mechanism;
use heddle_protocol::ids::{Term, ViewVersion};

use super::*;

const ROWS: u64 = 100;

fn pserver(index: usize) -> Member {
    Member { slot: Slot::pserver(index as u32), incarnation: Incarnation(1) }
}

fn start(index: usize, mechanism: Mechanism) -> Rig {
    let pserver = Standalone::start(StandaloneSettings {
        run: RUN,
        secret: secret(1),
        tables: vec![dense_table(0, "w", ROWS, 1, SGD)],
        shards: 2,
        sparse: SparseLimits::default(),
        copy_bytes: 1 << 20,
        member: pserver(index),
        options: Options { threads: 2, mechanism, ..Options::default() },
    })
    .expect("loopback has ports");
    let endpoints = pserver.endpoints().to_vec();
    Rig { pserver, endpoints }
}

/// Two pservers that hold both shards: shard `n` is served by pserver `n`, on thread `n` of both.
struct Pair {
    rigs: Vec<Rig>,
    endpoints: Vec<Vec<SocketAddr>>,
}

impl Pair {
    fn start(mechanism: Mechanism, sharing: Sharing) -> Self {
        let rigs: Vec<_> = [0, 1].map(|index| start(index, mechanism)).into();
        let endpoints = rigs.iter().map(|rig| rig.endpoints.clone()).collect();
        let pair = Self { rigs, endpoints };
        pair.rigs.iter().for_each(|rig| rig.members(&[trainer(0, 1)]));
        pair.load(1, sharing);
        pair
    }

    /// An epoch from initial values.
    fn load(&self, count: u32, sharing: Sharing) {
        let views = vec![self.view(0, 1, 1, &[0, 1]), self.view(1, 1, 1, &[1, 0])];
        for rig in &self.rigs {
            rig.command(Command::Pserver(PserverCommand::LoadShards(LoadShards {
                epoch: epoch(count),
                shards: vec![ShardId(0), ShardId(1)],
                base: None,
                phase: Phase { no: PhaseNo(0), sharing },
                step: Step(0),
                lost: None,
                views: views.clone(),
            })));
            rig.holding();
        }
    }

    /// A view of a shard; its first holder is the primary.
    fn view(&self, shard: u32, term: u64, version: u64, holders: &[usize]) -> ShardView {
        let place = |&holder: &usize| {
            let endpoint = self.endpoints[holder][shard as usize];
            BackupPlace { member: pserver(holder), endpoint, fill: None }
        };
        ShardView {
            shard: ShardId(shard),
            term: Term(term),
            version: ViewVersion(version),
            primary: pserver(holders[0]),
            in_sync: holders.iter().map(|&holder| pserver(holder)).collect(),
            backups: holders[1..].iter().map(place).collect(),
            began_at: None,
        }
    }

    fn give_view(&self, to: usize, view: ShardView) {
        let views = SetViews { epoch: epoch(1), views: vec![view] };
        self.rigs[to.min(self.rigs.len() - 1)].command(Command::Shards(ShardCommand::Views(views)));
    }

    fn connect(&self, host: usize, shard: usize) -> Peer {
        Peer::connect(self.endpoints[host][shard], trainer(0, 1), 1, RUN).expect("welcome")
    }
}

fn push(peer: &mut Peer, step: u64) -> Header {
    let mut push = peer.header(Kind::Push, 0);
    (push.step, push.flags, push.count, push.rows) = (Step(step), flags::LAST, 1, 1);
    push
}

#[test]
fn promoted_backup_continues_where_its_primary_was_lost() {
    let mut pair = Pair::start(Mechanism::Hmac, Sharing::Queue);
    let mut peer = pair.connect(0, 0);
    for step in 0..200 {
        let header = push(&mut peer, step);
        assert_eq!(peer.ask(header, &[-1.0]).0.status, Status::Ok, "step {step}");
    }
    drop(pair.rigs.remove(0));
    let lone = pair.view(0, 2, 1, &[1]);
    pair.give_view(1, lone);
    let taken = pair.rigs[0].wait(|up| match up {
        Report::Shard { report: ShardReport::ViewTaken { shard, term, version, .. }, .. } => {
            Some((shard.0, term.0, version.0))
        }
        _ => None,
    });
    assert_eq!(taken, (0, 2, 1));
    let mut peer = pair.connect(1, 0);
    let repeated = push(&mut peer, 199);
    assert_eq!(peer.ask(repeated, &[-1.0]).0.status, Status::Already);
    let next = push(&mut peer, 200);
    assert_eq!(peer.ask(next, &[-1.0]).0.status, Status::Ok);
    assert_eq!(peer.pull(0, 0, 0, 2), [201.0, 0.0]);
}

#[test]
fn lost_backup_is_reported_and_left_out_by_a_view() {
    let mut pair = Pair::start(Mechanism::Hmac, Sharing::Queue);
    let mut peer = pair.connect(0, 0);
    let first = push(&mut peer, 0);
    assert_eq!(peer.ask(first, &[-1.0]).0.status, Status::Ok);
    let lost = pair.rigs.remove(1);
    let endpoints = lost.endpoints.clone();
    drop(lost);
    // Its threads end by themselves, and may follow until then.
    while endpoints.iter().any(|endpoint| TcpStream::connect(endpoint).is_ok()) {
        thread::sleep(Duration::from_millis(5));
    }
    let second = push(&mut peer, 1);
    peer.send(second, &[-1.0]);
    let lagging = pair.rigs[0].wait(|up| match up {
        Report::Shard { report: ShardReport::Lagging { shard, member, .. }, .. } => {
            Some((shard.0, *member))
        }
        _ => None,
    });
    assert_eq!(lagging, (0, pserver(1)));
    assert_eq!(peer.pull_while_open(), [2.0], "a pull does not wait");
    let lone = pair.view(0, 1, 2, &[0]);
    pair.give_view(0, lone);
    assert_eq!(peer.receive().0.status, Status::Ok);
}

#[test]
fn rollback_continues_on_the_same_connections() {
    let pair = Pair::start(Mechanism::Hmac, Sharing::Queue);
    let mut peer = pair.connect(0, 0);
    for count in 1..4 {
        if count > 1 {
            pair.load(count, Sharing::Queue);
        }
        peer.epoch = epoch(count);
        for step in 0..3 {
            let header = push(&mut peer, step);
            assert_eq!(peer.ask(header, &[-1.0]).0.status, Status::Ok, "epoch {count}");
        }
        assert_eq!(peer.pull(0, 0, 0, 1), [3.0]);
    }
}

#[test]
fn streams_are_encrypted_where_the_job_demands_it() {
    let mut pair = Pair::start(Mechanism::Noise, LANES);
    let phase = Phase { no: PhaseNo(1), sharing: Sharing::ReadOnly };
    for rig in &pair.rigs {
        rig.command(Command::Pserver(PserverCommand::Begin(BeginPhase { epoch: epoch(1), phase })));
    }
    // Answered when the backup has begun the phase by the stream.
    for rig in &pair.rigs {
        rig.wait(|up| matches!(up, Report::Pserver(PserverReport::Begun { .. })).then_some(()));
    }
    let lone = pair.view(0, 2, 1, &[1]);
    drop(pair.rigs.remove(0));
    pair.give_view(1, lone);
    pair.rigs[0].wait(|up| {
        matches!(up, Report::Shard { report: ShardReport::ViewTaken { .. }, .. }).then_some(())
    });
}

impl Peer {
    /// Pulls row 0 while an answer to a push has not come.
    fn pull_while_open(&mut self) -> Vec<f32> {
        let mut pull = self.header(Kind::Pull, 0);
        pull.count = 1;
        let (header, values) = self.ask(pull, &[]);
        assert_eq!(header.kind, Kind::Values);
        values
    }
}
