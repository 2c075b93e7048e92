//! Exit codes of the command line: the contract with scripts and schedulers.
//!
//! The job's outcome carries one of them from the ApplicationMaster to the shell. JSON holds its number.

use serde::{Deserialize, Serialize};

/// How a command or a job ended. A number never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "u8", into = "u8")]
#[repr(u8)]
pub enum ExitCode {
    /// Success.
    Ok = 0,
    /// The job failed.
    JobFailed = 1,
    /// The command line is wrong, or asks for a feature that does not exist yet.
    Usage = 2,
    /// An operator stopped the job.
    Killed = 3,
    /// The cluster refused the job.
    Refused = 4,
    /// Credentials are missing, access is denied, or the storage has no room.
    Denied = 5,
    /// The storage or the ApplicationMaster cannot be reached.
    Unreachable = 6,
    /// The job file, the data or a path is wrong.
    Input = 7,
    /// A checkpoint is corrupt or incompatible.
    Checkpoint = 8,
    /// Another run or attempt owns a directory that this one needs.
    Fenced = 9,
    /// A defect of Heddle.
    Internal = 10,
    /// The cluster refused the job for now: a retry may succeed (`EX_TEMPFAIL` of `sysexits.h`).
    Busy = 75,
    /// The time limit of the wait passed; the job continues.
    WaitedLong = 124,
    /// SIGINT ended the command.
    Interrupted = 130,
    /// The reader of the output closed it; the number that a shell reports for SIGPIPE.
    PipeClosed = 141,
    /// SIGTERM ended the process.
    Terminated = 143,
}

impl ExitCode {
    /// The number that the shell sees.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }
}

/// An unknown number is [`ExitCode::Internal`].
impl From<u8> for ExitCode {
    fn from(code: u8) -> Self {
        match code {
            0 => Self::Ok,
            1 => Self::JobFailed,
            2 => Self::Usage,
            3 => Self::Killed,
            4 => Self::Refused,
            5 => Self::Denied,
            6 => Self::Unreachable,
            7 => Self::Input,
            8 => Self::Checkpoint,
            9 => Self::Fenced,
            75 => Self::Busy,
            124 => Self::WaitedLong,
            130 => Self::Interrupted,
            141 => Self::PipeClosed,
            143 => Self::Terminated,
            _ => Self::Internal,
        }
    }
}

impl From<ExitCode> for u8 {
    fn from(exit: ExitCode) -> Self {
        exit.code()
    }
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(exit: ExitCode) -> Self {
        Self::from(exit.code())
    }
}

impl std::fmt::Display for ExitCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.code())
    }
}

/// How the process of a container ended by its own decision. The ApplicationMaster judges a loss by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ContainerExitCode {
    /// The ApplicationMaster ended it.
    Stopped = ExitCode::Ok as u8,
    /// The ApplicationMaster refused its registration.
    Refused = ExitCode::Fenced as u8,
    /// It failed: a defect, or a node that lacks what it needs.
    Failed = ExitCode::Internal as u8,
    /// No ApplicationMaster responded for the orphan timeout.
    Orphaned = 20,
    /// The secrets of the ApplicationMaster and of the container differ.
    SecretRefused = 22,
}

impl ContainerExitCode {
    /// The number of the process's end.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The number, as the standard library takes and reports it.
    #[must_use]
    pub const fn number(self) -> i32 {
        self as i32
    }
}

impl From<ContainerExitCode> for std::process::ExitCode {
    fn from(exit: ContainerExitCode) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_holds_the_number_and_an_unknown_one_is_internal() {
        for code in 0..=u8::MAX {
            let exit: ExitCode = serde_json::from_str(&code.to_string()).expect("it is JSON");
            let known = exit.code() == code;
            assert!(known || exit == ExitCode::Internal, "{code} became {exit}");
            assert_eq!(serde_json::to_string(&exit).expect("it is JSON"), exit.to_string());
        }
        assert_eq!(ExitCode::from(9), ExitCode::Fenced);
    }
}
