//! What commands do with a run of this machine.

use async_trait::async_trait;
use heddle_am::report::{JobReport, ReportFacts};
use heddle_protocol::control::Operation;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::JobSpec;
use heddle_protocol::view::{JobState, JobView};
use serde_json::json;

use super::{LocalRun, RunState, logs};
use crate::failure::{CommandFailure, CommandResult, OrFail};
use crate::job::{LogQuery, NamedJob, end_operation};
use crate::{output, view_printer};

#[async_trait(?Send)]
impl NamedJob for LocalRun {
    fn id(&self) -> String {
        self.file.run.short()
    }

    fn full_id(&self) -> String {
        self.file.run.to_string()
    }

    fn restarts_its_master(&self) -> bool {
        false
    }

    async fn spec(&mut self) -> Result<JobSpec, CommandFailure> {
        self.dir.spec().or_fail(ExitCode::Input, "cannot read the job's spec")
    }

    async fn view(&mut self) -> Result<JobView, CommandFailure> {
        LocalRun::view(self).await
    }

    async fn operate(&mut self, operation: &Operation) -> Result<(), CommandFailure> {
        LocalRun::operate(self, operation).await
    }

    async fn ended(&mut self) -> Option<bool> {
        self.outcome().map(|outcome| outcome.state == JobState::Finished)
    }

    async fn kill(&mut self, checkpoint: bool, json: bool) -> CommandResult {
        let (short, state) = (self.id(), self.state());
        let text = match state {
            RunState::Running => {
                LocalRun::operate(self, &end_operation(checkpoint)).await?;
                format!("run {short} is ending; run its job again to continue it")
            }
            RunState::Stopped => format!("run {short} does not run: it was stopped"),
            ended => format!("run {short} does not run: it {}", ended.word()),
        };
        let killed = state == RunState::Running;
        output::done(&json!({ "run": self.file.run, "killed": killed }), &text, json)
    }

    async fn print_status(&mut self, json: bool) -> CommandResult {
        let mut state = self.state();
        let view = match state {
            RunState::Running => match LocalRun::view(self).await {
                Ok(view) => Some(view),
                Err(failure) => {
                    // The run may have ended since its state was read.
                    state = self.state();
                    if state == RunState::Running {
                        return Err(failure);
                    }
                    self.last_view()
                }
            },
            _ => self.last_view(),
        };
        let (file, outcome) = (&self.file, self.outcome());
        if json {
            output::json(&json!({
                "run": file.run,
                "name": file.name,
                "state": state,
                "outcome": outcome,
                "view": view,
            }))?;
            return Ok(ExitCode::Ok);
        }
        output::line(&format!("{} {}  {}", file.name, file.run, state.word()))?;
        for line in outcome.iter().flat_map(|outcome| outcome.message.lines()) {
            output::line(&format!("  {line}"))?;
        }
        if state == RunState::Died {
            output::line(
                "  its ApplicationMaster died without an outcome; run the job again to continue it",
            )?;
        }
        if let Some(view) = view {
            view_printer::print(&view)?;
        }
        output::line(&format!("logs  {}", self.dir.logs().display()))?;
        Ok(ExitCode::Ok)
    }

    async fn print_report(&mut self, json: bool) -> CommandResult {
        let (Some(outcome), Some(view)) = (self.outcome(), self.last_view()) else {
            let short = self.id();
            let fact = format!("run {short} has not left a report");
            return Err(CommandFailure::new(ExitCode::Input, fact)
                .next(format!("`heddle status {short}` shows its state")));
        };
        let file = &self.file;
        if json {
            output::json(&json!({
                "run": file.run,
                "name": file.name,
                "outcome": outcome,
                "view": view,
            }))?;
            return Ok(ExitCode::Ok);
        }
        let checkpoint_dir = self.spec().await.map(|spec| spec.checkpoint.dir.to_string());
        let facts = ReportFacts {
            ended_ms: self.ended_ms().unwrap_or(view.started_ms),
            checkpoint_dir: checkpoint_dir.unwrap_or_default(),
            ..ReportFacts::default()
        };
        output::line(JobReport::new(&view, &outcome, facts).to_string().trim_end())?;
        output::line(&format!("\nlogs            {}", self.dir.logs().display()))?;
        Ok(ExitCode::Ok)
    }

    async fn print_logs(&mut self, wanted: &LogQuery) -> CommandResult {
        logs::print(self, wanted).await
    }
}
