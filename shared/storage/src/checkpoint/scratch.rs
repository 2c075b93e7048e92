//! Trying the store in a directory that another process may be working in.
//!
//! Whoever is about to follow tries the store before it claims, so its scratch lies beside the work of an owner that
//! may live and clean up after each checkpoint. A scratch's name tells the highest claim that was there, and an owner
//! deletes only those of times before its own: it never meets one that is in use, except of somebody who looked just
//! before it claimed. That one tries again, and then sees the claim.

use uuid::Uuid;

use super::CheckpointError;
use super::layout::{STAGING, probe_name};
use super::root::DirRoot;
use crate::error::StorageError;
use crate::probe;

/// How often the store is tried when the scratch is deleted by others: each time takes another claim.
const TRIES: u32 = 4;

/// Finds out whether the store keeps its promises here, leaving nothing. `.staging` must be there.
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
