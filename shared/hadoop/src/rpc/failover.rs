//! Failover policy: whether, where and when a failed call is tried again.
//!
//! Intuition: a server that is down or a standby fails at once, and the client tries the next server at once. The client
//! pauses only after a round over all servers. Pauses grow with each round and have jitter, so that a thousand clients of
//! a restarted server do not call in step. Java waits 30 s between tries (`yarn.resourcemanager.connect.retry-interval.ms`),
//! which is too slow for an ApplicationMaster that must reconnect before it expires.
//!
//! A login by Kerberos that the server refuses is tried again like in Java, with a new ticket handle: a server takes two logins
//! of one moment for a replay, and a service ticket may be older than the server's key. Source:
//! `Client.Connection.handleSaslConnectionFailure`.
//!
//! Limits: exceptions of the called method are not retried here, because the caller must handle them. The caller sets
//! the total time; this module only returns the pause. Source: `io.retry.RetryPolicies`.

use std::time::Duration;

use heddle_backoff::Backoff;

use super::error::{AuthError, CallOutcome, RpcError};
use super::options::Retry;
use super::remote::RemoteException;

/// How often a refused login by Kerberos is tried again, as in Java.
const LOGINS_MAX: u32 = 5;
/// Pauses before that, in milliseconds: random, so that clients of one moment do not meet again.
const LOGIN_PAUSE_MS: std::ops::RangeInclusive<u64> = 1_000..=5_000;

/// What follows a failed try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Return the error to the caller.
    GiveUp,
    /// Try the same server after the pause.
    Again(Duration),
    /// Try the next server after the pause.
    Next(Duration),
}

/// Decides what follows a try that failed with `error`.
///
/// `failures` is the number of failed tries of this call, this one included; `servers` is the number of servers; `by_ticket` is
/// whether the login is by Kerberos.
pub fn decide(
    error: &RpcError,
    by_ticket: bool,
    retry: Retry,
    servers: usize,
    failures: u32,
    backoff: Backoff,
    random: u64,
) -> Decision {
    match (retry, error.outcome()) {
        (Retry::Never, _) | (Retry::IfNotExecuted, CallOutcome::Unknown) => {
            return Decision::GiveUp;
        }
        (Retry::IfNotExecuted | Retry::Always, _) => {}
    }
    let pause = |round| Duration::from_millis(backoff.jittered_ms(round, random));
    let servers = u32::try_from(servers.max(1)).unwrap_or(u32::MAX);
    if let RpcError::Auth { source: AuthError::Refused(exception), .. } = error
        && exception.is_invalid_token()
        && failures < servers
    {
        // A server that has just changed between active and standby may lack a token that its peer has.
        return Decision::Next(Duration::ZERO);
    }
    if by_ticket && is_refused_login(error) && failures <= LOGINS_MAX {
        let (first, last) = LOGIN_PAUSE_MS.into_inner();
        return Decision::Again(Duration::from_millis(first + random % (last - first + 1)));
    }
    if !error.is_retryable() {
        return Decision::GiveUp;
    }
    if error.remote().is_some_and(|exception| exception.is_try_again()) {
        return Decision::Again(pause(failures - 1));
    }
    // The first round has no pauses. Each further round begins with one.
    if failures.is_multiple_of(servers) {
        Decision::Next(pause(failures / servers - 1))
    } else {
        Decision::Next(Duration::ZERO)
    }
}

/// Whether the server refused the bytes of a login. A refusal of its user has another class.
fn is_refused_login(error: &RpcError) -> bool {
    let refused = |exception: &RemoteException| exception.is("SaslException");
    matches!(
        error,
        RpcError::Auth { source: AuthError::Refused(exception), .. } if refused(exception)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::HostPort;
    use crate::rpc::error::{ConnectError, LostCause, ProtocolError};
    use crate::sasl::SaslError;

    const BACKOFF: Backoff = Backoff::new(100, 1_000);
    /// A random number that makes the jitter's factor 1.
    const EVEN: u64 = 512;

    fn address() -> HostPort {
        HostPort::new("rm", 8032)
    }

    fn refused() -> RpcError {
        RpcError::Connect { address: address(), source: ConnectError::Refused }
    }

    fn remote(class: &str) -> RpcError {
        RpcError::Remote {
            address: address(),
            method: "m".into(),
            source: RemoteException::new(class, ""),
        }
    }

    fn auth(class: &str) -> RpcError {
        RpcError::Auth {
            address: address(),
            source: AuthError::Refused(RemoteException::new(class, "")),
        }
    }

    fn lost(sent: bool) -> RpcError {
        RpcError::Lost { address: address(), sent, source: LostCause::Closed }
    }

    fn millis(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn each_error_has_its_decision() {
        use Decision::{Again, GiveUp, Next};
        use Retry::{Always, IfNotExecuted, Never};
        let now = Duration::ZERO;
        let protocol = RpcError::Lost {
            address: address(),
            sent: true,
            source: LostCause::Protocol(ProtocolError::UnknownCall(7)),
        };
        let downgrade = RpcError::Auth {
            address: address(),
            source: AuthError::Sasl(SaslError::SimpleRefused),
        };
        let late = RpcError::Deadline { address: address(), sent: true, waited: millis(5) };
        for (error, retry, servers, failures, expected) in [
            (refused(), Never, 2, 1, GiveUp),
            (refused(), IfNotExecuted, 2, 1, Next(now)),
            (refused(), IfNotExecuted, 2, 2, Next(millis(100))),
            (refused(), IfNotExecuted, 2, 3, Next(now)),
            (refused(), IfNotExecuted, 2, 4, Next(millis(200))),
            (refused(), Always, 1, 1, Next(millis(100))),
            (remote("org.apache.hadoop.ipc.StandbyException"), IfNotExecuted, 2, 1, Next(now)),
            (auth("org.apache.hadoop.ipc.StandbyException"), IfNotExecuted, 2, 1, Next(now)),
            (
                remote("org.apache.hadoop.ipc.RetriableException"),
                IfNotExecuted,
                2,
                1,
                Again(millis(100)),
            ),
            (auth("org.apache.hadoop.ipc.RetriableException"), Always, 2, 3, Again(millis(400))),
            (remote("org.apache.hadoop.security.AccessControlException"), Always, 2, 1, GiveUp),
            (
                auth("org.apache.hadoop.security.token.SecretManager$InvalidToken"),
                IfNotExecuted,
                2,
                1,
                Next(now),
            ),
            (
                auth("org.apache.hadoop.security.token.SecretManager$InvalidToken"),
                IfNotExecuted,
                2,
                2,
                GiveUp,
            ),
            (
                auth("org.apache.hadoop.security.token.SecretManager$InvalidToken"),
                IfNotExecuted,
                1,
                1,
                GiveUp,
            ),
            (downgrade, Always, 2, 1, GiveUp),
            (lost(true), IfNotExecuted, 2, 1, GiveUp),
            (lost(true), Always, 2, 1, Next(now)),
            (lost(false), IfNotExecuted, 2, 1, Next(now)),
            (late.clone(), IfNotExecuted, 2, 1, GiveUp),
            (late, Always, 2, 1, Next(now)),
            (protocol, Always, 2, 1, GiveUp),
        ] {
            assert_eq!(
                decide(&error, false, retry, servers, failures, BACKOFF, EVEN),
                expected,
                "{error:?} {retry:?} {failures}"
            );
        }
    }

    #[test]
    fn a_refused_login_by_ticket_is_tried_five_times() {
        let refused = auth("javax.security.sasl.SaslException");
        let decide = |error: &RpcError, by_ticket, failures, random| {
            decide(error, by_ticket, Retry::IfNotExecuted, 2, failures, BACKOFF, random)
        };
        for failures in 1..=5 {
            assert_eq!(decide(&refused, true, failures, 0), Decision::Again(millis(1_000)));
            assert_eq!(decide(&refused, true, failures, 4_000), Decision::Again(millis(5_000)));
            assert_eq!(decide(&refused, true, failures, 4_001), Decision::Again(millis(1_000)));
        }
        assert_eq!(decide(&refused, true, 6, 0), Decision::GiveUp);
        assert_eq!(decide(&refused, false, 1, 0), Decision::GiveUp, "the login of a token");
        let user = auth("org.apache.hadoop.security.authorize.AuthorizationException");
        assert_eq!(decide(&user, true, 1, 0), Decision::GiveUp, "the user");
        let ticket = RpcError::Auth {
            address: address(),
            source: AuthError::Kerberos(crate::kerberos::KerberosError::NoTicket {
                cache: "c".to_owned(),
            }),
        };
        assert_eq!(decide(&ticket, true, 1, 0), Decision::GiveUp, "no ticket");
    }
}
