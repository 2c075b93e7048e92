//! The checkpoint directory: what lies where, what may be believed, who may write and delete.
//!
//! ```text
//! <dir>/HEDDLE                          marker: this directory is ours
//!       claims/g2                       who owns generation 2, and what it continues
//!       journal/g2/00000042.json        the ApplicationMaster's records
//!       g1-c4/                          a checkpoint: exists wholly or not at all
//!             shard-00000-<uuid>.ckpt, shard-00000-<uuid>.ckpt.md5, …
//!             MANIFEST.json, MANIFEST.json.md5
//!       .staging/g2/c5-<salt>/          a checkpoint in the making
//!       .staging/g2/trash-g1-c1-<uuid>  one that is being deleted
//!       .staging/probe-g2-<uuid>        scratch of somebody who begins, and saw g2 claimed
//!       damaged/g1-c3-<uuid>            one that was found damaged and set aside, never deleted
//! ```
//!
//! - A checkpoint **exists** when its directory has its final name. Everything in it was durable before.
//! - Every durable name carries a generation, and generations are claimed by exclusive create: no
//!   process ever writes a name that another one owns. So a process that was thought dead needs no
//!   killing: what it still commits lies outside the [lineage](Lineage).
//! - Nothing is deleted but names of this grammar, of a generation not above one's own, and only
//!   while one's own claim is the highest.

mod commit;
mod dir;
mod files;
mod layout;
mod lineage;
mod remove;
mod restore;
mod scratch;
#[cfg(test)]
mod tests;

use crate::error::{StorageError, chain};
use crate::shard_file::FormatError;
use crate::sidecar::SidecarError;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{CutId, Generation};
use heddle_protocol::manifest::{ManifestError, Md5};

pub use commit::{CommitError, Gate};
pub use dir::{Checkpoint, CheckpointDir, Depth};
pub(crate) use layout::hidden_probe_name;
pub use lineage::{ClaimRecord, Lineage, Owner};
pub use remove::Swept;
pub use restore::{Candidate, DamagedCheckpoint, Health, Newest, OnCorrupt};

/// What is wrong with a file whose bytes are proven to be other than those written.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// The manifest lists it and it is not there.
    #[error("the file is missing")]
    Missing,
    /// Another length.
    #[error("the file has {found} bytes, expected {expected}")]
    Length {
        /// What the manifest says.
        expected: u64,
        /// What is there.
        found: u64,
    },
    /// Another sum.
    #[error("the file's MD5 is {found}, expected {expected}")]
    Sum {
        /// What the manifest or sidecar says.
        expected: Md5,
        /// What the bytes give.
        found: Md5,
    },
    /// The sidecar is missing or does not vouch for the file.
    #[error("the sidecar is wrong")]
    Sidecar(#[source] SidecarError),
    /// Another kind of thing has its name.
    #[error("it is not a regular file")]
    NotAFile,
    /// No shard file.
    #[error("the file is malformed")]
    Format(#[source] FormatError),
    /// No manifest.
    #[error("the manifest is malformed")]
    Manifest(#[source] ManifestError),
    /// A claim, marker or journal segment that cannot be read as one.
    #[error("the file is malformed: {0}")]
    Content(String),
}

/// What can go wrong with a checkpoint directory.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The storage could not be used just now, or refuses. **Not** a damaged checkpoint: no older one
    /// is used because of it and nothing is deleted.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A file is proven damaged.
    #[error("{file} is damaged")]
    Damaged {
        /// Which.
        file: String,
        /// How.
        #[source]
        damage: Damage,
    },
    /// A file was written by a later version of Heddle. An older checkpoint is no answer to that.
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
    /// The directory holds things and no marker of ours.
    #[error("{dir} is not a checkpoint directory of Heddle and not empty (it holds {}); name another directory", names.join(", "))]
    Foreign {
        /// The directory.
        dir: String,
        /// The first few names in it.
        names: Vec<String>,
    },
    /// The directory is not there or holds no checkpoints, and is not to be made.
    #[error("{dir} is not a checkpoint directory of Heddle (it has no file HEDDLE)")]
    NotOurs {
        /// The directory.
        dir: String,
    },
    /// There were checkpoints, and none of them can be used: starting from initial values would
    /// silently lose what was trained.
    #[error(
        "{dir}: {damaged} checkpoints and none can be used; restore one, or train anew in another directory"
    )]
    NoneUsable {
        /// The directory.
        dir: String,
        /// How many were found damaged.
        damaged: usize,
    },
    /// Checkpoints are known to have existed and are gone.
    #[error("{dir}: checkpoint {cut} is recorded and not there")]
    Lost {
        /// The directory.
        dir: String,
        /// The one that was continued from.
        cut: CutId,
    },
    /// No checkpoint of that name.
    #[error("{dir} has no checkpoint {cut}")]
    Unknown {
        /// The directory.
        dir: String,
        /// What was asked for.
        cut: CutId,
    },
    /// It is one of the newest two complete ones.
    #[error("checkpoint {cut} is one of the newest two and is kept")]
    Kept {
        /// Which.
        cut: CutId,
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
            Self::Foreign { .. } | Self::NotOurs { .. } => ErrorClass::Input,
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

    /// Whether bytes are proven to be wrong, so that an older checkpoint may be used.
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
