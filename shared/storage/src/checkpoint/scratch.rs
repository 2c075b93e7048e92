//! Probes the store in a directory that another process may use.
//!
//! A process probes the store before it claims the directory, while a live owner may delete orphans beside the probe. The
//! name of a probe holds the highest claim at its time, and an owner deletes only probes from before its own claim. It can
//! delete a probe in use only if the claim came right after the other process listed the claims. That process retries and
//! then sees the claim.

use uuid::Uuid;

use super::CheckpointError;
use super::layout::{STAGING, probe_name};
use super::root::DirRoot;
use crate::error::StorageError;
use crate::probe;

/// Attempts if another process deletes the probe. Each such deletion requires another claim.
const TRIES: u32 = 4;

/// Checks whether the store provides its guarantees here; leaves no files. `.staging` must exist.
pub(super) async fn probe_root(root: &DirRoot) -> Result<(), CheckpointError> {
    let mut tries = 1;
    loop {
        let seen = root.claimed().await?.last().copied();
        let scratch = root
            .at(STAGING)?
            .join(&probe_name(seen, Uuid::new_v4()))
            .map_err(StorageError::from)?;
        match probe(&*root.storage, &scratch).await {
            Err(error) if error.is_not_found() && tries < TRIES => tries += 1,
            result => return Ok(result?),
        }
    }
}
