//! What went wrong between an attempt and the ResourceManager, and what its exceptions mean.

use std::time::Duration;

use heddle_hadoop::rpc::RpcError;
use tokio::time::Instant;

/// How long an exception of `allocate` without a class of its own is taken for a fault of the ResourceManager: it is
/// shutting down, fails over, loses its state store, or an interceptor in between does. Long enough for a restart of a
/// scheduler thread, short enough that an ask that can never be served is found within the allocation timeout.
pub(super) const FAULT_TIME: Duration = Duration::from_secs(10);

/// Since when the heartbeat fails for a reason that the ResourceManager does not name.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeartbeatFault(Option<Instant>);

impl HeartbeatFault {
    /// It has failed again. True: for so long that the request is to blame.
    pub(super) fn lasts(&mut self, now: Instant) -> bool {
        now.duration_since(*self.0.get_or_insert(now)) >= FAULT_TIME
    }

    /// Another request goes out, or an answer came.
    pub(super) fn is_over(&mut self) {
        self.0 = None;
    }
}

/// Why a call of an [`ApplicationMaster`](super::ApplicationMaster) failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AmError {
    /// The attempt is over for the ResourceManager: another may run already. Stop, commit nothing, do not finish.
    #[error("this attempt is over for the ResourceManager")]
    Fenced(#[source] RpcError),
    /// The same, told by the command `AM_SHUTDOWN`.
    #[error("the ResourceManager told this attempt to stop")]
    Shutdown,
    /// No ResourceManager answered in time. The attempt may go on and call again.
    #[error("no ResourceManager answers")]
    Unreachable(#[source] RpcError),
    /// The ResourceManager failed to process a heartbeat, for a reason that it does not name. The same heartbeat goes
    /// out again with the next call; only after 10 s of such answers one of its asks is taken for the reason.
    #[error("the ResourceManager failed to process the heartbeat")]
    Failed(#[source] RpcError),
    /// A call was refused, or its answer makes no sense. The same call will fail again.
    #[error("the ResourceManager refused the call")]
    Refused(#[source] RpcError),
}

impl AmError {
    /// Whether the attempt is over.
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

/// What an exception of the ApplicationMaster's service means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Register, then say everything again.
    NotRegistered,
    /// A registration was accepted before.
    AlreadyRegistered,
    /// Go on with this response id.
    ResponseId(i32),
    /// An ask or an update is above a limit or has a bad label.
    BadAsk,
    /// A release names a container of another attempt.
    BadRelease,
    /// An exclusion is malformed.
    BadExclusion,
    /// The attempt is over.
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
            // The second is the word of a ResourceManager that never knew the application or forgot it.
            "ApplicationAttemptNotFoundException" | "ApplicationNotFoundException" => Self::Fenced,
            "InvalidApplicationMasterRequestException" => invalid_request(exception.message()),
            // Hadoop's spelling of the second.
            "InvalidResourceRequestException"
            | "SchedulerInvalidResoureRequestException"
            | "InvalidLabelResourceRequestException" => Self::BadAsk,
            "InvalidContainerReleaseException" => Self::BadRelease,
            "InvalidResourceBlacklistRequestException" => Self::BadExclusion,
            // The RPC layer has tried every ResourceManager by now.
            _ if exception.is_invalid_token() => Self::Fenced,
            // Where the handler for scheduling requests is disabled (`DisabledPlacementProcessor`), a plain YarnException.
            _ if exception.message().contains("SchedulingRequest") => Self::BadAsk,
            _ => Self::Other,
        }
    }
}

/// "… expect responseId to be X, but get Y" or "Application Master is already registered : …"; both have one class.
fn invalid_request(message: &str) -> Meaning {
    if message.contains("already registered") {
        return Meaning::AlreadyRegistered;
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
    fn exceptions_say_what_to_do() {
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
