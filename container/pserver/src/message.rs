//! Messages between the coordinator, the savers and the data threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam::channel::{SendError, Sender};
use crossbeam::utils::CachePadded;
use heddle_agent::{AgentExit, TurnCounter};
use heddle_protocol::control::{
    BeginPhase, Command, FillProgress, LoadShards, ReplicationLag, ShardCommand, ShardReport,
    ShardState, SparseTableSize, TakeCut,
};
use heddle_protocol::failure::Failure;
use heddle_protocol::ids::{CutId, Epoch, PhaseNo, ShardId, Step, ViewVersion};
use heddle_protocol::process_figures::{FigureCells, ProcessFigures};
use heddle_shard::{
    LocalReport, ReplicationLimits, Shard, ShardSetError, SnapshotGone, SnapshotHead,
};
use tokio::sync::Notify;

use crate::load::LoadedShard;
use crate::load_error::LoadError;
use crate::saved_shard::SavedShard;

/// Values of a snapshot, 4-byte aligned, on their way to a file.
pub(crate) type Buffer = Vec<f32>;

/// A command to a data thread.
pub(crate) enum DataCommand {
    /// What backups are allowed, in epochs that begin from now on.
    Replication(ReplicationLimits),
    /// `shards`: the part of the command's that this thread serves. Answered by `Held`.
    LoadShards { command: Arc<LoadShards>, shards: Vec<ShardId> },
    /// Answered by `Installed`.
    Install { epoch: Epoch, shard: Box<Shard> },
    /// A shard of zeros for a refill. Nothing answers it: the primary asks again until it is there.
    InstallEmpty { epoch: Epoch, order: ViewVersion, shard: Box<Shard> },
    /// Answered by `Answered`.
    Begin { ask: u64, command: BeginPhase },
    /// Answered by `Answered`.
    Cut { ask: u64, command: Arc<TakeCut> },
    /// Passed on to the shards, which report what follows from it.
    Shards(Arc<ShardCommand>),
    /// Sends a saver the head of a snapshot.
    SaveHead { shard: ShardId, cut: CutId, reply: Sender<Result<SnapshotHead, SnapshotGone>> },
    /// Fills a saver's buffer with the next piece of a section.
    Save {
        shard: ShardId,
        cut: CutId,
        section: usize,
        at: usize,
        buffer: Buffer,
        reply: Sender<Result<Buffer, SnapshotGone>>,
    },
    /// Sends the state of the thread, for a registration.
    State { reply: Sender<ThreadState> },
    /// Sleeps: an operator ordered a hung thread.
    Hang { ms: u64 },
    /// Closes all connections of trainers: an operator ordered it.
    Drop,
}

/// A report of a data thread to the coordinator.
pub(crate) enum DataReport {
    /// Result of `LoadShards`: shards that have to be loaded.
    Held {
        thread: usize,
        epoch: Epoch,
        missing: Result<Vec<ShardId>, ShardSetError>,
    },
    Installed {
        epoch: Epoch,
        shard: ShardId,
        result: Result<(), ShardSetError>,
    },
    Answered(DataAnswer),
    Report {
        epoch: Epoch,
        report: ShardReport,
    },
    Local {
        thread: usize,
        epoch: Epoch,
        report: LocalReport,
    },
}

/// An input of the coordinator.
pub(crate) enum CoordinatorInput {
    /// A command of the ApplicationMaster.
    Command(Box<Command>),
    /// A report of a data thread.
    Data(DataReport),
    /// A worker has saved a shard, or failed; none if the cut was over before.
    Saved { cut: CutId, epoch: Epoch, shard: ShardId, result: Result<Option<SavedShard>, Failure> },
    /// A worker has loaded a shard, or failed.
    Loaded { epoch: Epoch, shard: ShardId, result: Result<LoadedShard, LoadError> },
    /// A worker has made a shard of zeros for a refill.
    MadeEmpty { epoch: Epoch, order: ViewVersion, shard: Box<Shard> },
    /// The agent ends the process.
    Exit(AgentExit),
}

/// A data thread's answer to a command that all threads got.
pub(crate) struct DataAnswer {
    pub(crate) ask: u64,
    pub(crate) result: Result<(), ShardSetError>,
}

/// The state of a data thread.
pub(crate) struct ThreadState {
    pub(crate) epoch: Epoch,
    pub(crate) cut: CutId,
    pub(crate) shards: Vec<ShardState>,
}

/// Sends commands to a data thread, and reads its counters.
#[derive(Clone)]
pub(crate) struct DataThreadHandle {
    pub(crate) commands: Sender<DataCommand>,
    pub(crate) wake: Arc<Notify>,
    pub(crate) counters: Arc<ThreadCounters>,
}

impl DataThreadHandle {
    /// Sends a command. Blocks while the queue is full.
    pub(crate) fn send(&self, command: DataCommand) -> Result<(), SendError<DataCommand>> {
        self.commands.send(command)?;
        self.wake.notify_one();
        Ok(())
    }
}

/// Counters of a data thread, which the control thread reads for heartbeats. Each has its own cache line, since every thread
/// writes its own after each batch of frames.
#[derive(Default)]
pub(crate) struct ThreadCounters(CachePadded<CounterCells>);

/// The phase of a thread without shards.
const NONE: u64 = u64::MAX;

#[derive(Default)]
struct CounterCells {
    figures: FigureCells,
    phase: AtomicU64,
    step: AtomicU64,
    /// Sizes of sparse tables. The heartbeat reads them once a second.
    sparse: Mutex<Vec<SparseTableSize>>,
    /// Refills that the thread sends.
    fills: Mutex<Vec<FillProgress>>,
    /// How far the backups of its primaries are behind.
    lag: Mutex<Option<ReplicationLag>>,
    /// Whether the thread runs.
    turn: TurnCounter,
}

impl ThreadCounters {
    /// The thread takes a turn.
    pub(crate) fn turn(&self) {
        self.0.turn.turn();
    }

    /// Time since the thread's last turn, ms.
    pub(crate) fn turn_ms(&self) -> u64 {
        self.0.turn.age_ms()
    }

    pub(crate) fn publish(&self, figures: &ProcessFigures, position: Option<(PhaseNo, Step)>) {
        let (phase, step) =
            position.map_or((NONE, 0), |(phase, step)| (u64::from(phase.0), step.0));
        let cells = &self.0;
        cells.figures.store(figures);
        cells.phase.store(phase, Ordering::Relaxed);
        cells.step.store(step, Ordering::Relaxed);
    }

    /// Replaces the sizes of sparse tables, unless they are being read: a data thread never waits.
    pub(crate) fn publish_sparse(&self, sizes: Vec<SparseTableSize>) {
        if let Ok(mut own) = self.0.sparse.try_lock() {
            *own = sizes;
        }
    }

    /// Replaces the refills, unless they are being read.
    pub(crate) fn publish_fills(&self, fills: Vec<FillProgress>) {
        if let Ok(mut own) = self.0.fills.try_lock() {
            *own = fills;
        }
    }

    /// Replaces the lag of backups, unless it is being read.
    pub(crate) fn publish_lag(&self, lag: Option<ReplicationLag>) {
        if let Ok(mut own) = self.0.lag.try_lock() {
            *own = lag;
        }
    }

    /// How far the backups of the thread's primaries are behind.
    pub(crate) fn lag(&self) -> Option<ReplicationLag> {
        *self.0.lag.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The refills that the thread sends.
    pub(crate) fn fills(&self) -> Vec<FillProgress> {
        self.0.fills.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The sizes of sparse tables.
    pub(crate) fn sparse(&self) -> Vec<SparseTableSize> {
        self.0.sparse.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the thread counts, its phase and its step (none without shards). They may be of different moments: they are for
    /// display only.
    pub(crate) fn read(&self) -> (ProcessFigures, Option<(PhaseNo, Step)>) {
        let load = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        let cells = &self.0;
        let phase = u32::try_from(load(&cells.phase)).ok();
        let position = phase.map(|phase| (PhaseNo(phase), Step(load(&cells.step))));
        (cells.figures.read(), position)
    }
}
