//! Input files cut into tasks: a pure function of the files and the job, computed once when a job begins.
//!
//! Each worker needs several tasks, or all others wait for the last one. A task must be short, so that its loss costs
//! little. How a file can be cut is its format's: a packed file is one task of any length. The plan does not depend on
//! the number of trainers that run.

use std::collections::BTreeMap;
use std::ops::Range;

use heddle_protocol::job_spec::{Consistency, DataFormat, JobSpec};
use heddle_protocol::manifest::{InputFile, InputPlan, TaskRange};

use crate::formats::input_format;
use crate::packing::{Packing, packing_of};
use crate::source::cut_evenly;

/// Tasks per worker (lane, or trainer at the most) that `auto` aims at, at least.
const TASKS_PER_WORKER: u64 = 4;
/// Longest task that `auto` makes: a second or less of reading, and of work lost with a trainer.
const AUTO_BYTES_MAX: u64 = 32 << 20;
/// Tasks of a job at the most. They are in the manifest and in the ApplicationMaster's memory; more than
/// these come from a task size that was mistyped.
const TASKS_MAX: u64 = 1_000_000;

/// How long tasks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskLength {
    /// A pass has at least four tasks for each of this number of workers, each of at most 32 MiB. Parts of files stay whole if
    /// there are as many as workers; else each worker has at least a task.
    /// Workers are the lanes (BSP) or the trainers at the most (SSP, ASP).
    Auto {
        /// At least 1.
        workers: u32,
    },
    /// At most this number of bytes each, at least 1.
    Bytes(u64),
}

/// The first bytes of the parts of files by their URLs (Parquet: row groups): tasks begin there if they can.
pub type FileParts = BTreeMap<String, Vec<u64>>;

/// The input plan of a job over these files. `train` and `test` are sorted by URL here.
#[must_use]
pub fn plan_input(
    format: DataFormat,
    train: Vec<InputFile>,
    test: Vec<InputFile>,
    length: TaskLength,
) -> InputPlan {
    plan_parts(format, train, test, length, &FileParts::new())
}

/// The same over files with parts, whose first bytes are known.
#[must_use]
pub fn plan_parts(
    format: DataFormat,
    mut train: Vec<InputFile>,
    mut test: Vec<InputFile>,
    length: TaskLength,
    parts: &FileParts,
) -> InputPlan {
    train.sort_by(|a, b| a.url.cmp(&b.url));
    test.sort_by(|a, b| a.url.cmp(&b.url));
    let train_tasks = tasks_of(format, &train, 0, length, parts);
    let test_tasks = tasks_of(format, &test, train.len() as u32, length, parts);
    train.append(&mut test);
    InputPlan { files: train, train: train_tasks, test: test_tasks }
}

/// The tasks over `files`, the first of which has index `first` in the plan.
///
/// In the order of the files; within a file next to each other, of lengths that differ by one byte
/// at most. Empty files have no task.
#[must_use]
pub fn plan_tasks(
    format: DataFormat,
    files: &[InputFile],
    first: u32,
    length: TaskLength,
) -> Vec<TaskRange> {
    tasks_of(format, files, first, length, &FileParts::new())
}

fn tasks_of(
    format: DataFormat,
    files: &[InputFile],
    first: u32,
    length: TaskLength,
    parts: &FileParts,
) -> Vec<TaskRange> {
    let bytes = files.iter().fold(0u64, |sum, file| sum.saturating_add(file.bytes));
    let starts = |file: &InputFile| parts.get(&file.url).map_or(&[][..], Vec::as_slice);
    let all_parts = files.iter().map(|file| starts(file).len() as u64).sum::<u64>();
    let workers = match length {
        TaskLength::Auto { workers } => u64::from(workers.max(1)),
        TaskLength::Bytes(_) => u64::MAX,
    };
    let keeps_parts = all_parts >= workers;
    let wanted = match length {
        // Each task within a part reads some bytes of its neighbours too, or all before it.
        TaskLength::Auto { .. } if all_parts > 0 && !keeps_parts => bytes / workers,
        // Rounded down: a little shorter rather than one task too few.
        TaskLength::Auto { .. } => (bytes / (workers * TASKS_PER_WORKER)).min(AUTO_BYTES_MAX),
        TaskLength::Bytes(bytes) => bytes,
    };
    let piece = wanted.max(bytes / TASKS_MAX).max(1);
    let mut tasks = Vec::new();
    for (index, file) in files.iter().enumerate() {
        let file_no = first + index as u32;
        let pieces = match starts(file) {
            [] => input_format(format).split(file, piece),
            starts => pieces_of_parts(starts, file.bytes, piece, keeps_parts),
        };
        let pieces = pieces.into_iter();
        tasks.extend(pieces.map(|Range { start, end }| TaskRange { file: file_no, start, end }));
    }
    tasks
}

/// Cuts a file at its parts: as many as fit into a piece are one, and longer ones are cut, unless parts are kept whole.
fn pieces_of_parts(starts: &[u64], bytes: u64, length: u64, keeps_parts: bool) -> Vec<Range<u64>> {
    let mut pieces = Vec::new();
    let mut start = 0;
    let ends = starts.iter().skip(1).map(|start| bytes.min(*start)).chain([bytes]);
    let mut ends = ends.peekable();
    while let Some(end) = ends.next() {
        let next_fits = ends.peek().is_some_and(|next| next.saturating_sub(start) <= length);
        if next_fits || end <= start {
            continue;
        }
        let cuts = if keeps_parts { 1 } else { (end - start).div_ceil(length) };
        pieces.extend(cut_evenly(start..end, cuts));
        start = end;
    }
    pieces
}

/// A sentence for the user when packed files leave workers without a task: a pass is then as slow as
/// the files are few.
#[must_use]
pub fn parallelism_warning(plan: &InputPlan, workers: u32) -> Option<String> {
    let files = plan.train.iter().filter_map(|task| plan.files.get(task.file as usize));
    let packed = files.filter_map(|file| Some((file, packing_of(file.compression)?)));
    let (longest, Packing { suffix, .. }) = packed.max_by_key(|(file, _)| file.bytes)?;
    let tasks = plan.train.len();
    (tasks < workers as usize).then(|| {
        format!(
            "warning: {} of {workers} workers (training.lanes, or trainers.max in ssp and asp) have no training data: a {suffix} file \
             is one task, since it cannot be read in parts, and there {}; the longest is {} with {} bytes. Unpack or \
             split them; the model differs from that of all workers",
            workers as usize - tasks,
            match tasks {
                1 => "is 1 task".to_owned(),
                tasks => format!("are {tasks} tasks"),
            },
            longest.url,
            longest.bytes
        )
    })
}

/// Workers that a job's training data is shared out to: lanes, or trainers at the most.
#[must_use]
pub fn workers(spec: &JobSpec) -> u32 {
    match spec.training.consistency {
        Consistency::Bsp => spec.training.lanes,
        Consistency::Ssp | Consistency::Asp => spec.trainers.max,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packing::compression_of;

    fn file(name: &str, bytes: u64) -> InputFile {
        InputFile {
            url: format!("file:///data/{name}"),
            bytes,
            modified_ms: 0,
            compression: compression_of(name),
        }
    }

    #[test]
    fn a_small_file_gives_every_lane_four_tasks() {
        let tasks = plan_tasks(
            DataFormat::Libsvm,
            &[file("a", 361_622)],
            0,
            TaskLength::Auto { workers: 8 },
        );
        assert!((32..=33).contains(&tasks.len()), "{} tasks", tasks.len());
    }

    #[test]
    fn a_large_file_is_cut_into_pieces_of_at_most_32_mib() {
        let tasks = plan_tasks(
            DataFormat::Libsvm,
            &[file("a", 1 << 40)],
            0,
            TaskLength::Auto { workers: 2 },
        );
        assert_eq!(tasks.len(), 1 << 15);
        assert!(tasks.iter().all(|task| task.end - task.start <= 32 << 20));
    }

    #[test]
    fn a_packed_file_is_one_task_and_an_empty_file_none() {
        let plan = plan_input(
            DataFormat::Libsvm,
            vec![file("b.gz", 1 << 30), file("a", 0)],
            vec![file("t", 10)],
            TaskLength::Bytes(1 << 20),
        );
        assert_eq!(plan.train, [TaskRange { file: 1, start: 0, end: 1 << 30 }]);
        assert_eq!(plan.test, [TaskRange { file: 2, start: 0, end: 10 }]);
        assert!(parallelism_warning(&plan, 8).is_some_and(|text| text.contains("b.gz")));
        assert_eq!(parallelism_warning(&plan, 1), None);
        for suffix in [".gz", ".zst", ".bz2", ".snappy"] {
            let files = vec![file(&format!("b{suffix}"), 100), file("c.gz", 9)];
            let plan = plan_input(DataFormat::Tsv, files, Vec::new(), TaskLength::Bytes(1));
            assert_eq!(plan.train.len(), 2);
            let text = parallelism_warning(&plan, 8).expect("idle workers");
            assert!(text.contains(&format!("a {suffix} file is one task")), "{text}");
        }
    }

    #[test]
    fn tasks_begin_at_the_parts_of_files() {
        let of = |starts: &[u64], length, keeps_parts| {
            let pieces = pieces_of_parts(starts, 100, length, keeps_parts);
            assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].start), "{pieces:?}");
            pieces.iter().map(|piece| piece.end).collect::<Vec<_>>()
        };
        assert_eq!(of(&[4, 30, 60], 40, false), [30, 60, 100]);
        assert_eq!(of(&[4, 30, 60], 60, false), [60, 100]);
        assert_eq!(of(&[4, 30, 60], 15, false), [15, 30, 45, 60, 73, 86, 100]);
        assert_eq!(of(&[4, 30, 60], 15, true), [30, 60, 100]);
        assert_eq!(of(&[4], 200, false), [100]);
        // Parts that lie in each other, as a damaged file may have them.
        assert_eq!(of(&[4, 200, 50], 10, true).last(), Some(&100));
    }

    proptest! {
        #[test]
        fn tasks_cover_every_file_once_and_are_enough(
            lengths in proptest::collection::vec(0u64..100_000, 1..10),
            workers in 1u32..20,
        ) {
            let files: Vec<_> = lengths.iter().map(|bytes| file("a", *bytes)).collect();
            let tasks = plan_tasks(DataFormat::Libsvm, &files, 0, TaskLength::Auto { workers });
            for (index, length) in lengths.iter().enumerate() {
                let mut at = 0;
                for task in tasks.iter().filter(|task| task.file == index as u32) {
                    prop_assert_eq!(task.start, at);
                    prop_assert!(task.end > task.start);
                    at = task.end;
                }
                prop_assert_eq!(at, *length);
            }
            let bytes: u64 = lengths.iter().sum();
            let enough = u64::from(workers) * 4;
            prop_assert!(tasks.len() as u64 >= enough.min(bytes));
        }
    }
}
