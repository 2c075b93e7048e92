//! The manifest of a checkpoint: which files make up the model at one cut, and where the job
//! stood there. Pure: `heddle-storage` reads and writes the files.
//!
//! The manifest is written last and read first. It lists the other files, so [`Manifest::from_json`] returns only
//! manifests that pass each check that needs no other file.

mod compact;
mod md5;
mod progress;
mod sha256;
mod shard_file;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::ids::{CutId, Epoch, PhaseNo, RunId, ShardId, Step, TaskAttempt, TaskId};
use crate::job_spec::{JobSpec, job_phase, passes_begun};
use crate::table_statistics::TableStatistics;
use crate::view::EvaluationView;

pub use md5::{Md5, Md5Error};
pub use progress::{Progress, TrainingProgress};
pub use sha256::{Sha256, Sha256Error};
pub use shard_file::{COPIES_MAX, CutIdentity, ShardCopy, ShardFile};

/// The highest version of the manifest that this program reads. Each manifest has the lowest that has all of it, see
/// [`Manifest::version`]. Fields are only added within a version; unknown ones are ignored.
///
/// - 1: one object for each task of the plan and of the queue.
/// - 2: runs of tasks and ranges of done ones, see [`InputPlan::train`] and [`Work::Queue`].
/// - 3: [`Manifest::initial`].
/// - 4: packings of input files besides gzip, see [`Compression`].
pub const FORMAT_VERSION: u32 = 4;

/// The version of the manifest of a checkpoint with shard files: programs of version 2 read it.
pub const FORMAT_VERSION_WITH_FILES: u32 = 2;

/// The version of the manifest of a checkpoint of initial values.
pub const FORMAT_VERSION_INITIAL: u32 = 3;

/// Longest manifest that is written and read: a million tasks take about 40 MB, each input file its name and 80 bytes
/// more.
pub const MANIFEST_BYTES_MAX: usize = 256 << 20;

/// A training task outside the plan at the most: its steps, `"999999":18446744073709551615,`, and its place in the
/// queue, `{"task":999999,"step":18446744073709551615,"attempt":4294967295},`.
const TASK_BYTES: u64 = 110;
/// A shard's files at the most: the first one, and the list of [`COPIES_MAX`] copies.
const SHARD_BYTES: u64 = 1_600;
/// Everything else: spec, evaluations, figures.
const REST_BYTES: u64 = 4 << 20;

/// 128 random bits of one writing process: a writer recognises its own file by them after a lost reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Salt(pub Uuid);

impl fmt::Display for Salt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.simple().fmt(f)
    }
}

/// How a file's bytes are packed. A packed file cannot be entered in the middle, so it is one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
    /// Streams of bzip2.
    Bzip2,
    /// Blocks of Hadoop's `SnappyCodec`.
    Snappy,
}

/// One input file as it was when the job began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputFile {
    /// Where it is, as a URL that `heddle-storage` reads.
    pub url: String,
    /// Its length; another one later means that the input was changed under the job.
    pub bytes: u64,
    /// When it was last changed, milliseconds since 1970; see `bytes`.
    pub modified_ms: u64,
    /// How it is packed.
    #[serde(default)]
    pub compression: Compression,
}

/// A run of records of one file: those whose first byte is in `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRange {
    /// Index into [`InputPlan::files`].
    pub file: u32,
    /// First byte.
    pub start: u64,
    /// One beyond the last byte. In a packed file the length of that.
    pub end: u64,
}

/// Files and tasks of the job: made once when it begins, the same in all its attempts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputPlan {
    /// Training files, then test files, each sorted by URL.
    pub files: Vec<InputFile>,
    /// Tasks over the training data; a `TaskId` of a measurement or a pass is an index here. In JSON adjacent
    /// tasks are one run: file, first byte (0 when not there) and where each ends.
    #[serde(with = "compact::task_ranges")]
    pub train: Vec<TaskRange>,
    /// Tasks over the test data; a `TaskId` of an evaluation is an index here. In JSON as `train`.
    #[serde(with = "compact::task_ranges")]
    pub test: Vec<TaskRange>,
}

impl InputPlan {
    /// The tasks of a phase that reads the training data, or else of an evaluation.
    #[must_use]
    pub fn tasks(&self, training: bool) -> &[TaskRange] {
        if training { &self.train } else { &self.test }
    }

    /// Bytes of the training files.
    #[must_use]
    pub fn train_bytes(&self) -> u64 {
        self.train
            .iter()
            .fold(0, |sum: u64, task| sum.saturating_add(task.end.saturating_sub(task.start)))
    }

    /// Whether its tasks are in order and inside their files, and name each record once.
    ///
    /// # Errors
    /// [`ManifestError::Plan`].
    pub fn check(&self) -> Result<(), ManifestError> {
        for (set, tasks) in [("train", &self.train), ("test", &self.test)] {
            let mut before: Option<&TaskRange> = None;
            for (index, task) in tasks.iter().enumerate() {
                let wrong =
                    |what: String| Err(ManifestError::Plan(format!("{set} task {index} {what}")));
                let Some(file) = self.files.get(task.file as usize) else {
                    return wrong(format!("names file {} of {}", task.file, self.files.len()));
                };
                if task.start > task.end || task.end > file.bytes {
                    return wrong(format!(
                        "is bytes {}..{} of a file of {}",
                        task.start, task.end, file.bytes
                    ));
                }
                // In order, and next to each other within a file: no record twice, none left out.
                let follows = match before {
                    Some(before) if before.file == task.file => before.end == task.start,
                    _ => task.start == 0 && before.is_none_or(|before| before.file < task.file),
                };
                if !follows {
                    return wrong("does not follow the one before it".to_owned());
                }
                before = Some(task);
            }
        }
        Ok(())
    }
}

/// Progress of a task of a queue at the cut. A task that is not listed is at its first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuedTask {
    /// The task.
    pub task: TaskId,
    /// Its progress.
    #[serde(flatten)]
    pub state: TaskState,
}

/// Progress of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum TaskState {
    /// Every step of it is in the checkpoint.
    Done,
    /// Begun.
    Open {
        /// First step that is not known to be in the checkpoint; shards refuse the parts that they have.
        step: Step,
        /// How often it had been handed out.
        attempt: TaskAttempt,
    },
    /// Left out after repeated errors.
    SetAside,
}

/// Progress of the phase of the cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "compact::WorkJson", into = "compact::WorkJson")]
pub enum Work {
    /// BSP: number of job steps of the phase that every shard has applied.
    Lanes {
        /// Job steps applied.
        step: Step,
    },
    /// ASP and evaluation: the queue of the cut, ordered by task. In JSON ranges of those that are done, and a list of
    /// those that are begun.
    Queue {
        /// Tasks that are not at their beginning.
        tasks: Vec<QueuedTask>,
    },
}

/// A checkpoint: its files, and where the job stood when they were cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// See [`Manifest::version`].
    pub format_version: u32,
    /// The run.
    pub run: RunId,
    /// The job's name.
    pub job: String,
    /// The cut; also the name of the directory.
    pub cut: CutId,
    /// The epoch that it was cut in.
    pub epoch: Epoch,
    /// The checkpoint that this one continues: the one before it in the same lineage.
    pub parent: Option<CutId>,
    /// The process that committed it. Filled in by the commit.
    pub salt: Salt,
    /// When the manifest was written, milliseconds since 1970. For display; no order uses it.
    pub at_ms: u64,
    /// SHA-256 of the job's meaning, lower-case hexadecimal.
    pub spec_digest: String,
    /// The job as its attempt understood it.
    pub spec: serde_json::Value,
    /// Its input.
    pub plan: InputPlan,
    /// The cut was taken before the first step of a job without `model.init`: no shard has a file, and each makes its values
    /// again from the spec.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub initial: bool,
    /// One file per shard, ordered by shard, from 0 without a gap. Empty if it is `initial`.
    pub shards: Vec<ShardFile>,
    /// The phase of the cut.
    pub phase: PhaseNo,
    /// Where the phase stood.
    #[serde(flatten)]
    pub work: Work,
    /// Steps of training tasks, as far as known: a fact about the data.
    #[serde(default)]
    pub task_steps: BTreeMap<TaskId, u64>,
    /// Scores so far, oldest first.
    #[serde(default)]
    pub evaluations: Vec<EvaluationView>,
    /// `training.keep = "best"`: the checkpoint is the end of this pass, whose loss on the test data was lower than that of
    /// all before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_pass: Option<u32>,
    /// Counters for display.
    #[serde(default)]
    pub progress: Progress,
    /// Figures of the tables at the cut, for display. Programs before this field existed wrote none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<TableStatistics>,
}

/// Why a manifest is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// No JSON, or JSON of another shape.
    #[error("not a manifest")]
    Json(#[source] serde_json::Error),
    /// Longer than [`MANIFEST_BYTES_MAX`].
    #[error("{0} bytes are too long for a manifest (at most {MANIFEST_BYTES_MAX})")]
    TooLong(usize),
    /// Written by a later version.
    #[error(
        "format version {found} is newer than {FORMAT_VERSION}, the newest that this program reads"
    )]
    Newer {
        /// The version in the file.
        found: u32,
    },
    /// The list of shards is not 0, 1, 2, … once each.
    #[error("shard {expected} expected in the list of files, found {found}")]
    Shards {
        /// What had to come.
        expected: u32,
        /// What came.
        found: u32,
    },
    /// No shards at all.
    #[error("no shards listed")]
    NoShards,
    /// A checkpoint of initial values with files, or after the first step.
    #[error("initial values with shard files, or after the first step")]
    Initial,
    /// A file's name does not follow from its shard and uuid, so it may lie anywhere.
    #[error("shard {shard}: file name {file:?}, expected {expected:?}")]
    FileName {
        /// The shard.
        shard: ShardId,
        /// The value in the manifest.
        file: String,
        /// The value that it should have.
        expected: String,
    },
    /// The list of a shard's copies contradicts itself or the first copy.
    #[error("copies of shard {shard}: {what}")]
    Copies {
        /// The shard.
        shard: ShardId,
        /// What is wrong.
        what: String,
    },
    /// The input plan contradicts itself.
    #[error("input plan: {0}")]
    Plan(String),
    /// The queue names a task that is not, or names one twice.
    #[error("queue: task {0} is out of order or not in the input plan")]
    Queue(TaskId),
    /// Numbers of cut, epoch or parent contradict each other.
    #[error("cut {cut}: {what}")]
    Lineage {
        /// The cut.
        cut: CutId,
        /// What is wrong.
        what: &'static str,
    },
}

impl Manifest {
    /// The lowest version of a manifest of this plan: earlier programs continue from every checkpoint that they understand.
    #[must_use]
    pub fn version(initial: bool, plan: &InputPlan) -> u32 {
        let is_later =
            |file: &InputFile| !matches!(file.compression, Compression::None | Compression::Gzip);
        match initial {
            _ if plan.files.iter().any(is_later) => FORMAT_VERSION,
            true => FORMAT_VERSION_INITIAL,
            false => FORMAT_VERSION_WITH_FILES,
        }
    }

    /// Reads and checks a manifest.
    ///
    /// # Errors
    /// When the bytes are not a manifest, are one of a newer version, or contradict themselves.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ManifestError> {
        #[derive(Deserialize)]
        struct Version {
            format_version: u32,
        }
        if bytes.len() > MANIFEST_BYTES_MAX {
            return Err(ManifestError::TooLong(bytes.len()));
        }
        // Alone first: a later version may have another shape, and then the version is the message.
        let version: Version = serde_json::from_slice(bytes).map_err(ManifestError::Json)?;
        if version.format_version > FORMAT_VERSION {
            return Err(ManifestError::Newer { found: version.format_version });
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(ManifestError::Json)?;
        manifest.check()?;
        Ok(manifest)
    }

    /// The manifest as it is written: JSON without blanks, one line end at the end.
    ///
    /// # Errors
    /// When it contradicts itself or could not be read back for its length: such a one is never written.
    pub fn to_json(&self) -> Result<Vec<u8>, ManifestError> {
        self.check()?;
        let mut bytes = serde_json::to_vec(self).map_err(ManifestError::Json)?;
        bytes.push(b'\n');
        if bytes.len() > MANIFEST_BYTES_MAX {
            return Err(ManifestError::TooLong(bytes.len()));
        }
        Ok(bytes)
    }

    /// How long a manifest of a job can become at the most, whatever of its tasks is done.
    ///
    /// `plan_bytes`: length of the plan's JSON, `shards`: how many shards the job has.
    #[must_use]
    pub fn bytes_at_most(plan: &InputPlan, plan_bytes: u64, shards: u32) -> u64 {
        // The queue is of the training data, or of an evaluation.
        let tasks = plan.train.len().max(plan.test.len());
        plan_bytes
            .saturating_add(TASK_BYTES * tasks as u64)
            .saturating_add(SHARD_BYTES * u64::from(shards))
            .saturating_add(REST_BYTES)
    }

    /// What the header of each of its files names.
    #[must_use]
    pub fn identity(&self) -> CutIdentity {
        let shards = u32::try_from(self.shards.len()).unwrap_or(u32::MAX);
        CutIdentity { run: self.run, cut: self.cut, epoch: self.epoch, shards }
    }

    /// Bytes of all shards, each counted once.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shards.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }

    /// BSP: job steps of the phase applied; 0 where the work is a queue.
    #[must_use]
    pub fn step(&self) -> Step {
        match self.work {
            Work::Lanes { step } => step,
            Work::Queue { .. } => Step(0),
        }
    }

    /// Whether no work of its phase is done.
    #[must_use]
    pub fn is_at_start_of_phase(&self) -> bool {
        match &self.work {
            Work::Lanes { step } => step.0 == 0,
            Work::Queue { tasks } => tasks.is_empty(),
        }
    }

    /// Whether the checkpoint is before the first training step, so that nothing is lost without it.
    #[must_use]
    pub fn is_untrained(&self) -> bool {
        let Ok(spec) = serde_json::from_value::<JobSpec>(self.spec.clone()) else {
            return false;
        };
        job_phase(&spec, self.phase).is_some() && self.passes_begun(&spec) == 0
    }

    /// The passes that its job has begun.
    #[must_use]
    pub fn passes_begun(&self, spec: &JobSpec) -> u32 {
        passes_begun(spec, self.phase, self.is_at_start_of_phase())
    }

    fn check(&self) -> Result<(), ManifestError> {
        if self.shards.is_empty() && !self.initial {
            return Err(ManifestError::NoShards);
        }
        let is_first = self.shards.is_empty() && self.phase.0 == 0 && self.is_at_start_of_phase();
        if self.initial && !is_first {
            return Err(ManifestError::Initial);
        }
        for (expected, file) in (0..).zip(&self.shards) {
            if file.shard.0 != expected {
                return Err(ManifestError::Shards { expected, found: file.shard.0 });
            }
            let name = ShardFile::name(file.shard, file.uuid);
            if file.file != name {
                let (shard, file) = (file.shard, file.file.clone());
                return Err(ManifestError::FileName { shard, file, expected: name });
            }
            let shard = file.shard;
            file.check_copies().map_err(|what| ManifestError::Copies { shard, what })?;
        }
        self.plan.check()?;
        if let Work::Queue { tasks } = &self.work {
            let most = self.plan.train.len().max(self.plan.test.len());
            let mut least = 0;
            for queued in tasks {
                let index = queued.task.0 as usize;
                if index < least || index >= most {
                    return Err(ManifestError::Queue(queued.task));
                }
                least = index + 1;
            }
        }
        let wrong = |what| Err(ManifestError::Lineage { cut: self.cut, what });
        if self.cut.generation.0 == 0 || self.cut.number == 0 {
            return wrong("generations and cuts are counted from 1");
        }
        if self.parent.is_some_and(|parent| parent >= self.cut) {
            return wrong("its parent is not older");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Generation;
    use proptest::prelude::*;

    fn shard(id: u32) -> ShardFile {
        let uuid = Uuid::from_u128(u128::from(id) + 7);
        ShardFile {
            shard: ShardId(id),
            uuid,
            file: ShardFile::name(ShardId(id), uuid),
            md5: Md5([0xab; 16]),
            bytes: 100,
            at_ms: 5,
            sha256: None,
            copies: Vec::new(),
        }
    }

    fn manifest() -> Manifest {
        let task = |file, start, end| TaskRange { file, start, end };
        let file = |url: &str| InputFile {
            url: url.to_owned(),
            bytes: 100,
            modified_ms: 1,
            compression: Compression::None,
        };
        Manifest {
            format_version: FORMAT_VERSION_WITH_FILES,
            run: RunId(Uuid::from_u128(1)),
            job: "spam".to_owned(),
            cut: CutId { generation: Generation(2), number: 3 },
            epoch: Epoch::first(Generation(2)),
            parent: Some(CutId { generation: Generation(1), number: 9 }),
            salt: Salt(Uuid::from_u128(2)),
            at_ms: 1_700_000_000_000,
            spec_digest: "00".repeat(32),
            spec: serde_json::json!({"name": "spam"}),
            plan: InputPlan {
                files: vec![file("/a"), file("/b")],
                train: vec![task(0, 0, 60), task(0, 60, 100)],
                test: vec![task(1, 0, 100)],
            },
            initial: false,
            shards: vec![shard(0), shard(1)],
            phase: PhaseNo(4),
            work: Work::Queue {
                tasks: vec![
                    QueuedTask { task: TaskId(0), state: TaskState::Done },
                    QueuedTask {
                        task: TaskId(1),
                        state: TaskState::Open { step: Step(5), attempt: TaskAttempt(2) },
                    },
                ],
            },
            task_steps: BTreeMap::from([(TaskId(0), 12)]),
            evaluations: Vec::new(),
            best_pass: None,
            progress: Progress { rows: 10, ..Progress::default() },
            tables: Vec::new(),
        }
    }

    fn initial() -> Manifest {
        let work = Work::Queue { tasks: Vec::new() };
        Manifest {
            format_version: FORMAT_VERSION_INITIAL,
            initial: true,
            shards: Vec::new(),
            phase: PhaseNo(0),
            work,
            ..manifest()
        }
    }

    fn refused(change: impl FnOnce(&mut Manifest)) -> String {
        let mut wrong = manifest();
        change(&mut wrong);
        // Past the writer's own check, as another program's manifest would come.
        let bytes = serde_json::to_vec(&wrong).expect("JSON");
        assert!(wrong.to_json().is_err(), "the writer let it pass");
        Manifest::from_json(&bytes).expect_err("refused").to_string()
    }

    #[test]
    fn a_manifest_reads_back_as_written() {
        for work in [Work::Lanes { step: Step(9) }, manifest().work] {
            let manifest = Manifest { work, ..manifest() };
            let bytes = manifest.to_json().expect("written");
            assert_eq!(Manifest::from_json(&bytes).expect("read"), manifest);
        }
    }

    /// What refuses a job at its start relies on it: see `plan_file::check_size`.
    #[test]
    fn the_longest_tasks_and_shards_stay_within_the_estimate() {
        const COUNT: u32 = 1000;
        let length = |manifest: &Manifest| serde_json::to_vec(manifest).expect("JSON").len() as u64;
        let empty = Manifest {
            work: Work::Queue { tasks: Vec::new() },
            task_steps: BTreeMap::new(),
            shards: Vec::new(),
            ..manifest()
        };
        let ids = || (0..COUNT).map(|n| TaskId(999_999 - n));
        let with_tasks = Manifest {
            work: Work::Queue {
                tasks: ids()
                    .rev()
                    .map(|task| QueuedTask {
                        task,
                        state: TaskState::Open {
                            step: Step(u64::MAX),
                            attempt: TaskAttempt(u32::MAX),
                        },
                    })
                    .collect(),
            },
            task_steps: ids().map(|task| (task, u64::MAX)).collect(),
            ..empty.clone()
        };
        let tasks = length(&with_tasks) - length(&empty);
        assert!(tasks <= TASK_BYTES * u64::from(COUNT), "{tasks} bytes");
        let with_shards = Manifest {
            shards: (0..COUNT)
                .map(|n| {
                    let file =
                        ShardFile { bytes: u64::MAX, at_ms: u64::MAX, ..shard(u32::MAX - n) };
                    let holder = Some(crate::ids::Slot::pserver(u32::MAX));
                    let file = ShardFile { sha256: Some(Sha256([7; 32])), ..file };
                    let copies = (0..COPIES_MAX)
                        .map(|n| ShardCopy { uuid: Uuid::from_u128(n as u128), ..file.first() })
                        .map(|copy| ShardCopy { holder, ..copy })
                        .collect();
                    ShardFile { copies, ..file }
                })
                .collect(),
            ..empty.clone()
        };
        let shards = length(&with_shards) - length(&empty);
        assert!(shards <= SHARD_BYTES * u64::from(COUNT), "{shards} bytes");
    }

    #[test]
    fn earlier_versions_stay_readable() {
        let first = include_bytes!("../testdata/manifest-v1.json");
        let format_version = 1;
        assert_eq!(
            Manifest::from_json(first).expect("read"),
            Manifest { format_version, ..manifest() }
        );
        let sample = include_bytes!("../testdata/manifest-v2.json");
        assert_eq!(Manifest::from_json(sample).expect("read"), manifest());
        assert_eq!(manifest().to_json().expect("written"), sample, "the format changed");
        let sample = include_bytes!("../testdata/manifest-v3.json");
        assert_eq!(Manifest::from_json(sample).expect("read"), initial());
        assert_eq!(initial().to_json().expect("written"), sample, "the format changed");
    }

    #[test]
    fn packings_besides_gzip_raise_the_version() {
        let mut plan = manifest().plan;
        for (compression, versions) in [
            (Compression::None, [2, 3]),
            (Compression::Gzip, [2, 3]),
            (Compression::Zstd, [4, 4]),
            (Compression::Bzip2, [4, 4]),
            (Compression::Snappy, [4, 4]),
        ] {
            plan.files[0].compression = compression;
            assert_eq!([false, true].map(|initial| Manifest::version(initial, &plan)), versions);
        }
        let format_version = Manifest::version(false, &plan);
        let packed = Manifest { format_version, plan, ..manifest() };
        let json = packed.to_json().expect("written");
        assert!(json.windows(24).any(|part| part == br#""compression":"snappy"},"#), "its name");
        assert_eq!(Manifest::from_json(&json).expect("read"), packed);
    }

    /// Programs before copies existed read the first copy of each shard and ignore the list.
    #[test]
    fn copies_of_a_shard_are_a_list_beside_its_first_file() {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Before {
            shard: ShardId,
            uuid: Uuid,
            file: String,
            md5: Md5,
            bytes: u64,
            at_ms: u64,
        }
        let mut copied = manifest();
        for file in &mut copied.shards {
            *file = shard_file::tests::with_copies(file, 2);
        }
        let sample = include_bytes!("../testdata/manifest-copies.json");
        assert_eq!(copied.to_json().expect("written"), sample, "the format changed");
        assert_eq!(Manifest::from_json(sample).expect("read"), copied);
        let mut json: serde_json::Value = serde_json::from_slice(sample).expect("JSON");
        for (file, expected) in json["shards"].as_array_mut().expect("a list").iter_mut().zip(0..) {
            file.as_object_mut().expect("an object").remove("copies").expect("copies");
            let read: Before = serde_json::from_value(file.take()).expect("the earlier fields");
            let first = shard(expected);
            assert_eq!((read.shard, read.uuid, read.file), (first.shard, first.uuid, first.file));
            assert_eq!((read.md5, read.bytes, read.at_ms), (first.md5, first.bytes, first.at_ms));
        }
    }

    #[test]
    fn a_newer_version_of_any_shape_is_refused_naming_both() {
        let error =
            Manifest::from_json(br#"{"format_version": 7, "new": []}"#).expect_err("refused");
        assert_eq!(
            error.to_string(),
            "format version 7 is newer than 4, the newest that this program reads"
        );
    }

    #[test]
    fn contradictions_are_refused() {
        let twice = refused(|m| m.shards[1] = shard(0));
        assert_eq!(twice, "shard 1 expected in the list of files, found 0");
        assert_eq!(refused(|m| m.shards.clear()), "no shards listed");
        let wrong: [fn(&mut Manifest); 4] = [
            |m| m.shards = manifest().shards,
            |m| m.phase = PhaseNo(1),
            |m| m.work = Work::Lanes { step: Step(1) },
            |m| m.work = manifest().work,
        ];
        for change in wrong {
            let refused = refused(|m| {
                *m = initial();
                change(m);
            });
            assert_eq!(refused, "initial values with shard files, or after the first step");
        }
        assert!(
            refused(|m| m.shards[1].file = "../../etc/passwd".to_owned()).contains("file name")
        );
        assert!(refused(|m| m.plan.train[1].start = 59).contains("train task 1 does not follow"));
        assert!(refused(|m| m.plan.train[1].end = 101).contains("bytes 60..101 of a file of 100"));
        assert!(refused(|m| m.plan.test[0].file = 2).contains("test task 0 names file 2 of 2"));
        assert!(refused(|m| m.parent = Some(m.cut)).contains("its parent is not older"));
        assert!(refused(|m| m.cut.number = 0).contains("counted from 1"));
        let mut unordered = manifest();
        if let Work::Queue { tasks } = &mut unordered.work {
            tasks.reverse();
        }
        unordered.to_json().expect_err("ranges have an order, and so has the list");
        for tasks in [vec![0, 0], vec![2]] {
            let state = TaskState::Done;
            let tasks =
                tasks.iter().map(|task| QueuedTask { task: TaskId(*task), state }).collect();
            assert!(refused(|m| m.work = Work::Queue { tasks }).contains("queue: task"));
        }
    }

    #[test]
    fn sums_are_read_in_either_case() {
        let sum: Md5 = "D41D8CD98F00B204E9800998ECF8427E".parse().expect("a sum");
        assert_eq!(sum.to_string(), "d41d8cd98f00b204e9800998ecf8427e");
        assert!("d41d8cd98f00b204e9800998ecf8427".parse::<Md5>().is_err());
        assert!("z41d8cd98f00b204e9800998ecf8427e".parse::<Md5>().is_err());
    }

    proptest! {
        #[test]
        fn damaged_manifests_never_panic(at in 0usize..4000, byte: u8, cut in 0usize..4000) {
            let mut bytes = manifest().to_json().expect("written");
            let len = bytes.len();
            bytes[at % len] = byte;
            let _ = Manifest::from_json(&bytes);
            let _ = Manifest::from_json(&bytes[..cut % len]);
        }
    }
}
