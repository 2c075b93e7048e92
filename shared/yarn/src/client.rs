//! The client's side: submit, watch, kill, look around (`ApplicationClientProtocol`).

mod queue;
mod report;
mod submission;

use std::time::Duration;

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
use crate::container::{Priority, token_from_proto};
use crate::ids::{ApplicationAttemptId, ApplicationId, ContainerId, Missing};
use crate::node::{NodeReport, NodeState};
use crate::node_managers::Signal;
use crate::proto;
use crate::resource::{ResourceTypes, Resources};

/// Pauses between looks at an application that is being accepted or killed: the first, and the longest, which is Java's
/// (`yarn.client.application-client-protocol.poll-interval-ms`).
const POLL_FIRST: Duration = Duration::from_millis(10);
const POLL_MAX: Duration = Duration::from_millis(200);

/// Why a client's call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The ResourceManager does not know the application, or has forgotten it.
    #[error("the ResourceManager does not know {0}")]
    NotFound(String),
    /// The user may not do this.
    #[error("not permitted: {0}")]
    Denied(String),
    /// The cluster does not take the application: queue, limits, labels, credentials. The words are its own.
    #[error("the cluster refused {application}: {diagnostics}")]
    Refused {
        /// Which.
        application: ApplicationId,
        /// Why.
        diagnostics: String,
    },
    /// It took longer than the caller wanted to wait; nothing else is wrong.
    #[error("{what} took longer than {waited:?}")]
    Waited {
        /// What was waited for.
        what: &'static str,
        /// How long.
        waited: Duration,
    },
    /// No ResourceManager answered.
    #[error("no ResourceManager answers")]
    Unreachable(#[source] RpcError),
    /// There is no login that the ResourceManager accepts: nothing was executed.
    #[error("cannot authenticate to the ResourceManager")]
    Auth(#[source] RpcError),
    /// The call failed in another way.
    #[error("the call to the ResourceManager failed")]
    Call(#[source] RpcError),
    /// The answer lacks something.
    #[error("the ResourceManager's answer makes no sense")]
    Answer(#[from] Missing),
}

impl ClientError {
    /// Whether calling again may help.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Waited { .. })
    }

    fn of(error: RpcError) -> Self {
        // Those of a server that fails over are none of ours.
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

/// A place for an application that is not submitted yet (`GetNewApplicationResponse`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewApplication {
    /// Its name from now on.
    pub id: ApplicationId,
    /// The most that one container may have. Requests are rounded up to a minimum that is not told.
    pub maximum: Resources,
}

/// A client of the ResourceManager. Calls may overlap.
pub struct YarnClient {
    cluster: Cluster,
    proxy: RpcProxy,
}

impl YarnClient {
    /// As the cluster's user.
    pub fn new(cluster: &Cluster) -> Self {
        Self { cluster: cluster.clone(), proxy: cluster.client_proxy(None) }
    }

    /// As the owner of a delegation token (`RM_DELEGATION_TOKEN`).
    pub fn with_token(cluster: &Cluster, token: Token) -> Self {
        Self { cluster: cluster.clone(), proxy: cluster.client_proxy(Some(token)) }
    }

    /// Reserves an application id (`getNewApplication`).
    ///
    /// # Errors
    /// See [`ClientError`]; so for all calls.
    pub async fn new_application(&self) -> Result<NewApplication, ClientError> {
        let answer: proto::GetNewApplicationResponseProto =
            self.call("getNewApplication", &proto::GetNewApplicationRequestProto {}).await?;
        Ok(NewApplication {
            id: answer.application_id.as_ref().ok_or(Missing("application id"))?.try_into()?,
            maximum: answer.maximum_capability.as_ref().map(Resources::from).unwrap_or_default(),
        })
    }

    /// Submits an application and waits until the cluster has accepted it (`submitApplication`, then reports). Safe to
    /// repeat with the same id.
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
            // A queue that does not exist or takes nobody is refused at once.
            ClientError::Call(source) if source.remote().is_some() => refused(
                source.remote().map(|exception| exception.message().to_owned()).unwrap_or_default(),
            ),
            other => other,
        })?;
        let limit = self.cluster.timeouts().call;
        let (start, mut pause) = (Instant::now(), POLL_FIRST);
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
                return Err(ClientError::Waited { what: "being accepted", waited: limit });
            }
            sleep(pause).await;
            pause = (pause * 2).min(POLL_MAX);
        }
    }

    /// How an application is (`getApplicationReport`).
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
            sleep(POLL_FIRST).await;
        }
    }

    /// Kills an application and waits until it is dead (`forceKillApplication`). One that has ended is dead.
    ///
    /// # Errors
    /// [`ClientError::Denied`] for users who may not; [`ClientError::Waited`] after [`CallTimeouts::call`](crate::CallTimeouts).
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
            sleep(POLL_MAX).await;
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

    /// How many nodes are in which state (`getClusterMetrics`).
    pub async fn metrics(&self) -> Result<ClusterMetrics, ClientError> {
        let answer: proto::GetClusterMetricsResponseProto =
            self.call("getClusterMetrics", &proto::GetClusterMetricsRequestProto {}).await?;
        Ok(answer.cluster_metrics.as_ref().ok_or(Missing("cluster metrics"))?.into())
    }

    /// The nodes in these states; in all states when empty (`getClusterNodes`).
    pub async fn nodes(&self, states: &[NodeState]) -> Result<Vec<NodeReport>, ClientError> {
        let node_states =
            states.iter().map(|state| proto::NodeStateProto::from(*state).into()).collect();
        let request = proto::GetClusterNodesRequestProto { node_states };
        let answer: proto::GetClusterNodesResponseProto =
            self.call("getClusterNodes", &request).await?;
        Ok(answer.node_reports.iter().map(NodeReport::try_from).collect::<Result<_, _>>()?)
    }

    /// A queue and the queues below it (`getQueueInfo`). `None`: there is no such queue.
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

    /// What this user may do with each queue (`getQueueUserAcls`).
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

    /// Changes an application's priority among others and returns what it became: above
    /// `yarn.cluster.max-application-priority`, 0 by default, it is cut (`updateApplicationPriority`).
    pub async fn set_priority(
        &self,
        id: ApplicationId,
        priority: Priority,
    ) -> Result<Priority, ClientError> {
        let request = proto::UpdateApplicationPriorityRequestProto {
            application_id: id.into(),
            application_priority: proto::PriorityProto { priority: Some(priority.0) },
        };
        let answer: proto::UpdateApplicationPriorityResponseProto =
            self.call("updateApplicationPriority", &request).await?;
        Ok(Priority(answer.application_priority.map_or(priority.0, |priority| priority.priority())))
    }

    /// A token with which others may make client calls as this user (`getDelegationToken`). `None`: an insecure cluster
    /// gives none. `renewer` is the short name of who may renew it.
    pub async fn delegation_token(&self, renewer: &str) -> Result<Option<Token>, ClientError> {
        let request = common::GetDelegationTokenRequestProto { renewer: renewer.to_owned() };
        // Each call makes another token, so none is made when it is not known whether one was.
        let options = CallOptions::unless_executed(self.cluster.timeouts().call);
        let answer: common::GetDelegationTokenResponseProto = self
            .proxy
            .call("getDelegationToken", &request, options)
            .await
            .map_err(ClientError::of)?;
        Ok(answer.token.as_ref().map(token_from_proto))
    }

    /// The resource types that the cluster knows (`getResourceTypeInfo`).
    pub async fn resource_types(&self) -> Result<ResourceTypes, ClientError> {
        let answer: proto::GetAllResourceTypeInfoResponseProto =
            self.call("getResourceTypeInfo", &proto::GetAllResourceTypeInfoRequestProto {}).await?;
        Ok(ResourceTypes::from_proto(&answer.resource_type_info))
    }

    /// Sends a signal to a container (`signalToContainer`). Once: a second SIGTERM may mean something else.
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
