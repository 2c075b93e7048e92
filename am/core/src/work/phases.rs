//! One phase of the job: its kind, how its work is shared out, and how much of it is done.

use std::collections::{BTreeMap, BTreeSet};

use heddle_metrics::PhaseMetrics;
use heddle_protocol::control::{Phase, Sharing};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{Generation, Lane, Member, PhaseNo, ShardId, Step, TaskId};
use heddle_protocol::job_spec::{Consistency, JobPhase, JobSpec, job_phase};
use heddle_protocol::lanes::{lane_tasks, task_order};
use heddle_protocol::metrics::RecordSums;

use super::lanes::Lanes;
use super::queue::{Queue, QueueProgress};
use super::step_rate::StepRate;
use crate::config::Config;
use crate::failure::JobFailure;
use crate::time::MonotonicMs;

/// Which trainer does which part of the phase.
#[derive(Clone, Debug)]
pub(crate) enum PhaseWork {
    /// BSP.
    Lanes(Lanes),
    /// ASP, SSP and evaluation.
    Queue(Box<Queue>),
}

/// The phase that the job is in.
#[derive(Clone, Debug)]
pub(crate) struct PhaseState {
    pub no: PhaseNo,
    /// None beyond the last.
    pub kind: Option<JobPhase>,
    pub sharing: Sharing,
    pub work: PhaseWork,
    /// BSP: all tasks in the order in which they are dealt to lanes.
    order: Vec<TaskId>,
    /// BSP: shards on which it has ended, with the job steps applied.
    pub ended: BTreeMap<ShardId, Step>,
    /// BSP: what its records add up to, once it has ended on the shard that counts them.
    pub sums: Option<RecordSums>,
    pub metrics: PhaseMetrics,
    /// When the phase ends without the figures that are missing; set once nothing else is.
    pub figures_until: Option<MonotonicMs>,
    /// Trainers that have taken a step since they last got the epoch.
    pub stepping: BTreeSet<Member>,
    /// BSP: how far the work is and how fast it goes.
    pub step_rate: StepRate,
}

impl PhaseState {
    /// The phase with all its work to be done and no trainer working on it.
    pub(crate) fn new(config: &Config, no: PhaseNo, generation: Generation) -> Self {
        let spec = &config.spec;
        let kind = job_phase(spec, no);
        let sharing = sharing(spec, no);
        let training = kind.is_some_and(|phase| phase.reads_training_data);
        let tasks = config.plan.tasks(training).len() as u32;
        let mut dealt = Vec::new();
        let work = match sharing {
            Sharing::Lanes { lanes } => {
                dealt = task_order(spec, no, tasks);
                PhaseWork::Lanes(Lanes::new(lanes, generation))
            }
            Sharing::Queue | Sharing::ClockedQueue { .. } | Sharing::ReadOnly => {
                let order = if training { order(spec, no, tasks) } else { Vec::new() };
                PhaseWork::Queue(Box::new(Queue::new(tasks, order, generation)))
            }
        };
        Self {
            no,
            kind,
            sharing,
            work,
            order: dealt,
            ended: BTreeMap::new(),
            sums: None,
            metrics: PhaseMetrics::default(),
            figures_until: None,
            stepping: BTreeSet::new(),
            step_rate: StepRate::default(),
        }
    }

    /// Whether it reads the training data.
    pub(crate) fn reads_training_data(&self) -> bool {
        self.kind.is_some_and(|phase| phase.reads_training_data)
    }

    /// All its work is to be done again, but for what `queue_progress` names. As a new one of the same phase; of that, drawing
    /// the order of a million tasks would take most of the time of a rollback.
    pub(crate) fn begin_again(&mut self, generation: Generation, queue_progress: &QueueProgress) {
        match &mut self.work {
            // Losses and counts of records are facts about the data and about values that come again.
            PhaseWork::Lanes(lanes) => *lanes = Lanes::new(lanes.count(), generation),
            PhaseWork::Queue(queue) => {
                queue.begin_again(generation, queue_progress);
                self.metrics = PhaseMetrics::default();
            }
        }
        self.ended.clear();
        self.sums = None;
        self.figures_until = None;
        self.stepping.clear();
    }

    /// As shards and trainers need it.
    pub(crate) fn wire(&self) -> Phase {
        Phase { no: self.no, sharing: self.sharing }
    }

    /// BSP: the tasks of a lane, in its order.
    pub(crate) fn tasks_of(&self, lane: Lane, spec: &JobSpec) -> impl Iterator<Item = TaskId> {
        lane_tasks(&self.order, lane, spec.training.lanes)
    }

    /// BSP: the step at which all shards ended the phase.
    ///
    /// # Errors
    /// Shards that applied different numbers of steps hold no common state; going on would hide it.
    pub(crate) fn ended_step(&self) -> Result<Option<Step>, JobFailure> {
        let steps: BTreeSet<Step> = self.ended.values().copied().collect();
        if steps.len() > 1 {
            let steps: Vec<String> = steps.iter().map(ToString::to_string).collect();
            let steps = steps.join(", ");
            let message = format!("shards ended phase {} at different steps: {steps}", self.no);
            return Err(JobFailure::new(ExitCode::Internal, message));
        }
        Ok(steps.first().copied())
    }
}

/// How the work of a phase is shared out.
pub(crate) fn sharing(spec: &JobSpec, no: PhaseNo) -> Sharing {
    if !job_phase(spec, no).is_some_and(|phase| phase.pushes()) {
        return Sharing::ReadOnly;
    }
    match spec.training.consistency {
        Consistency::Bsp => Sharing::Lanes { lanes: spec.training.lanes },
        Consistency::Ssp => {
            Sharing::ClockedQueue { staleness: spec.training.staleness.unwrap_or(0) }
        }
        Consistency::Asp => Sharing::Queue,
    }
}

/// ASP: the order in which tasks of a phase are dispatched. If the job shuffles, a permutation drawn from (seed, phase).
fn order(spec: &JobSpec, no: PhaseNo, tasks: u32) -> Vec<u32> {
    if !spec.data.shuffle || tasks < 3 {
        return (0..tasks).collect();
    }
    // SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), and Fisher-Yates.
    let mut state = spec.training.seed ^ (u64::from(no.0) << 32);
    let mut draw = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut order: Vec<u32> = (0..tasks).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, (draw() % (last as u64 + 1)) as usize);
    }
    order
}
