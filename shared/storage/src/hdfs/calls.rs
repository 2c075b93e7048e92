//! The runtime of HDFS calls, and their time limits.
//!
//! hdfs-native has no deadlines, and it can panic. Every call is therefore a task with a deadline, and a panic fails only
//! that call. The runtime lives as long as the process: connections and lease renewals must outlive the runtimes of the
//! callers.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use hdfs_native::HdfsError;
use heddle_backoff::Backoff;
use heddle_hadoop::rpc::RpcError;
use tokio::runtime::{Builder, Handle, Runtime};

use super::error::{read_error, rpc_error, write_error};
use crate::error::{Op, Reason, StorageError, WriteError};

/// Limit of one NameNode call. Longer than a fail-over, shorter than the timeout of a checkpoint.
pub(super) const CALL: Duration = Duration::from_secs(60);
/// Limit of closing, added to the limit of the last packets: hdfs-native asks the NameNode to complete a file for 15 s.
pub(super) const COMPLETE: Duration = Duration::from_secs(20);
/// A file of at most this many bytes is cheap to write again.
const SMALL: u64 = 16 << 20;
/// Limits of a write to a small file. A pipeline with a dead DataNode is silent for 60 s. The next file gets another
/// pipeline, so it is faster to begin again. Each limit that is exceeded doubles the next one.
const SMALL_LIMITS: Backoff = Backoff::new(10_000, 75_000);
/// Limit of a write to a larger file: hdfs-native repairs a pipeline that was silent for 60 s.
const LARGE_LIMIT: Duration = Duration::from_millis(SMALL_LIMITS.max_ms());

/// Runs calls.
#[derive(Debug, Clone)]
pub(super) struct Calls {
    pub(super) runtime: Handle,
    /// Consecutive small files that exceeded their limit: all DataNodes may be alive but slow.
    timeouts_in_a_row: Arc<AtomicU32>,
}

/// Why a call failed.
pub(super) enum CallFailure {
    Hdfs(HdfsError),
    /// A NameNode call without hdfs-native.
    Rpc(RpcError),
    /// No response within the limit.
    Late(Duration),
    /// hdfs-native panicked.
    Panic,
}

impl From<HdfsError> for CallFailure {
    fn from(error: HdfsError) -> Self {
        Self::Hdfs(error)
    }
}

impl From<RpcError> for CallFailure {
    fn from(error: RpcError) -> Self {
        Self::Rpc(error)
    }
}

impl std::fmt::Debug for CallFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Hdfs(error) => error.fmt(f),
            Self::Rpc(error) => error.fmt(f),
            Self::Late(limit) => write!(f, "Late({limit:?})"),
            Self::Panic => f.write_str("Panic"),
        }
    }
}

impl Calls {
    /// The runtime of this process, created at the first use.
    pub(super) fn get() -> std::io::Result<Self> {
        static RUNTIME: OnceLock<Runtime> = OnceLock::new();
        static MAKING: Mutex<()> = Mutex::new(());
        let _one_at_a_time = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        if RUNTIME.get().is_none() {
            // One thread computes CRCs and moves packets of one stream at some 800 MB/s; two saturate the network of a node.
            let runtime = Builder::new_multi_thread()
                .worker_threads(2)
                .thread_name("hdfs-io")
                .enable_all()
                .build()?;
            let _was_empty = RUNTIME.set(runtime);
        }
        let runtime = RUNTIME.get().expect("set above, under the lock").handle().clone();
        Ok(Self { runtime, timeouts_in_a_row: Arc::default() })
    }

    /// Runs a call to its end or its deadline.
    pub(super) async fn run<T: Send + 'static, E: Into<CallFailure> + Send + 'static>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<T, CallFailure> {
        let task = self.runtime.spawn(async move { tokio::time::timeout(limit, call).await });
        match task.await {
            Ok(Ok(Ok(value))) => Ok(value),
            Ok(Ok(Err(error))) => Err(error.into()),
            Ok(Err(_)) => Err(CallFailure::Late(limit)),
            Err(_) => Err(CallFailure::Panic),
        }
    }

    /// Limit of a write to a file of which `written` bytes are written.
    pub(super) fn time_limit(&self, written: u64) -> Duration {
        time_limit(written, self.timeouts_in_a_row.load(Ordering::Relaxed))
    }

    /// Adapts later limits to the outcome of a write.
    pub(super) fn learn(&self, result: Result<(), &CallFailure>) {
        match result {
            Ok(()) => self.timeouts_in_a_row.store(0, Ordering::Relaxed),
            Err(CallFailure::Late(_)) => {
                self.timeouts_in_a_row.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => {}
        }
    }
}

fn time_limit(written: u64, timeouts: u32) -> Duration {
    if written > SMALL {
        return LARGE_LIMIT;
    }
    Duration::from_millis(SMALL_LIMITS.after_ms(timeouts))
}

impl CallFailure {
    pub(super) fn read(self, op: Op, place: &str) -> StorageError {
        match self {
            Self::Hdfs(error) => read_error(op, place, &error),
            Self::Rpc(error) => rpc_error(op, place, &error),
            Self::Late(limit) => StorageError::new(op, place, Reason::Unavailable)
                .because(format!("no response within {} s", limit.as_secs())),
            Self::Panic => {
                StorageError::new(op, place, Reason::Other).because("the HDFS client panicked")
            }
        }
    }

    pub(super) fn write(self, op: Op, place: &str) -> WriteError {
        match self {
            Self::Hdfs(error) => write_error(op, place, &error),
            other => WriteError::Unknown(other.read(op, place)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_files_fail_early_unless_all_writes_are_slow() {
        let seconds = |written, timeouts| time_limit(written, timeouts).as_secs();
        assert_eq!([0, 1, 2, 3, 40].map(|timeouts| seconds(0, timeouts)), [10, 20, 40, 75, 75]);
        assert_eq!(seconds(SMALL + 1, 0), 75);
    }
}
