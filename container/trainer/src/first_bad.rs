//! The first bad record of the data, which messages name: the same one in each run, whichever task reports first.

use std::time::{Duration, Instant};

use heddle_input::{Batch, ReadError, TaskReader};
use heddle_protocol::ids::TaskId;

/// Longest look at the data before a bad record: the beginning of data is where a wrong format shows. Some 500 MB are read
/// meanwhile.
const LOOK_MAX: Duration = Duration::from_secs(3);
/// Records between two looks at the clock.
const ROWS: usize = 1_000;

/// `file:line:column: what` of the first bad record in the tasks before `task`, which `open` opens with the policy to fail.
/// `None`: there is none, they cannot be read, or they take longer than [`LOOK_MAX`].
pub(crate) async fn first_bad_before<F>(
    task: TaskId,
    open: impl FnMut(TaskId) -> Result<F, ReadError>,
) -> Option<String>
where
    F: Future<Output = Result<TaskReader, ReadError>>,
{
    match tokio::time::timeout(LOOK_MAX, look(task, open)).await {
        Ok(Err(ReadError::Record { place })) => Some(place),
        Ok(Ok(()) | Err(_)) | Err(_) => None,
    }
}

/// Reads the tasks before `task` up to the first error.
async fn look<F>(
    task: TaskId,
    mut open: impl FnMut(TaskId) -> Result<F, ReadError>,
) -> Result<(), ReadError>
where
    F: Future<Output = Result<TaskReader, ReadError>>,
{
    // Text in a cache is read without a wait, which the caller's timeout needs.
    let (started, mut batch) = (Instant::now(), Batch::default());
    for before in (0..task.0).map(TaskId) {
        let mut reader = open(before)?.await?;
        loop {
            reader.next_batch(ROWS, &mut batch).await?;
            if batch.is_empty() {
                break;
            }
            if started.elapsed() > LOOK_MAX {
                return Ok(());
            }
        }
    }
    Ok(())
}
