//! Whether a manifest means a shard file: its header names shard, run, cut, epoch and number of shards.
//!
//! A file of another checkpoint can have a matching name, length and sidecar, if it was copied over. The header names
//! what it is, so an error can name both.

use heddle_protocol::ids::ShardId;
use heddle_protocol::manifest::{CutIdentity, ShardFile};

use super::header::{PROLOGUE_BYTES, ShardHeader, decode_prologue};
use crate::checkpoint::{CheckpointError, Damage};
use crate::error::StorageError;
use crate::path::StorePath;
use crate::store::{EntryKind, Storage};

/// Whether a shard of this cut has the header.
///
/// # Errors
/// [`Damage::OtherVersion`] with both.
pub(super) fn check_identity(
    header: &ShardHeader,
    shard: ShardId,
    identity: &CutIdentity,
) -> Result<(), Damage> {
    let own = header.identity();
    if (header.shard, &own) == (shard, identity) {
        return Ok(());
    }
    Err(Damage::OtherVersion {
        expected: name_of(shard, identity),
        found: name_of(header.shard, &own),
    })
}

fn name_of(shard: ShardId, identity: &CutIdentity) -> String {
    let CutIdentity { run, cut, epoch, shards } = identity;
    format!("shard {shard} of {shards} of {cut} (epoch {epoch}, run {run})")
}

/// The same error, or [`Damage::OtherVersion`] if a damaged file is whole enough to name another shard, cut or run.
pub(crate) async fn name_other_version(
    storage: &dyn Storage,
    dir: &StorePath,
    file: &ShardFile,
    identity: &CutIdentity,
    error: CheckpointError,
) -> CheckpointError {
    let CheckpointError::Damaged { file: shown, damage } = error else {
        return error;
    };
    let other = match header_of(storage, dir, file).await {
        Some(header) => check_identity(&header, file.shard, identity).err(),
        None => None,
    };
    CheckpointError::Damaged { file: shown, damage: other.unwrap_or(damage) }
}

/// The header of a file, which proves nothing about its other bytes; `None` if it has none or cannot be read.
async fn header_of(
    storage: &dyn Storage,
    dir: &StorePath,
    file: &ShardFile,
) -> Option<ShardHeader> {
    let path = dir.join(&file.file).map_err(StorageError::from).ok()?;
    let entry = storage.stat(&path).await.ok()?;
    if entry.kind != EntryKind::File {
        return None;
    }
    let prologue = storage.read_range(&path, 0, PROLOGUE_BYTES).await.ok()?;
    let bytes = decode_prologue(prologue.first_chunk()?).ok()?;
    if bytes as u64 > entry.bytes {
        return None;
    }
    let json = storage.read_range(&path, PROLOGUE_BYTES as u64, bytes).await.ok()?;
    ShardHeader::decode(&json).ok()
}
