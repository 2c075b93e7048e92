//! Each event of a job in one place: its weight, its text for users and its line in the log.

use heddle_protocol::ids::Slot;
use heddle_protocol::job_spec::DurationMs;
use heddle_protocol::view::{
    CheckpointPeriodView, CheckpointView, EvaluationView, JobEvent, StorageWaitView,
    TrainingPassView,
};

use super::format;

/// What happens to an event that waits for a slow reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// A newer one replaces it.
    Progress,
    /// Dropped when too many wait.
    Passing,
    /// Never dropped.
    Kept,
}

/// An event for users and for the log.
pub struct EventLine<'e> {
    /// What happens to it when it waits.
    pub weight: Weight,
    /// For users, unless another line contains it, or the reader shows it in a way of its own.
    pub text: Option<String>,
    log: Box<dyn FnOnce() + 'e>,
}

impl EventLine<'_> {
    /// Writes the line of the log.
    pub fn log(self) {
        (self.log)();
    }

    fn with(self, weight: Weight) -> Self {
        Self { weight, ..self }
    }
}

fn shown<'e>(text: String, log: impl FnOnce() + 'e) -> EventLine<'e> {
    EventLine { text: Some(text), ..hidden(log) }
}

fn hidden<'e>(log: impl FnOnce() + 'e) -> EventLine<'e> {
    EventLine { weight: Weight::Passing, text: None, log: Box::new(log) }
}

/// The line of an event.
#[must_use]
pub fn line(event: &JobEvent) -> EventLine<'_> {
    match event {
        JobEvent::Started { run, name, attempt, address, resumed_from } => {
            let resumed_from = resumed_from.map(|cut| cut.to_string());
            let from: String =
                resumed_from.iter().map(|cut| format!(", from checkpoint {cut}")).collect();
            let text = format!("{name}: run {}{from}; page {address}", run.short());
            let log = move || tracing::info!(%run, %attempt, address, ?resumed_from, "job_started");
            shown(text, log).with(Weight::Kept)
        }
        JobEvent::Registered { slot, incarnation, pid, host } => {
            shown(format!("{slot} is replaced by process {pid}"), move || {
                tracing::info!(%slot, %incarnation, pid, host, "container_registered");
            })
        }
        JobEvent::Lost { slot, incarnation, cause } => {
            shown(format!("{slot} ({incarnation}) {cause}"), move || {
                tracing::info!(%slot, %incarnation, cause, "container_lost");
            })
        }
        JobEvent::PhaseBegun { phase, text } => {
            hidden(move || tracing::info!(%phase, text, "phase_begun"))
        }
        JobEvent::Progress { text, rows, rows_per_second, training_loss, done, left_ms } => {
            let log = move || {
                tracing::debug!(
                    text,
                    rows,
                    rows_per_second,
                    training_loss,
                    done,
                    left_ms,
                    "progress"
                );
            };
            hidden(log).with(Weight::Progress)
        }
        JobEvent::PassTrained(trained) => shown(format::trained(trained), move || {
            let TrainingPassView { pass, rows, loss } = trained;
            tracing::info!(pass, rows, training_loss = loss, "pass_trained");
        }),
        JobEvent::Evaluated(scores) => shown(format::evaluation(scores), move || {
            let EvaluationView { pass, rows, figures } = scores;
            tracing::info!(pass, rows, %figures, "pass_evaluated");
        }),
        JobEvent::StoppedEarly { text } => shown(text.clone(), move || {
            tracing::info!(text, "training_stopped_early");
        }),
        JobEvent::Warning { text, code } => shown(format!("warning: {text}"), move || {
            tracing::warn!(text, "{}", code.name());
        }),
        JobEvent::Ended { state, exit_code, message, model, .. } => {
            let log = move || tracing::info!(?state, %exit_code, message, model, "job_ended");
            hidden(log).with(Weight::Kept)
        }
        JobEvent::CheckpointCommitted(_)
        | JobEvent::CheckpointPeriod(_)
        | JobEvent::CheckpointGivenUp { .. }
        | JobEvent::CheckpointDamaged { .. }
        | JobEvent::SaveGranted { .. }
        | JobEvent::ModelSaved { .. }
        | JobEvent::StorageWait(_) => line_of_storage(event),
        JobEvent::RollbackStarted { .. }
        | JobEvent::RollbackFinished { .. }
        | JobEvent::FailedOver { .. }
        | JobEvent::Moved { .. }
        | JobEvent::TrainersReleased { .. }
        | JobEvent::Recovered(_) => line_of_recovery(event),
    }
}

fn line_of_storage(event: &JobEvent) -> EventLine<'_> {
    match event {
        JobEvent::CheckpointCommitted(taken) => shown(format::checkpoint(taken), move || {
            let CheckpointView { cut, bytes, took_ms, .. } = taken;
            tracing::info!(%cut, bytes, duration_ms = took_ms, "checkpoint_committed");
        }),
        JobEvent::CheckpointPeriod(period) => shown(period.to_string(), move || {
            let CheckpointPeriodView { period_ms, cost_ms, rollbacks, running_ms, between_ms } =
                period;
            tracing::info!(
                period_ms,
                cost_ms,
                rollbacks,
                running_ms,
                between_ms,
                "checkpoint_period_changed"
            );
        }),
        JobEvent::CheckpointGivenUp { cut, reason } => {
            shown(format!("checkpoint {cut} given up: {reason}"), move || {
                tracing::info!(%cut, reason, "checkpoint_aborted");
            })
        }
        JobEvent::CheckpointDamaged { cut, dir, error } => {
            let text = format::checkpoint_damaged(*cut, dir, error);
            let log = move || tracing::error!(%cut, dir, error, "checkpoint_damaged");
            shown(format!("warning: {text}"), log).with(Weight::Kept)
        }
        JobEvent::SaveGranted { save, slot } => {
            shown(format!("{slot} asked for save {save} of the model"), move || {
                tracing::info!(%save, %slot, "save_granted");
            })
        }
        JobEvent::ModelSaved { save, checkpoint, dir } => {
            let text = format!("save {save}: the model of checkpoint {checkpoint} is in {dir}");
            shown(text, move || tracing::info!(%save, %checkpoint, dir, "model_saved"))
        }
        JobEvent::StorageWait(wait) => shown(format::storage_wait(wait), move || {
            let StorageWaitView { file, error, trainers, since_ms, ended_ms } = wait;
            tracing::info!(file, error, trainers, since_ms, ended_ms, "storage_wait_changed");
        }),
        other => unreachable_line(other),
    }
}

fn line_of_recovery(event: &JobEvent) -> EventLine<'_> {
    match event {
        // The end of the recovery gets a text with its phases.
        JobEvent::RollbackStarted { epoch, base, shards, cause } => hidden(move || {
            let checkpoint = base.map(tracing::field::display);
            tracing::info!(epoch_after = %epoch, checkpoint, shards, cause, "rollback_started");
        }),
        JobEvent::RollbackFinished { epoch, took_ms, from_memory, from_storage } => {
            hidden(move || {
                tracing::info!(
                    epoch_after = %epoch, duration_ms = took_ms, from_memory, from_storage,
                    "rollback_finished"
                );
            })
        }
        JobEvent::FailedOver { slot, promoted, backups_lost, under_replicated } => {
            shown(failed_over(*slot, *promoted, *backups_lost, *under_replicated), move || {
                tracing::info!(%slot, promoted, backups_lost, under_replicated, "failed_over");
            })
        }
        JobEvent::Moved { slot, shards, to, cause } => {
            let names: Vec<String> = to.iter().map(Slot::to_string).collect();
            let to = names.join(", ");
            // Events of earlier versions do not name them.
            let towards = if to.is_empty() { String::new() } else { format!(" to {to}") };
            let text = format!("{} moved from {slot}{towards}: {cause}", counted(*shards));
            shown(text, move || tracing::info!(%slot, shards, %to, cause, "moved"))
        }
        JobEvent::TrainersReleased { trainers, idle_ms } => {
            let text = match trainers {
                1 => "1 trainer has".to_owned(),
                _ => format!("{trainers} trainers have"),
            };
            let text = format!(
                "{text} had no work for {}: released until there is work (trainers.idle-timeout)",
                DurationMs(*idle_ms)
            );
            shown(text, move || tracing::info!(trainers, idle_ms, "trainers_released"))
        }
        JobEvent::Recovered(recovery) => shown(format::recovery(recovery), move || {
            let duration_ms = format::phases(recovery).total_ms();
            let epoch = recovery.epoch_after;
            tracing::info!(cause = recovery.cause, %epoch, duration_ms, "recovery_finished");
        }),
        other => unreachable_line(other),
    }
}

fn unreachable_line(event: &JobEvent) -> EventLine<'_> {
    debug_assert!(false, "an event of another group: {event:?}");
    hidden(|| {})
}

fn counted(shards: u32) -> String {
    if shards == 1 { "1 shard".to_owned() } else { format!("{shards} shards") }
}

/// `failover from pserver-1: backups serve 4 shards of it, 4 shards lost a backup; 4 shards under-replicated`.
fn failed_over(slot: Slot, promoted: u32, backups_lost: u32, under_replicated: u32) -> String {
    let promoted = (promoted > 0).then(|| format!("backups serve {} of it", counted(promoted)));
    let lost = (backups_lost > 0).then(|| format!("{} lost a backup", counted(backups_lost)));
    let parts: Vec<String> = promoted.into_iter().chain(lost).collect();
    let under = counted(under_replicated);
    format!("failover from {slot}: {}; {under} under-replicated", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use heddle_protocol::view::NumberedEvent;

    use super::*;

    #[test]
    fn move_of_an_earlier_version_is_read() {
        let stored =
            r#"{"event": "handed-over", "slot": "pserver-1", "shards": 1, "cause": "why"}"#;
        let event: JobEvent = serde_json::from_str(stored).expect("an event");
        assert_eq!(line(&event).text.as_deref(), Some("1 shard moved from pserver-1: why"));
    }

    #[test]
    fn each_event_has_its_weight_and_its_text() {
        let stored = include_str!("../../tests/stored/events.jsonl").lines();
        let events = stored.map(serde_json::from_str::<NumberedEvent>);
        let (mut kept, mut texts) = (Vec::new(), Vec::new());
        for event in events.map(|read| read.expect("an event").event) {
            let line = line(&event);
            if line.weight == Weight::Kept {
                kept.push(std::mem::discriminant(&event));
            }
            assert_eq!(line.weight == Weight::Progress, matches!(event, JobEvent::Progress { .. }));
            texts.extend(line.text.clone());
            line.log();
        }
        assert_eq!(kept.len(), 3, "the first, the last and a damaged checkpoint");
        for expected in [
            "quickstart: run 00000000, from checkpoint g1-c1; page http://am:1/",
            "trainer-0 is replaced by process 103",
            "warning: the model is worse than a constant",
            "save 1: the model of checkpoint g1-c3 is in hdfs://nn/model/1",
            "failover from pserver-1: backups serve 4 shards of it, 3 shards lost a backup; 7 shards under-replicated",
            "4 shards moved from pserver-1 to pserver-0, pserver-2: others serve fewer",
        ] {
            assert!(texts.iter().any(|text| text == expected), "{expected:?} in {texts:#?}");
        }
        assert_eq!(
            texts.len(),
            22 - 5,
            "phases, progress, rollbacks and the end are shown otherwise"
        );
    }
}
