//! The work of the job: phases, lanes, tasks, dispatch, evaluation, data locality.
//!
//! This component has the present phase, the trainer of each part of it, and the sums over the data. It reads the
//! [`Fleet`] to find trainers and to send them work, and never changes it. Whether work is dispatched at all is decided by
//! the stage: the dispatcher in `core` calls these handlers only then.

pub(crate) mod data_statistics;
pub(crate) mod dispatch;
pub(crate) mod evaluation;
pub(crate) mod keepers;
pub(crate) mod lane_speed;
pub(crate) mod lanes;
pub(crate) mod locality;
pub(crate) mod losers;
pub(crate) mod phases;
pub(crate) mod queue;
pub(crate) mod remaining;
pub(crate) mod step_rate;
pub(crate) mod task_errors;
pub(crate) mod training_loss;

use std::collections::BTreeMap;
use std::sync::Arc;

use heddle_protocol::control::{
    LaneGrant, Phase, ShardState, Sharing, TaskGrant, TaskHandOut, TaskPosition, TrainerState,
};
use heddle_protocol::ids::{Epoch, Member, PhaseNo, Role, ShardId, Step, TaskAttempt, TaskId};
use heddle_protocol::job_spec::JobPhase;
use heddle_protocol::manifest::Manifest;
use heddle_protocol::metrics::RecordSums;
use heddle_protocol::set_aside::SetAsideTask;
use heddle_protocol::view::{DataLocality, EvaluationView, StragglersView, TrainingPassView};

use crate::config::Config;
use crate::context::Context;
use crate::failure::JobFailure;
use crate::fleet::Fleet;
use data_statistics::DataStatistics;
use keepers::TaskKeepers;
use lane_speed::LaneSpeeds;
use locality::LocalityIndex;
use losers::Losers;
use phases::{PhaseState, PhaseWork};
use queue::QueueProgress;

/// A phase has ended on every shard, or every task of it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PhaseEnded {
    pub phase: PhaseNo,
    pub kind: Option<JobPhase>,
    /// BSP: job steps of the phase.
    pub steps: Option<Step>,
}

/// The work of the present phase, and what is known of the data.
#[derive(Clone, Debug)]
pub(crate) struct JobWork {
    phase: PhaseState,
    /// BSP: the division of lanes by the trainers' speeds.
    lane_speeds: LaneSpeeds,
    /// ASP, evaluation: trainers that are to stop work on tasks which others have finished.
    losers: Losers,
    /// Steps of training tasks as far as known. A fact about the data, which no rollback makes false.
    task_steps: BTreeMap<TaskId, u64>,
    evaluations: Vec<(PhaseNo, EvaluationView)>,
    passes: Vec<(PhaseNo, TrainingPassView)>,
    statistics: DataStatistics,
    locality: Arc<LocalityIndex>,
    /// Of the tasks that this attempt dispatched.
    data_locality: DataLocality,
    /// Where the records of tasks are kept, if the job keeps them.
    keepers: Option<TaskKeepers>,
    /// Tasks that a trainer should hold and did not name when it registered again.
    doubtful: BTreeMap<Member, Vec<TaskGrant>>,
    /// BSP: how often an algorithm did not return from a step of a task.
    stuck_tasks: BTreeMap<TaskId, u32>,
    /// Tasks that phases went on without, oldest first.
    set_aside: Vec<SetAsideTask>,
}

impl JobWork {
    pub(crate) fn new(config: &Config, locality: Arc<LocalityIndex>, ctx: &Context) -> Self {
        Self {
            phase: PhaseState::new(config, PhaseNo(0), ctx.generation()),
            lane_speeds: LaneSpeeds::default(),
            losers: Losers::default(),
            task_steps: BTreeMap::new(),
            evaluations: Vec::new(),
            passes: Vec::new(),
            statistics: DataStatistics::default(),
            locality,
            data_locality: DataLocality::default(),
            keepers: (config.spec.cache_bytes() > 0).then(TaskKeepers::default),
            doubtful: BTreeMap::new(),
            stuck_tasks: BTreeMap::new(),
            set_aside: Vec::new(),
        }
    }

    /// The job goes on from a checkpoint, or from its beginning.
    pub(crate) fn begin(
        &mut self,
        base: Option<&Manifest>,
        evaluations: Vec<(PhaseNo, EvaluationView)>,
        passes: Vec<(PhaseNo, TrainingPassView)>,
        set_aside: Vec<SetAsideTask>,
    ) {
        if let Some(base) = base {
            self.statistics.go_on(base.progress.bad_records);
            self.task_steps = base.task_steps.clone();
        }
        self.set_aside = set_aside;
        (self.evaluations, self.passes) = (evaluations, passes);
    }

    /// The present phase.
    pub(crate) fn phase(&self) -> PhaseNo {
        self.phase.no
    }

    /// Whether the present phase is a pass.
    pub(crate) fn is_training(&self) -> bool {
        self.phase.kind.is_some_and(|phase| phase.trains.is_some())
    }

    /// The present phase as shards and trainers need it.
    pub(crate) fn wire(&self) -> Phase {
        self.phase.wire()
    }

    /// How the work of the phase is shared out.
    pub(crate) fn sharing(&self) -> Sharing {
        self.phase.sharing
    }

    /// Whether lanes share the phase (BSP), not a queue of tasks.
    pub(crate) fn has_lanes(&self) -> bool {
        matches!(self.phase.work, PhaseWork::Lanes(_))
    }

    /// BSP: the furthest step that a container reported.
    pub(crate) fn frontier(&self) -> Step {
        self.phase.step_rate.frontier()
    }

    /// BSP: where the frontier probably is now.
    pub(crate) fn probable_frontier(&self, ctx: &Context) -> Step {
        self.phase.step_rate.guess(ctx.now(), ctx.limits().heartbeat_ms)
    }

    /// BSP: steps per second, as far as known.
    pub(crate) fn steps_per_second(&self) -> Option<f64> {
        self.phase.step_rate.rate()
    }

    /// Tasks of the phase that are done, and all; zeros for lanes.
    pub(crate) fn task_counts(&self) -> (u32, u32) {
        match &self.phase.work {
            PhaseWork::Lanes(_) => (0, 0),
            PhaseWork::Queue(queue) => queue.counts(),
        }
    }

    /// The positions of the tasks of the phase; none for lanes.
    pub(crate) fn positions(&self) -> Option<QueueProgress> {
        match &self.phase.work {
            PhaseWork::Lanes(_) => None,
            PhaseWork::Queue(queue) => Some(queue.positions()),
        }
    }

    /// Bad records of these tasks of the phase.
    pub(crate) fn bad_records_of(&self, tasks: &QueueProgress) -> u64 {
        self.phase.metrics.bad_records_of(&tasks.done)
    }

    /// Steps of training tasks as far as known.
    pub(crate) fn task_steps(&self) -> &BTreeMap<TaskId, u64> {
        &self.task_steps
    }

    /// Records that cannot be read, each counted once.
    pub(crate) fn bad_records(&self) -> u64 {
        self.statistics.bad_records()
    }

    /// Records of evaluation tasks, each task counted once in its phase.
    pub(crate) fn evaluated_rows(&self) -> u64 {
        self.statistics.evaluated_rows
    }

    /// How many tasks were dispatched to a host that stores their input; none while no task was.
    pub(crate) fn data_locality(&self) -> Option<DataLocality> {
        (self.data_locality.tasks() > 0).then_some(self.data_locality)
    }

    /// A phase begins.
    pub(crate) fn begin_phase(&mut self, phase: PhaseNo, ctx: &Context) {
        let mut step_rate = self.phase.step_rate;
        step_rate.starts(Step(0), ctx.now());
        self.phase = PhaseState::new(&ctx.config(), phase, ctx.generation());
        self.phase.step_rate = step_rate;
        self.lane_speeds.begin_phase();
        if let (Some(keepers), PhaseWork::Queue(queue)) = (&mut self.keepers, &self.phase.work) {
            keepers.begin_phase(self.phase.reads_training_data(), queue.order());
        }
    }

    /// Shards go back to a state of this phase and step: what was done after it is forgotten.
    pub(crate) fn roll_back(
        &mut self,
        phase: PhaseNo,
        step: Step,
        base: Option<&Manifest>,
        progress: &QueueProgress,
        ctx: &Context,
    ) {
        if phase == self.phase.no {
            self.phase.begin_again(ctx.generation(), progress);
        } else {
            let step_rate = self.phase.step_rate;
            self.phase = PhaseState::new(&ctx.config(), phase, ctx.generation());
            self.phase.step_rate = step_rate;
            if let PhaseWork::Queue(queue) = &mut self.phase.work {
                queue.restore(progress);
            }
        }
        self.lane_speeds.begin_phase();
        self.add_earlier(base, progress, ctx);
        self.phase.step_rate.starts(step, ctx.now());
        self.keep_results_before(phase);
        // With those of the phase that the base has.
        self.set_aside = base.map(|base| base.progress.set_aside.clone()).unwrap_or_default();
        self.add_results_of(base, ctx);
    }

    /// The job goes on in this phase, where an earlier attempt left it. `states`: of the shards that serve the phase.
    pub(crate) fn take_over(
        &mut self,
        phase: PhaseNo,
        states: &[&ShardState],
        progress: &QueueProgress,
        busy: &[(Member, &TrainerState)],
        ctx: &Context,
    ) {
        self.phase = PhaseState::new(&ctx.config(), phase, ctx.generation());
        let furthest = states.iter().map(|state| state.step).max().unwrap_or(Step(0));
        self.phase.step_rate.starts(furthest, ctx.now());
        match &mut self.phase.work {
            PhaseWork::Lanes(lanes) => {
                for (member, busy) in busy {
                    lanes.adopt(*member, &busy.lanes);
                }
                for state in states.iter().filter(|state| state.ended) {
                    self.phase.ended.insert(state.shard, state.step);
                }
            }
            PhaseWork::Queue(queue) => {
                queue.restore(progress);
                for (member, busy) in busy {
                    for position in &busy.tasks {
                        queue.adopt(*member, position, ctx.now());
                    }
                }
            }
        }
    }

    /// Whether a report is about the present phase of the present epoch.
    pub(crate) fn is_current(&self, epoch: Epoch, phase: PhaseNo, ctx: &Context) -> bool {
        epoch == ctx.epoch() && phase == self.phase.no
    }

    /// BSP: a container is at this step of the phase.
    pub(crate) fn saw_step(&mut self, step: Step, ctx: &Context) {
        self.phase.step_rate.saw(step, ctx.now(), ctx.limits().heartbeat_ms);
    }

    /// BSP: all lanes have ended on a shard. `sums`: from the one that counts records.
    pub(crate) fn shard_ended(
        &mut self,
        shard: ShardId,
        step: Step,
        sums: Option<RecordSums>,
        ctx: &Context,
    ) {
        self.saw_step(step, ctx);
        self.phase.ended.insert(shard, step);
        self.phase.sums = sums.or(self.phase.sums);
    }

    /// The end of the phase, once nothing of it is left. `shards`: of the job.
    pub(crate) fn phase_end(&self, shards: usize) -> Option<Result<PhaseEnded, JobFailure>> {
        let steps = match &self.phase.work {
            PhaseWork::Lanes(_) if self.phase.ended.len() == shards => self.phase.ended_step(),
            PhaseWork::Queue(queue) if queue.is_done() => Ok(None),
            PhaseWork::Lanes(_) | PhaseWork::Queue(_) => return None,
        };
        let ended = |steps| PhaseEnded { phase: self.phase.no, kind: self.phase.kind, steps };
        Some(steps.map(ended))
    }

    /// A heartbeat. `step`: where the container is, if the heartbeat is about the present phase. `record_ns`: a trainer's own
    /// computing time for a record.
    pub(crate) fn heartbeat(
        &mut self,
        member: Member,
        step: Option<Step>,
        record_ns: u64,
        ctx: &Context,
    ) {
        match &mut self.phase.work {
            PhaseWork::Lanes(_) => {
                if let Some(step) = step {
                    self.saw_step(step, ctx);
                    self.lane_speeds.measured(member, record_ns);
                }
            }
            PhaseWork::Queue(queue) if member.slot.role == Role::Trainer && step.is_some() => {
                queue.measured(member, record_ns, ctx.now());
            }
            PhaseWork::Queue(_) => {}
        }
    }

    /// A trainer reports the positions of its tasks.
    pub(crate) fn task_progress(&mut self, member: Member, tasks: &[TaskPosition]) -> bool {
        match &mut self.phase.work {
            PhaseWork::Queue(queue) => {
                queue.progress(member, tasks);
                true
            }
            PhaseWork::Lanes(_) => false,
        }
    }

    /// A trainer has finished a task; others that compute it are ordered to stop. Returns the trainers that held it;
    /// nothing for a stale report.
    pub(crate) fn task_finished(
        &mut self,
        member: Member,
        task: TaskId,
        attempt: TaskAttempt,
        fleet: &Fleet,
        ctx: &mut Context,
    ) -> Option<Vec<Member>> {
        let hand_outs = match &mut self.phase.work {
            PhaseWork::Queue(queue) => queue.finished(member, task, attempt)?,
            PhaseWork::Lanes(_) => return None,
        };
        if let Some(keepers) = &mut self.keepers {
            keepers.read(self.phase.reads_training_data(), task, member);
        }
        for (loser, attempt) in hand_outs.iter().filter(|(holder, _)| *holder != member) {
            self.withdraw(*loser, vec![TaskHandOut { task, attempt: *attempt }], fleet, ctx);
        }
        Some(hand_outs.into_iter().map(|(holder, _)| holder).collect())
    }

    /// A trainer has stopped work on these hand-outs.
    pub(crate) fn withdrawn(&mut self, trainer: Member, tasks: &[TaskHandOut], ctx: &Context) {
        self.losers.stopped(trainer, tasks, ctx.now());
    }

    /// Late tasks of which a trainer has stopped the computation; `None` before the first.
    pub(crate) fn stragglers(&self) -> Option<StragglersView> {
        self.losers.view()
    }

    /// Trainers that were ordered to stop and have not answered; each is returned once.
    pub(crate) fn overdue_losers(&mut self, ctx: &Context) -> Vec<Member> {
        self.losers.take_overdue(ctx.now(), ctx.limits().overdue_ms)
    }

    /// Whether a task is late and no idle trainer has taken it.
    pub(crate) fn has_waiting_overdue_task(&mut self, ctx: &Context) -> bool {
        match &mut self.phase.work {
            PhaseWork::Queue(queue) => queue.has_waiting_overdue_task(ctx.now(), ctx.limits()),
            PhaseWork::Lanes(_) => false,
        }
    }

    /// Whether a task of the phase was late; nothing for lanes.
    pub(crate) fn had_overdue_task(&self) -> Option<bool> {
        match &self.phase.work {
            PhaseWork::Queue(queue) => Some(queue.had_overdue_task()),
            PhaseWork::Lanes(_) => None,
        }
    }

    /// The number of steps of a training task is known.
    pub(crate) fn set_task_steps(&mut self, task: TaskId, steps: u64) {
        self.task_steps.insert(task, steps);
    }

    /// A trainer registers again and may lack tasks that it was sent: the order was lost with the connection, or it has
    /// finished them and its report is about to be repeated. Reports come before heartbeats, so the next heartbeat decides.
    /// Returns the hand-outs that it works on and that are over.
    pub(crate) fn registered_again(
        &mut self,
        member: Member,
        busy: Option<&TrainerState>,
        ctx: &Context,
    ) -> Vec<TaskHandOut> {
        let here = busy.filter(|busy| self.is_current(busy.epoch, busy.phase, ctx));
        let has = here.map_or(&[][..], |busy| &busy.tasks);
        let PhaseWork::Queue(queue) = &mut self.phase.work else {
            return Vec::new();
        };
        queue.progress(member, has);
        let hand_out = |position: &TaskPosition| TaskHandOut {
            task: position.task,
            attempt: position.attempt,
        };
        let over = has.iter().map(hand_out).filter(|hand_out| !queue.is_granted(member, *hand_out));
        let over = over.collect();
        let lacks = |grant: &TaskGrant| {
            !has.iter().any(|task| task.task == grant.task && task.attempt == grant.attempt)
        };
        let doubtful: Vec<TaskGrant> = queue.held_by(member).into_iter().filter(lacks).collect();
        if !doubtful.is_empty() {
            self.doubtful.insert(member, doubtful);
        }
        over
    }

    /// A trainer has a new connection: what was doubtful on the one before is decided by its registration.
    pub(crate) fn forget_doubtful(&mut self, member: Member) {
        self.doubtful.remove(&member);
        self.losers.forget(member);
    }

    /// Takes back the tasks that a trainer neither holds nor has finished; shards refuse what they have of them. Returns
    /// whether there were any.
    pub(crate) fn take_back_doubtful(&mut self, member: Member) -> bool {
        let Some(doubtful) = self.doubtful.remove(&member) else {
            return false;
        };
        if let PhaseWork::Queue(queue) = &mut self.phase.work {
            for grant in doubtful {
                queue.take_back(member, grant.task, grant.attempt);
            }
        }
        true
    }

    /// A trainer has left the job: its tasks can be dispatched again.
    pub(crate) fn release(&mut self, member: Member) {
        self.doubtful.remove(&member);
        self.losers.forget(member);
        self.phase.stepping.remove(&member);
        self.lane_speeds.release(member);
        if let PhaseWork::Queue(queue) = &mut self.phase.work {
            queue.release(member);
        }
    }

    /// BSP: shards refuse a trainer a lane. Returns whether it got the lane again, under a new hand-out.
    pub(crate) fn lane_fenced(&mut self, member: Member, lane: LaneGrant) -> bool {
        match &mut self.phase.work {
            PhaseWork::Lanes(lanes) => lanes.fenced(member, lane),
            PhaseWork::Queue(_) => false,
        }
    }

    /// A trainer has taken its first step in the epoch.
    pub(crate) fn steps_again(&mut self, member: Member) {
        self.phase.stepping.insert(member);
    }

    /// Whether every trainer with work has taken a step since it got it. One look at each lane or trainer.
    pub(crate) fn all_step(&self, fleet: &Fleet) -> bool {
        let steps = |member: &Member| self.phase.stepping.contains(member);
        let registered = |member: &Member| fleet.member(*member).is_some();
        match &self.phase.work {
            PhaseWork::Lanes(lanes) => {
                lanes.owners().all(|owner| steps(&owner) || !registered(&owner))
            }
            PhaseWork::Queue(queue) => fleet
                .holders(Role::Trainer)
                .map(|holder| holder.member)
                .all(|member| steps(&member) || !queue.holds(member)),
        }
    }
}
