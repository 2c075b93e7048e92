//! The job spec itself: its sections, its tables and its JSON form.

use std::collections::BTreeSet;

use heddle_optimizer::{Initialiser, Optimizer, Schedule};
use serde::{Deserialize, Serialize};

use super::algorithm::AlgorithmKind;
use super::batch_features::BatchFeatures;
use super::columns::{Schema, default_null};
use super::limits::{CACHE_ON_DISK, task_errors};
use super::location::Location;
use super::options::{
    BadRecords, CheckpointDigest, Consistency, DataCache, DataFormat, Elasticity, JobKind,
    KeptPass, LabelScaling, ModelFormat, NanPolicy, NetworkProtection, OnCorrupt, RecoveryScope,
    TableFull, TaskSize,
};
use super::sections::{
    AmSpec, CheckpointSpec, ControllerSpec, DataSpec, LivenessSpec, ModelSpec, NetworkSpec,
    OutputSpec, PserverSpec, RunSpec, TrainerSpec, TrainingSpec,
};
use super::table::{
    BIAS, CANDIDATE_COUNTS, CANDIDATES, CENTRES, COLUMN_STATS, FACTORS, LABEL, PREVIOUS_CENTRES,
    STATS, TableKind, TableSpec, WEIGHTS, dense_table,
};
use super::value::{Bytes, DurationMs, Every, Share, TaskShare};
use super::yarn::{SubmitSpec, YarnSpec};

/// Standard deviation of a factorization machine's factors at the beginning.
const FACTOR_SD: f64 = 0.05;

/// A job: the job file as all processes use it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct JobSpec {
    /// 1 to 64 letters, digits, `-`, `_` and `.`, starting with a letter or digit: it becomes part of
    /// folder names.
    pub name: String,
    /// What the job is for. The default is left out, so that a job file's identity stays the same.
    #[serde(default, skip_serializing_if = "super::table::is_default")]
    pub kind: JobKind,
    /// Input data.
    pub data: DataSpec,
    /// The model.
    pub model: ModelSpec,
    /// The training method.
    pub training: TrainingSpec,
    /// The processes that hold the parameters.
    pub pservers: PserverSpec,
    /// The processes that read data and compute gradients.
    pub trainers: TrainerSpec,
    /// Checkpoints.
    pub checkpoint: CheckpointSpec,
    /// The output.
    pub output: OutputSpec,
    /// The ApplicationMaster's container.
    pub am: AmSpec,
    /// Where processes listen.
    pub network: NetworkSpec,
    /// The failure detector.
    #[serde(default)]
    pub liveness: LivenessSpec,
    /// Local runs.
    pub run: RunSpec,
    /// The controller of elastic jobs.
    #[serde(default, skip_serializing_if = "super::table::is_default")]
    pub controller: ControllerSpec,
    /// Submission to a cluster.
    #[serde(default)]
    pub submit: SubmitSpec,
    /// Requests to YARN.
    #[serde(default)]
    pub yarn: YarnSpec,
    /// The keys whose values are the site's defaults (`section.key`). Such values are not part of the job.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub site_keys: BTreeSet<String>,
    /// The keys that are `"auto"` (`section.key`) until the data decides them; their fields hold placeholders. Empty in a job that runs.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub undecided: BTreeSet<String>,
    /// Tables as input: the columns that are read, found in the first file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Schema>,
    /// Features after which a minibatch is closed: of the memory that trainers had when the run began.
    #[serde(default, skip_serializing_if = "super::table::is_default")]
    pub batch_features: BatchFeatures,
    /// BSP: whether a lane has the same tasks in each pass. Runs that began before this was so: `false`.
    #[serde(default, skip_serializing_if = "super::table::is_default")]
    pub lanes_keep_tasks: bool,
}

impl JobSpec {
    /// Bytes of the records that a trainer keeps for later passes; 0 without a cache.
    #[must_use]
    pub fn cache_bytes(&self) -> u64 {
        let stated = self.data.cache_size.map(|size| size.0);
        match self.data.cache {
            DataCache::Off => 0,
            DataCache::Memory => stated.unwrap_or(self.trainers.memory.0 / 2),
            DataCache::Disk => stated.unwrap_or(CACHE_ON_DISK.0),
        }
    }

    /// The memory of a trainer without the records that it keeps there.
    #[must_use]
    pub fn working_memory(&self) -> Bytes {
        let kept = if self.data.cache == DataCache::Memory { self.cache_bytes() } else { 0 };
        Bytes(self.trainers.memory.0.saturating_sub(kept))
    }

    /// The JSON form, as processes pass it on.
    ///
    /// # Panics
    /// Never: every value has a JSON form.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("numbers, strings and lists always serialise")
    }

    /// The folder of the controller that sizes the job, if one does.
    #[must_use]
    pub fn sized_by(&self) -> Option<&Location> {
        let is_sized = self.run.elastic == Elasticity::Controller;
        self.controller.dir.as_ref().filter(|_| is_sized)
    }

    /// Rows whose gradient makes one update: lanes × batch in BSP, batch otherwise; `None` while the batch is not decided.
    #[must_use]
    pub fn effective_batch(&self) -> Option<u64> {
        let rows = u64::from(self.training.batch);
        let rows = match self.training.consistency {
            Consistency::Bsp => u64::from(self.training.lanes) * rows,
            Consistency::Ssp | Consistency::Asp => rows,
        };
        (!self.undecided.contains("training.batch")).then_some(rows)
    }

    /// Number of shards; 0 without pservers.
    #[must_use]
    pub fn shards(&self) -> u32 {
        if self.pservers.count == 0 { 0 } else { self.pservers.shards }
    }

    /// The tables of the job in the order of their ids; empty without pservers.
    ///
    /// The linear family has `weights` [features × 1], `bias` [1 × 1] (free of l2) and, if it
    /// standardises, `stats` [(features + 1) × 3] whose pushes are added up, and `label` [1 × 3] if labels are scaled. Softmax regression has a column for each
    /// class in the first two. Tables of features are sparse if the features are any u64. A factorization machine has `factors` [features × rank] beside. A custom algorithm has the tables its job file lists.
    #[must_use]
    pub fn tables(&self) -> Vec<TableSpec> {
        let model = &self.model;
        match model.algorithm {
            _ if self.pservers.count == 0 => Vec::new(),
            AlgorithmKind::Custom => model.tables.clone(),
            AlgorithmKind::Kmeans => cluster_tables(model),
            AlgorithmKind::LogisticRegression
            | AlgorithmKind::LinearRegression
            | AlgorithmKind::Svm
            | AlgorithmKind::SoftmaxRegression
            | AlgorithmKind::FactorizationMachine => {
                let cols = model.classes.max(1);
                let trained = |id, name: &str, rows, l2| TableSpec {
                    l2,
                    schedule: model.schedule,
                    ..dense_table(id, name, rows, cols, model.optimizer)
                };
                let by_feature = |id, name| match model.any_features() {
                    false => trained(id, name, model.features, model.l2),
                    true => {
                        let table = trained(id, name, 0, model.l2);
                        TableSpec { kind: TableKind::Sparse, ..table }
                    }
                };
                let mut tables = vec![by_feature(0, WEIGHTS), trained(1, BIAS, 1, 0.0)];
                if model.algorithm == AlgorithmKind::FactorizationMachine {
                    // Factors of zero have no gradients: each is the sum of the others' products.
                    let init = Initialiser::Normal(0.0, FACTOR_SD);
                    let table = by_feature(tables.len() as u16, FACTORS);
                    tables.push(TableSpec { cols: model.rank, init, ..table });
                }
                if model.standardise {
                    let id = tables.len() as u16;
                    tables.push(dense_table(id, STATS, model.features + 1, 3, Optimizer::add()));
                }
                if model.scale_labels == LabelScaling::Measured {
                    tables.push(dense_table(tables.len() as u16, LABEL, 1, 3, Optimizer::add()));
                }
                let measured = self.measured_columns();
                if measured > 0 {
                    let id = tables.len() as u16;
                    tables.push(dense_table(id, COLUMN_STATS, measured + 1, 3, Optimizer::add()));
                }
                tables
            }
        }
    }

    /// The number of columns whose mean and deviation are measured before training.
    #[must_use]
    pub fn measured_columns(&self) -> u64 {
        self.schema.as_ref().map_or(0, |schema| schema.measured().count() as u64)
    }

    /// Whether values are scaled by what is measured before training.
    #[must_use]
    pub fn is_scaled(&self) -> bool {
        self.model.standardise || self.measured_columns() > 0
    }

    /// The memory to request for a container whose process may use `memory`: `yarn.memory-overhead` on top. YARN counts
    /// all processes of a container and their pages.
    #[must_use]
    pub fn container_memory(&self, memory: Bytes) -> Bytes {
        Bytes(memory.0.saturating_add(self.yarn.memory_overhead.of(memory).0))
    }
}

/// The tables of k-means. Coordinates of a standardised job are standardised.
fn cluster_tables(model: &ModelSpec) -> Vec<TableSpec> {
    let clusters = u64::from(model.clusters);
    let candidates = model.candidates();
    // One column beside the coordinates.
    let cols = model.features as u32 + 1;
    let no_draw = Initialiser::Constant(f64::from(f32::MAX));
    vec![
        dense_table(0, CENTRES, clusters, cols, Optimizer::mean()),
        dense_table(1, PREVIOUS_CENTRES, 2 * clusters, cols, Optimizer::least()),
        dense_table(2, STATS, model.features + 1, 3, Optimizer::add()),
        TableSpec {
            init: no_draw,
            ..dense_table(3, CANDIDATES, candidates, cols, Optimizer::least())
        },
        dense_table(4, CANDIDATE_COUNTS, candidates, 1, Optimizer::add()),
    ]
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
        kind: JobKind::Train,
        data: DataSpec {
            train: vec![at("/data/train.libsvm")],
            test: Vec::new(),
            format: DataFormat::Libsvm,
            index_base: 1,
            label: String::new(),
            weight: String::new(),
            id: Vec::new(),
            header: Default::default(),
            delimiter: None,
            null: default_null(),
            columns: Vec::new(),
            cross: Vec::new(),
            passes: 1,
            task_size: TaskSize::Auto,
            cache: DataCache::Off,
            cache_size: None,
            shuffle: true,
            class_weights: Vec::new(),
            bad_records: BadRecords::Fail,
            task_errors: task_errors(),
            failed_share: TaskShare(0),
        },
        model: sample_model(),
        training: TrainingSpec {
            consistency: Consistency::Bsp,
            staleness: None,
            lanes: 2,
            batch: 8,
            seed: 42,
            nan: NanPolicy::Fail,
            early_stop: 0,
            keep: KeptPass::Last,
        },
        pservers: sample_pservers(),
        trainers: sample_trainers(),
        checkpoint: CheckpointSpec {
            dir: at("/out/checkpoints"),
            mirrors: Vec::new(),
            every: Every::Passes(1),
            keep: 3,
            copies: 1,
            timeout: DurationMs::secs(300),
            last_save: DurationMs::secs(30),
            on_corrupt: OnCorrupt::Previous,
            digest: CheckpointDigest::Md5,
            memory: Share::Percent(25),
            bandwidth: None,
        },
        output: sample_output(at("/out/model")),
        am: AmSpec { memory: Bytes::mib(256), vcores: 1 },
        network: NetworkSpec { ports: None, protection: NetworkProtection::Auto },
        liveness: LivenessSpec::default(),
        run: RunSpec::default(),
        controller: ControllerSpec::default(),
        submit: SubmitSpec::default(),
        yarn: YarnSpec::default(),
        site_keys: BTreeSet::new(),
        undecided: BTreeSet::new(),
        schema: None,
        batch_features: BatchFeatures::default(),
        lanes_keep_tasks: false,
    }
}

fn sample_pservers() -> PserverSpec {
    PserverSpec {
        count: 2,
        min: None,
        max: None,
        memory: Bytes::mib(256),
        vcores: 1,
        shards: 4,
        replicas: 0,
        replacement: DurationMs::secs(30),
        recovery: RecoveryScope::Global,
        spares: 0,
    }
}

fn sample_trainers() -> TrainerSpec {
    TrainerSpec {
        min: 1,
        max: 2,
        spares: 0,
        extra: 0,
        idle_timeout: DurationMs::secs(60),
        memory: Bytes::mib(256),
        vcores: 1,
        resources: std::collections::BTreeMap::new(),
        command: Vec::new(),
    }
}

/// The output of [`sample`].
fn sample_output(model: Location) -> OutputSpec {
    OutputSpec {
        model,
        formats: vec![ModelFormat::Safetensors],
        permissions: None,
        save_lease: DurationMs::secs(60),
    }
}

/// The model of [`sample`].
fn sample_model() -> ModelSpec {
    ModelSpec {
        algorithm: AlgorithmKind::LogisticRegression,
        loss: None,
        classes: 0,
        rank: 0,
        clusters: 0,
        init_rounds: 0,
        tolerance: 0.0,
        features: 10,
        table_full: TableFull::Fail,
        l2: 0.0,
        standardise: false,
        scale_labels: LabelScaling::Off,
        optimizer: Optimizer::sgd(1.0),
        schedule: Schedule::CONSTANT,
        init: None,
        tables: Vec::new(),
    }
}
