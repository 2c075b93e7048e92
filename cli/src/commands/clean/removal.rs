//! Removes entries below `~/.heddle`.
//!
//! Uploaded data and programs are shared by jobs, and a submission uses what it finds. One may begin between the
//! inventory and the removal. So the entries first get hidden names, which no submission finds. A submission creates its
//! staging directory before it looks for uploads; therefore, if no staging directory appeared since the inventory, no
//! submission has found the entries, and they are deleted. Otherwise they get their names back.

use heddle_protocol::exit_code::ExitCode;
use heddle_storage::{EntryKind, StorePath};

use super::inventory::{self, HomeEntry};
use crate::cluster::{ClusterContext, storage_failure};
use crate::failure::{CommandFailure, OrFail};
use crate::waiting::{self, HDFS};

/// Removes a staging directory or a report. A missing one is a success.
///
/// # Errors
/// The file system fails.
pub async fn of_application(
    cluster: &ClusterContext,
    found: &HomeEntry,
) -> Result<(), CommandFailure> {
    delete(cluster, &found.entry.path, found.entry.kind).await
}

/// Removes uploaded data and programs, unless a submission began since the staging directories `staged` were listed.
/// `false` if they stay.
///
/// # Errors
/// The file system fails. Some entries may then have hidden names, under which a later call finds them.
pub async fn of_shared(
    cluster: &ClusterContext,
    found: &[&HomeEntry],
    staged: &[String],
) -> Result<bool, CommandFailure> {
    let mut hidden = Vec::new();
    for shared in found {
        let path = &shared.entry.path;
        let to = hidden_name(path)?;
        match waiting::on(HDFS, cluster.storage()?.rename(path, &to)).await {
            Ok(()) => hidden.push((shared, to)),
            Err(error) if error.error().is_not_found() => {}
            Err(error) => {
                let fact = format!("cannot remove {}", cluster.show(path));
                return Err(storage_failure(&fact, error.error()));
            }
        }
    }
    let now = inventory::staged(cluster).await?;
    let is_idle = now.iter().all(|name| staged.contains(name));
    for (shared, at) in hidden {
        match is_idle {
            true => delete(cluster, &at, shared.entry.kind).await?,
            false => restore(cluster, &at, shared).await?,
        }
    }
    Ok(is_idle)
}

/// `.x.<random>` beside `x`: the name of an interrupted upload.
fn hidden_name(path: &StorePath) -> Result<StorePath, CommandFailure> {
    let name = inventory::final_name(path.name());
    let hidden = format!(".{name}.{}", uuid::Uuid::new_v4().simple());
    path.sibling(&hidden).or_fail(ExitCode::Input, format_args!("cannot remove {}", path.as_str()))
}

async fn restore(
    cluster: &ClusterContext,
    at: &StorePath,
    shared: &HomeEntry,
) -> Result<(), CommandFailure> {
    let path = &shared.entry.path;
    match waiting::on(HDFS, cluster.storage()?.rename(at, path)).await {
        Ok(()) => Ok(()),
        // A submission has sent the same content meanwhile.
        Err(error) if error.error().is_exists() => delete(cluster, at, shared.entry.kind).await,
        Err(error) => {
            let fact = format!("cannot rename {} back", cluster.show(at));
            Err(storage_failure(&fact, error.error()))
        }
    }
}

async fn delete(
    cluster: &ClusterContext,
    path: &StorePath,
    kind: EntryKind,
) -> Result<(), CommandFailure> {
    let storage = cluster.storage()?;
    let removed = waiting::on(HDFS, async {
        match kind {
            EntryKind::Dir => storage.delete_dir(path).await,
            EntryKind::File | EntryKind::Other | EntryKind::Unnameable => {
                storage.delete_file(path).await
            }
        }
    });
    match removed.await {
        Err(error) if !error.error().is_not_found() => {
            let fact = format!("cannot remove {}", cluster.show(path));
            Err(storage_failure(&fact, error.error()))
        }
        _ => Ok(()),
    }
}
