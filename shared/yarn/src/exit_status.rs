//! Exit statuses of containers and their causes.

use std::fmt;

/// Exit status of a container (`ContainerExitStatus`, or the command's own status).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExitStatus(pub i32);

impl ExitStatus {
    /// The command succeeded.
    pub const SUCCESS: Self = Self(0);
    /// No status: the container has not ended, or its files could not be localised.
    pub const INVALID: Self = Self(-1000);
    /// The ApplicationMaster released it, its node was lost, or its grant expired.
    pub const ABORTED: Self = Self(-100);
    /// The node's disks failed.
    pub const DISKS_FAILED: Self = Self(-101);
    /// Preempted by the scheduler.
    pub const PREEMPTED: Self = Self(-102);
    /// Used more virtual memory than its limit.
    pub const KILLED_EXCEEDED_VMEM: Self = Self(-103);
    /// Used more memory than its limit.
    pub const KILLED_EXCEEDED_PMEM: Self = Self(-104);
    /// Stopped by `stopContainers`.
    pub const KILLED_BY_APPMASTER: Self = Self(-105);
    /// Stopped by the ResourceManager.
    pub const KILLED_BY_RESOURCEMANAGER: Self = Self(-106);
    /// The application had ended.
    pub const KILLED_AFTER_APP_COMPLETION: Self = Self(-107);
    /// An opportunistic container was ended for a guaranteed one.
    pub const KILLED_BY_CONTAINER_SCHEDULER: Self = Self(-108);
    /// Wrote more logs than allowed.
    pub const KILLED_FOR_EXCESS_LOGS: Self = Self(-109);
    /// The NodeManager restarted and had no status.
    pub const LOST: Self = Self(154);

    /// The cause of the end, for restart policies.
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

/// The cause of a container's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExitCause {
    /// The command ended with 0.
    Success,
    /// It did not start, mostly because a file is missing or was changed. Running containers have this status too.
    NotStarted,
    /// The node's disks failed, or its NodeManager lost the status.
    Node,
    /// YARN ended it: a lost node, preemption, a release, the end of the application. The container is not at fault.
    Cluster,
    /// The ApplicationMaster's `stopContainers`.
    Ourselves,
    /// It exceeded its limit of memory or disk.
    Limit,
    /// A signal. 9 without diagnostics may be the kernel's out-of-memory killer.
    Signal(i32),
    /// The command's own status, 1 … 255.
    Command,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_exit_status_has_its_cause() {
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
