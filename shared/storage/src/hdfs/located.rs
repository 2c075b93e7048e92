//! Files whose block locations are known: they are opened again without the NameNode.
//!
//! A job reads the same input in every pass. The blocks of a closed file never change, so the locations that the
//! NameNode gave once serve later passes, also while the NameNode is down. Locations go stale when a block moves or its
//! file is deleted; the read then fails, the entry is dropped and the next open asks the NameNode again.
//! (HDFS clients cache `LocatedBlocks` per open stream in the same way: `DFSInputStream.locatedBlocks`.)
//!
//! This module keeps the locations. It does not read; `stream` does.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hdfs_native::file::FileReader;

use crate::store::FileVersion;

/// Files that are kept. Each entry holds the locations of its blocks, some 500 bytes a block.
const FILES_MAX: usize = 1_024;
/// Sum of the kept files' lengths: 4,096 blocks of 128 MiB, about 2 MiB of locations.
const BYTES_MAX: u64 = 512 << 30;

/// The files of one HDFS. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Located(Arc<Mutex<LocatedFiles<Arc<FileReader>>>>);

impl std::fmt::Debug for Located {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Located").field("files", &self.lock().by_path.len()).finish()
    }
}

impl Located {
    fn lock(&self) -> MutexGuard<'_, LocatedFiles<Arc<FileReader>>> {
        // A panic while the lock is held leaves the map usable: every entry is complete.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file, if it is known as this version.
    pub(super) fn get(&self, path: &str, version: FileVersion) -> Option<Arc<FileReader>> {
        self.lock().get(path, version)
    }

    /// Keeps a file's locations.
    pub(super) fn put(&self, path: &str, version: FileVersion, file: Arc<FileReader>) {
        self.lock().put(path, version, file);
    }

    /// Drops a file whose read failed: its locations may be stale.
    pub(super) fn forget(&self, path: &str) {
        self.lock().forget(path);
    }
}

/// If the limit is exceeded, the least recently used file is dropped.
struct LocatedFiles<T> {
    by_path: HashMap<String, Known<T>>,
    bytes: u64,
    /// Counts uses, which orders them.
    uses: u64,
}

struct Known<T> {
    version: FileVersion,
    used: u64,
    file: T,
}

impl<T> Default for LocatedFiles<T> {
    fn default() -> Self {
        Self { by_path: HashMap::new(), bytes: 0, uses: 0 }
    }
}

impl<T: Clone> LocatedFiles<T> {
    fn get(&mut self, path: &str, version: FileVersion) -> Option<T> {
        self.uses += 1;
        let uses = self.uses;
        let known = self.by_path.get_mut(path)?;
        if known.version != version {
            return None;
        }
        known.used = uses;
        Some(known.file.clone())
    }

    fn put(&mut self, path: &str, version: FileVersion, file: T) {
        self.forget(path);
        while self.by_path.len() >= FILES_MAX
            || (self.bytes.saturating_add(version.bytes) > BYTES_MAX && !self.by_path.is_empty())
        {
            let oldest = self.by_path.iter().min_by_key(|(_, known)| known.used);
            let Some(oldest) = oldest.map(|(path, _)| path.clone()) else {
                break;
            };
            self.forget(&oldest);
        }
        self.uses += 1;
        self.bytes = self.bytes.saturating_add(version.bytes);
        let known = Known { version, used: self.uses, file };
        self.by_path.insert(path.to_owned(), known);
    }

    fn forget(&mut self, path: &str) {
        if let Some(known) = self.by_path.remove(path) {
            self.bytes = self.bytes.saturating_sub(known.version.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(bytes: u64) -> FileVersion {
        FileVersion { bytes, modified_ms: 7 }
    }

    #[test]
    fn another_version_is_not_found() {
        let mut files = LocatedFiles::default();
        files.put("/a", version(10), "ten");
        assert_eq!(files.get("/a", version(10)), Some("ten"));
        assert_eq!(files.get("/a", version(11)), None);
        let later = FileVersion { bytes: 10, modified_ms: 8 };
        assert_eq!(files.get("/a", later), None);
        files.forget("/a");
        assert_eq!(files.get("/a", version(10)), None);
        assert_eq!(files.bytes, 0);
    }

    #[test]
    fn the_least_recently_used_files_are_dropped() {
        let mut files = LocatedFiles::default();
        for n in 0..FILES_MAX {
            files.put(&n.to_string(), version(1), n);
        }
        assert_eq!(files.get("0", version(1)), Some(0));
        files.put("new", version(1), 0);
        assert_eq!(files.by_path.len(), FILES_MAX);
        assert_eq!(files.get("0", version(1)), Some(0));
        assert_eq!(files.get("1", version(1)), None);
        files.put("huge", version(BYTES_MAX), 1);
        assert_eq!(files.by_path.len(), 1);
        files.put("larger", version(BYTES_MAX + 1), 2);
        assert_eq!((files.by_path.len(), files.bytes), (1, BYTES_MAX + 1));
    }
}
