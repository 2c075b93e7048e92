//! Reports of nodes.

use crate::ids::{Missing, NodeId};
use crate::proto;
use crate::resource::Resources;

/// State of a node in the ResourceManager (`NodeReport`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeReport {
    /// Its id.
    pub id: NodeId,
    /// Its state; `None` for an unknown state.
    pub state: Option<NodeState>,
    /// Its rack, `/default-rack` if none is configured.
    pub rack: String,
    /// `host:port` of its web pages.
    pub http_address: String,
    /// Used resources.
    pub used: Resources,
    /// Total resources.
    pub capability: Resources,
    /// Number of its containers.
    pub containers: i32,
    /// Why it is unhealthy.
    pub health_report: String,
    /// Its labels.
    pub labels: Vec<String>,
    /// While decommissioning: seconds until YARN kills its containers.
    pub decommissioning_timeout_s: Option<u32>,
}

/// State of a node (`NodeState`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NodeState {
    /// Registered, without a heartbeat yet.
    New,
    /// Accepts containers.
    Running,
    /// Accepts no containers: a disk is full, or its health script fails.
    Unhealthy,
    /// Removed by an administrator.
    Decommissioned,
    /// Without heartbeats for the expiry time.
    Lost,
    /// Its NodeManager restarted.
    Rebooted,
    /// An administrator removes it; its containers may run to their end.
    Decommissioning,
    /// Its NodeManager shut down.
    Shutdown,
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

/// A node label of the cluster (`NodeLabel`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeLabel {
    /// Its name.
    pub name: String,
    /// Whether only containers that request the label run on its nodes. Others may use idle nodes of a shared one.
    pub is_exclusive: bool,
}
