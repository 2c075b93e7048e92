//! Where calls to HDFS run, and how long they may take.
//!
//! hdfs-native has no deadlines and panics now and then. So every call is a task of one runtime that lives as
//! long as the process (connections and lease renewals must outlive their callers' runtimes), with a deadline
//! around it; a panic ends one call.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use hdfs_native::HdfsError;
use heddle_hadoop::rpc::RpcError;
use tokio::runtime::{Builder, Handle, Runtime};

use super::error::{read_error, rpc_error, write_error};
use crate::error::{Op, Reason, StorageError, WriteError};

/// How long one call of the NameNode may take. Longer than a fail-over, shorter than a checkpoint's patience.
pub(super) const CALL: Duration = Duration::from_secs(60);
/// hdfs-native asks a NameNode for a closed file for 15 s by itself; added to what the last packets may take.
pub(super) const COMPLETE: Duration = Duration::from_secs(20);
/// Bytes up to which a file is quickly written again.
const SMALL: u64 = 16 << 20;
/// How long a run of bytes of a small file may take at first. A pipeline with a dead DataNode in its middle says
/// nothing for 60 s; the NameNode gives the next file another pipeline, so beginning again is quicker.
const SMALL_PATIENCE: Duration = Duration::from_secs(10);
/// The same of a file that would cost much to write again: hdfs-native repairs a pipeline that was silent for 60 s.
const PATIENCE: Duration = Duration::from_secs(75);

/// Where calls run.
#[derive(Debug, Clone)]
pub(super) struct Calls {
    pub(super) runtime: Handle,
    /// Small files in a row that were late: perhaps nobody is dead and the DataNodes are just slow.
    late: Arc<AtomicU32>,
}

/// Why a call gave no result.
pub(super) enum Failed {
    Hdfs(HdfsError),
    /// One of our own calls of the NameNode.
    Rpc(RpcError),
    /// No answer in time.
    Late(Duration),
    /// The client panicked.
    Panic,
}

impl From<HdfsError> for Failed {
    fn from(error: HdfsError) -> Self {
        Self::Hdfs(error)
    }
}

impl From<RpcError> for Failed {
    fn from(error: RpcError) -> Self {
        Self::Rpc(error)
    }
}

impl std::fmt::Debug for Failed {
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
    /// The runtime of this process, made at the first use.
    pub(super) fn get() -> std::io::Result<Self> {
        static RUNTIME: OnceLock<Runtime> = OnceLock::new();
        static MAKING: Mutex<()> = Mutex::new(());
        let _one_at_a_time = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        if RUNTIME.get().is_none() {
            // One thread computes CRCs and moves packets of one stream at some 800 MB/s; two serve a
            // node's network.
            let runtime = Builder::new_multi_thread()
                .worker_threads(2)
                .thread_name("hdfs-io")
                .enable_all()
                .build()?;
            let _was_empty = RUNTIME.set(runtime);
        }
        let runtime = RUNTIME.get().expect("set just now, under the lock").handle().clone();
        Ok(Self { runtime, late: Arc::default() })
    }

    /// Runs a call to its end or its deadline.
    pub(super) async fn run<T: Send + 'static, E: Into<Failed> + Send + 'static>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<T, Failed> {
        let task = self.runtime.spawn(async move { tokio::time::timeout(limit, call).await });
        match task.await {
            Ok(Ok(Ok(value))) => Ok(value),
            Ok(Ok(Err(error))) => Err(error.into()),
            Ok(Err(_)) => Err(Failed::Late(limit)),
            Err(_) => Err(Failed::Panic),
        }
    }

    /// How long bytes of a file may take of which so many are written.
    pub(super) fn patience(&self, written: u64) -> Duration {
        patience(written, self.late.load(Ordering::Relaxed))
    }

    /// Learns from how bytes of a file went.
    pub(super) fn learn(&self, result: Result<(), &Failed>) {
        match result {
            Ok(()) => self.late.store(0, Ordering::Relaxed),
            Err(Failed::Late(_)) => {
                self.late.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => {}
        }
    }
}

fn patience(written: u64, late_in_a_row: u32) -> Duration {
    if written > SMALL {
        return PATIENCE;
    }
    (SMALL_PATIENCE * (1 << late_in_a_row.min(3))).min(PATIENCE)
}

impl Failed {
    pub(super) fn read(self, op: Op, place: &str) -> StorageError {
        match self {
            Self::Hdfs(error) => read_error(op, place, &error),
            Self::Rpc(error) => rpc_error(op, place, &error),
            Self::Late(limit) => StorageError::new(op, place, Reason::Unavailable)
                .because(format!("no answer within {} s", limit.as_secs())),
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
    fn small_files_are_given_up_early_unless_everything_is_slow() {
        let seconds = |written, late| patience(written, late).as_secs();
        assert_eq!([0, 1, 2, 3, 40].map(|late| seconds(0, late)), [10, 20, 40, 75, 75]);
        assert_eq!(seconds(SMALL + 1, 0), 75);
    }
}
