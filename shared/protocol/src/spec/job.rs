//! The job spec itself: sections and keys as in the job file, each value of its own type.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::check::SpecError;
use super::location::Location;
use super::table::{Optimizer, TableKind, TableSpec};
use super::value::{Bytes, DurationMs, Every, Permissions, PortRange, Share};
use super::yarn::{SubmitSpec, YarnSpec};
use crate::ids::TableId;

/// A training job: what people write as a job file and all processes work from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct JobSpec {
    /// 1 to 64 letters, digits, `-`, `_` and `.`, starting with a letter or digit: it becomes part of
    /// folder names.
    pub name: String,
    /// What is read.
    pub data: DataSpec,
    /// What is trained.
    pub model: ModelSpec,
    /// How it is trained.
    pub training: TrainingSpec,
    /// The processes that hold the parameters.
    pub pservers: PserverSpec,
    /// The processes that read data and compute gradients.
    pub trainers: TrainerSpec,
    /// When and where the state is saved.
    pub checkpoint: CheckpointSpec,
    /// What comes out.
    pub output: OutputSpec,
    /// The ApplicationMaster's container.
    pub am: AmSpec,
    /// Where processes listen.
    pub network: NetworkSpec,
    /// Local runs.
    pub run: RunSpec,
    /// Submission to a cluster.
    #[serde(default)]
    pub submit: SubmitSpec,
    /// What YARN is asked for.
    #[serde(default)]
    pub yarn: YarnSpec,
}

/// `[data]`: what is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DataSpec {
    /// Files or globs of the training data, at least one.
    pub train: Vec<Location>,
    /// Files or globs of the test data; empty: no evaluation.
    pub test: Vec<Location>,
    /// How a record is written.
    pub format: DataFormat,
    /// The lowest index in the files: 0 or 1. (`auto` of the job file is resolved: libsvm 1, dummy 0.)
    pub index_base: u32,
    /// Times over the training data, 1 to [`PASSES_MAX`](super::check::PASSES_MAX).
    pub passes: u32,
    /// Bytes of a task.
    pub task_size: TaskSize,
    /// Whether tasks come in an order drawn from (seed, pass) rather than in that of the files.
    pub shuffle: bool,
    /// What to do with a record that cannot be read.
    pub bad_records: BadRecords,
}

/// How a record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataFormat {
    /// `label index:value index:value …`
    Libsvm,
    /// `label index index …`, every value being 1.
    Dummy,
}

/// How large a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskSize {
    /// So that a pass has at least 4 tasks per lane (BSP) or per `trainers.max`, each at most 32 MiB.
    Auto,
    /// About this many bytes, above 0.
    Bytes(Bytes),
}

/// What to do with a record that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BadRecords {
    /// The job fails and names file, line and column.
    Fail,
    /// Left out and counted; more than this many in a pass fail the job.
    Skip(u64),
    /// Left out, counted, and written with their positions to a file beside the logs.
    Quarantine,
}

/// `[model]`: what is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ModelSpec {
    /// Which built-in algorithm, or the user's own.
    pub algorithm: Algorithm,
    /// Number of features, 1 to [`ROWS_MAX`](super::check::ROWS_MAX) − 1. 0 for [`Algorithm::Custom`].
    pub features: u64,
    /// Strength of the objective's ½·l2·‖w‖², at least 0. The bias is free of it.
    pub l2: f64,
    /// Whether columns are brought to mean 0 and variance 1 first.
    pub standardise: bool,
    /// How pushed gradients change the parameters (of a custom algorithm: for tables that name none).
    pub optimizer: Optimizer,
    /// Tables of [`Algorithm::Custom`]; empty otherwise. Ask [`JobSpec::tables`] instead.
    pub tables: Vec<TableSpec>,
}

/// What computes the gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Binary classification with a bias; labels −1/+1 or 0/1.
    LogisticRegression,
    /// The program of `trainers.command`, on the tables of `[[model.table]]`.
    Custom,
}

/// `[training]`: how it is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TrainingSpec {
    /// Who waits for whom.
    pub consistency: Consistency,
    /// BSP: the number of logical workers, whatever the trainers; 1 to [`SLOTS_MAX`](super::check::SLOTS_MAX).
    pub lanes: u32,
    /// Rows of a minibatch, of each lane in BSP; 1 to [`BATCH_MAX`](super::check::BATCH_MAX).
    pub batch: u32,
    /// Of everything that is drawn by lot.
    pub seed: u64,
    /// What a shard does with a gradient that holds a NaN or an infinity.
    pub nan: NanPolicy,
    /// End after so many passes without a better log-loss on the test data; 0: never.
    pub early_stop: u32,
}

impl TrainingSpec {
    /// Rows whose mean gradient makes one update: lanes × batch in BSP, batch otherwise.
    #[must_use]
    pub fn effective_batch(&self) -> u64 {
        match self.consistency {
            Consistency::Bsp => u64::from(self.lanes) * u64::from(self.batch),
            Consistency::Asp => u64::from(self.batch),
        }
    }
}

/// Who waits for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Consistency {
    /// Bulk-synchronous: all lanes compute a step from the same values. Repeatable to the byte.
    Bsp,
    /// Asynchronous: nobody waits.
    Asp,
}

/// What a shard does with a gradient that holds a NaN or an infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NanPolicy {
    /// The job fails and names the task and step.
    Fail,
    /// The push is refused and counted; training goes on.
    Skip,
}

/// `[pservers]`: the processes that hold the parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PserverSpec {
    /// How many, 1 to [`SLOTS_MAX`](super::check::SLOTS_MAX).
    pub count: u32,
    /// Of each.
    pub memory: Bytes,
    /// Of each: its data threads, 1 to [`VCORES_MAX`](super::check::VCORES_MAX).
    pub vcores: u32,
    /// Slices of the model, from count × vcores to [`SHARDS_MAX`](super::check::SHARDS_MAX); fixed for the job.
    pub shards: u32,
}

/// `[trainers]`: the processes that read data and compute gradients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TrainerSpec {
    /// Training starts when so many run, at least 1.
    pub min: u32,
    /// Never more than this, at least `min`, at most [`SLOTS_MAX`](super::check::SLOTS_MAX).
    pub max: u32,
    /// Of each.
    pub memory: Bytes,
    /// Of each, 1 to [`VCORES_MAX`](super::check::VCORES_MAX).
    pub vcores: u32,
    /// Other resources of YARN, of each, by name, such as `yarn.io/gpu`; in the unit that the cluster counts in.
    #[serde(default)]
    pub resources: BTreeMap<String, u64>,
    /// A program and its arguments instead of the built-in trainer; empty: the built-in one.
    pub command: Vec<String>,
}

/// `[checkpoint]`: when and where the state is saved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CheckpointSpec {
    /// The folder of all checkpoints of the job.
    pub dir: Location,
    /// How often, besides the one before the first step and the one at the end.
    pub every: Every,
    /// How many complete ones stay, at least 2.
    pub keep: u32,
    /// One that takes longer is given up; training goes on.
    pub timeout: DurationMs,
    /// What a damaged checkpoint leads to.
    pub on_corrupt: OnCorrupt,
    /// Of a pserver's memory, how much the copies of a snapshot may take.
    pub memory: Share,
    /// Bytes a second that saving may write, all pservers together; nothing: no limit.
    #[serde(default)]
    pub bandwidth: Option<Bytes>,
}

/// What a checkpoint that is proven damaged leads to. (One that cannot be read just now never leads
/// to an older one.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnCorrupt {
    /// The next older complete checkpoint, loudly.
    Previous,
    /// The job fails with exit code 8.
    Fail,
}

/// `[output]`: what comes out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct OutputSpec {
    /// The folder of the model.
    pub model: Location,
    /// At least one, each at most once.
    pub formats: Vec<ModelFormat>,
    /// Of the model's files; nothing: what the umask leaves (on HDFS: `fs.permissions.umask-mode`).
    #[serde(default)]
    pub permissions: Option<Permissions>,
}

/// A format in which a model is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelFormat {
    /// One safetensors file with all tables.
    Safetensors,
    /// Lines of index and weight, for linear models.
    Text,
}

/// `[am]`: the ApplicationMaster's container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct AmSpec {
    /// Its memory.
    pub memory: Bytes,
    /// Its vcores, 1 to [`VCORES_MAX`](super::check::VCORES_MAX).
    pub vcores: u32,
}

/// `[network]`: where processes listen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NetworkSpec {
    /// The ports they may take; nothing: any free one.
    pub ports: Option<PortRange>,
}

/// `[run]`: local runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunSpec {
    /// The folder of run directories; nothing: under the user's state directory.
    pub work_dir: Option<PathBuf>,
    /// A container that hears of no ApplicationMaster for so long stops; nothing: `auto`.
    pub orphan_timeout: Option<DurationMs>,
}

impl RunSpec {
    /// The orphan time that holds; `auto` is 120 s where no attempt keeps containers of another.
    #[must_use]
    pub fn orphan_timeout(&self) -> DurationMs {
        self.orphan_timeout.unwrap_or(DurationMs::secs(120))
    }
}

impl JobSpec {
    /// Reads the JSON that [`JobSpec::to_json`] made, checking all rules again.
    ///
    /// # Errors
    /// The bytes are no spec, or one that breaks a rule.
    pub fn from_json(bytes: &[u8]) -> Result<Self, SpecError> {
        let spec: Self =
            serde_json::from_slice(bytes).map_err(|error| SpecError::Json(error.to_string()))?;
        spec.check()?;
        Ok(spec)
    }

    /// The spec as processes hand it on.
    ///
    /// # Panics
    /// Never: every value has a JSON form.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("numbers, strings and lists always serialise")
    }
}

/// A custom table as [`ModelSpec::tables`] holds it.
#[must_use]
pub fn dense_table(id: u16, name: &str, rows: u64, cols: u32, optimizer: Optimizer) -> TableSpec {
    TableSpec {
        id: TableId(id),
        name: name.to_owned(),
        rows,
        cols,
        kind: TableKind::Dense,
        optimizer,
        l2: 0.0,
    }
}

/// A small valid spec for tests of any crate: logistic regression of 10 features by SGD at rate 1,
/// BSP with 2 lanes, 2 pservers of 2 shards each, 2 trainers. Its paths do not exist.
///
/// # Panics
/// Never.
#[must_use]
pub fn sample() -> JobSpec {
    let at = |path: &str| path.parse().expect("an absolute path is a location");
    JobSpec {
        name: "sample".to_owned(),
        data: DataSpec {
            train: vec![at("/data/train.libsvm")],
            test: Vec::new(),
            format: DataFormat::Libsvm,
            index_base: 1,
            passes: 1,
            task_size: TaskSize::Auto,
            shuffle: true,
            bad_records: BadRecords::Fail,
        },
        model: ModelSpec {
            algorithm: Algorithm::LogisticRegression,
            features: 10,
            l2: 0.0,
            standardise: false,
            optimizer: Optimizer::Sgd { rate: 1.0 },
            tables: Vec::new(),
        },
        training: TrainingSpec {
            consistency: Consistency::Bsp,
            lanes: 2,
            batch: 8,
            seed: 42,
            nan: NanPolicy::Fail,
            early_stop: 0,
        },
        pservers: PserverSpec { count: 2, memory: Bytes::mib(256), vcores: 1, shards: 4 },
        trainers: TrainerSpec {
            min: 1,
            max: 2,
            memory: Bytes::mib(256),
            vcores: 1,
            resources: BTreeMap::new(),
            command: Vec::new(),
        },
        checkpoint: CheckpointSpec {
            dir: at("/out/checkpoints"),
            every: Every::Passes(1),
            keep: 3,
            timeout: DurationMs::secs(300),
            on_corrupt: OnCorrupt::Previous,
            memory: Share::Percent(25),
            bandwidth: None,
        },
        output: OutputSpec {
            model: at("/out/model"),
            formats: vec![ModelFormat::Safetensors],
            permissions: None,
        },
        am: AmSpec { memory: Bytes::mib(256), vcores: 1 },
        network: NetworkSpec { ports: None },
        run: RunSpec { work_dir: None, orphan_timeout: None },
        submit: SubmitSpec::default(),
        yarn: YarnSpec::default(),
    }
}
