//! Reports of applications, attempts and containers.

use heddle_hadoop::Token;

use crate::container::{ContainerState, token_from_proto};
use crate::exit_status::ExitStatus;
use crate::ids::{ApplicationAttemptId, ApplicationId, ContainerId, Missing, NodeId};
use crate::proto;
use crate::resource::Resources;

/// State of an application (`YarnApplicationState`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ApplicationState {
    /// Created.
    New,
    /// Being written to the ResourceManager's store.
    NewSaving,
    /// Handed to the scheduler.
    Submitted,
    /// Waits for the container of its ApplicationMaster.
    Accepted,
    /// An ApplicationMaster has registered.
    Running,
    /// Its ApplicationMaster has unregistered, see [`FinalApplicationStatus`].
    Finished,
    /// Its attempts failed, or it was refused.
    Failed,
    /// It was killed.
    Killed,
}

impl ApplicationState {
    /// Whether the state is final.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Finished | Self::Failed | Self::Killed)
    }
}

macro_rules! same_names {
    ($ours:ident, $theirs:ident { $($name:ident = $wire:ident),* $(,)? }) => {
        impl From<proto::$theirs> for $ours {
            fn from(value: proto::$theirs) -> Self {
                match value { $(proto::$theirs::$wire => Self::$name),* }
            }
        }
        impl From<$ours> for proto::$theirs {
            fn from(value: $ours) -> Self {
                match value { $($ours::$name => Self::$wire),* }
            }
        }
    };
}

same_names!(ApplicationState, YarnApplicationStateProto {
    New = New, NewSaving = NewSaving, Submitted = Submitted, Accepted = Accepted, Running = Running,
    Finished = Finished, Failed = Failed, Killed = Killed,
});

/// How an application ended (`FinalApplicationStatus`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FinalApplicationStatus {
    /// It has not ended, or no ApplicationMaster reported a status.
    Undefined,
    /// Its ApplicationMaster reported success.
    Succeeded,
    /// It failed.
    Failed,
    /// It was killed.
    Killed,
    /// It ended with parts that succeeded and parts that failed.
    Ended,
}

same_names!(FinalApplicationStatus, FinalApplicationStatusProto {
    Undefined = AppUndefined, Succeeded = AppSucceeded, Failed = AppFailed, Killed = AppKilled,
    Ended = AppEnded,
});

/// State of an attempt (`YarnApplicationAttemptState`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AttemptState {
    /// Created.
    New,
    /// Handed to the scheduler.
    Submitted,
    /// In the scheduler, without a container.
    Scheduled,
    /// The ResourceManager is storing its container.
    AllocatedSaving,
    /// Has a container.
    Allocated,
    /// Its process was started.
    Launched,
    /// Failed.
    Failed,
    /// Registered.
    Running,
    /// Unregistered; its process has not ended.
    Finishing,
    /// Ended.
    Finished,
    /// Killed.
    Killed,
}

same_names!(AttemptState, YarnApplicationAttemptStateProto {
    New = AppAttemptNew, Submitted = AppAttemptSubmitted, Scheduled = AppAttemptScheduled,
    AllocatedSaving = AppAttemptAllocatedSaving, Allocated = AppAttemptAllocated,
    Launched = AppAttemptLaunched, Failed = AppAttemptFailed, Running = AppAttemptRunning,
    Finishing = AppAttemptFinishing, Finished = AppAttemptFinished, Killed = AppAttemptKilled,
});

/// State of an application (`ApplicationReport`). Users without the view permission get `N/A` and -1 for its address.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ApplicationReport {
    /// Its id.
    pub id: ApplicationId,
    /// Its owner.
    pub user: String,
    /// Its queue.
    pub queue: String,
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: String,
    /// Its state; `None` for an unknown state.
    pub state: Option<ApplicationState>,
    /// Its final status.
    pub final_status: FinalApplicationStatus,
    /// Progress as its ApplicationMaster reports it, 0 … 1.
    pub progress: f32,
    /// Why it waits or failed, or the last diagnostics of its ApplicationMaster.
    pub diagnostics: String,
    /// The host that its ApplicationMaster registered.
    pub host: String,
    /// The registered port; -1 for none.
    pub port: i32,
    /// Tracking URL in YARN's proxy.
    pub tracking_url: String,
    /// Tracking URL as registered.
    pub original_tracking_url: String,
    /// The current attempt.
    pub attempt: Option<ApplicationAttemptId>,
    /// Time of submission, ms since 1970.
    pub start_time_ms: i64,
    /// Launch of its first ApplicationMaster, ms since 1970; 0 before.
    pub launch_time_ms: i64,
    /// Time of its end, ms since 1970; 0 before.
    pub finish_time_ms: i64,
    /// Its tags.
    pub tags: Vec<String>,
    /// Its priority.
    pub priority: i32,
    /// Its resource usage.
    pub usage: Usage,
    /// The token of an unmanaged ApplicationMaster, for the owner.
    pub am_token: Option<Token>,
}

impl ApplicationReport {
    /// The report of an application of which only the id is known.
    pub fn new(id: ApplicationId) -> Self {
        Self {
            id,
            user: String::new(),
            queue: String::new(),
            name: String::new(),
            kind: String::new(),
            state: None,
            final_status: FinalApplicationStatus::Undefined,
            progress: 0.0,
            diagnostics: String::new(),
            host: String::new(),
            port: -1,
            tracking_url: String::new(),
            original_tracking_url: String::new(),
            attempt: None,
            start_time_ms: 0,
            launch_time_ms: 0,
            finish_time_ms: 0,
            tags: Vec::new(),
            priority: 0,
            usage: Usage::default(),
            am_token: None,
        }
    }
}

/// Resource usage of an application (`ApplicationResourceUsageReport`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Number of its containers.
    pub containers: i32,
    /// Resources of its containers.
    pub used: Resources,
    /// Resources reserved for it on nodes that are still too full.
    pub reserved: Resources,
    /// Sum of used, reserved and requested resources.
    pub needed: Resources,
    /// MiB × seconds so far.
    pub memory_mib_s: i64,
    /// vcores × seconds so far.
    pub vcore_s: i64,
}

impl TryFrom<&proto::ApplicationReportProto> for ApplicationReport {
    type Error = Missing;

    fn try_from(message: &proto::ApplicationReportProto) -> Result<Self, Missing> {
        let state = message.yarn_application_state;
        Ok(Self {
            id: message.application_id.as_ref().ok_or(Missing("application id"))?.try_into()?,
            user: message.user().to_owned(),
            queue: message.queue().to_owned(),
            name: message.name().to_owned(),
            kind: message.application_type().to_owned(),
            state: state
                .and_then(|s| proto::YarnApplicationStateProto::try_from(s).ok())
                .map(Into::into),
            final_status: message.final_application_status().into(),
            progress: message.progress(),
            diagnostics: message.diagnostics().to_owned(),
            host: message.host().to_owned(),
            port: message.rpc_port(),
            tracking_url: message.tracking_url().to_owned(),
            original_tracking_url: message.original_tracking_url().to_owned(),
            attempt: message
                .current_application_attempt_id
                .as_ref()
                .and_then(|id| id.try_into().ok()),
            start_time_ms: message.start_time(),
            launch_time_ms: message.launch_time(),
            finish_time_ms: message.finish_time(),
            tags: message.application_tags.clone(),
            priority: message.priority.as_ref().map_or(0, |priority| priority.priority()),
            usage: message.app_resource_usage.as_ref().map(Usage::from).unwrap_or_default(),
            am_token: message.am_rm_token.as_ref().map(token_from_proto),
        })
    }
}

impl From<&proto::ApplicationResourceUsageReportProto> for Usage {
    fn from(message: &proto::ApplicationResourceUsageReportProto) -> Self {
        let resources = |part: &Option<proto::ResourceProto>| {
            part.as_ref().map(Resources::from).unwrap_or_default()
        };
        Self {
            // The message has -1 for values that the user may not view.
            containers: message.num_used_containers(),
            used: resources(&message.used_resources),
            reserved: resources(&message.reserved_resources),
            needed: resources(&message.needed_resources),
            memory_mib_s: message.memory_seconds(),
            vcore_s: message.vcore_seconds(),
        }
    }
}

/// Filter of a list of applications (`GetApplicationsRequest`). Empty lists do not filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplicationFilter {
    /// In any of these states.
    pub states: Vec<ApplicationState>,
    /// Of any of these types.
    pub kinds: Vec<String>,
    /// Of any of these users.
    pub users: Vec<String>,
    /// In any of these queues.
    pub queues: Vec<String>,
    /// With any of these tags; compared in lower case.
    pub tags: Vec<String>,
    /// With this name.
    pub name: Option<String>,
    /// Largest number of results.
    pub limit: Option<u32>,
}

impl From<&ApplicationFilter> for proto::GetApplicationsRequestProto {
    fn from(filter: &ApplicationFilter) -> Self {
        let states =
            filter.states.iter().map(|state| proto::YarnApplicationStateProto::from(*state).into());
        Self {
            application_types: filter.kinds.clone(),
            application_states: states.collect(),
            users: filter.users.clone(),
            queues: filter.queues.clone(),
            limit: filter.limit.map(i64::from),
            application_tags: filter.tags.iter().map(|tag| tag.to_ascii_lowercase()).collect(),
            scope: None,
            name: filter.name.clone(),
        }
    }
}

/// State of an attempt (`ApplicationAttemptReport`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttemptReport {
    /// Its id.
    pub id: ApplicationAttemptId,
    /// Its state; `None` for an unknown state.
    pub state: Option<AttemptState>,
    /// The registered host.
    pub host: String,
    /// Tracking URL in YARN's proxy.
    pub tracking_url: String,
    /// Why it ended.
    pub diagnostics: String,
    /// The container of its ApplicationMaster.
    pub container: Option<ContainerId>,
    /// Time of its start, ms since 1970.
    pub start_time_ms: i64,
    /// Time of its end, ms since 1970; 0 before.
    pub finish_time_ms: i64,
}

impl TryFrom<&proto::ApplicationAttemptReportProto> for AttemptReport {
    type Error = Missing;

    fn try_from(message: &proto::ApplicationAttemptReportProto) -> Result<Self, Missing> {
        let state = message.yarn_application_attempt_state;
        Ok(Self {
            id: message.application_attempt_id.as_ref().ok_or(Missing("attempt id"))?.try_into()?,
            state: state
                .and_then(|s| proto::YarnApplicationAttemptStateProto::try_from(s).ok())
                .map(Into::into),
            host: message.host().to_owned(),
            tracking_url: message.tracking_url().to_owned(),
            diagnostics: message.diagnostics().to_owned(),
            container: message.am_container_id.as_ref().and_then(|id| id.try_into().ok()),
            start_time_ms: message.start_time(),
            finish_time_ms: message.finish_time(),
        })
    }
}

/// State of a container in the ResourceManager (`ContainerReport`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContainerReport {
    /// Its id.
    pub id: ContainerId,
    /// Its node.
    pub node: Option<NodeId>,
    /// Its resources.
    pub resources: Resources,
    /// Its state.
    pub state: ContainerState,
    /// Its exit status; valid when it is complete.
    pub exit: ExitStatus,
    /// YARN's diagnostics.
    pub diagnostics: String,
    /// URL of its logs.
    pub log_url: String,
    /// Time of its creation, ms since 1970.
    pub creation_time_ms: i64,
    /// Time of its end, ms since 1970; 0 before.
    pub finish_time_ms: i64,
}

impl TryFrom<&proto::ContainerReportProto> for ContainerReport {
    type Error = Missing;

    fn try_from(message: &proto::ContainerReportProto) -> Result<Self, Missing> {
        Ok(Self {
            id: message.container_id.as_ref().ok_or(Missing("container id"))?.try_into()?,
            node: message.node_id.as_ref().and_then(|node| node.try_into().ok()),
            resources: message.resource.as_ref().map(Resources::from).unwrap_or_default(),
            state: message.container_state().into(),
            exit: ExitStatus(message.container_exit_status()),
            diagnostics: message.diagnostics_info().to_owned(),
            log_url: message.log_url().to_owned(),
            creation_time_ms: message.creation_time(),
            finish_time_ms: message.finish_time(),
        })
    }
}
