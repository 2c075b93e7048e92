//! The controller's folder on HDFS (`controller.dir`), and the rights of its users.
//!
//! ```text
//! <dir>            0711 or 0755, of the service user: the administrator makes it
//!   private/       0700: lease/, decisions/, status.json
//!   grants/        1733: each user writes grants of own jobs there and cannot list others
//! ```
//!
//! The controller makes the two folders in it. Files get the group of their folder: it has to be a group that the service user is
//! in, and others are not. The commands that are printed take the group of the user's name.

use std::sync::Arc;

use heddle_protocol::grant::GRANTS_DIR;
use heddle_storage::{Mode, Storage, StorageError, StorageUrl, StorePath, WriteError, connect};

const PRIVATE: &str = "private";
/// All users write files of their own, and cannot list or replace others.
const GRANTS_MODE: Mode = Mode(0o1733);
/// Bits by which others than the owner write.
const OTHERS_WRITE: u32 = 0o022;
/// The bit by which others reach the folder of grants.
const OTHERS_ENTER: u32 = 0o001;

/// The folder, once it is as it has to be.
#[derive(Clone, Debug)]
pub struct ControllerDir {
    storage: Arc<dyn Storage>,
    root: StorePath,
}

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ControllerDirError {
    /// The administrator has to do something first.
    #[error("{what}")]
    Unfit {
        /// What is wrong.
        what: String,
        /// Commands that mend it.
        commands: String,
    },
    /// The file system fails.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl ControllerDir {
    /// Checks owner and modes of the folder at `url` (its text: `shown`) for this user, and makes the folders in it.
    ///
    /// # Errors
    /// See [`ControllerDirError`].
    pub async fn open(
        url: &StorageUrl,
        shown: &str,
        user: &str,
    ) -> Result<Self, ControllerDirError> {
        let dir = Self { storage: connect(url)?, root: url.path().clone() };
        dir.check_root(shown, user).await?;
        dir.make(PRIVATE, Mode::DIR, shown, user).await?;
        for below in ["lease", "decisions"] {
            dir.make(&format!("{PRIVATE}/{below}"), Mode::DIR, shown, user).await?;
        }
        dir.make(GRANTS_DIR, GRANTS_MODE, shown, user).await?;
        Ok(dir)
    }

    async fn check_root(&self, shown: &str, user: &str) -> Result<(), ControllerDirError> {
        let unfit = |what: String, commands: String| ControllerDirError::Unfit { what, commands };
        let found = match self.storage.stat(&self.root).await {
            Ok(_) => self.storage.access(&self.root).await?,
            Err(error) if error.is_not_found() => {
                return Err(unfit(
                    format!("there is no {shown} (controller.dir)"),
                    format!("hdfs dfs -mkdir -p {shown}\nhdfs dfs -chown {user}:{user} {shown}"),
                ));
            }
            Err(error) => return Err(error.into()),
        };
        let Some(access) = found else { return Ok(()) };
        if access.owner != user {
            let owner = access.owner;
            return Err(unfit(
                format!(
                    "{shown} (controller.dir) belongs to {owner}, and this command runs as {user}"
                ),
                format!("hdfs dfs -chown {user}:{user} {shown}\n(or run the command as {owner})"),
            ));
        }
        let mode = access.mode.0;
        if mode & OTHERS_WRITE != 0 || mode & OTHERS_ENTER == 0 {
            return Err(unfit(
                format!("{shown} (controller.dir) has mode {mode:04o}, expected 0711"),
                format!("hdfs dfs -chmod 711 {shown}"),
            ));
        }
        Ok(())
    }

    /// Makes a folder, unless it is there with this owner and mode.
    async fn make(
        &self,
        name: &str,
        mode: Mode,
        shown: &str,
        user: &str,
    ) -> Result<(), ControllerDirError> {
        let path = self.path(name);
        match self.storage.mkdir(&path, mode).await {
            Ok(()) => return Ok(()),
            Err(WriteError::NotDone(error)) if error.is_exists() => {}
            Err(error) => return Err(StorageError::from(error).into()),
        }
        let Some(access) = self.storage.access(&path).await? else { return Ok(()) };
        if access.owner == user && access.mode == mode {
            return Ok(());
        }
        let (owner, found, expected) = (access.owner, access.mode.0, mode.0);
        Err(ControllerDirError::Unfit {
            what: format!(
                "{shown}/{name} belongs to {owner} and has mode {found:04o}, expected {user} and {expected:04o}"
            ),
            commands: format!(
                "hdfs dfs -chown {user}:{user} {shown}/{name}\nhdfs dfs -chmod {expected:o} {shown}/{name}"
            ),
        })
    }

    /// The file system.
    #[must_use]
    pub fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    /// A path below the folder, of names that are valid ones.
    fn path(&self, below: &str) -> StorePath {
        below.split('/').fold(self.root.clone(), |at, name| at.join(name).expect("a short name"))
    }

    /// The folder of grants.
    #[must_use]
    pub fn grants(&self) -> StorePath {
        self.path(GRANTS_DIR)
    }

    /// The folder of leases.
    #[must_use]
    pub fn leases(&self) -> StorePath {
        self.path("private/lease")
    }

    /// The folder of the log of decisions.
    #[must_use]
    pub fn decisions(&self) -> StorePath {
        self.path("private/decisions")
    }

    /// The leader's status.
    #[must_use]
    pub fn status(&self) -> StorePath {
        self.path("private/status.json")
    }
}

/// A controller's folder on this machine, of the user that runs the test.
#[cfg(test)]
pub(crate) async fn local_folder() -> (tempfile::TempDir, ControllerDir) {
    use std::os::unix::fs::PermissionsExt;

    let root = tempfile::tempdir().expect("a folder");
    let url = StorageUrl::parse(&format!("file://{}", root.path().display())).expect("a URL");
    let enter = std::fs::Permissions::from_mode(0o711);
    std::fs::set_permissions(root.path(), enter).expect("own");
    let access = connect(&url).expect("local").access(url.path()).await;
    let user = access.expect("there").expect("it has an owner").owner;
    let dir = ControllerDir::open(&url, "it", &user).await.expect("made");
    (root, dir)
}
