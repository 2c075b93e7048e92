//! The kinds of warnings.

use serde::{Deserialize, Serialize};

/// Makes the enum and its names from one table.
macro_rules! warning_codes {
    ($($(#[$attribute:meta])+ $code:ident = $name:literal,)+) => {
        /// Which warning it is. Its name is the log event, the label of the metric `heddle_warnings_total`, a row of the table
        /// in `docs/operations.md`, and what a test expects.
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize,
        )]
        pub enum WarningCode {
            $($(#[$attribute])+ #[serde(rename = $name)] $code,)+
            /// Of an earlier version, which had no codes, or of a later one.
            #[default]
            #[serde(rename = "unknown", other)]
            Unknown,
        }

        impl WarningCode {
            /// All of this version.
            pub const ALL: &'static [Self] = &[$(Self::$code),+];

            /// The name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$code => $name,)+
                    Self::Unknown => "unknown",
                }
            }
        }
    };
}

warning_codes! {
    /// All shards return to the checkpoint, though `pservers.recovery` is `"local"`.
    AllShardsReturn = "all_shards_return",
    /// The job was finished before it was started again.
    AlreadyFinished = "already_finished",
    /// The ApplicationMaster was started again, as a follower of the job shows it.
    AmRestarted = "am_restarted",
    /// A backup does not keep up and is left out.
    BackupLags = "backup_lags",
    /// Shards have no host for a backup.
    BackupsMissing = "backups_missing",
    /// Records of the input are left out.
    BadRecords = "bad_records",
    /// No whole checkpoint has the best pass.
    BestPassLost = "best_pass_lost",
    /// The folder of checkpoints of an unfinished run is gone.
    CheckpointDirLost = "checkpoint_dir_lost",
    /// A checkpoint is saved, and its commit waits for the ResourceManager.
    CommitDelayed = "commit_delayed",
    /// The commit of a checkpoint failed and is tried again.
    CommitRetried = "commit_retried",
    /// A container sends nothing.
    ContainerSilent = "container_silent",
    /// Two copies of a shard are not equal.
    CopiesDiffer = "copies_differ",
    /// Copies of shards did not come back after a restart of the ApplicationMaster.
    CopiesLost = "copies_lost",
    /// A checkpoint has fewer copies than wanted.
    CopiesMissing = "copies_missing",
    /// A bad file of a checkpoint could not be replaced by a good copy.
    CopyNotReplaced = "copy_not_replaced",
    /// A bad file of a checkpoint was replaced by a good copy.
    CopyReplaced = "copy_replaced",
    /// A shard was restored from another copy of its file.
    CopyUsed = "copy_used",
    /// An evaluation had no records.
    EmptyEvaluation = "empty_evaluation",
    /// Events are not shown.
    EventsNotShown = "events_not_shown",
    /// A model could not be written or published and is tried again.
    ExportRetried = "export_retried",
    /// An extra trainer is started for a late task.
    ExtraTrainerStarted = "extra_trainer_started",
    /// An operator ordered a fault.
    FaultOrdered = "fault_ordered",
    /// The controller does not find the job: its grant could not be written.
    GrantNotWritten = "grant_not_written",
    /// A checkpoint of a mirror is damaged, and an older one is used.
    ImportDamaged = "import_damaged",
    /// The journal cannot be written at the moment, or can be again.
    JournalDelayed = "journal_delayed",
    /// A pserver cannot load its shards and tries again.
    LoadRetried = "load_retried",
    /// A container used more memory than it had, and is requested with more.
    MemoryRaised = "memory_raised",
    /// A mirror cannot be written at the moment, or can be again.
    MirrorDelayed = "mirror_delayed",
    /// Survivors have no room for the shards of a lost pserver.
    NoRoomForShards = "no_room_for_shards",
    /// A node is avoided, since containers do not start there.
    NodeAvoided = "node_avoided",
    /// A node leaves the cluster.
    NodeLeaves = "node_leaves",
    /// A node has two pservers.
    NodeShared = "node_shared",
    /// Old files of checkpoints could not be removed.
    OldFilesKept = "old_files_kept",
    /// `model.init` uses an older checkpoint.
    OlderInitUsed = "older_init_used",
    /// The input plan was removed while the job runs.
    PlanRemoved = "plan_removed",
    /// The cluster may take a pserver for another job.
    PserverPreempted = "pserver_preempted",
    /// Trainers cannot reach a pserver.
    PserverUnreachable = "pserver_unreachable",
    /// A backup takes nothing of a copy.
    RefillStalled = "refill_stalled",
    /// Rows are too wide for refills.
    RowsTooWide = "rows_too_wide",
    /// A save of the model is given up.
    SaveGivenUp = "save_given_up",
    /// Saving a checkpoint slows training.
    SaveSlowsTraining = "save_slows_training",
    /// A probe explains the silence of a pserver.
    SilenceExplained = "silence_explained",
    /// A slow trainer is replaced.
    SlowTrainerReplaced = "slow_trainer_replaced",
    /// The storage of checkpoints does not respond, or responds again.
    StorageDelayed = "storage_delayed",
    /// A task failed on a trainer and is tried again.
    TaskFailed = "task_failed",
    /// A task is set aside.
    TaskSetAside = "task_set_aside",
    /// Tokens of HDFS could not be fetched.
    TokensNotFetched = "tokens_not_fetched",
    /// A trainer does not stop work that is not needed, and is replaced.
    TrainerNotStopping = "trainer_not_stopping",
    /// A slow trainer gets fewer lanes.
    TrainerSlow = "trainer_slow",
    /// Training starts over.
    TrainingStartsOver = "training_starts_over",
    /// Training ended before its last pass.
    TrainingStoppedEarly = "training_stopped_early",
    /// Shards returned to a checkpoint without the others.
    UpdatesLost = "updates_lost",
    /// The model is worse than one without features.
    #[serde(alias = "worse-than-constant")]
    WorseThanConstant = "worse_than_constant",
}

impl WarningCode {
    /// Whether a program cannot select it.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        *self == Self::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str) -> WarningCode {
        serde_json::from_value(name.into()).expect("any name is read")
    }

    #[test]
    fn json_has_the_name_and_other_names_are_unknown() {
        for code in WarningCode::ALL {
            assert_eq!(serde_json::to_value(code).expect("it is JSON"), code.name());
            assert_eq!(read(code.name()), *code);
        }
        assert_eq!(read("of a later version"), WarningCode::Unknown);
        assert_eq!(read("worse-than-constant"), WarningCode::WorseThanConstant);
        assert!(WarningCode::ALL.is_sorted_by_key(|code| code.name()), "a table is read by name");
    }
}
