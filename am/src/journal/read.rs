//! Reading the journals of earlier generations.

use std::collections::BTreeSet;

use heddle_am_core::Record;
use heddle_protocol::ids::{CutId, Generation};
use heddle_protocol::manifest::Md5;
use heddle_storage::checkpoint::{CheckpointDir, CheckpointError};
use heddle_storage::{
    SIDECAR_SUFFIX, StorageError, StorePath, read_sidecar, read_small, sidecar_name,
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
    // A file and its sidecar are written at the same time; records count as durable when both are there. So only the
    // last write can be incomplete, and the file before it is deleted only after it is complete.
    for number in [newest, newest - 1].into_iter().filter(|number| *number > 0) {
        let name = file::name(number);
        let at = path.join(&name).map_err(StorageError::from)?;
        if names.contains(&name)
            && names.contains(&sidecar_name(&name))
            && let Some(sum) = sidecar(dir, path, &name).await?
        {
            let bytes = read_small(&**dir.storage(), &at, FILE_BYTES_MAX).await?;
            let damaged = |source| JournalError::Damaged { file: dir.show(&at), source };
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

/// The sum in a file's sidecar; `None` when the sidecar was not completely written.
async fn sidecar(
    dir: &CheckpointDir,
    path: &StorePath,
    name: &str,
) -> Result<Option<Md5>, JournalError> {
    let at = path.join(&sidecar_name(name)).map_err(StorageError::from)?;
    let content = read_small(&**dir.storage(), &at, SIDECAR_BYTES_MAX).await?;
    Ok(read_sidecar(&content, name).ok())
}
