//! Nodes as the ResourceManager sees them.

use crate::ids::{Missing, NodeId};
use crate::proto;
use crate::resource::Resources;

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

impl TryFrom<&proto::NodeReportProto> for NodeReport {
    type Error = Missing;

    fn try_from(message: &proto::NodeReportProto) -> Result<Self, Missing> {
        let state =
            message.node_state.and_then(|state| proto::NodeStateProto::try_from(state).ok());
        Ok(Self {
            id: message.node_id.as_ref().ok_or(Missing("id of a node"))?.try_into()?,
            state: state.map(NodeState::from),
            rack: message.rack_name().to_owned(),
            http_address: message.http_address().to_owned(),
            used: message.used.as_ref().map(Resources::from).unwrap_or_default(),
            capability: message.capability.as_ref().map(Resources::from).unwrap_or_default(),
            containers: message.num_containers(),
            health_report: message.health_report().to_owned(),
            labels: message.node_labels.clone(),
            decommissioning_timeout_s: message.decommissioning_timeout,
        })
    }
}
