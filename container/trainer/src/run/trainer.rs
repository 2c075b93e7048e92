//! The training loop. Inputs: commands of the ApplicationMaster, events of the data plane, batches of the parser threads.
//! Outputs: steps and reports. One thread; no call waits.
//!
//! - A new epoch or phase drops all pipelines, feeds, tasks and lanes. Later events of old feeds and pulls are ignored.
//! - A phase begins with its constants; lanes and tasks that arrive before them wait.
//! - A step or task is reported only after *every* shard has acknowledged it.

use std::collections::BTreeMap;

use heddle_client::machine::{ClientEvent, DataRequest, Era, PullAt, PullId, PullItem, Unit};
use heddle_input::RecordFormat;
use heddle_protocol::control::{
    LaneGrant, Phase, Report, ShardPlace, Sharing, TaskGrant, TaskHandOut, TrainerCommand,
    TrainerReport,
};
use heddle_protocol::failure::Failure;
use heddle_protocol::ids::{CutId, Epoch, Lane, PhaseNo, Slot, Step, TaskAttempt, TaskId};
use heddle_protocol::job_spec::{JobPhase, JobSpec, NanPolicy, job_phase};
use heddle_protocol::lanes::{lane_tasks, task_order};
use heddle_protocol::metrics::TaskMetrics;
use heddle_protocol::process_figures::ProcessFigure;
use heddle_storage::chain;

use super::computing::next_action;
use super::feeds::Feeds;
use super::pipeline::{Pipeline, PipelineAction};
use super::plane::{DataPlane, detoured};
use super::reports::LoopReports;
use super::status::SharedStatus;
use super::step_times::StepTimes;
use super::work::{Readiness, RunningTask, TrainerWork};
use crate::algorithm::Algorithm;
use crate::feed::{FeedId, FeedItem};

/// The training loop's state.
pub(super) struct Trainer<P> {
    spec: JobSpec,
    algorithm: Box<dyn Algorithm>,
    plane: P,
    reports: LoopReports,
    status: SharedStatus,
    pub(super) feeds: Feeds,
    /// Number of pulls so far; the id of the last one.
    pulls: u64,
    work: Option<TrainerWork>,
    /// The last era that the data plane has begun. Until it equals that of `work`, events are stale.
    begun: Option<Era>,
    /// No more steps are computed.
    drained: bool,
    times: StepTimes,
}

impl<P: DataPlane> Trainer<P> {
    pub(super) fn new(
        spec: JobSpec,
        algorithm: Box<dyn Algorithm>,
        plane: P,
        reports: LoopReports,
        status: SharedStatus,
        feeds: Feeds,
    ) -> Self {
        Self {
            spec,
            algorithm,
            plane,
            reports,
            status,
            feeds,
            pulls: 0,
            work: None,
            begun: None,
            drained: false,
            times: StepTimes::new(),
        }
    }

    /// Handles an order of the ApplicationMaster.
    pub(super) fn command(&mut self, command: TrainerCommand) {
        match command {
            TrainerCommand::Work { epoch, phase, places } => {
                self.new_work(epoch, phase, detoured(places))
            }
            TrainerCommand::Lanes { epoch, phase, lanes, task_steps } => {
                tracing::info!(%epoch, %phase, lanes = lanes.len(), "lanes_assigned");
                self.lanes(epoch, phase, lanes, task_steps)
            }
            TrainerCommand::Tasks { epoch, phase, tasks } => self.tasks(epoch, phase, tasks),
            TrainerCommand::Withdraw { epoch, phase, tasks } => {
                self.withdraw(Era { epoch, phase }, tasks)
            }
            TrainerCommand::Barrier { cut, epoch } => {
                self.plane.send(DataRequest::Barrier { cut, epoch })
            }
            TrainerCommand::Drain => self.drain(),
        }
        self.publish();
    }

    fn new_work(&mut self, epoch: Epoch, phase: Phase, places: Vec<ShardPlace>) {
        let era = Era { epoch, phase: phase.no };
        let known = self.work.as_ref().map(|work| work.era);
        if known.is_some_and(|known| epoch < known.epoch) {
            return;
        }
        self.plane.send(DataRequest::Work { epoch, phase, places: places.clone() });
        if let Some(work) = self.work.as_mut().filter(|_| known == Some(era)) {
            return work.set_places(places);
        }
        let Some(kind) = job_phase(&self.spec, phase.no) else {
            self.work = None;
            return self.reports.internal(format!("the job has no phase {}", phase.no));
        };
        tracing::info!(%epoch, phase = %phase.no, ?kind, "phase_begun");
        let constants = self.algorithm.constants(kind);
        let ready = if constants.is_empty() {
            self.begin_phase(kind, constants)
        } else {
            self.pulls += 1;
            let pull = PullId(self.pulls);
            let (at, items) = (PullAt::Now, constants);
            self.plane.send(DataRequest::Pull { era, pull, at, items });
            Readiness::Constants(pull)
        };
        let features = self.algorithm.features(&self.spec);
        let index_features = self.algorithm.indexes_features(kind);
        let settings = self.feeds.settings(&self.spec, kind, phase.no, features, index_features);
        let tasks = settings.plan.tasks(kind.reads_training_data).len() as u32;
        let order = task_order(&self.spec, phase.no, tasks);
        let work = TrainerWork::new(era, phase.sharing, kind, settings, ready, order);
        self.work = Some(TrainerWork { places, ..work });
        self.times = StepTimes::new();
        self.status.begin_phase();
    }

    fn lanes(
        &mut self,
        epoch: Epoch,
        phase: PhaseNo,
        lanes: Vec<LaneGrant>,
        steps: BTreeMap<TaskId, u64>,
    ) {
        let era = Era { epoch, phase };
        if self.drained {
            // An earlier ApplicationMaster received the hand-over; this one must receive it too.
            return self.reports.drained(era, Vec::new());
        }
        let Some(work) = self.work.as_mut().filter(|work| work.era == era) else {
            return;
        };
        if !matches!(work.sharing, Sharing::Lanes { .. }) {
            return;
        }
        work.known_steps.extend(steps);
        for lane in work.remove_lanes_except(&lanes) {
            self.plane.send(DataRequest::ReleaseLane { era, lane });
        }
        for grant in lanes {
            if work.add_lane(grant) {
                self.plane.send(DataRequest::TakeOver { era, grant });
            }
        }
    }

    /// A later hand-out of the lane has asked a shard: usually another trainer has the lane by now, and the order that
    /// revokes it is in transit. Otherwise the ApplicationMaster hands the lane out again.
    fn lane_fenced(&mut self, grant: LaneGrant) {
        let Some(work) = &mut self.work else { return };
        if work.remove_lane(grant) {
            let Era { epoch, phase } = work.era;
            let lane = grant;
            self.reports.send(TrainerReport::LaneFenced { epoch, phase, lane });
        }
    }

    fn tasks(&mut self, epoch: Epoch, phase: PhaseNo, grants: Vec<TaskGrant>) {
        let era = Era { epoch, phase };
        if self.drained {
            // An earlier ApplicationMaster received the hand-over; this one must receive it too.
            return self.reports.drained(era, Vec::new());
        }
        let Some(work) = self.work.as_mut().filter(|work| work.era == era) else {
            return;
        };
        if matches!(work.sharing, Sharing::Lanes { .. }) {
            return;
        }
        for grant in grants {
            if work.has_attempt(grant) {
                continue;
            }
            work.drop_attempts(grant.task);
            if work.sharing != Sharing::ReadOnly {
                self.plane.send(DataRequest::HoldTask { era, grant });
            }
            work.waiting.push_back(grant);
        }
        self.begin_tasks();
    }

    /// Another trainer has finished these tasks. A step that was being computed is computed by now.
    fn withdraw(&mut self, era: Era, tasks: Vec<TaskHandOut>) {
        if let Some(work) = self.work.as_mut().filter(|work| work.era == era) {
            for hand_out in &tasks {
                if work.drop_hand_out(*hand_out) && work.sharing != Sharing::ReadOnly {
                    self.plane.send(DataRequest::ReleaseTask { era, task: hand_out.task });
                }
            }
        }
        tracing::info!(tasks = tasks.len(), "tasks_withdrawn");
        self.reports.send(TrainerReport::Withdrawn { tasks });
        self.begin_tasks();
    }

    /// An operator cuts the path to a pserver, to show that the job survives it.
    pub(super) fn cut(&mut self, pserver: u32, ms: u64) {
        tracing::warn!(pserver, ms, "cut_by_order");
        self.plane.cut(Slot::pserver(pserver), ms);
    }

    /// Hands all work back. The ApplicationMaster responds with the order to stop.
    fn drain(&mut self) {
        tracing::info!("drain_started");
        self.drained = true;
        let Some(work) = &mut self.work else {
            // No work was handed out yet. The ApplicationMaster waits for this response in any case.
            return self.reports.drained(Era::default(), Vec::new());
        };
        let tasks = work.positions();
        let lanes: Vec<Lane> = work.lanes.keys().copied().collect();
        let era = work.era;
        for lane in &lanes {
            self.plane.send(DataRequest::ReleaseLane { era, lane: *lane });
        }
        for position in &tasks {
            self.plane.send(DataRequest::ReleaseTask { era, task: position.task });
        }
        work.lanes.clear();
        work.waiting.clear();
        work.running.clear();
        self.reports.drained(era, tasks);
    }

    /// Handles an event of the data plane.
    pub(super) fn event(&mut self, event: ClientEvent) {
        match event {
            ClientEvent::Begun { era } => self.begun = Some(era),
            ClientEvent::Unreachable { member, .. } => {
                tracing::info!(%member, "pserver_unreachable");
                self.reports.send(Report::Unreachable { member })
            }
            ClientEvent::Outages { members } => self.status.outages(&members),
            ClientEvent::Fault(fault) => self.reports.internal(chain(&fault)),
            // The ApplicationMaster ignores a barrier that is reported twice.
            ClientEvent::AtBarrier { cut, epoch, tasks } => {
                self.reports.passed(cut);
                self.reports.send(TrainerReport::AtBarrier { cut, epoch, tasks });
            }
            ClientEvent::Compute { .. }
            | ClientEvent::LaneFenced { .. }
            | ClientEvent::Ended { .. }
            | ClientEvent::Pulled { .. }
            | ClientEvent::Reached { .. }
            | ClientEvent::Finished { .. }
            | ClientEvent::NotFinite { .. } => {
                let current = self.work.as_ref().map(|work| work.era);
                if current.is_some() && current == self.begun {
                    self.work_event(event);
                    self.publish();
                }
            }
        }
    }

    /// Handles an event of the present work.
    fn work_event(&mut self, event: ClientEvent) {
        match event {
            ClientEvent::Compute { lane, step } => self.compute_from(lane, step),
            ClientEvent::LaneFenced { grant } => self.lane_fenced(grant),
            // No further step is computed for it. Its pipeline may still owe the report of its last task.
            ClientEvent::Ended { lane } => tracing::debug!(%lane, "lane_ended"),
            ClientEvent::Pulled { pull, items } => self.pulled(pull, items),
            ClientEvent::Reached { unit, step, cut, .. } => self.reached(unit, step, cut),
            ClientEvent::Finished { task, attempt, steps, cut } => {
                self.finished(task, attempt, steps, cut);
            }
            ClientEvent::NotFinite { unit, step, table, shard } => {
                let tables = self.spec.tables();
                let named = tables.into_iter().find(|named| named.id == table);
                let table = named.map_or_else(|| table.to_string(), |named| named.name);
                self.not_finite(unit, step, &format!("table {table}, shard {shard}"))
            }
            ClientEvent::Begun { .. }
            | ClientEvent::AtBarrier { .. }
            | ClientEvent::Unreachable { .. }
            | ClientEvent::Outages { .. }
            | ClientEvent::Fault(_) => {}
        }
    }

    fn compute_from(&mut self, lane: Lane, step: Step) {
        let Some(work) = &mut self.work else { return };
        let Sharing::Lanes { lanes } = work.sharing else {
            return;
        };
        let Some(run) = work.lanes.get_mut(&lane) else {
            return;
        };
        // The old one's thread ends with it, whether the new one starts or not.
        run.pipeline = None;
        if !work.can_read(&self.spec) {
            work.unread.insert(lane, step);
            return;
        }
        let tasks: Vec<TaskId> = lane_tasks(&work.order, lane, lanes).collect();
        let known =
            tasks.iter().filter_map(|task| Some((*task, *work.known_steps.get(task)?))).collect();
        let (settings, unit) = (work.settings.clone(), Unit::Lane(lane));
        let Some(feed) = self.feeds.start(settings, tasks, step, known) else {
            return;
        };
        if let Some(run) = self.work.as_mut().and_then(|work| work.lanes.get_mut(&lane)) {
            run.pipeline = Some(Pipeline::new(unit, feed, step, false));
        }
    }

    /// Starts tasks while there are fewer than this container computes at once: one for each vcore, and one whose
    /// reading and pulling hides behind them.
    fn begin_tasks(&mut self) {
        let most = self.spec.trainers.vcores as usize + 1;
        loop {
            let Some(work) = self.work.as_mut().filter(|work| work.can_read(&self.spec)) else {
                return;
            };
            let Some(grant) = work.next_task(most) else { return };
            let read_only = work.sharing == Sharing::ReadOnly;
            let settings = work.settings.clone();
            let unit = Unit::Task(grant.task);
            let known = BTreeMap::new();
            let Some(feed) = self.feeds.start(settings, vec![grant.task], grant.start, known)
            else {
                return;
            };
            let pipeline = Pipeline::new(unit, feed, grant.start, read_only);
            if let Some(work) = &mut self.work {
                work.running.insert(grant.task, RunningTask { grant, pipeline, ended: None });
            }
        }
    }

    /// Passes the phase's constants to the algorithm.
    fn begin_phase(&mut self, kind: JobPhase, constants: Vec<PullItem>) -> Readiness {
        // As long as the algorithm needs.
        let turn = self.status.turn();
        turn.wait();
        let begun = self.algorithm.begin(kind, constants);
        turn.turn();
        match begun {
            Ok(()) => Readiness::Ready,
            Err(error) => {
                self.reports.fatal(error);
                Readiness::Failed
            }
        }
    }

    fn pulled(&mut self, pull: PullId, mut items: Vec<PullItem>) {
        self.times.pulled(pull);
        let Some(work) = &mut self.work else { return };
        if matches!(work.ready, Readiness::Constants(waited) if waited == pull) {
            let kind = work.kind;
            let ready = self.begin_phase(kind, items);
            let Some(work) = &mut self.work else { return };
            work.ready = ready;
            self.read_scaled();
            let Some(work) = &mut self.work else { return };
            let units: Vec<Unit> = work.pipelines().map(|pipeline| pipeline.unit).collect();
            return units.into_iter().for_each(|unit| self.advance(unit));
        }
        let unit = work
            .pipelines()
            .find_map(|pipeline| pipeline.pulled(pull, &mut items).then_some(pipeline.unit));
        if let Some(unit) = unit {
            self.advance(unit);
        }
    }

    /// Reads the data of the phase, if it has waited for the scales of columns.
    fn read_scaled(&mut self) {
        let scales = self.algorithm.scales();
        let Some(work) = self.work.as_mut().filter(|_| !scales.is_empty()) else { return };
        let features = self.algorithm.features(&self.spec);
        let format = RecordFormat::scaled(&self.spec, features, scales);
        work.settings.format = format.of_plan(&work.settings.plan);
        for (lane, step) in std::mem::take(&mut work.unread) {
            self.compute_from(lane, step);
        }
        self.begin_tasks();
    }

    fn reached(&mut self, unit: Unit, step: Step, cut: CutId) {
        self.reports.passed(cut);
        self.times.reached(unit, step);
        let Some(work) = &mut self.work else { return };
        if let Some(pipeline) = work.pipeline(unit) {
            pipeline.reached(step);
        }
        self.status.lock().stats.figures.add(ProcessFigure::Steps, 1);
        self.stepped();
        self.progress();
        self.advance(unit);
    }

    fn stepped(&mut self) {
        if let Some(work) = self.work.as_mut().filter(|work| !work.stepped) {
            work.stepped = true;
            self.reports.send(TrainerReport::Stepping { epoch: work.era.epoch });
        }
    }

    /// Reports positions of tasks at intervals.
    fn progress(&mut self) {
        let Some(work) = &self.work else { return };
        if work.sharing.is_queue_of_pushes() && self.reports.progress_is_due() {
            self.reports.progress(work.era, work.positions());
        }
    }

    fn finished(&mut self, task: TaskId, attempt: TaskAttempt, steps: u64, cut: CutId) {
        self.reports.passed(cut);
        let Some(work) = &mut self.work else { return };
        if work
            .running
            .get(&task)
            .is_some_and(|run| run.grant.attempt == attempt && run.ended.is_some())
            && let Some(run) = work.running.remove(&task)
        {
            let mut metrics = run.ended.unwrap_or_default();
            metrics.steps = Some(steps);
            self.reports.task_finished(work.era, task, attempt, metrics);
        }
        self.begin_tasks();
    }

    fn not_finite(&mut self, unit: Unit, step: Step, place: &str) {
        match self.spec.training.nan {
            NanPolicy::Skip => {
                tracing::warn!(%unit, %step, place, "gradient_left_out")
            }
            NanPolicy::Fail => self.reports.not_finite(unit, step, place, &self.spec),
        }
    }

    /// Handles an item of a parser thread.
    pub(super) fn item(&mut self, feed: FeedId, item: FeedItem) {
        let Some(work) = &mut self.work else { return };
        // Feeds that were dropped may still have items in the channel.
        let pipeline = work.pipelines().find(|pipeline| pipeline.feed().id() == feed);
        let Some(pipeline) = pipeline else { return };
        pipeline.item(item);
        let unit = pipeline.unit;
        self.advance(unit);
        self.publish();
    }

    /// Performs the possible actions of one lane or task.
    fn advance(&mut self, unit: Unit) {
        loop {
            let Some(work) = &mut self.work else { return };
            if !matches!(work.ready, Readiness::Ready) {
                return;
            }
            let era = work.era;
            let attempt = work.attempt(unit);
            let Some(pipeline) = work.pipeline(unit) else {
                return;
            };
            let begun = self.times.clock();
            let action = next_action(pipeline, &mut *self.algorithm, attempt, &self.status);
            match action {
                None => return,
                Some(PipelineAction::Pull(at, items)) => {
                    self.pulls += 1;
                    let pull = PullId(self.pulls);
                    self.times.asked(pull, unit);
                    self.plane.send(DataRequest::Pull { era, pull, at, items });
                    pipeline.pulling(pull);
                }
                Some(PipelineAction::Push(push)) => {
                    self.times.pushed(unit, push.step, begun);
                    self.plane.send(DataRequest::PushStep { era, unit, push });
                }
                Some(PipelineAction::Computed) => self.stepped(),
                Some(PipelineAction::TaskEnd { task, steps, metrics }) => {
                    self.task_end(unit, task, steps, metrics)
                }
                Some(PipelineAction::Failed { task, retryable, failure }) => {
                    self.task_failed(unit, task, retryable, failure)
                }
            }
        }
    }

    /// A task was computed to its end. Its lane continues; a task of a queue waits for acknowledgement.
    fn task_end(&mut self, unit: Unit, task: TaskId, steps: u64, metrics: Box<TaskMetrics>) {
        let Some(work) = &mut self.work else { return };
        match unit {
            Unit::Lane(_) => {
                let phase = work.era.phase;
                work.known_steps.insert(task, steps);
                self.reports.send(TrainerReport::TaskSteps { phase, task, steps, metrics });
            }
            Unit::Task(_) if work.sharing == Sharing::ReadOnly => {
                if let Some(run) = work.running.remove(&task) {
                    self.reports.task_finished(work.era, task, run.grant.attempt, metrics);
                }
                self.begin_tasks();
            }
            Unit::Task(_) => {
                if let Some(run) = work.running.get_mut(&task) {
                    run.ended = Some(metrics);
                    self.plane.send(DataRequest::EndTask { era: work.era, task });
                }
                self.begin_tasks();
            }
        }
    }

    /// A task cannot be read. The ApplicationMaster decides about the task and the job.
    fn task_failed(&mut self, unit: Unit, task: TaskId, retryable: bool, failure: Failure) {
        tracing::error!(%task, error = failure.text, "task_failed");
        let Some(work) = &mut self.work else { return };
        let Era { epoch, phase } = work.era;
        let mut attempt = TaskAttempt(0);
        if let Unit::Task(_) = unit {
            if let Some(run) = work.running.remove(&task) {
                attempt = run.grant.attempt;
            }
            if work.sharing != Sharing::ReadOnly {
                self.plane.send(DataRequest::ReleaseTask { era: work.era, task });
            }
        }
        self.reports.send(TrainerReport::TaskFailed {
            epoch,
            phase,
            task,
            attempt,
            retryable,
            failure,
        });
        self.begin_tasks();
    }

    /// Why this container cannot continue though the job can: its node provides no thread. The caller checks it after each
    /// call.
    pub(super) fn no_thread(&mut self) -> Option<std::io::Error> {
        self.feeds.take_error()
    }

    /// Updates the status that the control thread reports.
    fn publish(&self) {
        if let Some(work) = &self.work {
            self.status.publish(work.lowest_step(), work.busy(self.reports.cut()));
        }
    }
}
