//! The error that ends a job.

use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::view::JobState;

use crate::outcome::Outcome;

/// Why a job ends, and with which exit code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobFailure {
    pub exit_code: ExitCode,
    pub message: String,
}

impl JobFailure {
    pub(crate) fn new(exit_code: ExitCode, message: impl Into<String>) -> Self {
        Self { exit_code, message: message.into() }
    }
}

impl From<JobFailure> for Outcome {
    fn from(JobFailure { exit_code, message }: JobFailure) -> Self {
        Self { state: JobState::Failed, exit_code, message, model: None }
    }
}

/// The exit code when the storage failed at every try. All classes but one are [`ExitCode::Unreachable`], so that the next
/// attempt of the application tries again.
pub(crate) fn exit_after_tries(failure: &Failure) -> ExitCode {
    match failure.class {
        ErrorClass::Denied => ExitCode::Denied,
        _ => ExitCode::Unreachable,
    }
}
