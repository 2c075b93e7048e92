//! What the coordinator, the savers and the data threads say to each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::channel::{SendError, Sender};
use crossbeam::utils::CachePadded;
use heddle_agent::AgentExit;
use heddle_protocol::control::{Command, CutAt, Phase, ShardState};
use heddle_protocol::failure::Failure;
use heddle_protocol::ids::{CutId, Epoch, Member, PhaseNo, ShardId, Step};
use heddle_protocol::manifest::ShardFile;
use heddle_shard::{Shard, ShardReport, ShardSetError, SnapshotGone};
use tokio::sync::Notify;

use crate::load::LoadError;

/// Values of a snapshot, 4-byte aligned, on their way to a file.
pub(crate) type Buffer = Vec<f32>;

/// To a data thread.
pub(crate) enum ToData {
    /// Answered by `Held`.
    Hold {
        epoch: Epoch,
        phase: Phase,
        step: Step,
        shards: Vec<ShardId>,
        base: Option<CutId>,
    },
    /// Answered by `Installed`.
    Install {
        epoch: Epoch,
        shard: Box<Shard>,
    },
    /// Answered by `Answered`.
    Begin {
        ask: u64,
        epoch: Epoch,
        phase: Phase,
    },
    Members {
        trainers: Vec<Member>,
    },
    /// Answered by `Answered`.
    Cut {
        ask: u64,
        cut: CutId,
        epoch: Epoch,
        phase: PhaseNo,
        at: CutAt,
    },
    CutEnd {
        cut: CutId,
        committed: bool,
    },
    /// A saver asks for the once-only memory of a snapshot.
    SaveMemory {
        shard: ShardId,
        cut: CutId,
        reply: Sender<Result<Vec<u8>, SnapshotGone>>,
    },
    /// A saver asks for the next piece of a section, as long as the buffer.
    Save {
        shard: ShardId,
        cut: CutId,
        section: usize,
        at: usize,
        buffer: Buffer,
        reply: Sender<Result<Buffer, SnapshotGone>>,
    },
    /// Where everything stands, for a registration.
    State {
        reply: Sender<ThreadState>,
    },
}

/// From a data thread to the coordinator.
pub(crate) enum FromData {
    /// What `Hold` came to: shards that must be brought.
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
    Answered(Answer),
    Report {
        epoch: Epoch,
        report: ShardReport,
    },
}

/// To the coordinator.
pub(crate) enum Input {
    /// From the ApplicationMaster.
    Command(Box<Command>),
    /// From a data thread.
    Data(FromData),
    /// A worker has saved a shard, or not; nothing if the cut was over before.
    Saved { cut: CutId, epoch: Epoch, shard: ShardId, result: Result<Option<ShardFile>, Failure> },
    /// A worker has made a shard, or not.
    Loaded { epoch: Epoch, shard: ShardId, result: Result<Box<Shard>, LoadError> },
    /// The agent says that the process is to end.
    Exit(AgentExit),
}

/// One data thread's answer to what all were asked.
pub(crate) struct Answer {
    pub(crate) ask: u64,
    pub(crate) result: Result<(), ShardSetError>,
}

/// Where a data thread's shards stand.
pub(crate) struct ThreadState {
    pub(crate) epoch: Epoch,
    pub(crate) cut: CutId,
    pub(crate) shards: Vec<ShardState>,
}

/// The way to a data thread.
#[derive(Clone)]
pub(crate) struct DataThread {
    pub(crate) commands: Sender<ToData>,
    pub(crate) wake: Arc<Notify>,
    pub(crate) counters: Arc<Counters>,
}

impl DataThread {
    /// Hands over a command, waiting while the thread has a full list of them.
    pub(crate) fn send(&self, command: ToData) -> Result<(), SendError<ToData>> {
        self.commands.send(command)?;
        self.wake.notify_one();
        Ok(())
    }
}

/// What a data thread shows of itself, read by the control thread for heartbeats. Each in a cache line
/// of its own, since every thread writes its own after each batch of frames.
#[derive(Default)]
pub(crate) struct Counters(CachePadded<Figures>);

/// The phase of a thread that has no shards.
const NONE: u64 = u64::MAX;

#[derive(Default)]
struct Figures {
    pushes: AtomicU64,
    refused: AtomicU64,
    phase: AtomicU64,
    step: AtomicU64,
}

impl Counters {
    pub(crate) fn publish(&self, pushes: u64, refused: u64, position: Option<(PhaseNo, Step)>) {
        let (phase, step) =
            position.map_or((NONE, 0), |(phase, step)| (u64::from(phase.0), step.0));
        let figures = &self.0;
        figures.pushes.store(pushes, Ordering::Relaxed);
        figures.refused.store(refused, Ordering::Relaxed);
        figures.phase.store(phase, Ordering::Relaxed);
        figures.step.store(step, Ordering::Relaxed);
    }

    /// Pushes, refused frames, phase and step (nothing without shards). They may be of two moments:
    /// they are for people.
    pub(crate) fn read(&self) -> (u64, u64, Option<(PhaseNo, Step)>) {
        let load = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        let figures = &self.0;
        let phase = u32::try_from(load(&figures.phase)).ok();
        let position = phase.map(|phase| (PhaseNo(phase), Step(load(&figures.step))));
        (load(&figures.pushes), load(&figures.refused), position)
    }
}
