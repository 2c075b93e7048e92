//! Why a call failed, and what is known of its outcome.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::frame::RpcFrameError;
use super::remote::RemoteException;
use crate::address::HostPort;
use crate::sasl::{LayerError, SaslError};

/// A failed call. Cheap to clone: all calls of a lost connection get the same cause.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// No connection. The call was not sent.
    #[error("cannot connect to {address}")]
    Connect {
        /// The server.
        address: HostPort,
        /// Why.
        source: ConnectError,
    },
    /// A connection, but no common ground on who we are. The call was not executed.
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
        /// The RPC.
        method: String,
        /// What it threw.
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
    /// No reply in time.
    #[error("no answer from {address} within {waited:?}, {}", sent_text(*.sent))]
    Deadline {
        /// The server.
        address: HostPort,
        /// Whether the request, or a part of it, may have reached the server.
        sent: bool,
        /// How long was waited.
        waited: Duration,
    },
    /// The reply is a success and its body does not decode. The call was executed.
    #[error("the reply to {method} from {address} does not decode")]
    Reply {
        /// The server.
        address: HostPort,
        /// The RPC.
        method: String,
        /// Why.
        source: RpcFrameError,
    },
    /// The request is longer than a server takes. It was not sent.
    #[error("the request {method} is too long")]
    Request {
        /// The RPC.
        method: String,
        /// The lengths.
        source: RpcFrameError,
    },
    /// The call needs a server and none is configured.
    #[error("no server address for {protocol}")]
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

/// What a failed call may have done at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// Nothing.
    NotExecuted,
    /// Anything: nothing, all, or all of it later.
    Unknown,
    /// The server has answered: it did what its answer says.
    Answered,
}

impl RpcError {
    /// What the call may have done.
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

    /// Whether the same call may succeed later or at another server without anything being changed here.
    /// Whether it may be *made* again is a question of its [`outcome`](Self::outcome) and of what it does.
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

    /// Whether the server does not implement the called method.
    pub fn is_no_such_method(&self) -> bool {
        self.remote().is_some_and(RemoteException::is_no_such_method)
    }

    /// Whether the server could not be reached, or nothing listens there.
    pub fn is_connect(&self) -> bool {
        matches!(self, Self::Connect { .. })
    }

    /// The server that the failure is about.
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
    /// Nothing listens at the port: the process is not there.
    #[error("connection refused")]
    Refused,
    /// Another error of the network.
    #[error("the network failed")]
    Io(#[source] Arc<io::Error>),
    /// No connection, or no end of the authentication, in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The server closed the connection, or spoke nonsense, before authentication was over.
    #[error("the handshake failed")]
    Handshake(#[source] LostCause),
}

/// Why a connection does not authenticate.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// We do not go on.
    #[error(transparent)]
    Sasl(#[from] SaslError),
    /// The server does not go on.
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
    /// The server reported a fatal fault of another call, or of the connection.
    #[error("the server ended the connection")]
    Fatal(#[source] RemoteException),
    /// The server's bytes break the protocol.
    #[error("the server broke the protocol")]
    Protocol(#[source] ProtocolError),
    /// This client closed it, being idle or shut down.
    #[error("closed by this client")]
    Local,
}

impl LostCause {
    /// Whether a new connection may fare better. Broken protocol is no accident and is not retried.
    pub fn is_retryable(&self) -> bool {
        !matches!(self, Self::Protocol(_))
    }
}

/// Bytes of a server that make no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A frame that cannot be read.
    #[error(transparent)]
    Frame(#[from] RpcFrameError),
    /// A protected message that fails its check.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// A reply to a call that was not made.
    #[error("a reply to the call {0}, which is not outstanding")]
    UnknownCall(i32),
    /// A status that is none of SUCCESS, ERROR, FATAL.
    #[error("a reply with the unknown status {0}")]
    UnknownStatus(i32),
    /// The reply echoes another client's id.
    #[error("a reply for another client")]
    ForeignClient,
    /// After a layer was agreed a message came without it.
    #[error("a message without the protection that was agreed")]
    Unprotected,
    /// A SASL message in the middle of calls.
    #[error("an authentication message out of place")]
    UnexpectedSasl,
    /// A reply before authentication was over.
    #[error("a reply to the call {0} before the authentication was over")]
    EarlyReply(i32),
}
