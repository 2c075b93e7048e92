//! Ends of connections: a pserver in this process, and a trainer's plain socket.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use heddle_protocol::control::{
    BackupPlace, Command, FillOrder, LoadShards, Phase, PserverCommand, PserverReport, Report,
    SetViews, ShardCommand, ShardView, Sharing,
};
use heddle_protocol::frame::{HEADER_BYTES, Header, Kind, PART_VALUES_MAX, Status, flags};
use heddle_protocol::handshake::{Channel, Hello, MECHANISM_HMAC, Mechanism, Secret, Verdict};
use heddle_protocol::ids::{
    CutId, Epoch, Generation, Incarnation, Member, Part, PhaseNo, RunId, ShardId, Slot, Step, Term,
    ViewVersion,
};
use heddle_protocol::job_spec::{Optimizer, TableKind, TableSpec, dense_table};
use heddle_pserver::Options;
use heddle_pserver::standalone::{Standalone, StandaloneSettings};
use heddle_shard::SparseLimits;

use crate::encrypted::BlockingStream;
use crate::requests::{Request, Requests};

/// The epoch of [`pserver`].
pub const EPOCH: Epoch = Epoch { generation: Generation(1), count: 1 };
/// Time for a report of the pserver. A save of gigabytes to a slow disk takes minutes.
const REPORT_TIMEOUT: Duration = Duration::from_secs(600);

/// A cut of [`EPOCH`].
#[must_use]
pub fn cut(number: u32) -> CutId {
    CutId { generation: Generation(1), number }
}

/// A trainer that [`pserver`] accepts: of number 0 or 1.
#[must_use]
pub fn trainer(index: u32) -> Member {
    Member { slot: Slot::trainer(index), incarnation: Incarnation(1) }
}

fn run() -> RunId {
    RunId(uuid::Uuid::from_u128(1))
}

/// The listener is on the loopback interface and lives as long as the measurement.
fn secret() -> io::Result<Secret> {
    Secret::from_hex(&"2a".repeat(32)).map_err(io::Error::other)
}

/// A pserver with all shards of one table of one column, in ASP.
///
/// # Errors
/// No port is free, or the system cannot create a thread.
pub fn pserver(rows: u64, copy_bytes: u64, shards: u32) -> io::Result<Standalone> {
    let table = dense_table(0, "w", rows, 1, Optimizer::sgd(0.1));
    pserver_of(table, SparseLimits::default(), copy_bytes, shards)
}

/// A pserver with a sparse table, in ASP, with room for `rows_max` rows a shard, and one shard for each of its data threads.
///
/// # Errors
/// No port is free, or the system cannot create a thread.
pub fn sparse_pserver(
    cols: u32,
    optimizer: Optimizer,
    rows_max: u32,
    copy_bytes: u64,
    threads: u32,
) -> io::Result<Standalone> {
    let dense = dense_table(0, "w", 0, cols, optimizer);
    let table = TableSpec { kind: TableKind::Sparse, ..dense };
    let sparse = SparseLimits { rows_max, ..SparseLimits::default() };
    let pserver = started(0, table, sparse, copy_bytes, threads, threads)?;
    load(&pserver, (0..threads).map(ShardId).collect(), Vec::new())?;
    Ok(pserver)
}

fn pserver_of(
    table: TableSpec,
    sparse: SparseLimits,
    copy_bytes: u64,
    shards: u32,
) -> io::Result<Standalone> {
    let pserver = started(0, table, sparse, copy_bytes, shards, 1)?;
    load(&pserver, (0..shards).map(ShardId).collect(), Vec::new())?;
    Ok(pserver)
}

/// The pserver of a number.
#[must_use]
pub fn pserver_member(index: u32) -> Member {
    Member { slot: Slot::pserver(index), incarnation: Incarnation(1) }
}

/// Two pservers of a job with one dense table of one column in one shard, in ASP, with backups: the first one serves the shard,
/// the second one holds nothing.
///
/// # Errors
/// See [`pserver`].
pub fn pserver_and_receiver(rows: u64) -> io::Result<[Standalone; 2]> {
    let table = || dense_table(0, "w", rows, 1, Optimizer::sgd(0.1));
    let pservers = [
        started(0, table(), SparseLimits::default(), 0, 1, 1)?,
        started(1, table(), SparseLimits::default(), 0, 1, 1)?,
    ];
    let view = view_with(ViewVersion(1), &[0], Vec::new());
    load(&pservers[0], vec![ShardId(0)], vec![view.clone()])?;
    load(&pservers[1], Vec::new(), vec![view])?;
    Ok(pservers)
}

/// The view of the one shard, which the first pserver serves.
fn view_with(version: ViewVersion, in_sync: &[u32], backups: Vec<BackupPlace>) -> ShardView {
    ShardView {
        shard: ShardId(0),
        term: Term(1),
        version,
        primary: pserver_member(0),
        in_sync: in_sync.iter().map(|index| pserver_member(*index)).collect(),
        backups,
        began_at: None,
    }
}

/// Orders the first of two pservers to fill a copy on the second one.
pub fn order_fill(pservers: &[Standalone; 2]) {
    let version = ViewVersion(2);
    give_view(pservers, version, &[0], Some(FillOrder { version, thread: 0 }));
}

/// The copy that the second pserver was filled with is one of the in-sync set.
pub fn take_in(pservers: &[Standalone; 2]) {
    give_view(pservers, ViewVersion(3), &[0, 1], None);
}

fn give_view(
    pservers: &[Standalone; 2],
    version: ViewVersion,
    in_sync: &[u32],
    fill: Option<FillOrder>,
) {
    let endpoint = pservers[1].endpoints()[0];
    let backup = BackupPlace { member: pserver_member(1), endpoint, fill };
    let view = view_with(version, in_sync, vec![backup]);
    for pserver in pservers {
        let views = vec![view.clone()];
        pserver.command(Command::Shards(ShardCommand::Views(SetViews { epoch: EPOCH, views })));
    }
}

/// A pserver without shards, to which two trainers may connect.
fn started(
    index: u32,
    table: TableSpec,
    sparse: SparseLimits,
    copy_bytes: u64,
    shards: u32,
    threads: u32,
) -> io::Result<Standalone> {
    let settings = StandaloneSettings {
        member: pserver_member(index),
        run: run(),
        secret: secret()?,
        tables: vec![table],
        shards,
        sparse,
        copy_bytes,
        options: Options { threads: threads as usize, ..Options::default() },
    };
    let pserver = Standalone::start(settings)?;
    pserver
        .command(Command::Shards(ShardCommand::Members { trainers: vec![trainer(0), trainer(1)] }));
    Ok(pserver)
}

/// The pserver holds these shards with initial values.
fn load(pserver: &Standalone, shards: Vec<ShardId>, views: Vec<ShardView>) -> io::Result<()> {
    let phase = Phase { no: PhaseNo(0), sharing: Sharing::Queue };
    pserver.command(Command::Pserver(PserverCommand::LoadShards(LoadShards {
        epoch: EPOCH,
        shards,
        base: None,
        phase,
        step: Step(0),
        lost: None,
        views,
    })));
    wait(pserver, |up| matches!(up, Report::Pserver(PserverReport::ShardsReady { .. }))).map(drop)
}

/// Takes reports until one is as wanted.
///
/// # Errors
/// None came in ten minutes, or the pserver has given up.
pub fn wait(pserver: &Standalone, wanted: impl Fn(&Report) -> bool) -> io::Result<Report> {
    loop {
        let report = pserver.reports().recv_timeout(REPORT_TIMEOUT).map_err(io::Error::other)?;
        match report {
            Report::Fatal { failure }
            | Report::Pserver(PserverReport::SaveFailed { failure, .. }) => {
                return Err(io::Error::other(failure.to_string()));
            }
            report if wanted(&report) => return Ok(report),
            _ => {}
        }
    }
}

/// A trainer's connection. Parts of a step go out one after the other, answers are read afterwards.
#[derive(Debug)]
pub struct TrainerPeer {
    stream: BlockingStream,
    shard: ShardId,
    task: u32,
    step: u64,
}

impl TrainerPeer {
    /// Connects trainer 0 or 1 to a data thread of [`pserver`].
    ///
    /// # Errors
    /// The connection breaks, or the pserver refuses it.
    pub fn connect(endpoint: SocketAddr, index: u32) -> io::Result<Self> {
        Self::connect_by(endpoint, index, Mechanism::Hmac)
    }

    /// Connects by a mechanism; see [`Self::connect`].
    ///
    /// # Errors
    /// See [`Self::connect`].
    pub fn connect_by(endpoint: SocketAddr, index: u32, mechanism: Mechanism) -> io::Result<Self> {
        let socket = TcpStream::connect(endpoint)?;
        socket.set_nodelay(true)?;
        let hello = Hello::new(run(), Some(trainer(index))).map_err(io::Error::other)?;
        let mut stream = match mechanism {
            Mechanism::Hmac => proved(socket, &hello)?,
            Mechanism::Noise => BlockingStream::encrypted(socket, &secret()?, &hello)?,
        };
        let mut verdict = [0];
        stream.read_exact(&mut verdict)?;
        match Verdict::from_byte(verdict[0]) {
            Some(Verdict::Welcome) => Ok(Self { stream, shard: ShardId(0), task: index, step: 0 }),
            other => Err(io::Error::other(format!("the pserver answers {other:?}"))),
        }
    }

    /// All requests are of this shard, not of the first.
    #[must_use]
    pub fn of_shard(self, shard: ShardId) -> Self {
        Self { shard, ..self }
    }

    fn header(&self, kind: Kind) -> Header {
        let mut header = Header::new(kind, EPOCH);
        header.shard = self.shard;
        (header.unit, header.step, header.rows) = (self.task, Step(self.step), 1);
        header
    }

    /// One step: a gradient for rows from `start` on, in parts.
    ///
    /// # Errors
    /// The connection breaks, or the pserver refuses the request.
    pub fn push(&mut self, start: u64, values: &[f32]) -> io::Result<()> {
        let parts = self.request_push(start, values)?;
        self.acknowledged(parts)
    }

    /// Returns the number of parts.
    fn request_push(&mut self, start: u64, values: &[f32]) -> io::Result<usize> {
        let parts = values.len().div_ceil(PART_VALUES_MAX);
        for (n, part) in values.chunks(PART_VALUES_MAX).enumerate() {
            let mut header = self.header(Kind::Push);
            header.part = Part(n as u32);
            header.start = start + (n * PART_VALUES_MAX) as u64;
            (header.count, header.value_bytes) = (part.len() as u32, 4 * part.len() as u32);
            header.flags = if n + 1 == parts { flags::LAST } else { 0 };
            self.send(&header, &[], part)?;
        }
        self.step += 1;
        Ok(parts)
    }

    /// One step: a gradient for these rows.
    ///
    /// # Errors
    /// The connection breaks, or the pserver refuses the request.
    pub fn push_keys(&mut self, keys: &[u32], values: &[f32]) -> io::Result<()> {
        let mut header = self.header(Kind::Push);
        header.flags = flags::KEYS | flags::LAST;
        header.count = keys.len() as u32;
        (header.key_bytes, header.value_bytes) = (4 * header.count, 4 * header.count);
        self.send(&header, keys, values)?;
        self.step += 1;
        self.acknowledged(1)
    }

    /// One step: a gradient for these rows of a sparse table, in parts. `positions` are ascending, two words each.
    ///
    /// # Errors
    /// The connection breaks, or the pserver refuses the request.
    pub fn push_positions(&mut self, positions: &[u32], values: &[f32]) -> io::Result<()> {
        let parts = self.request_push_positions(positions, values)?;
        self.acknowledged(parts)
    }

    /// Returns the number of parts.
    fn request_push_positions(&mut self, positions: &[u32], values: &[f32]) -> io::Result<usize> {
        let cols = values.len() / (positions.len() / 2);
        let rows = PART_VALUES_MAX / cols;
        let parts = positions.chunks(2 * rows).zip(values.chunks(rows * cols));
        let count = parts.len();
        for (n, (positions, values)) in parts.enumerate() {
            let mut header = self.positions_header(Kind::Push, positions);
            header.part = Part(n as u32);
            header.flags |= if n + 1 == count { flags::LAST } else { 0 };
            header.value_bytes = 4 * values.len() as u32;
            self.send(&header, positions, values)?;
        }
        self.step += 1;
        Ok(count)
    }

    /// Fills `values` with these rows of a sparse table, in pieces that are all asked for at once. `positions` as for
    /// [`Self::push_positions`].
    ///
    /// # Errors
    /// The connection breaks, or the pserver refuses the request.
    pub fn pull_positions(&mut self, positions: &[u32], values: &mut [f32]) -> io::Result<()> {
        self.request_pull_positions(positions, values.len())?;
        self.reply(Request { is_push: false, positions }, values)
    }

    fn request_pull_positions(&mut self, positions: &[u32], values: usize) -> io::Result<()> {
        let rows = PART_VALUES_MAX / (values / (positions.len() / 2));
        for positions in positions.chunks(2 * rows) {
            let header = self.positions_header(Kind::Pull, positions);
            self.send(&header, positions, &[])?;
        }
        Ok(())
    }

    fn positions_header(&self, kind: Kind, positions: &[u32]) -> Header {
        let mut header = self.header(kind);
        header.flags = flags::KEYS | flags::POSITIONS;
        header.count = positions.len() as u32 / 2;
        header.key_bytes = 4 * positions.len() as u32;
        header
    }

    fn acknowledged(&mut self, parts: usize) -> io::Result<()> {
        (0..parts).try_for_each(|_| self.reply_with(&mut []))
    }

    /// Fills `values` with the rows from `start` on, in pieces that are all asked for at once.
    ///
    /// # Errors
    /// The connection breaks, or the pserver refuses the request.
    pub fn pull(&mut self, start: u64, values: &mut [f32]) -> io::Result<()> {
        self.request_pull(start, values.len())?;
        values.chunks_mut(PART_VALUES_MAX).try_for_each(|piece| self.reply_with(piece))
    }

    fn request_pull(&mut self, start: u64, count: usize) -> io::Result<()> {
        let mut requests = Vec::new();
        for first in (0..count).step_by(PART_VALUES_MAX) {
            let mut header = self.header(Kind::Pull);
            header.start = start + first as u64;
            header.count = (count - first).min(PART_VALUES_MAX) as u32;
            requests.extend(header.encode());
        }
        self.stream.write_all(&requests)
    }

    fn send(&mut self, header: &Header, keys: &[u32], values: &[f32]) -> io::Result<()> {
        let head = header.encode();
        let mut slices = [&head[..], bytemuck::cast_slice(keys), bytemuck::cast_slice(values)]
            .map(io::IoSlice::new);
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            match self.stream.write_vectored(rest)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => io::IoSlice::advance_slices(&mut rest, written),
            }
        }
        Ok(())
    }

    /// A reply that accepts, and its values: one read where both are there.
    fn reply_with(&mut self, values: &mut [f32]) -> io::Result<()> {
        let mut head = [0; HEADER_BYTES];
        let values: &mut [u8] = bytemuck::cast_slice_mut(values);
        let mut received = 0;
        while received < HEADER_BYTES {
            let mut slices =
                [io::IoSliceMut::new(&mut head[received..]), io::IoSliceMut::new(values)];
            received += match self.stream.read_vectored(&mut slices)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                bytes => bytes,
            };
        }
        match Header::decode(&head).map_err(io::Error::other)?.status {
            Status::Ok => self.stream.read_exact(&mut values[received - HEADER_BYTES..]),
            other => Err(io::Error::other(format!("the pserver answers {other:?}"))),
        }
    }
}

/// The challenge, up to the verdict.
fn proved(mut socket: TcpStream, hello: &Hello) -> io::Result<BlockingStream> {
    socket.write_all(&[MECHANISM_HMAC])?;
    socket.write_all(&hello.encode())?;
    let mut answer = [0; 64];
    socket.read_exact(&mut answer)?;
    let proof = hello.client_proof(&secret()?, Channel::Data, &answer).map_err(io::Error::other)?;
    socket.write_all(&proof)?;
    Ok(BlockingStream::plain(socket))
}

impl Requests for TrainerPeer {
    fn request(&mut self, request: Request<'_>, values: &[f32]) -> io::Result<()> {
        let Request { is_push, positions } = request;
        match (is_push, positions.is_empty()) {
            (true, true) => self.request_push(0, values).map(drop),
            (false, true) => self.request_pull(0, values.len()),
            (true, false) => self.request_push_positions(positions, values).map(drop),
            (false, false) => self.request_pull_positions(positions, values.len()),
        }
    }

    fn reply(&mut self, request: Request<'_>, values: &mut [f32]) -> io::Result<()> {
        // A part has whole rows; one of a dense table, of one column, any number of values.
        let cols = values.len().checked_div(request.positions.len() / 2).unwrap_or(1);
        let part = PART_VALUES_MAX / cols * cols;
        if request.is_push {
            return self.acknowledged(values.len().div_ceil(part));
        }
        values.chunks_mut(part).try_for_each(|piece| self.reply_with(piece))
    }
}
