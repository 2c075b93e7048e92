//! Reading the grants of jobs.

use std::collections::BTreeMap;

use heddle_protocol::grant::{ControllerGrant, GRANT_BYTES_MAX};
use heddle_storage::{EntryKind, FileVersion, StorageError, StorePath, chain, read_small};

use crate::dir::ControllerDir;

/// A file in the folder of grants.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundGrant {
    /// The owner of the file.
    pub owner: String,
    /// The grant.
    pub grant: ControllerGrant,
}

/// Reads grants, and files that have not changed only once.
#[derive(Debug, Default)]
pub struct GrantReader {
    known: BTreeMap<StorePath, (FileVersion, Result<FoundGrant, String>)>,
}

impl GrantReader {
    /// All grants, and a line for each file that is not one.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub async fn read(
        &mut self,
        dir: &ControllerDir,
    ) -> Result<(Vec<FoundGrant>, Vec<String>), StorageError> {
        let entries = dir.storage().list(&dir.grants()).await?;
        let is_grant = |name: &str| name.ends_with(".json") && !name.starts_with('.');
        let mut found = BTreeMap::new();
        for entry in entries {
            if entry.kind != EntryKind::File || !is_grant(entry.name()) {
                continue;
            }
            let version = entry.version();
            let read = match self.known.remove(&entry.path) {
                Some((known, read)) if known == version && read.is_ok() => read,
                _ => one(dir, &entry.path).await,
            };
            found.insert(entry.path, (version, read));
        }
        self.known = found;
        let mut grants = Vec::new();
        let mut lines = Vec::new();
        for (_, read) in self.known.values() {
            match read {
                Ok(grant) => grants.push(grant.clone()),
                Err(line) => lines.push(line.clone()),
            }
        }
        Ok((grants, lines))
    }

    /// Removes the grant of an application that has ended.
    ///
    /// # Errors
    /// The storage fails.
    pub async fn remove(dir: &ControllerDir, application: &str) -> Result<(), StorageError> {
        let path = dir.grants().join(&ControllerGrant::file_name(application))?;
        match dir.storage().delete_file(&path).await {
            Err(error) if !error.error().is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }
}

async fn one(dir: &ControllerDir, path: &StorePath) -> Result<FoundGrant, String> {
    let unread = |why: &str| format!("{} is ignored: {why}", dir.storage().show(path));
    let read = async {
        let access = dir.storage().access(path).await?;
        Ok((access, read_small(dir.storage(), path, GRANT_BYTES_MAX).await?))
    };
    let (access, bytes) = read.await.map_err(|error: StorageError| unread(&chain(&error)))?;
    let grant: ControllerGrant = serde_json::from_slice(&bytes)
        .map_err(|error| unread(&format!("it is not a grant: {error}")))?;
    if ControllerGrant::file_name(&grant.application) != path.name() {
        let application = &grant.application;
        return Err(unread(&format!("it names the application {application:?}")));
    }
    Ok(FoundGrant { owner: access.map(|access| access.owner).unwrap_or_default(), grant })
}
