//! Writing the input plan where containers read it.
//!
//! The file is in the run directory (local) or the staging directory (YARN). All containers can read it there, also while
//! no ApplicationMaster answers. Rejected: an ApplicationMaster that serves the plan. A thousand trainers would read it
//! from one process at the start, and none could while that process is replaced.

use bytes::Bytes;
use heddle_protocol::manifest::InputPlan;
use heddle_protocol::plan_file::{PlanFile, PlanFileError};
use heddle_storage::{
    PathError, StorageError, StorageUrl, StorageUrlError, connect, publish_small,
};

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

#[cfg(test)]
mod tests {
    use heddle_input::{TaskLength, plan_input};
    use heddle_protocol::manifest::{Compression, InputFile};

    use super::*;

    fn plan(bytes: u64) -> InputPlan {
        let file = InputFile {
            url: "/data/a".to_owned(),
            bytes,
            modified_ms: 0,
            compression: Compression::None,
        };
        plan_input(vec![file], Vec::new(), TaskLength::Bytes(100))
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
}
