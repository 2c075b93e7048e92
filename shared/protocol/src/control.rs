//! The control plane's messages: reports of a container to the ApplicationMaster, and its commands.
//!
//! Each is one JSON object a line, on one long-lived HTTP connection per container.
//!
//! A command states what must hold, not what changed, and is safe to repeat: after a reconnect the ApplicationMaster sends
//! what holds then. A report carries its epoch (and the last cut of its sender where a queue depends on it), so that
//! receivers can ignore a stale one. Framing, sockets and authentication are in `heddle-agent` and `heddle-am`.

mod command;
mod model_save;
mod ordered_fault;
mod replica;
mod report;
mod shard;
mod sparse_table_size;
mod state;
mod tokens;

use serde::{Deserialize, Serialize};

pub use command::{
    Base, BeginPhase, Command, CommandEnvelope, CutAt, LaneGrant, LoadShards, LostShards, Phase,
    PserverCommand, ShardPlace, Sharing, TakeCut, TaskGrant, TaskHandOut, TrainerCommand, Welcome,
};
pub use model_save::{
    BLOCK_MS_MAX, BLOCK_MS_MIN, ExportFailure, ExportOrder, ExportProgress, ExportedFile,
    ExportedModel, SaveAnswer, SaveRequest,
};
pub use ordered_fault::{
    ChaosOrder, ChaosStep, FAULT_MS_MAX, FaultTarget, OrderedFault, SESSION_LAPSES_MS,
    SLOW_FACTOR_MAX,
};
pub use replica::{
    BackupPlace, FillOrder, FillProgress, HandOver, ReplicaState, ReplicationLag, SetViews,
    ShardStop, ShardView,
};
pub use report::{PserverReport, Registration, Report, ReportEnvelope, TrainerReport};
pub use shard::{EndCut, ShardCommand, ShardReport};
pub use sparse_table_size::SparseTableSize;
pub use state::{
    HeartbeatStats, InputWait, LongStep, PserverState, ShardState, TaskPosition, ThreadTurn,
    TrainerState,
};
pub use tokens::{CredentialsBytes, InstallTokens};

/// Longest line either side accepts: an evaluation's score bins are the longest that occur.
pub const LINE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// An order of the leading controller to a job with `run.elastic = "controller"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResizeOrder {
    /// The leader's generation, from 1. A job refuses orders of lower ones than it has seen.
    pub generation: u64,
    /// How many trainers.
    pub trainers: u32,
    /// How many pservers.
    pub pservers: u32,
}

/// What an operator may ask of a running job, with the job's secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "operation")]
pub enum Operation {
    /// End in order: a final checkpoint first if asked, then stop everything; the job can be continued.
    Stop {
        /// Whether to take a checkpoint.
        checkpoint: bool,
    },
    /// End at once; nothing more is saved.
    Kill,
    /// Take a checkpoint now.
    Checkpoint,
    /// Change the numbers of containers, within the bounds of the job file.
    Scale {
        /// How many trainers; absent: as many as now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trainers: Option<u32>,
        /// How many pservers; absent: as many as now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pservers: Option<u32>,
    },
    /// Leave the numbers of containers to the controller again (`run.elastic`).
    ScaleAuto,
    /// The controller changes the numbers of containers.
    Resize(ResizeOrder),
    /// An order of a chaos session, for a job with `run.chaos`.
    Chaos(ChaosOrder),
}
