//! HDFS as a [`Storage`]: hdfs-native, and what it lacks.
//!
//! - **Configuration** is read by `heddle-hadoop` (variables, `final`, includes) and passed on
//!   resolved; hdfs-native does not read a file itself.
//! - **Every call has a deadline**: the client has none of its own, and a NameNode that hangs would
//!   block its caller without a limit. A changing call that exceeds its deadline has an unknown outcome.
//! - **Calls run as tasks of one runtime** that lives as long as the process: connections and lease
//!   renewals must outlive their callers' runtimes, and a panic inside the client ends one call.
//! - **Files never stay open**: a writer that fails or is dropped deletes its file, since no other process
//!   could close it before its lease expires.
//! - No call creates parents or overwrites; modes are explicit.
//! - **Calls that hdfs-native lacks** (block locations, erasure coding) go to the NameNode through `heddle-hadoop`.

mod calls;
mod connect;
mod direct;
mod entries;
mod error;
mod inodes;
mod install;
mod issue;
mod located;
mod login;
mod namenode_calls;
mod stream;
mod versions;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use hdfs_native::WriteOptions;
use hdfs_native::file::FileReader;
use heddle_hadoop::Configuration;
use heddle_hadoop::configuration::Environment;

use crate::error::{Op, Reason, StorageError, WriteError, chain};
use crate::path::StorePath;
use crate::store::{
    BlockPlace, Entry, EntryKind, FileAccess, FileVersion, Mode, OfVersion, Reader, Storage, Writer,
};
use calls::{CALL, Calls};
use connect::NewFiles;
use direct::Direct;
use entries::{block_place, entries, entry};
use namenode_calls::NameNodeCalls;
use stream::{HdfsReader, HdfsWriter};
use versions::VersionOpener;

pub use install::{InstallError, adopt_token_file, install_tokens};
pub use issue::{IssueError, IssuedToken, TokenIssuer};
pub use login::{cancel_fetched_tokens, keep_fetched_tokens};

/// One HDFS.
#[derive(Debug, Clone)]
pub struct HdfsStorage {
    namenode: NameNodeCalls,
    new_files: NewFiles,
    versions: VersionOpener,
}

impl HdfsStorage {
    /// The storage of an authority (`host:port`, a name service, or empty for `fs.defaultFS`), by the
    /// configuration of this process. A process has one client per authority, since leases are renewed
    /// per client.
    ///
    /// # Errors
    /// The configuration cannot be read or names no such storage.
    pub fn connect(authority: &str) -> Result<Arc<Self>, StorageError> {
        static CONNECTED: Mutex<BTreeMap<String, Arc<HdfsStorage>>> = Mutex::new(BTreeMap::new());
        let mut connected = CONNECTED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(storage) = connected.get(authority) {
            return Ok(Arc::clone(storage));
        }
        let place = format!("hdfs://{authority}/");
        let configuration = Configuration::load(Environment::of_process())
            .map_err(|error| StorageError::new(Op::Open, &place, Reason::Other).because(error))?;
        let storage = Arc::new(Self::new(authority, &configuration)?);
        connected.insert(authority.to_owned(), Arc::clone(&storage));
        Ok(storage)
    }

    /// The same by a given configuration, with a client of its own.
    ///
    /// # Errors
    /// `Unsupported` if no authority is given and `fs.defaultFS` names none; `Denied` if the cluster is secured and the
    /// token file cannot be read; errors of hdfs-native.
    pub fn new(authority: &str, configuration: &Configuration) -> Result<Self, StorageError> {
        let service = connect::service_of(authority, configuration)?;
        let url = connect::url_of(&service);
        let calls = Calls::get()
            .map_err(|error| StorageError::new(Op::Open, &url, Reason::Other).because(error))?;
        let secured = connect::is_secured(configuration)
            .map_err(|error| StorageError::new(Op::Open, &url, Reason::Other).because(error))?;
        let client = connect::files_client(&url, configuration, &calls)?;
        let direct = Direct::new(service, configuration.clone(), secured);
        let namenode =
            NameNodeCalls { client: Arc::new(client), direct: Arc::new(direct), url, calls };
        Ok(Self {
            versions: VersionOpener::new(namenode.clone()),
            namenode,
            new_files: NewFiles::of(configuration),
        })
    }

    /// Creates a file with this block size; `None`: the server's default.
    async fn create_in_blocks(
        &self,
        path: &StorePath,
        mode: Mode,
        block_size: Option<u64>,
    ) -> Result<Box<dyn Writer>, WriteError> {
        let options = WriteOptions {
            block_size,
            replication: self.new_files.replication,
            permission: mode.0,
            overwrite: false,
            create_parent: false,
        };
        let writer =
            self.namenode
                .change(Op::Create, path, |client, path| async move {
                    client.create(&path, options).await
                })
                .await?;
        let (client, calls) = (Arc::clone(&self.namenode.client), self.namenode.calls.clone());
        Ok(Box::new(HdfsWriter::new(client, calls, path.clone(), self.show(path), writer)))
    }

    /// Reads exactly `len` bytes from byte `offset`.
    async fn read_of(
        &self,
        path: &StorePath,
        file: Arc<FileReader>,
        offset: u64,
        len: usize,
    ) -> Result<Bytes, StorageError> {
        // hdfs-native panics at an offset beyond the end.
        let (found, expected) = (file.file_length() as u64, offset.saturating_add(len as u64));
        if expected > found {
            return Err(StorageError::new(
                Op::Read,
                self.show(path),
                Reason::Short { expected, found },
            ));
        }
        let from =
            usize::try_from(offset).expect("not beyond the end of a file whose length is a usize");
        let read = self
            .namenode
            .read(Op::Read, path, |_, _| async move { file.read_range(from, len).await })
            .await?;
        if read.len() != len {
            return Err(StorageError::new(Op::Read, self.show(path), Reason::Unavailable)
                .because(format!("{} of {len} bytes came", read.len())));
        }
        Ok(read)
    }

    /// The locations of all bytes of a file.
    async fn places(&self, path: &StorePath) -> Result<Vec<BlockPlace>, StorageError> {
        let (direct, name) = (Arc::clone(&self.namenode.direct), path.as_str().to_owned());
        let call = async move {
            let namenode = direct.namenode().await?;
            // Java's largest length: to the end of the file.
            let length = i64::MAX.cast_unsigned();
            Ok(namenode.block_locations(&name, 0, length).await?)
        };
        let Some(file) = self.namenode.own(Op::Stat, path, call).await? else {
            return Err(StorageError::new(Op::Stat, self.show(path), Reason::NotFound));
        };
        Ok(file.blocks.into_iter().map(block_place).collect())
    }

    async fn delete(&self, path: &StorePath, wanted: EntryKind) -> Result<(), WriteError> {
        let status = self.namenode.status(Op::Delete, path).await.map_err(WriteError::NotDone)?;
        let refuse = |reason| {
            Err(WriteError::NotDone(StorageError::new(Op::Delete, self.show(path), reason)))
        };
        match (wanted, status.isdir) {
            (EntryKind::File, true) => return refuse(Reason::IsADirectory),
            (EntryKind::Dir, false) => return refuse(Reason::NotADirectory),
            _ => {}
        }
        let recursive = wanted == EntryKind::Dir;
        let deleted = self
            .namenode
            .change(Op::Delete, path, move |client, path| async move {
                client.delete(&path, recursive).await
            })
            .await?;
        if deleted { Ok(()) } else { refuse(Reason::NotFound) }
    }
}

impl HdfsStorage {
    /// `ClientProtocol.rename2`; with `overwrite` the NameNode removes a file at `to` in the same step.
    async fn rename_to(
        &self,
        from: &StorePath,
        to: &StorePath,
        overwrite: bool,
    ) -> Result<(), WriteError> {
        self.namenode.log_in(Op::Rename, from).await.map_err(WriteError::NotDone)?;
        let (client, source, target) =
            (Arc::clone(&self.namenode.client), from.as_str().to_owned(), to.as_str().to_owned());
        let call = async move { client.rename(&source, &target, overwrite).await };
        let place = || format!("{} to {to}", self.show(from));
        self.namenode
            .calls
            .run(CALL, call)
            .await
            .map_err(|failed| failed.write(Op::Rename, &place()))
    }
}

#[async_trait]
impl Storage for HdfsStorage {
    fn show(&self, path: &StorePath) -> String {
        self.namenode.show(path)
    }

    async fn create(&self, path: &StorePath, mode: Mode) -> Result<Box<dyn Writer>, WriteError> {
        self.create_in_blocks(path, mode, self.new_files.block_size).await
    }

    async fn create_sized(
        &self,
        path: &StorePath,
        mode: Mode,
        bytes: u64,
    ) -> Result<Box<dyn Writer>, WriteError> {
        let block_size = self.new_files.block_size_for(bytes);
        match self.create_in_blocks(path, mode, block_size).await {
            // The NameNode is configured with a larger smallest block.
            Err(WriteError::NotDone(error)) if chain(&error).contains("min-block-size") => {
                self.create(path, mode).await
            }
            result => result,
        }
    }

    async fn open(&self, path: &StorePath, offset: u64) -> Result<Box<dyn Reader>, StorageError> {
        let reader = self
            .namenode
            .read(Op::Open, path, |client, path| async move { client.read(&path).await })
            .await?;
        Ok(Box::new(HdfsReader::start(
            &self.namenode.calls.runtime,
            Arc::new(reader),
            offset,
            self.show(path),
        )))
    }

    async fn open_version(
        &self,
        path: &StorePath,
        version: FileVersion,
        offset: u64,
    ) -> Result<OfVersion<Box<dyn Reader>>, StorageError> {
        let file = match self.versions.locate(path, version).await? {
            OfVersion::Same(file) => file,
            OfVersion::Changed { bytes } => return Ok(OfVersion::Changed { bytes }),
        };
        let reader = HdfsReader::start(&self.namenode.calls.runtime, file, offset, self.show(path));
        let (versions, path) = (self.versions.clone(), path.clone());
        Ok(OfVersion::Same(Box::new(reader.on_failure(move || versions.forget(&path)))))
    }

    async fn read_range(
        &self,
        path: &StorePath,
        offset: u64,
        len: usize,
    ) -> Result<Bytes, StorageError> {
        let reader = self
            .namenode
            .read(Op::Open, path, |client, path| async move { client.read(&path).await })
            .await?;
        self.read_of(path, Arc::new(reader), offset, len).await
    }

    async fn read_version(
        &self,
        path: &StorePath,
        version: FileVersion,
        offset: u64,
        len: usize,
    ) -> Result<OfVersion<Bytes>, StorageError> {
        match self.versions.locate(path, version).await? {
            OfVersion::Same(file) => {
                let read = self.read_of(path, file, offset, len).await;
                if read.is_err() {
                    self.versions.forget(path);
                }
                read.map(OfVersion::Same)
            }
            OfVersion::Changed { bytes } => Ok(OfVersion::Changed { bytes }),
        }
    }

    async fn stat(&self, path: &StorePath) -> Result<Entry, StorageError> {
        let status = self.namenode.status(Op::Stat, path).await?;
        Ok(entry(path.clone(), &status))
    }

    async fn access(&self, path: &StorePath) -> Result<Option<FileAccess>, StorageError> {
        let status = self.namenode.status(Op::Stat, path).await?;
        Ok(Some(FileAccess { owner: status.owner, mode: Mode(status.permission.into()) }))
    }

    async fn list(&self, path: &StorePath) -> Result<Vec<Entry>, StorageError> {
        let children =
            self.namenode
                .read(Op::List, path, |client, path| async move {
                    client.list_status(&path, false).await
                })
                .await?;
        // The listing of a file contains the file, under its own path.
        if let [only] = &*children
            && !only.isdir
            && only.path.trim_end_matches('/') == path.as_str()
        {
            return Err(StorageError::new(Op::List, self.show(path), Reason::NotADirectory));
        }
        Ok(entries(path, &children))
    }

    async fn mkdir(&self, path: &StorePath, mode: Mode) -> Result<(), WriteError> {
        // The NameNode reports success if the directory exists already.
        match self.namenode.status(Op::Mkdir, path).await {
            Ok(_) => {
                return Err(WriteError::NotDone(StorageError::new(
                    Op::Mkdir,
                    self.show(path),
                    Reason::Exists,
                )));
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(WriteError::NotDone(error)),
        }
        self.namenode
            .change(Op::Mkdir, path, move |client, path| async move {
                client.mkdirs(&path, mode.0, false).await
            })
            .await
    }

    async fn rename(&self, from: &StorePath, to: &StorePath) -> Result<(), WriteError> {
        self.rename_to(from, to, false).await
    }

    fn default_mode(&self) -> Mode {
        Mode(0o666 & !self.new_files.umask)
    }

    async fn replace(&self, from: &StorePath, to: &StorePath) -> Result<(), WriteError> {
        self.rename_to(from, to, true).await
    }

    async fn delete_file(&self, path: &StorePath) -> Result<(), WriteError> {
        self.delete(path, EntryKind::File).await
    }

    async fn delete_dir(&self, path: &StorePath) -> Result<(), WriteError> {
        self.delete(path, EntryKind::Dir).await
    }

    async fn blocks(&self, path: &StorePath) -> Result<Vec<BlockPlace>, StorageError> {
        self.places(path).await
    }

    async fn check_dir(&self, path: &StorePath) -> Result<(), StorageError> {
        let (direct, name) = (Arc::clone(&self.namenode.direct), path.as_str().to_owned());
        let call = async move {
            let namenode = direct.namenode().await?;
            let zone = match namenode.encryption_zone(&name).await {
                // The caller may write there without the permission to read; then the first write finds the zone.
                Err(error) if error.is_remote("AccessControlException") => None,
                answer => answer?,
            };
            Ok((namenode.erasure_coding_policy(&name).await?, zone))
        };
        let what = match self.namenode.own(Op::Stat, path, call).await? {
            (_, Some(zone)) => error::in_encryption_zone(Some(&zone)),
            (Some(policy), None) => format!(
                "it is erasure-coded ({policy}), and files there cannot be synced: choose a replicated directory, \
                 or give this one back to replication (hdfs ec -setPolicy -replicate -path …)"
            ),
            (None, None) => return Ok(()),
        };
        Err(StorageError::new(Op::Create, self.show(path), Reason::Unsupported(what)))
    }

    async fn reach(&self) -> Result<(), StorageError> {
        let direct = Arc::clone(&self.namenode.direct);
        let tried = tokio::task::spawn_blocking(move || connect::ports(direct.service())).await;
        match tried {
            Ok(Err(wrong)) => {
                Err(StorageError::new(Op::Open, &self.namenode.url, Reason::Unavailable)
                    .because(wrong))
            }
            // A check that exceeded its limit has found no fault.
            Ok(Ok(())) | Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
