//! The sections of the job file about the job itself: each a table of its keys.

use std::collections::BTreeMap;

use heddle_optimizer::{Optimizer, Schedule};

use super::algorithm::{ALGORITHMS, AlgorithmKind, LossFunction};
pub use super::data_section::DataSpec;
use super::file::key::{Fallback, Key, ResumeRule};
use super::file::section::section;
use super::file::{parameters, paths, scalar, values};
use super::limits::{
    BATCH_MAX, CHECKPOINTS_MAX, COLS_MAX, COPIES_MAX, PASSES_MAX, REPLICAS_MAX, SEED_MAX,
    SHARDS_MAX, SLOTS_MAX, VCORES_MAX,
};
use super::location::Location;
use super::options::{
    CHECKPOINT_DIGESTS, CONSISTENCIES, CheckpointDigest, Consistency, KEPT_PASSES, KeptPass,
    LabelScaling, ModelFormat, NAN_POLICIES, NanPolicy, ON_CORRUPT, OnCorrupt, RECOVERY_SCOPES,
    RecoveryScope, TABLE_FULL, TableFull,
};
pub use super::process_sections::{AmSpec, ControllerSpec, LivenessSpec, NetworkSpec, RunSpec};
use super::table::TableSpec;
use super::value::{Bytes, DurationMs, Every, Permissions, Share};

/// The key at the top of the job file.
pub(super) const NAME: Key = Key {
    path: "name",
    doc: "Name of the job: letters, digits, \"-\", \"_\" and \".\". Becomes part of folder names.",
    fallback: Fallback::Required("\"ctr\""),
    resume: ResumeRule::Never,
    by_site: false,
};

/// The key after it.
pub(super) const KIND: Key = Key {
    path: "kind",
    doc: "What the job is for: \"train\", to train a model.",
    fallback: Fallback::Value("\"train\""),
    resume: ResumeRule::Never,
    by_site: false,
};

section! {
    (take, key)
    pub struct ModelSpec = ["model"] "What is trained." {
        /// "logistic-regression" and "svm" (labels -1/+1 or 0/1), "linear-regression" (labels are
        /// numbers), "softmax-regression" (labels 0 to classes - 1), "factorization-machine"
        /// (labels by its loss), all with a bias, "kmeans" (labels are not used), or "custom" (the
        /// program of trainers.command on the tables of [[model.table]]).
        key algorithm: AlgorithmKind = "model.algorithm",
            Value("\"logistic-regression\""), Never, read(take.choice(key, ALGORITHMS, &[]));
        /// What "svm" minimises: "hinge" ("auto") or "squared-hinge"; what "factorization-machine"
        /// minimises: "logistic" ("auto"; labels -1/+1 or 0/1) or "squared" (labels are numbers).
        #[note = "`None`: the default of the algorithm. Ask [`ModelSpec::objective`] instead."]
        #[serde(default, skip_serializing_if = "super::table::is_default")]
        key loss: Option<LossFunction> = "model.loss",
            Value("\"auto\""), Never, read(take.with(key, values::loss));
        /// Number of classes of "softmax-regression", which needs it, at least 2.
        #[note = "0 for algorithms without classes of their own."]
        #[serde(default, skip_serializing_if = "super::table::is_default")]
        key classes: u32 = "model.classes", Value("0"), Never, range(0, COLS_MAX);
        /// Factors of each feature in a "factorization-machine", which needs it, at least 1.
        #[note = "0 for algorithms without factors."]
        #[serde(default, skip_serializing_if = "super::table::is_default")]
        key rank: u32 = "model.rank", Value("0"), Never, range(0, COLS_MAX);
        /// Number of clusters of "kmeans", which needs it, at least 1 and at most the number of
        /// records.
        #[note = "0 for algorithms without clusters."]
        #[serde(default, skip_serializing_if = "super::table::is_default")]
        key clusters: u32 = "model.clusters", Value("0"), Never, range(0, COLS_MAX);
        /// Rounds in which "kmeans" draws candidates for its first centres, 1 to 100, each a pass
        /// over the training data; 5 unless given.
        #[note = "0 for algorithms without clusters."]
        #[serde(default, skip_serializing_if = "super::table::is_default")]
        key init_rounds: u32 = "model.init-rounds",
            Absent("5"), Never, read(values::init_rounds(take, key, algorithm));
        /// "kmeans" ends when the squared movement of its centres in a pass is below this share of
        /// the data's variance; 1e-4 unless given, 0: never.
        #[note = "0 for algorithms without clusters."]
        #[serde(default, skip_serializing_if = "super::table::is_default")]
        key tolerance: f64 = "model.tolerance",
            Absent("1e-4"), Never, read(values::tolerance(take, key, algorithm));
        /// Number of features; an index above it is a bad record. Or "any": indices are any u64,
        /// and a feature takes memory from its first occurrence on. Needed unless the algorithm is
        /// "custom".
        #[note = "1 to [`ROWS_MAX`](super::limits::ROWS_MAX) − 1; 0 for"]
        #[note = "[`AlgorithmKind::Custom`]. [`ANY_FEATURES`](super::limits::ANY_FEATURES) for"]
        #[note = "any u64."]
        key features: u64 = "model.features",
            Absent("1000000"), Never, read(values::features(take, key, algorithm));
        // A job that failed for a full table may go on without the rows that found no room.
        /// A row of a sparse table that finds no room in pservers.memory: "fail", or "drop" its
        /// gradients and count them.
        #[serde(default, skip_serializing_if = "super::table::is_default")]
        key table_full: TableFull = "model.table-full",
            Value("\"fail\""), OnResume, read(take.choice(key, TABLE_FULL, &[]));
        /// Strength of the objective's l2 term; the bias is free of it. "auto": 1 / the number of
        /// records where model.standardise is on, else 0.
        #[note = "Strength of the objective's ½·l2·‖w‖², at least 0."]
        key l2: f64 = "model.l2",
            Value("\"auto\""), Never, read(take.or_auto(key, 0.0, scalar::at_least_0));
        /// Scale each column to mean 0 and variance 1 first. This takes two more passes over the
        /// training data. "auto": if model.features is a number of at most 4096 and, in the first
        /// 256 KiB of the training data, at least a tenth of the cells are present and some value
        /// is neither 0 nor 1; with model.init as in that job.
        key standardise: bool = "model.standardise",
            Value("\"auto\""), Never, read(take.or_auto(key, false, scalar::boolean));
        /// "auto": "linear-regression" and "factorization-machine" with squared loss scale the
        /// labels to mean 0 and deviation 1, measured with the columns where model.standardise is
        /// on, else by the first 256 KiB of the training data; with model.init as in that job.
        /// Figures, predictions and models are in units of the data. false: labels as they are.
        #[note = "Of squared losses alone."]
        #[serde(default, skip_serializing_if = "super::table::is_default")]
        key scale_labels: LabelScaling = "model.scale-labels",
            Value("\"auto\""), Never,
            read(take.or_auto(key, LabelScaling::Off, values::no_scaling));
        /// { kind = …, its parameters, gradient = "sum" or "mean" }; kinds, parameters and defaults
        /// are listed below. gradient: whether the rule uses the sum of a step's gradients or their
        /// mean over its records.
        key optimizer: Optimizer = "model.optimizer",
            Value("{ kind = \"ftrl\", alpha = 0.2, beta = 1.0, l1 = 0.0, l2 = 0.0 }"), Never,
            read(take.with(key, |raw| parameters::optimizer(raw, false)));
        /// How the optimizer's rate changes: { kind = "constant", "inverse", "exponential" or
        /// "cosine", steps, factor, warmup }, in applied steps; see below. For optimizers with a
        /// rate.
        #[serde(default, skip_serializing_if = "super::table::is_default")]
        key schedule: Schedule = "model.schedule",
            Value("{ kind = \"constant\", warmup = 0 }"), Never,
            read(take.with(key, parameters::schedule));
        /// Begin with the values of another job: its checkpoint.dir (the newest checkpoint counts)
        /// or one checkpoint in it, such as "hdfs:///ctr/checkpoints/g1-c4". Tables are found by
        /// name; columns must be equal, more rows are allowed. Optimizer state and applied steps
        /// are taken over where the optimizer is the same. Empty: initial values.
        #[note = "A folder of checkpoints is replaced by the checkpoint in it before a run starts."]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key init: Option<Location> = "model.init",
            Value("\"\""), Never, read(paths::optional(take, key));
        /// Tables of a "custom" algorithm, one [[model.table]] each: name, rows, cols (1), kind
        /// ("dense", or "sparse": u64 keys, without rows), optimizer (as model.optimizer; here also
        /// "add", which adds pushes as they are, "mean" and "least"), l2 (0), init ("zero", {
        /// constant = … }, { uniform = [low, high] } or { normal = [mean, sd] }).
        #[note = "Empty for built-in algorithms. Ask [`JobSpec::tables`](super::JobSpec::tables)"]
        #[note = "instead."]
        key tables: Vec<TableSpec> = "model.table",
            Absent(
                "[{ name = \"counts\", rows = 1000, cols = 1, optimizer = { kind = \"sgd\", \
                rate = 1.0 } }]"
            ), Never,
            read(values::tables(take, key, optimizer, schedule));
    }
}

section! {
    (take, key)
    pub struct TrainingSpec = ["training"] "How it is trained." {
        /// "bsp": all lanes compute each step from the same values; repeatable to the byte. "ssp":
        /// trainers are at most training.staleness steps apart; fast ones wait for the slowest.
        /// "asp": no worker waits for another; with smaller batches, for nodes of different speed.
        key consistency: Consistency = "training.consistency",
            Value("\"bsp\""), Never, read(take.choice(key, CONSISTENCIES, &[]));
        /// ssp: how many steps the values that a trainer reads may lack of the slowest trainer; 0:
        /// none. 2 unless given; only with training.consistency = "ssp".
        #[note = "Only in SSP. It changes no name of a checkpoint: clocks are never saved."]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key staleness: Option<u32> = "training.staleness",
            Absent("2"), OnResume, read(values::staleness(take, key, consistency));
        /// bsp: number of logical workers, whatever the trainers. The result depends on it, not on
        /// trainers.*.
        key lanes: u32 = "training.lanes", Value("4"), Never, range(1, SLOTS_MAX);
        /// Rows of a minibatch. In bsp each lane has one a step: the effective batch is lanes ×
        /// batch. "auto": the largest power of two with which a pass has at least 64 steps, over
        /// all lanes 8 to 16384 rows (ssp, asp: over all trainers 8 to 4096, and at least 768 each
        /// from a million records on).
        key batch: u32 = "training.batch", Value("\"auto\""), Never, range_or_auto(1, BATCH_MAX);
        /// Seed of all random choices; at least 0.
        key seed: u64 = "training.seed", Value("42"), Never, range(0, SEED_MAX);
        /// A gradient that holds NaN or an infinity: "fail", or "skip" it.
        key nan: NanPolicy = "training.nan",
            Value("\"fail\""), OnResume, read(take.choice(key, NAN_POLICIES, &[]));
        stub "training.throttle" = "\"\"",
            "Limit the rows per second of each trainer.";
        /// End after this number of passes without a lower first figure (log-loss, hinge, rmse) on
        /// the test data; 0: never; "auto": see data.passes.
        key early_stop: u32 = "training.early-stop",
            Value("\"auto\""), Never, range_or_auto(0, PASSES_MAX);
        /// The model that comes out: "last", that of the last pass, or "best", that of the pass
        /// with the lowest first figure on the test data; "auto": see data.passes. A checkpoint is
        /// taken after each pass that is better than all before, and the best one is kept beyond
        /// checkpoint.keep.
        #[serde(default, skip_serializing_if = "super::table::is_default")]
        key keep: KeptPass = "training.keep",
            Value("\"auto\""), Never,
            read(take.or_auto(key, KeptPass::Last, |raw| scalar::choice(raw, KEPT_PASSES, &[])));
    }
}

/// `pservers.replacement` of runs that did not have the key.
fn default_replacement() -> DurationMs {
    DurationMs::secs(30)
}

/// `trainers.idle-timeout` of runs that did not have the key.
fn default_idle_timeout() -> DurationMs {
    DurationMs::secs(60)
}

/// `output.save-lease` of runs that did not have the key.
fn default_save_lease() -> DurationMs {
    DurationMs::secs(60)
}

/// `checkpoint.last-save` of runs that did not have the key.
fn default_last_save() -> DurationMs {
    DurationMs::secs(30)
}

impl ModelSpec {
    /// Whether features are any u64, so that the tables of features are sparse.
    #[must_use]
    pub fn any_features(&self) -> bool {
        self.features == super::limits::ANY_FEATURES
    }
}

section! {
    (take, key)
    pub struct PserverSpec = ["pservers"] "The processes that hold the parameters." {
        /// Number of pservers with which the job starts.
        key count: u32 = "pservers.count", Value("2"), OnResume, range(0, SLOTS_MAX);
        /// Least pservers: `heddle scale` changes their number while the job runs. Each must have room
        /// for its part of the shards among this number. pservers.count unless given.
        #[note = "Least pservers of an elastic job."]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key min: Option<u32> = "pservers.min",
            Absent("2"), OnResume, read(values::bound_of_pservers(take, key, count));
        /// Most pservers; pservers.shards must be at least max × vcores. pservers.count unless given.
        #[note = "Most pservers of an elastic job."]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key max: Option<u32> = "pservers.max",
            Absent("2"), OnResume, read(values::bound_of_pservers(take, key, count));
        /// Of each. Tables, optimizer state and snapshot copies must fit.
        key memory: Bytes = "pservers.memory",
            Value("\"512MiB\""), OnResume + site, read(take.memory(key));
        /// Of each: its data threads.
        key vcores: u32 = "pservers.vcores", Value("1"), OnResume + site, range(1, VCORES_MAX);
        /// Slices of the model, at least max × vcores; several times that spreads better. Fixed
        /// for the job.
        key shards: u32 = "pservers.shards", Value("8"), Never, range(1, SHARDS_MAX);
        /// Backups of each shard, on other pservers and other hosts: 0 to 2, below pservers.min (pservers.count without it).
        /// The loss of a pserver then costs no rollback, as long as a copy of each of its shards is
        /// left. Each copy needs the memory of its shard. A cluster needs one host more than
        /// backups, else submit ends with exit code 4.
        #[note = "Backups of each shard."]
        #[serde(default, skip_serializing_if = "super::table::is_default")]
        key replicas: u32 = "pservers.replicas", Value("0"), OnResume, range(0, REPLICAS_MAX);
        /// How long to wait for the container that replaces a lost pserver's, 0s to 1h; then the
        /// others take over its shards where they fit into pservers.memory, until it comes.
        #[serde(default = "default_replacement")]
        key replacement: DurationMs = "pservers.replacement",
            Value("\"30s\""), Freely + site, read(take.parse(key));
        /// What returns to the last checkpoint after the loss of a pserver: "global", all shards;
        /// "local", the lost ones alone, while the others keep their values. The updates of the
        /// lost shards since then are lost, and the report counts them. For training.consistency =
        /// "asp" without pservers.replicas, and where the number of pservers cannot change.
        #[serde(default, skip_serializing_if = "super::table::is_default")]
        key recovery: RecoveryScope = "pservers.recovery",
            Value("\"global\""), OnResume, read(take.choice(key, RECOVERY_SCOPES, &[]));
        /// Further pservers that run without shards, at most pservers.count. One of them takes over
        /// the shards of a lost pserver at once, and is replaced as spare.
        #[serde(default, skip_serializing_if = "super::table::is_default")]
        key spares: u32 = "pservers.spares", Value("0"), OnResume, range(0, SLOTS_MAX);
    }
}

section! {
    (take, key)
    pub struct TrainerSpec = ["trainers"] "The processes that read data and compute gradients." {
        /// Training starts when this number of trainers run.
        key min: u32 = "trainers.min", Value("1"), OnResume, range(1, SLOTS_MAX);
        /// Most trainers.
        key max: u32 = "trainers.max", Value("2"), OnResume, range(1, SLOTS_MAX);
        /// Further trainers that run without work, at most trainers.max. One of them takes the
        /// place of a lost trainer at once, and is replaced as spare.
        #[serde(default, skip_serializing_if = "super::table::is_default")]
        key spares: u32 = "trainers.spares", Value("0"), OnResume, range(0, SLOTS_MAX);
        /// Trainers beyond trainers.max, at most trainers.max, that are started one by one for a
        /// late task while no trainer is idle. They leave when no task is late for a phase, or when
        /// they are idle for 30s. In bsp only evaluations have tasks.
        #[serde(default, skip_serializing_if = "super::table::is_default")]
        key extra: u32 = "trainers.extra", Value("0"), OnResume, range(0, SLOTS_MAX);
        /// A trainer without work for this time leaves, down to trainers.min, until there is work
        /// for it: fewer lanes or tasks than trainers, such as at the end of a pass. At least 1s.
        #[serde(default = "default_idle_timeout")]
        key idle_timeout: DurationMs = "trainers.idle-timeout",
            Value("\"60s\""), Freely + site, read(take.parse(key));
        /// Of each. A minibatch is closed early at one feature for each 40 bytes, of the memory
        /// with which the run began (docs/formats.md).
        key memory: Bytes = "trainers.memory",
            Value("\"512MiB\""), OnResume + site, read(take.memory(key));
        /// Of each.
        key vcores: u32 = "trainers.vcores", Value("1"), OnResume + site, range(1, VCORES_MAX);
        /// Other resources of YARN, of each, such as { "yarn.io/gpu" = 1 }. A run on this machine
        /// ignores them.
        #[serde(default)]
        key resources: BTreeMap<String, u64> = "trainers.resources",
            Value("{}"), Freely + site, read(take.with(key, values::resources));
        /// A program and its arguments instead of the built-in trainer. A program name with "/" is
        /// relative to the job file.
        #[note = "Empty: the built-in trainer."]
        key command: Vec<String> = "trainers.command",
            Value("[]"), Never, read(paths::command(take, key));
    }
}

section! {
    (take, key)
    pub struct CheckpointSpec = ["checkpoint"] "When and where the state is saved." {
        /// Folder of the job's checkpoints. Empty: ./out/<name>-<run>/checkpoints, on YARN
        /// heddle/<name>-<run>/checkpoints in your home. Never put anything else there.
        key dir: Location = "checkpoint.dir",
            Value("\"\""), Freely, read(paths::output(take, key, "checkpoints"));
        /// Up to 4 more folders that each checkpoint is copied to after its commit, on HDFS or a
        /// path that all nodes share, none below checkpoint.dir. A file that is missing or damaged
        /// is taken from there; a mirror that fails delays nothing.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        key mirrors: Vec<Location> = "checkpoint.mirrors",
            Value("[]"), Freely, read(paths::locations(take, key));
        /// How often: a duration, "2 passes", "500 steps", or "auto": the period that follows from
        /// what checkpoints cost and how often pservers are lost. Two more are taken: before the
        /// first step and at the end.
        key every: Every = "checkpoint.every",
            Value("\"10min\""), OnResume + site, read(take.parse(key));
        /// Number of complete checkpoints that are kept, at least 2.
        key keep: u32 = "checkpoint.keep", Value("3"), OnResume + site, range(2, CHECKPOINTS_MAX);
        /// Files of each shard in a checkpoint: 1 to 1 + pservers.replicas. With more than 1,
        /// backups save their copies too; the files must be equal, and a file that is missing or
        /// damaged is replaced by another on restore.
        #[note = "Files of each shard."]
        #[serde(
            default = "super::limits::copies",
            skip_serializing_if = "super::limits::is_copies",
        )]
        key copies: u32 = "checkpoint.copies", Value("1"), OnResume, range(1, COPIES_MAX);
        /// A checkpoint that takes longer is aborted; training continues.
        key timeout: DurationMs = "checkpoint.timeout",
            Value("\"5min\""), OnResume + site, read(take.parse(key));
        /// How long a job that fails may take to save its state first, where all its pservers still
        /// have it (docs/operations.md), up to 1h. "0s": it ends at once.
        #[serde(default = "default_last_save")]
        key last_save: DurationMs = "checkpoint.last-save",
            Value("\"30s\""), Freely + site, read(take.parse(key));
        /// A damaged checkpoint: "previous" returns to the one before, with a warning; "fail" stops
        /// the job.
        key on_corrupt: OnCorrupt = "checkpoint.on-corrupt",
            Value("\"previous\""), OnResume, read(take.choice(key, ON_CORRUPT, &[]));
        /// Sums of a checkpoint's files: "md5", or "md5+sha256" for a SHA-256 besides, in the
        /// manifest and in .sha256 files for sha256sum -c. Without a key a sum finds accidents, not
        /// changes on purpose.
        #[serde(default, skip_serializing_if = "super::table::is_default")]
        key digest: CheckpointDigest = "checkpoint.digest",
            Value("\"md5\""), Freely + site, read(take.choice(key, CHECKPOINT_DIGESTS, &[]));
        /// How much of a pserver's memory the copies of a snapshot may take: a percentage or a
        /// size.
        key memory: Share = "checkpoint.memory",
            Value("\"25%\""), OnResume + site, read(take.parse(key));
        /// How fast saving may write, all pservers together, such as "100MiB/s". Empty: no limit.
        #[note = "Bytes a second."]
        #[serde(default)]
        key bandwidth: Option<Bytes> = "checkpoint.bandwidth",
            Value("\"\""), Freely + site, read(values::bandwidth(take, key));
    }
}

section! {
    (take, key, algorithm: Option<AlgorithmKind>)
    pub struct OutputSpec = ["output"] "What comes out." {
        /// Folder of the model. Empty: ./out/<name>-<run>/model, on YARN heddle/<name>-<run>/model
        /// in your home.
        key model: Location = "output.model",
            Value("\"\""), Freely, read(paths::output(take, key, "model"));
        /// "safetensors" and "text" (lines of index and weight, for logistic-regression,
        /// linear-regression and svm; left out for others).
        #[note = "At least one, each at most once."]
        key formats: Vec<ModelFormat> = "output.formats",
            Value("[\"safetensors\", \"text\"]"), OnResume,
            read(values::formats(take, key, algorithm));
        /// Of the model's files, octal, such as "0640" (their folder adds x for each r). "auto": by
        /// the umask, on HDFS by fs.permissions.umask-mode.
        #[serde(default)]
        key permissions: Option<Permissions> = "output.permissions",
            Value("\"auto\""), Freely, read(take.optional(key, "auto"));
        /// How long the trainer that writes a model may make no progress, 5s to 1h. Then another
        /// trainer is elected, and what the first one writes is not published.
        #[serde(default = "default_save_lease")]
        key save_lease: DurationMs = "output.save-lease",
            Value("\"60s\""), Freely + site, read(take.parse(key));
    }
}

impl PserverSpec {
    /// Fewest pservers with shards.
    #[must_use]
    pub fn least(&self) -> u32 {
        self.min.unwrap_or(self.count)
    }

    /// Most pservers with shards.
    #[must_use]
    pub fn most(&self) -> u32 {
        self.max.unwrap_or(self.count)
    }

    /// Most pservers, with and without shards.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.most().saturating_add(self.spares)
    }

    /// Whether a shard can get another primary during an epoch. If not, its only copy is where the order to load placed it: views
    /// are not sent, and trainers need not repeat their clocks.
    #[must_use]
    pub fn moves_shards(&self) -> bool {
        self.replicas > 0 || self.least() < self.most()
    }
}

impl TrainerSpec {
    /// Most trainers, those without work and those for late tasks included.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.max.saturating_add(self.spares).saturating_add(self.extra)
    }

    /// Most trainers that work at a time.
    #[must_use]
    pub fn workers(&self) -> u32 {
        self.max.saturating_add(self.extra)
    }
}
