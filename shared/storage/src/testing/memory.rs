//! A file system in memory with the semantics of HDFS that matter here.
//!
//! - A writer refers to an inode: renaming its file or a directory above it does not stop it, deleting
//!   the file does.
//! - Bytes of an open file are visible to readers once they are synced.
//! - `close` does not sync: unsynced bytes are lost in [`MemoryStorage::power_loss`]. Names are not:
//!   the NameNode's log is always synced.
//! - Deleting a directory is one step.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{Op, Reason, StorageError, WriteError};
use crate::path::StorePath;
use crate::store::{Entry, EntryKind, Mode, Reader, Storage, Writer};

#[derive(Debug, Default)]
struct Inode {
    data: Vec<u8>,
    /// Bytes that survive a power loss.
    synced: usize,
    open: bool,
    deleted: bool,
}

impl Inode {
    fn visible(&self) -> &[u8] {
        if self.open { &self.data[..self.synced] } else { &self.data }
    }
}

#[derive(Debug, Clone)]
enum Node {
    Dir,
    File(Arc<Mutex<Inode>>),
}

/// A file system in memory. Clones are handles of the same one.
#[derive(Debug, Clone)]
pub struct MemoryStorage {
    nodes: Arc<Mutex<BTreeMap<StorePath, Node>>>,
    /// Most bytes that a file may be created for.
    quota: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for MemoryStorage {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStorage {
    /// A file system with a root directory only.
    pub fn new() -> Self {
        let nodes = BTreeMap::from([(StorePath::root(), Node::Dir)]);
        Self { nodes: Arc::new(Mutex::new(nodes)), quota: u64::MAX }
    }

    /// The same with a quota that a file of more bytes exceeds when it is created.
    #[must_use]
    pub fn with_quota(self, quota: u64) -> Self {
        Self { quota, ..self }
    }

    /// Another file system with the same content, files closed.
    #[must_use]
    pub fn copy(&self) -> Self {
        let nodes = lock(&self.nodes);
        let copied = nodes.iter().map(|(path, node)| {
            let node = match node {
                Node::Dir => Node::Dir,
                Node::File(inode) => {
                    let inode = lock(inode);
                    let (data, synced) = (inode.data.clone(), inode.synced);
                    Node::File(Arc::new(Mutex::new(Inode { data, synced, ..Inode::default() })))
                }
            };
            (path.clone(), node)
        });
        Self { nodes: Arc::new(Mutex::new(copied.collect())), ..*self }
    }

    /// All DataNodes lose power: unsynced bytes and all writers are lost.
    pub fn power_loss(&self) {
        for node in lock(&self.nodes).values_mut() {
            if let Node::File(inode) = node {
                let (data, synced) = {
                    let old = lock(inode);
                    (old.data[..old.synced].to_vec(), old.synced)
                };
                *node =
                    Node::File(Arc::new(Mutex::new(Inode { data, synced, ..Inode::default() })));
            }
        }
    }

    /// Changes the bytes of a file, as a failing disk does.
    pub fn damage(&self, path: &StorePath, change: impl FnOnce(&mut Vec<u8>)) {
        if let Some(Node::File(inode)) = lock(&self.nodes).get(path) {
            let mut inode = lock(inode);
            change(&mut inode.data);
            inode.synced = inode.data.len();
        }
    }

    /// All paths, directories too, in order.
    pub fn paths(&self) -> Vec<StorePath> {
        lock(&self.nodes).keys().cloned().collect()
    }

    fn error(&self, op: Op, path: &StorePath, reason: Reason) -> StorageError {
        StorageError::new(op, self.show(path), reason)
    }

    /// The children's paths, through any depth.
    fn below<'a>(
        nodes: &'a BTreeMap<StorePath, Node>,
        path: &StorePath,
    ) -> impl Iterator<Item = StorePath> + 'a {
        let prefix = if path.is_root() { "/".to_owned() } else { format!("{path}/") };
        let own = path.clone();
        nodes.keys().filter(move |key| **key != own && key.as_str().starts_with(&prefix)).cloned()
    }

    fn room_for(
        &self,
        nodes: &BTreeMap<StorePath, Node>,
        op: Op,
        path: &StorePath,
    ) -> Result<(), WriteError> {
        let reason = match path.parent().map(|parent| nodes.get(&parent)) {
            None => Reason::Exists,
            Some(None) => Reason::NotFound,
            Some(Some(Node::File(_))) => Reason::NotADirectory,
            Some(Some(Node::Dir)) if nodes.contains_key(path) => Reason::Exists,
            Some(Some(Node::Dir)) => return Ok(()),
        };
        Err(WriteError::NotDone(self.error(op, path, reason)))
    }

    fn entry(path: &StorePath, node: &Node) -> Entry {
        let (kind, bytes) = match node {
            Node::Dir => (EntryKind::Dir, 0),
            Node::File(inode) => (EntryKind::File, lock(inode).visible().len() as u64),
        };
        Entry { path: path.clone(), kind, bytes, modified_ms: 0 }
    }

    fn file(&self, op: Op, path: &StorePath) -> Result<Arc<Mutex<Inode>>, StorageError> {
        match lock(&self.nodes).get(path) {
            None => Err(self.error(op, path, Reason::NotFound)),
            Some(Node::Dir) => Err(self.error(op, path, Reason::IsADirectory)),
            Some(Node::File(inode)) => Ok(Arc::clone(inode)),
        }
    }
}

#[async_trait]
impl Storage for MemoryStorage {
    fn show(&self, path: &StorePath) -> String {
        format!("memory:{path}")
    }

    async fn create(&self, path: &StorePath, _: Mode) -> Result<Box<dyn Writer>, WriteError> {
        let mut nodes = lock(&self.nodes);
        self.room_for(&nodes, Op::Create, path)?;
        let inode = Arc::new(Mutex::new(Inode { open: true, ..Inode::default() }));
        nodes.insert(path.clone(), Node::File(Arc::clone(&inode)));
        Ok(Box::new(MemoryWriter { inode, place: self.show(path) }))
    }

    async fn create_sized(
        &self,
        path: &StorePath,
        mode: Mode,
        bytes: u64,
    ) -> Result<Box<dyn Writer>, WriteError> {
        if bytes > self.quota {
            let reason = Reason::Quota(format!("{bytes} bytes of {}", self.quota));
            return Err(WriteError::NotDone(self.error(Op::Create, path, reason)));
        }
        self.create(path, mode).await
    }

    async fn open(&self, path: &StorePath, offset: u64) -> Result<Box<dyn Reader>, StorageError> {
        let inode = self.file(Op::Open, path)?;
        let inode = lock(&inode);
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(inode.visible().len());
        Ok(Box::new(MemoryReader { rest: Bytes::copy_from_slice(&inode.visible()[from..]) }))
    }

    async fn read_range(
        &self,
        path: &StorePath,
        offset: u64,
        len: usize,
    ) -> Result<Bytes, StorageError> {
        let inode = self.file(Op::Read, path)?;
        let inode = lock(&inode);
        let (found, expected) = (inode.visible().len() as u64, offset.saturating_add(len as u64));
        if expected > found {
            return Err(self.error(Op::Read, path, Reason::Short { expected, found }));
        }
        let from = offset as usize;
        Ok(Bytes::copy_from_slice(&inode.visible()[from..from + len]))
    }

    async fn stat(&self, path: &StorePath) -> Result<Entry, StorageError> {
        match lock(&self.nodes).get(path) {
            Some(node) => Ok(Self::entry(path, node)),
            None => Err(self.error(Op::Stat, path, Reason::NotFound)),
        }
    }

    async fn list(&self, path: &StorePath) -> Result<Vec<Entry>, StorageError> {
        let nodes = lock(&self.nodes);
        match nodes.get(path) {
            None => Err(self.error(Op::List, path, Reason::NotFound)),
            Some(Node::File(_)) => Err(self.error(Op::List, path, Reason::NotADirectory)),
            Some(Node::Dir) => Ok(Self::below(&nodes, path)
                .filter(|child| child.parent().as_ref() == Some(path))
                .map(|child| Self::entry(&child, &nodes[&child]))
                .collect()),
        }
    }

    async fn mkdir(&self, path: &StorePath, _: Mode) -> Result<(), WriteError> {
        let mut nodes = lock(&self.nodes);
        self.room_for(&nodes, Op::Mkdir, path)?;
        nodes.insert(path.clone(), Node::Dir);
        Ok(())
    }

    async fn rename(&self, from: &StorePath, to: &StorePath) -> Result<(), WriteError> {
        let mut nodes = lock(&self.nodes);
        if !nodes.contains_key(from) {
            return Err(WriteError::NotDone(self.error(Op::Rename, from, Reason::NotFound)));
        }
        self.room_for(&nodes, Op::Rename, to)?;
        let moved: Vec<_> = Self::below(&nodes, from).chain([from.clone()]).collect();
        for path in moved {
            let rest = &path.as_str()[from.as_str().len()..];
            let target = StorePath::parse(&format!("{to}{rest}")).expect("two valid paths joined");
            if let Some(node) = nodes.remove(&path) {
                nodes.insert(target, node);
            }
        }
        Ok(())
    }

    async fn replace(&self, from: &StorePath, to: &StorePath) -> Result<(), WriteError> {
        let mut nodes = lock(&self.nodes);
        match (nodes.get(from), nodes.get(to)) {
            (None, _) => {
                let error = self.error(Op::Rename, from, Reason::NotFound);
                return Err(WriteError::NotDone(error));
            }
            (Some(_), Some(Node::Dir)) => {
                let error = self.error(Op::Rename, to, Reason::IsADirectory);
                return Err(WriteError::NotDone(error));
            }
            (Some(_), Some(Node::File(old))) => lock(old).deleted = true,
            (Some(_), None) => self.room_for(&nodes, Op::Rename, to)?,
        }
        if let Some(node) = nodes.remove(from) {
            nodes.insert(to.clone(), node);
        }
        Ok(())
    }

    async fn delete_file(&self, path: &StorePath) -> Result<(), WriteError> {
        let inode = self.file(Op::Delete, path).map_err(WriteError::NotDone)?;
        lock(&inode).deleted = true;
        lock(&self.nodes).remove(path);
        Ok(())
    }

    async fn delete_dir(&self, path: &StorePath) -> Result<(), WriteError> {
        let mut nodes = lock(&self.nodes);
        let reason = match nodes.get(path) {
            Some(Node::Dir) => None,
            Some(Node::File(_)) => Some(Reason::NotADirectory),
            None => Some(Reason::NotFound),
        };
        if let Some(reason) = reason {
            return Err(WriteError::NotDone(self.error(Op::Delete, path, reason)));
        }
        let gone: Vec<_> = Self::below(&nodes, path).chain([path.clone()]).collect();
        for path in gone {
            if let Some(Node::File(inode)) = nodes.remove(&path) {
                lock(&inode).deleted = true;
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct MemoryWriter {
    inode: Arc<Mutex<Inode>>,
    place: String,
}

impl MemoryWriter {
    fn with(&self, op: Op, change: impl FnOnce(&mut Inode)) -> Result<(), WriteError> {
        let mut inode = lock(&self.inode);
        if inode.deleted {
            return Err(WriteError::NotDone(StorageError::new(op, &self.place, Reason::NotFound)));
        }
        change(&mut inode);
        Ok(())
    }
}

#[async_trait]
impl Writer for MemoryWriter {
    async fn write(&mut self, data: Bytes) -> Result<(), WriteError> {
        self.with(Op::Write, |inode| inode.data.extend_from_slice(&data))
    }

    async fn sync(&mut self) -> Result<(), WriteError> {
        self.with(Op::Sync, |inode| inode.synced = inode.data.len())
    }

    async fn close(self: Box<Self>) -> Result<(), WriteError> {
        self.with(Op::Close, |inode| inode.open = false)
    }
}

#[derive(Debug)]
struct MemoryReader {
    rest: Bytes,
}

#[async_trait]
impl Reader for MemoryReader {
    async fn next(&mut self) -> Result<Option<Bytes>, StorageError> {
        // Pieces of odd sizes, like packets of a network.
        let piece = self.rest.split_to(self.rest.len().min(1000));
        Ok((!piece.is_empty()).then_some(piece))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe;

    fn path(text: &str) -> StorePath {
        StorePath::parse(text).expect("a valid path")
    }

    #[tokio::test]
    async fn it_passes_the_probe() {
        let storage = MemoryStorage::new();
        probe(&storage, &path("/probe")).await.expect("passes");
        assert_eq!(storage.paths(), [path("/")]);
    }

    #[tokio::test]
    async fn a_renamed_writer_continues_and_a_deleted_one_stops() {
        let storage = MemoryStorage::new();
        let mut writer = storage.create(&path("/a"), Mode::FILE).await.expect("created");
        writer.write(Bytes::from_static(b"one")).await.expect("written");
        storage.rename(&path("/a"), &path("/b")).await.expect("renamed");
        writer.write(Bytes::from_static(b"two")).await.expect("by inode");
        assert_eq!(storage.stat(&path("/b")).await.expect("there").bytes, 0, "nothing synced yet");
        writer.sync().await.expect("synced");
        assert_eq!(storage.stat(&path("/b")).await.expect("there").bytes, 6);
        storage.delete_file(&path("/b")).await.expect("deleted");
        assert!(writer.write(Bytes::from_static(b"x")).await.is_err());
    }

    #[tokio::test]
    async fn a_power_loss_drops_closed_bytes_without_sync() {
        let storage = MemoryStorage::new();
        let mut writer = storage.create(&path("/a"), Mode::FILE).await.expect("created");
        writer.write(Bytes::from_static(b"one")).await.expect("written");
        writer.sync().await.expect("synced");
        writer.write(Bytes::from_static(b"two")).await.expect("written");
        writer.close().await.expect("closed");
        assert_eq!(storage.stat(&path("/a")).await.expect("there").bytes, 6);
        storage.power_loss();
        assert_eq!(storage.stat(&path("/a")).await.expect("there").bytes, 3);
    }
}
