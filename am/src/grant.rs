//! Writing a job's grant for the cluster's controller.

use std::sync::Arc;

use bytes::Bytes;
use heddle_protocol::grant::{ControllerGrant, GRANTS_DIR};
use heddle_protocol::job_spec::Location;
use heddle_storage::{
    Mode, Storage, StorageError, StorageUrl, StorageUrlError, StorePath, WriteError, connect,
    replace_small,
};

/// The owner writes a grant, and the group of the folder reads it: the controller's.
const MODE: Mode = Mode(0o640);

/// Why a grant could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteGrantError {
    /// `controller.dir` is not a location of a storage.
    #[error(transparent)]
    Location(#[from] StorageUrlError),
    /// The storage fails.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// The file system, and the path of an application's grant.
fn place(
    application: &str,
    controller_dir: &Location,
) -> Result<(Arc<dyn Storage>, StorePath), WriteGrantError> {
    let location = StorageUrl::parse(&controller_dir.join(GRANTS_DIR).url())?;
    let path = location.path().join(&ControllerGrant::file_name(application));
    Ok((connect(&location)?, path.map_err(StorageError::from)?))
}

/// Writes a grant, in place of an earlier one.
///
/// # Errors
/// See [`WriteGrantError`].
pub async fn write(
    grant: &ControllerGrant,
    controller_dir: &Location,
) -> Result<(), WriteGrantError> {
    let (storage, path) = place(&grant.application, controller_dir)?;
    let json = Bytes::from(serde_json::to_vec(grant).expect("plain fields are JSON"));
    Ok(replace_small(&*storage, &path, MODE, json).await.map_err(StorageError::from)?)
}

/// Removes the grant of an application that was not submitted. The controller removes other ones.
///
/// # Errors
/// See [`WriteGrantError`].
pub async fn remove(application: &str, controller_dir: &Location) -> Result<(), WriteGrantError> {
    let (storage, path) = place(application, controller_dir)?;
    match storage.delete_file(&path).await {
        Err(WriteError::NotDone(error)) if error.is_not_found() => Ok(()),
        removed => Ok(removed.map_err(StorageError::from)?),
    }
}
