//! Calls to NodeManagers: start, stop, poll. Each is a separate task, so that a lost node delays no other call.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use heddle_am_core::Exit;
use heddle_hadoop::rpc::CallOutcome;
use heddle_protocol::ids::Member;
use heddle_storage::chain;
use heddle_yarn::{
    Container, ContainerId, ContainerState, ContainerStatus, NodeError, NodeId, NodeManagers,
    Started,
};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tracing::{Instrument as _, info_span};

use super::launch::YarnLaunch;

/// Most starts at the same time. A NodeManager has 20 threads for such calls, and a job has many nodes; further starts
/// queue here at no cost.
const STARTS_MAX: usize = 64;
/// Delay of the poll after a connection closed: an ending process takes some milliseconds to be reaped.
const POLL_WAITS: [Duration; 6] = [
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(1000),
];

/// Timeout of a container's status from a NodeManager.
const POLL_TIMEOUT: Duration = Duration::from_secs(1);
/// Unanswered polls in a row after which a NodeManager counts as unreachable.
const SILENT_MAX: u32 = 3;
/// Between two polls at a container that an earlier attempt left.
const SURVIVOR_POLL_WAIT: Duration = Duration::from_secs(2);
/// Between two connections to the port of a NodeManager that does not answer a start.
const PORT_RETRY_WAIT: Duration = Duration::from_millis(500);

/// The result of a call.
#[derive(Debug)]
pub(super) enum Done {
    /// The NodeManager has it.
    Started(ContainerId),
    /// The start failed.
    NotStarted {
        id: ContainerId,
        exit: Exit,
        /// The NodeManager itself does not answer.
        unreachable: bool,
    },
    /// A NodeManager did not accept the order to stop: the ResourceManager is to stop the container.
    NotStopped(ContainerId),
    /// A polled container has ended.
    Ended(ContainerStatus),
    /// The node of a polled container does not report it as running.
    Vanished {
        id: ContainerId,
        cause: &'static str,
        /// The NodeManager itself does not answer.
        unreachable: bool,
    },
}

/// See the module.
#[derive(Clone)]
pub(super) struct NodeCalls {
    nodes: NodeManagers,
    launch: Arc<YarnLaunch>,
    permits: Arc<Semaphore>,
    done: mpsc::UnboundedSender<Done>,
}

impl NodeCalls {
    pub(super) fn new(
        nodes: NodeManagers,
        launch: YarnLaunch,
        done: mpsc::UnboundedSender<Done>,
    ) -> Self {
        Self {
            nodes,
            launch: Arc::new(launch),
            permits: Arc::new(Semaphore::new(STARTS_MAX)),
            done,
        }
    }

    /// Starts a member's process in a container.
    pub(super) fn start(&self, container: Container, member: Member) {
        let calls = self.clone();
        let span = info_span!("node_call", slot = %member.slot, container = %container.id);
        let start = async move {
            let _permit = calls.permits.acquire().await;
            let done = calls.started(&container, member).await;
            // The session outlives its calls except while the process ends.
            let _ending = calls.done.send(done);
        };
        tokio::spawn(start.instrument(span));
    }

    async fn started(&self, container: &Container, member: Member) -> Done {
        let id = container.id;
        let context = match self.launch.context(member) {
            Ok(context) => context,
            Err(error) => {
                let error = chain(&error);
                return Done::NotStarted {
                    id,
                    exit: Exit::NotStarted { error },
                    unreachable: false,
                };
            }
        };
        let answer = tokio::select! {
            answer = self.nodes.start(container, &context) => answer,
            // The call itself retries for longer, because it has no other node to use.
            () = refuses(&container.node) => {
                return Done::NotStarted {
                    id,
                    exit: Exit::NodeLost,
                    unreachable: true,
                };
            }
        };
        let error = match answer {
            Ok(Started::Accepted | Started::AlreadyRunning) => return Done::Started(id),
            Err(error) => error,
        };
        // The call arrived and its answer was lost: the node has the container.
        if is_unknown(&error)
            && let Ok(status) = self.nodes.status(&container.node, id).await
            && status.state != ContainerState::Complete
        {
            return Done::Started(id);
        }
        let (exit, unreachable) = classify(&error);
        Done::NotStarted { id, exit, unreachable }
    }

    /// Ends a container: SIGTERM, and 250 ms later SIGKILL.
    pub(super) fn stop(&self, node: NodeId, id: ContainerId) {
        let calls = self.clone();
        let stop = async move {
            if let Err(error) = calls.nodes.stop(&node, id).await {
                tracing::info!(
                    container = %id,
                    %node,
                    error = chain(&error),
                    "container_not_stopped_by_node"
                );
                let _ending = calls.done.send(Done::NotStopped(id));
            }
        };
        tokio::spawn(stop.in_current_span());
    }

    /// Polls the node of a container whose connection closed. The node has the exit up to a second before the
    /// ResourceManager reports it; if the node is lost, the ResourceManager reports nothing for minutes.
    pub(super) fn look(&self, node: NodeId, id: ContainerId) {
        self.look_at(node, id, POLL_WAITS.to_vec());
    }

    /// Polls the node of a container that an earlier attempt left and that has not registered. A node that answers reports
    /// exits to the ResourceManager by itself.
    pub(super) fn check_survivors(&self, node: NodeId, id: ContainerId) {
        self.look_at(node, id, vec![SURVIVOR_POLL_WAIT; SILENT_MAX as usize]);
    }

    fn look_at(&self, node: NodeId, id: ContainerId, waits: Vec<Duration>) {
        let calls = self.clone();
        let span = info_span!("node_poll", container = %id);
        let polling = async move {
            let mut polls = Polls::default();
            for wait in waits {
                tokio::time::sleep(wait).await;
                let answer = async {
                    // The call retries a port that refuses; for a poll one refusal is enough.
                    if polls.silent > 0 && is_refused(&node).await {
                        return None;
                    }
                    Some(calls.nodes.status(&node, id).await)
                };
                let answer = tokio::time::timeout(POLL_TIMEOUT, answer).await;
                if let Some(done) = polls.record(id, answer.ok().flatten()) {
                    let _ending = calls.done.send(done);
                    return;
                }
                if polls.over {
                    return;
                }
            }
            if let Some(done) = polls.end(id) {
                let _ending = calls.done.send(done);
            }
        };
        tokio::spawn(polling.instrument(span));
    }
}

/// The polls of one container.
#[derive(Debug, Default)]
struct Polls {
    /// Number of polls in a row without an answer.
    silent: u32,
    /// The node is ending it.
    completing: bool,
    /// The node sends no further status.
    over: bool,
}

impl Polls {
    /// Handles one answer, `None` if there was none in time. Returns the fact that it proves.
    fn record(
        &mut self,
        id: ContainerId,
        answer: Option<Result<ContainerStatus, NodeError>>,
    ) -> Option<Done> {
        match answer {
            Some(Ok(status)) if status.state == ContainerState::Complete => {
                Some(Done::Ended(status))
            }
            Some(Ok(status)) => {
                (self.silent, self.completing) = (0, status.completing);
                None
            }
            None | Some(Err(NodeError::Call(_))) => {
                self.silent += 1;
                (self.silent >= SILENT_MAX).then_some(Done::Vanished {
                    id,
                    cause: "its NodeManager does not answer either",
                    unreachable: true,
                })
            }
            // The ResourceManager or a timeout decides later.
            Some(Err(_)) => {
                self.over = true;
                None
            }
        }
    }

    /// The result of all polls. A NodeManager may take minutes to end a container whose process has ended.
    fn end(&self, id: ContainerId) -> Option<Done> {
        self.completing.then_some(Done::Vanished {
            id,
            cause: "its NodeManager is ending it",
            unreachable: false,
        })
    }
}

/// Resolves when a node's port refuses connections repeatedly.
async fn refuses(node: &NodeId) {
    let mut refused = 0;
    while refused < SILENT_MAX {
        tokio::time::sleep(PORT_RETRY_WAIT).await;
        refused = if is_refused(node).await { refused + 1 } else { 0 };
    }
}

/// Whether a node's port refuses a connection.
async fn is_refused(node: &NodeId) -> bool {
    let connected = TcpStream::connect((node.host.as_str(), node.port)).await;
    connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

fn is_unknown(error: &NodeError) -> bool {
    matches!(error, NodeError::Call(error) if error.outcome() == CallOutcome::Unknown)
}

/// Classifies a failed start: the exit to report, and whether the node is unreachable.
///
/// An expired grant counts as a container that the cluster took: no failure is counted, and the slot is requested
/// again.
fn classify(error: &NodeError) -> (Exit, bool) {
    let error_text = chain(error);
    match error {
        NodeError::NoToken { .. }
        | NodeError::TokenRefused { .. }
        | NodeError::GrantExpired { .. }
        | NodeError::PreviousResourceManager { .. }
        | NodeError::Gone { .. } => (Exit::ByCluster { error: error_text }, false),
        NodeError::Call(_) => (Exit::NodeLost, true),
        _ => (Exit::NotStarted { error: error_text }, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(
        state: ContainerState,
        completing: bool,
    ) -> Option<Result<ContainerStatus, NodeError>> {
        let mut status = ContainerStatus::new(id(), state, heddle_yarn::ExitStatus(-1000));
        status.completing = completing;
        Some(Ok(status))
    }

    fn id() -> ContainerId {
        "container_1_0001_01_000002".parse().expect("an id")
    }

    #[test]
    fn node_silent_three_times_in_a_row_is_unreachable() {
        let mut polls = Polls::default();
        for answer in [None, None, answer(ContainerState::Running, false), None, None] {
            assert!(polls.record(id(), answer).is_none());
        }
        let done = polls.record(id(), None);
        assert!(matches!(done, Some(Done::Vanished { unreachable: true, .. })), "{done:?}");
    }

    #[test]
    fn container_that_its_node_keeps_ending_is_unreachable() {
        let mut polls = Polls::default();
        assert!(polls.record(id(), answer(ContainerState::Running, false)).is_none());
        assert!(polls.end(id()).is_none());
        assert!(polls.record(id(), answer(ContainerState::Running, true)).is_none());
        assert!(matches!(polls.end(id()), Some(Done::Vanished { unreachable: false, .. })));
        let done = polls.record(id(), answer(ContainerState::Complete, false));
        assert!(matches!(done, Some(Done::Ended(_))));
    }

    #[tokio::test]
    async fn node_that_refuses_connections_is_not_awaited() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let node =
            NodeId { host: "127.0.0.1".into(), port: listener.local_addr().expect("bound").port() };
        let mut refuses = Box::pin(refuses(&node));
        tokio::select! {
            () = &mut refuses => panic!("it listens"),
            accepted = listener.accept() => drop(accepted),
        }
        drop(listener);
        refuses.await;
    }

    #[test]
    fn node_without_the_container_gives_no_answer() {
        let mut polls = Polls::default();
        let gone = NodeError::Gone { container: id() };
        assert!(polls.record(id(), Some(Err(gone))).is_none() && polls.over);
    }

    #[test]
    fn node_that_shares_no_protection_level_is_not_lost() {
        use heddle_hadoop::rpc::RpcError;
        use heddle_hadoop::rpc::error::AuthError;
        use heddle_hadoop::sasl::{DigestError, SaslError};
        let no_common_qop =
            DigestError::NoCommonQop { offered: vec!["auth-conf".into()], allowed: Vec::new() };
        let error = NodeError::Auth(RpcError::Auth {
            address: "n1:8041".parse().expect("an address"),
            source: AuthError::Sasl(SaslError::Digest(no_common_qop)),
        });
        let (exit, unreachable) = classify(&error);
        assert!(!unreachable, "{exit:?}");
        assert!(
            matches!(&exit, Exit::NotStarted { error } if error.contains("auth-conf")),
            "{exit:?}"
        );
    }

    #[test]
    fn expired_grant_counts_as_no_failure() {
        let container: ContainerId = "container_1_0001_01_000002".parse().expect("an id");
        let node = NodeId { host: "n1".into(), port: 8041 };
        for error in [
            NodeError::GrantExpired { container },
            NodeError::PreviousResourceManager { container },
            NodeError::NoToken { node },
        ] {
            assert!(matches!(classify(&error), (Exit::ByCluster { .. }, false)), "{error}");
        }
        let refused = NodeError::Refused {
            class: "InvalidAuxServiceException".into(),
            message: "no such service".into(),
        };
        assert!(matches!(
            classify(&refused),
            (Exit::NotStarted { error }, false) if error.contains("no such service")
        ));
    }
}
