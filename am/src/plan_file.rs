//! Writing the input plan where containers read it.
//!
//! The file is in the run directory (local) or the staging directory (YARN). All containers can read it there, also while
//! no ApplicationMaster answers. Rejected: an ApplicationMaster that serves the plan. A thousand trainers would read it
//! from one process at the start, and none could while that process is replaced.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use heddle_protocol::handshake::Secret;
use heddle_protocol::manifest::InputPlan;
use heddle_protocol::plan_file::{PlanFile, PlanFileError};
use heddle_protocol::view::{JobEvent, WarningCode};
use heddle_storage::{
    Mode, PathError, StorageError, StorageUrl, StorageUrlError, chain, connect, make_dirs,
    publish_small,
};
use tokio::sync::mpsc;

use crate::staging::STAGED_SECRET;

/// Why the plan could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WritePlanError {
    /// It is too long.
    #[error(transparent)]
    Plan(#[from] PlanFileError),
    /// The directory is not a place that files can be written to.
    #[error("cannot write the input plan")]
    Location(#[from] StorageUrlError),
    /// Its path is too long.
    #[error("cannot write the input plan")]
    Path(#[from] PathError),
    /// The storage fails.
    #[error("cannot write the input plan")]
    Storage(#[from] StorageError),
}

/// Writes a plan's file into `dir` (a URL). A later attempt of the same job has the same plan, so it finds the file
/// there and writes nothing.
///
/// # Errors
/// See [`WritePlanError`].
pub async fn write(plan: &InputPlan, dir: &str) -> Result<PlanFile, WritePlanError> {
    let (file, bytes) = PlanFile::of(plan, dir)?;
    let location = StorageUrl::parse(&file.url)?;
    let storage = connect(&location)?;
    publish_small(&*storage, location.path(), Bytes::from(bytes))
        .await
        .map_err(StorageError::from)?;
    Ok(file)
}

/// What [`keep`] writes again.
pub struct KeptPlan {
    plan: Arc<InputPlan>,
    file: PlanFile,
    dir: String,
    secret: Option<Secret>,
}

/// Looks every so often whether a plan's file is still there, and writes it again if it was removed: a trainer that replaces
/// another one reads it. Never ends.
pub async fn keep(kept: KeptPlan, every: Duration, notices: mpsc::UnboundedSender<JobEvent>) {
    let dir = &kept.dir;
    let mut is_warned = false;
    loop {
        tokio::time::sleep(every).await;
        match kept.is_gone().await {
            Ok(false) => continue,
            Ok(true) => {}
            Err(error) => {
                tracing::info!(error = chain(&error), "plan_not_looked_up");
                continue;
            }
        }
        let outcome = match kept.write_again().await {
            Ok(()) => "the input plan is written again".to_owned(),
            Err(error) => chain(&error),
        };
        tracing::info!(dir, outcome, "plan_removed");
        // What removes it may come again.
        if !std::mem::replace(&mut is_warned, true) {
            let text = format!(
                "{dir} was removed while the job runs: {outcome}; a container that needs another file of it cannot \
                 start any more: if the job ends for that, the same command continues it"
            );
            let _ending = notices.send(JobEvent::warning(WarningCode::PlanRemoved, text));
        }
    }
}

impl KeptPlan {
    /// The plan with its file in `dir`, a URL. `secret`: the job's, where operators read it in the same directory.
    #[must_use]
    pub fn new(plan: &Arc<InputPlan>, file: &PlanFile, dir: &str, secret: Option<Secret>) -> Self {
        Self { plan: Arc::clone(plan), file: file.clone(), dir: dir.to_owned(), secret }
    }

    async fn is_gone(&self) -> Result<bool, WritePlanError> {
        let location = StorageUrl::parse(&self.file.url)?;
        match connect(&location)?.stat(location.path()).await {
            Ok(_) => Ok(false),
            Err(error) if error.is_not_found() => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    async fn write_again(&self) -> Result<(), WritePlanError> {
        let place = StorageUrl::parse(&self.dir)?;
        let storage = connect(&place)?;
        make_dirs(&*storage, place.path(), Mode::DIR).await?;
        if let Some(secret) = &self.secret {
            let path = place.path().join(STAGED_SECRET)?;
            let hex = Bytes::copy_from_slice(secret.to_hex().as_bytes());
            publish_small(&*storage, &path, hex).await.map_err(StorageError::from)?;
        }
        write(&self.plan, &self.dir).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use heddle_input::{TaskLength, plan_input};
    use heddle_protocol::job_spec::DataFormat;
    use heddle_protocol::manifest::{Compression, InputFile};

    use super::*;

    fn plan(bytes: u64) -> InputPlan {
        let file = InputFile {
            url: "/data/a".to_owned(),
            bytes,
            modified_ms: 0,
            compression: Compression::None,
        };
        plan_input(DataFormat::Libsvm, vec![file], Vec::new(), TaskLength::Bytes(100))
    }

    #[tokio::test]
    async fn later_attempt_reuses_the_plan_file_of_the_same_plan() {
        let dir = tempfile::tempdir().expect("a folder");
        let url = dir.path().to_str().expect("UTF-8");
        let first = write(&plan(1000), url).await.expect("written");
        let again = write(&plan(1000), url).await.expect("found");
        assert_eq!(first, again);
        let bytes = std::fs::read(&first.url).expect("there");
        assert_eq!(first.parse(&bytes).expect("read"), plan(1000));
        let other = write(&plan(2000), url).await.expect("written");
        assert_ne!(first.url, other.url);
        assert_eq!(std::fs::read_dir(dir.path()).expect("a folder").count(), 2, "drafts are gone");
    }
    #[tokio::test]
    async fn removed_plan_is_written_again_and_told_once() {
        let dir = tempfile::tempdir().expect("a folder");
        let staging = dir.path().join("staging");
        std::fs::create_dir(&staging).expect("a folder");
        let url = staging.to_str().expect("UTF-8").to_owned();
        let plan = Arc::new(plan(1000));
        let file = write(&plan, &url).await.expect("written");
        let secret = Some(Secret::random().expect("random"));
        let kept = KeptPlan::new(&plan, &file, &url, secret);
        let (notices, mut noticed) = mpsc::unbounded_channel();
        let every = Duration::from_millis(1);
        let keeping = tokio::spawn(keep(kept, every, notices));
        for _ in 0..2 {
            std::fs::remove_dir_all(&staging).expect("removed");
            while !std::path::Path::new(&file.url).exists() {
                tokio::time::sleep(every).await;
            }
        }
        keeping.abort();
        let warning = noticed.recv().await.expect("a warning");
        let text = serde_json::to_string(&warning).expect("JSON");
        assert!(text.contains("was removed") && text.contains("written again"), "{text}");
        assert!(noticed.try_recv().is_err(), "once");
        assert!(staging.join(STAGED_SECRET).exists());
    }
}
