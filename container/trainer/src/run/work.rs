//! State of the training loop for one epoch and phase. The next epoch or phase replaces it.

use std::collections::{BTreeMap, VecDeque};

use heddle_client::machine::{Era, PullId, Unit};
use heddle_protocol::control::{
    LaneGrant, ShardPlace, Sharing, TaskGrant, TaskHandOut, TaskPosition, TrainerState,
};
use heddle_protocol::ids::{CutId, HandOut, Lane, Step, TaskAttempt, TaskId};
use heddle_protocol::job_spec::{JobPhase, JobSpec};
use heddle_protocol::metrics::TaskMetrics;

use super::pipeline::Pipeline;
use crate::feed::FeedSettings;

/// State of the present epoch and phase.
pub(super) struct TrainerWork {
    pub(super) era: Era,
    pub(super) sharing: Sharing,
    pub(super) kind: JobPhase,
    pub(super) settings: FeedSettings,
    pub(super) ready: Readiness,
    /// All tasks in the order in which lanes take them.
    pub(super) order: Vec<TaskId>,
    pub(super) known_steps: BTreeMap<TaskId, u64>,
    /// Lanes of this trainer.
    pub(super) lanes: BTreeMap<Lane, RunningLane>,
    /// Assigned tasks that have not begun, in their order.
    pub(super) waiting: VecDeque<TaskGrant>,
    pub(super) running: BTreeMap<TaskId, RunningTask>,
    /// The first step in the epoch, or since a shard moved, is done and reported.
    pub(super) stepped: bool,
    /// Where the shards are.
    pub(super) places: Vec<ShardPlace>,
    /// Lanes that are read from these steps as soon as the columns' scales are known.
    pub(super) unread: BTreeMap<Lane, Step>,
}

/// Whether steps may be prepared.
pub(super) enum Readiness {
    /// The pull of the phase's constants is pending.
    Constants(PullId),
    Ready,
    /// The algorithm rejected them; the job ends.
    Failed,
}

/// A lane of this trainer.
pub(super) struct RunningLane {
    pub(super) hand_out: HandOut,
    /// `None` until the step of the lane is known.
    pub(super) pipeline: Option<Pipeline>,
}

/// A task that is being read and computed.
pub(super) struct RunningTask {
    pub(super) grant: TaskGrant,
    pub(super) pipeline: Pipeline,
    /// Metrics of the task, once it is read and computed to its end.
    pub(super) ended: Option<Box<TaskMetrics>>,
}

impl TrainerWork {
    /// Work of a phase, before any lane or task was handed out.
    pub(super) fn new(
        era: Era,
        sharing: Sharing,
        kind: JobPhase,
        settings: FeedSettings,
        ready: Readiness,
        order: Vec<TaskId>,
    ) -> Self {
        Self {
            era,
            sharing,
            kind,
            settings,
            ready,
            order,
            known_steps: BTreeMap::new(),
            lanes: BTreeMap::new(),
            waiting: VecDeque::new(),
            running: BTreeMap::new(),
            stepped: false,
            places: Vec::new(),
            unread: BTreeMap::new(),
        }
    }

    /// Whether its data can be read: columns that are scaled wait for their scales.
    pub(super) fn can_read(&self, spec: &JobSpec) -> bool {
        let is_scaled = self.kind.stage.is_none() && spec.measured_columns() > 0;
        !is_scaled || matches!(self.ready, Readiness::Ready)
    }

    /// A map came again; where a shard has moved, the next step is reported.
    pub(super) fn set_places(&mut self, places: Vec<ShardPlace>) {
        self.stepped &= self.places == places;
        self.places = places;
    }

    /// Adds a lane, unless this or a later hand-out of it is here. Returns whether it was added.
    pub(super) fn add_lane(&mut self, grant: LaneGrant) -> bool {
        let LaneGrant { lane, hand_out } = grant;
        let known = self.lanes.get(&lane).map(|run| run.hand_out);
        let is_new = known.is_none_or(|known| known < hand_out);
        if is_new {
            self.lanes.insert(lane, RunningLane { hand_out, pipeline: None });
        }
        is_new
    }

    /// Removes a lane if it still has this hand-out. Returns whether it had.
    pub(super) fn remove_lane(&mut self, grant: LaneGrant) -> bool {
        let held = self.lanes.get(&grant.lane).is_some_and(|run| run.hand_out == grant.hand_out);
        if held {
            self.lanes.remove(&grant.lane);
        }
        held
    }

    /// Removes the lanes that `grants` does not name, and returns them.
    pub(super) fn remove_lanes_except(&mut self, grants: &[LaneGrant]) -> Vec<Lane> {
        let kept = |lane: &Lane| grants.iter().any(|grant| grant.lane == *lane);
        let removed: Vec<Lane> = self.lanes.keys().copied().filter(|lane| !kept(lane)).collect();
        self.lanes.retain(|lane, _| kept(lane));
        removed
    }

    /// Whether this attempt of a task is held, waiting or running.
    pub(super) fn has_attempt(&self, grant: TaskGrant) -> bool {
        let same = |held: &TaskGrant| (held.task, held.attempt) == (grant.task, grant.attempt);
        self.waiting.iter().any(same)
            || self.running.get(&grant.task).is_some_and(|run| same(&run.grant))
    }

    /// Removes one hand-out of a task. Returns whether it was held.
    pub(super) fn drop_hand_out(&mut self, hand_out: TaskHandOut) -> bool {
        let TaskHandOut { task, attempt } = hand_out;
        let held = self.has_attempt(TaskGrant { task, attempt, start: Step(0) });
        if held {
            self.drop_attempts(task);
        }
        held
    }

    /// Removes all attempts of a task.
    pub(super) fn drop_attempts(&mut self, task: TaskId) {
        self.waiting.retain(|held| held.task != task);
        self.running.remove(&task);
    }

    /// Takes the next assigned task, unless `most` tasks are being read and computed.
    pub(super) fn next_task(&mut self, most: usize) -> Option<TaskGrant> {
        let active = self.running.values().filter(|run| run.ended.is_none()).count();
        if active < most { self.waiting.pop_front() } else { None }
    }

    /// The lowest step that a lane has not completed; 0 without lanes.
    pub(super) fn lowest_step(&self) -> Step {
        let pipelines = self.lanes.values().filter_map(|run| run.pipeline.as_ref());
        pipelines.map(|pipeline| pipeline.reached).min().unwrap_or_default()
    }

    /// All pipelines.
    pub(super) fn pipelines(&mut self) -> impl Iterator<Item = &mut Pipeline> {
        let tasks = self.running.values_mut().map(|run| &mut run.pipeline);
        let lanes = self.lanes.values_mut();
        lanes.filter_map(|run| run.pipeline.as_mut()).chain(tasks)
    }

    /// The pipeline of one lane or task, if there is one.
    pub(super) fn pipeline(&mut self, unit: Unit) -> Option<&mut Pipeline> {
        match unit {
            Unit::Lane(lane) => self.lanes.get_mut(&lane)?.pipeline.as_mut(),
            Unit::Task(task) => self.running.get_mut(&task).map(|run| &mut run.pipeline),
        }
    }

    /// Which hand-out of its task this is; 0 for a lane.
    pub(super) fn attempt(&self, unit: Unit) -> TaskAttempt {
        match unit {
            Unit::Lane(_) => TaskAttempt(0),
            Unit::Task(task) => {
                self.running.get(&task).map_or(TaskAttempt(0), |run| run.grant.attempt)
            }
        }
    }

    /// Assigned tasks, with the first step that not every shard has acknowledged.
    pub(super) fn positions(&self) -> Vec<TaskPosition> {
        let position = |grant: &TaskGrant, step| TaskPosition {
            task: grant.task,
            attempt: grant.attempt,
            step,
        };
        let running = self.running.values().map(|run| position(&run.grant, run.pipeline.reached));
        running.chain(self.waiting.iter().map(|grant| position(grant, grant.start))).collect()
    }

    /// Lanes of this trainer, with their hand-outs.
    fn lane_grants(&self) -> Vec<LaneGrant> {
        let grant =
            |(&lane, run): (&Lane, &RunningLane)| LaneGrant { lane, hand_out: run.hand_out };
        self.lanes.iter().map(grant).collect()
    }

    /// The state that a registration reports.
    pub(super) fn busy(&self, cut: CutId) -> TrainerState {
        TrainerState {
            epoch: self.era.epoch,
            phase: self.era.phase,
            cut,
            tasks: self.positions(),
            lanes: self.lane_grants(),
        }
    }
}
