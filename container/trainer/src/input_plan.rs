//! Reads the input plan from the file that the welcome names, once per trainer process.

use std::time::{Duration, Instant};

use heddle_backoff::Backoff;
use heddle_protocol::manifest::InputPlan;
use heddle_protocol::plan_file::{PLAN_BYTES_MAX, PlanFile, PlanFileError};
use heddle_storage::{
    Op, Reason, StorageError, StorageUrl, StorageUrlError, chain, connect, read_small,
};

/// Waits between attempts.
const RETRY: Backoff = Backoff::new(200, 5_000);
/// How long a missing file is waited for: the ApplicationMaster writes one again that was removed.
const MISSING_WAIT: Duration = Duration::from_secs(15);
/// Shortest time between two warnings about a plan that cannot be read.
const WARN_EVERY: Duration = Duration::from_secs(30);

/// Why a trainer cannot use its plan.
#[derive(Debug, thiserror::Error)]
pub enum InputPlanError {
    /// The system provides no event queue.
    #[error("cannot start reading the input plan")]
    Runtime(#[source] std::io::Error),
    /// The welcome does not name a valid location.
    #[error("cannot read the input plan")]
    Location(#[from] StorageUrlError),
    /// The file cannot be read, and a retry does not help.
    #[error("cannot read the input plan")]
    Storage(#[from] StorageError),
    /// The file is not the plan of the welcome.
    #[error("cannot use the input plan")]
    Plan(#[from] PlanFileError),
}

/// Reads and checks a plan. Retries without a limit while the storage is unavailable: the input is then unavailable too,
/// and the control thread ends the process when the job ends.
pub(crate) fn read(file: &PlanFile) -> Result<InputPlan, InputPlanError> {
    read_waiting(file, MISSING_WAIT)
}

fn read_waiting(file: &PlanFile, missing_wait: Duration) -> Result<InputPlan, InputPlanError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(InputPlanError::Runtime)?;
    runtime.block_on(read_with_retries(file, missing_wait))
}

async fn read_with_retries(
    file: &PlanFile,
    missing_wait: Duration,
) -> Result<InputPlan, InputPlanError> {
    let begun = Instant::now();
    let mut warned: Option<Instant> = None;
    let mut backoff = RETRY;
    loop {
        match read_once(file).await {
            Err(InputPlanError::Storage(error))
                if error.is_retryable()
                    || (error.is_not_found() && begun.elapsed() < missing_wait) =>
            {
                if warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
                    warned = Some(Instant::now());
                    tracing::warn!(
                        url = file.url,
                        waited_s = begun.elapsed().as_secs(),
                        error = chain(&error),
                        "input_plan_not_read"
                    );
                }
                tokio::time::sleep(backoff.next_wait()).await;
            }
            result => return result,
        }
    }
}

async fn read_once(file: &PlanFile) -> Result<InputPlan, InputPlanError> {
    let location = StorageUrl::parse(&file.url)?;
    let storage = connect(&location)?;
    let most = usize::try_from(file.bytes).unwrap_or(usize::MAX);
    if most > PLAN_BYTES_MAX {
        let reason = Reason::Unsupported(format!(
            "an input plan has at most {PLAN_BYTES_MAX} bytes (got {most})"
        ));
        return Err(StorageError::new(Op::Read, &file.url, reason).into());
    }
    let bytes = read_small(&*storage, location.path(), most).await?;
    Ok(file.parse(&bytes)?)
}

#[cfg(test)]
mod tests {
    use heddle_input::{TaskLength, plan_input};
    use heddle_protocol::job_spec::DataFormat;
    use heddle_protocol::manifest::{Compression, InputFile};

    use super::*;

    fn written(dir: &std::path::Path) -> (PlanFile, InputPlan) {
        let input = InputFile {
            url: "/data/a".to_owned(),
            bytes: 1000,
            modified_ms: 0,
            compression: Compression::None,
        };
        let plan = plan_input(DataFormat::Libsvm, vec![input], Vec::new(), TaskLength::Bytes(100));
        let (file, bytes) = PlanFile::of(&plan, dir.to_str().expect("UTF-8")).expect("short");
        std::fs::write(&file.url, bytes).expect("written");
        (file, plan)
    }

    #[test]
    fn plan_is_read_and_checked() {
        let dir = tempfile::tempdir().expect("a folder");
        let (file, plan) = written(dir.path());
        assert_eq!(read(&file).expect("read"), plan);

        let torn = std::fs::read(&file.url).expect("there");
        std::fs::write(&file.url, &torn[..torn.len() / 2]).expect("written");
        assert!(matches!(read(&file), Err(InputPlanError::Plan(_))));
        std::fs::write(&file.url, [&torn[..], b"more"].concat()).expect("written");
        assert!(matches!(read(&file), Err(InputPlanError::Storage(_))));
        std::fs::remove_file(&file.url).expect("removed");
        let error = read_waiting(&file, Duration::ZERO).expect_err("not there");
        assert!(chain(&error).contains(&file.url), "{}", chain(&error));
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| read_waiting(&file, Duration::from_secs(60)));
            std::thread::sleep(Duration::from_millis(50));
            std::fs::write(&file.url, &torn).expect("written");
            let again = reading.join().expect("no panic").expect("it is there again");
            assert_eq!(again, plan);
        });
    }

    #[test]
    fn excessive_length_is_refused_before_the_file_is_read() {
        let dir = tempfile::tempdir().expect("a folder");
        let (mut file, _) = written(dir.path());
        file.bytes = 1 << 40;
        assert!(matches!(read(&file), Err(InputPlanError::Storage(_))));
    }
}
