//! Whether data has a record at all. Files of comments and blank lines, and packed files of nothing, have bytes and no record.

use heddle_protocol::manifest::InputPlan;
use heddle_protocol::spec::{BadRecords, JobSpec};
use heddle_storage::{StorageUrl, connect};

use crate::batch::Batch;
use crate::error::ReadError;
use crate::formats::words::RecordFormat;
use crate::lines::task_bytes::{NextLines, TaskBytes, line_of};

/// Bytes of text, and tasks, that are looked at: data with more of them before its first record is taken to have one.
const BYTES_MAX: usize = 64 << 20;
const TASKS_MAX: usize = 1_000;

/// Whether the training data of a plan, or its test data, has a record. What cannot be read is reported where it is read, so it
/// counts as one; malformed lines do too, unless the job leaves them out.
pub async fn has_record(spec: &JobSpec, plan: &InputPlan, training: bool) -> bool {
    look(spec, plan, training).await.unwrap_or(true)
}

async fn look(spec: &JobSpec, plan: &InputPlan, training: bool) -> Result<bool, ReadError> {
    let format = RecordFormat::before_training(spec);
    let (mut bytes, mut batch) = (0, Batch::default());
    for (n, task) in plan.tasks(training).iter().enumerate() {
        let Some(file) = plan.files.get(task.file as usize).filter(|_| n < TASKS_MAX) else {
            return Ok(true);
        };
        let url =
            StorageUrl::parse(&file.url).map_err(|_| ReadError::Url { url: file.url.clone() })?;
        let mut lines = TaskBytes::open(connect(&url)?, file, *task).await?;
        loop {
            match lines.lines().await? {
                NextLines::Some => {}
                NextLines::TooLong => return Ok(true),
                NextLines::End => break,
            }
            let (text, limit, mut at) = (lines.text(), lines.limit(), 0);
            while at < limit {
                match format.read_line(&text[at..], &mut batch) {
                    Ok((_, true)) => return Ok(true),
                    Ok((len, false)) => at += len,
                    Err(_) if spec.data.bad_records == BadRecords::Fail => return Ok(true),
                    Err(_) => at += line_of(&text[at..]).len(),
                }
            }
            lines.take(at);
            bytes += at;
            if bytes > BYTES_MAX {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
