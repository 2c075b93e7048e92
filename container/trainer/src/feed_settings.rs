//! What the parser threads of a phase share.

use std::path::PathBuf;
use std::sync::Arc;

use heddle_input::{BadPolicy, ReadError, RecordFormat, StorageWaits};
use heddle_protocol::ids::{PhaseNo, TaskId};
use heddle_protocol::job_spec::{BadRecords, BatchFeatures};
use heddle_protocol::manifest::{InputFile, InputPlan, TaskRange};
use tokio::sync::OnceCell;

use crate::cache::TaskCache;
use crate::class_weights::ClassWeights;

/// Settings that the feeds of a phase share.
#[derive(Clone, Debug)]
pub struct FeedSettings {
    /// Files and tasks.
    pub plan: Arc<InputPlan>,
    /// Whether task numbers mean training data; else test data.
    pub training: bool,
    /// The phase; part of the names of files of malformed records.
    pub phase: PhaseNo,
    /// Format of records.
    pub format: RecordFormat,
    /// Whether steps need the distinct features of their batch.
    pub index_features: bool,
    /// Records of a step, at least 1.
    pub rows: usize,
    /// Features of a step at the most.
    pub batch_features: BatchFeatures,
    /// Bytes that the steps of a feed may take beyond two: of large batches fewer are read ahead.
    pub ahead_bytes: usize,
    /// Weights of classes.
    pub class_weights: ClassWeights,
    /// Policy for malformed records.
    pub bad_records: BadRecords,
    /// The first bad record of the data, shared by the feeds that read it. `None` where a task that cannot be read is set aside:
    /// its message names its own.
    pub first_bad: Option<Arc<OnceCell<String>>>,
    /// Folder for files of malformed records.
    pub quarantine: PathBuf,
    /// Records waits for the storage.
    pub waits: StorageWaits,
    /// Where records are kept for later passes.
    pub cache: Option<Arc<TaskCache>>,
    /// Whether columns of tables are measured.
    pub measures: bool,
}

impl FeedSettings {
    pub(crate) fn policy(&self, task: TaskId) -> BadPolicy {
        match self.bad_records {
            BadRecords::Fail => BadPolicy::Fail,
            BadRecords::Skip(allowed) => BadPolicy::Skip(allowed),
            BadRecords::Quarantine => {
                let name = format!("phase-{}-task-{task}.txt", self.phase);
                BadPolicy::Quarantine(self.quarantine.join(name))
            }
        }
    }

    /// The place of a task, in a file.
    pub(crate) fn place(&self, task: TaskId) -> Result<TaskPlace<'_>, ReadError> {
        // The ApplicationMaster names tasks of its own plan, which was checked when it was read.
        let missing = || ReadError::Url { url: format!("(no task {task} in the input plan)") };
        let plan = &self.plan;
        let range = *plan.tasks(self.training).get(task.0 as usize).ok_or_else(missing)?;
        let file = plan.files.get(range.file as usize).ok_or_else(missing)?;
        Ok(TaskPlace { range, file })
    }
}

/// Where a task's records are.
pub(crate) struct TaskPlace<'p> {
    pub(crate) file: &'p InputFile,
    pub(crate) range: TaskRange,
}
