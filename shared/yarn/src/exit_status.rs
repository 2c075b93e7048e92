//! How containers end, and whom to blame.

use std::fmt;

/// How a container ended (`ContainerExitStatus`, or the command's own status).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExitStatus(pub i32);

impl ExitStatus {
    /// The command ended well.
    pub const SUCCESS: Self = Self(0);
    /// No status: it has not ended, or its files could not be copied.
    pub const INVALID: Self = Self(-1000);
    /// Released by us, its node was lost, or the grant expired unused.
    pub const ABORTED: Self = Self(-100);
    /// The node's disks failed.
    pub const DISKS_FAILED: Self = Self(-101);
    /// Taken back by the scheduler.
    pub const PREEMPTED: Self = Self(-102);
    /// Used more virtual memory than its share.
    pub const KILLED_EXCEEDED_VMEM: Self = Self(-103);
    /// Used more memory than it has.
    pub const KILLED_EXCEEDED_PMEM: Self = Self(-104);
    /// Stopped by `stopContainers`.
    pub const KILLED_BY_APPMASTER: Self = Self(-105);
    /// Stopped because the ResourceManager said so.
    pub const KILLED_BY_RESOURCEMANAGER: Self = Self(-106);
    /// The application was over.
    pub const KILLED_AFTER_APP_COMPLETION: Self = Self(-107);
    /// An opportunistic container made room.
    pub const KILLED_BY_CONTAINER_SCHEDULER: Self = Self(-108);
    /// Wrote more logs than allowed.
    pub const KILLED_FOR_EXCESS_LOGS: Self = Self(-109);
    /// The NodeManager restarted and found no status.
    pub const LOST: Self = Self(154);

    /// Who or what ended it, for the question whom to blame.
    pub fn cause(self) -> ExitCause {
        match self {
            Self::SUCCESS => ExitCause::Success,
            Self::INVALID => ExitCause::NotStarted,
            Self::DISKS_FAILED | Self::LOST => ExitCause::Node,
            Self::ABORTED
            | Self::PREEMPTED
            | Self::KILLED_BY_RESOURCEMANAGER
            | Self::KILLED_AFTER_APP_COMPLETION
            | Self::KILLED_BY_CONTAINER_SCHEDULER => ExitCause::Cluster,
            Self::KILLED_BY_APPMASTER => ExitCause::Ourselves,
            Self::KILLED_EXCEEDED_VMEM
            | Self::KILLED_EXCEEDED_PMEM
            | Self::KILLED_FOR_EXCESS_LOGS => ExitCause::Limit,
            Self(129..=192) => ExitCause::Signal(self.0 - 128),
            Self(_) => ExitCause::Command,
        }
    }
}

/// `0`, `-100 (ABORTED)`, `137 (signal 9)`.
impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::INVALID => "INVALID",
            Self::ABORTED => "ABORTED",
            Self::DISKS_FAILED => "DISKS_FAILED",
            Self::PREEMPTED => "PREEMPTED",
            Self::KILLED_EXCEEDED_VMEM => "KILLED_EXCEEDED_VMEM",
            Self::KILLED_EXCEEDED_PMEM => "KILLED_EXCEEDED_PMEM",
            Self::KILLED_BY_APPMASTER => "KILLED_BY_APPMASTER",
            Self::KILLED_BY_RESOURCEMANAGER => "KILLED_BY_RESOURCEMANAGER",
            Self::KILLED_AFTER_APP_COMPLETION => "KILLED_AFTER_APP_COMPLETION",
            Self::KILLED_BY_CONTAINER_SCHEDULER => "KILLED_BY_CONTAINER_SCHEDULER",
            Self::KILLED_FOR_EXCESS_LOGS => "KILLED_FOR_EXCESS_LOGS",
            Self::LOST => "LOST",
            _ => "",
        };
        match (name, self.cause()) {
            ("", ExitCause::Signal(signal)) => write!(f, "{} (signal {signal})", self.0),
            ("", _) => write!(f, "{}", self.0),
            _ => write!(f, "{} ({name})", self.0),
        }
    }
}

/// Who or what ended a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExitCause {
    /// Nobody: the command ended with 0.
    Success,
    /// It never ran: usually a file that is missing or was changed. Also the status of one that still runs.
    NotStarted,
    /// The node's disks, or a NodeManager that lost track.
    Node,
    /// YARN took it: a lost node, preemption, a release, the end of the application. Nobody's fault.
    Cluster,
    /// Our `stopContainers`.
    Ourselves,
    /// It used more memory or disk than it may.
    Limit,
    /// This signal: 9 without another word may be the kernel's out-of-memory killer.
    Signal(i32),
    /// The command's own status, 1 … 255.
    Command,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_statuses_name_whom_to_blame() {
        for (status, cause, text) in [
            (0, ExitCause::Success, "0"),
            (1, ExitCause::Command, "1"),
            (137, ExitCause::Signal(9), "137 (signal 9)"),
            (143, ExitCause::Signal(15), "143 (signal 15)"),
            (154, ExitCause::Node, "154 (LOST)"),
            (-100, ExitCause::Cluster, "-100 (ABORTED)"),
            (-102, ExitCause::Cluster, "-102 (PREEMPTED)"),
            (-104, ExitCause::Limit, "-104 (KILLED_EXCEEDED_PMEM)"),
            (-105, ExitCause::Ourselves, "-105 (KILLED_BY_APPMASTER)"),
            (-1000, ExitCause::NotStarted, "-1000 (INVALID)"),
        ] {
            assert_eq!(
                (ExitStatus(status).cause(), ExitStatus(status).to_string()),
                (cause, text.to_owned())
            );
        }
    }
}
