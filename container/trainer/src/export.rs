//! Writing the model of a checkpoint in formats that other programs read.

use heddle_protocol::control::ExportedFile;
use heddle_protocol::ids::Member;
use heddle_protocol::spec::JobSpec;

/// Why a model could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// Later.
    #[error("not yet")]
    NotYet,
}

/// What was written.
#[derive(Clone, Debug)]
pub struct Exported {
    /// Directory.
    pub dir: String,
    /// Files.
    pub files: Vec<ExportedFile>,
}

/// See the module.
pub fn export_for(
    _spec: &JobSpec,
    _member: Member,
    _checkpoint: &str,
    _dir: &str,
) -> Result<Exported, ExportError> {
    Err(ExportError::NotYet)
}
