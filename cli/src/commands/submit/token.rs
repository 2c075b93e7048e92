//! Submission under a name of the caller's: the same name again leads to the application that was submitted first.
//!
//! A file named by the hash of the token is created exclusively before the application is submitted, and holds its id.
//! A submission that finds it attaches. A file whose application never came to be, since its submitter died between the
//! two, is taken over after a while.

use std::time::{Duration, Instant};

use heddle_am::staging::HOME_DIR;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::spec::Location;
use heddle_yarn::{ApplicationId, ApplicationReport, ClientError};
use sha2::{Digest, Sha256};

use super::upload;
use crate::cluster::{ClusterContext, client_failure, path_of};
use crate::failure::CommandFailure;

/// How long another submitter may take from its file to its application.
const APPEARS: Duration = Duration::from_secs(20);
/// Poll interval.
const LOOK: Duration = Duration::from_millis(200);
/// Of a file with an id.
const BYTES_MAX: usize = 1000;

/// The location of a token's file.
///
/// # Errors
/// The user has no home.
pub fn place(cluster: &ClusterContext, token: &str) -> Result<Location, CommandFailure> {
    let name = hex::encode(Sha256::digest(token.as_bytes()));
    Ok(cluster.home()?.join(HOME_DIR).join("tokens").join(&name))
}

/// The application that was submitted with the token, in any state; `None` without one.
///
/// # Errors
/// File system or ResourceManager do not answer.
pub async fn find(
    cluster: &ClusterContext,
    place: &Location,
) -> Result<Option<ApplicationReport>, CommandFailure> {
    let begun = Instant::now();
    loop {
        let Some(bytes) = cluster.read(place, BYTES_MAX).await? else {
            return Ok(None);
        };
        let text = String::from_utf8_lossy(&bytes).trim().to_owned();
        // Empty or half while it is written.
        if let Ok(id) = text.parse::<ApplicationId>() {
            match cluster.client.report(id).await {
                Ok(report) => return Ok(Some(report)),
                Err(ClientError::NotFound(_)) => {}
                Err(error) => {
                    return Err(client_failure(&format!("{id} cannot be asked about"), &error));
                }
            }
        }
        if begun.elapsed() >= APPEARS {
            // Its submitter has died, or the cluster has forgotten the application.
            remove(cluster, place).await?;
            return Ok(None);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Claims the token for an application before its submission; false if another submission was faster.
///
/// # Errors
/// The file system does not do it.
pub async fn take(
    cluster: &ClusterContext,
    place: &Location,
    id: ApplicationId,
) -> Result<bool, CommandFailure> {
    cluster.make_dirs(&cluster.home()?, &[HOME_DIR, "tokens"]).await?;
    match upload::put(cluster, id.to_string().into_bytes(), place).await {
        Ok(_) => Ok(true),
        Err(failure) => match cluster.is_file(place).await {
            Ok(true) => Ok(false),
            _ => Err(failure),
        },
    }
}

/// Gives the token back.
///
/// # Errors
/// The file system does not do it.
pub async fn remove(cluster: &ClusterContext, place: &Location) -> Result<(), CommandFailure> {
    match cluster.storage()?.delete_file(&path_of(place)?).await {
        Ok(()) => Ok(()),
        Err(error) if error.error().is_not_found() => Ok(()),
        Err(error) => Err(CommandFailure::caused(
            ExitCode::Unreachable,
            format!("{place} cannot be removed"),
            &error,
        )),
    }
}
