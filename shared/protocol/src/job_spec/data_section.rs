//! The section `[data]` of the job file.

use super::columns::{ColumnRule, Cross, Header, default_null, is_default_null};
use super::file::section::section;
use super::file::{columns, paths, values};
use super::limits::PASSES_MAX;
use super::location::Location;
use super::options::{
    BadRecords, DATA_CACHES, DATA_FORMATS, DataCache, DataFormat, TaskSize, data_format_doc,
};
use super::value::{Bytes, TaskShare};

section! {
    (take, key)
    pub struct DataSpec = ["data"] "What is read." {
        /// Training data: a file, a glob, or a list of these. Plain, or packed as .gz, .zst, .bz2 or
        /// .snappy (such a file is one task). A path without scheme is relative to the job file (in
        /// --set to the working directory) and local.
        key train: Vec<Location> = "data.train",
            Required("\"data/train-*.libsvm\""), Never, read(paths::locations(take, key));
        /// Test data, evaluated after each pass. Empty: no evaluation.
        key test: Vec<Location> = "data.test",
            Value("\"\""), Never, read(paths::locations(take, key));
        #[doc = data_format_doc!()]
        key format: DataFormat = "data.format",
            Value("\"libsvm\""), Never,
            read(take.choice(key, DATA_FORMATS, &["tfrecord"]));
        /// The lowest feature index in the files: 0, 1 or "auto" (1 in libsvm, else 0).
        #[note = "0 or 1: `auto` of the job file is resolved."]
        key index_base: u32 = "data.index-base",
            Value("\"auto\""), Never, read(values::index_base(take, key, format));
        /// Tables: the column of the label.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        key label: String = "data.label", Value("\"\""), Never, read(take.text(key));
        /// Tables: the column of the record's weight; empty: each record weighs 1.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        key weight: String = "data.weight", Value("\"\""), Never, read(take.text(key));
        /// Tables: columns that name a record and are not features.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        key id: Vec<String> = "data.id", Value("[]"), Never, read(take.with(key, columns::texts));
        /// CSV and TSV: whether the first line of each file has the names of the columns: true,
        /// false (they are _c0, _c1 and so on) or "auto" (true if no field of the first line of the
        /// first file is a number).
        #[serde(default, skip_serializing_if = "super::table::is_default")]
        key header: Header = "data.header",
            Value("\"auto\""), Never, read(take.with(key, columns::header));
        /// CSV and TSV: the character between fields; "auto" is a comma in CSV, a tab in TSV.
        #[serde(default, skip_serializing_if = "super::table::is_default")]
        key delimiter: Option<char> = "data.delimiter",
            Value("\"auto\""), Never, read(take.with(key, columns::delimiter));
        /// CSV and TSV: texts that stand for a missing value.
        #[serde(default = "default_null", skip_serializing_if = "is_default_null")]
        key null: Vec<String> = "data.null",
            Value("[\"\", \"NA\", \"\\\\N\"]"), Never,
            read(take.with(key, columns::texts));
        /// Tables: what becomes of the columns, one [[data.columns]] each: names (names and globs; the
        /// first rule that names a column holds), as ("number", "category", "list", "vector" or
        /// "ignore"). A number has missing ("auto": the mean if it is scaled, else "zero"; "zero",
        /// "mean", "indicator", "bad"), scale ("auto": "standard"; "standard", "none") and transform
        /// ("none", "log1p", { buckets = [0, 10] }); a category missing ("none", "own"); a list in
        /// text its separator; a vector the column of its values. Each column but those of label,
        /// weight and id needs a rule.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        key columns: Vec<ColumnRule> = "data.columns",
            Absent("[{ names = [\"price\", \"hist_*\"], as = \"number\" }]"), Never,
            read(columns::rules(take, key));
        /// Tables: a feature for each pair of values of two columns, one [[data.cross]] each:
        /// columns.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        key cross: Vec<Cross> = "data.cross",
            Absent("[{ columns = [\"site\", \"hour\"] }]"), Never,
            read(columns::crosses(take, key));
        /// Passes over the training data, at least 1; or "auto", by about how many records R there
        /// are. With data.test at most 2,500,000 / R, from 1 to 40, with training.early-stop =
        /// 20,000 / R, from 2 to 6, and training.keep = "best" where these are "auto" and there are
        /// more than one; without data.test 500,000 / R, from 1 to 20, where model.standardise is
        /// on, else 1; with "kmeans" 20.
        key passes: u32 = "data.passes", Value("\"auto\""), OnResume, range_or_auto(1, PASSES_MAX);
        /// Bytes of a task, the piece of input that a trainer takes at a time: a size, or "auto"
        /// (at least 4 tasks per lane or trainer, at most 32MiB each; row groups of Parquet stay whole
        /// if there is one for each).
        key task_size: TaskSize = "data.task-size",
            Value("\"auto\""), Never, read(take.with(key, values::task_size));
        /// What a trainer keeps of the records that it has read, decoded, for later passes: "off",
        /// "memory", or "disk" (its folder of work files). The model is the same.
        #[serde(default, skip_serializing_if = "super::table::is_default")]
        key cache: DataCache = "data.cache",
            Value("\"off\""), Freely + site, read(take.choice(key, DATA_CACHES, &[]));
        /// Bytes that each trainer keeps at the most; tasks that do not fit are read again. "auto":
        /// half of trainers.memory, which data.cache = "memory" takes from it; on disk 10GiB.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key cache_size: Option<Bytes> = "data.cache-size",
            Value("\"auto\""), Freely + site, read(take.with(key, values::cache_size));
        /// Whether each pass takes the tasks in a random order of its own, which the seed
        /// determines.
        key shuffle: bool = "data.shuffle", Value("true"), Never, read(take.boolean(key));
        // Not a map: messages with a tag lose the type of its keys.
        /// Weights of labels, such as { "1" = 3.0 }: a record's weight, 1 or that of label:weight,
        /// is multiplied by its label's. For algorithms with classes.
        #[note = "Classes, ascending, with their weights: the class 0 is the label −1 too."]
        #[note = "Finite, at least 0."]
        #[serde(default, skip_serializing_if = "super::table::is_default")]
        key class_weights: Vec<(u32, f64)> = "data.class-weights",
            Value("{}"), Never, read(take.with(key, values::class_weights));
        // A minibatch holds the records that were readable. A record that failed the job was in no step yet, so that the
        // tolerance may be raised after it.
        /// Records that cannot be read: "fail", "skip:N" (skip up to N in a pass) or "quarantine"
        /// (skip and write to a file).
        key bad_records: BadRecords = "data.bad-records",
            Value("\"fail\""), OnResume, read(take.with(key, values::bad_records));
        /// Errors of a task, on at least two trainers if the job has two, after which the task is
        /// set aside: left out of the pass and listed. A pserver's error or the death of a trainer
        /// is none.
        #[serde(
            default = "super::limits::task_errors",
            skip_serializing_if = "super::limits::is_task_errors",
        )]
        key task_errors: u32 = "data.task-errors", Value("4"), OnResume, range(1, 1000);
        /// How many tasks of a pass may be set aside before the job fails, for ASP and SSP; each is
        /// tried again in the next pass. With a share above 0%, a task whose records cannot be used
        /// is set aside at once, and one whose trainers died four times at the same step on two
        /// nodes too.
        #[serde(default, skip_serializing_if = "super::table::is_default")]
        key failed_share: TaskShare = "data.failed-share",
            Value("\"0%\""), OnResume, read(take.parse(key));
    }
}

impl DataSpec {
    /// The character between fields of a table of text, which is ASCII.
    #[must_use]
    pub fn delimiter_byte(&self) -> u8 {
        self.delimiter.unwrap_or(self.format.delimiter()) as u8
    }

    /// Whether files of text begin with the names of columns, once that is decided.
    #[must_use]
    pub fn has_header(&self) -> bool {
        self.header != Header::None
    }
}
