//! The checkpoint directory: its layout, which checkpoints count, and which process may write and delete.
//!
//! ```text
//! <dir>/HEDDLE                          marker: the directory belongs to Heddle
//!       claims/g2                       owner of generation 2, and the checkpoint it continues
//!       journal/g2/00000042.json        the ApplicationMaster's records
//!       g1-c4/                          a checkpoint: complete or absent
//!             shard-00000-<uuid>.ckpt, shard-00000-<uuid>.ckpt.md5, …
//!             MANIFEST.json, MANIFEST.json.md5
//!       .staging/g2/c5-<salt>/          a checkpoint that is being written
//!       .staging/g2/trash-g1-c1-<uuid>  is being deleted
//!       .staging/probe-g2-<uuid>        probe of a starting process that saw g2 as the highest claim
//!       damaged/g1-c3-<uuid>            was found damaged; moved here, never deleted
//!       damaged/files-g1-c4-<uuid>/     bad files, which others have replaced
//! ```
//!
//! - A checkpoint **exists** when its directory has its final name. All of its content is durable before.
//! - Every durable name contains a generation, and a generation is claimed by exclusive creation: no process writes a name
//!   that another one owns. A stale process does no harm: what it still commits is outside the [lineage](Lineage).
//! - A process deletes only names of this grammar, of a generation not above its own, and only while its claim is the
//!   highest.

mod commit;
mod dir;
mod files;
mod layout;
mod lineage;
mod load;
mod mirror;
mod remove;
mod repair;
mod restore;
mod root;
mod scratch;
mod shard_group;
#[cfg(test)]
mod tests;

use crate::error::{StorageError, chain};
use crate::shard_file::FormatError;
use crate::sidecar::SidecarError;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{CutId, Generation, RunId};
use heddle_protocol::manifest::{ManifestError, Md5, Sha256};

pub use commit::{CommitError, CommitGate};
pub use dir::CheckpointDir;
pub use files::{Depth, good_copy};
pub(crate) use layout::hidden_probe_name;
pub use layout::is_shard_file_name;
pub use lineage::{ClaimRecord, Lineage, Owner};
pub use load::{StoredCheckpoint, or_removed};
pub use remove::Swept;
pub use repair::{LostShard, Repair, RepairMode, ReplacedFile};
pub use restore::{Candidate, DamagePolicy, Health, KeptCheckpoint, Newest, SkippedCheckpoint};
pub use shard_group::{CheckedCopy, CopyState, PassedOver, ShardGroup};

/// How a file differs from what was written.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// The manifest lists it, and it is missing.
    #[error("the file is missing")]
    Missing,
    /// It has another length.
    #[error("the file has {found} bytes, expected {expected}")]
    Length {
        /// Length in the manifest.
        expected: u64,
        /// Length of the file.
        found: u64,
    },
    /// It has another MD5.
    #[error("the file's MD5 is {found}, expected {expected}")]
    Sum {
        /// MD5 in the manifest or sidecar.
        expected: Md5,
        /// MD5 of the bytes.
        found: Md5,
    },
    /// It has the MD5 of the manifest and another SHA-256.
    #[error("the file's SHA-256 is {found}, expected {expected}")]
    StrongSum {
        /// SHA-256 in the manifest.
        expected: Sha256,
        /// SHA-256 of the bytes.
        found: Sha256,
    },
    /// The sidecar is missing or does not match the file.
    #[error("the sidecar does not match the file")]
    Sidecar(#[source] SidecarError),
    /// It is a file of another shard, cut, epoch or run.
    #[error("it is another version: {found}, expected {expected}")]
    OtherVersion {
        /// According to the manifest.
        expected: String,
        /// According to the file's header.
        found: String,
    },
    /// A directory or a special file has its name.
    #[error("it is not a regular file")]
    NotAFile,
    /// It is not a shard file.
    #[error("the file is malformed")]
    Format(#[source] FormatError),
    /// It is not a manifest.
    #[error("the manifest is malformed")]
    Manifest(#[source] ManifestError),
    /// A claim, a marker or a journal segment that does not parse.
    #[error("the file is malformed: {0}")]
    Content(String),
}

/// What can go wrong with a checkpoint directory.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The storage is unavailable or refuses the call. The checkpoint is **not** damaged: no older one is used because of
    /// this error, and nothing is deleted.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A file is damaged.
    #[error("{file} is damaged")]
    Damaged {
        /// Which.
        file: String,
        /// How.
        #[source]
        damage: Damage,
    },
    /// A file was written by a later version of Heddle. No older checkpoint is used because of this error.
    #[error(
        "{file} was written by a later version: it has format version {found}, this program reads up to {newest}"
    )]
    Newer {
        /// Which.
        file: String,
        /// Its version.
        found: u32,
        /// The newest that is read.
        newest: u32,
    },
    /// The directory has content and no marker of Heddle.
    #[error(
        "{dir} is not a checkpoint directory of Heddle and not empty (it holds {}); name another \
         directory",
        names.join(", ")
    )]
    Foreign {
        /// The directory.
        dir: String,
        /// The first few names in it.
        names: Vec<String>,
    },
    /// The directory has no marker, and the call does not create one.
    #[error("{dir} is not a checkpoint directory of Heddle (it has no file HEDDLE)")]
    NotOurs {
        /// The directory.
        dir: String,
    },
    /// There were checkpoints, and none of them can be used. A start from initial values would silently lose the training.
    #[error(
        "{dir}: none of {damaged} checkpoints can be used; restore one, or start over in another directory"
    )]
    NoneUsable {
        /// The directory.
        dir: String,
        /// How many were found damaged.
        damaged: usize,
    },
    /// A claim continues a checkpoint that is missing.
    #[error("{dir}: checkpoint {cut} is recorded but missing")]
    Lost {
        /// The directory.
        dir: String,
        /// The continued one.
        cut: CutId,
    },
    /// It was taken before the first step and has no values to read.
    #[error(
        "{dir} has the initial values of its job: nothing was trained; continue the job, or name a later checkpoint"
    )]
    Untrained {
        /// Its directory.
        dir: String,
    },
    /// There is no checkpoint of that name.
    #[error("{dir} has no checkpoint {cut}")]
    Unknown {
        /// The directory.
        dir: String,
        /// The name.
        cut: CutId,
    },
    /// Its directory is gone, so nothing is known to be damaged.
    #[error("there is no checkpoint {dir}: it was removed while it was read, or never written")]
    Removed {
        /// Its directory.
        dir: String,
    },
    /// It is one of the newest two complete checkpoints.
    #[error("cannot remove checkpoint {cut}: it is one of the newest two")]
    Kept {
        /// Which.
        cut: CutId,
    },
    /// A mirror holds checkpoints of another run.
    #[error(
        "{dir} holds checkpoints of another run: claim {generation} is of run {found}, expected run {expected}; name another folder"
    )]
    OtherRun {
        /// The mirror.
        dir: String,
        /// The generation that both claim.
        generation: Generation,
        /// The run that is to be copied.
        expected: RunId,
        /// The run that is there.
        found: RunId,
    },
    /// A mirror is its checkpoint directory under another name.
    #[error("{dir} is the checkpoint directory itself; name another folder")]
    MirrorOfItself {
        /// The mirror.
        dir: String,
    },
    /// Another process has claimed a higher generation.
    #[error("generation {own} is superseded: {dir} was claimed as {highest}")]
    Fenced {
        /// The directory.
        dir: String,
        /// Ours.
        own: Generation,
        /// Theirs.
        highest: Generation,
    },
}

impl CheckpointError {
    /// The class of the failure.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Storage(error) => error.class(),
            Self::Foreign { .. }
            | Self::NotOurs { .. }
            | Self::Untrained { .. }
            | Self::Removed { .. }
            | Self::OtherRun { .. }
            | Self::MirrorOfItself { .. } => ErrorClass::Input,
            Self::Fenced { .. } => ErrorClass::Fenced,
            Self::Damaged { .. }
            | Self::Newer { .. }
            | Self::NoneUsable { .. }
            | Self::Lost { .. }
            | Self::Unknown { .. }
            | Self::Kept { .. } => ErrorClass::Corrupt,
        }
    }

    /// The failure as other processes receive it.
    pub fn failure(&self) -> Failure {
        Failure::new(self.class(), chain(self))
    }

    /// Whether a file is damaged, so that an older checkpoint may be used.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. })
    }

    /// Whether another process owns the directory.
    pub fn is_fenced(&self) -> bool {
        matches!(self, Self::Fenced { .. })
    }

    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Storage(error) if error.is_retryable())
    }

    pub(crate) fn of_format(file: &str, error: FormatError) -> Self {
        let file = file.to_owned();
        match error {
            FormatError::Newer { found } => {
                Self::Newer { file, found, newest: crate::shard_file::SHARD_VERSION }
            }
            error => Self::Damaged { file, damage: Damage::Format(error) },
        }
    }

    pub(crate) fn of_manifest(file: &str, error: ManifestError) -> Self {
        let file = file.to_owned();
        match error {
            ManifestError::Newer { found } => {
                Self::Newer { file, found, newest: heddle_protocol::manifest::FORMAT_VERSION }
            }
            error => Self::Damaged { file, damage: Damage::Manifest(error) },
        }
    }
}
