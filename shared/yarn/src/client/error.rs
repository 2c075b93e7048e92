//! Why a call of a client failed.

use std::time::Duration;

use heddle_hadoop::rpc::RpcError;

use crate::ids::{ApplicationId, Missing};

/// Why a client's call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The ResourceManager does not have the application, or no longer has it.
    #[error("the ResourceManager does not have {0}")]
    NotFound(String),
    /// The user lacks the permission.
    #[error("not permitted: {0}")]
    Denied(String),
    /// The cluster refuses the application because of its queue, limits, labels or credentials.
    #[error("the cluster refused {application}: {diagnostics}")]
    Refused {
        /// The application.
        application: ApplicationId,
        /// The ResourceManager's message.
        diagnostics: String,
    },
    /// The operation took longer than the timeout and may still succeed.
    #[error("{what} took longer than {waited:?}")]
    Waited {
        /// The operation.
        what: &'static str,
        /// The timeout.
        waited: Duration,
    },
    /// No ResourceManager answered.
    #[error("no ResourceManager answers")]
    Unreachable(#[source] RpcError),
    /// The ResourceManager accepts no login of this client. It executed nothing.
    #[error("cannot authenticate to the ResourceManager")]
    Auth(#[source] RpcError),
    /// The call failed in another way.
    #[error("the call to the ResourceManager failed")]
    Call(#[source] RpcError),
    /// The response lacks a required field.
    #[error("the ResourceManager's response is malformed")]
    Answer(#[from] Missing),
}

/// Whether these diagnostics of an application mean that the ResourceManager could not renew one of its tokens. They begin
/// with the message of Hadoop's `DelegationTokenRenewer`; the state of the application has no reason.
#[must_use]
pub fn refuses_tokens(diagnostics: &str) -> bool {
    diagnostics.contains("Failed to renew token")
}

/// Whether this message of the ResourceManager is a refusal that passes by itself: a queue that is not running, or has reached
/// its number of applications. Hadoop's `AbstractLeafQueue`, `ParentQueue`, `CapacityScheduler` and `FairScheduler` throw
/// exceptions of general classes, so that only their texts show it.
#[must_use]
pub fn refuses_for_now(diagnostics: &str) -> bool {
    ["annot accept submission of application", "would violate queue max"]
        .iter()
        .any(|words| diagnostics.contains(words))
}

impl ClientError {
    /// Whether calling again may help.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Waited { .. })
    }

    /// An exception of the ResourceManager about this application is its refusal.
    pub(super) fn or_refused(self, application: ApplicationId) -> Self {
        match &self {
            Self::Call(source) => match source.remote() {
                Some(exception) => {
                    Self::Refused { application, diagnostics: exception.message().to_owned() }
                }
                None => self,
            },
            _ => self,
        }
    }

    pub(super) fn of(error: RpcError) -> Self {
        // An authentication error of a server that fails over is retryable and is handled below.
        if matches!(error, RpcError::Auth { .. }) && !error.is_retryable() {
            return Self::Auth(error);
        }
        let Some(exception) = error.remote() else {
            return if error.is_retryable() { Self::Unreachable(error) } else { Self::Call(error) };
        };
        let message = exception.message().to_owned();
        match exception.simple_class() {
            "ApplicationNotFoundException"
            | "ApplicationAttemptNotFoundException"
            | "ContainerNotFoundException" => Self::NotFound(message),
            // An AccessControlException too, although no permission is missing.
            _ if refuses_for_now(&message) => Self::Call(error),
            _ if exception.is_denied() || message.contains("AccessControlException") => {
                Self::Denied(message)
            }
            _ if error.is_retryable() => Self::Unreachable(error),
            _ => Self::Call(error),
        }
    }
}
