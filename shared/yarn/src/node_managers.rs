//! Calls to NodeManagers: start, stop, restart, poll, signal and update containers (`ContainerManagementProtocol`).
//!
//! Each node accepts only a token that the ResourceManager issued for this attempt and this node. The tokens arrive with
//! grants, and [`NodeTokens`] stores them.

mod answer;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use heddle_hadoop::Token;
use heddle_hadoop::rpc::{CallOptions, RpcProxy};
use tokio::time::{Instant, sleep};

pub use answer::{NodeError, Started};

use crate::cluster::Cluster;
use crate::container::{Container, ContainerStatus, token_to_proto};
use crate::ids::{ContainerId, Missing, NodeId};
use crate::launch::{LaunchContext, LocalResource};
use crate::proto;
use answer::{call_error, refusal, started};

/// Pause before another call to a NodeManager that is still starting.
const NOT_READY_PAUSE: Duration = Duration::from_millis(200);

/// The tokens of one attempt for NodeManagers, the newest for each node. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct NodeTokens(Arc<Mutex<HashMap<NodeId, Token>>>);

impl NodeTokens {
    pub(crate) fn put(&self, node: NodeId, token: Token) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(node, token);
    }

    /// The token for a node.
    pub fn get(&self, node: &NodeId) -> Option<Token> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(node).cloned()
    }
}

/// A signal to the process of a container (`SignalContainerCommand`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signal {
    /// SIGQUIT: a JVM prints its threads; it ends other programs that do not handle it.
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

/// A client of the NodeManagers. Cheap to clone. Calls to different nodes are concurrent.
#[derive(Clone)]
pub struct NodeManagers {
    cluster: Cluster,
    tokens: NodeTokens,
}

impl NodeManagers {
    /// A client with the tokens of an attempt, [`ApplicationMaster::node_tokens`](crate::ApplicationMaster::node_tokens).
    pub fn new(cluster: &Cluster, tokens: NodeTokens) -> Self {
        Self { cluster: cluster.clone(), tokens }
    }

    /// Starts a container. A repeated call after an unknown outcome is safe.
    ///
    /// # Errors
    /// See [`NodeError`]. A success means only that the node has accepted the container.
    pub async fn start(
        &self,
        container: &Container,
        context: &LaunchContext,
    ) -> Result<Started, NodeError> {
        let mut results = self.start_on(&container.node, &[(container, context)]).await;
        results.pop().unwrap_or(Err(NodeError::Answer(Missing("result of a start"))))
    }

    /// Starts several containers with one concurrent call for each node. The results are in the order of `starts`.
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
        for (index, result) in futures_util::future::join_all(calls).await.into_iter().flatten() {
            results[index] = result;
        }
        results
    }

    /// Stops a container: SIGTERM, then SIGKILL 250 ms later. A container that has ended counts as stopped.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn stop(&self, node: &NodeId, container: ContainerId) -> Result<(), NodeError> {
        let request = proto::StopContainersRequestProto { container_id: vec![container.into()] };
        let answer: proto::StopContainersResponseProto =
            self.call(node, "stopContainers", &request).await?;
        match refusal(container, &answer.failed_requests) {
            None | Some(NodeError::Gone { .. }) => Ok(()),
            Some(error) => Err(error),
        }
    }

    /// Polls the status of a container.
    ///
    /// # Errors
    /// [`NodeError::Gone`] some time after its end, else see [`NodeError`].
    pub async fn status(
        &self,
        node: &NodeId,
        container: ContainerId,
    ) -> Result<ContainerStatus, NodeError> {
        let request =
            proto::GetContainerStatusesRequestProto { container_id: vec![container.into()] };
        let answer: proto::GetContainerStatusesResponseProto =
            self.call(node, "getContainerStatuses", &request).await?;
        if let Some(error) = refusal(container, &answer.failed_requests) {
            return Err(error);
        }
        let status = answer.status.first().ok_or(NodeError::Answer(Missing("status")))?;
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

    /// Applies an update that arrived as [`AmEvent::Updated`](crate::AmEvent::Updated); `container` is the updated one.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn update(&self, container: &Container) -> Result<(), NodeError> {
        let request = proto::ContainerUpdateRequestProto {
            update_container_token: vec![token_to_proto(&container.token)],
        };
        let answer: proto::ContainerUpdateResponseProto =
            self.call(&container.node, "updateContainer", &request).await?;
        refusal(container.id, &answer.failed_requests).map_or(Ok(()), Err)
    }

    /// Copies more files into the work directory of a running container (`localize`). Returns before they are there.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn localize(
        &self,
        node: &NodeId,
        container: ContainerId,
        files: &BTreeMap<String, LocalResource>,
    ) -> Result<(), NodeError> {
        let request = proto::ResourceLocalizationRequestProto {
            container_id: Some(container.into()),
            local_resources: files
                .iter()
                .map(|(name, file)| proto::StringLocalResourceMapProto {
                    key: Some(name.clone()),
                    value: Some(file.into()),
                })
                .collect(),
        };
        let answer: proto::ResourceLocalizationResponseProto =
            self.call(node, "localize", &request).await?;
        let proto::ResourceLocalizationResponseProto {} = answer;
        Ok(())
    }

    /// Ends the process of a container and starts it again with another launch context, on the same resources
    /// (`reInitializeContainer`). Without `auto_commit` the change can be rolled back until it is committed.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn reinitialize(
        &self,
        node: &NodeId,
        container: ContainerId,
        context: &LaunchContext,
        auto_commit: bool,
    ) -> Result<(), NodeError> {
        let request = proto::ReInitializeContainerRequestProto {
            container_id: Some(container.into()),
            container_launch_context: Some(context.into()),
            auto_commit: Some(auto_commit),
        };
        let answer: proto::ReInitializeContainerResponseProto =
            self.call(node, "reInitializeContainer", &request).await?;
        let proto::ReInitializeContainerResponseProto {} = answer;
        Ok(())
    }

    /// Ends the process of a container and starts it again with the same launch context (`restartContainer`).
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn restart(&self, node: &NodeId, container: ContainerId) -> Result<(), NodeError> {
        let request = proto::ContainerIdProto::from(container);
        let answer: proto::RestartContainerResponseProto =
            self.call(node, "restartContainer", &request).await?;
        let proto::RestartContainerResponseProto {} = answer;
        Ok(())
    }

    /// Returns a container to the launch context before its last re-initialization (`rollbackLastReInitialization`).
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn rollback(&self, node: &NodeId, container: ContainerId) -> Result<(), NodeError> {
        let request = proto::ContainerIdProto::from(container);
        let answer: proto::RollbackResponseProto =
            self.call(node, "rollbackLastReInitialization", &request).await?;
        let proto::RollbackResponseProto {} = answer;
        Ok(())
    }

    /// Makes the last re-initialization of a container final (`commitLastReInitialization`).
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn commit(&self, node: &NodeId, container: ContainerId) -> Result<(), NodeError> {
        let request = proto::ContainerIdProto::from(container);
        let answer: proto::CommitResponseProto =
            self.call(node, "commitLastReInitialization", &request).await?;
        let proto::CommitResponseProto {} = answer;
        Ok(())
    }

    async fn start_on(
        &self,
        node: &NodeId,
        starts: &[(&Container, &LaunchContext)],
    ) -> Vec<Result<Started, NodeError>> {
        let requests =
            starts.iter().map(|(container, context)| proto::StartContainerRequestProto {
                container_launch_context: Some((*context).into()),
                container_token: Some(token_to_proto(&container.token)),
            });
        let request =
            proto::StartContainersRequestProto { start_container_request: requests.collect() };
        let answer: Result<proto::StartContainersResponseProto, NodeError> =
            self.call(node, "startContainers", &request).await;
        match answer {
            Ok(answer) => {
                starts.iter().map(|(container, _)| started(container.id, &answer)).collect()
            }
            Err(error) => starts.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// One call to one node. It is repeated until its timeout while the node is still starting.
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
        let token =
            self.tokens.get(node).ok_or_else(|| NodeError::NoToken { node: node.clone() })?;
        let proxy: RpcProxy = self.cluster.node_proxy(node, token);
        let end = Instant::now() + self.cluster.timeouts().node_call;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            // All of these calls are idempotent: the answer to a second start is "already is running".
            let options =
                CallOptions::idempotent(left).with_attempt_timeout(self.cluster.timeouts().attempt);
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
