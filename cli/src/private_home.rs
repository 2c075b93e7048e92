//! Checks that a user's home directory on the cluster and the files of jobs in it are the user's alone. Another user that owned
//! one of the directories or could write it would choose the program that the job runs as this user, with its tokens and
//! secrets. MapReduce checks its staging directory likewise (`JobSubmissionFiles.getStagingDir`).

use heddle_am::staging::HOME_DIR;
use heddle_protocol::exit_code::ExitCode;
use heddle_storage::{EntryKind, Mode, Storage, StorageError, StorePath};

use crate::cluster::{ClusterContext, if_present, path_of, storage_failure};
use crate::failure::{CommandFailure, OrFail};
use crate::waiting::{self, HDFS};

/// Write permission of the group and of others.
const OTHERS_WRITE: u32 = 0o022;
/// Each permission of the group and of others.
const OTHERS: u32 = 0o077;
/// The sticky bit: only the owner of a name changes it.
const STICKY: u32 = 0o1000;

/// Checks the home directory, [`HOME_DIR`] in it, and the directories in that. What does not exist is created by the
/// submission, in directories that no other user can write.
///
/// # Errors
/// Exit code 5 for a directory of another user or one that others can use; errors of the file system.
pub async fn check(cluster: &ClusterContext) -> Result<(), CommandFailure> {
    let home = cluster.home()?;
    let (storage, path) = (cluster.storage_of(&home)?, path_of(&home)?);
    waiting::on(HDFS, check_below(&*storage, &path, cluster.user.short_name())).await
}

async fn check_below(
    storage: &dyn Storage,
    home: &StorePath,
    user: &str,
) -> Result<(), CommandFailure> {
    // Names in a home with the sticky bit are safe, and those in it are checked.
    is_private(storage, home, user, OTHERS_WRITE, STICKY).await?;
    let own = home
        .join(HOME_DIR)
        .map_err(StorageError::from)
        .or_fail_with(storage_failure, format_args!("cannot read {}", storage.show(home)))?;
    is_private(storage, &own, user, OTHERS_WRITE, 0).await?;
    let below = storage.list(&own).await;
    let below = if_present(below, format_args!("cannot read {}", storage.show(&own)))?;
    for entry in below.iter().flatten().filter(|entry| entry.kind == EntryKind::Dir) {
        is_private(storage, &entry.path, user, OTHERS, 0).await?;
    }
    Ok(())
}

/// Checks that a directory belongs to `user` and has none of the `closed` permissions, unless it has one of `safe`.
async fn is_private(
    storage: &dyn Storage,
    path: &StorePath,
    user: &str,
    closed: u32,
    safe: u32,
) -> Result<(), CommandFailure> {
    let shown = storage.show(path);
    let access = storage.access(path).await;
    let access = if_present(access, format_args!("cannot read {shown}"))?;
    let Some(access) = access.flatten() else {
        return Ok(());
    };
    let denied = |fact: String, next: String| {
        let fact = format!("{fact}: its files decide what your jobs run");
        Err(CommandFailure::new(ExitCode::Denied, fact).next(next))
    };
    if access.owner != user {
        return denied(
            format!("{shown} must belong to {user} (its owner is {})", access.owner),
            format!(
                "remove it if it is not yours, or ask an administrator: hdfs dfs -chown {user} {path}"
            ),
        );
    }
    let Mode(bits) = access.mode;
    if bits & closed != 0 && bits & safe == 0 {
        let (what, change) = match closed {
            OTHERS => ("use", "go-rwx"),
            _ => ("write", "go-w"),
        };
        return denied(
            format!("other users must not be able to {what} {shown} (its mode is {bits:04o})"),
            format!("check what is in it, then: hdfs dfs -chmod {change} {path}"),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use heddle_storage::LocalStorage;

    use super::*;

    #[tokio::test]
    async fn directories_of_jobs_are_the_users_alone() {
        let dir = tempfile::tempdir().unwrap();
        let home = StorePath::parse(dir.path().to_str().unwrap()).unwrap();
        let user = LocalStorage.access(&home).await.unwrap().unwrap().owner;
        let checked = async |user: &str| check_below(&LocalStorage, &home, user).await;
        assert!(checked(&user).await.is_ok(), "nothing there yet");
        let own = dir.path().join(HOME_DIR);
        fs::create_dir_all(own.join("bin")).unwrap();
        let set = |path: &std::path::Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        for (of_home, of_own, of_bin, words) in [
            (0o755, 0o700, 0o700, None),
            (0o1777, 0o755, 0o700, None),
            (0o777, 0o700, 0o700, Some("hdfs dfs -chmod go-w")),
            (0o755, 0o770, 0o700, Some("hdfs dfs -chmod go-w")),
            (0o755, 0o1777, 0o700, Some("hdfs dfs -chmod go-w")),
            (0o755, 0o700, 0o755, Some("bin (its mode is 0755)")),
        ] {
            set(dir.path(), of_home);
            set(&own, of_own);
            set(&own.join("bin"), of_bin);
            let failure = checked(&user).await.err();
            let shown = failure.as_ref().map(|failure| format!("{failure:?}"));
            assert_eq!(failure.map(|failure| failure.exit), words.map(|_| ExitCode::Denied));
            assert!(words.is_none_or(|words| shown.unwrap().contains(words)), "{words:?}");
        }
        let failure = checked("another").await.unwrap_err();
        assert!(failure.fact.contains("must belong to another (its owner is"), "{failure:?}");
    }
}
