//! A second pass from kept records (`data.cache`) beside a pass that reads its table again: 13 numbers and 26 categories of CSV,
//! a fifth and a tenth of them missing. Passes alternate, since on a shared machine only ratios of consecutive measurements are
//! meaningful. `HEDDLE_BENCH_QUICK=1` measures just enough to verify that it runs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, UNIX_EPOCH};

use crossbeam::channel::unbounded;
use heddle_bench::random::SplitMix;
use heddle_columns::Encoder;
use heddle_input::{Labels, RecordFormat, StorageWaits, TableFormat, TaskLength, plan_input};
use heddle_protocol::ids::{PhaseNo, TaskId};
use heddle_protocol::job_spec::columns::{
    ColumnScale, ColumnUsage, FeatureColumn, MissingCategory, NumberUsage, Schema,
};
use heddle_protocol::job_spec::job::sample;
use heddle_protocol::job_spec::{
    BadRecords, BatchFeatures, Bytes, DataCache, DataFormat, LabelRange,
};
use heddle_protocol::manifest::InputFile;
use heddle_trainer::cache::TaskCache;
use heddle_trainer::class_weights::ClassWeights;
use heddle_trainer::feed::{Feed, FeedId, FeedItem, FeedSettings};

const NUMBERS: usize = 13;
const CATEGORIES: usize = 26;
const FEATURES: u64 = 1 << 22;
/// Records of a step.
const BATCH: usize = 1024;

fn main() {
    let quick = std::env::var_os("HEDDLE_BENCH_QUICK").is_some();
    let (rows, rounds) = if quick { (2_000, 2) } else { (100_000, 11) };
    let dir = tempfile::tempdir().expect("a folder");
    let file = write_table(&dir.path().join("table.csv"), rows);
    let kept = [DataCache::Off, DataCache::Memory, DataCache::Disk]
        .map(|place| settings(&file, cache(place, dir.path())));
    let mut times = kept.each_ref().map(|_| Vec::new());
    for round in 0..=rounds {
        for (settings, times) in kept.iter().zip(&mut times) {
            let start = Instant::now();
            assert_eq!(read(settings), rows);
            if round > 0 {
                times.push(start.elapsed());
            }
        }
    }
    let [csv, memory, disk] = times.map(|mut times| {
        times.sort();
        rows as f64 / times[times.len() / 2].as_secs_f64() / 1e3
    });
    println!("| | thousand records/s | of CSV |\n| --- | --- | --- |");
    for (name, rate) in [("CSV", csv), ("kept in memory", memory), ("kept on disk", disk)] {
        println!("| {name} | {rate:.0} | {:.1} |", rate / csv);
    }
}

fn write_table(path: &Path, rows: usize) -> InputFile {
    let mut random = SplitMix(11);
    let mut text = String::from("label");
    for column in 0..NUMBERS + CATEGORIES {
        write!(text, ",c{column:02}").expect("it fits");
    }
    for _ in 0..rows {
        write!(text, "\n{}", random.bits() % 2).expect("it fits");
        for column in 0..NUMBERS + CATEGORIES {
            let (drawn, is_number) = (random.bits(), column < NUMBERS);
            text.push(',');
            let field = match drawn % 10 {
                0 => Ok(()),
                1 if is_number => Ok(()),
                _ if is_number => write!(text, "{}", drawn >> 32 & 0xfff),
                _ => write!(text, "{:08x}", (drawn >> 32) % (50 << (column % 15))),
            };
            field.expect("it fits");
        }
    }
    std::fs::write(path, &text).expect("written");
    let modified = std::fs::metadata(path).and_then(|found| found.modified()).expect("a time");
    let since = modified.duration_since(UNIX_EPOCH).expect("after 1970");
    InputFile {
        url: format!("file://{}", path.display()),
        bytes: text.len() as u64,
        modified_ms: since.as_millis() as u64,
        compression: Default::default(),
    }
}

fn cache(place: DataCache, folder: &Path) -> Option<Arc<TaskCache>> {
    let mut spec = sample();
    (spec.data.cache, spec.data.cache_size) = (place, Some(Bytes(1 << 30)));
    TaskCache::for_job(&spec, folder)
}

fn settings(file: &InputFile, cache: Option<Arc<TaskCache>>) -> FeedSettings {
    let column = |n: usize| {
        let number = NumberUsage { scale: ColumnScale::None, ..NumberUsage::default() };
        let category = ColumnUsage::Category { missing: MissingCategory::None };
        let usage = if n < NUMBERS { ColumnUsage::Number(number) } else { category };
        FeatureColumn { name: format!("c{n:02}"), usage }
    };
    let schema = Schema {
        label: "label".to_owned(),
        columns: (0..NUMBERS + CATEGORIES).map(column).collect(),
        null: vec![String::new()],
        ..Schema::default()
    };
    let encoder = Encoder::unscaled(&schema).bounded(FEATURES);
    let plan =
        plan_input(DataFormat::Csv, vec![file.clone()], Vec::new(), TaskLength::Bytes(4 << 20));
    FeedSettings {
        plan: Arc::new(plan),
        training: true,
        phase: PhaseNo(0),
        format: RecordFormat {
            format: DataFormat::Csv,
            index_base: 0,
            features: FEATURES,
            labels: Labels::Within(LabelRange::TwoClasses),
            table: Some(Arc::new(TableFormat::new(schema, encoder, true, b','))),
        },
        index_features: false,
        rows: BATCH,
        batch_features: BatchFeatures::default(),
        ahead_bytes: usize::MAX,
        class_weights: ClassWeights::default(),
        bad_records: BadRecords::Fail,
        first_bad: None,
        quarantine: "bad".into(),
        waits: StorageWaits::default(),
        cache,
        measures: false,
    }
}

/// Reads all tasks, and returns the number of records.
fn read(settings: &FeedSettings) -> usize {
    let tasks: Vec<TaskId> = (0..settings.plan.train.len() as u32).map(TaskId).collect();
    let (items, received) = unbounded();
    let feed = Feed::start(FeedId(0), settings.clone(), tasks, 0, BTreeMap::new(), items)
        .expect("a thread");
    let mut rows = 0;
    for (_, item) in received {
        match item {
            FeedItem::Step { work, .. } => {
                rows += work.batch.rows();
                feed.give_back(work);
            }
            FeedItem::TaskEnd { .. } | FeedItem::Empty => {}
            FeedItem::TaskFailed { failure, .. } => panic!("{failure:?}"),
        }
    }
    rows
}
