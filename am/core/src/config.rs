//! Configuration: the job, its input and its limits.

use std::sync::{Arc, OnceLock};

use heddle_protocol::ids::RunId;
use heddle_protocol::job_spec::{JobSpec, LivenessSpec, LivenessTimes, SpecDigest};
use heddle_protocol::manifest::InputPlan;
use heddle_protocol::plan_file::PlanFile;

/// Everything the core is built from. Shared, since a simulation clones cores by the thousand.
#[derive(Clone, Debug)]
pub struct Config {
    /// The run.
    pub run: RunId,
    /// The job.
    pub spec: Arc<JobSpec>,
    /// The same for manifests.
    pub recorded: RecordedSpec,
    /// Files and tasks, training and test.
    pub plan: Arc<InputPlan>,
    /// The file that containers read the plan from.
    pub plan_file: PlanFile,
    /// Address of this ApplicationMaster for users, for the first notice.
    pub address: String,
    /// When the run started, milliseconds since 1970.
    pub started_ms: u64,
    /// Timeouts, intervals and counts.
    pub limits: Limits,
    /// Nothing is committed while the ResourceManager has not answered for this long. `None` without a ResourceManager
    /// (local runs).
    pub cluster_lease_ms: Option<u64>,
    /// Where the input lies; empty where all of it is equally far.
    pub locality: Arc<Locality>,
    /// Directory for the exported model, as a URL; none: no model is exported.
    pub output: Option<String>,
}

/// Digest and JSON form of the spec, made when the first manifest is written: they do not change while the job runs.
#[derive(Clone, Debug, Default)]
pub struct RecordedSpec(OnceLock<(SpecDigest, serde_json::Value)>);

impl Config {
    /// The spec as manifests have it.
    pub(crate) fn recorded_spec(&self) -> &(SpecDigest, serde_json::Value) {
        let spec = &*self.spec;
        let made = || (SpecDigest::of(spec), serde_json::to_value(spec).unwrap_or_default());
        self.recorded.0.get_or_init(made)
    }
}

/// Where the input lies: by task, the hosts that hold it. Hosts are numbered, since there are few of them and
/// up to a million tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Locality {
    /// Hosts, each once.
    pub hosts: Vec<InputHost>,
    /// By training task: indices into `hosts`, the host with most of its bytes first. Shorter than the plan: nothing is
    /// known of the rest.
    pub train: Vec<Vec<u32>>,
    /// By test task.
    pub test: Vec<Vec<u32>>,
}

/// A host that stores input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputHost {
    /// Its name, written as the cluster writes those of its nodes.
    pub name: String,
    /// Its place in the network topology, such as `/rack-1`. Empty where it is unknown.
    pub rack: String,
}

/// Timeouts, intervals and counts. The defaults are those of the documentation; tests and `[yarn]` change some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Interval of the containers' heartbeats. Default 1 s.
    pub heartbeat_ms: u64,
    /// Silence after which a container is suspected, reported and probed. Default 3 s.
    pub suspect_ms: u64,
    /// Silence after which it is given up. Default 10 s.
    pub dead_ms: u64,
    /// Time without a step after which a trainer that computes is replaced. Default 10 min.
    pub stuck_ms: u64,
    /// How long containers live on without an ApplicationMaster. Default 120 s.
    pub orphan_ms: u64,
    /// From launch to registration. Default 5 min.
    pub registration_ms: u64,
    /// Until all pservers and `trainers.min` run at the start; 0: without a limit. Default 30 min.
    pub allocation_ms: u64,
    /// How long a rollback waits for a lost pserver's replacement before the survivors take its shards. Default 30 s.
    pub replacement_ms: u64,
    /// How long a new attempt waits for containers that an earlier one left. Default 2 min.
    pub takeover_ms: u64,
    /// From an orderly stop to the kill. Default 30 s.
    pub grace_ms: u64,
    /// Length of the windows in which failures are counted. Default 1 h.
    pub failure_window_ms: u64,
    /// Failures of one slot within the window that end the job. Default 4.
    pub slot_failures: u32,
    /// Failures of all slots within the window that end the job: at least this, and at least twice the slots. Default 10.
    pub job_failures: u32,
    /// How much work trainers hold ahead, so that they work on while no ApplicationMaster answers. Default 30 s.
    pub lease_ms: u64,
    /// Least computing time after which a task may be called late. Default 10 s.
    pub overdue_ms: u64,
    /// Retries of a store call before the attempt fails, and of a pserver's load. Default 5.
    pub store_tries: u32,
    /// Wait between two tries. Default 1 s, doubled each time.
    pub retry_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        let liveness = LivenessSpec::default().times(0);
        Self {
            heartbeat_ms: liveness.heartbeat_ms,
            suspect_ms: liveness.suspect_ms,
            dead_ms: liveness.dead_ms,
            stuck_ms: liveness.stuck_ms,
            orphan_ms: 120_000,
            registration_ms: 300_000,
            allocation_ms: 1_800_000,
            replacement_ms: 30_000,
            takeover_ms: 120_000,
            grace_ms: 30_000,
            failure_window_ms: 3_600_000,
            slot_failures: 4,
            job_failures: 10,
            lease_ms: 30_000,
            overdue_ms: 10_000,
            store_tries: 5,
            retry_ms: 1_000,
        }
    }
}

impl Limits {
    /// The defaults with the times of the failure detector that hold for this job, and this orphan time, which is at
    /// least twice `dead_ms`: a container that is cut off must not end before its ApplicationMaster has given it up.
    #[must_use]
    pub fn of_job(spec: &JobSpec, orphan_ms: u64) -> Self {
        let liveness = LivenessTimes::of(spec);
        Self {
            heartbeat_ms: liveness.heartbeat_ms,
            suspect_ms: liveness.suspect_ms,
            dead_ms: liveness.dead_ms,
            stuck_ms: liveness.stuck_ms,
            replacement_ms: spec.pservers.replacement.0,
            orphan_ms: orphan_ms.max(2 * liveness.dead_ms),
            ..Self::default()
        }
    }
}
