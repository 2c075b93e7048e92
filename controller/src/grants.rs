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

/// Most files that are reported for not being grants: any user can write them.
const LINES_MAX: usize = 20;

/// Content of the folder of grants.
#[derive(Clone, Debug, Default)]
pub struct GrantFiles {
    /// The grants.
    pub grants: Vec<FoundGrant>,
    /// Names of other files: drafts of writers that have died, and what users have left there.
    pub others: Vec<String>,
    /// A line for each of these that has the name of a grant, up to some.
    pub lines: Vec<String>,
}

/// Reads grants, and files that have not changed only once.
#[derive(Debug, Default)]
pub struct GrantReader {
    known: BTreeMap<StorePath, (FileVersion, Result<FoundGrant, String>)>,
}

impl GrantReader {
    /// All files.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub async fn read(&mut self, dir: &ControllerDir) -> Result<GrantFiles, StorageError> {
        let entries = dir.storage().list(&dir.grants()).await?;
        let is_grant = |name: &str| name.ends_with(".json") && !name.starts_with('.');
        let mut files = GrantFiles::default();
        let mut found = BTreeMap::new();
        for entry in entries.into_iter().filter(|entry| entry.kind == EntryKind::File) {
            if !is_grant(entry.name()) {
                files.others.push(entry.name().to_owned());
                continue;
            }
            let version = entry.version();
            let read = match self.known.remove(&entry.path) {
                Some((known, read)) if known == version => Ok(read),
                _ if entry.bytes > GRANT_BYTES_MAX as u64 => {
                    let why = format!("it has more than {GRANT_BYTES_MAX} bytes");
                    Ok(Err(ignored(dir, &entry.path, &why)))
                }
                _ => one(dir, &entry.path).await,
            };
            match read {
                Ok(read) => {
                    found.insert(entry.path, (version, read));
                }
                // The next round reads it again.
                Err(error) => files.lines.push(ignored(dir, &entry.path, &chain(&error))),
            }
        }
        self.known = found;
        for (path, (_, read)) in &self.known {
            match read {
                Ok(grant) => files.grants.push(grant.clone()),
                Err(line) => {
                    files.others.push(path.name().to_owned());
                    files.lines.push(line.clone());
                }
            }
        }
        let more = files.lines.len().saturating_sub(LINES_MAX);
        if more > 0 {
            files.lines.truncate(LINES_MAX);
            let folder = dir.storage().show(&dir.grants());
            files.lines.push(format!("{more} more files in {folder} are ignored"));
        }
        Ok(files)
    }

    /// Removes a file of the folder of grants.
    ///
    /// # Errors
    /// The storage fails.
    pub async fn remove(dir: &ControllerDir, file: &str) -> Result<(), StorageError> {
        let path = dir.grants().join(file)?;
        match dir.storage().delete_file(&path).await {
            Err(error) if !error.error().is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }
}

fn ignored(dir: &ControllerDir, path: &StorePath, why: &str) -> String {
    format!("{} is ignored: {why}", dir.storage().show(path))
}

/// The grant, or why the file does not count.
async fn one(
    dir: &ControllerDir,
    path: &StorePath,
) -> Result<Result<FoundGrant, String>, StorageError> {
    let access = dir.storage().access(path).await?;
    let bytes = read_small(dir.storage(), path, GRANT_BYTES_MAX).await?;
    let grant: ControllerGrant = match serde_json::from_slice(&bytes) {
        Ok(grant) => grant,
        Err(error) => return Ok(Err(ignored(dir, path, &format!("it is not a grant: {error}")))),
    };
    if ControllerGrant::file_name(&grant.application) != path.name() {
        let application = &grant.application;
        return Ok(Err(ignored(dir, path, &format!("it names the application {application:?}"))));
    }
    let owner = access.map(|access| access.owner).unwrap_or_default();
    Ok(Ok(FoundGrant { owner, grant }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir::local_folder;

    #[tokio::test]
    async fn files_that_are_not_grants_are_ignored_and_removed() {
        let (root, dir) = local_folder().await;
        let folder = root.path().join("grants");
        std::fs::write(folder.join(".a.json.draft"), "half").expect("written");
        std::fs::write(folder.join("large.json"), vec![b' '; GRANT_BYTES_MAX + 1])
            .expect("written");
        for number in 0..30 {
            std::fs::write(folder.join(format!("{number}.json")), "junk").expect("written");
        }
        let mut reader = GrantReader::default();
        for _ in 0..2 {
            let files = reader.read(&dir).await.expect("read");
            assert_eq!((files.grants.len(), files.others.len()), (0, 32));
            assert_eq!(files.lines.len(), LINES_MAX + 1);
            assert!(files.lines[LINES_MAX].starts_with("11 more files in "), "{:?}", files.lines);
        }
        for file in reader.read(&dir).await.expect("read").others {
            GrantReader::remove(&dir, &file).await.expect("removed");
        }
        assert_eq!(std::fs::read_dir(&folder).expect("listed").count(), 0);
    }
}
