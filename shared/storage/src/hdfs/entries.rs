//! What a NameNode answers, as this crate's types.

use hdfs_native::client::FileStatus;
use heddle_hadoop::namenode::{BlockLocation, Replica};

use crate::path::StorePath;
use crate::store::{BlockHost, BlockPlace, Entry, EntryKind};

pub(super) fn entry(path: StorePath, status: &FileStatus) -> Entry {
    Entry {
        path,
        kind: if status.isdir { EntryKind::Dir } else { EntryKind::File },
        bytes: if status.isdir { 0 } else { status.length as u64 },
        modified_ms: status.modification_time,
    }
}

/// The children of a directory, by name.
pub(super) fn entries(directory: &StorePath, children: &[FileStatus]) -> Vec<Entry> {
    let child = |status: &FileStatus| {
        let name = status.path.rsplit('/').next()?;
        match directory.join(name) {
            Ok(child) => Some(entry(child, status)),
            Err(_) => Entry::unnameable(directory, name),
        }
    };
    let mut entries: Vec<_> = children.iter().filter_map(child).collect();
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    entries
}

/// Where a block is.
pub(super) fn block_place(block: BlockLocation) -> BlockPlace {
    let host = |replica: Replica| BlockHost { name: replica.host, rack: replica.rack };
    BlockPlace {
        offset: block.offset,
        bytes: block.length,
        hosts: block.replicas.into_iter().map(host).collect(),
    }
}
