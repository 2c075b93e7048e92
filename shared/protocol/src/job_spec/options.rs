//! Keys of the job file whose value is one of some words.

use serde::{Deserialize, Serialize};

use super::value::Bytes;
use crate::handshake::Mechanism;

/// What a job is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobKind {
    /// A model is trained, and evaluated after each pass if there is test data.
    #[default]
    Train,
    /// A model is evaluated on the test data, by the tables of pservers or, without any, by the trainers alone.
    Evaluate,
}

/// The words of `kind`.
pub(super) const KINDS: &[(&str, JobKind)] = &[("train", JobKind::Train)];

/// How a record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataFormat {
    /// `label index:value index:value …`
    Libsvm,
    /// `label index index …`, every value being 1.
    Dummy,
    /// A table of text, with commas between its fields (RFC 4180).
    Csv,
    /// The same with tabs.
    Tsv,
    /// Parquet files, whose columns have types.
    Parquet,
    /// Avro object container files, whose records have types.
    Avro,
}

/// The words of `data.format`.
pub(super) const DATA_FORMATS: &[(&str, DataFormat)] = &[
    ("libsvm", DataFormat::Libsvm),
    ("dummy", DataFormat::Dummy),
    ("csv", DataFormat::Csv),
    ("tsv", DataFormat::Tsv),
    ("parquet", DataFormat::Parquet),
    ("avro", DataFormat::Avro),
];

/// Their text in the list of keys.
macro_rules! data_format_doc {
    () => {
        "\"libsvm\" (label index:value …), \"dummy\" (label index index …, every value being 1), or a \
         table with columns, \"csv\", \"tsv\", \"parquet\" or \"avro\", whose columns data.label and [[data.columns]] name."
    };
}
pub(super) use data_format_doc;

impl DataFormat {
    /// The word of the job file, which models have too.
    #[must_use]
    pub fn name(self) -> &'static str {
        DATA_FORMATS.iter().find(|(_, format)| *format == self).map_or("", |(name, _)| name)
    }

    /// The format of this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        DATA_FORMATS.iter().find(|(word, _)| *word == name).map(|(_, format)| *format)
    }

    /// The names of all formats.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        DATA_FORMATS.iter().map(|(name, _)| *name).collect()
    }

    /// Whether records are rows of a table with columns.
    #[must_use]
    pub fn has_columns(self) -> bool {
        matches!(self, Self::Csv | Self::Tsv | Self::Parquet | Self::Avro)
    }

    /// Whether files are text.
    #[must_use]
    pub fn is_text(self) -> bool {
        !matches!(self, Self::Parquet | Self::Avro)
    }

    /// The character between fields, where the job file does not state it.
    #[must_use]
    pub fn delimiter(self) -> char {
        if self == Self::Tsv { '\t' } else { ',' }
    }

    /// The lowest feature index, where the job file does not state it.
    #[must_use]
    pub fn index_base(self) -> u32 {
        u32::from(self == Self::Libsvm)
    }
}

/// How large a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskSize {
    /// A pass has at least 4 tasks per lane (BSP) or per `trainers.max`, each at most 32 MiB.
    Auto,
    /// About this many bytes, above 0.
    Bytes(Bytes),
}

/// Where a trainer keeps the records of tasks that it has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataCache {
    /// It reads them again in each pass.
    #[default]
    Off,
    /// In its memory.
    Memory,
    /// In files.
    Disk,
}

/// The words of `data.cache`.
pub(super) const DATA_CACHES: &[(&str, DataCache)] =
    &[("off", DataCache::Off), ("memory", DataCache::Memory), ("disk", DataCache::Disk)];

/// What to do with a record that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BadRecords {
    /// The job fails and names file, line and column.
    Fail,
    /// Skipped and counted; more than this number in a pass fail the job.
    Skip(u64),
    /// Skipped, counted, and written with their positions to a file beside the logs.
    Quarantine,
}

/// When a step of one worker waits for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Consistency {
    /// Bulk-synchronous: all lanes compute a step from the same values. Repeatable to the byte.
    Bsp,
    /// Stale-synchronous: a trainer waits while it is more than `training.staleness` steps ahead of the slowest one.
    Ssp,
    /// Asynchronous: no worker waits.
    Asp,
}

/// The words of `training.consistency`.
pub(super) const CONSISTENCIES: &[(&str, Consistency)] =
    &[("bsp", Consistency::Bsp), ("ssp", Consistency::Ssp), ("asp", Consistency::Asp)];

/// What a shard does with a gradient that holds a NaN or an infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NanPolicy {
    /// The job fails and names the task and step.
    Fail,
    /// The push is refused and counted; training continues.
    Skip,
}

/// The words of `training.nan`.
pub(super) const NAN_POLICIES: &[(&str, NanPolicy)] =
    &[("fail", NanPolicy::Fail), ("skip", NanPolicy::Skip)];

/// What a shard does with a new row of a sparse table when its part of the memory is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TableFull {
    /// The job fails and names the table, its rows and the keys to change.
    #[default]
    Fail,
    /// Gradients of rows that do not exist are left out and counted.
    Drop,
}

/// The words of `model.table-full`.
pub(super) const TABLE_FULL: &[(&str, TableFull)] =
    &[("fail", TableFull::Fail), ("drop", TableFull::Drop)];

/// The pass whose model is exported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeptPass {
    /// The last one.
    #[default]
    Last,
    /// The one with the lowest loss on the test data.
    Best,
}

/// The words of `training.keep`.
pub(super) const KEPT_PASSES: &[(&str, KeptPass)] =
    &[("last", KeptPass::Last), ("best", KeptPass::Best)];

/// How the labels of a squared loss are scaled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LabelScaling {
    /// Not at all.
    #[default]
    Off,
    /// By the table [`LABEL`](super::table::LABEL), which is measured with the columns.
    Measured,
    /// By these figures.
    By(LabelScale),
}

/// A scaled label is `(label − mean) / deviation`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabelScale {
    /// In units of the labels.
    pub mean: f64,
    /// In units of the labels; above 0.
    pub deviation: f64,
}

impl LabelScale {
    /// Labels as they are.
    pub const NONE: Self = Self { mean: 0.0, deviation: 1.0 };
}

/// What a checkpoint that is proven damaged leads to. A checkpoint that cannot be read at present never leads to an older
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnCorrupt {
    /// A rollback to the next older complete checkpoint, with a warning.
    Previous,
    /// The job fails with exit code 8.
    Fail,
}

/// The words of `checkpoint.on-corrupt`.
pub(super) const ON_CORRUPT: &[(&str, OnCorrupt)] =
    &[("previous", OnCorrupt::Previous), ("fail", OnCorrupt::Fail)];

/// The sums of the files of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckpointDigest {
    /// MD5, which finds accidents.
    #[default]
    Md5,
    /// SHA-256 besides, for sites whose policy asks for it.
    #[serde(rename = "md5+sha256")]
    Md5AndSha256,
}

/// The words of `checkpoint.digest`.
pub(super) const CHECKPOINT_DIGESTS: &[(&str, CheckpointDigest)] =
    &[("md5", CheckpointDigest::Md5), ("md5+sha256", CheckpointDigest::Md5AndSha256)];

/// What returns to the last checkpoint after the loss of a pserver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecoveryScope {
    /// All shards, so that no update is missing.
    #[default]
    Global,
    /// The lost shards alone; their updates since then are lost, and counted.
    Local,
}

/// The words of `pservers.recovery`.
pub(super) const RECOVERY_SCOPES: &[(&str, RecoveryScope)] =
    &[("global", RecoveryScope::Global), ("local", RecoveryScope::Local)];

/// A format in which a model is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelFormat {
    /// One safetensors file with all tables.
    Safetensors,
    /// Lines of index and weight, for linear models.
    Text,
}

/// Whether connections between processes of the job are encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkProtection {
    /// As the cluster protects its own calls.
    #[default]
    Auto,
    /// Yes: a peer that offers less is refused.
    On,
    /// No.
    Off,
}

/// The words of `network.protection`.
pub(super) const NETWORK_PROTECTIONS: &[(&str, NetworkProtection)] = &[
    ("auto", NetworkProtection::Auto),
    ("on", NetworkProtection::On),
    ("off", NetworkProtection::Off),
];

impl NetworkProtection {
    /// The mechanism of the job's connections. `cluster`: whether the cluster protects its own calls.
    #[must_use]
    pub fn mechanism(self, cluster: bool) -> Mechanism {
        match (self, cluster) {
            (Self::On, _) | (Self::Auto, true) => Mechanism::Noise,
            (Self::Off, _) | (Self::Auto, false) => Mechanism::Hmac,
        }
    }
}

/// What sets the numbers of a job's trainers and pservers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Elasticity {
    /// The job file, and operators.
    #[default]
    Off,
    /// The cluster's controller, between the bounds of the job file.
    Controller,
}

/// The words of `run.elastic`.
pub(super) const ELASTICITIES: &[(&str, Elasticity)] =
    &[("off", Elasticity::Off), ("controller", Elasticity::Controller)];
