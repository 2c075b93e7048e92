//! What a person meets when something did not work: the fact, its cause, and what to do next.

use std::error::Error;
use std::fmt::Display;

use heddle_protocol::exit_code::ExitCode;

use crate::output;

/// A command that did not do what it was asked to.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its class.
    pub exit: ExitCode,
    /// What did not work. May have several lines, each complete in itself.
    pub fact: String,
    /// Why, outermost first.
    pub causes: Vec<String>,
    /// What to do about it; empty where the fact says it.
    pub next: String,
}

/// What a command returns.
pub type CommandResult = Result<ExitCode, Failure>;

impl Failure {
    /// A fact that needs no cause.
    pub fn new(exit: ExitCode, fact: impl Display) -> Self {
        Self { exit, fact: fact.to_string(), causes: Vec::new(), next: String::new() }
    }

    /// A fact and the whole chain of its cause.
    pub fn caused(exit: ExitCode, fact: impl Display, cause: &dyn Error) -> Self {
        let mut failure = Self::new(exit, fact);
        let mut at = Some(cause);
        while let Some(error) = at {
            failure.causes.push(error.to_string());
            at = error.source();
        }
        failure
    }

    /// Adds what to do next.
    #[must_use]
    pub fn next(mut self, next: impl Display) -> Self {
        self.next = next.to_string();
        self
    }

    /// Tells it on stderr; as one JSON object where JSON was asked for.
    pub fn print(&self, json: bool) {
        if self.exit == ExitCode::PipeClosed {
            // Whoever left wants to hear nothing more.
            return;
        }
        if json {
            let object = serde_json::json!({
                "error": self.fact,
                "causes": self.causes,
                "next": self.next,
                "exit_code": self.exit,
            });
            output::json_note(&object);
            return;
        }
        for line in self.fact.lines() {
            output::note(&format!("error: {line}"));
        }
        for cause in &self.causes {
            output::note(&format!("  cause: {cause}"));
        }
        if !self.next.is_empty() {
            output::note(&format!("  next: {}", self.next));
        }
    }
}

/// A command whose function is not there yet.
pub fn not_yet(command: &str) -> Failure {
    Failure::new(ExitCode::Usage, format!("heddle {command}: not available yet"))
}
