//! Opens files of known versions, with as few calls to the NameNode as possible: zero if the locations of the file's bytes
//! are known, one by its inode, else two.

use std::sync::Arc;

use hdfs_native::file::FileReader;

use super::entries::entry;
use super::inodes::{Inodes, inode_path};
use super::located::Located;
use super::namenode_calls::NameNodeCalls;
use crate::error::{Op, Reason, StorageError};
use crate::path::StorePath;
use crate::store::{FileVersion, OfVersion};

/// Opens the files of one HDFS. Clones share what is known of them.
#[derive(Debug, Clone)]
pub(super) struct VersionOpener {
    namenode: NameNodeCalls,
    located: Located,
    inodes: Arc<Inodes>,
}

/// What came of opening a file by its inode.
enum IdOpening {
    Opened(Arc<FileReader>),
    /// Its id is unknown.
    Unknown,
    /// It was replaced, or the server does not open files in this way.
    Failed,
}

impl VersionOpener {
    pub(super) fn new(namenode: NameNodeCalls) -> Self {
        Self { namenode, located: Located::default(), inodes: Arc::default() }
    }

    /// The file with the locations of its bytes, by the NameNode unless they are known.
    pub(super) async fn locate(
        &self,
        path: &StorePath,
        version: FileVersion,
    ) -> Result<OfVersion<Arc<FileReader>>, StorageError> {
        if let Some(file) = self.located.get(path.as_str(), version) {
            return Ok(OfVersion::Same(file));
        }
        let by_id = self.open_by_id(path, version).await?;
        let file = match by_id {
            IdOpening::Opened(file) => file,
            IdOpening::Unknown | IdOpening::Failed => {
                let status = self.namenode.status(Op::Stat, path).await?;
                let found = entry(path.clone(), &status).version();
                if found != version {
                    return Ok(OfVersion::Changed { bytes: found.bytes });
                }
                if matches!(by_id, IdOpening::Failed) {
                    self.inodes.give_up();
                }
                self.inodes.opened_by_path();
                let opened = self
                    .namenode
                    .read(Op::Open, path, |client, path| async move { client.read(&path).await })
                    .await?;
                Arc::new(opened)
            }
        };
        self.located.put(path.as_str(), version, Arc::clone(&file));
        Ok(OfVersion::Same(file))
    }

    /// The file by its inode, which has this version.
    ///
    /// # Errors
    /// The NameNode does not respond.
    async fn open_by_id(
        &self,
        path: &StorePath,
        version: FileVersion,
    ) -> Result<IdOpening, StorageError> {
        let (direct, inodes, file) =
            (Arc::clone(&self.namenode.direct), Arc::clone(&self.inodes), path.clone());
        let call = async move {
            let namenode = direct.namenode().await?;
            Ok(inodes.id_of(&file, version, &namenode).await?)
        };
        let id = match self.namenode.own(Op::Open, path, call).await {
            Ok(Some(id)) => id,
            Err(error) if error.reason == Reason::Unavailable => return Err(error),
            Ok(None) | Err(_) => return Ok(IdOpening::Unknown),
        };
        let opened = self
            .namenode
            .read(Op::Open, path, |client, _| async move { client.read(&inode_path(id)).await })
            .await;
        match opened {
            Ok(file) if file.file_length() as u64 == version.bytes => {
                self.inodes.opened();
                Ok(IdOpening::Opened(Arc::new(file)))
            }
            Err(error) if error.reason == Reason::Unavailable => Err(error),
            Ok(_) | Err(_) => {
                self.inodes.forget(path);
                Ok(IdOpening::Failed)
            }
        }
    }

    /// Drops what is known of where a file is, since a read failed.
    pub(super) fn forget(&self, path: &StorePath) {
        self.located.forget(path.as_str());
        self.inodes.forget(path);
    }
}
