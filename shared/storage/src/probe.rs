//! Checks at start-up that a store has the semantics on which the publish protocol relies.
//!
//! If a store lets two writers create one name, or its rename replaces or nests, checkpoints are lost later without an
//! error. A few calls at the start detect this at once.

use bytes::Bytes;
use uuid::Uuid;

use crate::checkpoint::hidden_probe_name;
use crate::error::{Op, Reason, StorageError, WriteError};
use crate::path::StorePath;
use crate::store::{EntryKind, Mode, Storage};

/// Checks without writing whether an existing or future directory suits durable files: the nearest existing directory
/// above it must be a directory and pass [`Storage::check_dir`]. Returns that directory.
///
/// # Errors
/// `NotADirectory` if a file has the name, `Unsupported` for an unfit directory, errors of the storage.
pub async fn check_place(
    storage: &dyn Storage,
    dir: &StorePath,
) -> Result<StorePath, StorageError> {
    let mut at = dir.clone();
    loop {
        match storage.stat(&at).await {
            Ok(entry) if entry.kind == EntryKind::Dir => {
                storage.check_dir(&at).await?;
                return Ok(at);
            }
            Ok(_) => {
                let place = storage.show(&at);
                return Err(StorageError::new(Op::Mkdir, place, Reason::NotADirectory));
            }
            Err(error) if error.is_not_found() => match at.parent() {
                Some(parent) => at = parent,
                None => return Err(error),
            },
            Err(error) => return Err(error),
        }
    }
}

/// Checks whether files can be created in an existing or future directory: [`check_place`], and a probe of the store in
/// the nearest existing directory. Leaves no files.
///
/// # Errors
/// See [`check_place`] and [`probe`].
pub async fn try_place(storage: &dyn Storage, dir: &StorePath) -> Result<(), StorageError> {
    let nearest = check_place(storage, dir).await?;
    probe(storage, &nearest.join(&hidden_probe_name(Uuid::new_v4()))?).await
}

/// Tries exclusive create, create without parent, rename over an existing file and into an existing directory, read back
/// and delete, in the directory `scratch`. It must not exist, its parent must, and it is deleted at the end.
///
/// # Errors
/// The error of a call (unwritable, full, unreachable), `Unsupported` with the guarantee that the store does not provide,
/// or `NotFound` if another process has deleted `scratch` in the meantime.
pub async fn probe(storage: &dyn Storage, scratch: &StorePath) -> Result<(), StorageError> {
    storage.mkdir(scratch, Mode::DIR).await?;
    let result = probe_inside(storage, scratch).await;
    if let Err(error) = result {
        // If another process has deleted the directory, no result proves a defect of the store.
        return Err(match storage.stat(scratch).await {
            Err(gone) if gone.is_not_found() => gone.because(error),
            _ => {
                let _leaks = storage.delete_dir(scratch).await;
                error
            }
        });
    }
    match storage.delete_dir(scratch).await {
        Err(error) if !error.error().is_not_found() => return Err(error.into()),
        // Every guarantee was checked, so it does not matter which process deleted the directory.
        _ => {}
    }
    match storage.stat(scratch).await {
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(broken(storage, scratch, "a deleted directory is still there")),
    }
}

async fn probe_inside(storage: &dyn Storage, dir: &StorePath) -> Result<(), StorageError> {
    let at = |name: &str| dir.join(name).expect("the names below are plain");
    let (first, second, inner) = (at("first"), at("second"), at("inner"));

    write_small(storage, &first, b"one").await?;
    must_exist(
        storage,
        &first,
        write_small(storage, &first, b"two").await,
        "a second exclusive create succeeded",
    )?;
    if storage.read_range(&first, 0, 3).await? != b"one"[..] {
        return Err(broken(storage, &first, "reading gives other bytes than were written"));
    }
    let orphan = at("missing").join("file").expect("a plain name");
    match write_small(storage, &orphan, b"x").await {
        Err(error) if error.error().is_not_found() => {}
        Err(error) => return Err(error.into()),
        Ok(()) => return Err(broken(storage, &orphan, "create made a missing parent")),
    }
    write_small(storage, &second, b"two").await?;
    must_exist(
        storage,
        &first,
        storage.rename(&second, &first).await,
        "rename replaced an existing file",
    )?;
    storage.mkdir(&inner, Mode::DIR).await?;
    must_exist(
        storage,
        &inner,
        storage.rename(&second, &inner).await,
        "rename moved into a directory",
    )?;
    must_exist(
        storage,
        &inner,
        storage.mkdir(&inner, Mode::DIR).await,
        "a second mkdir succeeded",
    )?;
    let moved = at("moved");
    storage.rename(&inner, &moved).await?;
    let names: Vec<_> =
        storage.list(dir).await?.iter().map(|entry| entry.name().to_owned()).collect();
    if names != ["first", "moved", "second"] {
        return Err(broken(storage, dir, "the directory lists other names than were made"));
    }
    Ok(())
}

async fn write_small(
    storage: &dyn Storage,
    path: &StorePath,
    data: &'static [u8],
) -> Result<(), WriteError> {
    let mut writer = storage.create_sized(path, Mode::FILE, data.len() as u64).await?;
    writer.write(Bytes::from_static(data)).await?;
    writer.sync().await?;
    writer.close().await
}

fn must_exist(
    storage: &dyn Storage,
    path: &StorePath,
    result: Result<(), WriteError>,
    broken_promise: &str,
) -> Result<(), StorageError> {
    match result {
        Err(WriteError::NotDone(error)) if error.is_exists() => Ok(()),
        Err(error) => Err(error.into()),
        Ok(()) => Err(broken(storage, path, broken_promise)),
    }
}

fn broken(storage: &dyn Storage, path: &StorePath, promise: &str) -> StorageError {
    StorageError::new(Op::Create, storage.show(path), Reason::Unsupported(promise.to_owned()))
}
