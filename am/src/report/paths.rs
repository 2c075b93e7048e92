//! Writes and reads the report's files. An existing report is never replaced.

use heddle_storage::{
    Mode, Reason, Storage, StorageError, StorePath, WriteError, make_dirs, publish_small,
    read_small,
};

use super::JobReport;

/// Most bytes of a report that is read. The view of ten thousand slots takes some MB.
const READ_BYTES_MAX: usize = 64 << 20;

/// Why the report was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteReportError {
    /// The storage rejected the write or did not answer.
    #[error("cannot write the report")]
    Storage(#[from] StorageError),
    /// The report cannot be encoded as JSON.
    #[error("cannot encode the report as JSON")]
    Form(#[from] serde_json::Error),
}

/// The two files of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportFiles {
    /// For programs.
    pub json: StorePath,
    /// For users.
    pub text: StorePath,
}

/// Writes the report into `dir`, which is created if it is missing. Directories have mode 0700, files 0600; each file
/// appears whole. No file is replaced: beside another report the new names contain the attempt. A report with the same
/// outcome of the same run stays the only one, because its writer had seen more of the containers.
///
/// # Errors
/// The storage's error; the call may be repeated.
pub async fn write(
    storage: &dyn Storage,
    dir: &StorePath,
    report: &JobReport,
) -> Result<ReportFiles, WriteReportError> {
    make_dirs(storage, dir, Mode::DIR).await?;
    let own = format!("report-{:06}", report.attempt.0);
    for name in ["report", own.as_str()] {
        let files = ReportFiles {
            json: dir.join(&format!("{name}.json")).map_err(StorageError::from)?,
            text: dir.join(&format!("{name}.txt")).map_err(StorageError::from)?,
        };
        match publish(storage, &files.json, serde_json::to_vec_pretty(report)?).await {
            Ok(()) => {}
            Err(error) if is_taken(&error) => match read(storage, &files.json).await? {
                // Its writer may have ended before it wrote the text.
                Some(other) if other.has_same_outcome(report) => {
                    match publish(storage, &files.text, other.to_string().into()).await {
                        Err(error) if !is_taken(&error) => {
                            return Err(StorageError::from(error).into());
                        }
                        _ => return Ok(files),
                    }
                }
                _ => continue,
            },
            Err(error) => return Err(StorageError::from(error).into()),
        }
        match publish(storage, &files.text, report.to_string().into()).await {
            Err(error) if !is_taken(&error) => return Err(StorageError::from(error).into()),
            _ => return Ok(files),
        }
    }
    let taken = StorageError::new(heddle_storage::Op::Create, storage.show(dir), Reason::Exists);
    Err(taken.into())
}

/// Reads a report; `None` if there is none, or this version cannot read its form.
///
/// # Errors
/// The storage's error.
pub async fn read(
    storage: &dyn Storage,
    json: &StorePath,
) -> Result<Option<JobReport>, StorageError> {
    match read_small(storage, json, READ_BYTES_MAX).await {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

async fn publish(
    storage: &dyn Storage,
    path: &StorePath,
    content: Vec<u8>,
) -> Result<(), WriteError> {
    publish_small(storage, path, content.into()).await
}

fn is_taken(error: &WriteError) -> bool {
    error.error().is_exists()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::os::unix::fs::PermissionsExt;

    use heddle_protocol::exit_code::ExitCode;
    use heddle_protocol::ids::Attempt;
    use heddle_storage::LocalStorage;

    use super::super::samples::{failed, finished};
    use super::*;

    fn place() -> (tempfile::TempDir, StorePath) {
        let dir = tempfile::tempdir().unwrap();
        let path = StorePath::parse(dir.path().to_str().unwrap()).unwrap();
        let path = path.join("reports").unwrap().join("a").unwrap();
        (dir, path)
    }

    #[tokio::test]
    async fn report_is_readable_by_its_owner_only() {
        let (_keep, dir) = place();
        let files = write(&LocalStorage, &dir, &finished()).await.unwrap();
        let mode = |path: &StorePath| {
            std::fs::metadata(path.as_str()).unwrap().permissions().mode() & 0o7777
        };
        assert_eq!((mode(&dir), mode(&files.json), mode(&files.text)), (0o700, 0o600, 0o600));
        assert_eq!(read(&LocalStorage, &files.json).await.unwrap(), Some(finished()));
        assert_eq!(files.text.name(), "report.txt");
    }

    #[tokio::test]
    async fn same_outcome_of_the_next_attempt_is_recognised() {
        let (_keep, dir) = place();
        let first = write(&LocalStorage, &dir, &finished()).await.unwrap();
        std::fs::remove_file(first.text.as_str()).unwrap();
        let again = JobReport { attempt: Attempt(2), ended_ms: 1_800_000_000_000, ..finished() };
        assert_eq!(write(&LocalStorage, &dir, &again).await.unwrap(), first);
        assert_eq!(read(&LocalStorage, &first.json).await.unwrap(), Some(finished()));
        assert_eq!(std::fs::read_to_string(first.text.as_str()).unwrap(), finished().to_string());
    }

    #[tokio::test]
    async fn another_outcome_gets_its_own_name_and_replaces_nothing() {
        let (_keep, dir) = place();
        let first = write(&LocalStorage, &dir, &failed(ExitCode::Unreachable, "HDFS is away"))
            .await
            .unwrap();
        let second = JobReport { attempt: Attempt(2), ..finished() };
        let written = write(&LocalStorage, &dir, &second).await.unwrap();
        assert_eq!(written.text.name(), "report-000002.txt");
        let kept = read(&LocalStorage, &first.json).await.unwrap().unwrap();
        assert_eq!(kept.exit_code, ExitCode::Unreachable);
        assert_eq!(write(&LocalStorage, &dir, &second).await.unwrap(), written);
    }
}
