//! The status that the leader writes each round, for `heddle controller status`.

use heddle_controller_core::{ContainerCounts, ElasticJob, ScalingPlan};
use serde::{Deserialize, Serialize};

use crate::lease::LeaderLease;

/// State of the controller after a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ControllerStatus {
    /// The leader.
    pub leader: LeaderLease,
    /// When the round was, ms since 1970.
    pub at_ms: u64,
    /// Nodes that it counts.
    pub nodes: usize,
    /// The jobs that take part, sorted by id.
    pub jobs: Vec<JobStatus>,
    /// What keeps it from planning, and grants that do not count.
    pub problems: Vec<String>,
}

/// A job that takes part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Its application.
    pub job: String,
    /// Its user.
    pub user: String,
    /// Its queue.
    pub queue: String,
    /// Smallest size.
    pub min: ContainerCounts,
    /// The size that it is ordered.
    pub wanted: ContainerCounts,
    /// Containers that it has.
    pub present: ContainerCounts,
    /// Largest size that it can use.
    pub max: ContainerCounts,
    /// The part of its range that it is ordered, 0 to 1.
    pub score: f64,
    /// The last change and its reason; empty before the first one.
    #[serde(default)]
    pub last_change: String,
    /// What it waits for; empty if it has all that it can use.
    #[serde(default)]
    pub waits_for: String,
}

impl JobStatus {
    /// The status of a job. `user`: of its application; `last_change`: in words.
    #[must_use]
    pub fn new(job: &ElasticJob, user: &str, plan: &ScalingPlan, last_change: &str) -> Self {
        // They are sorted, and there may be as many as jobs.
        let waits = plan.waiting.binary_search_by(|waiting| waiting.job.cmp(&job.id));
        Self {
            job: job.id.clone(),
            user: user.to_owned(),
            queue: job.queue.clone(),
            min: job.min(),
            wanted: job.wanted,
            present: job.present(),
            max: job.top(),
            score: f64::from(job.score(job.wanted)).min(1.0),
            last_change: last_change.to_owned(),
            waits_for: waits
                .map_or_else(|_| String::new(), |at| plan.waiting[at].reason.to_string()),
        }
    }
}
