//! The client's side: submit, monitor, change and kill applications, list nodes and queues (`ApplicationClientProtocol`).

mod error;
mod queue;
mod report;
mod submission;

use std::time::Duration;

use heddle_backoff::Backoff;
use heddle_hadoop::Token;
use heddle_hadoop::proto::common;
use heddle_hadoop::rpc::{CallOptions, RpcProxy};
use tokio::time::{Instant, sleep};

pub use error::{ClientError, refuses_for_now, refuses_tokens};
pub use queue::{ClusterMetrics, QueueAcls, QueueAmount, QueueInfo, QueueState};
pub use report::{
    ApplicationFilter, ApplicationReport, ApplicationState, AttemptReport, AttemptState,
    ContainerReport, FinalApplicationStatus, Usage,
};
pub use submission::Submission;

use crate::cluster::Cluster;
use crate::container::{Priority, token_from_proto, token_to_proto};
use crate::ids::{ApplicationAttemptId, ApplicationId, ContainerId, Missing, NodeId};
use crate::node::{NodeLabel, NodeReport, NodeState};
use crate::node_managers::Signal;
use crate::proto;
use crate::resource::{ResourceTypes, Resources};

/// First and longest pause between polls of an application that is being accepted or killed. The longest is Java's
/// (`yarn.client.application-client-protocol.poll-interval-ms`).
const POLL: Backoff = Backoff::new(10, 200);

/// A reserved application id (`GetNewApplicationResponse`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
    /// [`ClientError::Refused`] with the cluster's reason; [`ClientError::Waited`] after
    /// [`CallTimeouts::call`](crate::CallTimeouts).
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
        // A queue that does not exist or accepts no applications is refused at once.
        submit().await.map_err(|error| error.or_refused(application))?;
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
    /// [`ClientError::Denied`] for users without the permission; [`ClientError::Waited`] after
    /// [`CallTimeouts::call`](crate::CallTimeouts).
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

    /// One attempt (`getApplicationAttemptReport`).
    pub async fn attempt(&self, id: ApplicationAttemptId) -> Result<AttemptReport, ClientError> {
        let request = proto::GetApplicationAttemptReportRequestProto {
            application_attempt_id: Some(id.into()),
        };
        let answer: proto::GetApplicationAttemptReportResponseProto =
            self.call("getApplicationAttemptReport", &request).await?;
        let report = answer.application_attempt_report.as_ref();
        Ok(report.ok_or(Missing("attempt report"))?.try_into()?)
    }

    /// One running container (`getContainerReport`).
    pub async fn container(&self, id: ContainerId) -> Result<ContainerReport, ClientError> {
        let request = proto::GetContainerReportRequestProto { container_id: Some(id.into()) };
        let answer: proto::GetContainerReportResponseProto =
            self.call("getContainerReport", &request).await?;
        let report = answer.container_report.as_ref();
        Ok(report.ok_or(Missing("container report"))?.try_into()?)
    }

    /// The node labels of the cluster (`getClusterNodeLabels`).
    pub async fn node_labels(&self) -> Result<Vec<NodeLabel>, ClientError> {
        let answer: proto::GetClusterNodeLabelsResponseProto =
            self.call("getClusterNodeLabels", &proto::GetClusterNodeLabelsRequestProto {}).await?;
        let labels = answer.node_labels.iter().map(|label| NodeLabel {
            name: label.name().to_owned(),
            is_exclusive: label.is_exclusive(),
        });
        Ok(labels.collect())
    }

    /// The labels of each node that has some (`getNodeToLabels`).
    pub async fn labels_of_nodes(&self) -> Result<Vec<(NodeId, Vec<String>)>, ClientError> {
        let answer: proto::GetNodesToLabelsResponseProto =
            self.call("getNodeToLabels", &proto::GetNodesToLabelsRequestProto {}).await?;
        let nodes = answer.node_to_labels.iter().map(|node| {
            let id = node.node_id.as_ref().ok_or(Missing("node id"))?.try_into()?;
            Ok((id, node.node_labels.clone()))
        });
        nodes.collect()
    }

    /// Moves an application to another queue (`moveApplicationAcrossQueues`).
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the reason of the ResourceManager: the queue does not exist or is full, the
    /// application has ended, the scheduler moves no applications. [`ClientError::Denied`] for users without the permission.
    pub async fn move_to_queue(&self, id: ApplicationId, queue: &str) -> Result<(), ClientError> {
        let request = proto::MoveApplicationAcrossQueuesRequestProto {
            application_id: id.into(),
            target_queue: queue.to_owned(),
        };
        let answer: proto::MoveApplicationAcrossQueuesResponseProto = self
            .call("moveApplicationAcrossQueues", &request)
            .await
            .map_err(|error| error.or_refused(id))?;
        let proto::MoveApplicationAcrossQueuesResponseProto {} = answer;
        Ok(())
    }

    /// Changes the priority of an application among others (`updateApplicationPriority`). Returns the priority that it has
    /// now: the ResourceManager cuts it to `yarn.cluster.max-application-priority`.
    ///
    /// # Errors
    /// See [`move_to_queue`](Self::move_to_queue).
    pub async fn set_priority(
        &self,
        id: ApplicationId,
        priority: Priority,
    ) -> Result<Priority, ClientError> {
        let request = proto::UpdateApplicationPriorityRequestProto {
            application_id: id.into(),
            application_priority: proto::PriorityProto { priority: Some(priority.0) },
        };
        let answer: proto::UpdateApplicationPriorityResponseProto = self
            .call("updateApplicationPriority", &request)
            .await
            .map_err(|error| error.or_refused(id))?;
        let now = answer.application_priority.ok_or(Missing("priority"))?;
        Ok(Priority(now.priority()))
    }

    /// Sets the time at which the cluster kills an application (`updateApplicationTimeouts`), as ISO 8601 with
    /// milliseconds: `2026-11-23T15:00:00.000+0000`.
    ///
    /// # Errors
    /// [`ClientError::Refused`] for a time in the past or of another form, else as
    /// [`move_to_queue`](Self::move_to_queue).
    pub async fn set_expiry(&self, id: ApplicationId, expires: &str) -> Result<(), ClientError> {
        let lifetime = proto::ApplicationTimeoutTypeProto::AppTimeoutLifetime;
        let request = proto::UpdateApplicationTimeoutsRequestProto {
            application_id: id.into(),
            application_timeouts: vec![proto::ApplicationUpdateTimeoutMapProto {
                application_timeout_type: Some(lifetime.into()),
                expire_time: Some(expires.to_owned()),
            }],
        };
        let answer: proto::UpdateApplicationTimeoutsResponseProto = self
            .call("updateApplicationTimeouts", &request)
            .await
            .map_err(|error| error.or_refused(id))?;
        // The times as the ResourceManager writes them.
        let proto::UpdateApplicationTimeoutsResponseProto { application_timeouts: _ } = answer;
        Ok(())
    }

    /// Fails a running attempt (`failApplicationAttempt`); the next one starts if the application has attempts left.
    ///
    /// # Errors
    /// See [`move_to_queue`](Self::move_to_queue).
    pub async fn fail_attempt(&self, id: ApplicationAttemptId) -> Result<(), ClientError> {
        let request =
            proto::FailApplicationAttemptRequestProto { application_attempt_id: Some(id.into()) };
        let answer: proto::FailApplicationAttemptResponseProto = self
            .call("failApplicationAttempt", &request)
            .await
            .map_err(|error| error.or_refused(id.application))?;
        let proto::FailApplicationAttemptResponseProto {} = answer;
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

    /// Renews a delegation token as its renewer (`renewDelegationToken`). Returns the time at which it expires now, ms
    /// since 1970. The ResourceManager accepts only calls by Kerberos.
    pub async fn renew_token(&self, token: &Token) -> Result<u64, ClientError> {
        let request = common::RenewDelegationTokenRequestProto { token: token_to_proto(token) };
        let answer: common::RenewDelegationTokenResponseProto =
            self.call("renewDelegationToken", &request).await?;
        Ok(answer.new_expiry_time)
    }

    /// Cancels a delegation token as its owner or renewer (`cancelDelegationToken`).
    pub async fn cancel_token(&self, token: &Token) -> Result<(), ClientError> {
        let request = common::CancelDelegationTokenRequestProto { token: token_to_proto(token) };
        let answer: common::CancelDelegationTokenResponseProto =
            self.call("cancelDelegationToken", &request).await?;
        let common::CancelDelegationTokenResponseProto {} = answer;
        Ok(())
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
