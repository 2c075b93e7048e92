//! Inode ids of files: a file of a known version is opened by its id, with one call to the NameNode instead of two.
//!
//! `getBlockLocations` answers the length of a file, but not when it was changed, so a file that is opened by its path
//! needs `getFileInfo` too. It takes `/.reserved/.inodes/<id>` as a path (`FSDirectory.resolveDotInodesPath`). A listing
//! has the ids of up to 1,000 files beside their versions. A file that replaces another one has another inode, and
//! HDFS changes an inode only by appending and truncating. A file that is opened by the id of a version is therefore that
//! version if it has its length.
//!
//! - Behind a router, ids count within the name space in which such paths end. The listing goes by the inode of the directory, so
//!   a file of another name space is not in it with the version that is asked for.
//! - A deleted file that is kept in a snapshot has its id still, which then leads to the file that has its name now
//!   (`INode.getPathComponents`). Files below a directory that permits snapshots are opened by path.
//!
//! This module decides when to list, and keeps ids. It does not open files.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use heddle_hadoop::namenode::{InodeStatus, NameNode};
use heddle_hadoop::rpc::RpcError;

use crate::path::StorePath;
use crate::store::FileVersion;

/// Files whose ids are kept, some 200 bytes each. More are dropped together.
const IDS_MAX: usize = 20_000;
/// Files that are opened by their paths before there is a listing: most jobs have few.
const OPENED_BY_PATH: u64 = 4;
/// A listing must have saved this number of calls, on average, before there is another one: with its look at the directories
/// it takes up to ten.
const SAVED_BY_A_LISTING: u64 = 16;

/// The ids of the files of one HDFS.
#[derive(Debug, Default)]
pub(super) struct Inodes {
    known: Mutex<KnownInodes>,
    /// One listing at a time: it has the files of the other lanes too.
    listing: tokio::sync::Mutex<()>,
}

/// The path of an inode.
pub(super) fn inode_path(id: u64) -> String {
    format!("/.reserved/.inodes/{id}")
}

impl Inodes {
    /// The id of a file of this version, if it is known or worth a listing.
    ///
    /// # Errors
    /// See [`RpcError`].
    pub(super) async fn id_of(
        &self,
        path: &StorePath,
        version: FileVersion,
        namenode: &NameNode,
    ) -> Result<Option<u64>, RpcError> {
        let answer = self.lock().find(path, version);
        let _alone = match answer {
            IdAnswer::Known(id) => return Ok(Some(id)),
            IdAnswer::Unknown => return Ok(None),
            IdAnswer::List { .. } => self.listing.lock().await,
        };
        // Another lane may have listed meanwhile.
        let answer = self.lock().find(path, version);
        let after = match answer {
            IdAnswer::Known(id) => return Ok(Some(id)),
            IdAnswer::Unknown => return Ok(None),
            IdAnswer::List { after } => after,
        };
        let Some(folder) = path.parent() else { return Ok(None) };
        self.lock().listed(&folder);
        let children = children(namenode, &folder, &after).await?;
        let mut known = self.lock();
        known.keep(&folder, &children);
        Ok(known.id(path, version))
    }

    /// A file was opened by its path.
    pub(super) fn opened_by_path(&self) {
        self.lock().opened_by_path += 1;
    }

    /// A file was opened by its id.
    pub(super) fn opened(&self) {
        self.lock().saved += 1;
    }

    /// Forgets the id of a file.
    pub(super) fn forget(&self, path: &StorePath) {
        self.lock().ids.remove(path.as_str());
    }

    /// The server does not open files by their ids.
    pub(super) fn give_up(&self) {
        self.lock().given_up = true;
    }

    fn lock(&self) -> MutexGuard<'_, KnownInodes> {
        // A panic while the lock is held leaves usable ids: every entry is complete.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The files of a directory after a name; empty if a snapshot may have them.
async fn children(
    namenode: &NameNode,
    folder: &StorePath,
    after: &[u8],
) -> Result<Vec<InodeStatus>, RpcError> {
    for above in std::iter::successors(Some(folder.clone()), StorePath::parent) {
        // The root has such a directory always; by default its quota of snapshots is 0.
        let may_have = if above.is_root() {
            !namenode.children("/.snapshot", b"").await?.is_empty()
        } else {
            namenode.inode(&format!("{above}/.snapshot")).await?.is_some()
        };
        if may_have {
            return Ok(Vec::new());
        }
    }
    match namenode.inode(folder.as_str()).await?.and_then(|inode| inode.id) {
        Some(id) => namenode.children(&inode_path(id), after).await,
        None => Ok(Vec::new()),
    }
}

/// What is known of a file's id.
#[derive(Debug, PartialEq, Eq)]
enum IdAnswer {
    Known(u64),
    /// Unknown, and not worth a listing.
    Unknown,
    /// Unknown: list the names after this one.
    List {
        after: Vec<u8>,
    },
}

#[derive(Debug, Default)]
struct KnownInodes {
    ids: HashMap<String, KnownInode>,
    /// Directories that were listed, each at least in part.
    folders: HashSet<String>,
    listings: u64,
    opened_by_path: u64,
    /// Calls that were saved.
    saved: u64,
    given_up: bool,
}

#[derive(Debug)]
struct KnownInode {
    version: FileVersion,
    id: u64,
}

impl KnownInodes {
    fn find(&self, path: &StorePath, version: FileVersion) -> IdAnswer {
        // Paths of the NameNode's own, such as raw bytes of encrypted files, have the inodes of other paths.
        if self.given_up || path.as_str().starts_with("/.reserved/") {
            return IdAnswer::Unknown;
        }
        if let Some(id) = self.id(path, version) {
            return IdAnswer::Known(id);
        }
        if self.ids.contains_key(path.as_str())
            || self.opened_by_path < OPENED_BY_PATH
            || self.listings * SAVED_BY_A_LISTING > self.saved
        {
            return IdAnswer::Unknown;
        }
        let is_listed = path.parent().is_some_and(|dir| self.folders.contains(dir.as_str()));
        let name = path.name().as_bytes();
        // A prefix of the name sorts before it, and few other names lie between.
        let before = if is_listed { name.len().saturating_sub(1) } else { 0 };
        IdAnswer::List { after: name[..before].to_vec() }
    }

    fn id(&self, path: &StorePath, version: FileVersion) -> Option<u64> {
        let known = self.ids.get(path.as_str())?;
        (known.version == version).then_some(known.id)
    }

    /// A directory is listed, whatever comes of it.
    fn listed(&mut self, folder: &StorePath) {
        self.listings += 1;
        self.folders.insert(folder.as_str().to_owned());
    }

    fn keep(&mut self, folder: &StorePath, children: &[InodeStatus]) {
        if self.ids.len() + children.len() > IDS_MAX {
            self.ids.clear();
            self.folders.clear();
        }
        for child in children {
            let path = std::str::from_utf8(&child.name).ok().map(|name| folder.join(name));
            if let (Some(Ok(path)), Some(id)) = (path, child.id) {
                let version = FileVersion { bytes: child.length, modified_ms: child.modified_ms };
                self.ids.insert(path.as_str().to_owned(), KnownInode { version, id });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: FileVersion = FileVersion { bytes: 10, modified_ms: 7 };

    fn path(text: &str) -> StorePath {
        StorePath::parse(text).expect("a path")
    }

    #[test]
    fn listing_begins_at_the_file_if_the_directory_was_listed() {
        let mut known = KnownInodes::default();
        let file = path("/data/part-7");
        assert_eq!(known.find(&file, VERSION), IdAnswer::Unknown, "there may be few files");
        known.opened_by_path = OPENED_BY_PATH;
        assert_eq!(known.find(&file, VERSION), IdAnswer::List { after: Vec::new() });
        known.listed(&path("/data"));
        assert_eq!(known.find(&file, VERSION), IdAnswer::Unknown, "the listing saved no call");
        known.saved = SAVED_BY_A_LISTING;
        assert_eq!(known.find(&file, VERSION), IdAnswer::List { after: b"part-".to_vec() });
        assert_eq!(known.find(&path("/x/y"), VERSION), IdAnswer::List { after: Vec::new() });
        known.given_up = true;
        assert_eq!(known.find(&file, VERSION), IdAnswer::Unknown);
    }

    #[test]
    fn id_is_that_of_its_version() {
        let mut known = KnownInodes::default();
        known.ids.insert("/data/a".to_owned(), KnownInode { version: VERSION, id: 16_400 });
        assert_eq!(known.find(&path("/data/a"), VERSION), IdAnswer::Known(16_400));
        let later = FileVersion { modified_ms: 8, ..VERSION };
        assert_eq!(known.find(&path("/data/a"), later), IdAnswer::Unknown);
    }

    #[test]
    fn reserved_paths_have_no_ids() {
        let known = KnownInodes { opened_by_path: OPENED_BY_PATH, ..KnownInodes::default() };
        assert_eq!(known.find(&path("/.reserved/raw/zone/a"), VERSION), IdAnswer::Unknown);
    }
}
