//! What the ResourceManager tells about queues, and how many nodes there are.

use crate::proto;

/// How many nodes are in which state (`YarnClusterMetrics`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterMetrics {
    /// All that are known.
    pub nodes: i32,
    /// Taking containers.
    pub active: i32,
    /// Not heard of.
    pub lost: i32,
    /// Reporting a fault.
    pub unhealthy: i32,
    /// Being taken out of service.
    pub decommissioning: i32,
    /// Taken out of service.
    pub decommissioned: i32,
    /// Came back as another process.
    pub rebooted: i32,
    /// Ended in an orderly way.
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

/// Whether a queue takes applications (`QueueState`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueueState {
    /// It takes none.
    Stopped,
    /// It takes them.
    Running,
    /// It takes none and waits for those that it has.
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

/// A queue (`QueueInfo`).
#[derive(Clone, Debug, PartialEq)]
pub struct QueueInfo {
    /// Its name.
    pub name: String,
    /// Its guaranteed share of the parent, 0 … 1.
    pub capacity: f32,
    /// The most it may use of the parent, 0 … 1.
    pub maximum_capacity: f32,
    /// How much of its share is in use; above 1 it uses others'.
    pub current_capacity: f32,
    /// Whether it takes applications.
    pub state: QueueState,
    /// Applications that run there.
    pub applications_running: i64,
    /// Applications that wait there.
    pub applications_pending: i64,
    /// MiB that are free, in use, and waited for.
    pub memory_mib: [i64; 3],
    /// The queues below it.
    pub children: Vec<QueueInfo>,
}

/// Queues nest; deeper than this no cluster goes, and a hostile answer shall not exhaust the stack.
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
            memory_mib: [
                statistics.available_memory_mb(),
                statistics.allocated_memory_mb(),
                statistics.pending_memory_mb(),
            ],
            children: children.iter().map(|child| Self::with_depth(child, depth - 1)).collect(),
        }
    }
}

/// What this user may do with a queue (`QueueUserACLInfo`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueAcls {
    /// The queue.
    pub queue: String,
    /// Submit applications.
    pub submit: bool,
    /// Kill and move others' applications.
    pub administer: bool,
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
