//! The files of a place.

use heddle_protocol::manifest::InputFile;
use heddle_storage::{StorageError, StorageUrl, connect, find_files};

use crate::error::ReadError;
use crate::packing::compression_of;
use crate::typed::StoredFile;

/// Finds the files of a place (a file, a folder or a glob), in the order of their names, and the URLs of folders in it that are
/// not read.
///
/// # Errors
/// Errors of the storage, also that a file on this machine cannot be opened. What a file of HDFS permits shows when it is read.
pub async fn input_files(
    place: &StorageUrl,
) -> Result<(Vec<InputFile>, Vec<String>), StorageError> {
    let storage = connect(place)?;
    let found = find_files(&*storage, place.path()).await?;
    let url = |path| place.with_path(path).to_string();
    let mut files = Vec::with_capacity(found.files.len());
    for entry in found.files {
        if place.is_local() {
            storage.open(&entry.path, 0).await?;
        }
        files.push(InputFile {
            bytes: entry.bytes,
            modified_ms: entry.modified_ms,
            compression: compression_of(entry.name()),
            url: url(entry.path),
        });
    }
    Ok((files, found.folders.into_iter().map(url).collect()))
}

/// Checks that a file of the plan is still as it was, by one call to its storage.
///
/// # Errors
/// Errors of the storage; [`ReadError::Changed`].
pub async fn check_unchanged(file: &InputFile) -> Result<(), ReadError> {
    StoredFile::find(file)?.check_unchanged().await
}
