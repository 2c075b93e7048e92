//! Follows an application until it ends: prints its events, passes on Ctrl-C, and returns its exit code.

use std::time::{Duration, Instant};

use heddle_am::report::JobReport;
use heddle_protocol::control::Operation;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{Attempt, RunId};
use heddle_protocol::view::{JobEvent, JobState, JobView, SlotState, SlotView};
use heddle_yarn::client::FinalApplicationStatus;
use heddle_yarn::{ApplicationState, ClientError};
use uuid::Uuid;

use super::Application;
use super::diagnostics::{exit_of, without_time};
use super::event_cursor::EventCursor;
use super::failed_attempts;
use super::wait_args::{OnInterrupt, WaitArgs};
use crate::am_client;
use crate::cluster::client_failure;
use crate::event_printer::{EventPrinter, JobFacts};
use crate::failure::{CommandFailure, CommandResult};
use crate::stop_signals::StopSignals;

/// Poll intervals: short while the job starts and ends, so that it does not wait for the client, longer during
/// training.
const LOOK_SOON: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(500);
/// A wait of this length gets a line of its own.
const WAIT_PRINTED_AFTER: Duration = Duration::from_secs(3);

/// Slots that a line names.
const MISSING_MAX: usize = 4;

/// The containers that a starting job waits for; `None` if it has all.
fn missing_containers(view: &JobView) -> Option<String> {
    let asked = |slot: &&SlotView| slot.state == SlotState::Asked;
    let there = |slot: &&SlotView| slot.state != SlotState::Empty && slot.state != SlotState::Asked;
    let missing: Vec<String> = view
        .slots
        .iter()
        .filter(asked)
        .map(|slot| slot.slot.to_string())
        .take(MISSING_MAX)
        .collect();
    (view.state == JobState::Starting && !missing.is_empty()).then(|| {
        format!(
            "{} of {} containers are running; missing: {}",
            view.slots.iter().filter(there).count(),
            view.slots.len(),
            missing.join(", ")
        )
    })
}

/// Follows an application to its end.
///
/// # Errors
/// The ResourceManager has forgotten the application, or the output cannot be written.
pub async fn follow(application: Application, waiting: WaitArgs, json: bool) -> CommandResult {
    let mut signals = StopSignals::register()?;
    let facts = facts(&application);
    let mut follower = Follower {
        application,
        printer: EventPrinter::with(json, facts),
        cursor: EventCursor::default(),
        view: None,
        since: Instant::now(),
        waits_since: None,
        last_printed: String::new(),
        silent: false,
    };
    let deadline = waiting.wait_timeout.map(|limit| Instant::now() + limit);
    let mut stopped_by = None;
    loop {
        // A poll may take seconds if the cluster does not respond; a signal does not wait for it.
        let signalled = tokio::select! {
            ended = follower.look_and_pause() => match ended? {
                true => break,
                false if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                    follower.say_that_it_continues();
                    return Ok(ExitCode::WaitedLong);
                }
                false => continue,
            },
            exit = signals.next() => exit,
        };
        if waiting.on_interrupt == OnInterrupt::Detach {
            follower.say_that_it_continues();
            return Ok(signalled);
        }
        if stopped_by.is_some() {
            follower.kill().await?;
            return Ok(signalled);
        }
        stopped_by = Some(signalled);
        follower.stop_in_order(&mut signals).await?;
    }
    let ended = follower.end().await?;
    Ok(match (ended, stopped_by) {
        // The job may have ended before the order arrived.
        (ExitCode::Ok, _) => ExitCode::Ok,
        (_, Some(signalled)) => signalled,
        (ended, None) => ended,
    })
}

fn facts(application: &Application) -> JobFacts {
    let id = application.id();
    let (logs, status) = (format!("heddle logs {id}"), format!("heddle status {id}"));
    match &application.spec {
        Some(spec) => JobFacts::of(spec, logs, status),
        None => JobFacts { logs, status, ..JobFacts::default() },
    }
}

struct Follower {
    application: Application,
    printer: EventPrinter,
    cursor: EventCursor,
    /// The last view of the job.
    view: Option<JobView>,
    since: Instant,
    /// The start of the wait for containers.
    waits_since: Option<Instant>,
    /// The last reason for waiting that was printed.
    last_printed: String,
    /// Whether the last poll of the ResourceManager failed.
    silent: bool,
}

impl Follower {
    fn say_that_it_continues(&mut self) {
        let id = self.application.id();
        self.printer.say(&format!("{id} continues to run; `heddle attach {id}` follows it"));
    }

    fn pause(&self) -> Duration {
        match &self.view {
            Some(view) if matches!(view.state, JobState::Running | JobState::Recovering) => LOOK,
            _ => LOOK_SOON,
        }
    }

    /// Looks at the application, and waits if it has not ended. Returns whether it has.
    async fn look_and_pause(&mut self) -> Result<bool, CommandFailure> {
        self.look().await?;
        if !self.application.is_over() {
            tokio::time::sleep(self.pause()).await;
            return Ok(false);
        }
        Ok(true)
    }

    /// Polls the ResourceManager, then the ApplicationMaster, and prints new events.
    async fn look(&mut self) -> Result<(), CommandFailure> {
        if self.application.is_over() {
            // The ResourceManager may have forgotten it since.
            return Ok(());
        }
        match self.application.refresh().await {
            Ok(()) => {
                if std::mem::take(&mut self.silent) {
                    self.printer.say("the ResourceManager responds again");
                }
            }
            Err(error) if error.is_retryable() => {
                if !self.silent {
                    self.silent = true;
                    self.printer.say("the ResourceManager does not respond; the job continues");
                }
            }
            Err(ClientError::NotFound(_)) if self.view.is_some() => {
                let id = self.application.id();
                return Err(CommandFailure::new(
                    ExitCode::Unreachable,
                    format!(
                        "the ResourceManager has forgotten {id}: it was restarted without recovery"
                    ),
                )
                .next(
                    "submit the job again with --take-over: it continues from its last checkpoint (the ResourceManager cannot \
                     confirm that this application has ended; its containers end within run.orphan-timeout)",
                ));
            }
            Err(error) => {
                return Err(client_failure("cannot read the application's state", &error));
            }
        }
        match self.application.report.state {
            Some(ApplicationState::Running) => self.look_inside().await,
            Some(state) if !state.is_final() => {
                self.wait_in_words();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn look_inside(&mut self) -> Result<(), CommandFailure> {
        // An ApplicationMaster that ends or was replaced does not respond; the next poll shows the change.
        if let Ok(view) = self.application.view().await {
            // A wait for the next attempt begins when this one has ended.
            self.since = Instant::now();
            self.print_new_events().await?;
            self.wait_for_containers(&view);
            self.view = Some(view);
        }
        Ok(())
    }

    async fn print_new_events(&mut self) -> Result<(), CommandFailure> {
        // The second request is for the stream of a new attempt.
        for _ in 0..2 {
            let Ok(page) = self.application.events(self.cursor.from()).await else {
                return Ok(());
            };
            if let Some(events) = self.cursor.take(page) {
                return self.print(events);
            }
        }
        Ok(())
    }

    fn print(&mut self, events: Vec<JobEvent>) -> Result<(), CommandFailure> {
        for mut event in events {
            if let JobEvent::Started { address, .. } = &mut event {
                // The link that leads to the report after the end, too.
                address.clone_from(&self.application.report.tracking_url);
            }
            self.printer.take(event)?;
        }
        Ok(())
    }

    /// While the application waits for a container: shows the ResourceManager's reason without its time.
    fn wait_in_words(&mut self) {
        let text = without_time(&self.application.report.diagnostics);
        let line = match text.is_empty() {
            true => "waiting for a container for the ApplicationMaster".to_owned(),
            false => text.to_owned(),
        };
        let seconds = self.since.elapsed().as_secs();
        self.printer.show(&format!("{seconds} s  {line}"));
        self.print_long_wait(self.since, line);
    }

    /// Prints a line that stays about a wait that takes long, unless it was printed last.
    fn print_long_wait(&mut self, since: Instant, line: String) {
        let is_long = since.elapsed() > WAIT_PRINTED_AFTER;
        if is_long && self.last_printed != line && !self.printer.is_json() {
            self.printer.say(&format!("waiting: {line}"));
            self.last_printed = line;
        }
    }

    /// While the job waits for containers: shows how many it has, and prints a changed count on a line that stays.
    fn wait_for_containers(&mut self, view: &JobView) {
        let Some(line) = missing_containers(view) else {
            return;
        };
        let waited = *self.waits_since.get_or_insert_with(Instant::now);
        self.printer.show(&format!("{} s  {line}", waited.elapsed().as_secs()));
        self.print_long_wait(waited, line);
    }

    /// Asks the ApplicationMaster to save and end; without one, the ResourceManager kills the application.
    async fn stop_in_order(&mut self, signals: &mut StopSignals) -> Result<(), CommandFailure> {
        if self.view.is_none() {
            return self.kill().await;
        }
        self.printer.say("saving a checkpoint and stopping; press Ctrl-C again to stop at once");
        let stop = Operation::Stop { checkpoint: true };
        let ordered = tokio::select! {
            ordered = self.application.operate(&stop) => ordered,
            _ = signals.next() => return self.kill().await,
        };
        if let Err(failure) = ordered {
            if failure.exit == am_client::REFUSED {
                // The ApplicationMaster responds, so it ends by itself without a new checkpoint.
                self.printer.say(&failure.fact);
                return Ok(());
            }
            self.printer.say(&format!("{}; killed", failure.fact));
            return self.kill().await;
        }
        Ok(())
    }

    async fn kill(&mut self) -> Result<(), CommandFailure> {
        self.application.kill("killed by its submitter").await?;
        let _gone = self.application.refresh().await;
        self.application.remove_staging().await;
        Ok(())
    }

    /// Prints the end, from the report or else from the ResourceManager's state.
    async fn end(&mut self) -> Result<ExitCode, CommandFailure> {
        self.application.remove_staging().await;
        let report = self.application.last_report().await.unwrap_or_default();
        match report {
            Some(report) => self.reported(report)?,
            None => {
                let nodes = failed_attempts::nodes_in_words(&self.application).await;
                let event = self.unreported(nodes.as_deref());
                self.printer.take(event)?;
            }
        }
        Ok(self.printer.ended().unwrap_or(ExitCode::Internal))
    }

    fn reported(&mut self, report: JobReport) -> Result<(), CommandFailure> {
        let events = self.cursor.unprinted(report.events);
        self.print(events)?;
        let facts = &mut self.printer.facts;
        let spent = report.ended_ms.saturating_sub(report.started_ms);
        facts.seconds = Some(spent as f64 / 1000.0);
        facts.checkpoint_dir.clone_from(&report.checkpoint_dir);
        if let Some(model) = &report.model {
            facts.model.clone_from(model);
        }
        self.printer.take(JobEvent::Ended {
            state: report.state,
            exit_code: report.exit_code,
            message: report.message,
            model: report.model,
            view: Box::new(report.view),
        })
    }

    /// The end of an application whose ApplicationMaster left no report.
    fn unreported(&mut self, nodes_of_failed_attempts: Option<&str>) -> JobEvent {
        let report = &self.application.report;
        let (state, exit) = match (report.state, report.final_status) {
            (_, FinalApplicationStatus::Succeeded) => (JobState::Finished, ExitCode::Ok),
            (Some(ApplicationState::Killed), _) | (_, FinalApplicationStatus::Killed) => {
                (JobState::Stopped, ExitCode::Killed)
            }
            _ => {
                let exit_code = exit_of(&report.diagnostics).unwrap_or(ExitCode::JobFailed);
                (JobState::Failed, exit_code)
            }
        };
        let mut message = match report.diagnostics.trim() {
            "" | "N/A" => format!("{} ended without a report", report.id),
            words => words.to_owned(),
        };
        if let Some(nodes) = nodes_of_failed_attempts {
            message.push_str(&format!("\n{nodes}"));
        }
        // A job that has trained has checkpoints, unless its diagnostics deny it.
        if state != JobState::Finished && self.view.as_ref().is_some_and(|view| view.rows > 0) {
            message.push_str("\nsubmit the job again: it continues from its last checkpoint");
        }
        let view = self.view.clone().unwrap_or_else(|| {
            let started_ms = u64::try_from(report.start_time_ms).unwrap_or(0);
            JobView::starting(RunId(Uuid::nil()), &report.name, Attempt(1), started_ms)
        });
        let view = JobView { state, message: message.clone(), ..view };
        JobEvent::Ended { state, exit_code: exit, message, model: None, view: Box::new(view) }
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::ids::{Incarnation, Slot};

    use super::*;

    fn view(state: JobState, slots: &[(Slot, SlotState)]) -> JobView {
        let slot =
            |&(slot, state): &(Slot, SlotState)| SlotView::empty(slot, Incarnation(1), state);
        JobView {
            state,
            slots: slots.iter().map(slot).collect(),
            ..JobView::starting(RunId(Uuid::nil()), "ctr", Attempt(1), 1000)
        }
    }

    #[test]
    fn a_start_names_the_containers_that_it_waits_for() {
        use SlotState::{Asked, Running};
        let slots =
            [(Slot::pserver(0), Running), (Slot::trainer(0), Running), (Slot::trainer(1), Asked)];
        let text = missing_containers(&view(JobState::Starting, &slots));
        let expected = "2 of 3 containers are running; missing: trainer-1";
        assert_eq!(text.as_deref(), Some(expected));
        // A container that is requested later does not delay the start.
        assert_eq!(missing_containers(&view(JobState::Running, &slots)), None);
        assert_eq!(missing_containers(&view(JobState::Starting, &slots[..2])), None);
        let many: Vec<_> = (0..9).map(|n| (Slot::trainer(n), Asked)).collect();
        let text = missing_containers(&view(JobState::Starting, &many)).expect("a line");
        assert!(text.starts_with("0 of 9 ") && text.ends_with("trainer-3"), "{text}");
    }
}
