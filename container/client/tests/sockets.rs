//! The shell over real sockets, with a minimal server that holds one shard's rows.

#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "sockets are what is tested"
)]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use heddle_client::gradient::{Gradient, TableGradient};
use heddle_client::layout::{Layout, Rows, TableShape};
use heddle_client::machine::{
    ClientEvent, DataRequest, Era, PullAt, PullId, PullItem, StepPush, Unit,
};
use heddle_client::shell::{Client, Settings};
use heddle_protocol::control::{Phase, ShardPlace, Sharing, TaskGrant};
use heddle_protocol::frame::{HEADER_BYTES, Header, Kind, Status, flags};
use heddle_protocol::handshake::{
    Channel, HELLO_BYTES, Hello, MECHANISM_HMAC, Mechanism, PROOF_BYTES, Secret, Verdict,
    random_nonce,
};
use heddle_protocol::ids::{
    Epoch, Generation, Incarnation, Member, PhaseNo, RunId, ShardId, Slot, Step, TableId,
    TaskAttempt, TaskId,
};
use heddle_protocol::job_spec::TableKind;
use heddle_protocol::metrics::LossSum;

const TIMEOUT: Duration = Duration::from_secs(20);

fn secret() -> Secret {
    Secret::from_hex(&"5a".repeat(32)).expect("64 digits")
}

fn run() -> RunId {
    RunId(uuid::Uuid::from_bytes([7; 16]))
}

fn era() -> Era {
    Era { epoch: Epoch::first(Generation(1)), phase: PhaseNo(0) }
}

/// Serves connections one after the other. Row `r` has the values `[r × cols + c]`, plus what was pushed. Breaks the first
/// connection after `frames` requests without answering the last.
fn serve(listener: TcpListener, cols: u32, mut frames: usize, seen: mpsc::Sender<Header>) {
    let mut added: BTreeMap<u64, f32> = BTreeMap::new();
    let mut applied: BTreeMap<(u32, Step, u32, ShardId), ()> = BTreeMap::new();
    while let Ok((mut stream, _)) = listener.accept() {
        if greet(&mut stream).is_none() {
            continue;
        }
        while let Some((header, keys, values)) = read_frame(&mut stream) {
            if seen.send(header).is_err() {
                return;
            }
            let rows: Vec<u64> = if header.has(flags::KEYS) {
                keys.iter().map(|&k| u64::from(k)).collect()
            } else {
                (header.start..header.start + u64::from(header.count)).collect()
            };
            let cells = rows
                .iter()
                .flat_map(|r| (0..u64::from(cols)).map(move |c| r * u64::from(cols) + c));
            let mut reply = header.reply(Kind::Ack, Status::Ok);
            let mut body = Vec::new();
            if header.kind == Kind::Pull {
                reply.kind = Kind::Values;
                body = cells
                    .map(|cell| cell as f32 + added.get(&cell).copied().unwrap_or_default())
                    .collect();
                reply.value_bytes = (body.len() * 4) as u32;
            } else if applied
                .insert((header.unit, header.step, header.part.0, header.shard), ())
                .is_none()
            {
                for (cell, value) in cells.zip(values) {
                    *added.entry(cell).or_default() += value;
                }
            } else {
                reply.status = Status::Already;
            }
            frames = frames.saturating_sub(1);
            if frames == 1 {
                break;
            }
            let mut out = reply.encode().to_vec();
            out.extend(body.iter().flat_map(|v| v.to_le_bytes()));
            if stream.write_all(&out).is_err() {
                break;
            }
        }
    }
}

fn greet(stream: &mut TcpStream) -> Option<()> {
    let mut first = [0; 1 + HELLO_BYTES];
    stream.read_exact(&mut first).ok()?;
    assert_eq!(first[0], MECHANISM_HMAC);
    let hello =
        Hello::decode(&first[1..].try_into().expect("as long as a hello")).expect("a hello");
    assert_eq!(hello.run, run());
    let nonce = random_nonce().expect("random numbers");
    stream.write_all(&hello.server_answer(&secret(), Channel::Data, &nonce)).ok()?;
    let mut proof = [0; PROOF_BYTES];
    stream.read_exact(&mut proof).ok()?;
    hello.check_client(&secret(), Channel::Data, &nonce, &proof).expect("the same secret");
    stream.write_all(&[Verdict::Welcome as u8]).ok()
}

fn read_frame(stream: &mut TcpStream) -> Option<(Header, Vec<u32>, Vec<f32>)> {
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head).ok()?;
    let header = Header::decode(&head).expect("a frame");
    let mut words = |bytes: u32| {
        let mut raw = vec![0; bytes as usize];
        stream.read_exact(&mut raw).ok()?;
        Some(
            raw.chunks_exact(4)
                .map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]))
                .collect::<Vec<_>>(),
        )
    };
    let keys = words(header.key_bytes)?;
    let values = words(header.value_bytes)?.into_iter().map(f32::from_bits).collect();
    Some((header, keys, values))
}

struct World {
    client: Client,
    seen: mpsc::Receiver<Header>,
    endpoint: SocketAddr,
}

/// Two shards of one table on one data thread.
fn world(rows: u64, cols: u32, break_after: usize) -> World {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = listener.local_addr().expect("bound");
    let (sender, seen) = mpsc::channel();
    std::thread::spawn(move || serve(listener, cols, break_after, sender));
    let client = Client::start(Settings {
        shards_move: false,
        layout: Layout::new(2, vec![TableShape { kind: TableKind::Dense, rows, cols }])
            .expect("a sound table"),
        run: run(),
        member: Member { slot: Slot::trainer(0), incarnation: Incarnation(1) },
        secret: secret(),
        mechanism: Mechanism::Hmac,
        timeout: heddle_channel::PeerTimeout::default(),
    })
    .expect("a thread");
    client.handle().send(DataRequest::Work {
        epoch: era().epoch,
        phase: Phase { no: PhaseNo(0), sharing: Sharing::Queue },
        places: places(endpoint),
    });
    let world = World { client, seen, endpoint };
    assert!(matches!(world.event(), ClientEvent::Begun { .. }));
    world
}

fn pserver() -> Member {
    Member { slot: Slot::pserver(0), incarnation: Incarnation(1) }
}

/// A port without a listener, as long as its socket is open.
fn closed_port() -> (socket2::Socket, SocketAddr) {
    let socket =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(&any.into()).expect("a port");
    let bound = socket.local_addr().expect("bound");
    (socket, bound.as_socket().expect("IPv4"))
}

fn places(endpoint: SocketAddr) -> Vec<ShardPlace> {
    (0..2).map(|s| ShardPlace { shard: ShardId(s), holder: pserver(), endpoint }).collect()
}

/// Sends a pull of the current state.
fn pull(world: &World, items: Vec<PullItem>) -> PullId {
    static PULLS: AtomicU64 = AtomicU64::new(0);
    let pull = PullId(PULLS.fetch_add(1, Ordering::Relaxed));
    world.client.handle().send(DataRequest::Pull { era: era(), pull, at: PullAt::Now, items });
    pull
}

impl World {
    fn event(&self) -> ClientEvent {
        self.client.events().recv_timeout(TIMEOUT).expect("an event in time")
    }
}

fn item(rows: Rows) -> PullItem {
    PullItem { table: TableId(0), rows, values: Vec::new() }
}

fn expected(rows: &[u64], cols: u64) -> Vec<f32> {
    rows.iter().flat_map(|r| (0..cols).map(move |c| (r * cols + c) as f32)).collect()
}

#[test]
fn values_of_many_pieces_fill_the_callers_buffer() {
    let (rows, cols) = (50_000, 7);
    let world = world(rows, cols, 0);
    let keys: Vec<u32> = (0..rows as u32).step_by(3).collect();
    let wanted = vec![
        item(Rows::Range(10..rows - 5)),
        item(Rows::Keys(keys.clone())),
        item(Rows::Range(4..4)),
    ];
    let pull = pull(&world, wanted);
    let ClientEvent::Pulled { pull: got, items } = world.event() else {
        panic!("a pull was asked for")
    };
    assert_eq!(got, pull);
    let range: Vec<u64> = (10..rows - 5).collect();
    let keys: Vec<u64> = keys.into_iter().map(u64::from).collect();
    assert!(items[0].values == expected(&range, u64::from(cols)), "the range is wrong");
    assert!(items[1].values == expected(&keys, u64::from(cols)), "the keys are wrong");
    assert!(items[2].values.is_empty());
}

#[test]
fn reconnect_neither_loses_nor_repeats_parts() {
    let (rows, cols) = (40_000, 4);
    let world = world(rows, cols, 5);
    let handle = world.client.handle();
    let task = TaskId(3);
    let grant = TaskGrant { task, attempt: TaskAttempt(1), start: Step(0) };
    handle.send(DataRequest::HoldTask { era: era(), grant });
    for step in 0..3 {
        let gradient = TableGradient {
            table: TableId(0),
            rows: Rows::Range(0..rows),
            values: vec![1.0; (rows * u64::from(cols)) as usize],
        };
        let push = StepPush {
            step: Step(step),
            gradient: Gradient { tables: vec![gradient] },
            rows: 1,
            loss: LossSum::default(),
            end: false,
        };
        handle.send(DataRequest::PushStep { era: era(), unit: Unit::Task(task), push });
    }
    handle.send(DataRequest::EndTask { era: era(), task });
    let mut reached = Vec::new();
    let mut broken = 0;
    let mut outages = Vec::new();
    loop {
        match world.event() {
            ClientEvent::Reached { step, .. } => reached.push(step.0),
            ClientEvent::Unreachable { refused, .. } => {
                assert!(!refused, "the port is open");
                broken += 1;
            }
            ClientEvent::Outages { members } => {
                outages.push(members.into_iter().map(|(member, _)| member).collect::<Vec<_>>());
            }
            ClientEvent::Finished { task: finished, .. } => {
                assert_eq!(finished, task);
                break;
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    assert_eq!(reached, [0, 1, 2]);
    assert_eq!(broken, 1);
    assert_eq!(outages, [vec![pserver()], vec![]]);
    pull(&world, vec![item(Rows::Range(0..rows))]);
    let ClientEvent::Pulled { items, .. } = world.event() else { panic!("a pull was asked for") };
    let plus_three: Vec<f32> =
        expected(&(0..rows).collect::<Vec<_>>(), u64::from(cols)).iter().map(|v| v + 3.0).collect();
    assert!(items[0].values == plus_three, "a part is missing or was added twice");
    let repeated = world.seen.try_iter().filter(|h| h.kind == Kind::Push).count();
    assert!(repeated > 3 * 4, "parts that were not answered came again");
}

#[test]
fn refusing_port_is_reported_and_the_new_address_used() {
    let world = world(10, 1, 0);
    let (_reserved, closed) = closed_port();
    let handle = world.client.handle();
    let phase = Phase { no: PhaseNo(0), sharing: Sharing::Queue };
    handle.send(DataRequest::Work { epoch: era().epoch, phase, places: places(closed) });
    pull(&world, vec![item(Rows::Range(0..10))]);
    let ClientEvent::Unreachable { member, refused: true } = world.event() else {
        panic!("no process listens there")
    };
    assert_eq!(member, pserver());
    let outages = |members| ClientEvent::Outages { members };
    assert_eq!(world.event(), outages(vec![(pserver(), 0)]));
    handle.send(DataRequest::Work { epoch: era().epoch, phase, places: places(world.endpoint) });
    assert_eq!(world.event(), outages(vec![]));
    let ClientEvent::Pulled { items, .. } = world.event() else {
        panic!("the pull continues at the new address")
    };
    assert_eq!(items[0].values, expected(&(0..10).collect::<Vec<_>>(), 1));
}

#[test]
fn invalid_request_results_in_a_fault() {
    let world = world(10, 1, 0);
    pull(&world, vec![item(Rows::Keys(vec![3, 3]))]);
    assert!(matches!(world.event(), ClientEvent::Fault(_)));
}
