//! The error that ends a job.

use heddle_protocol::exit_code::ExitCode;

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
