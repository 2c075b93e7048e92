//! NodeManagers: start, stop, ask about, signal and change containers (`ContainerManagementProtocol`).
//!
//! Each node takes only a token that the ResourceManager made for this attempt and that node; they come with grants and
//! are kept in [`NodeTokens`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use heddle_hadoop::Token;
use heddle_hadoop::rpc::error::AuthError;
use heddle_hadoop::rpc::{CallOptions, Proxy, RpcError};
use tokio::time::{Instant, sleep};

use crate::cluster::Cluster;
use crate::container::{Container, ContainerStatus, token_to_proto};
use crate::ids::{ContainerId, Missing, NodeId};
use crate::launch::LaunchContext;
use crate::proto;

/// Pause before a NodeManager that is still starting is asked again.
const NOT_READY_PAUSE: Duration = Duration::from_millis(200);

/// The tokens of one attempt for NodeManagers, the newest for each node. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct NodeTokens(Arc<Mutex<HashMap<NodeId, Token>>>);

impl NodeTokens {
    pub(crate) fn put(&self, node: NodeId, token: Token) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(node, token);
    }

    /// The token for a node.
    pub fn get(&self, node: &NodeId) -> Option<Token> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(node)
            .cloned()
    }
}

/// That a NodeManager took a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Started {
    /// It will start it. Failures from here on come as the container's completion.
    Accepted,
    /// It had taken it before: our earlier call got through although its answer did not. The container runs, or has ended
    /// since.
    AlreadyRunning,
}

/// A container's process is sent a signal (`SignalContainerCommand`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signal {
    /// SIGQUIT: a JVM prints its threads; other programs that do not handle it die.
    Quit,
    /// SIGTERM.
    Term,
    /// SIGKILL.
    Kill,
}

impl From<Signal> for proto::SignalContainerCommandProto {
    fn from(signal: Signal) -> Self {
        match signal {
            Signal::Quit => Self::OutputThreadDump,
            Signal::Term => Self::GracefulShutdown,
            Signal::Kill => Self::ForcefulShutdown,
        }
    }
}

/// Why a NodeManager did not do as told.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// No token for this node has come with a grant.
    #[error("there is no token for the node {node}")]
    NoToken {
        /// Which.
        node: NodeId,
    },
    /// The node takes our token no more, or never did. A newer one may come with the next grant there; release this one.
    #[error("the node {node} refuses our token")]
    TokenRefused {
        /// Which.
        node: NodeId,
        /// Its words.
        message: String,
    },
    /// The grant was not used in time. Release it and ask again; not the container's fault.
    #[error("the grant of {container} has expired")]
    GrantExpired {
        /// Which.
        container: ContainerId,
    },
    /// The grant is of a ResourceManager that was restarted since. Release it and ask again.
    #[error("the grant of {container} is of an earlier ResourceManager")]
    PreviousResourceManager {
        /// Which.
        container: ContainerId,
    },
    /// The node does not have the container: it ended, or never started there.
    #[error("the container {container} is not on this node")]
    Gone {
        /// Which.
        container: ContainerId,
    },
    /// Another refusal.
    #[error("refused by the node: {class}: {message}")]
    Refused {
        /// The exception's class.
        class: String,
        /// Its message on one line.
        message: String,
    },
    /// The call failed. Whether the node did it, [`RpcError::outcome`] says.
    #[error("the call to the node failed")]
    Call(#[source] RpcError),
    /// The answer lacks something.
    #[error("the node's answer makes no sense")]
    Answer(#[source] Missing),
}

/// Calls to NodeManagers. Cheap to clone; calls to different nodes do not wait for each other.
#[derive(Clone)]
pub struct NodeManagers {
    cluster: Cluster,
    tokens: NodeTokens,
}

impl NodeManagers {
    /// With the tokens of an attempt, [`ApplicationMaster::node_tokens`](crate::ApplicationMaster::node_tokens).
    pub fn new(cluster: &Cluster, tokens: NodeTokens) -> Self {
        Self {
            cluster: cluster.clone(),
            tokens,
        }
    }

    /// Starts a container. Calling again after an unknown outcome is safe.
    ///
    /// # Errors
    /// See [`NodeError`]. A success says only that the node has taken it.
    pub async fn start(
        &self,
        container: &Container,
        context: &LaunchContext,
    ) -> Result<Started, NodeError> {
        let mut results = self
            .start_on(&container.node, &[(container, context)])
            .await;
        results
            .pop()
            .unwrap_or(Err(NodeError::Answer(Missing("result of a start"))))
    }

    /// Starts several containers, one call for each node, all nodes at once. Results in the order of `starts`.
    pub async fn start_several(
        &self,
        starts: &[(&Container, &LaunchContext)],
    ) -> Vec<Result<Started, NodeError>> {
        let mut by_node: HashMap<&NodeId, Vec<usize>> = HashMap::new();
        for (index, (container, _)) in starts.iter().enumerate() {
            by_node.entry(&container.node).or_default().push(index);
        }
        let calls = by_node.into_iter().map(|(node, indices)| async move {
            let group: Vec<_> = indices.iter().map(|&index| starts[index]).collect();
            let results = self.start_on(node, &group).await;
            indices.into_iter().zip(results).collect::<Vec<_>>()
        });
        let missing = || Err(NodeError::Answer(Missing("result of a start")));
        let mut results: Vec<_> = starts.iter().map(|_| missing()).collect();
        for (index, result) in futures_util::future::join_all(calls)
            .await
            .into_iter()
            .flatten()
        {
            results[index] = result;
        }
        results
    }

    /// Stops a container: SIGTERM, then SIGKILL 250 ms later. One that has ended already counts as stopped.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn stop(&self, node: &NodeId, container: ContainerId) -> Result<(), NodeError> {
        let request = proto::StopContainersRequestProto {
            container_id: vec![container.into()],
        };
        let answer: proto::StopContainersResponseProto =
            self.call(node, "stopContainers", &request).await?;
        match refusal(container, &answer.failed_requests) {
            None | Some(NodeError::Gone { .. }) => Ok(()),
            Some(error) => Err(error),
        }
    }

    /// How a container is.
    ///
    /// # Errors
    /// [`NodeError::Gone`] when it ended a while ago, else see [`NodeError`].
    pub async fn status(
        &self,
        node: &NodeId,
        container: ContainerId,
    ) -> Result<ContainerStatus, NodeError> {
        let request = proto::GetContainerStatusesRequestProto {
            container_id: vec![container.into()],
        };
        let answer: proto::GetContainerStatusesResponseProto =
            self.call(node, "getContainerStatuses", &request).await?;
        if let Some(error) = refusal(container, &answer.failed_requests) {
            return Err(error);
        }
        let status = answer
            .status
            .first()
            .ok_or(NodeError::Answer(Missing("status")))?;
        ContainerStatus::try_from(status).map_err(NodeError::Answer)
    }

    /// Sends a signal to a container's process.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn signal(
        &self,
        node: &NodeId,
        container: ContainerId,
        signal: Signal,
    ) -> Result<(), NodeError> {
        let request = proto::SignalContainerRequestProto {
            container_id: container.into(),
            command: proto::SignalContainerCommandProto::from(signal).into(),
        };
        let answer: proto::SignalContainerResponseProto =
            self.call(node, "signalToContainer", &request).await?;
        let proto::SignalContainerResponseProto {} = answer;
        Ok(())
    }

    /// Makes a change effective that came as [`Event::Updated`](crate::Event::Updated); `container` is the new one.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn update(&self, container: &Container) -> Result<(), NodeError> {
        let request = proto::ContainerUpdateRequestProto {
            update_container_token: vec![token_to_proto(&container.token)],
        };
        let answer: proto::ContainerUpdateResponseProto = self
            .call(&container.node, "updateContainer", &request)
            .await?;
        refusal(container.id, &answer.failed_requests).map_or(Ok(()), Err)
    }

    async fn start_on(
        &self,
        node: &NodeId,
        starts: &[(&Container, &LaunchContext)],
    ) -> Vec<Result<Started, NodeError>> {
        let requests =
            starts
                .iter()
                .map(|(container, context)| proto::StartContainerRequestProto {
                    container_launch_context: Some((*context).into()),
                    container_token: Some(token_to_proto(&container.token)),
                });
        let request = proto::StartContainersRequestProto {
            start_container_request: requests.collect(),
        };
        let answer: Result<proto::StartContainersResponseProto, NodeError> =
            self.call(node, "startContainers", &request).await;
        match answer {
            Ok(answer) => starts
                .iter()
                .map(|(container, _)| started(container.id, &answer))
                .collect(),
            Err(error) => starts.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// One call to one node; a node that is still starting is asked again until the time is over.
    async fn call<Request, Reply>(
        &self,
        node: &NodeId,
        method: &str,
        request: &Request,
    ) -> Result<Reply, NodeError>
    where
        Request: prost::Message,
        Reply: prost::Message + Default,
    {
        let token = self
            .tokens
            .get(node)
            .ok_or_else(|| NodeError::NoToken { node: node.clone() })?;
        let proxy: Proxy = self.cluster.node_proxy(node, token);
        let end = Instant::now() + self.cluster.limits().node_call;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            // All of these calls may be made twice: a second start is answered by "already is running".
            let options =
                CallOptions::idempotent(left).with_attempt_timeout(self.cluster.limits().attempt);
            match proxy.call(method, request, options).await {
                Ok(reply) => return Ok(reply),
                Err(error)
                    if error.is_remote("NMNotYetReadyException") && left > NOT_READY_PAUSE =>
                {
                    sleep(NOT_READY_PAUSE).await;
                }
                Err(error) => return Err(call_error(node, error)),
            }
        }
    }
}

/// A call as a whole was refused, or failed.
fn call_error(node: &NodeId, error: RpcError) -> NodeError {
    let Some(exception) = error.remote() else {
        return NodeError::Call(error);
    };
    let message = exception.message().to_owned();
    let text_says =
        message.contains("NMToken") || message.contains("seems to have been generated illegally");
    let refused = matches!(
        &error,
        RpcError::Auth {
            source: AuthError::Refused(_),
            ..
        }
    );
    if exception.is_invalid_token() || text_says || refused {
        return NodeError::TokenRefused {
            node: node.clone(),
            message,
        };
    }
    NodeError::Refused {
        class: exception.class().to_owned(),
        message,
    }
}

fn started(
    container: ContainerId,
    answer: &proto::StartContainersResponseProto,
) -> Result<Started, NodeError> {
    // The first is said as long as the node remembers the grant's token, the second while the container runs.
    const TAKEN_BEFORE: [&str; 2] = [
        "Attempt to relaunch the same container",
        "already is running on this node",
    ];
    let accepted = answer
        .succeeded_requests
        .iter()
        .any(|id| ContainerId::try_from(id) == Ok(container));
    match failure(container, &answer.failed_requests) {
        Some(exception)
            if TAKEN_BEFORE
                .iter()
                .any(|text| exception.message().contains(text)) =>
        {
            Ok(Started::AlreadyRunning)
        }
        Some(exception) => Err(container_error(container, exception)),
        None if accepted => Ok(Started::Accepted),
        None => Err(NodeError::Answer(Missing("result of a start"))),
    }
}

/// What the node said against this container, if anything.
fn refusal(
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
        entry
            .container_id
            .as_ref()
            .is_some_and(|id| ContainerId::try_from(id) == Ok(container))
    };
    failed
        .iter()
        .find(of_container)
        .and_then(|entry| entry.exception.as_ref())
}

/// Per-container failures differ by their words alone; the class is mostly `YarnException`.
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
        // The second line has the reason as often as the first.
        let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
        NodeError::Refused {
            class: exception.class_name().to_owned(),
            message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ApplicationAttemptId, ApplicationId};

    fn id() -> ContainerId {
        let application = ApplicationId {
            cluster_timestamp: 1,
            id: 1,
        };
        ContainerId {
            attempt: ApplicationAttemptId {
                application,
                attempt: 1,
            },
            id: 2,
        }
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
        proto::StartContainersResponseProto {
            failed_requests: vec![entry],
            ..Default::default()
        }
    }

    #[test]
    fn a_start_that_was_made_before_is_a_success() {
        for message in [
            "Unauthorized request to start container. \nAttempt to relaunch the same container with id container_1_0001_01_000002",
            "Container container_1_0001_01_000002 already is running on this node!!",
        ] {
            assert_eq!(
                started(id(), &failed(message)).unwrap(),
                Started::AlreadyRunning
            );
        }
    }

    #[test]
    fn expired_and_stale_grants_are_told_apart() {
        let expired = failed(
            "Unauthorized request to start container. \nThis token is expired. current time is 1 found 0",
        );
        assert!(matches!(
            started(id(), &expired),
            Err(NodeError::GrantExpired { .. })
        ));
        let stale = failed(
            "Container container_1_0001_01_000002 rejected as it is allocated by a previous RM",
        );
        assert!(matches!(
            started(id(), &stale),
            Err(NodeError::PreviousResourceManager { .. })
        ));
        assert!(
            matches!(started(id(), &failed("other\nline")), Err(NodeError::Refused { message, .. }) if message == "other line")
        );
    }

    #[test]
    fn an_answer_without_our_container_is_no_success() {
        assert!(matches!(
            started(id(), &Default::default()),
            Err(NodeError::Answer(_))
        ));
    }
}
