//! The meaning of a NodeManager's answers. Its exceptions differ by their messages more than by their classes.

use heddle_hadoop::rpc::RpcError;
use heddle_hadoop::rpc::error::AuthError;

use crate::ids::{ContainerId, Missing, NodeId};
use crate::proto;

/// Why a start succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Started {
    /// The node has accepted the container. A later failure is reported by the container's completion.
    Accepted,
    /// An earlier call, whose answer was lost, has started the container. It runs or has ended since.
    AlreadyRunning,
}

/// Why a call to a NodeManager failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// No token for this node has come with a grant.
    #[error("no token for the node {node} has arrived")]
    NoToken {
        /// The node.
        node: NodeId,
    },
    /// The node rejects the token. The next grant on the node may have a newer one; release this container.
    #[error("the node {node} rejected its token")]
    TokenRefused {
        /// The node.
        node: NodeId,
        /// The node's message.
        message: String,
    },
    /// The container was not started in time. Release it and request another one. The container is not at fault.
    #[error("the grant of {container} has expired")]
    GrantExpired {
        /// The container.
        container: ContainerId,
    },
    /// The grant was made before a restart of the ResourceManager. Release it and request another one.
    #[error("the grant of {container} was made before a restart of the ResourceManager")]
    PreviousResourceManager {
        /// The container.
        container: ContainerId,
    },
    /// The node does not have the container: it has ended, or did not start there.
    #[error("the container {container} is not on this node")]
    Gone {
        /// The container.
        container: ContainerId,
    },
    /// Another refusal.
    #[error("the node refused the call: {class}: {message}")]
    Refused {
        /// The exception's class.
        class: String,
        /// Its message on one line.
        message: String,
    },
    /// Node and client have no authentication in common: the protection levels differ (`hadoop.rpc.protection`), or the
    /// node uses another mechanism. The node executed nothing. All nodes with its configuration fail too.
    #[error("cannot authenticate to the node")]
    Auth(#[source] RpcError),
    /// The call failed; [`RpcError::outcome`] states whether the node executed it.
    #[error("the call to the node failed")]
    Call(#[source] RpcError),
    /// The answer lacks a required field.
    #[error("the node's answer is malformed")]
    Answer(#[source] Missing),
}

/// The error of a call that was refused or failed as a whole.
pub(super) fn call_error(node: &NodeId, error: RpcError) -> NodeError {
    let Some(exception) = error.remote() else {
        return match error {
            RpcError::Auth { .. } => NodeError::Auth(error),
            error => NodeError::Call(error),
        };
    };
    let message = exception.message().to_owned();
    let names_token =
        message.contains("NMToken") || message.contains("seems to have been generated illegally");
    let refused = matches!(&error, RpcError::Auth { source: AuthError::Refused(_), .. });
    if exception.is_invalid_token() || names_token || refused {
        return NodeError::TokenRefused { node: node.clone(), message };
    }
    NodeError::Refused { class: exception.class().to_owned(), message }
}

pub(super) fn started(
    container: ContainerId,
    answer: &proto::StartContainersResponseProto,
) -> Result<Started, NodeError> {
    // The node sends the first while it has the grant's token, the second while the container runs.
    const TAKEN_BEFORE: [&str; 2] =
        ["Attempt to relaunch the same container", "already is running on this node"];
    let accepted =
        answer.succeeded_requests.iter().any(|id| ContainerId::try_from(id) == Ok(container));
    match failure(container, &answer.failed_requests) {
        Some(exception) if TAKEN_BEFORE.iter().any(|text| exception.message().contains(text)) => {
            Ok(Started::AlreadyRunning)
        }
        Some(exception) => Err(container_error(container, exception)),
        None if accepted => Ok(Started::Accepted),
        None => Err(NodeError::Answer(Missing("result of a start"))),
    }
}

/// The error of one container in an answer, if any.
pub(super) fn refusal(
    container: ContainerId,
    failed: &[proto::ContainerExceptionMapProto],
) -> Option<NodeError> {
    failure(container, failed).map(|exception| container_error(container, exception))
}

fn failure(
    container: ContainerId,
    failed: &[proto::ContainerExceptionMapProto],
) -> Option<&proto::SerializedExceptionProto> {
    let of_container = |entry: &&proto::ContainerExceptionMapProto| {
        entry.container_id.as_ref().is_some_and(|id| ContainerId::try_from(id) == Ok(container))
    };
    failed.iter().find(of_container).and_then(|entry| entry.exception.as_ref())
}

/// Errors of single containers differ by their messages only; the class is mostly `YarnException`.
fn container_error(
    container: ContainerId,
    exception: &proto::SerializedExceptionProto,
) -> NodeError {
    let message = exception.message();
    if message.contains("This token is expired") {
        NodeError::GrantExpired { container }
    } else if message.contains("is allocated by a previous RM")
        || message.contains("as it is allocated by a previous")
    {
        NodeError::PreviousResourceManager { container }
    } else if message.contains("is not handled by this NodeManager")
        || message.contains("was recently stopped")
    {
        NodeError::Gone { container }
    } else {
        // The cause is in the first or in the second line.
        let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
        NodeError::Refused { class: exception.class_name().to_owned(), message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ApplicationAttemptId, ApplicationId};

    fn id() -> ContainerId {
        let application = ApplicationId { cluster_timestamp: 1, id: 1 };
        ContainerId { attempt: ApplicationAttemptId { application, attempt: 1 }, id: 2 }
    }

    fn failed(message: &str) -> proto::StartContainersResponseProto {
        let exception = proto::SerializedExceptionProto {
            message: Some(message.to_owned()),
            class_name: Some("org.apache.hadoop.yarn.exceptions.YarnException".to_owned()),
            ..Default::default()
        };
        let entry = proto::ContainerExceptionMapProto {
            container_id: Some(id().into()),
            exception: Some(exception),
        };
        proto::StartContainersResponseProto { failed_requests: vec![entry], ..Default::default() }
    }

    #[test]
    fn a_repeated_start_is_a_success() {
        for message in [
            "Unauthorized request to start container. \nAttempt to relaunch the same container with id container_1_0001_01_000002",
            "Container container_1_0001_01_000002 already is running on this node!!",
        ] {
            assert_eq!(started(id(), &failed(message)).unwrap(), Started::AlreadyRunning);
        }
    }

    #[test]
    fn expired_and_stale_grants_have_different_errors() {
        let expired = failed(
            "Unauthorized request to start container. \nThis token is expired. current time is 1 found 0",
        );
        assert!(matches!(started(id(), &expired), Err(NodeError::GrantExpired { .. })));
        let stale = failed(
            "Container container_1_0001_01_000002 rejected as it is allocated by a previous RM",
        );
        assert!(matches!(started(id(), &stale), Err(NodeError::PreviousResourceManager { .. })));
        assert!(matches!(
            started(id(), &failed("other\nline")),
            Err(NodeError::Refused { message, .. }) if message == "other line"
        ));
    }

    #[test]
    fn missing_common_protection_is_an_auth_error() {
        use heddle_hadoop::HostPort;
        use heddle_hadoop::sasl::{DigestError, SaslError};
        let no_common_qop =
            DigestError::NoCommonQop { offered: vec!["auth-conf".into()], allowed: Vec::new() };
        let error = RpcError::Auth {
            address: HostPort::new("n1", 8041),
            source: AuthError::Sasl(SaslError::Digest(no_common_qop)),
        };
        let node = "n1:8041".parse().unwrap();
        assert!(matches!(call_error(&node, error), NodeError::Auth(_)));
    }

    #[test]
    fn a_response_without_the_container_is_not_a_success() {
        assert!(matches!(started(id(), &Default::default()), Err(NodeError::Answer(_))));
    }
}
