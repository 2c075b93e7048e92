//! Errors of an ApplicationMaster's calls, and the meaning of the ResourceManager's exceptions.

use std::time::Duration;

use heddle_hadoop::rpc::RpcError;
use tokio::time::Instant;

/// Time for which an exception of `allocate` without a known class counts as a fault of the ResourceManager: a shutdown, a
/// failover, a lost state store, a faulty interceptor. It is long enough for a restart of a scheduler thread. It is short
/// enough that an invalid ask is found within the allocation timeout.
pub(super) const FAULT_TIME: Duration = Duration::from_secs(10);

/// Start of a series of heartbeats that fail with exceptions without a known class.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeartbeatFault(Option<Instant>);

impl HeartbeatFault {
    /// Records another failure. True if the series exceeds the limit, so that the request must be the cause.
    pub(super) fn persists(&mut self, now: Instant) -> bool {
        now.duration_since(*self.0.get_or_insert(now)) >= FAULT_TIME
    }

    /// Ends the series: another request is sent, or an answer arrived.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }
}

/// Why a call of an [`ApplicationMaster`](super::ApplicationMaster) failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AmError {
    /// The ResourceManager has ended the attempt, and another one may run. Stop, commit nothing, do not unregister.
    #[error("the ResourceManager has ended this attempt")]
    Fenced(#[source] RpcError),
    /// The ResourceManager has ended the attempt with the command `AM_SHUTDOWN`.
    #[error("the ResourceManager ordered this attempt to shut down")]
    Shutdown,
    /// No ResourceManager answered in time. The attempt may call again.
    #[error("no ResourceManager answers")]
    Unreachable(#[source] RpcError),
    /// The ResourceManager failed to process a heartbeat, with an exception without a known class. The next call repeats
    /// the heartbeat. After 10 s of such answers one of its asks counts as the cause.
    #[error("the ResourceManager failed to process the heartbeat")]
    Failed(#[source] RpcError),
    /// A call was refused, or its answer is malformed. The same call will fail again.
    #[error("the ResourceManager refused the call")]
    Refused(#[source] RpcError),
}

impl AmError {
    /// Whether the ResourceManager has ended the attempt.
    pub fn is_fenced(&self) -> bool {
        matches!(self, Self::Fenced(_) | Self::Shutdown)
    }

    /// Whether calling again may help.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Failed(_))
    }
}

impl From<RpcError> for AmError {
    fn from(error: RpcError) -> Self {
        match Meaning::of(&error) {
            Meaning::Fenced => Self::Fenced(error),
            _ if error.is_retryable() => Self::Unreachable(error),
            _ => Self::Refused(error),
        }
    }
}

/// The meaning of an exception of the ApplicationMaster's service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The attempt must register and send its whole state again.
    NotRegistered,
    /// The attempt is already registered.
    AlreadyRegistered,
    /// The next request must have this response id.
    ResponseId(i32),
    /// An ask or an update exceeds a limit or has an invalid label.
    BadAsk,
    /// A release names a container of another attempt.
    BadRelease,
    /// An exclusion is malformed.
    BadExclusion,
    /// The attempt has ended.
    Fenced,
    /// None of these.
    Other,
}

impl Meaning {
    pub(super) fn of(error: &RpcError) -> Self {
        let Some(exception) = error.remote() else {
            return Self::Other;
        };
        match exception.simple_class() {
            "ApplicationMasterNotRegisteredException" => Self::NotRegistered,
            // The second comes from a ResourceManager that does not have the application.
            "ApplicationAttemptNotFoundException" | "ApplicationNotFoundException" => Self::Fenced,
            "InvalidApplicationMasterRequestException" => invalid_request(exception.message()),
            // Hadoop's spelling of the second.
            "InvalidResourceRequestException"
            | "SchedulerInvalidResoureRequestException"
            | "InvalidLabelResourceRequestException" => Self::BadAsk,
            "InvalidContainerReleaseException" => Self::BadRelease,
            "InvalidResourceBlacklistRequestException" => Self::BadExclusion,
            // The RPC layer has tried all ResourceManagers before it returns this error.
            _ if exception.is_invalid_token() => Self::Fenced,
            // A disabled handler of scheduling requests (`DisabledPlacementProcessor`) throws a plain YarnException.
            _ if exception.message().contains("SchedulingRequest") => Self::BadAsk,
            _ => Self::Other,
        }
    }
}

/// "… expect responseId to be X, but get Y", "Application Master is already registered : …" or "Application doesn't exist in
/// cache …": all have one class.
fn invalid_request(message: &str) -> Meaning {
    if message.contains("already registered") {
        return Meaning::AlreadyRegistered;
    }
    // `ApplicationMasterService` removes an attempt from its cache when the attempt ends.
    if message.contains("doesn't exist in cache") {
        return Meaning::Fenced;
    }
    let expected = message.split_once("expect responseId to be ").map_or("", |(_, rest)| rest);
    let digits = expected.split(|c: char| !c.is_ascii_digit()).next().unwrap_or("");
    digits.parse().map_or(Meaning::Other, Meaning::ResponseId)
}

#[cfg(test)]
mod tests {
    use heddle_hadoop::HostPort;
    use heddle_hadoop::rpc::RemoteException;

    use super::*;

    fn meaning(class: &str, message: &str) -> Meaning {
        let address = HostPort::new("rm", 8030);
        Meaning::of(&RpcError::Remote {
            address,
            method: "allocate".into(),
            source: RemoteException::new(class, message),
        })
    }

    #[test]
    fn each_exception_has_its_meaning() {
        let yarn = |class: &str| format!("org.apache.hadoop.yarn.exceptions.{class}");
        for (class, message, expected) in [
            (yarn("ApplicationMasterNotRegisteredException"), "", Meaning::NotRegistered),
            (yarn("ApplicationAttemptNotFoundException"), "", Meaning::Fenced),
            (
                "org.apache.hadoop.security.token.SecretManager$InvalidToken".into(),
                "",
                Meaning::Fenced,
            ),
            (
                yarn("InvalidApplicationMasterRequestException"),
                "Invalid responseId in AllocateRequest from application attempt: appattempt_1_0001_000001, expect responseId to be 12, but get 9",
                Meaning::ResponseId(12),
            ),
            (
                yarn("InvalidApplicationMasterRequestException"),
                "Application Master is already registered : application_1_0001",
                Meaning::AlreadyRegistered,
            ),
            (
                yarn("InvalidApplicationMasterRequestException"),
                "Application doesn't exist in cache appattempt_1_0001_000001",
                Meaning::Fenced,
            ),
            (yarn("InvalidApplicationMasterRequestException"), "something else", Meaning::Other),
            (yarn("SchedulerInvalidResoureRequestException"), "", Meaning::BadAsk),
            (yarn("InvalidLabelResourceRequestException"), "", Meaning::BadAsk),
            (yarn("InvalidContainerReleaseException"), "", Meaning::BadRelease),
            (yarn("YarnException"), "", Meaning::Other),
            (
                yarn("YarnException"),
                "Found non empty SchedulingRequest of AllocateRequest for application=appattempt_1_0001_000001",
                Meaning::BadAsk,
            ),
        ] {
            assert_eq!(meaning(&class, message), expected, "{class} {message}");
        }
    }
}
