//! A failed command: the fact, its causes, and the next step.

use std::error::Error;
use std::fmt::Display;
use std::io;

use heddle_protocol::exit_code::ExitCode;
use heddle_storage::Reason;
use nix::errno::Errno;

/// The failure of a command.
#[derive(Clone, Debug)]
pub struct CommandFailure {
    /// Its class.
    pub exit: ExitCode,
    /// What failed. May have several lines, each complete in itself.
    pub fact: String,
    /// The causes, outermost first.
    pub causes: Vec<String>,
    /// The next step; empty if the fact implies it.
    pub next: String,
}

/// What a command returns.
pub type CommandResult = Result<ExitCode, CommandFailure>;

impl CommandFailure {
    /// A fact without a cause.
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

    /// The failure of a call that the system refuses: its limits are those of the user, all else is a defect.
    pub fn of_system(fact: &str, cause: &io::Error) -> Self {
        match cause.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EMFILE | Errno::ENFILE) => Self::caused(ExitCode::Input, fact, cause)
                .next("raise nofile (ulimit -n, LimitNOFILE= of the service that starts it)"),
            _ => Self::caused(ExitCode::Internal, fact, cause),
        }
    }

    /// The failure of a call to this machine's file system. Its reason decides the exit code, as on every other storage.
    pub fn of_file(fact: &str, error: &io::Error) -> Self {
        Self::caused(Reason::of_io(error).class().exit_code(), fact, error)
    }

    /// The fact and its causes, in one line.
    #[must_use]
    pub fn in_words(&self) -> String {
        self.causes.iter().fold(self.fact.clone(), |text, cause| format!("{text}: {cause}"))
    }

    /// Adds the next step.
    #[must_use]
    pub fn next(mut self, next: impl Display) -> Self {
        self.next = next.to_string();
        self
    }
}

/// Turns the error of a step into the failure of the command.
pub trait OrFail<T, E>: Sized {
    /// The failure that `classify` makes of the fact and the error.
    ///
    /// # Errors
    /// That failure.
    fn or_fail_with(
        self,
        classify: impl FnOnce(&str, &E) -> CommandFailure,
        fact: impl Display,
    ) -> Result<T, CommandFailure>;

    /// A failure of this class: the fact, and the whole chain of the error as its causes.
    ///
    /// # Errors
    /// That failure.
    fn or_fail(self, exit: ExitCode, fact: impl Display) -> Result<T, CommandFailure>
    where
        E: Error,
    {
        self.or_fail_with(|fact, error| CommandFailure::caused(exit, fact, error), fact)
    }
}

impl<T, E> OrFail<T, E> for Result<T, E> {
    fn or_fail_with(
        self,
        classify: impl FnOnce(&str, &E) -> CommandFailure,
        fact: impl Display,
    ) -> Result<T, CommandFailure> {
        self.map_err(|error| classify(&fact.to_string(), &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhausted_descriptors_are_not_a_defect() {
        for (errno, exit) in [(Errno::EMFILE, ExitCode::Input), (Errno::EIO, ExitCode::Internal)] {
            let error = io::Error::from_raw_os_error(errno as i32);
            let failure = CommandFailure::of_system("cannot start", &error);
            assert_eq!(
                (failure.exit, failure.next.contains("nofile")),
                (exit, exit == ExitCode::Input)
            );
        }
    }
}
