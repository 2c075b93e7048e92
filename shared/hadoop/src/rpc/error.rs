//! Errors of calls and connections, and the outcome of a failed call.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::frame::RpcFrameError;
use super::remote::RemoteException;
use crate::address::HostPort;
use crate::kerberos::KerberosError;
use crate::sasl::{LayerError, SaslError};

/// A failed call. Cheap to clone: all calls of a lost connection get the same cause.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// The client could not connect. The call was not sent.
    #[error("cannot connect to {address}")]
    Connect {
        /// The server.
        address: HostPort,
        /// Why.
        source: ConnectError,
    },
    /// The authentication failed. The call was not executed.
    #[error("cannot authenticate to {address}")]
    Auth {
        /// The server.
        address: HostPort,
        /// Why.
        source: AuthError,
    },
    /// The server answered with an exception.
    #[error("{method} at {address} failed")]
    Remote {
        /// The server.
        address: HostPort,
        /// Name of the called method.
        method: String,
        /// The exception.
        source: RemoteException,
    },
    /// The connection ended before the reply.
    #[error("the connection to {address} was lost {}", sent_text(*.sent))]
    Lost {
        /// The server.
        address: HostPort,
        /// Whether the request, or a part of it, may have reached the server.
        sent: bool,
        /// How.
        source: LostCause,
    },
    /// No reply arrived in time.
    #[error("no answer from {address} within {waited:?}, {}", sent_text(*.sent))]
    Deadline {
        /// The server.
        address: HostPort,
        /// Whether the request, or a part of it, may have reached the server.
        sent: bool,
        /// Time from the start of the call.
        waited: Duration,
    },
    /// The call succeeded and the body of its reply does not decode.
    #[error("cannot decode the reply to {method} from {address}")]
    Reply {
        /// The server.
        address: HostPort,
        /// Name of the called method.
        method: String,
        /// Why.
        source: RpcFrameError,
    },
    /// The request is longer than servers accept. It was not sent.
    #[error("cannot send {method}: the request is too long")]
    Request {
        /// Name of the called method.
        method: String,
        /// The lengths.
        source: RpcFrameError,
    },
    /// No server is configured.
    #[error("no server address is configured for {protocol}")]
    NoServer {
        /// The protocol.
        protocol: String,
    },
}

fn sent_text(sent: bool) -> &'static str {
    if sent {
        "after the request was sent (its outcome is unknown)"
    } else {
        "before the request was sent"
    }
}

/// The effect of a failed call at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The server did not execute the call.
    NotExecuted,
    /// The server may have executed the call, or may execute it later.
    Unknown,
    /// The server has answered, with a result or an exception.
    Answered,
}

impl RpcError {
    /// The effect of the call at the server.
    pub fn outcome(&self) -> CallOutcome {
        match self {
            Self::Connect { .. }
            | Self::Auth { .. }
            | Self::Request { .. }
            | Self::NoServer { .. } => CallOutcome::NotExecuted,
            Self::Remote { source, .. } if source.is_standby() || source.is_try_again() => {
                CallOutcome::NotExecuted
            }
            Self::Remote { .. } | Self::Reply { .. } => CallOutcome::Answered,
            Self::Lost { sent, .. } | Self::Deadline { sent, .. } => {
                if *sent {
                    CallOutcome::Unknown
                } else {
                    CallOutcome::NotExecuted
                }
            }
        }
    }

    /// Whether the same call may succeed later or at another server. Whether the client may repeat it depends on its
    /// [`outcome`](Self::outcome) and on the method.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connect { source: ConnectError::Handshake(cause), .. } => cause.is_retryable(),
            Self::Connect { .. } | Self::Deadline { .. } => true,
            Self::Lost { source, .. } => source.is_retryable(),
            Self::Remote { source, .. } | Self::Auth { source: AuthError::Refused(source), .. } => {
                source.is_standby() || source.is_try_again()
            }
            Self::Auth { .. }
            | Self::Reply { .. }
            | Self::Request { .. }
            | Self::NoServer { .. } => false,
        }
    }

    /// The server's exception, from the call or from authentication.
    pub fn remote(&self) -> Option<&RemoteException> {
        match self {
            Self::Remote { source, .. } | Self::Auth { source: AuthError::Refused(source), .. } => {
                Some(source)
            }
            Self::Lost { source: LostCause::Fatal(source), .. } => Some(source),
            _ => None,
        }
    }

    /// Whether the server threw an exception of this class (full or simple name).
    pub fn is_remote(&self, class: &str) -> bool {
        self.remote().is_some_and(|exception| exception.is(class))
    }

    /// Whether the server lacks the called method.
    pub fn is_no_such_method(&self) -> bool {
        self.remote().is_some_and(RemoteException::is_no_such_method)
    }

    /// The server of the failed call.
    pub fn address(&self) -> Option<&HostPort> {
        match self {
            Self::Connect { address, .. }
            | Self::Auth { address, .. }
            | Self::Remote { address, .. }
            | Self::Lost { address, .. }
            | Self::Deadline { address, .. }
            | Self::Reply { address, .. } => Some(address),
            Self::Request { .. } | Self::NoServer { .. } => None,
        }
    }
}

/// Why there is no connection.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The host name does not resolve.
    #[error("the host name does not resolve")]
    Resolve(#[source] Arc<io::Error>),
    /// No process listens at the port.
    #[error("connection refused")]
    Refused,
    /// Another network error.
    #[error("the network failed")]
    Io(#[source] Arc<io::Error>),
    /// Connecting and authenticating took too long.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The connection ended, or the server broke the protocol, before the authentication was complete.
    #[error("the handshake failed")]
    Handshake(#[source] LostCause),
}

/// Why the authentication of a connection fails.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// The client ended the negotiation.
    #[error(transparent)]
    Sasl(#[from] SaslError),
    /// There is no usable Kerberos ticket for the server.
    #[error(transparent)]
    Kerberos(#[from] KerberosError),
    /// The server ended the negotiation.
    #[error("refused by the server")]
    Refused(#[source] RemoteException),
}

/// How a connection ended.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LostCause {
    /// The server closed it.
    #[error("closed by the server")]
    Closed,
    /// Reading or writing failed.
    #[error("the network failed")]
    Io(#[source] Arc<io::Error>),
    /// The server reported a fatal error of another call, or of the connection.
    #[error("the server ended the connection")]
    Fatal(#[source] RemoteException),
    /// The server's bytes break the protocol.
    #[error("the server broke the protocol")]
    Protocol(#[source] ProtocolError),
    /// This client closed it because it was idle or shut down.
    #[error("closed by this client")]
    Local,
}

impl LostCause {
    /// Whether a new connection may succeed. A broken protocol is not transient and is not retried.
    pub fn is_retryable(&self) -> bool {
        !matches!(self, Self::Protocol(_))
    }
}

/// Bytes of a server that break the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A frame that cannot be read.
    #[error(transparent)]
    Frame(#[from] RpcFrameError),
    /// A protected message that fails its check.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// A reply to an unknown call.
    #[error("the reply belongs to call {0}, which is not outstanding")]
    UnknownCall(i32),
    /// A status other than SUCCESS, ERROR, FATAL.
    #[error("the reply has the unknown status {0}")]
    UnknownStatus(i32),
    /// The reply echoes another client's id.
    #[error("the reply is for another client")]
    ForeignClient,
    /// A message without the negotiated security layer.
    #[error("the message lacks the negotiated protection")]
    Unprotected,
    /// A SASL message after the authentication.
    #[error("the server sent an authentication message after the authentication")]
    UnexpectedSasl,
    /// A reply before the authentication was complete.
    #[error("the server replied to call {0} before the authentication was complete")]
    EarlyReply(i32),
}
