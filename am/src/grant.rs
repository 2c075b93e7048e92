//! Writing a job's grant for the cluster's controller.

use bytes::Bytes;
use heddle_protocol::grant::ControllerGrant;
use heddle_protocol::job_spec::Location;
use heddle_storage::{
    Mode, PathError, StorageError, StorageUrl, StorageUrlError, WriteError, connect, replace_small,
};

/// The folder of grants in `controller.dir`. Users write it and cannot list it.
pub const GRANTS: &str = "grants";
/// The owner writes a grant, and the group of the folder reads it: the controller's.
const MODE: Mode = Mode(0o640);

/// Why a grant could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteGrantError {
    /// `controller.dir` is not a location of a storage.
    #[error(transparent)]
    Location(#[from] StorageUrlError),
    /// Its path is too long.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The storage fails.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// Writes a grant, in place of an earlier one.
///
/// # Errors
/// See [`WriteGrantError`].
pub async fn write(
    grant: &ControllerGrant,
    controller_dir: &Location,
) -> Result<(), WriteGrantError> {
    let location = StorageUrl::parse(&controller_dir.join(GRANTS).url())?;
    let storage = connect(&location)?;
    let path = location.path().join(&ControllerGrant::file_name(&grant.application))?;
    let json = Bytes::from(serde_json::to_vec(grant).expect("plain fields are JSON"));
    Ok(replace_small(&*storage, &path, MODE, json).await.map_err(StorageError::from)?)
}

/// Removes the grant of an application that was not submitted. The controller removes other ones.
///
/// # Errors
/// See [`WriteGrantError`].
pub async fn remove(application: &str, controller_dir: &Location) -> Result<(), WriteGrantError> {
    let location = StorageUrl::parse(&controller_dir.join(GRANTS).url())?;
    let storage = connect(&location)?;
    match storage
        .delete_file(&location.path().join(&ControllerGrant::file_name(application))?)
        .await
    {
        Err(WriteError::NotDone(error)) if error.is_not_found() => Ok(()),
        removed => Ok(removed.map_err(StorageError::from)?),
    }
}
