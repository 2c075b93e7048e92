//! Events of a heartbeat.

use crate::container::{AskId, Container, ContainerStatus};
use crate::ids::{ContainerId, Missing};
use crate::node::NodeReport;
use crate::proto;
use crate::resource::Resources;

/// One event from the ResourceManager. The ask table reports each grant and each completion once.
///
/// Only [`Allocated`](AmEvent::Allocated), [`Completed`](AmEvent::Completed) and [`Recovered`](AmEvent::Recovered) change what
/// the held containers. The others serve metrics, logs and plans.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum AmEvent {
    /// The grant of a wanted container. It is held until it completes or is released.
    Allocated {
        /// The ask that it fills.
        ask: AskId,
        /// The grant.
        container: Container,
    },
    /// A held container has ended without a release. If the target of its ask is not met, the next heartbeat requests
    /// another one.
    Completed {
        /// Its ask, if any.
        ask: Option<AskId>,
        /// How it ended.
        status: ContainerStatus,
    },
    /// The release of a container took effect.
    Released(ContainerStatus),
    /// A running container of an earlier attempt of this application. It has no ask until the caller
    /// [`adopt`](super::ApplicationMaster::adopt)s it. Release it if it is not needed.
    Recovered(Container),
    /// A grant above the target. The next heartbeat releases it.
    Excess {
        /// The container.
        container: ContainerId,
        /// Why it is not needed.
        reason: Excess,
    },
    /// A repeated grant; it has no effect.
    DuplicateGrant(ContainerId),
    /// A repeated completion; it has no effect.
    DuplicateCompletion(ContainerStatus),
    /// The completion of an unknown container; it has no effect.
    UnknownCompletion(ContainerStatus),
    /// The resources or the execution type of a container changed (`updated_containers`). Pass it to
    /// [`NodeManagers::update`](crate::NodeManagers::update).
    Updated {
        /// The kind of the change.
        kind: UpdateKind,
        /// The container as it is now, with its new token.
        container: Container,
    },
    /// A change was refused (`update_errors`).
    UpdateFailed {
        /// The container, if the response names it.
        container: Option<ContainerId>,
        /// YARN's error code, such as `INCORRECT_CONTAINER_VERSION_ERROR`.
        reason: String,
    },
    /// The state of a node changed (`updated_nodes`): lost, unhealthy, decommissioning, running again.
    Node(NodeReport),
    /// The scheduler will preempt containers, after 15 s by default.
    Preemption(Preemption),
    /// The ResourceManager refused an ask. Its target is 0 until the caller sets it again.
    Refused {
        /// The ask.
        ask: AskId,
        /// The ResourceManager's message.
        message: String,
    },
    /// A tagged ask cannot be placed (`rejected_scheduling_requests`).
    Rejected(AskId),
    /// The ResourceManager had lost the attempt by a restart or failover. The attempt is registered again and resends all
    /// outstanding state. Containers keep running.
    Resynchronised,
    /// The token of this attempt was replaced; calls use the new one.
    TokenRolled,
    /// A message lacked a required field and was skipped.
    Malformed(Missing),
}

/// Why a grant is not needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Excess {
    /// The target is met, or was lowered while the ResourceManager made the grant.
    Filled,
    /// The ask does not exist.
    Unknown,
}

/// A change to a container (`ContainerUpdateType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
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

/// The containers that the scheduler preempts (`PreemptionMessage`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preemption {
    /// Containers that the scheduler will kill (`strictContract`).
    pub strict: Vec<ContainerId>,
    /// Containers that the scheduler will kill unless `resources` are released otherwise (`contract`).
    pub negotiable: Vec<ContainerId>,
    /// Resources to release, with the number of containers of each size.
    pub resources: Vec<(Resources, u32)>,
}
