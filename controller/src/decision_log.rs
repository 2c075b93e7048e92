//! The log of decisions: one file a day and leader, `private/decisions/<day>-<generation>.jsonl`, kept for 30 days.

use bytes::Bytes;
use heddle_controller_core::ScalingDecision;
use heddle_storage::{Mode, StorageError, Writer};
use jiff::civil::Date;
use jiff::{Timestamp, tz::TimeZone};
use serde::{Deserialize, Serialize};

use crate::dir::ControllerDir;

/// Days for which a file is kept.
const DAYS_KEPT: i64 = 30;

/// A line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoggedDecision {
    /// ms since 1970.
    pub at_ms: u64,
    /// The leader.
    pub generation: u64,
    /// The decision.
    pub decision: ScalingDecision,
    /// The decision in words.
    pub text: String,
    /// Why the job refused it or was not reached; empty: it has accepted it.
    #[serde(default)]
    pub refused: String,
}

/// The file that lines go to.
#[derive(Debug)]
pub struct DecisionLog {
    generation: u64,
    open: Option<(Date, Box<dyn Writer>)>,
    /// Numbers the files that followed a failed one.
    failures: u32,
}

impl DecisionLog {
    /// A log of a leader.
    #[must_use]
    pub fn new(generation: u64) -> Self {
        Self { generation, open: None, failures: 0 }
    }

    /// Writes lines, durably. With the first of a day files that are too old are removed.
    ///
    /// # Errors
    /// The storage fails: these lines are lost, and the next call begins another file.
    pub async fn write(
        &mut self,
        dir: &ControllerDir,
        lines: &[LoggedDecision],
    ) -> Result<(), StorageError> {
        let Some(last) = lines.last() else { return Ok(()) };
        let written = self.append(dir, day_of(last.at_ms), lines).await;
        // Also if it was not created: the server may have done so, and the name is taken.
        self.failures += u32::from(written.is_err());
        written
    }

    async fn append(
        &mut self,
        dir: &ControllerDir,
        day: Date,
        lines: &[LoggedDecision],
    ) -> Result<(), StorageError> {
        let mut writer = match self.open.take() {
            Some((of, writer)) if of == day => writer,
            earlier => {
                if let Some((_, writer)) = earlier {
                    writer.close().await?;
                }
                remove_old(dir, day).await?;
                let name = match self.failures {
                    0 => format!("{day}-{:09}.jsonl", self.generation),
                    n => format!("{day}-{:09}.{n}.jsonl", self.generation),
                };
                dir.storage().create(&dir.decisions().join(&name)?, Mode::FILE).await?
            }
        };
        let mut text = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut text, line).expect("plain fields are JSON");
            text.push(b'\n');
        }
        writer.write(Bytes::from(text)).await?;
        writer.sync().await?;
        self.open = Some((day, writer));
        Ok(())
    }

    /// Closes the file.
    ///
    /// # Errors
    /// The storage fails; the lines are durable.
    pub async fn close(self) -> Result<(), StorageError> {
        match self.open {
            Some((_, writer)) => Ok(writer.close().await?),
            None => Ok(()),
        }
    }
}

fn day_of(at_ms: u64) -> Date {
    let at = Timestamp::from_millisecond(i64::try_from(at_ms).unwrap_or(0)).unwrap_or_default();
    at.to_zoned(TimeZone::UTC).date()
}

async fn remove_old(dir: &ControllerDir, today: Date) -> Result<(), StorageError> {
    for entry in dir.storage().list(&dir.decisions()).await? {
        let day = entry.name().get(..10).and_then(|day| day.parse::<Date>().ok());
        let is_old =
            |day: Date| today.since(day).is_ok_and(|age| i64::from(age.get_days()) > DAYS_KEPT);
        if day.is_some_and(is_old) {
            dir.storage().delete_file(&entry.path).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use heddle_controller_core::{ContainerCounts, ScalingReason};

    use super::*;
    use crate::dir::local_folder;

    fn line(day: u64) -> LoggedDecision {
        let decision = ScalingDecision {
            job: "application_1_0001".to_owned(),
            from: ContainerCounts::new(1, 1),
            to: ContainerCounts::new(2, 1),
            reason: ScalingReason::BelowMinimum,
            leave: Vec::new(),
            room: Vec::new(),
        };
        let text = decision.to_string();
        let at_ms = day * 86_400_000;
        LoggedDecision { at_ms, generation: 3, decision, text, refused: String::new() }
    }

    #[tokio::test]
    async fn each_day_has_a_file_and_old_ones_are_removed() {
        let (root, dir) = local_folder().await;
        let mut log = DecisionLog::new(3);
        for day in [20_000, 20_000, 20_001, 20_031] {
            log.write(&dir, &[line(day)]).await.expect("written");
        }
        log.close().await.expect("closed");
        let folder = root.path().join("private/decisions");
        let files = || std::fs::read_dir(&folder).expect("listed");
        let mut names: Vec<_> = files()
            .map(|file| file.expect("one").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        assert_eq!(names, ["2024-10-05-000000003.jsonl", "2024-11-04-000000003.jsonl"]);
    }
}
