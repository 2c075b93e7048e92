//! Whether data has a record at all. Files of comments and blank lines, and packed files of nothing, have bytes and no record.

use heddle_protocol::job_spec::{BadRecords, JobSpec};
use heddle_protocol::manifest::{InputPlan, TaskRange};

use crate::batch::Batch;
use crate::error::ReadError;
use crate::reader::{BadPolicy, TaskReader};
use crate::record_format::RecordFormat;

/// Bytes of the files, and tasks, that are looked at: data with more of them before its first record is taken to have one.
const BYTES_MAX: u64 = 64 << 20;
const TASKS_MAX: usize = 1_000;
/// Malformed records of a task after which a sound one is taken to follow.
const BAD_MAX: u64 = 1_000;

/// Whether the training data of a plan, or its test data, has a record. What cannot be read is reported where it is read, so it
/// counts as one; malformed lines do too, unless the job leaves them out.
pub async fn has_record(spec: &JobSpec, plan: &InputPlan, training: bool) -> bool {
    look(spec, plan, training, BYTES_MAX).await.unwrap_or(true)
}

/// Looks at `left` bytes of the files.
async fn look(
    spec: &JobSpec,
    plan: &InputPlan,
    training: bool,
    mut left: u64,
) -> Result<bool, ReadError> {
    let (format, mut batch) = (RecordFormat::before_training(spec).of_plan(plan), Batch::default());
    for (n, task) in plan.tasks(training).iter().enumerate() {
        let file = plan.files.get(task.file as usize).filter(|_| n < TASKS_MAX && left > 0);
        let Some(file) = file else { return Ok(true) };
        let policy = match spec.data.bad_records {
            BadRecords::Fail => BadPolicy::Fail,
            BadRecords::Skip(_) | BadRecords::Quarantine => BadPolicy::Skip(BAD_MAX),
        };
        let part = TaskRange { end: task.end.min(task.start.saturating_add(left)), ..*task };
        left -= part.end - part.start;
        let mut reader = TaskReader::open(file, part, format.clone(), policy).await?;
        reader.next_batch(1, &mut batch).await?;
        // What was not looked at may have one.
        if !batch.is_empty() || part.end < task.end {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use heddle_protocol::job_spec::DataFormat;
    use heddle_protocol::job_spec::job::sample;

    use super::*;
    use crate::plan::{TaskLength, plan_tasks};
    use crate::reader::tests::{case, wait};

    /// The answer after `looked` bytes of this text, which is one task.
    fn answer(text: &str, looked: u64) -> bool {
        let (case, whole) = (case("a", text.as_bytes()), TaskLength::Bytes(u64::MAX));
        let files = vec![case.file.clone()];
        let train = plan_tasks(DataFormat::Libsvm, &files, 0, whole);
        let plan = InputPlan { files, train, ..InputPlan::default() };
        wait(look(&sample(), &plan, true, looked)).expect("it is read")
    }

    #[test]
    fn a_record_beyond_what_is_looked_at_is_taken_to_be_there() {
        let comments = "# nothing\n".repeat(20);
        assert!(!answer(&comments, 1_000));
        assert!(answer(&format!("{comments}1 1:1\n"), 1_000));
        assert!(answer(&format!("{comments}1 1:1\n"), 100));
    }
}
