//! Grants, their ends, and the nodes they are on.

use std::fmt;

use heddle_hadoop::Token;
use heddle_hadoop::proto::common::TokenProto;

use crate::ids::{ContainerId, Missing, NodeId};
use crate::proto;
use crate::resource::Resources;

/// Which ask a grant belongs to (`allocation_request_id`): chosen by the ApplicationMaster, at least 1, comes back in
/// [`Container::ask`]. One for each place in the job that a container fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AskId(pub i64);

/// Urgency of an ask among those of the same application (`Priority`): **lower numbers are served first**. At least 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Priority(pub i32);

/// How firmly a container has its resources (`ExecutionType`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ExecutionType {
    /// They are set aside for it.
    #[default]
    Guaranteed,
    /// It waits on the node until they are free, and is pushed out (status -108) when a guaranteed one needs them.
    Opportunistic,
}

impl From<ExecutionType> for proto::ExecutionTypeProto {
    fn from(kind: ExecutionType) -> Self {
        match kind {
            ExecutionType::Guaranteed => Self::Guaranteed,
            ExecutionType::Opportunistic => Self::Opportunistic,
        }
    }
}

impl From<proto::ExecutionTypeProto> for ExecutionType {
    fn from(kind: proto::ExecutionTypeProto) -> Self {
        match kind {
            proto::ExecutionTypeProto::Guaranteed => Self::Guaranteed,
            proto::ExecutionTypeProto::Opportunistic => Self::Opportunistic,
        }
    }
}

/// A grant (`Container`): resources on a node, to be used within the allocation expiry (10 minutes by default).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Its name.
    pub id: ContainerId,
    /// Where.
    pub node: NodeId,
    /// `host:port` of the NodeManager's web pages; empty if not told.
    pub node_http_address: String,
    /// What it has, at least what was asked for.
    pub resources: Resources,
    /// The priority of the ask.
    pub priority: Priority,
    /// The ask it answers; `None` from schedulers that do not say (-1 on the wire).
    pub ask: Option<AskId>,
    /// Guaranteed or opportunistic.
    pub execution_type: ExecutionType,
    /// Goes up by one with each update (`version`).
    pub version: i32,
    /// What the NodeManager checks at the start (`container_token`); opaque.
    pub token: Token,
}

/// That a container ended, or how it is (`ContainerStatus`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerStatus {
    /// Which.
    pub id: ContainerId,
    /// Whether it runs.
    pub state: ContainerState,
    /// Meaningful when it is complete.
    pub exit: ExitStatus,
    /// Words of YARN, and the end of the container's standard error when it failed.
    pub diagnostics: String,
}

/// Life of a container (`ContainerState`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContainerState {
    /// Accepted, files are being copied.
    New,
    /// Its process runs, or is about to.
    Running,
    /// It has ended.
    Complete,
}

impl From<proto::ContainerStateProto> for ContainerState {
    fn from(state: proto::ContainerStateProto) -> Self {
        match state {
            proto::ContainerStateProto::CNew => Self::New,
            proto::ContainerStateProto::CRunning => Self::Running,
            proto::ContainerStateProto::CComplete => Self::Complete,
        }
    }
}

/// How a container ended (`ContainerExitStatus`, or the command's own status).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExitStatus(pub i32);

impl ExitStatus {
    /// The command ended well.
    pub const SUCCESS: Self = Self(0);
    /// No status: it has not ended, or its files could not be copied.
    pub const INVALID: Self = Self(-1000);
    /// Released by us, its node was lost, or the grant expired unused.
    pub const ABORTED: Self = Self(-100);
    /// The node's disks failed.
    pub const DISKS_FAILED: Self = Self(-101);
    /// Taken back by the scheduler.
    pub const PREEMPTED: Self = Self(-102);
    /// Used more virtual memory than its share.
    pub const KILLED_EXCEEDED_VMEM: Self = Self(-103);
    /// Used more memory than it has.
    pub const KILLED_EXCEEDED_PMEM: Self = Self(-104);
    /// Stopped by `stopContainers`.
    pub const KILLED_BY_APPMASTER: Self = Self(-105);
    /// Stopped because the ResourceManager said so.
    pub const KILLED_BY_RESOURCEMANAGER: Self = Self(-106);
    /// The application was over.
    pub const KILLED_AFTER_APP_COMPLETION: Self = Self(-107);
    /// An opportunistic container made room.
    pub const KILLED_BY_CONTAINER_SCHEDULER: Self = Self(-108);
    /// Wrote more logs than allowed.
    pub const KILLED_FOR_EXCESS_LOGS: Self = Self(-109);
    /// The NodeManager restarted and found no status.
    pub const LOST: Self = Self(154);

    /// Who or what ended it, for the question whom to blame.
    pub fn cause(self) -> ExitCause {
        match self {
            Self::SUCCESS => ExitCause::Success,
            Self::INVALID => ExitCause::NotStarted,
            Self::DISKS_FAILED | Self::LOST => ExitCause::Node,
            Self::ABORTED
            | Self::PREEMPTED
            | Self::KILLED_BY_RESOURCEMANAGER
            | Self::KILLED_AFTER_APP_COMPLETION
            | Self::KILLED_BY_CONTAINER_SCHEDULER => ExitCause::Cluster,
            Self::KILLED_BY_APPMASTER => ExitCause::Ourselves,
            Self::KILLED_EXCEEDED_VMEM
            | Self::KILLED_EXCEEDED_PMEM
            | Self::KILLED_FOR_EXCESS_LOGS => ExitCause::Limit,
            Self(129..=192) => ExitCause::Signal(self.0 - 128),
            Self(_) => ExitCause::Command,
        }
    }
}

/// `0`, `-100 (ABORTED)`, `137 (signal 9)`.
impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::INVALID => "INVALID",
            Self::ABORTED => "ABORTED",
            Self::DISKS_FAILED => "DISKS_FAILED",
            Self::PREEMPTED => "PREEMPTED",
            Self::KILLED_EXCEEDED_VMEM => "KILLED_EXCEEDED_VMEM",
            Self::KILLED_EXCEEDED_PMEM => "KILLED_EXCEEDED_PMEM",
            Self::KILLED_BY_APPMASTER => "KILLED_BY_APPMASTER",
            Self::KILLED_BY_RESOURCEMANAGER => "KILLED_BY_RESOURCEMANAGER",
            Self::KILLED_AFTER_APP_COMPLETION => "KILLED_AFTER_APP_COMPLETION",
            Self::KILLED_BY_CONTAINER_SCHEDULER => "KILLED_BY_CONTAINER_SCHEDULER",
            Self::KILLED_FOR_EXCESS_LOGS => "KILLED_FOR_EXCESS_LOGS",
            Self::LOST => "LOST",
            _ => "",
        };
        match (name, self.cause()) {
            ("", ExitCause::Signal(signal)) => write!(f, "{} (signal {signal})", self.0),
            ("", _) => write!(f, "{}", self.0),
            _ => write!(f, "{} ({name})", self.0),
        }
    }
}

/// Who or what ended a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExitCause {
    /// Nobody: the command ended with 0.
    Success,
    /// It never ran: usually a file that is missing or was changed. Also the status of one that still runs.
    NotStarted,
    /// The node's disks, or a NodeManager that lost track.
    Node,
    /// YARN took it: a lost node, preemption, a release, the end of the application. Nobody's fault.
    Cluster,
    /// Our `stopContainers`.
    Ourselves,
    /// It used more memory or disk than it may.
    Limit,
    /// This signal: 9 without another word may be the kernel's out-of-memory killer.
    Signal(i32),
    /// The command's own status, 1 … 255.
    Command,
}

/// A node as the ResourceManager sees it (`NodeReport`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// Which.
    pub id: NodeId,
    /// How it is; `None` for a state that we do not know.
    pub state: Option<NodeState>,
    /// `/default-rack`, or where the administrator says it stands.
    pub rack: String,
    /// `host:port` of its web pages.
    pub http_address: String,
    /// In use.
    pub used: Resources,
    /// What it offers in all.
    pub capability: Resources,
    /// How many containers run there.
    pub containers: i32,
    /// Why it is unhealthy.
    pub health_report: String,
    /// Its labels.
    pub labels: Vec<String>,
    /// While decommissioning: after how many seconds its containers are killed.
    pub decommissioning_timeout_s: Option<u32>,
}

/// Life of a node (`NodeState`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeState {
    /// Not heard of yet.
    New,
    /// Takes containers.
    Running,
    /// Takes none: a disk is full, or its health script says so.
    Unhealthy,
    /// Taken out of service.
    Decommissioned,
    /// Not heard of for the expiry time.
    Lost,
    /// Came back as another process.
    Rebooted,
    /// Will be taken out; its containers may end in peace.
    Decommissioning,
    /// Its NodeManager ended in an orderly way.
    Shutdown,
}

impl NodeState {
    /// Whether containers there are gone or will be soon.
    pub fn is_unusable(self) -> bool {
        !matches!(self, Self::New | Self::Running)
    }
}

impl From<proto::NodeStateProto> for NodeState {
    fn from(state: proto::NodeStateProto) -> Self {
        match state {
            proto::NodeStateProto::NsNew => Self::New,
            proto::NodeStateProto::NsRunning => Self::Running,
            proto::NodeStateProto::NsUnhealthy => Self::Unhealthy,
            proto::NodeStateProto::NsDecommissioned => Self::Decommissioned,
            proto::NodeStateProto::NsLost => Self::Lost,
            proto::NodeStateProto::NsRebooted => Self::Rebooted,
            proto::NodeStateProto::NsDecommissioning => Self::Decommissioning,
            proto::NodeStateProto::NsShutdown => Self::Shutdown,
        }
    }
}

impl From<NodeState> for proto::NodeStateProto {
    fn from(state: NodeState) -> Self {
        match state {
            NodeState::New => Self::NsNew,
            NodeState::Running => Self::NsRunning,
            NodeState::Unhealthy => Self::NsUnhealthy,
            NodeState::Decommissioned => Self::NsDecommissioned,
            NodeState::Lost => Self::NsLost,
            NodeState::Rebooted => Self::NsRebooted,
            NodeState::Decommissioning => Self::NsDecommissioning,
            NodeState::Shutdown => Self::NsShutdown,
        }
    }
}

pub(crate) fn token_from_proto(token: &TokenProto) -> Token {
    Token::new(
        token.identifier.to_vec(),
        token.password.to_vec(),
        token.kind.clone(),
        token.service.clone(),
    )
}

pub(crate) fn token_to_proto(token: &Token) -> TokenProto {
    TokenProto {
        identifier: token.identifier().to_vec().into(),
        password: token.password().to_vec().into(),
        kind: token.kind().to_owned(),
        service: token.service().to_owned(),
    }
}

impl TryFrom<&proto::ContainerProto> for Container {
    type Error = Missing;

    fn try_from(message: &proto::ContainerProto) -> Result<Self, Missing> {
        Ok(Self {
            id: message
                .id
                .as_ref()
                .ok_or(Missing("id of a container"))?
                .try_into()?,
            node: message
                .node_id
                .as_ref()
                .ok_or(Missing("node of a container"))?
                .try_into()?,
            node_http_address: message.node_http_address().to_owned(),
            resources: message
                .resource
                .as_ref()
                .map(Resources::from)
                .unwrap_or_default(),
            priority: Priority(
                message
                    .priority
                    .as_ref()
                    .map_or(0, |priority| priority.priority()),
            ),
            ask: Some(message.allocation_request_id())
                .filter(|&id| id > 0)
                .map(AskId),
            execution_type: message.execution_type().into(),
            version: message.version(),
            token: token_from_proto(
                message
                    .container_token
                    .as_ref()
                    .ok_or(Missing("token of a container"))?,
            ),
        })
    }
}

impl TryFrom<&proto::ContainerStatusProto> for ContainerStatus {
    type Error = Missing;

    fn try_from(message: &proto::ContainerStatusProto) -> Result<Self, Missing> {
        Ok(Self {
            id: message
                .container_id
                .as_ref()
                .ok_or(Missing("id of a container's status"))?
                .try_into()?,
            state: message.state().into(),
            exit: ExitStatus(message.exit_status()),
            diagnostics: message.diagnostics().to_owned(),
        })
    }
}

impl TryFrom<&proto::NodeReportProto> for NodeReport {
    type Error = Missing;

    fn try_from(message: &proto::NodeReportProto) -> Result<Self, Missing> {
        let state = message
            .node_state
            .and_then(|state| proto::NodeStateProto::try_from(state).ok());
        Ok(Self {
            id: message
                .node_id
                .as_ref()
                .ok_or(Missing("id of a node"))?
                .try_into()?,
            state: state.map(NodeState::from),
            rack: message.rack_name().to_owned(),
            http_address: message.http_address().to_owned(),
            used: message
                .used
                .as_ref()
                .map(Resources::from)
                .unwrap_or_default(),
            capability: message
                .capability
                .as_ref()
                .map(Resources::from)
                .unwrap_or_default(),
            containers: message.num_containers(),
            health_report: message.health_report().to_owned(),
            labels: message.node_labels.clone(),
            decommissioning_timeout_s: message.decommissioning_timeout,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_statuses_name_whom_to_blame() {
        for (status, cause, text) in [
            (0, ExitCause::Success, "0"),
            (1, ExitCause::Command, "1"),
            (137, ExitCause::Signal(9), "137 (signal 9)"),
            (143, ExitCause::Signal(15), "143 (signal 15)"),
            (154, ExitCause::Node, "154 (LOST)"),
            (-100, ExitCause::Cluster, "-100 (ABORTED)"),
            (-102, ExitCause::Cluster, "-102 (PREEMPTED)"),
            (-104, ExitCause::Limit, "-104 (KILLED_EXCEEDED_PMEM)"),
            (-105, ExitCause::Ourselves, "-105 (KILLED_BY_APPMASTER)"),
            (-1000, ExitCause::NotStarted, "-1000 (INVALID)"),
        ] {
            assert_eq!(
                (ExitStatus(status).cause(), ExitStatus(status).to_string()),
                (cause, text.to_owned())
            );
        }
    }

    #[test]
    fn a_container_without_a_node_is_refused() {
        assert_eq!(
            Container::try_from(&proto::ContainerProto::default()),
            Err(Missing("id of a container"))
        );
    }
}
