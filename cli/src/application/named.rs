//! What commands do with an application that they name by its id.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use heddle_protocol::control::Operation;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::JobSpec;
use heddle_protocol::view::JobView;
use heddle_yarn::ApplicationId;
use heddle_yarn::client::FinalApplicationStatus;

use super::{Application, logs, status};
use crate::failure::{CommandFailure, CommandResult};
use crate::job::{LogQuery, NamedJob, end_operation};
use crate::output;

/// Time limit for the end of an application: its ApplicationMaster stops the containers and unregisters.
const END_LIMIT: Duration = Duration::from_secs(20);
/// Poll interval.
const LOOK: Duration = Duration::from_millis(100);
/// What the ResourceManager writes down as the reason of a kill.
const KILLED: &str = "killed by heddle kill";

/// An application of the cluster that `HADOOP_CONF_DIR` names; the first use looks it up.
pub struct NamedApplication {
    id: ApplicationId,
    found: Option<Application>,
}

impl NamedApplication {
    /// The application with that id. The cluster checks later whether it exists.
    #[must_use]
    pub fn new(id: ApplicationId) -> Self {
        Self { id, found: None }
    }

    async fn found(&mut self) -> Result<&mut Application, CommandFailure> {
        let found = match self.found.take() {
            Some(found) => found,
            None => Application::find(self.id).await?,
        };
        Ok(self.found.insert(found))
    }
}

#[async_trait(?Send)]
impl NamedJob for NamedApplication {
    fn id(&self) -> String {
        self.id.to_string()
    }

    fn restarts_its_master(&self) -> bool {
        true
    }

    async fn check_key(&mut self) -> Result<(), CommandFailure> {
        self.found().await?.check_key().await
    }

    async fn spec(&mut self) -> Result<JobSpec, CommandFailure> {
        let spec = self.found().await?.spec.clone();
        spec.ok_or_else(|| CommandFailure::new(ExitCode::Input, "cannot read the job's spec"))
    }

    async fn view(&mut self) -> Result<JobView, CommandFailure> {
        let application = self.found().await?;
        // Another attempt listens elsewhere. Without the ResourceManager the last address may still be right.
        let _as_known = application.refresh().await;
        application.view().await
    }

    async fn operate(&mut self, operation: &Operation) -> Result<(), CommandFailure> {
        self.found().await?.operate(operation).await
    }

    async fn ended(&mut self) -> Option<bool> {
        let application = self.found().await.ok()?;
        let _as_known = application.refresh().await;
        let status = application.report.final_status;
        application.is_over().then_some(status == FinalApplicationStatus::Succeeded)
    }

    /// Through its ApplicationMaster, which writes the report and cleans up; through the ResourceManager if the
    /// ApplicationMaster does not respond.
    async fn kill(&mut self, checkpoint: bool, json: bool) -> CommandResult {
        let id = self.id;
        let application = self.found().await?;
        let runs = !application.is_over();
        if runs {
            let operation = end_operation(checkpoint);
            let ordered = match checkpoint {
                true => application.operate(&operation).await,
                // Without the secret the ResourceManager ends it.
                false => application.operate_soon(&operation).await,
            };
            match ordered {
                Ok(()) => {}
                // With `--checkpoint` the application is not killed without one.
                Err(failure) if checkpoint => {
                    return Err(
                        failure.next(format!("`heddle kill {id}` ends it without a checkpoint"))
                    );
                }
                Err(_) => application.kill(KILLED).await?,
            }
            let limit = match checkpoint {
                // The save must not be cut short.
                true => END_LIMIT + 2 * application.am().await.checkpoint_timeout,
                false => END_LIMIT,
            };
            if !ends_within(application, limit).await {
                application.kill(KILLED).await?;
                ends_within(application, END_LIMIT).await;
            }
        }
        application.remove_staging().await;
        let text = match runs {
            true => format!("{id} has ended; submit its job again to continue it"),
            false => format!("{id} does not run: it has ended"),
        };
        let object = serde_json::json!({ "application": id.to_string(), "killed": runs });
        output::done(&object, &text, json)
    }

    async fn print_status(&mut self, json: bool) -> CommandResult {
        status::print(self.id, json).await
    }

    async fn print_report(&mut self, json: bool) -> CommandResult {
        let id = self.id;
        let application = self.found().await?;
        let Some(report) = application.last_report().await? else {
            let fact = format!("{id} has not left a report");
            let and_logs = match application.is_over() {
                true => format!("and `heddle logs {id}` show more"),
                false => "shows its state".to_owned(),
            };
            return Err(CommandFailure::new(ExitCode::Input, fact)
                .next(format!("`heddle status {id}` {and_logs}")));
        };
        match json {
            true => output::json(&report)?,
            false => output::line(report.to_string().trim_end())?,
        }
        Ok(ExitCode::Ok)
    }

    async fn print_logs(&mut self, wanted: &LogQuery) -> CommandResult {
        logs::print(self.found().await?, wanted).await
    }
}

/// Whether it ends within the limit.
async fn ends_within(application: &mut Application, limit: Duration) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < limit {
        if application.refresh().await.is_ok() && application.is_over() {
            return true;
        }
        tokio::time::sleep(LOOK).await;
    }
    false
}
