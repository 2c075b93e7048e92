//! What both benchmarks need: a pserver in this process, a trainer's plain socket, and the same
//! exchange over raw TCP to compare with.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use heddle_protocol::control::{Command, LoadShards, Phase, Report, Sharing};
use heddle_protocol::frame::{HEADER_BYTES, Header, Kind, PART_VALUES_MAX, Status, flags};
use heddle_protocol::handshake::{Channel, Hello, MECHANISM_HMAC, Secret, Verdict};
use heddle_protocol::ids::{
    CutId, Epoch, Generation, Incarnation, Member, Part, PhaseNo, RunId, ShardId, Slot, Step,
};
use heddle_protocol::spec::{Optimizer, dense_table};
use heddle_pserver::Options;
use heddle_pserver::standalone::{Standalone, StandaloneSettings};

pub const EPOCH: Epoch = Epoch { generation: Generation(1), count: 1 };

/// Whether to measure just enough to see that it runs.
pub fn is_quick() -> bool {
    std::env::var_os("HEDDLE_BENCH_QUICK").is_some_and(|value| value != "0")
}

pub fn cut(number: u32) -> CutId {
    CutId { generation: Generation(1), number }
}

pub fn trainer(index: u32) -> Member {
    Member { slot: Slot::trainer(index), incarnation: Incarnation(1) }
}

fn run() -> RunId {
    RunId(uuid::Uuid::from_u128(1))
}

fn secret() -> Secret {
    Secret::from_hex(&"2a".repeat(32)).expect("64 digits")
}

/// A pserver with all shards of one table, in ASP.
pub fn pserver(rows: u64, copy_bytes: u64, shards: u32) -> Standalone {
    let table = dense_table(0, "w", rows, 1, Optimizer::sgd(0.1));
    let setting = StandaloneSettings {
        run: run(),
        secret: secret(),
        tables: vec![table],
        shards,
        copy_bytes,
        options: Options::default(),
    };
    let pserver = Standalone::start(setting).expect("loopback has ports");
    let phase = Phase { no: PhaseNo(0), sharing: Sharing::Queue };
    pserver.command(Command::Members { trainers: vec![trainer(0), trainer(1)] });
    pserver.command(Command::LoadShards(LoadShards {
        epoch: EPOCH,
        shards: (0..shards).map(ShardId).collect(),
        base: None,
        phase,
        step: Step(0),
    }));
    wait(&pserver, |up| matches!(up, Report::ShardsReady { .. }));
    pserver
}

/// Takes reports until one is as wanted.
pub fn wait(pserver: &Standalone, wanted: impl Fn(&Report) -> bool) -> Report {
    loop {
        let report = pserver.reports().recv_timeout(Duration::from_secs(120)).expect("a report");
        if wanted(&report) {
            return report;
        }
    }
}

/// A trainer's connection. Parts of a step go out one after the other, answers are read afterwards.
pub struct Peer {
    stream: TcpStream,
    task: u32,
    step: u64,
}

impl Peer {
    pub fn connect(endpoint: SocketAddr, index: u32) -> Self {
        let mut stream = TcpStream::connect(endpoint).expect("listening");
        stream.set_nodelay(true).expect("a socket");
        let hello = Hello::new(run(), Some(trainer(index))).expect("random numbers");
        stream.write_all(&[MECHANISM_HMAC]).expect("open");
        stream.write_all(&hello.encode()).expect("open");
        let mut answer = [0; 64];
        stream.read_exact(&mut answer).expect("an answer");
        let proof = hello.client_proof(&secret(), Channel::Data, &answer).expect("the same secret");
        stream.write_all(&proof).expect("open");
        let mut verdict = [0];
        stream.read_exact(&mut verdict).expect("a verdict");
        assert_eq!(Verdict::from_byte(verdict[0]), Some(Verdict::Welcome));
        Self { stream, task: index, step: 0 }
    }

    fn header(&self, kind: Kind) -> Header {
        let mut header = Header::new(kind, EPOCH);
        (header.unit, header.step, header.rows) = (self.task, Step(self.step), 1);
        header
    }

    /// One step: a gradient for rows from `start` on, in parts.
    pub fn push(&mut self, start: u64, values: &[f32]) {
        let parts: Vec<_> = values.chunks(PART_VALUES_MAX).collect();
        for (n, part) in parts.iter().enumerate() {
            let mut header = self.header(Kind::Push);
            header.part = Part(n as u32);
            header.start = start + (n * PART_VALUES_MAX) as u64;
            (header.count, header.value_bytes) = (part.len() as u32, 4 * part.len() as u32);
            header.flags = if n + 1 == parts.len() { flags::LAST } else { 0 };
            self.send(&header, &[], part);
        }
        self.acknowledged(parts.len());
    }

    /// One step: a gradient for these rows.
    pub fn push_keys(&mut self, keys: &[u32], values: &[f32]) {
        let mut header = self.header(Kind::Push);
        header.flags = flags::KEYS | flags::LAST;
        header.count = keys.len() as u32;
        (header.key_bytes, header.value_bytes) = (4 * header.count, 4 * header.count);
        self.send(&header, keys, values);
        self.acknowledged(1);
    }

    fn acknowledged(&mut self, parts: usize) {
        for _ in 0..parts {
            assert_eq!(self.reply().status, Status::Ok);
        }
        self.step += 1;
    }

    /// Fills `values` with the rows from `start` on, in pieces that are all asked for at once.
    pub fn pull(&mut self, start: u64, values: &mut [f32]) {
        let mut requests = Vec::new();
        for (n, piece) in values.chunks(PART_VALUES_MAX).enumerate() {
            let mut header = self.header(Kind::Pull);
            header.start = start + (n * PART_VALUES_MAX) as u64;
            header.count = piece.len() as u32;
            requests.extend(header.encode());
        }
        self.stream.write_all(&requests).expect("open");
        for piece in values.chunks_mut(PART_VALUES_MAX) {
            assert_eq!(self.reply().status, Status::Ok);
            self.stream.read_exact(bytemuck::cast_slice_mut(piece)).expect("values");
        }
    }

    fn send(&mut self, header: &Header, keys: &[u32], values: &[f32]) {
        let head = header.encode();
        let mut slices = [&head[..], bytemuck::cast_slice(keys), bytemuck::cast_slice(values)]
            .map(std::io::IoSlice::new);
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            let written = self.stream.write_vectored(rest).expect("open");
            std::io::IoSlice::advance_slices(&mut rest, written);
        }
    }

    fn reply(&mut self) -> Header {
        let mut head = [0; HEADER_BYTES];
        self.stream.read_exact(&mut head).expect("a reply");
        Header::decode(&head).expect("a frame")
    }
}

/// The same exchanges without frames, memory or safety: whole messages over blocking sockets, added into
/// a table or copied from one.
pub struct Raw {
    stream: TcpStream,
    bytes: usize,
    is_push: bool,
}

const SMALL: usize = 64;

impl Raw {
    pub fn start(bytes: usize, is_push: bool) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let endpoint = listener.local_addr().expect("bound");
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a peer");
            stream.set_nodelay(true).expect("a socket");
            // Ends with an error when the peer is dropped.
            let _ended = if is_push { raw_push(stream, bytes) } else { raw_pull(stream, bytes) };
        });
        let stream = TcpStream::connect(endpoint).expect("listening");
        stream.set_nodelay(true).expect("a socket");
        Self { stream, bytes, is_push }
    }

    pub fn exchange(&mut self, values: &mut [f32]) {
        let values: &mut [u8] = bytemuck::cast_slice_mut(values);
        assert_eq!(values.len(), self.bytes);
        let mut small = [0; SMALL];
        if self.is_push {
            self.stream.write_all(values).expect("open");
            self.stream.read_exact(&mut small).expect("open");
        } else {
            self.stream.write_all(&small).expect("open");
            self.stream.read_exact(values).expect("open");
        }
    }
}

fn raw_push(mut stream: TcpStream, bytes: usize) -> std::io::Result<()> {
    let mut message = vec![0.0f32; bytes / 4];
    let mut table = vec![0.0f32; bytes / 4];
    loop {
        stream.read_exact(bytemuck::cast_slice_mut(&mut message))?;
        for (w, g) in table.iter_mut().zip(&message) {
            *w += g;
        }
        stream.write_all(&[0; SMALL])?;
    }
}

fn raw_pull(mut stream: TcpStream, bytes: usize) -> std::io::Result<()> {
    let table = vec![0.0f32; bytes / 4];
    let mut message = vec![0.0f32; bytes / 4];
    let mut small = [0; SMALL];
    loop {
        stream.read_exact(&mut small)?;
        message.copy_from_slice(&table);
        stream.write_all(bytemuck::cast_slice(&message))?;
    }
}
