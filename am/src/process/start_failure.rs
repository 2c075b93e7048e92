//! Why a job did not start: one sentence and an exit code.

use heddle_am_core::Outcome;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::failure::ErrorClass;
use heddle_protocol::view::JobState;
use heddle_storage::chain;
use heddle_storage::checkpoint::CheckpointError;

use crate::claim::ClaimError;
use crate::import::ImportError;
use crate::input::InputError;
use crate::journal::JournalError;
use crate::plan_file::WritePlanError;
use crate::run_dir::RunDirError;
pub(super) use crate::store::exit_code_of as code_of;
use crate::warm_start::FindError;

/// Why a run did not start: message and exit code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StartFailure {
    /// Of the command line.
    pub(super) exit_code: ExitCode,
    /// Fact, cause, next step.
    pub(super) message: String,
    /// Another attempt of the same application leads: this one must not unregister it.
    pub(super) is_fenced: bool,
}

impl StartFailure {
    pub(super) fn new(exit_code: ExitCode, message: impl Into<String>) -> Self {
        Self { exit_code, message: message.into(), is_fenced: false }
    }

    /// How it ends the job.
    pub(super) fn outcome(&self) -> Outcome {
        Outcome {
            state: JobState::Failed,
            exit_code: self.exit_code,
            message: self.message.clone(),
            model: None,
        }
    }

    /// Writes the message to the log and to standard error: NodeManagers add its last line to the diagnostics. Returns
    /// the exit code.
    pub(super) fn print(&self) -> ExitCode {
        tracing::error!(exit_code = %self.exit_code, message = self.message, "attempt_failed");
        eprintln!("heddle: {}", self.message);
        self.exit_code
    }

    pub(super) fn fenced(message: impl Into<String>) -> Self {
        Self { is_fenced: true, ..Self::new(ExitCode::Fenced, message) }
    }
}

impl From<RunDirError> for StartFailure {
    fn from(error: RunDirError) -> Self {
        Self::new(error.exit_code(), chain(&error))
    }
}

impl From<InputError> for StartFailure {
    fn from(error: InputError) -> Self {
        let code = match &error {
            InputError::Storage { source, .. } => code_of(source),
            InputError::File { source, .. } => source.class().exit_code(),
            InputError::Location { .. } | InputError::Empty { .. } | InputError::TooMany(_) => {
                ExitCode::Input
            }
        };
        Self::new(code, chain(&error))
    }
}

impl From<FindError> for StartFailure {
    fn from(error: FindError) -> Self {
        Self::new(error.exit_code(), chain(&error))
    }
}

impl From<WritePlanError> for StartFailure {
    fn from(error: WritePlanError) -> Self {
        let code = match &error {
            WritePlanError::Storage(source) => code_of(source),
            WritePlanError::Plan(_) => ExitCode::Input,
            WritePlanError::Location(_) | WritePlanError::Path(_) => ExitCode::Internal,
        };
        Self::new(code, chain(&error))
    }
}

impl From<CheckpointError> for StartFailure {
    fn from(error: CheckpointError) -> Self {
        let code = error.class().exit_code();
        Self {
            is_fenced: error.is_fenced(),
            ..Self::new(code, format!("checkpoint.dir: {}", chain(&error)))
        }
    }
}

impl From<ClaimError> for StartFailure {
    fn from(error: ClaimError) -> Self {
        match error {
            ClaimError::Checkpoint(error) => error.into(),
            error @ ClaimError::Superseded { .. } => Self::fenced(chain(&error)),
            error @ ClaimError::NoAnswer { .. } => Self::new(ExitCode::Unreachable, chain(&error)),
            error => Self::new(ExitCode::Fenced, chain(&error)),
        }
    }
}

impl From<ImportError> for StartFailure {
    fn from(error: ImportError) -> Self {
        let class = match error {
            ImportError::Owner(error) => return error.into(),
            ImportError::Location { .. }
            | ImportError::Empty { .. }
            | ImportError::NotNew { .. } => ErrorClass::Input,
            ImportError::Checkpoint { ref source, .. } => source.class(),
            ImportError::Copy { ref source, .. } => source.class(),
        };
        Self::new(class.exit_code(), chain(&error))
    }
}

impl From<JournalError> for StartFailure {
    fn from(error: JournalError) -> Self {
        Self { is_fenced: error.is_fenced(), ..Self::new(error.exit_code(), chain(&error)) }
    }
}
