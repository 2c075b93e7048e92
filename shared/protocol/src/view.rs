//! The public view of a job: its state ([`JobView`]) and its events ([`JobEvent`]).
//!
//! The web page, the JSON interface, `heddle status` and the end report show these types and no
//! others, so that they cannot disagree. Times of day are milliseconds since 1970, spans are
//! milliseconds. Fields are only ever added.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::control::ReplicationLag;
use crate::figure::EvaluationFigures;
use crate::ids::{Attempt, CutId, Epoch, Incarnation, PhaseNo, RunId, ShardId, Slot, Step};
use crate::process_figures::{ProcessFigure, ProcessFigures};
use crate::set_aside::SetAsideTask;
use crate::table_statistics::TableStatistics;

mod chaos;
mod checkpoint_period;
mod credentials;
mod event;
mod event_stream;
mod history;
mod mirror;
mod model_saves;
mod placement;
mod pservers;
mod shards;
mod size;
mod spares;
mod sparse_table;
mod stragglers;
mod training;
mod warning;

pub use chaos::ChaosView;
pub use checkpoint_period::CheckpointPeriodView;
pub use credentials::CredentialsView;
pub use event::JobEvent;
pub use event_stream::{EventPage, NumberedEvent, readable_events};
pub use history::{
    AbortedCheckpointView, DamagedCheckpointView, EndedView, FirstFigures, History,
    StorageWaitView, WarningView,
};
pub use mirror::MirrorView;
pub use model_saves::{ModelSavesView, OpenSaveView, PublishedSaveView};
pub use placement::{ApplicationView, AttemptView, Placement};
pub use pservers::PserversView;
pub use shards::ShardPlacesView;
pub use size::{ElasticView, SetBy};
pub use spares::{SpareCounts, SparesView};
pub use sparse_table::SparseTableView;
pub use stragglers::StragglersView;
pub use training::TrainingPassView;
pub use warning::WarningCode;

/// Where a job stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// Waiting for containers, or for shards to be loaded.
    #[default]
    Starting,
    /// Steps are taken.
    Running,
    /// Going back to a checkpoint after a loss.
    Recovering,
    /// Last checkpoint, model and unregistration.
    Finishing,
    /// The model is published.
    Finished,
    /// Ended with an error.
    Failed,
    /// Ended by an operator; can be continued.
    Stopped,
}

/// What a slot's container is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlotState {
    /// No container.
    Empty,
    /// Asked for.
    Asked,
    /// Given, being started, not registered yet.
    Starting,
    /// Registered, with a recent report.
    Running,
    /// Registered, without a recent report.
    Suspect,
    /// Handing back its work.
    Draining,
}

/// One place in the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlotView {
    /// The place.
    pub slot: Slot,
    /// Which filling; 0 before the first.
    pub incarnation: Incarnation,
    /// What it does.
    pub state: SlotState,
    /// Its node.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    /// Trainer: records per second lately. Pserver: push frames per second lately.
    pub per_second: f64,
    /// Figures of its process with [`FigureScope::Slot`](crate::process_figures::FigureScope::Slot), in JSON fields of this
    /// object.
    #[serde(flatten)]
    pub figures: ProcessFigures,
    /// Records computed (trainer) or push frames taken (pserver) by this container.
    pub total: u64,
    /// How old its last heartbeat was when the view was made, ms; none while no process is registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_age_ms: Option<u64>,
    /// Registered and idle, to take the place of a lost one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spare: bool,
    /// Which container of the cluster it is; none locally, and while it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
}

impl SlotView {
    /// A slot of which nothing is known but its state.
    #[must_use]
    pub fn empty(slot: Slot, incarnation: Incarnation, state: SlotState) -> Self {
        Self {
            slot,
            incarnation,
            state,
            host: String::new(),
            pid: 0,
            per_second: 0.0,
            figures: [(ProcessFigure::ResidentBytes, 0)].into_iter().collect(),
            total: 0,
            heartbeat_age_ms: None,
            spare: false,
            placement: None,
        }
    }
}

/// One checkpoint that exists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointView {
    /// Its name.
    pub cut: CutId,
    /// The phase it was cut in.
    pub phase: PhaseNo,
    /// BSP: job steps of that phase applied.
    pub step: Step,
    /// When it was committed.
    pub at_ms: u64,
    /// From the order to the commit.
    pub took_ms: u64,
    /// Bytes of its shard files; 0 if it has initial values.
    pub bytes: u64,
    /// Where.
    pub dir: String,
    /// Figures of the tables in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<TableStatistics>,
}

/// What a recovery does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecoveryKind {
    /// All shards return to a checkpoint.
    #[default]
    Rollback,
    /// A trainer is replaced.
    Trainer,
    /// The next attempt of the ApplicationMaster takes over.
    ApplicationMaster,
    /// Backups serve instead of a pserver's shards; nothing returns to a checkpoint.
    Failover,
    /// A spare takes the place of a lost container; of a pserver's with a rollback.
    Spare,
    /// The shards of a lost pserver alone return to a checkpoint.
    Local,
}

/// Backups of shards, of a job with `pservers.replicas`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicationView {
    /// Backups of each shard, as the job file wants them.
    pub replicas: u32,
    /// Shards with all of their backups in sync.
    pub in_sync: u32,
    /// Shards with fewer.
    pub under_replicated: u32,
    /// Those shards, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lacking: Vec<ShardId>,
    /// Backups that this attempt made primary.
    pub promotions: u64,
    /// How far the slowest backup in sync is behind, by the last heartbeats.
    #[serde(default)]
    pub lag: ReplicationLag,
    /// Shards that a living pserver handed over in this attempt.
    #[serde(default)]
    pub hand_overs: u64,
    /// Checkpoints that this attempt gave up because two copies of a shard had other bytes (`checkpoint.copies`).
    #[serde(default)]
    pub copies_differed: u64,
    /// By pserver: shards that it serves.
    #[serde(default)]
    pub served: BTreeMap<Slot, u32>,
    /// Backups that are being brought up to date.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refills: Vec<RefillView>,
}

/// A refill that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefillView {
    /// The shard.
    pub shard: ShardId,
    /// The pserver with the primary.
    pub from: Slot,
    /// The receiver.
    pub to: Slot,
    /// Bytes that it has, by the last heartbeat.
    pub bytes: u64,
    /// Bytes of the shard; 0 before the first heartbeat that has the refill.
    pub of_bytes: u64,
}

/// One recovery: what failed, and how long each phase took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecoveryView {
    /// What failed, in words: `pserver-1 exited with signal 9`.
    pub cause: String,
    /// The slot; none when the ApplicationMaster failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<Slot>,
    /// What is done about it.
    #[serde(default)]
    pub kind: RecoveryKind,
    /// When it was noticed.
    pub at_ms: u64,
    /// Epoch before.
    pub epoch_before: Epoch,
    /// Epoch after; the same when nothing was rolled back.
    pub epoch_after: Epoch,
    /// The checkpoint that was returned to, if any.
    pub base: Option<CutId>,
    /// Phase and step when it was noticed.
    pub phase: PhaseNo,
    /// See `phase`.
    pub step: Step,
    /// BSP: step returned to.
    pub base_step: Option<Step>,
    /// BSP: steps that are done again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_again: Option<u64>,
    /// Local recovery: updates of the lost shards since the checkpoint, which are not done again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updates_lost: Option<u64>,
    /// Age of the checkpoint returned to: the work to be done again.
    pub checkpoint_ms: Option<u64>,
    /// From the order of that checkpoint to its commit; none if another attempt took it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save_ms: Option<u64>,
    /// From the last sign of life to the notice by the ApplicationMaster that ended the recovery.
    pub notice_ms: Option<u64>,
    /// From the notice until the replacement is started.
    pub restart_ms: Option<u64>,
    /// From there until it has registered and all shards are loaded.
    pub load_ms: Option<u64>,
    /// From there to every trainer's first step.
    pub resume_ms: Option<u64>,
    /// Whether it is over.
    pub done: bool,
}

/// Scores of one evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationView {
    /// The pass it followed.
    pub pass: u32,
    /// Records scored.
    pub rows: u64,
    /// The figures of the job's loss, in JSON fields of this object.
    #[serde(flatten)]
    pub figures: EvaluationFigures,
}

impl EvaluationView {
    /// The first figure, which early stopping watches and by which the best pass is chosen; lower is better.
    #[must_use]
    pub fn loss(&self) -> f64 {
        self.figures.loss().map_or(f64::MAX, |(_, loss)| loss)
    }

    /// The one with the lowest loss; of equal ones the first.
    pub fn best<'e>(all: impl IntoIterator<Item = &'e Self>) -> Option<&'e Self> {
        all.into_iter().min_by(|a, b| a.loss().total_cmp(&b.loss()))
    }
}

/// Recoveries that a view holds. A page of 500 rows is still readable.
pub const RECOVERIES_MAX: usize = 500;

/// A job as it stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobView {
    /// The run.
    pub run: RunId,
    /// The job's name.
    pub name: String,
    /// Where it stands.
    pub state: JobState,
    /// The ApplicationMaster's attempt.
    pub attempt: Attempt,
    /// The epoch.
    pub epoch: Epoch,
    /// The phase.
    pub phase: PhaseNo,
    /// The phase in words: `pass 2 of 10`.
    pub phase_text: String,
    /// Steps: BSP, of the phase; ASP, reached in all.
    pub step: Step,
    /// Tasks of the phase that are done, and all (ASP, evaluation).
    pub tasks_done: u32,
    /// See `tasks_done`.
    pub tasks: u32,
    /// Records computed since the start, recomputed ones included.
    pub rows: u64,
    /// Records per second lately.
    pub rows_per_second: f64,
    /// Mean training loss of the present pass so far, for progress only.
    pub training_loss: Option<f64>,
    /// Share of the phase that is done, 0 to 1; none while its length is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase_done: Option<f64>,
    /// Time to the end of the last pass at the present speed, ms; none while it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_ms: Option<u64>,
    /// When the run started.
    pub started_ms: u64,
    /// Places.
    pub slots: Vec<SlotView>,
    /// Checkpoints that exist, oldest first.
    pub checkpoints: Vec<CheckpointView>,
    /// Mirrors of the checkpoint directory (`checkpoint.mirrors`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<MirrorView>,
    /// Checkpoints taken in this run, those deleted since included.
    pub checkpoints_taken: u32,
    /// Recoveries, oldest first; the newest [`RECOVERIES_MAX`].
    pub recoveries: Vec<RecoveryView>,
    /// How many there were.
    #[serde(default)]
    pub recoveries_total: u64,
    /// Training loss of the passes that are over, oldest first; the newest 1,000.
    #[serde(default)]
    pub passes: Vec<TrainingPassView>,
    /// Evaluations, oldest first; the newest 1,000, as many as `training.early-stop` compares, and the best one.
    pub evaluations: Vec<EvaluationView>,
    /// `training.keep = "best"`: the best pass so far, whose model is exported; else none, and it is the last one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_pass: Option<u32>,
    /// Records left out as bad.
    pub bad_records: u64,
    /// Tasks that passes went on without (`data.failed-share`), oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set_aside: Vec<SetAsideTask>,
    /// Late tasks that two trainers computed in this attempt; none before the first one was stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stragglers: Option<StragglersView>,
    /// Tasks dispatched by this attempt whose input is stored on hosts that are known; none while there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_locality: Option<DataLocality>,
    /// Figures of the processes of this attempt with [`FigureScope::Job`](crate::process_figures::FigureScope::Job), merged,
    /// in JSON fields of this object.
    #[serde(flatten)]
    pub figures: ProcessFigures,
    /// Sparse tables: their sizes by the last heartbeats of the pservers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sparse_tables: Vec<SparseTableView>,
    /// Trainers wait for the storage of their input; none while all of them read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_wait: Option<StorageWaitView>,
    /// The tokens for file systems; none where the job needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<CredentialsView>,
    /// Pservers of a job with `pservers.min` below `pservers.max`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pservers: Option<PserversView>,
    /// Trainers of a job whose numbers the controller sets (`run.elastic`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elastic: Option<ElasticView>,
    /// Where the shards are.
    #[serde(default, skip_serializing_if = "ShardPlacesView::is_empty")]
    pub shards: ShardPlacesView,
    /// Copies of shards, of a job whose shards can move (`pservers.replicas`, `min` and `max`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replication: Option<ReplicationView>,
    /// Updates that local recoveries have lost (`pservers.recovery`); none where there was no such recovery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updates_lost: Option<u64>,
    /// Containers that take the place of lost ones; none without `pservers.spares` and `trainers.spares`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spares: Option<SparesView>,
    /// Saves of the model that trainers' programs asked for; none before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_saves: Option<ModelSavesView>,
    /// The chaos session; none without `run.chaos`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chaos: Option<ChaosView>,
    /// What it waits for or why it ended.
    pub message: String,
    /// The application on YARN; none locally.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application: Option<ApplicationView>,
    /// What went wrong in this attempt and is over.
    #[serde(default)]
    pub history: History,
}

/// Where the input of dispatched tasks is stored, seen from their trainer. Tasks of ASP and of evaluations alone: the
/// lanes of BSP are drawn over all of the input. Speculative attempts are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataLocality {
    /// Tasks with input on the host of their trainer.
    pub node_local: u64,
    /// Tasks with input in the rack of their trainer. With one rack there are none.
    #[serde(default)]
    pub rack_local: u64,
    /// All others.
    pub other: u64,
}

impl DataLocality {
    /// All tasks.
    #[must_use]
    pub fn tasks(self) -> u64 {
        self.node_local.saturating_add(self.rack_local).saturating_add(self.other)
    }
}

impl JobView {
    /// A job that has not begun: nothing is known of it but what it is called.
    #[must_use]
    pub fn starting(
        run: RunId,
        name: impl Into<String>,
        attempt: Attempt,
        started_ms: u64,
    ) -> Self {
        Self { run, name: name.into(), attempt, started_ms, ..Self::default() }
    }
}
