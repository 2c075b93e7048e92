//! Reading the journals of earlier generations.

use std::collections::BTreeSet;

use bytes::Bytes;
use heddle_am_core::Record;
use heddle_protocol::ids::{CutId, Generation};
use heddle_storage::checkpoint::{CheckpointDir, CheckpointError};
use heddle_storage::{
    Reason, SIDECAR_SUFFIX, SidecarError, StorageError, StorePath, read_sidecar, read_small,
    sidecar_name,
};
use tracing::{debug, warn};

use super::error::JournalError;
use super::file::{self, FILE_BYTES_MAX, Flaw};

/// How often a journal is listed again because its writer replaced the file that was to be read.
const LISTINGS_MAX: u32 = 16;
/// Longest sidecar: a sum and a name.
const SIDECAR_BYTES_MAX: usize = 512;

/// All records of the lineage: those of the newest journal that has any. `below` is the lowest generation that is
/// ignored.
///
/// # Errors
/// A damaged or missing file, or a journal of an earlier format version.
pub async fn read(dir: &CheckpointDir, below: Generation) -> Result<Vec<Record>, JournalError> {
    for generation in dir.journals().await?.into_iter().rev().filter(|one| *one < below) {
        if let Some(records) = read_one(dir, generation).await? {
            return Ok(records);
        }
        // Its owner died before its first record, so it decided nothing.
        debug!(%generation, "journal_skipped_because_empty");
    }
    Ok(Vec::new())
}

/// Refuses to start from initial values where the records show that there was a checkpoint: it has been removed, and
/// the trained model would be lost silently.
///
/// # Errors
/// `Lost`, naming the last recorded checkpoint.
pub fn check_base(
    dir: &CheckpointDir,
    records: &[Record],
    base: Option<CutId>,
) -> Result<(), CheckpointError> {
    let last = records.iter().rev().find_map(|record| match record {
        Record::Commit { cut, .. } => Some(*cut),
        _ => None,
    });
    match (base, last) {
        (None, Some(cut)) => {
            let dir = dir.show(dir.root());
            Err(CheckpointError::Lost { dir, cut })
        }
        _ => Ok(()),
    }
}

/// The records of one generation; `None` when nothing was completely written.
async fn read_one(
    dir: &CheckpointDir,
    generation: Generation,
) -> Result<Option<Vec<Record>>, JournalError> {
    let path = dir.journal_dir(generation)?;
    let mut listings = 0;
    loop {
        listings += 1;
        match read_newest(dir, generation, &path).await {
            // The writer, which may still run, has published the next file and deleted this one.
            Err(JournalError::Checkpoint(CheckpointError::Storage(error)))
                if error.is_not_found() && listings < LISTINGS_MAX => {}
            result => return result,
        }
    }
}

async fn read_newest(
    dir: &CheckpointDir,
    generation: Generation,
    path: &StorePath,
) -> Result<Option<Vec<Record>>, JournalError> {
    let names: BTreeSet<String> =
        dir.storage().list(path).await?.iter().map(|entry| entry.name().to_owned()).collect();
    let number_of =
        |name: &String| file::number_of(name.strip_suffix(SIDECAR_SUFFIX).unwrap_or(name));
    let Some(newest) = names.iter().filter_map(number_of).max() else {
        return match names.iter().any(|name| file::is_segment_of_version_1(name)) {
            true => Err(JournalError::OldFormat { dir: dir.show(path) }),
            false => Ok(None),
        };
    };
    // A file and its sidecar are written at the same time, each whole or not at all; records count as durable when both are
    // there. So only the last write can lack one of them, and the file before it is deleted only after it is complete. Bytes
    // that are there and malformed are damage: the file before may contradict a decision that was acted upon.
    for number in [newest, newest - 1].into_iter().filter(|number| *number > 0) {
        let name = file::name(number);
        let at = path.join(&name).map_err(StorageError::from)?;
        if names.contains(&name) && names.contains(&sidecar_name(&name)) {
            let damaged = |source| JournalError::Damaged { file: dir.show(&at), source };
            let sidecar = path.join(&sidecar_name(&name)).map_err(StorageError::from)?;
            let sum = match read_whole(dir, &sidecar, SIDECAR_BYTES_MAX).await? {
                Some(line) => read_sidecar(&line, &name),
                None => Err(SidecarError::Form),
            };
            let sum = sum.map_err(|source| damaged(source.into()))?;
            let Some(bytes) = read_whole(dir, &at, FILE_BYTES_MAX).await? else {
                return Err(damaged(Flaw::Shape));
            };
            let found = file::sum(&bytes);
            if found != sum {
                let (expected, found) = (sum.to_string(), found.to_string());
                return Err(damaged(Flaw::Sum { expected, found }));
            }
            return file::decode(&bytes, generation, number).map(Some).map_err(damaged);
        }
        warn!(file = %dir.show(&at), "journal_file_incomplete");
    }
    if newest == 1 {
        return Ok(None);
    }
    let file = path.join(&file::name(newest)).map_err(StorageError::from)?;
    Err(JournalError::Missing { file: dir.show(&file) })
}

/// The bytes of a file; `None` if it has more than `bytes_max`, or is a directory or device: then it is damaged.
async fn read_whole(
    dir: &CheckpointDir,
    path: &StorePath,
    bytes_max: usize,
) -> Result<Option<Bytes>, StorageError> {
    match read_small(&**dir.storage(), path, bytes_max).await {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if matches!(error.reason, Reason::Unsupported(_)) || error.is_no_file() => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
