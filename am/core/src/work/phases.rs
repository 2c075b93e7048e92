//! The job's phases: beginning one, sharing out its work, noticing its end, and what comes next.

use std::collections::{BTreeMap, BTreeSet};

use heddle_metrics::PhaseMetrics;
use heddle_protocol::control::{Command, Phase, Sharing};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{
    Epoch, Generation, Lane, Member, PhaseNo, Role, ShardId, Slot, Step, TaskId,
};
use heddle_protocol::lanes::{lane_tasks, task_order};
use heddle_protocol::spec::{Consistency, Every, JobSpec, PhaseKind, phase_count, phase_kind};
use heddle_protocol::view::{self};

use crate::checkpoint::cut::Reason;
use crate::config::Config;
use crate::core::{Core, JobStage};
use crate::work::lanes::Lanes;
use crate::work::queue::{Queue, QueueProgress};
use crate::work::step_rate::StepRate;

/// What follows once nothing holds the job up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// Begin this phase: the one before is over.
    Begin(PhaseNo),
    /// Share out the work of the phase that shards already serve.
    StartWork,
    /// As `StartWork`, after taking over: shards may stand a step apart, so that nothing can be cut until work goes on.
    Resume,
    /// The last phase is over.
    End,
}

/// Who does what in the phase.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// BSP.
    Lanes(Lanes),
    /// ASP and evaluation.
    Queue(Box<Queue>),
}

/// The phase that the job is in.
#[derive(Clone, Debug)]
pub(crate) struct PhaseState {
    pub no: PhaseNo,
    /// None beyond the last.
    pub kind: Option<PhaseKind>,
    pub sharing: Sharing,
    pub work: Work,
    /// BSP: all tasks in the order in which they are dealt to lanes.
    order: Vec<TaskId>,
    /// BSP: shards on which it has ended, with the job steps applied.
    pub ended: BTreeMap<ShardId, Step>,
    pub metrics: PhaseMetrics,
    /// Trainers that have taken a step since they were last told the epoch.
    pub stepping: BTreeSet<Member>,
    /// BSP: how far the work is and how fast it goes.
    pub step_rate: StepRate,
}

impl PhaseState {
    /// The phase with all its work to be done and nobody working on it.
    pub(crate) fn new(config: &Config, no: PhaseNo, generation: Generation) -> Self {
        let spec = &config.spec;
        let kind = phase_kind(spec, no);
        let sharing = sharing(spec, kind);
        let training = kind.is_some_and(PhaseKind::reads_training_data);
        let tasks = config.plan.tasks(training).len() as u32;
        let mut dealt = Vec::new();
        let work = match sharing {
            Sharing::Lanes { lanes } => {
                dealt = task_order(spec.training.seed, no, tasks, spec.data.shuffle);
                Work::Lanes(Lanes::new(lanes, generation))
            }
            Sharing::Queue | Sharing::ReadOnly => {
                let order = if training { order(spec, no, tasks) } else { Vec::new() };
                Work::Queue(Box::new(Queue::new(tasks, order, generation)))
            }
        };
        Self {
            no,
            kind,
            sharing,
            work,
            order: dealt,
            ended: BTreeMap::new(),
            metrics: PhaseMetrics::default(),
            stepping: BTreeSet::new(),
            step_rate: StepRate::default(),
        }
    }

    /// All its work is to be done again, but for what `queue_progress` names. As a new one of the same phase; of that, drawing
    /// the order of a million tasks would take most of the time of a rollback.
    pub(crate) fn begin_again(&mut self, generation: Generation, queue_progress: &QueueProgress) {
        match &mut self.work {
            // Losses and counts of records are facts about the data and about values that come again.
            Work::Lanes(lanes) => *lanes = Lanes::new(lanes.count(), generation),
            Work::Queue(queue) => {
                queue.begin_again(generation, queue_progress);
                self.metrics = PhaseMetrics::default();
            }
        }
        self.ended.clear();
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

    /// BSP: the furthest step that a container reported.
    pub(crate) fn frontier(&self) -> Step {
        self.step_rate.frontier()
    }
}

fn sharing(spec: &JobSpec, kind: Option<PhaseKind>) -> Sharing {
    match (kind, spec.training.consistency) {
        (None | Some(PhaseKind::Evaluate { .. }), _) => Sharing::ReadOnly,
        (Some(PhaseKind::Measure(_) | PhaseKind::Train { .. }), Consistency::Bsp) => {
            Sharing::Lanes { lanes: spec.training.lanes }
        }
        (Some(PhaseKind::Measure(_) | PhaseKind::Train { .. }), Consistency::Asp) => Sharing::Queue,
    }
}

/// ASP: the order in which tasks of a phase are handed out. By lot from (seed, phase) if the job shuffles:
/// a walk over the tasks in strides that are coprime to their number is enough to part neighbours.
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

/// A phase in words.
pub(crate) fn phase_text(spec: &JobSpec, no: PhaseNo) -> String {
    let passes = spec.data.passes;
    match phase_kind(spec, no) {
        Some(PhaseKind::Measure(_)) => format!("measuring, {} of {}", no.0 + 1, measures(spec)),
        Some(PhaseKind::Train { pass }) => format!("pass {} of {passes}", pass + 1),
        Some(PhaseKind::Evaluate { pass }) => {
            format!("evaluation after pass {} of {passes}", pass + 1)
        }
        None => "all passes done".to_owned(),
    }
}

fn measures(spec: &JobSpec) -> u32 {
    let measure = |no: &u32| matches!(phase_kind(spec, PhaseNo(*no)), Some(PhaseKind::Measure(_)));
    (0..phase_count(spec)).take_while(measure).count() as u32
}

impl Core {
    pub(crate) fn settle_between(&mut self, then: NextStep) -> bool {
        // The end has its own rule: an open cut is replaced rather than waited for.
        if !matches!(then, NextStep::Resume | NextStep::End) && self.cuts.holds_up(self.now.mono) {
            return false;
        }
        match then {
            NextStep::Begin(no) => {
                let mut step_rate = self.phase.step_rate;
                step_rate.starts(Step(0), self.now.mono);
                self.phase = PhaseState::new(&self.config, no, self.generation);
                self.phase.step_rate = step_rate;
                let (epoch, phase) = (self.epoch, self.phase.wire());
                for slot in self.registered_slots(Role::Pserver) {
                    self.send(slot, Command::Begin { epoch, phase });
                }
                self.stage = JobStage::Beginning { begun: BTreeSet::new() };
                let text = phase_text(&self.config.spec, no);
                self.notice(view::Event::PhaseBegun { phase: no, text });
                true
            }
            NextStep::StartWork | NextStep::Resume => {
                let needed = if self.started { 1 } else { self.trainers_to_start() };
                // Asked with each registration at the start: the number tells first.
                let needed = needed as usize;
                if self.slots.held(Role::Trainer) < needed || self.workers().len() < needed {
                    self.message = format!("waiting for {needed} trainers");
                    return false;
                }
                self.start_work();
                true
            }
            NextStep::End => self.settle_end(),
        }
    }

    /// A pserver serves the phase.
    pub(crate) fn begun(&mut self, slot: Slot, epoch: Epoch, phase: PhaseNo) {
        if epoch == self.epoch
            && phase == self.phase.no
            && let JobStage::Beginning { begun } = &mut self.stage
        {
            begun.insert(slot);
        }
    }

    pub(crate) fn settle_beginning(&mut self) -> bool {
        let JobStage::Beginning { begun } = &self.stage else {
            return false;
        };
        if !self.map.is_covered_by(begun) {
            return false;
        }
        self.stage = JobStage::Idle(NextStep::StartWork);
        true
    }

    /// BSP: a container is at this step of the phase.
    pub(crate) fn saw_step(&mut self, step: Step) {
        let heartbeat_ms = self.config.limits.heartbeat_ms;
        self.phase.step_rate.saw(step, self.now.mono, heartbeat_ms);
    }

    /// BSP: all lanes have ended on a shard.
    pub(crate) fn phase_ended(
        &mut self,
        slot: Slot,
        epoch: Epoch,
        phase: PhaseNo,
        shard: ShardId,
        step: Step,
    ) {
        if epoch == self.epoch && phase == self.phase.no && self.map.holds(slot, shard) {
            self.saw_step(step);
            self.phase.ended.insert(shard, step);
        }
    }

    pub(crate) fn settle_working(&mut self) -> bool {
        let over = match &self.phase.work {
            Work::Lanes(_) => self.phase.ended.len() == self.map.len(),
            Work::Queue(queue) => queue.is_done(),
        };
        if over {
            self.phase_over();
        }
        over
    }

    fn phase_over(&mut self) {
        if let Work::Lanes(_) = &self.phase.work {
            let steps: BTreeSet<Step> = self.phase.ended.values().copied().collect();
            if steps.len() > 1 {
                // Shards that applied different numbers of steps hold no common state; going on would hide it.
                return self.fail(
                    ExitCode::Internal,
                    format!("shards ended phase {} at different steps: {steps:?}", self.phase.no),
                );
            }
            let steps = steps.first().copied().unwrap_or_default();
            self.cuts.steps_before = self.cuts.steps_before.saturating_add(steps.0);
        }
        self.progress += 1;
        self.recoveries_phase_over();
        let no = self.phase.no;
        self.cuts.phase_over(self.epoch, no, self.phase.ended.values().next().copied());
        if let Some(PhaseKind::Evaluate { pass }) = self.phase.kind {
            self.evaluated(pass);
        }
        let spec = &self.config.spec;
        let next = no.next();
        let next_kind = phase_kind(spec, next);
        let over = self.is_over_before(next);
        match (self.phase.kind, spec.checkpoint.every) {
            (Some(PhaseKind::Measure(_)), _)
                if matches!(next_kind, Some(PhaseKind::Train { .. })) =>
            {
                self.cuts.want(Reason::First);
            }
            // After the last pass at most an evaluation follows, and then the final one.
            // A phase may be over before a heartbeat tells that the step is near.
            (Some(PhaseKind::Train { .. }), Every::Steps(_))
                if !over && self.is_bsp() && self.cuts.steps_before >= self.cuts.next_steps =>
            {
                self.cuts.want(Reason::Due);
            }
            (Some(PhaseKind::Train { pass }), Every::Passes(n))
                if !over && pass + 1 < spec.data.passes && (pass + 1).is_multiple_of(n) =>
            {
                self.cuts.want(Reason::Due);
            }
            _ => {}
        }
        if over && next_kind.is_some() {
            self.tell_early_stop();
        }
        self.stage = JobStage::Idle(if over { NextStep::End } else { NextStep::Begin(next) });
    }
}
