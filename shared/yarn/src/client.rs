//! The client's side: submit, monitor and kill applications, list nodes and queues (`ApplicationClientProtocol`).

mod queue;
mod report;
mod submission;

use std::time::Duration;

use heddle_backoff::Backoff;
use heddle_hadoop::Token;
use heddle_hadoop::proto::common;
use heddle_hadoop::rpc::{CallOptions, RpcError, RpcProxy};
use tokio::time::{Instant, sleep};

pub use queue::{ClusterMetrics, QueueAcls, QueueInfo, QueueState};
pub use report::{
    ApplicationFilter, ApplicationReport, ApplicationState, AttemptReport, AttemptState,
    ContainerReport, FinalApplicationStatus, Usage,
};
pub use submission::Submission;

use crate::cluster::Cluster;
use crate::container::token_from_proto;
use crate::ids::{ApplicationAttemptId, ApplicationId, ContainerId, Missing};
use crate::node::{NodeReport, NodeState};
use crate::node_managers::Signal;
use crate::proto;
use crate::resource::{ResourceTypes, Resources};

/// First and longest pause between polls of an application that is being accepted or killed. The longest is Java's
/// (`yarn.client.application-client-protocol.poll-interval-ms`).
const POLL: Backoff = Backoff::new(10, 200);

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

impl ClientError {
    /// Whether calling again may help.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Waited { .. })
    }

    fn of(error: RpcError) -> Self {
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
            _ if exception.is_denied() || message.contains("AccessControlException") => {
                Self::Denied(message)
            }
            _ if error.is_retryable() => Self::Unreachable(error),
            _ => Self::Call(error),
        }
    }
}

/// A reserved application id (`GetNewApplicationResponse`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewApplication {
    /// The reserved id.
    pub id: ApplicationId,
    /// Largest container. The ResourceManager rounds requests up to a minimum that it does not report.
    pub maximum: Resources,
}

/// A client of the ResourceManager. Calls may overlap.
pub struct YarnClient {
    cluster: Cluster,
    proxy: RpcProxy,
}

impl YarnClient {
    /// A client with the login of the cluster's user.
    pub fn new(cluster: &Cluster) -> Self {
        Self { cluster: cluster.clone(), proxy: cluster.client_proxy(None) }
    }

    /// A client with the login of a delegation token (`RM_DELEGATION_TOKEN`).
    pub fn with_token(cluster: &Cluster, token: Token) -> Self {
        Self { cluster: cluster.clone(), proxy: cluster.client_proxy(Some(token)) }
    }

    /// Reserves an application id (`getNewApplication`).
    ///
    /// # Errors
    /// See [`ClientError`], as for all calls.
    pub async fn new_application(&self) -> Result<NewApplication, ClientError> {
        let answer: proto::GetNewApplicationResponseProto =
            self.call("getNewApplication", &proto::GetNewApplicationRequestProto {}).await?;
        Ok(NewApplication {
            id: answer.application_id.as_ref().ok_or(Missing("application id"))?.try_into()?,
            maximum: answer.maximum_capability.as_ref().map(Resources::from).unwrap_or_default(),
        })
    }

    /// Submits an application and waits until the cluster has accepted it (`submitApplication`, then polls). A repeated
    /// call with the same id is safe.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the cluster's reason; [`ClientError::Waited`] after [`CallTimeouts::call`](crate::CallTimeouts).
    pub async fn submit(&self, submission: &Submission) -> Result<ApplicationReport, ClientError> {
        let application = submission.id;
        let request = proto::SubmitApplicationRequestProto {
            application_submission_context: Some(submission.into()),
        };
        let submit = async || -> Result<(), ClientError> {
            let answer: proto::SubmitApplicationResponseProto =
                self.call("submitApplication", &request).await?;
            let proto::SubmitApplicationResponseProto {} = answer;
            Ok(())
        };
        let refused = |diagnostics: String| ClientError::Refused { application, diagnostics };
        submit().await.map_err(|error| match error {
            // A queue that does not exist or accepts no applications is refused at once.
            ClientError::Call(source) if source.remote().is_some() => refused(
                source.remote().map(|exception| exception.message().to_owned()).unwrap_or_default(),
            ),
            other => other,
        })?;
        let limit = self.cluster.timeouts().call;
        let (start, mut polls) = (Instant::now(), POLL);
        loop {
            match self.report(application).await {
                Ok(report) => match report.state {
                    Some(
                        ApplicationState::New
                        | ApplicationState::NewSaving
                        | ApplicationState::Submitted,
                    ) => {}
                    Some(ApplicationState::Failed | ApplicationState::Killed) => {
                        return Err(refused(report.diagnostics));
                    }
                    _ => return Ok(report),
                },
                // The ResourceManager failed over before it had stored the application.
                Err(ClientError::NotFound(_)) => submit().await?,
                Err(error) => return Err(error),
            }
            if start.elapsed() > limit {
                return Err(ClientError::Waited {
                    what: "the acceptance of the application",
                    waited: limit,
                });
            }
            sleep(polls.next_wait()).await;
        }
    }

    /// The report of an application (`getApplicationReport`).
    pub async fn report(&self, id: ApplicationId) -> Result<ApplicationReport, ClientError> {
        let request = proto::GetApplicationReportRequestProto { application_id: Some(id.into()) };
        let answer: proto::GetApplicationReportResponseProto =
            self.call("getApplicationReport", &request).await?;
        let report = answer.application_report.as_ref().ok_or(Missing("application report"))?;
        Ok(ApplicationReport::try_from(report)?)
    }

    /// The token of an unmanaged ApplicationMaster, as soon as its attempt is launched.
    ///
    /// # Errors
    /// [`ClientError::Waited`] after [`CallTimeouts::call`](crate::CallTimeouts).
    pub async fn am_token(&self, id: ApplicationId) -> Result<Token, ClientError> {
        let limit = self.cluster.timeouts().call;
        let start = Instant::now();
        loop {
            if let Some(token) = self.report(id).await?.am_token {
                return Ok(token);
            }
            if start.elapsed() > limit {
                return Err(ClientError::Waited {
                    what: "the token of the attempt",
                    waited: limit,
                });
            }
            sleep(Duration::from_millis(POLL.min_ms())).await;
        }
    }

    /// Kills an application and waits until it has ended (`forceKillApplication`). An ended application is a success.
    ///
    /// # Errors
    /// [`ClientError::Denied`] for users without the permission; [`ClientError::Waited`] after [`CallTimeouts::call`](crate::CallTimeouts).
    pub async fn kill(&self, id: ApplicationId, diagnostics: &str) -> Result<(), ClientError> {
        let request = proto::KillApplicationRequestProto {
            application_id: Some(id.into()),
            diagnostics: Some(diagnostics.to_owned()),
        };
        let limit = self.cluster.timeouts().call;
        let start = Instant::now();
        loop {
            let answer: proto::KillApplicationResponseProto =
                self.call("forceKillApplication", &request).await?;
            if answer.is_kill_completed() {
                return Ok(());
            }
            if start.elapsed() > limit {
                return Err(ClientError::Waited { what: "the kill", waited: limit });
            }
            sleep(Duration::from_millis(POLL.max_ms())).await;
        }
    }

    /// The applications that match (`getApplications`).
    pub async fn applications(
        &self,
        filter: &ApplicationFilter,
    ) -> Result<Vec<ApplicationReport>, ClientError> {
        let request = proto::GetApplicationsRequestProto::from(filter);
        let answer: proto::GetApplicationsResponseProto =
            self.call("getApplications", &request).await?;
        Ok(answer.applications.iter().map(ApplicationReport::try_from).collect::<Result<_, _>>()?)
    }

    /// The number of nodes in each state (`getClusterMetrics`).
    pub async fn metrics(&self) -> Result<ClusterMetrics, ClientError> {
        let answer: proto::GetClusterMetricsResponseProto =
            self.call("getClusterMetrics", &proto::GetClusterMetricsRequestProto {}).await?;
        Ok(answer.cluster_metrics.as_ref().ok_or(Missing("cluster metrics"))?.into())
    }

    /// The nodes in these states, or all nodes if `states` is empty (`getClusterNodes`).
    pub async fn nodes(&self, states: &[NodeState]) -> Result<Vec<NodeReport>, ClientError> {
        let node_states =
            states.iter().map(|state| proto::NodeStateProto::from(*state).into()).collect();
        let request = proto::GetClusterNodesRequestProto { node_states };
        let answer: proto::GetClusterNodesResponseProto =
            self.call("getClusterNodes", &request).await?;
        Ok(answer.node_reports.iter().map(NodeReport::try_from).collect::<Result<_, _>>()?)
    }

    /// A queue and its child queues (`getQueueInfo`). `None` if it does not exist.
    pub async fn queue(&self, name: &str) -> Result<Option<QueueInfo>, ClientError> {
        let request = proto::GetQueueInfoRequestProto {
            queue_name: Some(name.to_owned()),
            include_applications: Some(false),
            include_child_queues: Some(true),
            recursive: Some(true),
        };
        let answer: proto::GetQueueInfoResponseProto = self.call("getQueueInfo", &request).await?;
        Ok(answer.queue_info.as_ref().map(QueueInfo::from))
    }

    /// The permissions of this user on each queue (`getQueueUserAcls`).
    pub async fn queue_acls(&self) -> Result<Vec<QueueAcls>, ClientError> {
        let answer: proto::GetQueueUserAclsInfoResponseProto =
            self.call("getQueueUserAcls", &proto::GetQueueUserAclsInfoRequestProto {}).await?;
        Ok(answer.queue_user_acls.iter().map(QueueAcls::from).collect())
    }

    /// The attempts of an application (`getApplicationAttempts`).
    pub async fn attempts(&self, id: ApplicationId) -> Result<Vec<AttemptReport>, ClientError> {
        let request = proto::GetApplicationAttemptsRequestProto { application_id: Some(id.into()) };
        let answer: proto::GetApplicationAttemptsResponseProto =
            self.call("getApplicationAttempts", &request).await?;
        Ok(answer
            .application_attempts
            .iter()
            .map(AttemptReport::try_from)
            .collect::<Result<_, _>>()?)
    }

    /// The running containers of an attempt, its own included (`getContainers`).
    pub async fn containers(
        &self,
        attempt: ApplicationAttemptId,
    ) -> Result<Vec<ContainerReport>, ClientError> {
        let request =
            proto::GetContainersRequestProto { application_attempt_id: Some(attempt.into()) };
        let answer: proto::GetContainersResponseProto =
            self.call("getContainers", &request).await?;
        Ok(answer.containers.iter().map(ContainerReport::try_from).collect::<Result<_, _>>()?)
    }

    /// Moves an application to another queue (`moveApplicationAcrossQueues`).
    pub async fn move_to_queue(&self, id: ApplicationId, queue: &str) -> Result<(), ClientError> {
        let request = proto::MoveApplicationAcrossQueuesRequestProto {
            application_id: id.into(),
            target_queue: queue.to_owned(),
        };
        let answer: proto::MoveApplicationAcrossQueuesResponseProto =
            self.call("moveApplicationAcrossQueues", &request).await?;
        let proto::MoveApplicationAcrossQueuesResponseProto {} = answer;
        Ok(())
    }

    /// Requests a delegation token for client calls as this user (`getDelegationToken`). `None` from a cluster without
    /// security. `renewer` is the short name of the user that may renew it.
    pub async fn delegation_token(&self, renewer: &str) -> Result<Option<Token>, ClientError> {
        let request = common::GetDelegationTokenRequestProto { renewer: renewer.to_owned() };
        // Each call issues another token, so a call with an unknown outcome is not retried.
        let options = CallOptions::unless_executed(self.cluster.timeouts().call);
        let answer: common::GetDelegationTokenResponseProto = self
            .proxy
            .call("getDelegationToken", &request, options)
            .await
            .map_err(ClientError::of)?;
        Ok(answer.token.as_ref().map(token_from_proto))
    }

    /// The resource types of the cluster (`getResourceTypeInfo`).
    pub async fn resource_types(&self) -> Result<ResourceTypes, ClientError> {
        let answer: proto::GetAllResourceTypeInfoResponseProto =
            self.call("getResourceTypeInfo", &proto::GetAllResourceTypeInfoRequestProto {}).await?;
        Ok(ResourceTypes::from_proto(&answer.resource_type_info))
    }

    /// Sends a signal to a container, at most once (`signalToContainer`): a second SIGTERM may have another effect.
    pub async fn signal(&self, container: ContainerId, signal: Signal) -> Result<(), ClientError> {
        let request = proto::SignalContainerRequestProto {
            container_id: container.into(),
            command: proto::SignalContainerCommandProto::from(signal).into(),
        };
        let options = CallOptions::unless_executed(self.cluster.timeouts().call);
        let answer: proto::SignalContainerResponseProto = self
            .proxy
            .call("signalToContainer", &request, options)
            .await
            .map_err(ClientError::of)?;
        let proto::SignalContainerResponseProto {} = answer;
        Ok(())
    }

    async fn call<Request, Reply>(
        &self,
        method: &str,
        request: &Request,
    ) -> Result<Reply, ClientError>
    where
        Request: prost::Message,
        Reply: prost::Message + Default,
    {
        let call = self.proxy.call(method, request, self.cluster.rm_call());
        self.cluster.watched(call).await.map_err(ClientError::of)
    }
}
