use heddle_protocol::job_spec::Bytes;
use heddle_protocol::job_spec::job::sample;

use super::*;

const ROWS: usize = 1000;

fn cache(place: DataCache, most: u64) -> Arc<TaskCache> {
    let mut spec = sample();
    (spec.data.cache, spec.data.cache_size) = (place, Some(Bytes(most)));
    let folder = tempfile::tempdir().expect("a folder");
    TaskCache::for_job(&spec, folder.path()).expect("a cache")
}

fn key(task: u32) -> KeptKey {
    KeptKey { training: true, measures: false, task: TaskId(task) }
}

/// A batch that a task and a number name.
fn batch(task: u32, number: u32) -> Batch {
    let mut batch = Batch::default();
    for row in 0..ROWS as u32 {
        batch.indices.extend([task, number, row]);
        batch.values.extend([1.0, 2.0, row as f32]);
        batch.end_row_as_written(1.0);
    }
    batch
}

fn record(cache: &Arc<TaskCache>, task: u32, batches: u32, phase: u32) {
    let mut recorder = cache.record(key(task), PhaseNo(phase));
    if (0..batches).all(|number| recorder.add(&batch(task, number))) {
        recorder.finish(BadCount { records: u64::from(task), ..BadCount::default() });
    }
}

fn records(cache: &Arc<TaskCache>, task: u32, phase: u32) -> Option<task_records::KeptRecords> {
    let content = cache.find(key(task), PhaseNo(phase))?;
    Some(task_records::KeptRecords::new(key(task), content))
}

#[test]
fn tasks_come_back_as_they_were_read() {
    for place in [DataCache::Memory, DataCache::Disk] {
        let cache = cache(place, 1 << 30);
        for task in 0..3 {
            record(&cache, task, 40 * task, 0);
        }
        for task in 0..3 {
            let mut kept = records(&cache, task, 1).expect("kept");
            let mut read = Batch::default();
            for number in 0..40 * task {
                kept.next_batch(&mut read).expect("read");
                assert_eq!(read, batch(task, number), "{place:?}");
            }
            kept.next_batch(&mut read).expect("read");
            assert!(read.is_empty());
            assert_eq!(
                cache.find(key(task), PhaseNo(1)).expect("kept").bad.records,
                u64::from(task)
            );
        }
        assert!(records(&cache, 3, 1).is_none());
    }
}

#[test]
fn tasks_that_do_not_fit_are_not_kept_and_unused_ones_give_way() {
    let bytes = {
        let mut block = Vec::new();
        block::append(&batch(0, 0), &mut block);
        20 * block.len() as u64
    };
    for place in [DataCache::Memory, DataCache::Disk] {
        let cache = cache(place, 2 * bytes + bytes / 2);
        let kept = |phase| -> Vec<u32> {
            (0..4).filter(|task| cache.find(key(*task), PhaseNo(phase)).is_some()).collect()
        };
        (0..3).for_each(|task| record(&cache, task, 20, 0));
        assert_eq!((kept(0), cache.lock().bytes), (vec![0, 1], 2 * bytes), "{place:?}");
        assert!(records(&cache, 1, 2).is_some());
        record(&cache, 3, 20, 3);
        assert_eq!((kept(3), cache.lock().bytes), (vec![1, 3], 2 * bytes));
        cache.forget(key(1));
        assert_eq!((kept(3), cache.lock().bytes), (vec![3], bytes));
    }
}

#[test]
fn damaged_file_is_not_used() {
    let cache = cache(DataCache::Disk, 1 << 30);
    record(&cache, 0, 40, 0);
    let mut kept = records(&cache, 0, 1).expect("kept");
    cache.place.damage();
    let error = kept.next_batch(&mut Batch::default()).expect_err("damaged");
    assert!(error.is_retryable(), "{error}");
    assert!(records(&cache, 0, 1).is_none(), "it is read again");
}
