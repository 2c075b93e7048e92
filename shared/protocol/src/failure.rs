//! A failure on its way from the process that met it to the exit code: its class and its text.
//!
//! Decisions use the class. The text is for users; no code reads it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::exit_code::ExitCode;

/// The kind of a failure, which decides the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorClass {
    /// The user has no right to do it, or the storage has no room or quota.
    Denied,
    /// A service does not answer; another try can succeed.
    Unreachable,
    /// The job file, the data or a path is wrong.
    Input,
    /// A file of a checkpoint is damaged or incompatible.
    Corrupt,
    /// Another process owns the directory.
    Fenced,
    /// Training itself failed: the algorithm or its values.
    Training,
    /// A defect of Heddle.
    Internal,
}

impl ErrorClass {
    /// The exit code of a job that ends with such a failure.
    #[must_use]
    pub fn exit_code(self) -> ExitCode {
        match self {
            Self::Denied => ExitCode::Denied,
            Self::Unreachable => ExitCode::Unreachable,
            Self::Input => ExitCode::Input,
            Self::Corrupt => ExitCode::Checkpoint,
            Self::Fenced => ExitCode::Fenced,
            Self::Training => ExitCode::JobFailed,
            Self::Internal => ExitCode::Internal,
        }
    }
}

/// What failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Its class.
    pub class: ErrorClass,
    /// Fact, cause and, where there is one, the next step.
    pub text: String,
}

impl Failure {
    /// A failure of this class.
    pub fn new(class: ErrorClass, text: impl Into<String>) -> Self {
        Self { class, text: text.into() }
    }

    /// A failure of the algorithm or of its values.
    pub fn training(text: impl Into<String>) -> Self {
        Self::new(ErrorClass::Training, text)
    }

    /// The same failure, with the action that it prevented in front: `{what}: {text}`.
    #[must_use]
    pub fn preventing(self, what: impl fmt::Display) -> Self {
        Self { text: format!("{what}: {}", self.text), ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_arrives_with_its_class() {
        let failure = Failure::new(ErrorClass::Denied, "no space left").preventing("shard 3");
        let json = serde_json::to_string(&failure).expect("it is JSON");
        assert_eq!(json, r#"{"class":"denied","text":"shard 3: no space left"}"#);
        assert_eq!(serde_json::from_str::<Failure>(&json).expect("it is JSON"), failure);
    }
}
