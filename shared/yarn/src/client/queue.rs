//! Reports of queues and of the number of nodes.

use crate::proto;

/// Number of nodes in each state (`YarnClusterMetrics`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterMetrics {
    /// All nodes.
    pub nodes: i32,
    /// Active nodes, which accept containers.
    pub active: i32,
    /// Nodes without heartbeats for the expiry time.
    pub lost: i32,
    /// Nodes that report a fault.
    pub unhealthy: i32,
    /// Nodes that YARN is removing.
    pub decommissioning: i32,
    /// Removed nodes.
    pub decommissioned: i32,
    /// Nodes whose NodeManager restarted.
    pub rebooted: i32,
    /// Nodes whose NodeManager shut down.
    pub shutdown: i32,
}

impl From<&proto::YarnClusterMetricsProto> for ClusterMetrics {
    fn from(message: &proto::YarnClusterMetricsProto) -> Self {
        Self {
            nodes: message.num_node_managers(),
            active: message.num_active_nms(),
            lost: message.num_lost_nms(),
            unhealthy: message.num_unhealthy_nms(),
            decommissioning: message.num_decommissioning_nms(),
            decommissioned: message.num_decommissioned_nms(),
            rebooted: message.num_rebooted_nms(),
            shutdown: message.num_shutdown_nms(),
        }
    }
}

/// Whether a queue accepts applications (`QueueState`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueueState {
    /// It accepts none.
    Stopped,
    /// It accepts applications.
    Running,
    /// It accepts none and waits for the end of its applications.
    Draining,
}

impl From<proto::QueueStateProto> for QueueState {
    fn from(state: proto::QueueStateProto) -> Self {
        match state {
            proto::QueueStateProto::QStopped => Self::Stopped,
            proto::QueueStateProto::QRunning => Self::Running,
            proto::QueueStateProto::QDraining => Self::Draining,
        }
    }
}

/// How much of a resource a queue has (`QueueStatistics`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueAmount {
    /// Free.
    pub available: i64,
    /// In containers.
    pub allocated: i64,
    /// Asked for.
    pub pending: i64,
}

/// A queue (`QueueInfo`).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct QueueInfo {
    /// Its name.
    pub name: String,
    /// Guaranteed share of the parent, 0 … 1.
    pub capacity: f32,
    /// Largest share of the parent, 0 … 1.
    pub maximum_capacity: f32,
    /// Used part of its guaranteed share; above 1 it uses shares of other queues.
    pub current_capacity: f32,
    /// Whether it accepts applications.
    pub state: QueueState,
    /// Number of running applications.
    pub applications_running: i64,
    /// Number of waiting applications.
    pub applications_pending: i64,
    /// MiB.
    pub memory_mib: QueueAmount,
    /// Vcores.
    pub vcores: QueueAmount,
    /// Containers that are asked for.
    pub containers_pending: i64,
    /// Its child queues.
    pub children: Vec<QueueInfo>,
}

/// Deepest nesting of queues. No cluster has more, and a hostile response must not exhaust the stack.
const QUEUE_DEPTH_MAX: u32 = 32;

impl From<&proto::QueueInfoProto> for QueueInfo {
    fn from(message: &proto::QueueInfoProto) -> Self {
        Self::with_depth(message, QUEUE_DEPTH_MAX)
    }
}

impl QueueInfo {
    fn with_depth(message: &proto::QueueInfoProto, depth: u32) -> Self {
        let statistics = message.queue_statistics.unwrap_or_default();
        let children: &[proto::QueueInfoProto] =
            if depth == 0 { &[] } else { &message.child_queues };
        Self {
            name: message.queue_name().to_owned(),
            capacity: message.capacity(),
            maximum_capacity: message.maximum_capacity(),
            current_capacity: message.current_capacity(),
            state: message.state().into(),
            applications_running: statistics.num_apps_running(),
            applications_pending: statistics.num_apps_pending(),
            memory_mib: QueueAmount {
                available: statistics.available_memory_mb(),
                allocated: statistics.allocated_memory_mb(),
                pending: statistics.pending_memory_mb(),
            },
            vcores: QueueAmount {
                available: statistics.available_v_cores(),
                allocated: statistics.allocated_v_cores(),
                pending: statistics.pending_v_cores(),
            },
            containers_pending: statistics.pending_containers(),
            children: children.iter().map(|child| Self::with_depth(child, depth - 1)).collect(),
        }
    }
}

/// Permissions of this user on a queue (`QueueUserACLInfo`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueAcls {
    /// The queue.
    pub queue: String,
    /// Whether the user may submit applications.
    pub submit: bool,
    /// Whether the user may kill and move the applications of other users.
    pub administer: bool,
}

impl QueueAcls {
    /// Permissions on a queue, for tests of callers.
    pub fn new(queue: impl Into<String>, submit: bool, administer: bool) -> Self {
        Self { queue: queue.into(), submit, administer }
    }
}

impl From<&proto::QueueUserAclInfoProto> for QueueAcls {
    fn from(message: &proto::QueueUserAclInfoProto) -> Self {
        let has = |acl: proto::QueueAclProto| message.user_acls.contains(&acl.into());
        Self {
            queue: message.queue_name().to_owned(),
            submit: has(proto::QueueAclProto::QaclSubmitApplications),
            administer: has(proto::QueueAclProto::QaclAdministerQueue),
        }
    }
}
