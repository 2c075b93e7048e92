//! The outcome of a job.

use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::view;
use serde::{Deserialize, Serialize};

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Finished, failed or stopped.
    pub state: view::JobState,
    /// Exit code of the command line.
    pub exit_code: ExitCode,
    /// Fact, cause, next step; empty when all is well.
    pub message: String,
    /// URL of the model's directory, when published.
    pub model: Option<String>,
}
