//! Records which readers wait for their storage, and for how long.
//!
//! A parser thread records the begin and the end of each storage call. Failed attempts and the pauses between them are one
//! wait. Heartbeats report the longest wait, so that the ApplicationMaster distinguishes an HDFS outage from slow training.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use heddle_protocol::control::InputWait;
use heddle_storage::{Reader, StorageError};

/// Shorter waits are normal reads.
const WORTH_REPORTING: Duration = Duration::from_secs(1);

/// The waits of all readers of this process. Clones share them.
#[derive(Clone, Debug)]
pub struct StorageWaits {
    readers: Arc<Mutex<Vec<Weak<ReaderWait>>>>,
    /// Times are counted from here.
    base: Instant,
}

impl Default for StorageWaits {
    fn default() -> Self {
        Self { readers: Arc::default(), base: Instant::now() }
    }
}

impl StorageWaits {
    /// Adds a reader, which counts until it is dropped.
    #[must_use]
    pub fn reader(&self) -> Arc<ReaderWait> {
        let reader = Arc::new(ReaderWait {
            base: self.base,
            since_ms: AtomicU64::new(NOT_WAITING),
            text: Mutex::default(),
        });
        let mut readers = lock(&self.readers);
        readers.retain(|reader| reader.strong_count() > 0);
        readers.push(Arc::downgrade(&reader));
        reader
    }

    /// The longest wait of at least a second.
    #[must_use]
    pub fn longest(&self) -> Option<InputWait> {
        let now_ms = millis(self.base.elapsed());
        let readers = lock(&self.readers);
        let longest = readers
            .iter()
            .filter_map(Weak::upgrade)
            .filter_map(|reader| Some((reader.waits_since()?, reader)))
            .min_by_key(|(since_ms, _)| *since_ms)?;
        let (since_ms, reader) = longest;
        let for_ms = now_ms.saturating_sub(since_ms);
        if for_ms < millis(WORTH_REPORTING) {
            return None;
        }
        let text = lock(&reader.text);
        Some(InputWait { for_ms, file: text.file.clone(), error: text.error.clone() })
    }
}

/// Stands for no wait.
const NOT_WAITING: u64 = u64::MAX;

/// One reader's wait.
#[derive(Debug)]
pub struct ReaderWait {
    base: Instant,
    /// Since when it waits, ms since `base`, or [`NOT_WAITING`].
    since_ms: AtomicU64,
    text: Mutex<Text>,
}

#[derive(Debug, Default)]
struct Text {
    file: String,
    error: String,
}

impl ReaderWait {
    /// Sets the file that is read.
    pub fn file(&self, file: String) {
        lock(&self.text).file = file;
    }

    /// A call to the storage begins. After a failure it continues the wait.
    pub fn begin(&self) {
        let now_ms = millis(self.base.elapsed());
        // One thread begins and ends waits.
        if self.waits_since().is_none() {
            self.since_ms.store(now_ms, Ordering::Relaxed);
        }
    }

    /// A call failed, and another one will be made.
    pub fn failed(&self, error: String) {
        lock(&self.text).error = error;
    }

    /// The storage answered.
    pub fn over(&self) {
        self.since_ms.store(NOT_WAITING, Ordering::Relaxed);
        let mut text = lock(&self.text);
        if !text.error.is_empty() {
            text.error = String::new();
        }
    }

    fn waits_since(&self) -> Option<u64> {
        Some(self.since_ms.load(Ordering::Relaxed)).filter(|since_ms| *since_ms != NOT_WAITING)
    }
}

/// A file whose reads are recorded. A wait that ends with a failure continues until a later read succeeds.
#[derive(Debug)]
pub(crate) struct Watched {
    inner: Box<dyn Reader>,
    wait: Arc<ReaderWait>,
}

impl Watched {
    pub(crate) fn new(inner: Box<dyn Reader>) -> Self {
        Self { inner, wait: StorageWaits::default().reader() }
    }

    pub(crate) fn watch(&mut self, wait: &Arc<ReaderWait>) {
        self.wait = Arc::clone(wait);
    }

    /// See [`Reader::next`].
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, StorageError> {
        self.wait.begin();
        let next = self.inner.next().await;
        self.ended(next)
    }

    /// See [`Reader::append_to`].
    pub(crate) async fn append_to(&mut self, buffer: &mut Vec<u8>) -> Result<usize, StorageError> {
        self.wait.begin();
        let read = self.inner.append_to(buffer).await;
        self.ended(read)
    }

    /// A read has returned: the wait is over, unless the storage failed.
    fn ended<T>(&self, read: Result<T, StorageError>) -> Result<T, StorageError> {
        if read.is_ok() {
            self.wait.over();
        }
        read
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock is held leaves figures and texts usable.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Moves the begin of all waits into the past.
    fn waits(ago: Duration) -> StorageWaits {
        StorageWaits {
            readers: Arc::default(),
            base: Instant::now().checked_sub(ago).expect("the machine runs for longer"),
        }
    }

    #[test]
    fn failed_attempt_and_its_retry_are_one_wait() {
        let waits = waits(Duration::from_secs(5));
        let reader = waits.reader();
        reader.file("hdfs://nn/a".to_owned());
        assert_eq!(waits.longest(), None);
        reader.since_ms.store(2_000, Ordering::Relaxed);
        reader.begin();
        reader.failed("connection refused".to_owned());
        reader.begin();
        let wait = waits.longest().expect("waits");
        assert!((3_000..60_000).contains(&wait.for_ms), "{wait:?}");
        assert_eq!(wait.file, "hdfs://nn/a");
        assert_eq!(wait.error, "connection refused");
        reader.over();
        assert_eq!(waits.longest(), None);
        reader.begin();
        assert_eq!(waits.longest(), None, "a wait that has just begun");
    }

    #[test]
    fn longest_wait_of_live_readers_is_reported() {
        let waits = waits(Duration::from_secs(9));
        let (one, other) = (waits.reader(), waits.reader());
        one.file("one".to_owned());
        other.file("other".to_owned());
        one.since_ms.store(4_000, Ordering::Relaxed);
        other.since_ms.store(1_000, Ordering::Relaxed);
        assert_eq!(waits.longest().map(|wait| wait.file), Some("other".into()));
        drop(other);
        assert_eq!(waits.longest().map(|wait| wait.file), Some("one".into()));
    }
}
