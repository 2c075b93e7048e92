//! A job that was started before: a run of this machine ([`crate::runs`]) or an application of a cluster
//! ([`crate::application`]). Commands on a job call this trait and do not ask which of both it is.

use async_trait::async_trait;
use heddle_protocol::control::Operation;
use heddle_protocol::job_spec::JobSpec;
use heddle_protocol::view::JobView;

use crate::failure::{CommandFailure, CommandResult};

/// Which logs are printed.
pub struct LogQuery {
    /// What the folder `<slot>-<incarnation>` begins with; empty for all.
    pub slot: String,
    /// Whether containers that failed come first (applications).
    pub failed_first: bool,
    /// Whether to continue until the job has ended.
    pub follow: bool,
    /// Objects instead of lines.
    pub json: bool,
}

/// A job that commands show and operate.
#[async_trait(?Send)]
pub trait NamedJob {
    /// Its id, as commands take it.
    fn id(&self) -> String;

    /// Its id without an abbreviation.
    fn full_id(&self) -> String {
        self.id()
    }

    /// Whether another ApplicationMaster follows one that ends.
    fn restarts_its_master(&self) -> bool;

    /// Checks that the job takes operations of this user, before anything else of it is read.
    ///
    /// # Errors
    /// Exit code 5 if it belongs to another one.
    async fn check_key(&mut self) -> Result<(), CommandFailure> {
        Ok(())
    }

    /// # Errors
    /// Exit code 7 if the job cannot be read.
    async fn spec(&mut self) -> Result<JobSpec, CommandFailure>;

    /// Reads the view of the job from its ApplicationMaster.
    ///
    /// # Errors
    /// Exit code 6 if it does not respond, as while it restarts.
    async fn view(&mut self) -> Result<JobView, CommandFailure>;

    /// Sends an operation to its ApplicationMaster; returns when it is done.
    ///
    /// # Errors
    /// Exit code 6 if it does not respond, 5 if it rejects the secret, [`crate::am_client::REFUSED`] if it refuses the
    /// operation.
    async fn operate(&mut self, operation: &Operation) -> Result<(), CommandFailure>;

    /// Whether it has ended, and with a model.
    async fn ended(&mut self) -> Option<bool>;

    /// Ends it, at once or after a checkpoint.
    ///
    /// # Errors
    /// Exit code 6 if its ApplicationMaster does not respond and the ResourceManager cannot end it.
    async fn kill(&mut self, checkpoint: bool, json: bool) -> CommandResult;

    /// Prints its state.
    ///
    /// # Errors
    /// It is unknown, or its sources do not respond.
    async fn print_status(&mut self, json: bool) -> CommandResult;

    /// Prints the report that it has left.
    ///
    /// # Errors
    /// Exit code 7 if it has not left one.
    async fn print_report(&mut self, json: bool) -> CommandResult;

    /// Prints what its processes wrote.
    ///
    /// # Errors
    /// The logs cannot be read.
    async fn print_logs(&mut self, wanted: &LogQuery) -> CommandResult;
}

/// The operation that ends a job.
pub fn end_operation(checkpoint: bool) -> Operation {
    if checkpoint { Operation::Stop { checkpoint } } else { Operation::Kill }
}
