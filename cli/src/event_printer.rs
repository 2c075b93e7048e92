//! Prints the events of a job and its end.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use heddle_am::report::event;
use heddle_am::report::format::{self, ProgressFigures};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::figure::decimal;
use heddle_protocol::ids::Slot;
use heddle_protocol::job_spec::{AlgorithmKind, BadRecords, JobSpec, Location};
use heddle_protocol::view::{JobEvent, JobState, JobView};

use crate::failure::CommandFailure;
use crate::job_file::short_path;
use crate::output::{self, ProgressLine};
use crate::runs::LocalRun;

/// Facts about a job that its events do not contain.
#[derive(Clone, Debug, Default)]
pub struct JobFacts {
    /// Passes of the job file, for jobs without evaluations.
    pub passes: Option<u32>,
    /// Why there may be fewer.
    pub ends_by: &'static str,
    /// The folder of checkpoints.
    pub checkpoint_dir: String,
    /// The folder of the model.
    pub model: String,
    /// Whether bad records are written to a file.
    pub quarantine: bool,
    /// Data to score; `None` if `heddle predict` cannot read it.
    pub data: Option<Location>,
    /// Its logs: a folder, or the command that shows them.
    pub logs: String,
    /// The command that shows its state.
    pub status: String,
    /// Its duration in seconds, if that is not the time since the printer started.
    pub seconds: Option<f64>,
}

impl JobFacts {
    /// The facts of a job with a spec.
    pub fn of(spec: &JobSpec, logs: String, status: String) -> Self {
        let data = spec.data.test.first().or(spec.data.train.first());
        Self {
            passes: Some(spec.data.passes),
            ends_by: match spec.model.algorithm {
                AlgorithmKind::Kmeans => "the centres hardly moved (model.tolerance)",
                _ => "the loss on the test data did not improve (training.early-stop)",
            },
            checkpoint_dir: spec.checkpoint.dir.to_string(),
            model: spec.output.model.to_string(),
            quarantine: spec.data.bad_records == BadRecords::Quarantine,
            data: data.filter(|_| spec.model.algorithm != AlgorithmKind::Custom).cloned(),
            logs,
            status,
            seconds: None,
        }
    }
}

/// Prints events as text (stderr) or as JSON (stdout, unchanged), and keeps the exit code of the end.
pub struct EventPrinter {
    json: bool,
    /// Facts about the job.
    pub facts: JobFacts,
    progress: ProgressLine,
    begun: Instant,
    /// Rows at the start of this run; a continued run counts on.
    rows_before: Option<u64>,
    /// Slots whose container was lost and not replaced yet.
    lost: BTreeSet<Slot>,
    /// Time of the last line of progress that stays.
    progress_at: Option<Instant>,
    ended: Option<ExitCode>,
}

/// Interval of lines of progress in JSON and in a pipe: the log of a long job stays readable.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);

impl EventPrinter {
    /// The printer of a run of this machine.
    pub fn new(json: bool, spec: &JobSpec, run: &LocalRun) -> Self {
        let status = format!("heddle status {}", run.file.run.short());
        Self::with(json, JobFacts::of(spec, short_path(&run.dir.logs()), status))
    }

    /// The printer of any job.
    pub fn with(json: bool, facts: JobFacts) -> Self {
        Self {
            json,
            facts,
            progress: ProgressLine::new(),
            begun: Instant::now(),
            rows_before: None,
            lost: BTreeSet::new(),
            progress_at: None,
            ended: None,
        }
    }

    /// The exit code, once the last event has arrived.
    pub fn ended(&self) -> Option<ExitCode> {
        self.ended
    }

    /// Prints one line of the ApplicationMaster.
    ///
    /// # Errors
    /// Output cannot be written.
    pub fn line(&mut self, line: &str) -> Result<(), CommandFailure> {
        let event = parse_event(line);
        if self.json {
            let now = Instant::now();
            let is_due = event.as_ref().is_none_or(|event| self.is_due(event, now));
            if self.ended.is_some() || !is_due {
                return Ok(());
            }
            output::json_line(line)?;
            if let Some(JobEvent::Ended { exit_code, .. }) = event {
                self.ended = Some(exit_code);
            }
            return Ok(());
        }
        match event {
            Some(event) => self.event(event),
            // A line of a library, or an event of a later version.
            None => {
                self.say(line);
                Ok(())
            }
        }
    }

    /// Whether events are printed as JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Prints a line that stays.
    pub fn say(&mut self, text: &str) {
        self.progress.clear();
        output::note(text);
    }

    /// Prints one event.
    ///
    /// # Errors
    /// Output cannot be written.
    pub fn take(&mut self, event: JobEvent) -> Result<(), CommandFailure> {
        if !self.json {
            return self.event(event);
        }
        if self.ended.is_some() {
            return Ok(());
        }
        if !self.is_due(&event, Instant::now()) {
            return Ok(());
        }
        output::json(&event)?;
        if let JobEvent::Ended { exit_code, .. } = event {
            self.ended = Some(exit_code);
        }
        Ok(())
    }

    /// Whether an event gets a line of JSON: all events do, except progress within [`PROGRESS_EVERY`].
    fn is_due(&mut self, event: &JobEvent, now: Instant) -> bool {
        !matches!(event, JobEvent::Progress { .. }) || self.progress_is_due(now)
    }

    fn progress_is_due(&mut self, now: Instant) -> bool {
        let soon = |at: Instant| now.saturating_duration_since(at) < PROGRESS_EVERY;
        if self.progress_at.is_some_and(soon) {
            return false;
        }
        self.progress_at = Some(now);
        true
    }

    /// Shows a text that the next one replaces; only on a terminal.
    pub fn show(&mut self, text: &str) {
        if !self.json {
            self.progress.show(text);
        }
    }

    /// Shows the figures: on a terminal in a line that is redrawn, else now and then in a line of its own.
    fn show_progress(&mut self, figures: ProgressFigures<'_>) {
        let line = format::progress(figures);
        if self.progress.is_drawn() {
            self.progress.show_bar(&line, figures.done);
        } else if self.progress_is_due(Instant::now()) {
            self.say(&line);
        }
    }

    fn event(&mut self, event: JobEvent) -> Result<(), CommandFailure> {
        let told = event::line(&event).text;
        match &event {
            JobEvent::Started { resumed_from: None, .. } => self.rows_before = Some(0),
            // The first container of a slot is not news.
            JobEvent::Registered { slot, .. } if !self.lost.remove(slot) => return Ok(()),
            JobEvent::Lost { slot, .. } => {
                self.lost.insert(*slot);
            }
            JobEvent::PhaseBegun { text, .. } => self.progress.show(text),
            JobEvent::Progress { text, rows, rows_per_second, training_loss, done, left_ms } => {
                self.rows_before.get_or_insert(*rows);
                self.show_progress(ProgressFigures {
                    text,
                    done: *done,
                    rows: *rows,
                    rows_per_second: *rows_per_second,
                    loss: *training_loss,
                    left_ms: *left_ms,
                });
            }
            // Only the first end counts.
            JobEvent::Ended { state, exit_code, message, model, view } if self.ended.is_none() => {
                self.progress.clear();
                self.ended = Some(*exit_code);
                self.end(*state, *exit_code, message, model.as_deref(), view)?;
            }
            _ => {}
        }
        told.iter().for_each(|text| self.say(text));
        Ok(())
    }

    fn end(
        &mut self,
        state: JobState,
        exit_code: ExitCode,
        message: &str,
        model: Option<&str>,
        view: &JobView,
    ) -> Result<(), CommandFailure> {
        match state {
            JobState::Finished => self.finished(model, view),
            // A requested stop is not an error.
            JobState::Stopped if !message.is_empty() => {
                for line in message.lines() {
                    eprintln!("{line}");
                }
                Ok(())
            }
            _ => {
                let mut lines = message.lines();
                let fact = lines.next().unwrap_or(match exit_code {
                    ExitCode::Killed => "the run was stopped",
                    _ => "the run ended",
                });
                let mut failure = CommandFailure::new(exit_code, fact);
                failure.causes = lines.map(str::to_owned).collect();
                output::failure(&failure.next(format!("logs: {}", self.facts.logs)), false);
                Ok(())
            }
        }
    }

    /// The records of all passes, and how many there were a second.
    fn rows_in_words(&self, view: &JobView, seconds: f64) -> String {
        // Each record once for a pass, as the updates count it. More are computed: to measure, to evaluate, and again. Of a very
        // long job the newest passes alone are known.
        let are_all = view.passes.first().is_some_and(|first| first.pass == 0);
        let trained: u64 = view.passes.iter().map(|trained| trained.rows).sum();
        let shown = if are_all { trained } else { view.rows };
        let mut rows_text = format::thousands(shown);
        // A continued run counts on; its rate is that of the rows that it has computed.
        let before = self.rows_before.unwrap_or(view.rows);
        let own = if before == 0 { shown } else { view.rows.saturating_sub(before) };
        if own > 0 {
            let rate = own as f64 / seconds.max(0.001);
            rows_text.push_str(&format!(" in {seconds:.1} s, {rate:.0} rows/s"));
        }
        rows_text
    }

    /// Prints the report of a finished job to stdout, scores first.
    fn finished(&self, model: Option<&str>, view: &JobView) -> Result<(), CommandFailure> {
        let local = |text: &str| short_path(text.trim_start_matches("file://").as_ref());
        if let Some(scores) = format::model_scores(view) {
            output::line(&format::final_scores(scores))?;
        }
        let elapsed = self.begun.elapsed().as_secs_f64();
        let seconds = self.facts.seconds.unwrap_or(elapsed);
        let rows_text = self.rows_in_words(view, seconds);
        // A job of an earlier version has evaluations alone.
        let ended = view.passes.last().map(|trained| trained.pass);
        let evaluated = view.evaluations.last().map(|scores| scores.pass);
        let last = ended.max(evaluated).map(|pass| pass.saturating_add(1));
        let passes = last.or(self.facts.passes);
        let mut rows = Vec::new();
        if let Some(passes) = passes {
            rows.push(vec!["passes".to_owned(), self.passes_in_words(passes)]);
        }
        if let Some(loss) = view.passes.last().and_then(|trained| trained.loss) {
            rows.push(vec!["train loss".to_owned(), decimal(loss, 4)]);
        }
        rows.extend(view.kept_pass.map(kept_pass));
        rows.extend([
            vec!["rows".to_owned(), rows_text],
            vec![
                "checkpoints".to_owned(),
                format!(
                    "{} taken{}, in {}",
                    view.checkpoints_taken,
                    match view.history.checkpoints_given_up_total {
                        0 => String::new(),
                        late => format!(", {late} given up and taken later"),
                    },
                    local(&self.facts.checkpoint_dir)
                ),
            ],
        ]);
        if !view.recoveries.is_empty() {
            rows.push(vec![
                "recoveries".to_owned(),
                // Reports of earlier versions have no count.
                view.recoveries_total.max(view.recoveries.len() as u64).to_string(),
            ]);
        }
        if view.bad_records > 0 {
            let mut text = format::thousands(view.bad_records);
            if self.facts.quarantine {
                text.push_str(&format!(
                    ", written to trainer-*/bad-records beside the logs ({})",
                    self.facts.logs
                ));
            }
            rows.push(vec!["bad records".to_owned(), text]);
        }
        rows.extend(set_aside(view));
        let place = model.map_or_else(|| local(&self.facts.model), local);
        rows.push(vec!["model".to_owned(), place.clone()]);
        rows.push(vec!["logs".to_owned(), self.facts.logs.clone()]);
        let next = self.next_command(&place);
        rows.push(vec!["next".to_owned(), next]);
        output::line(&output::columns(&rows))
    }

    /// The trained passes, and the reason if they are fewer than the job's most.
    fn passes_in_words(&self, trained: u32) -> String {
        match self.facts.passes {
            Some(wanted) if trained < wanted => {
                format!("{trained} of {wanted}: {}", self.facts.ends_by)
            }
            _ => trained.to_string(),
        }
    }

    /// A useful next command: scoring the test data, or else the training data.
    fn next_command(&self, model: &str) -> String {
        let Some(data) = &self.facts.data else {
            return self.facts.status.clone();
        };
        let data = match data.as_local() {
            Some(path) => short_path(path),
            None => data.to_string(),
        };
        format!("heddle predict {} {}", quoted(model), quoted(&data))
    }
}

/// The row of the pass that the model is of.
fn kept_pass(pass: u32) -> Vec<String> {
    let pass = pass.saturating_add(1);
    let text = format!("that of pass {pass}, chosen on the test data (training.keep)");
    vec!["model of".to_owned(), text]
}

/// A word quoted for a shell if needed. Globs are quoted too; `heddle predict` expands them.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The event of a line of the ApplicationMaster, if this version can parse it.
fn parse_event(line: &str) -> Option<JobEvent> {
    JobEvent::from_json(line.as_bytes()).ok()
}

/// A row for each task that passes went on without.
fn set_aside(view: &JobView) -> impl Iterator<Item = Vec<String>> {
    view.set_aside.iter().map(|task| vec!["set aside".to_owned(), task.to_string()])
}

#[cfg(test)]
mod tests {
    use heddle_protocol::view::WarningCode;

    use super::*;

    #[test]
    fn json_has_progress_every_ten_seconds_and_all_other_events() {
        let facts = JobFacts {
            passes: None,
            ends_by: "",
            checkpoint_dir: String::new(),
            model: String::new(),
            quarantine: false,
            data: None,
            logs: String::new(),
            status: String::new(),
            seconds: None,
        };
        let mut printer = EventPrinter::with(true, facts);
        let progress = JobEvent::Progress {
            text: "pass 1 of 2".to_owned(),
            rows: 1,
            rows_per_second: 1.0,
            training_loss: None,
            done: None,
            left_ms: None,
        };
        let warning = JobEvent::warning(WarningCode::JournalDelayed, "late");
        let begun = Instant::now();
        // An hour of polls, two per second.
        let (mut lines, mut warnings) = (0, 0);
        for poll in 0..7200 {
            let now = begun + Duration::from_millis(500) * poll;
            lines += u32::from(printer.is_due(&progress, now));
            warnings += u32::from(printer.is_due(&warning, now));
        }
        assert_eq!((lines, warnings), (360, 7200));
    }

    #[test]
    fn passes_name_what_ended_them() {
        let mut spec = heddle_protocol::job_spec::job::sample();
        spec.data.passes = 5;
        let printer = |spec: &JobSpec| {
            EventPrinter::with(true, JobFacts::of(spec, String::new(), String::new()))
        };
        assert_eq!(printer(&spec).passes_in_words(5), "5");
        assert!(printer(&spec).passes_in_words(3).ends_with("(training.early-stop)"));
        spec.model.algorithm = AlgorithmKind::Kmeans;
        assert!(printer(&spec).passes_in_words(3).starts_with("3 of 5: the centres hardly moved"));
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        for (word, expected) in [
            ("out/ctr-1/model", "out/ctr-1/model"),
            ("bc test.libsvm", "'bc test.libsvm'"),
            ("data/*.libsvm", "'data/*.libsvm'"),
            ("it's", r"'it'\''s'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }
}
