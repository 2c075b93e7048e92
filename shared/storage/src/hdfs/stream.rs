//! Readers and writers of files on HDFS.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::ready;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use hdfs_native::Client;
use hdfs_native::file::{FileReader, FileWriter};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tracing::debug;

use super::calls::{CALL, COMPLETE, CallFailure, Calls};
use crate::error::{Op, Reason, StorageError, WriteError};
use crate::path::StorePath;
use crate::store::{Reader, Writer};

/// Limit for the next bytes of a stream: hdfs-native changes to another replica after 60 s.
const READ: Duration = Duration::from_secs(90);
/// Longer than a DataNode's report of a block takes to the NameNode.
const REPORTED: Duration = Duration::from_millis(10);
/// Packets that are read ahead. At 64 KiB each, 1 MiB.
const PACKETS_AHEAD: usize = 16;

/// A file being written. Between calls this struct holds the client's writer; during a call the task that makes it holds
/// the writer, and drops it after a failure.
pub(super) struct HdfsWriter {
    client: Arc<Client>,
    calls: Calls,
    path: StorePath,
    /// The path as a URL, for messages.
    shown: String,
    writer: Option<FileWriter>,
    /// Bytes accepted so far.
    written: u64,
    closed: bool,
}

impl std::fmt::Debug for HdfsWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HdfsWriter").field("path", &self.path).finish_non_exhaustive()
    }
}

impl HdfsWriter {
    pub(super) fn new(
        client: Arc<Client>,
        calls: Calls,
        path: StorePath,
        shown: String,
        writer: FileWriter,
    ) -> Self {
        Self { client, calls, path, shown, writer: Some(writer), written: 0, closed: false }
    }

    async fn call<F>(
        &mut self,
        op: Op,
        limit: Duration,
        call: impl FnOnce(FileWriter) -> F,
    ) -> Result<(), WriteError>
    where
        F: Future<Output = Result<FileWriter, hdfs_native::HdfsError>> + Send + 'static,
    {
        let Some(writer) = self.writer.take() else {
            let error = StorageError::new(op, &self.shown, Reason::Other);
            return Err(WriteError::NotDone(error.because("an earlier call on this file failed")));
        };
        let result = self.calls.run(limit, call(writer)).await;
        self.calls.learn(result.as_ref().map(|_| ()));
        match result {
            Ok(writer) => {
                self.writer = Some(writer);
                Ok(())
            }
            Err(failed) => Err(failed.write(op, &self.shown)),
        }
    }
}

#[async_trait]
impl Writer for HdfsWriter {
    async fn write(&mut self, data: Bytes) -> Result<(), WriteError> {
        if data.is_empty() {
            return Ok(());
        }
        self.written += data.len() as u64;
        let limit = self.calls.time_limit(self.written);
        self.call(Op::Write, limit, |mut writer| async move {
            writer.write_bytes(data).await?;
            Ok(writer)
        })
        .await
    }

    async fn sync(&mut self) -> Result<(), WriteError> {
        let limit = self.calls.time_limit(self.written);
        self.call(Op::Sync, limit, |mut writer| async move {
            writer.hsync().await?;
            Ok(writer)
        })
        .await
    }

    async fn close(mut self: Box<Self>) -> Result<(), WriteError> {
        // Called once: after a failure the client has abandoned the last block.
        let limit = self.calls.time_limit(self.written) + COMPLETE;
        let result = self
            .call(Op::Close, limit, |mut writer| async move {
                unhurried(writer.close()).await?;
                Ok(writer)
            })
            .await;
        // The caller resolves an unknown close. The file may be complete, so it is not deleted.
        self.closed = !matches!(result, Err(WriteError::NotDone(_)));
        result
    }
}

/// Completes a future a moment later than it could.
///
/// To close a file, hdfs-native asks the NameNode to complete it as soon as the DataNode has acknowledged the last
/// packet. The DataNode's report of the block usually arrives later, and the client then waits 400 ms before it asks
/// again, as Hadoop's own client does. With this pause the report arrives first.
async fn unhurried<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut begun = false;
    let mut pause = None;
    poll_fn(move |context| {
        if begun {
            let pause = pause.get_or_insert_with(|| Box::pin(tokio::time::sleep(REPORTED)));
            ready!(pause.as_mut().poll(context));
        }
        (begun, pause) = (true, None);
        future.as_mut().poll(context)
    })
    .await
}

/// A file that was not closed is useless and would stay open as long as this process renews its leases, so it is
/// deleted.
impl Drop for HdfsWriter {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        let (client, path) = (Arc::clone(&self.client), self.path.as_str().to_owned());
        self.calls.runtime.spawn(async move {
            let deleted = tokio::time::timeout(CALL, client.delete(&path, false)).await;
            debug!(path, ?deleted, "unfinished_file_deleted");
        });
    }
}

/// A file being read: a task of the client's runtime reads ahead.
pub(super) struct HdfsReader {
    packets: mpsc::Receiver<Result<Bytes, CallFailure>>,
    place: String,
    /// Bytes not yet read.
    left: u64,
    broken: bool,
    /// Called once when a read fails.
    on_failure: Option<Box<dyn FnOnce() + Send>>,
}

impl std::fmt::Debug for HdfsReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HdfsReader")
            .field("place", &self.place)
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

impl HdfsReader {
    /// Reads `file` from byte `offset` on.
    pub(super) fn start(
        runtime: &Handle,
        file: Arc<FileReader>,
        offset: u64,
        place: String,
    ) -> Self {
        // hdfs-native panics at an offset beyond the end; here the stream is empty.
        let length = file.file_length();
        let from = usize::try_from(offset).map_or(length, |offset| offset.min(length));
        let (sender, packets) = mpsc::channel(PACKETS_AHEAD);
        runtime.spawn(async move {
            let mut stream = std::pin::pin!(file.read_range_stream(from, length - from));
            loop {
                let next = match tokio::time::timeout(READ, stream.next()).await {
                    Ok(Some(Ok(packet))) => Ok(packet),
                    Ok(Some(Err(error))) => Err(CallFailure::Hdfs(error)),
                    Ok(None) => return,
                    Err(_) => Err(CallFailure::Late(READ)),
                };
                let over = next.is_err();
                if sender.send(next).await.is_err() || over {
                    return;
                }
            }
        });
        Self { packets, place, left: (length - from) as u64, broken: false, on_failure: None }
    }

    /// The same reader, which calls `call` when a read fails.
    pub(super) fn on_failure(mut self, call: impl FnOnce() + Send + 'static) -> Self {
        self.on_failure = Some(Box::new(call));
        self
    }

    fn failed(&mut self) {
        self.broken = true;
        if let Some(call) = self.on_failure.take() {
            call();
        }
    }
}

#[async_trait]
impl Reader for HdfsReader {
    async fn next(&mut self) -> Result<Option<Bytes>, StorageError> {
        while self.left > 0 && !self.broken {
            match self.packets.recv().await {
                Some(Ok(packet)) if packet.is_empty() => {}
                Some(Ok(packet)) => {
                    self.left = self.left.saturating_sub(packet.len() as u64);
                    return Ok(Some(packet));
                }
                Some(Err(failed)) => {
                    self.failed();
                    return Err(failed.read(Op::Read, &self.place));
                }
                // The task ended before the end of the file: it panicked, or blocks were missing.
                None => self.failed(),
            }
        }
        if self.broken {
            let error = StorageError::new(Op::Read, &self.place, Reason::Unavailable);
            return Err(error.because(format!(
                "the stream ended {} bytes before the end of the file",
                self.left
            )));
        }
        Ok(None)
    }
}
