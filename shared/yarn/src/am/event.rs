//! What a heartbeat brought.

use crate::container::{AskId, Container, ContainerStatus};
use crate::ids::{ContainerId, Missing};
use crate::node::NodeReport;
use crate::proto;
use crate::resource::Resources;

/// One thing that the ResourceManager told, each exactly once for the state of the ask table.
///
/// Only [`Allocated`](AmEvent::Allocated), [`Completed`](AmEvent::Completed) and [`Recovered`](AmEvent::Recovered) change what
/// the application has; the rest is for counting, logs and plans.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum AmEvent {
    /// A container that is wanted. It is ours until it completes or is released.
    Allocated {
        /// For which ask.
        ask: AskId,
        /// The grant.
        container: Container,
    },
    /// A container that was ours has ended, for whatever reason and without our release. If its ask still wants it, the
    /// next heartbeat asks for another.
    Completed {
        /// For which ask it was, if for one.
        ask: Option<AskId>,
        /// How it ended.
        status: ContainerStatus,
    },
    /// The release of a container took effect.
    Released(ContainerStatus),
    /// A container of an earlier attempt of this application that still runs. It belongs to no ask until
    /// [`adopt`](super::ApplicationMaster::adopt)ed; release it if it is of no use.
    Recovered(Container),
    /// A grant beyond what is wanted now. Its release goes out with the next heartbeat.
    Excess {
        /// Which.
        container: ContainerId,
        /// Why it is not wanted.
        reason: Excess,
    },
    /// A grant that was delivered before; nothing changes.
    DuplicateGrant(ContainerId),
    /// A completion that was delivered before; nothing changes.
    DuplicateCompletion(ContainerStatus),
    /// The end of a container that we never had; nothing changes.
    UnknownCompletion(ContainerStatus),
    /// A container has other resources or another execution type now (`updated_containers`). Pass it to
    /// [`NodeManagers::update`](crate::NodeManagers::update).
    Updated {
        /// What was done.
        kind: UpdateKind,
        /// The container as it is now, with its new token.
        container: Container,
    },
    /// A change was refused (`update_errors`).
    UpdateFailed {
        /// Of which container, if told.
        container: Option<ContainerId>,
        /// YARN's word, such as `INCORRECT_CONTAINER_VERSION_ERROR`.
        reason: String,
    },
    /// A node changed (`updated_nodes`): lost, unhealthy, leaving, back.
    Node(NodeReport),
    /// The scheduler will take containers back, 15 s later by default.
    Preemption(Preemption),
    /// The ResourceManager refused an ask; it is out of the table until it is wanted again.
    Refused {
        /// Which ask.
        ask: AskId,
        /// Its words.
        message: String,
    },
    /// A tagged ask cannot be placed (`rejected_scheduling_requests`).
    Rejected(AskId),
    /// The ResourceManager had forgotten us, being restarted or failed over. We are registered again and everything
    /// outstanding was said again; containers run on.
    Resynchronised,
    /// The token of this attempt was replaced; calls use the new one.
    TokenRolled,
    /// A message lacked what it must have, and was skipped.
    Malformed(Missing),
}

/// Why a grant is not wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Excess {
    /// The ask is filled, or was cancelled while the grant was made.
    Filled,
    /// There is no such ask.
    Unknown,
}

/// A change to a container (`ContainerUpdateType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UpdateKind {
    /// More resources.
    Increase,
    /// Fewer resources.
    Decrease,
    /// From opportunistic to guaranteed.
    Promote,
    /// From guaranteed to opportunistic.
    Demote,
}

impl From<proto::ContainerUpdateTypeProto> for UpdateKind {
    fn from(kind: proto::ContainerUpdateTypeProto) -> Self {
        match kind {
            proto::ContainerUpdateTypeProto::IncreaseResource => Self::Increase,
            proto::ContainerUpdateTypeProto::DecreaseResource => Self::Decrease,
            proto::ContainerUpdateTypeProto::PromoteExecutionType => Self::Promote,
            proto::ContainerUpdateTypeProto::DemoteExecutionType => Self::Demote,
        }
    }
}

impl From<UpdateKind> for proto::ContainerUpdateTypeProto {
    fn from(kind: UpdateKind) -> Self {
        match kind {
            UpdateKind::Increase => Self::IncreaseResource,
            UpdateKind::Decrease => Self::DecreaseResource,
            UpdateKind::Promote => Self::PromoteExecutionType,
            UpdateKind::Demote => Self::DemoteExecutionType,
        }
    }
}

/// What the scheduler wants back (`PreemptionMessage`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preemption {
    /// These will be killed (`strictContract`).
    pub strict: Vec<ContainerId>,
    /// These would be killed (`contract`) unless `resources` is given back in other ways.
    pub negotiable: Vec<ContainerId>,
    /// What is to be given back, with how many containers of it.
    pub resources: Vec<(Resources, u32)>,
}
