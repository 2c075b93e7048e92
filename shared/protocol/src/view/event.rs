//! Events of a job, and what its history keeps of them.

use serde::{Deserialize, Serialize};

use super::{
    AbortedCheckpointView, CheckpointPeriodView, CheckpointView, DamagedCheckpointView, EndedView,
    EvaluationView, FirstFigures, History, JobState, JobView, Placement, RecoveryView,
    StorageWaitView, TrainingPassView, WarningCode, WarningView,
};
use crate::exit_code::ExitCode;
use crate::ids::{Attempt, CutId, Epoch, Incarnation, PhaseNo, RunId, SaveNo, Slot};

/// Something that happened, in the order it did. One JSON object a line on the ApplicationMaster's standard output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "event")]
pub enum JobEvent {
    /// The job begins. Repeated with an older checkpoint if the first one turns out to be damaged before work begins.
    Started {
        /// The run.
        run: RunId,
        /// The job's name.
        name: String,
        /// The ApplicationMaster's attempt.
        attempt: Attempt,
        /// Address of the ApplicationMaster's pages.
        address: String,
        /// The checkpoint it continues from.
        resumed_from: Option<CutId>,
    },
    /// A container registered.
    Registered {
        /// Its place.
        slot: Slot,
        /// Which filling.
        incarnation: Incarnation,
        /// Its process.
        pid: u32,
        /// Its node.
        host: String,
    },
    /// A container is gone.
    Lost {
        /// Its place.
        slot: Slot,
        /// Which filling.
        incarnation: Incarnation,
        /// In words.
        cause: String,
    },
    /// A phase begins.
    PhaseBegun {
        /// Its ordinal.
        phase: PhaseNo,
        /// In words.
        text: String,
    },
    /// How far it is; now and then.
    Progress {
        /// In words: `pass 2 of 10`.
        text: String,
        /// Records so far.
        rows: u64,
        /// Records per second lately.
        rows_per_second: f64,
        /// Mean training loss of the present pass so far.
        training_loss: Option<f64>,
        /// Share of the phase that is done, 0 to 1; none while its length is not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        done: Option<f64>,
        /// Time to the end of the last pass at the present speed, ms; none while it is not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        left_ms: Option<u64>,
    },
    /// A pass is over.
    PassTrained(TrainingPassView),
    /// An evaluation is done.
    Evaluated(EvaluationView),
    /// A checkpoint exists.
    CheckpointCommitted(CheckpointView),
    /// A cut did not become a checkpoint; the job continues.
    CheckpointGivenUp {
        /// Its name.
        cut: CutId,
        /// Why.
        reason: String,
    },
    /// Trainers wait for the storage of their input, or (with `ended_ms`) do not any more.
    StorageWait(StorageWaitView),
    /// A checkpoint is damaged. It was set aside, and an older one is used: the work since then is done again.
    CheckpointDamaged {
        /// Its name.
        cut: CutId,
        /// Where it is now: its folder.
        dir: String,
        /// What is wrong with it.
        error: String,
    },
    /// A trainer's program asked for a save of the model, and gets it.
    SaveGranted {
        /// The number of the save.
        save: SaveNo,
        /// The trainer.
        slot: Slot,
    },
    /// A save of the model that a trainer's program asked for is published.
    ModelSaved {
        /// The number of the save.
        save: SaveNo,
        /// The checkpoint that it was made from.
        checkpoint: CutId,
        /// Its directory.
        dir: String,
    },
    /// `checkpoint.every = "auto"`: checkpoints are taken as often as this from now on.
    CheckpointPeriod(CheckpointPeriodView),
    /// All shards return to a checkpoint, under a new epoch.
    RollbackStarted {
        /// The new epoch.
        epoch: Epoch,
        /// The checkpoint; `None` without one: the shards have their initial values again.
        base: Option<CutId>,
        /// Number of shards.
        shards: u32,
        /// Why, in words.
        cause: String,
    },
    /// All shards have the state of the checkpoint.
    RollbackFinished {
        /// The epoch.
        epoch: Epoch,
        /// Time since the rollback started in milliseconds.
        took_ms: u64,
        /// Shards that returned to the snapshot in their pserver's memory.
        from_memory: u32,
        /// Shards that were loaded from storage.
        from_storage: u32,
    },
    /// A pserver with copies of shards is lost, and nothing returns to a checkpoint (`pservers.replicas`).
    FailedOver {
        /// The pserver.
        slot: Slot,
        /// Shards that a backup serves now.
        promoted: u32,
        /// Shards that lost a backup there.
        backups_lost: u32,
        /// Shards of the job that have fewer backups than wanted now.
        under_replicated: u32,
    },
    /// Shards have moved: a living pserver has handed them over to pservers that have a copy.
    #[serde(alias = "handed-over")]
    Moved {
        /// The pserver that has served them.
        slot: Slot,
        /// How many shards.
        shards: u32,
        /// The pservers that serve them now, ascending.
        #[serde(default)]
        to: Vec<Slot>,
        /// Why, in words.
        cause: String,
    },
    /// Trainers were without work for `trainers.idle-timeout` and leave until there is work.
    TrainersReleased {
        /// How many.
        trainers: u32,
        /// `trainers.idle-timeout`, ms.
        idle_ms: u64,
    },
    /// A recovery is over.
    Recovered(RecoveryView),
    /// Training ends before its last pass, because the test loss did not improve (`training.early-stop`).
    StoppedEarly {
        /// After which pass, and the losses that decided it.
        text: String,
    },
    /// Something unexpected that the job survives.
    Warning {
        /// What.
        text: String,
        /// Its kind.
        #[serde(default, skip_serializing_if = "WarningCode::is_unknown")]
        code: WarningCode,
    },
    /// The job is over; the last line.
    Ended {
        /// How.
        state: JobState,
        /// Exit code of the command line.
        exit_code: ExitCode,
        /// Fact, cause, next step; empty when all is well.
        message: String,
        /// Directory of the model, when published.
        model: Option<String>,
        /// The job as it stood.
        view: Box<JobView>,
    },
}

impl JobEvent {
    /// A warning of this kind.
    #[must_use]
    pub fn warning(code: WarningCode, text: impl Into<String>) -> Self {
        Self::Warning { text: text.into(), code }
    }

    /// Records the event, which happened at `at_ms` (milliseconds since 1970). `placement` is the container of the event's
    /// slot and incarnation, where there is one and it is known.
    pub fn record(
        &self,
        history: &mut History,
        at_ms: u64,
        placement: impl FnOnce(Slot, Incarnation) -> Option<Placement>,
    ) {
        match self {
            Self::Lost { slot, incarnation, cause } => history.add_ended(EndedView {
                slot: *slot,
                incarnation: *incarnation,
                at_ms,
                cause: cause.clone(),
                placement: placement(*slot, *incarnation),
            }),
            Self::CheckpointGivenUp { cut, reason } => {
                let aborted = AbortedCheckpointView { cut: *cut, at_ms, reason: reason.clone() };
                history.add_aborted(aborted);
            }
            Self::StorageWait(wait) => history.add_storage_wait(wait),
            Self::CheckpointDamaged { cut, dir, error } => {
                let (dir, error) = (dir.clone(), error.clone());
                history.add_damaged(DamagedCheckpointView { cut: *cut, at_ms, dir, error });
            }
            // Reports and pages list it with the warnings: it explains why passes are missing.
            Self::Warning { text, code } => {
                history.add_warning(WarningView { at_ms, text: text.clone(), code: *code });
            }
            Self::StoppedEarly { text } => {
                let code = WarningCode::TrainingStoppedEarly;
                history.add_warning(WarningView { at_ms, text: text.clone(), code });
            }
            Self::Progress { rows, .. } => {
                history.first_figures.get_or_insert(FirstFigures { rows: *rows, at_ms });
            }
            Self::Started { .. }
            | Self::Registered { .. }
            | Self::PhaseBegun { .. }
            | Self::PassTrained(_)
            | Self::Evaluated(_)
            | Self::CheckpointCommitted(_)
            | Self::CheckpointPeriod(_)
            | Self::SaveGranted { .. }
            | Self::ModelSaved { .. }
            | Self::RollbackStarted { .. }
            | Self::RollbackFinished { .. }
            | Self::FailedOver { .. }
            | Self::Moved { .. }
            | Self::TrainersReleased { .. }
            | Self::Recovered(_)
            | Self::Ended { .. } => {}
        }
    }
}
