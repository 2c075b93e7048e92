//! Files of an ApplicationMaster that travel in its credentials.
//!
//! A NodeManager fetches private files of an application by the application's tokens, which end. A job that fetches
//! others by its keytab outlives them, and a new attempt of its ApplicationMaster may start on a node that has none of
//! its files. Where the program is public ([`StagedVisibility::Public`](crate::staging::StagedVisibility)), such an
//! attempt needs no token of the user: its other files are few and small, so they are secrets in its credentials, and
//! the process writes them into its work directory before it reads any of them. Containers do not get them.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use heddle_hadoop::token::{Credentials, CredentialsSourceError};

use crate::run_dir::{RUN_FILE, SPEC_FILE};
use crate::staging::{CONF_DIR, KEYTAB, YARN_FILE};

/// Most bytes of all files: the ResourceManager keeps the credentials in its state store, where ZooKeeper limits an
/// application to 1 MiB.
pub const CARRIED_BYTES_MAX: usize = 256 << 10;
/// Begins the alias of a carried file; its name in the work directory follows.
const PREFIX: &str = "heddle.file.";

/// Why carried files cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum CarriedFilesError {
    /// The credentials of the container cannot be read.
    #[error(transparent)]
    Credentials(#[from] CredentialsSourceError),
    /// The work directory.
    #[error("cannot write {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

/// The names of files that may be carried.
fn names() -> [String; 5] {
    let conf = format!("{CONF_DIR}/core-site.xml");
    [conf, RUN_FILE.to_owned(), SPEC_FILE.to_owned(), YARN_FILE.to_owned(), KEYTAB.to_owned()]
}

/// Adds a file to the credentials of an ApplicationMaster.
pub fn carry(credentials: &mut Credentials, name: &str, content: &[u8]) {
    debug_assert!(names().iter().any(|known| known == name), "{name} is never unpacked");
    credentials.insert_secret(format!("{PREFIX}{name}"), content);
}

/// Removes all files from credentials that containers get.
pub(crate) fn remove(credentials: &mut Credentials) {
    for name in names() {
        credentials.remove_secret(&format!("{PREFIX}{name}"));
    }
}

/// Writes the files that the credentials in `token_file` carry into `dir`, readable by this user alone. Without such
/// files it does nothing.
///
/// # Errors
/// The credentials cannot be read, or the directory cannot be written.
pub fn unpack(token_file: &Path, dir: &Path) -> Result<(), CarriedFilesError> {
    let credentials = Credentials::read_file(token_file)?;
    for name in names() {
        if let Some(content) = credentials.secret(&format!("{PREFIX}{name}")) {
            let path = dir.join(name);
            write(&path, content).map_err(|source| CarriedFilesError::Io { path, source })?;
        }
    }
    Ok(())
}

fn write(path: &Path, content: &[u8]) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    // A NodeManager may start the command of a container again in its work directory.
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn carried_files_arrive_for_this_user_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mut credentials = Credentials::new();
        credentials.insert_secret("heddle.job.secret", *b"s");
        credentials.insert_secret(format!("{PREFIX}../outside"), *b"x");
        for name in names() {
            carry(&mut credentials, &name, name.as_bytes());
        }
        let tokens = dir.path().join("tokens");
        credentials.write_file(&tokens).unwrap();
        let work = dir.path().join("work");
        std::fs::create_dir(&work).unwrap();
        // Twice, as after a restart of the command.
        for _ in 0..2 {
            unpack(&tokens, &work).unwrap();
        }
        for name in names() {
            let path = work.join(&name);
            assert_eq!(std::fs::read(&path).unwrap(), name.as_bytes());
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{name}");
        }
        assert!(!dir.path().join("outside").exists());
        remove(&mut credentials);
        let left: Vec<_> = credentials.secrets().map(|(alias, _)| alias).collect();
        assert_eq!(left, ["heddle.file.../outside", "heddle.job.secret"]);
    }

    #[test]
    fn missing_credentials_are_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let error = unpack(&dir.path().join("none"), dir.path()).unwrap_err();
        assert!(matches!(error, CarriedFilesError::Credentials(_)), "{error:?}");
    }
}
