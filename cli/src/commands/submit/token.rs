//! Submission under a name of the caller's: the same name again leads to the application that was submitted first.
//!
//! A file named by the hash of the token is created exclusively before the application is submitted, and holds its id.
//! A submission that finds it attaches. A file whose application never came to be, since its submitter died between the
//! two, is taken over after a while. Only the file that was judged is removed: another submission may have replaced it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use heddle_am::staging::HOME_DIR;
use heddle_storage::{Mode, Storage, StorageError, StorePath, WriteError, write_whole};
use heddle_yarn::{ApplicationId, ApplicationReport, ClientError};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::cluster::{ClusterContext, client_failure, path_of, read_if_present, storage_failure};
use crate::failure::CommandFailure;

/// Poll interval.
const LOOK: Duration = Duration::from_millis(200);
/// Of a file with an id.
const BYTES_MAX: usize = 1000;

/// The file of a token.
pub struct TokenFile {
    storage: Arc<dyn Storage>,
    path: StorePath,
    /// How long another submitter may take from its file to its application.
    appears: Duration,
}

impl TokenFile {
    /// The file of a token below the user's home, in a directory that exists.
    ///
    /// # Errors
    /// The user has no home, or the directory cannot be created.
    pub async fn of(cluster: &ClusterContext, token: &str) -> Result<Self, CommandFailure> {
        let name = hex::encode(Sha256::digest(token.as_bytes()));
        let dir = cluster.make_dirs(&cluster.home()?, &[HOME_DIR, "tokens"]).await?;
        let path = path_of(&dir.join(&name))?;
        Ok(Self { storage: cluster.storage()?, path, appears: Duration::from_secs(20) })
    }

    /// Claims the token for an application before its submission; `None` if that was done. Else the answer of `report`, which
    /// returns what is known of an application: of the one that was submitted with the token before, in any state.
    ///
    /// # Errors
    /// The file system fails, or `report` does.
    pub async fn take<R>(
        &self,
        id: ApplicationId,
        report: impl AsyncFn(ApplicationId) -> Result<Option<R>, CommandFailure>,
    ) -> Result<Option<R>, CommandFailure> {
        loop {
            if let Some(found) = self.find(&report).await? {
                return Ok(Some(found));
            }
            if self.create(id).await? {
                return Ok(None);
            }
        }
    }

    /// The application that was submitted with the token; `None` without one. The file of an application that does not
    /// appear is removed.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub async fn find<R>(
        &self,
        report: impl AsyncFn(ApplicationId) -> Result<Option<R>, CommandFailure>,
    ) -> Result<Option<R>, CommandFailure> {
        let mut judged: Option<(Bytes, Instant)> = None;
        loop {
            let Some(bytes) = self.read(&self.path).await? else {
                return Ok(None);
            };
            // Empty or half while it is written.
            if let Ok(id) = String::from_utf8_lossy(&bytes).trim().parse()
                && let Some(found) = report(id).await?
            {
                return Ok(Some(found));
            }
            match &judged {
                // Its submitter has died, or the cluster has forgotten the application.
                Some((before, since)) if *before == bytes && since.elapsed() >= self.appears => {
                    self.remove(&bytes).await?;
                    return Ok(None);
                }
                Some((before, _)) if *before == bytes => {}
                _ => judged = Some((bytes, Instant::now())),
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Gives the token back that was taken for an application, which is not submitted.
    ///
    /// # Errors
    /// The file system fails.
    pub async fn give_back(&self, id: ApplicationId) -> Result<(), CommandFailure> {
        self.remove(id.to_string().as_bytes()).await
    }

    /// Creates the file; false if it exists.
    async fn create(&self, id: ApplicationId) -> Result<bool, CommandFailure> {
        let bytes = Bytes::from(id.to_string());
        match write_whole(&*self.storage, &self.path, Mode::FILE, bytes).await {
            Ok(()) => Ok(true),
            Err(WriteError::NotDone(error)) if error.is_exists() => Ok(false),
            Err(error) => Err(self.failure("cannot write", &self.path, error.error())),
        }
    }

    async fn read(&self, path: &StorePath) -> Result<Option<Bytes>, CommandFailure> {
        read_if_present(&*self.storage, path, self.storage.show(path), BYTES_MAX).await
    }

    /// Removes the file if it has this content. It is judged under a name of its own, where no other submission replaces it.
    async fn remove(&self, content: &[u8]) -> Result<(), CommandFailure> {
        let aside = self.path.sibling(&Uuid::new_v4().to_string());
        let aside = aside.expect("a UUID is shorter than the hash of a token");
        if !self.is_moved(&self.path, &aside).await? {
            return Ok(());
        }
        let found = self.read(&aside).await?;
        if found.is_some_and(|found| found != content) && self.is_moved(&aside, &self.path).await? {
            return Ok(());
        }
        match self.storage.delete_file(&aside).await {
            Err(error) if !error.error().is_not_found() => {
                Err(self.failure("cannot remove", &aside, error.error()))
            }
            _ => Ok(()),
        }
    }

    /// Renames a file; false if it is gone or the name is taken.
    async fn is_moved(&self, from: &StorePath, to: &StorePath) -> Result<bool, CommandFailure> {
        match self.storage.rename(from, to).await {
            Ok(()) => Ok(true),
            Err(error) if error.error().is_not_found() || error.error().is_exists() => Ok(false),
            Err(error) => Err(self.failure("cannot rename", from, error.error())),
        }
    }

    fn failure(&self, what: &str, path: &StorePath, error: &StorageError) -> CommandFailure {
        storage_failure(&format!("{what} {}", self.storage.show(path)), error)
    }
}

/// The report on an application; `None` if the ResourceManager does not have it.
///
/// # Errors
/// The ResourceManager does not respond.
pub async fn report(
    cluster: &ClusterContext,
    id: ApplicationId,
) -> Result<Option<ApplicationReport>, CommandFailure> {
    match cluster.client.report(id).await {
        Ok(report) => Ok(Some(report)),
        Err(ClientError::NotFound(_)) => Ok(None),
        Err(error) => Err(client_failure(&format!("{id} cannot be asked about"), &error)),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::cell::RefCell;

    use heddle_storage::LocalStorage;

    use super::*;

    fn id(number: u32) -> ApplicationId {
        format!("application_1_{number:04}").parse().unwrap()
    }

    fn file(dir: &tempfile::TempDir) -> TokenFile {
        let path = StorePath::parse(dir.path().join("token").to_str().unwrap()).unwrap();
        TokenFile { storage: Arc::new(LocalStorage), path, appears: Duration::ZERO }
    }

    fn content(dir: &tempfile::TempDir) -> Option<String> {
        std::fs::read_to_string(dir.path().join("token")).ok()
    }

    fn names(dir: &tempfile::TempDir) -> usize {
        std::fs::read_dir(dir.path()).unwrap().count()
    }

    #[tokio::test]
    async fn token_is_taken_by_one_submission_and_given_back_by_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = file(&dir);
        let known = RefCell::new(vec![id(1)]);
        let report = async |id| Ok(known.borrow().contains(&id).then_some(id));
        assert_eq!(file.take(id(1), report).await.unwrap(), None);
        assert_eq!(file.take(id(2), report).await.unwrap(), Some(id(1)));
        file.give_back(id(2)).await.unwrap();
        assert_eq!(content(&dir).as_deref(), Some("application_1_0001"));
        file.give_back(id(1)).await.unwrap();
        assert_eq!(names(&dir), 0);
    }

    /// The submission that had the token gave it back, and a third was faster: it is found, and nothing is submitted twice.
    #[tokio::test]
    async fn token_that_passes_to_a_third_submission_leads_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = file(&dir);
        file.create(id(1)).await.unwrap();
        let report = async |asked| {
            if asked == id(1) {
                file.give_back(id(1)).await?;
                file.create(id(3)).await?;
                return Ok(None);
            }
            Ok(Some(asked))
        };
        assert_eq!(file.take(id(2), report).await.unwrap(), Some(id(3)));
    }

    /// Another submission removes the file of an application that never came and takes the token, while this one asks the
    /// ResourceManager about the file that it read before.
    #[tokio::test]
    async fn only_the_file_that_was_judged_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let file = file(&dir);
        file.create(id(1)).await.unwrap();
        file.remove(b"application_1_0009").await.unwrap();
        assert_eq!(content(&dir).as_deref(), Some("application_1_0001"));
        let asked = RefCell::new(0);
        let report = async |id_of_file| {
            *asked.borrow_mut() += 1;
            if *asked.borrow() == 2 {
                file.remove(b"application_1_0001").await?;
                file.create(id(3)).await?;
            }
            Ok((id_of_file == id(3)).then_some(id_of_file))
        };
        assert_eq!(file.find(report).await.unwrap(), None);
        assert_eq!(content(&dir).as_deref(), Some("application_1_0003"));
        assert_eq!(names(&dir), 1);
        assert_eq!(file.take(id(2), report).await.unwrap(), Some(id(3)));
    }
}
