//! Files named by a number, of which the highest counts. Each writer takes the next number; a file is written once.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::error::StorageError;
use crate::path::StorePath;
use crate::store::{EntryKind, Storage};
use crate::url::{StorageUrl, StorageUrlError};
use crate::{connect, read_small};

/// Why a numbered file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum NumberedError {
    /// The directory is not a URL of a storage.
    #[error(transparent)]
    Location(#[from] StorageUrlError),
    /// The storage failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// The content of the file `<digits>.<extension>` with the highest number in the directory with this URL. `None`
/// without such a file or directory. Other names are skipped.
///
/// # Errors
/// Errors of the storage and of [`read_small`].
pub async fn read_highest(
    dir: &str,
    extension: &str,
    bytes_max: usize,
) -> Result<Option<Bytes>, NumberedError> {
    let location = StorageUrl::parse(dir)?;
    let storage = connect(&location)?;
    let files = match numbered_files(&*storage, location.path(), extension).await {
        Err(error) if error.is_not_found() => return Ok(None),
        files => files?,
    };
    match files.last_key_value() {
        None => Ok(None),
        Some((_, path)) => Ok(Some(read_small(&*storage, path, bytes_max).await?)),
    }
}

/// The files `<digits>.<extension>` in a directory, by number.
///
/// # Errors
/// See [`Storage::list`].
pub async fn numbered_files(
    storage: &dyn Storage,
    dir: &StorePath,
    extension: &str,
) -> Result<BTreeMap<u64, StorePath>, StorageError> {
    let entries = storage.list(dir).await?;
    let files = entries.into_iter().filter(|entry| entry.kind == EntryKind::File);
    Ok(files.filter_map(|file| Some((number(file.name(), extension)?, file.path))).collect())
}

fn number(name: &str, extension: &str) -> Option<u64> {
    let digits = name.strip_suffix(extension)?.strip_suffix('.')?;
    let all = digits.bytes().all(|byte| byte.is_ascii_digit());
    all.then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_highest_number_counts_and_other_names_do_not() {
        let dir = tempfile::tempdir().expect("a folder");
        let url = format!("file://{}", dir.path().display());
        let read = || read_highest(&url, "json", 100);
        assert_eq!(read().await.expect("an empty folder"), None);
        for name in
            ["000009.json", "000010.json", "000011.json.tmp", "x.json", "+12.json", "13.txt"]
        {
            std::fs::write(dir.path().join(name), name).expect("written");
        }
        std::fs::create_dir(dir.path().join("000014.json")).expect("made");
        let found = read().await.expect("readable");
        assert_eq!(found.as_deref(), Some(&b"000010.json"[..]));
        let none = read_highest(&format!("{url}/nowhere"), "json", 100).await;
        assert_eq!(none.expect("a missing directory"), None);
        let long = read_highest(&url, "json", 3).await.expect_err("longer than allowed");
        assert!(long.to_string().contains("000010.json"), "{long}");
    }
}
