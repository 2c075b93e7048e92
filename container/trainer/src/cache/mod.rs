//! The records of tasks that this trainer has read, decoded, for later passes (`data.cache`).
//!
//! A task is kept as a whole, with its count of malformed records, or left out; tasks that do not fit are read again in each
//! pass. Tasks that two phases did not read give way, since another trainer reads them now. What is kept belongs to this process.
//! It depends on the plan, the job and the scales of columns, which stay the same while the process lives, and a file is looked
//! at before its records are taken from here.

mod block;
mod place;
mod task_records;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heddle_input::{BadCount, Batch};
use heddle_protocol::ids::{PhaseNo, TaskId};
use heddle_protocol::job_spec::{DataCache, JobSpec};
use heddle_protocol::process_figures::{PROCESS, ProcessFigure};
use place::{CachePlace, CacheSegment};

pub(crate) use task_records::TaskRecords;

/// Bytes after which blocks become a segment: enough for a read of a disk.
const SEGMENT_BYTES: usize = 256 << 10;
/// Phases without a read after which a task gives way. A pass has two at the most.
const UNUSED_PHASES: u32 = 2;

/// What is kept of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeptKey {
    /// Whether it is a task of the training data.
    pub(crate) training: bool,
    /// Whether columns are measured: their numbers are not scaled.
    pub(crate) measures: bool,
    /// The task.
    pub(crate) task: TaskId,
}

/// Records of tasks, decoded.
#[derive(Debug)]
pub struct TaskCache {
    place: CachePlace,
    /// Bytes that are kept at the most.
    most: u64,
    kept: Mutex<KeptTasks>,
    /// A segment was not kept, and the log has that.
    failed: AtomicBool,
}

#[derive(Debug, Default)]
struct KeptTasks {
    /// Also of tasks that are being read.
    bytes: u64,
    tasks: BTreeMap<KeptKey, KeptTask>,
}

#[derive(Debug)]
struct KeptTask {
    content: Arc<TaskContent>,
    used: PhaseNo,
}

/// The batches of a task.
#[derive(Debug)]
pub(crate) struct TaskContent {
    cache: Arc<TaskCache>,
    segments: Vec<CacheSegment>,
    bytes: u64,
    bad: BadCount,
}

/// A task that is being read.
#[derive(Debug)]
pub(crate) struct TaskRecorder {
    key: KeptKey,
    phase: PhaseNo,
    content: TaskContent,
    /// Blocks of the next segment.
    blocks: Vec<u8>,
}

impl TaskCache {
    /// The cache of a job, if it has one. `folder`: of files. Without it the job reads its data again in each pass.
    #[must_use]
    pub fn for_job(spec: &JobSpec, folder: &Path) -> Option<Arc<Self>> {
        let place = match spec.data.cache {
            DataCache::Off => return None,
            DataCache::Memory => Ok(CachePlace::Memory),
            DataCache::Disk => CachePlace::on_disk(folder),
        };
        let place = place.inspect_err(|error| tracing::warn!(%error, "cache_not_written")).ok()?;
        let (kept, failed) = Default::default();
        Some(Arc::new(Self { place, most: spec.cache_bytes(), kept, failed }))
    }

    /// What is kept of a task, for `phase`.
    pub(crate) fn find(&self, key: KeptKey, phase: PhaseNo) -> Option<Arc<TaskContent>> {
        let mut kept = self.lock();
        let task = kept.tasks.get_mut(&key)?;
        task.used = phase;
        Some(Arc::clone(&task.content))
    }

    /// Begins to keep a task.
    pub(crate) fn record(self: &Arc<Self>, key: KeptKey, phase: PhaseNo) -> TaskRecorder {
        let (segments, bad) = Default::default();
        let content = TaskContent { cache: Arc::clone(self), segments, bytes: 0, bad };
        TaskRecorder { key, phase, content, blocks: Vec::new() }
    }

    /// Drops what is kept of a task.
    fn forget(&self, key: KeptKey) {
        // Dropped after the lock is free: it takes the lock.
        let _forgotten = self.lock().tasks.remove(&key);
    }

    /// Sets bytes aside, if they fit.
    fn reserve(&self, bytes: u64, phase: PhaseNo) -> bool {
        let fits = |kept: &mut KeptTasks| {
            let fits = kept.bytes + bytes <= self.most;
            kept.bytes += if fits { bytes } else { 0 };
            PROCESS.set(ProcessFigure::CachedBytes, kept.bytes);
            fits
        };
        let is_used = |task: &KeptTask| task.used.0 + UNUSED_PHASES >= phase.0;
        let unused: Vec<KeptTask> = {
            let mut kept = self.lock();
            if fits(&mut kept) {
                return true;
            }
            kept.tasks.extract_if(.., |_, task| !is_used(task)).map(|(_, task)| task).collect()
        };
        drop(unused);
        fits(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, KeptTasks> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TaskContent {
    fn drop(&mut self) {
        self.segments.iter().for_each(|segment| self.cache.place.free(segment));
        let mut kept = self.cache.lock();
        kept.bytes -= self.bytes;
        PROCESS.set(ProcessFigure::CachedBytes, kept.bytes);
    }
}

impl TaskRecorder {
    /// Keeps a batch. `false`: the task does not fit.
    pub(crate) fn add(&mut self, batch: &Batch) -> bool {
        block::append(batch, &mut self.blocks);
        self.blocks.len() < SEGMENT_BYTES || self.end_segment()
    }

    /// All batches were added.
    pub(crate) fn finish(mut self, bad: BadCount) {
        if self.end_segment() {
            self.content.bad = bad;
            let (cache, used) = (Arc::clone(&self.content.cache), self.phase);
            let task = KeptTask { content: Arc::new(self.content), used };
            // Two readers may have read it.
            let _before = cache.lock().tasks.insert(self.key, task);
        }
    }

    fn end_segment(&mut self) -> bool {
        let (content, bytes) = (&mut self.content, self.blocks.len() as u64);
        if !content.cache.reserve(bytes, self.phase) {
            return false;
        }
        content.bytes += bytes;
        match content.cache.place.keep(&self.blocks) {
            Ok(segment) => content.segments.push(segment),
            Err(error) => {
                if !content.cache.failed.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, "cache_not_written");
                }
                return false;
            }
        }
        self.blocks.clear();
        true
    }
}

#[cfg(test)]
mod tests;
