//! Calls to the NameNodes of one HDFS: of hdfs-native, and those that it lacks. Each has a deadline, and logs in first where
//! the cluster is secured.

use std::future::Future;
use std::sync::Arc;

use hdfs_native::client::FileStatus;
use hdfs_native::{Client, HdfsError};
use heddle_hadoop::rpc::RpcError;

use super::calls::{CALL, Calls};
use super::direct::Direct;
use super::login::OwnFailure;
use crate::error::{Op, Reason, StorageError, WriteError};
use crate::path::StorePath;

/// How the NameNodes are called. Clones share the connections.
#[derive(Debug, Clone)]
pub(super) struct NameNodeCalls {
    pub(super) client: Arc<Client>,
    pub(super) direct: Arc<Direct>,
    /// `hdfs://…` without path, for messages.
    pub(super) url: String,
    pub(super) calls: Calls,
}

impl NameNodeCalls {
    /// The path as a URL, for messages.
    pub(super) fn show(&self, path: &StorePath) -> String {
        format!("{}{path}", self.url)
    }

    /// `ClientProtocol.getFileInfo`.
    pub(super) async fn status(
        &self,
        op: Op,
        path: &StorePath,
    ) -> Result<FileStatus, StorageError> {
        self.read(op, path, |client, path| async move { client.get_file_info(&path).await }).await
    }

    /// Runs a call that hdfs-native lacks.
    pub(super) async fn own<T: Send + 'static>(
        &self,
        op: Op,
        path: &StorePath,
        call: impl Future<Output = Result<T, OwnFailure>> + Send + 'static,
    ) -> Result<T, StorageError> {
        // A failed login is not a failure of the call, so it is returned as a value.
        let call = async move {
            match call.await {
                Ok(value) => Ok(Ok(value)),
                Err(OwnFailure::Login(what)) => Ok(Err(what)),
                Err(OwnFailure::Call(error)) => Err(error),
            }
        };
        let place = self.show(path);
        match self.calls.run::<_, RpcError>(CALL, call).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(what)) => Err(StorageError::new(op, place, Reason::Denied).because(what)),
            Err(failed) => Err(failed.read(op, &place)),
        }
    }

    /// Logs in before hdfs-native's first call, if the cluster is secured.
    pub(super) async fn log_in(&self, op: Op, path: &StorePath) -> Result<(), StorageError> {
        if !self.direct.is_secured() || self.direct.is_logged_in() {
            return Ok(());
        }
        let direct = Arc::clone(&self.direct);
        self.own(op, path, async move { direct.namenode().await.map(|_| ()) }).await
    }

    /// Runs a reading call.
    pub(super) async fn read<T, F>(
        &self,
        op: Op,
        path: &StorePath,
        call: impl FnOnce(Arc<Client>, String) -> F,
    ) -> Result<T, StorageError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, HdfsError>> + Send + 'static,
    {
        self.log_in(op, path).await?;
        let call = call(Arc::clone(&self.client), path.as_str().to_owned());
        self.calls.run(CALL, call).await.map_err(|failed| failed.read(op, &self.show(path)))
    }

    /// Runs a changing call.
    pub(super) async fn change<T, F>(
        &self,
        op: Op,
        path: &StorePath,
        call: impl FnOnce(Arc<Client>, String) -> F,
    ) -> Result<T, WriteError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, HdfsError>> + Send + 'static,
    {
        self.log_in(op, path).await.map_err(WriteError::NotDone)?;
        let call = call(Arc::clone(&self.client), path.as_str().to_owned());
        self.calls.run(CALL, call).await.map_err(|failed| failed.write(op, &self.show(path)))
    }
}
