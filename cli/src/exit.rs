//! Exit codes of the command line: the contract with scripts and schedulers.

use std::process::ExitCode;

/// How a command ended. Numbers never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// The job failed.
    JobFailed = 1,
    /// The command line is wrong, or asks for what is not there yet.
    Usage = 2,
    /// The job was killed by an operator.
    Killed = 3,
    /// Refused by the cluster.
    Refused = 4,
    /// Credentials are missing, or access is denied.
    Denied = 5,
    /// Storage or the run's ApplicationMaster cannot be reached.
    Unreachable = 6,
    /// The job file, the data or a path is wrong.
    Input = 7,
    /// A checkpoint is corrupt or incompatible.
    Checkpoint = 8,
    /// Another run owns what this one would have needed.
    Fenced = 9,
    /// A fault of this program.
    Internal = 10,
    /// Waiting ended before the job, which runs on.
    WaitedLong = 124,
    /// Ctrl-C.
    Interrupted = 130,
    /// SIGTERM.
    Terminated = 143,
    /// Output could not be written because its reader is gone; as a shell reports SIGPIPE.
    PipeClosed = 141,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl Exit {
    /// The exit that an ApplicationMaster names by its number; an unknown number is a fault of this program.
    #[must_use]
    pub fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Ok,
            1 => Self::JobFailed,
            3 => Self::Killed,
            4 => Self::Refused,
            5 => Self::Denied,
            6 => Self::Unreachable,
            7 => Self::Input,
            8 => Self::Checkpoint,
            9 => Self::Fenced,
            // An ApplicationMaster of an older version, whose job was stopped.
            130 | 143 => Self::Killed,
            _ => Self::Internal,
        }
    }
}
