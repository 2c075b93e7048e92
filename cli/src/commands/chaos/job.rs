//! The job of a chaos session: its view, its orders, its end.

use heddle_protocol::control::{ChaosOrder, Operation};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::spec::JobSpec;
use heddle_protocol::view::{JobState, JobView};
use heddle_yarn::client::FinalApplicationStatus;

use crate::am_client;
use crate::application::Application;
use crate::commands::JobRef;
use crate::failure::{CommandFailure, OrFail};
use crate::runs::LocalRun;

/// A job of this machine or of a cluster.
pub enum ChaosJob {
    Run(Box<LocalRun>),
    Application(Box<Application>),
}

impl ChaosJob {
    /// # Errors
    /// The cluster does not know the application, or does not respond; exit code 5 if it belongs to another user.
    pub async fn open(named: JobRef) -> Result<Self, CommandFailure> {
        Ok(match named {
            JobRef::Run(run) => Self::Run(run),
            JobRef::Application(id) => {
                let application = Application::find(id).await?;
                application.check_key().await?;
                Self::Application(Box::new(application))
            }
        })
    }

    /// Its id, as commands take it.
    pub fn id(&self) -> String {
        match self {
            Self::Run(run) => run.file.run.short(),
            Self::Application(application) => application.id().to_string(),
        }
    }

    /// Whether another ApplicationMaster follows one that ends.
    pub fn restarts_its_master(&self) -> bool {
        matches!(self, Self::Application(_))
    }

    /// # Errors
    /// Exit code 7 if the job cannot be read.
    pub fn spec(&self) -> Result<JobSpec, CommandFailure> {
        let unread = || CommandFailure::new(ExitCode::Input, "cannot read the job's spec");
        match self {
            Self::Run(run) => run.dir.spec().or_fail(ExitCode::Input, "cannot read the job's spec"),
            Self::Application(application) => application.spec.clone().ok_or_else(unread),
        }
    }

    /// # Errors
    /// Exit code 6 if its ApplicationMaster does not respond, as while it restarts.
    pub async fn view(&mut self) -> Result<JobView, CommandFailure> {
        match self {
            Self::Run(run) => am_client::view(run).await,
            Self::Application(application) => {
                // Another attempt listens elsewhere. Without the ResourceManager the last address may still be right.
                let _as_known = application.refresh().await;
                application.view().await
            }
        }
    }

    /// # Errors
    /// As [`Application::operate`].
    pub async fn order(&self, order: ChaosOrder) -> Result<(), CommandFailure> {
        let operation = Operation::Chaos(order);
        match self {
            Self::Run(run) => am_client::operate(run, &operation).await,
            Self::Application(application) => application.operate(&operation).await,
        }
    }

    /// Whether it has ended, and with a model.
    pub async fn ended(&mut self) -> Option<bool> {
        match self {
            Self::Run(run) => run.outcome().map(|outcome| outcome.state == JobState::Finished),
            Self::Application(application) => {
                let _as_known = application.refresh().await;
                let status = application.report.final_status;
                application.is_over().then_some(status == FinalApplicationStatus::Succeeded)
            }
        }
    }
}
