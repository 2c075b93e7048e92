//! The training loop: orders of the ApplicationMaster, events of the data plane and batches of the parser
//! threads in, steps and reports out. One thread, no waiting: every call does what can be done now.
//!
//! - A new epoch or phase drops everything: pipelines, feeds, tasks, lanes. What old feeds and pulls still
//!   say is known by its name and ignored.
//! - A phase begins with its constants; lanes and tasks that come before them wait.
//! - What is reported as finished or reached is what *every* shard has acknowledged, never more.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::Sender;
use heddle_client::machine::{Era, Event, PullAt, PullId, PullItem, Unit};
use heddle_protocol::control::{
    Command, LaneGrant, Phase, Report, ShardPlace, Sharing, TaskGrant, Welcome,
};
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{CutId, Epoch, Lane, PhaseNo, Step, TaskAttempt, TaskId};
use heddle_protocol::lanes::{lane_tasks, task_order};
use heddle_protocol::manifest::InputPlan;
use heddle_protocol::metrics::TaskMetrics;
use heddle_protocol::spec::{JobSpec, NanPolicy, phase_kind};

use super::hooks::{TestHooks, When};
use super::pipeline::{Pipeline, Want};
use super::plane::DataPlane;
use super::status::Status;
use super::work::{Readiness, RunningLane, RunningTask, Work};
use crate::algorithm::Algorithm;
use crate::feed::{Feed, FeedId, FeedItem, FeedSettings, patiently};
use crate::reader::{Labels, RecordFormat};

/// How often positions of tasks are reported (ASP), at the most.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Where reports go.
pub(super) type SendReport = Box<dyn FnMut(Report) + Send>;

/// The training loop's state.
pub(super) struct Trainer<P> {
    spec: Arc<JobSpec>,
    plan: Arc<InputPlan>,
    algorithm: Box<dyn Algorithm>,
    plane: P,
    report: SendReport,
    status: Status,
    hooks: TestHooks,
    quarantine: PathBuf,
    items: Sender<(FeedId, FeedItem)>,
    feeds: u64,
    work: Option<Work>,
    /// The last era that the data plane has begun. Until it is that of `work`, events are old.
    begun: Option<Era>,
    cut: CutId,
    /// No more steps are taken.
    drained: bool,
    no_thread: Option<std::io::Error>,
    last_progress: Instant,
    /// Own computing time since the start, waiting excluded.
    computed: Duration,
}

impl<P: DataPlane> Trainer<P> {
    #[expect(
        clippy::too_many_arguments,
        reason = "all of them are made by the one caller, each once"
    )]
    pub(super) fn new(
        welcome: &Welcome,
        plan: InputPlan,
        algorithm: Box<dyn Algorithm>,
        plane: P,
        report: SendReport,
        status: Status,
        hooks: TestHooks,
        quarantine: PathBuf,
        items: Sender<(FeedId, FeedItem)>,
    ) -> Self {
        Self {
            spec: Arc::new(welcome.spec.clone()),
            plan: Arc::new(plan),
            algorithm,
            plane,
            report,
            status,
            hooks,
            quarantine,
            items,
            feeds: 0,
            work: None,
            begun: None,
            cut: CutId::default(),
            drained: false,
            no_thread: None,
            last_progress: Instant::now(),
            computed: Duration::ZERO,
        }
    }

    /// Puts another input in place of the welcome's.
    #[cfg(test)]
    pub(super) fn replace_plan(&mut self, plan: InputPlan) {
        self.plan = Arc::new(plan);
    }

    /// The ApplicationMaster ordered something. Commands that are not for the loop are the caller's.
    pub(super) fn command(&mut self, command: Command) {
        match command {
            Command::Work { epoch, phase, places } => {
                self.new_work(epoch, phase, self.hooks.places(places))
            }
            Command::Lanes { epoch, phase, lanes, task_steps } => {
                self.lanes(epoch, phase, lanes, task_steps)
            }
            Command::Tasks { epoch, phase, tasks } => self.tasks(epoch, phase, tasks),
            Command::Barrier { cut, epoch } => self.plane.barrier(cut, epoch),
            Command::Drain => self.drain(),
            other => tracing::debug!(?other, "not an order for the training loop"),
        }
        self.publish();
    }

    fn new_work(&mut self, epoch: Epoch, phase: Phase, places: Vec<ShardPlace>) {
        let era = Era { epoch, phase: phase.no };
        let known = self.work.as_ref().map(|work| work.era);
        if known.is_some_and(|known| epoch < known.epoch) {
            return;
        }
        self.plane.work(epoch, phase, places);
        if known == Some(era) {
            return;
        }
        let Some(kind) = phase_kind(&self.spec, phase.no) else {
            self.work = None;
            return self.fatal(ErrorClass::Internal, format!("the job has no phase {}", phase.no));
        };
        tracing::info!(%epoch, phase = %phase.no, ?kind, "phase begun");
        let training = kind.reads_training_data();
        let constants = self.algorithm.constants(kind);
        let ready = if constants.is_empty() {
            match self.algorithm.begin(kind, constants) {
                Ok(()) => Readiness::Ready,
                Err(error) => {
                    self.fatal(ErrorClass::Training, error);
                    Readiness::Failed
                }
            }
        } else {
            Readiness::Constants(self.plane.pull(era, PullAt::Now, constants))
        };
        let seed = self.spec.training.seed;
        let tasks = self.plan.tasks(training).len() as u32;
        self.work = Some(Work {
            era,
            sharing: phase.sharing,
            kind,
            settings: FeedSettings {
                plan: Arc::clone(&self.plan),
                training,
                phase: phase.no,
                format: RecordFormat {
                    format: self.spec.data.format,
                    index_base: self.spec.data.index_base,
                    features: self.algorithm.features(&self.spec),
                    labels: Labels::Required,
                },
                rows: self.spec.training.batch as usize,
                bad_records: self.spec.data.bad_records,
                quarantine: self.quarantine.clone(),
                waits: self.status.waits(),
            },
            ready,
            order: task_order(seed, phase.no, tasks, self.spec.data.shuffle),
            known_steps: BTreeMap::new(),
            lanes: BTreeMap::new(),
            waiting: VecDeque::new(),
            running: BTreeMap::new(),
            stepped: false,
        });
        let mut status = self.status.lock();
        (status.beat.loss_sum, status.beat.loss_rows) = (0.0, 0);
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
            return self.stays_drained(era);
        }
        let Some(work) = self.work.as_mut().filter(|work| work.era == era) else {
            return;
        };
        if !matches!(work.sharing, Sharing::Lanes { .. }) {
            return;
        }
        work.known_steps.extend(steps);
        let gone: Vec<Lane> = work
            .lanes
            .keys()
            .copied()
            .filter(|lane| !lanes.iter().any(|grant| grant.lane == *lane))
            .collect();
        for lane in gone {
            work.lanes.remove(&lane);
            self.plane.give_up(era, lane);
        }
        for grant in lanes {
            let LaneGrant { lane, hand_out } = grant;
            let known = work.lanes.get(&lane).map(|run| run.hand_out);
            if known.is_none_or(|known| known < hand_out) {
                let run = RunningLane { hand_out, pipeline: None };
                work.lanes.insert(lane, run);
                self.plane.take_over(era, grant);
            }
        }
    }

    /// A later hand-out of the lane has asked a shard: usually another trainer has the lane by now, and the order that
    /// says so is on its way. If not, the ApplicationMaster hands the lane out again.
    fn lane_fenced(&mut self, grant: LaneGrant) {
        let Some(work) = &mut self.work else { return };
        if let Entry::Occupied(run) = work.lanes.entry(grant.lane)
            && run.get().hand_out == grant.hand_out
        {
            run.remove();
            let Era { epoch, phase } = work.era;
            let lane = grant;
            (self.report)(Report::LaneFenced { epoch, phase, lane });
        }
    }

    fn tasks(&mut self, epoch: Epoch, phase: PhaseNo, grants: Vec<TaskGrant>) {
        let era = Era { epoch, phase };
        if self.drained {
            return self.stays_drained(era);
        }
        let Some(work) = self.work.as_mut().filter(|work| work.era == era) else {
            return;
        };
        if matches!(work.sharing, Sharing::Lanes { .. }) {
            return;
        }
        for grant in grants {
            let same = |held: &TaskGrant| (held.task, held.attempt) == (grant.task, grant.attempt);
            if work.waiting.iter().any(same)
                || work.running.get(&grant.task).is_some_and(|run| same(&run.grant))
            {
                continue;
            }
            work.waiting.retain(|held| held.task != grant.task);
            work.running.remove(&grant.task);
            if work.sharing != Sharing::ReadOnly {
                self.plane.hold_task(era, grant);
            }
            work.waiting.push_back(grant);
        }
        self.begin_tasks();
    }

    /// Work is handed to it although it gave all back: to another ApplicationMaster, which is gone. This one hears it too.
    fn stays_drained(&mut self, era: Era) {
        (self.report)(Report::Drained { epoch: era.epoch, phase: era.phase, tasks: Vec::new() });
    }

    /// Gives everything back. The ApplicationMaster answers with the order to stop.
    fn drain(&mut self) {
        self.drained = true;
        let Some(work) = &mut self.work else {
            // Nothing was handed out yet. The ApplicationMaster waits for this answer all the same.
            return self.stays_drained(Era::default());
        };
        let tasks = work.positions();
        let lanes: Vec<Lane> = work.lanes.keys().copied().collect();
        let era = work.era;
        for lane in &lanes {
            self.plane.give_up(era, *lane);
        }
        for position in &tasks {
            self.plane.drop_task(era, position.task);
        }
        work.lanes.clear();
        work.waiting.clear();
        work.running.clear();
        (self.report)(Report::Drained { epoch: era.epoch, phase: era.phase, tasks });
    }

    /// The data plane tells something.
    pub(super) fn event(&mut self, event: Event) {
        if let Event::Begun { era } = event {
            self.begun = Some(era);
            return;
        }
        match event {
            Event::Unreachable { member, .. } => {
                return (self.report)(Report::Unreachable { member });
            }
            Event::Outages { members } => {
                self.status.lock().beat.unreachable = members;
                return;
            }
            Event::Fault(fault) => {
                return self.fatal(ErrorClass::Internal, heddle_storage::chain(&fault));
            }
            // Whoever is told of the same barrier twice ignores it.
            Event::AtBarrier { cut, epoch, tasks } => {
                self.cut = self.cut.max(cut);
                return (self.report)(Report::AtBarrier { cut, epoch, tasks });
            }
            _ => {}
        }
        let current = self.work.as_ref().map(|work| work.era);
        if current.is_none() || current != self.begun {
            return;
        }
        match event {
            Event::Compute { lane, step } => self.compute_from(lane, step),
            Event::LaneFenced { grant } => self.lane_fenced(grant),
            // Nothing more is computed for it. Its pipeline may still owe the report of its last task.
            Event::Ended { lane } => tracing::debug!(%lane, "lane ended"),
            Event::Pulled { pull, items } => self.pulled(pull, items),
            Event::Reached { unit, step, cut, .. } => self.reached(unit, step, cut),
            Event::Finished { task, attempt, cut } => self.finished(task, attempt, cut),
            Event::NotFinite { unit, step, table, shard } => {
                self.not_finite(unit, step, &format!("table {table}, shard {shard}"))
            }
            Event::Begun { .. }
            | Event::AtBarrier { .. }
            | Event::Unreachable { .. }
            | Event::Outages { .. }
            | Event::Fault(_) => {}
        }
        self.publish();
    }

    fn compute_from(&mut self, lane: Lane, step: Step) {
        let Some(work) = &mut self.work else { return };
        let Sharing::Lanes { lanes } = work.sharing else {
            return;
        };
        let Some(run) = work.lanes.get_mut(&lane) else {
            return;
        };
        // The old one's thread ends with it, whatever comes of the new one.
        run.pipeline = None;
        let tasks: Vec<TaskId> = lane_tasks(&work.order, lane, lanes).collect();
        let known =
            tasks.iter().filter_map(|task| Some((*task, *work.known_steps.get(task)?))).collect();
        let (settings, unit) = (work.settings.clone(), Unit::Lane(lane));
        let Some(feed) = self.feed(settings, tasks, step, known) else {
            return;
        };
        if let Some(run) = self.work.as_mut().and_then(|work| work.lanes.get_mut(&lane)) {
            run.pipeline = Some(Pipeline::new(unit, feed, step, false));
        }
    }

    fn feed(
        &mut self,
        settings: FeedSettings,
        tasks: Vec<TaskId>,
        start: Step,
        known: BTreeMap<TaskId, u64>,
    ) -> Option<Feed> {
        self.feeds += 1;
        let id = FeedId(self.feeds);
        let items = &self.items;
        let start = || {
            let (settings, tasks, known) = (settings.clone(), tasks.clone(), known.clone());
            Feed::start(id, settings, tasks, start.0, known, items.clone())
        };
        match patiently(start) {
            Ok(feed) => Some(feed),
            Err(error) => {
                self.no_thread = Some(error);
                None
            }
        }
    }

    /// Starts tasks while there are fewer than this container computes at once: one for each vcore, and one whose
    /// reading and pulling hides behind them.
    fn begin_tasks(&mut self) {
        let most = self.spec.trainers.vcores as usize + 1;
        loop {
            let Some(work) = &mut self.work else { return };
            let active = work.running.values().filter(|run| run.ended.is_none()).count();
            if active >= most {
                return;
            }
            let Some(grant) = work.waiting.pop_front() else {
                return;
            };
            let read_only = work.sharing == Sharing::ReadOnly;
            let settings = work.settings.clone();
            let unit = Unit::Task(grant.task);
            let Some(feed) = self.feed(settings, vec![grant.task], grant.start, BTreeMap::new())
            else {
                return;
            };
            let pipeline = Pipeline::new(unit, feed, grant.start, read_only);
            if let Some(work) = &mut self.work {
                work.running.insert(grant.task, RunningTask { grant, pipeline, ended: None });
            }
        }
    }

    fn pulled(&mut self, pull: PullId, mut items: Vec<PullItem>) {
        let Some(work) = &mut self.work else { return };
        if matches!(work.ready, Readiness::Constants(waited) if waited == pull) {
            work.ready = match self.algorithm.begin(work.kind, items) {
                Ok(()) => Readiness::Ready,
                Err(error) => {
                    self.fatal(ErrorClass::Training, error);
                    if let Some(work) = &mut self.work {
                        work.ready = Readiness::Failed;
                    }
                    return;
                }
            };
            let units: Vec<Unit> = work.pipelines().map(|pipeline| pipeline.unit).collect();
            units.into_iter().for_each(|unit| self.advance(unit));
            return;
        }
        let unit = work
            .pipelines()
            .find_map(|pipeline| pipeline.pulled(pull, &mut items).then_some(pipeline.unit));
        if let Some(unit) = unit {
            self.advance(unit);
        }
    }

    fn reached(&mut self, unit: Unit, step: Step, cut: CutId) {
        self.cut = self.cut.max(cut);
        let Some(work) = &mut self.work else { return };
        if let Some(pipeline) = work.pipeline(unit) {
            pipeline.reached(step);
        }
        self.status.lock().beat.steps += 1;
        self.stepped();
        self.progress();
        self.advance(unit);
    }

    fn stepped(&mut self) {
        if let Some(work) = self.work.as_mut().filter(|work| !work.stepped) {
            work.stepped = true;
            (self.report)(Report::Stepping { epoch: work.era.epoch });
        }
    }

    /// Tells where tasks stand, now and then.
    fn progress(&mut self) {
        let Some(work) = &self.work else { return };
        if work.sharing != Sharing::Queue || self.last_progress.elapsed() < PROGRESS_EVERY {
            return;
        }
        self.last_progress = Instant::now();
        let tasks = work.positions();
        let Era { epoch, phase } = work.era;
        (self.report)(Report::Progress { epoch, phase, cut: self.cut, tasks });
    }

    fn finished(&mut self, task: TaskId, attempt: TaskAttempt, cut: CutId) {
        self.cut = self.cut.max(cut);
        let Some(work) = &mut self.work else { return };
        if work
            .running
            .get(&task)
            .is_some_and(|run| run.grant.attempt == attempt && run.ended.is_some())
            && let Some(run) = work.running.remove(&task)
        {
            let Era { epoch, phase } = work.era;
            let metrics = run.ended.unwrap_or_default();
            (self.report)(Report::TaskFinished { epoch, phase, cut, task, attempt, metrics });
        }
        self.begin_tasks();
    }

    fn not_finite(&mut self, unit: Unit, step: Step, place: &str) {
        match self.spec.training.nan {
            NanPolicy::Skip => tracing::warn!(?unit, %step, place, "gradient with NaN or infinity left out"),
            NanPolicy::Fail => self.fatal(
                ErrorClass::Training,
                format!(
                    "the gradient of step {step} of {unit:?} holds NaN or infinity ({place}): training diverges; \
                     lower the rate, standardise the data, or allow it with training.nan = \"skip\""
                ),
            ),
        }
    }

    /// A parser thread sent something.
    pub(super) fn item(&mut self, feed: FeedId, item: FeedItem) {
        let Some(work) = &mut self.work else { return };
        // Feeds that were dropped may still have something in the channel.
        let pipeline = work.pipelines().find(|pipeline| pipeline.feed().id() == feed);
        let Some(pipeline) = pipeline else { return };
        pipeline.item(item);
        let unit = pipeline.unit;
        self.advance(unit);
        self.publish();
    }

    /// Does what can be done now for one lane or task.
    fn advance(&mut self, unit: Unit) {
        loop {
            let Some(work) = &mut self.work else { return };
            if !matches!(work.ready, Readiness::Ready) {
                return;
            }
            let era = work.era;
            let Some(pipeline) = work.pipeline(unit) else {
                return;
            };
            let (rows, loss) = (pipeline.metrics().rows, pipeline.metrics().loss_sum);
            let started = Instant::now();
            let want = pipeline.next_want(&mut *self.algorithm);
            if let Some(Want::Push(_) | Want::Computed) = &want {
                self.hooks.computed(started.elapsed());
                self.computed += started.elapsed();
                let metrics = pipeline.metrics();
                let mut status = self.status.lock();
                status.beat.rows += metrics.rows - rows;
                if matches!(want, Some(Want::Computed)) {
                    status.beat.evaluated_rows += metrics.rows - rows;
                }
                status.beat.loss_rows += metrics.rows - rows;
                status.beat.loss_sum += metrics.loss_sum - loss;
                status.beat.compute_ms = self.computed.as_millis() as u64;
            }
            match want {
                None => return,
                Some(Want::Pull(at, items)) => {
                    let pull = self.plane.pull(era, at, items);
                    pipeline.pulling(pull);
                }
                Some(Want::Push(push)) => {
                    let step = push.step;
                    self.hooks.pushing(When::BeforePush, unit, step);
                    self.plane.push_step(era, unit, push);
                    self.hooks.pushing(When::AfterPush, unit, step);
                }
                Some(Want::Computed) => self.stepped(),
                Some(Want::TaskEnd { task, steps, metrics }) => {
                    self.task_end(unit, task, steps, metrics)
                }
                Some(Want::Failed { task, retryable, error }) => {
                    self.task_failed(unit, task, retryable, error)
                }
            }
        }
    }

    /// All of a task is computed. Its lane goes on; a task of a queue waits for acknowledgement.
    fn task_end(&mut self, unit: Unit, task: TaskId, steps: u64, metrics: Box<TaskMetrics>) {
        let Some(work) = &mut self.work else { return };
        let Era { epoch, phase } = work.era;
        match unit {
            Unit::Lane(_) => {
                work.known_steps.insert(task, steps);
                (self.report)(Report::TaskSteps { phase, task, steps, metrics });
            }
            Unit::Task(_) if work.sharing == Sharing::ReadOnly => {
                if let Some(run) = work.running.remove(&task) {
                    let (attempt, cut) = (run.grant.attempt, self.cut);
                    (self.report)(Report::TaskFinished {
                        epoch,
                        phase,
                        cut,
                        task,
                        attempt,
                        metrics,
                    });
                }
                self.begin_tasks();
            }
            Unit::Task(_) => {
                if let Some(run) = work.running.get_mut(&task) {
                    run.ended = Some(metrics);
                    self.plane.task_done(work.era, task);
                }
                self.begin_tasks();
            }
        }
    }

    /// A task cannot be read. What becomes of it, and of the job, is the ApplicationMaster's business.
    fn task_failed(&mut self, unit: Unit, task: TaskId, retryable: bool, error: String) {
        tracing::error!(%task, error, "task failed");
        let Some(work) = &mut self.work else { return };
        let Era { epoch, phase } = work.era;
        let mut attempt = TaskAttempt(0);
        if let Unit::Task(_) = unit {
            if let Some(run) = work.running.remove(&task) {
                attempt = run.grant.attempt;
            }
            if work.sharing != Sharing::ReadOnly {
                self.plane.drop_task(work.era, task);
            }
        }
        (self.report)(Report::TaskFailed { epoch, phase, task, attempt, retryable, error });
        self.begin_tasks();
    }

    /// Why this container cannot go on though the job can: its node gives no thread. To be asked after each call.
    pub(super) fn no_thread(&mut self) -> Option<std::io::Error> {
        self.no_thread.take()
    }

    fn fatal(&mut self, class: ErrorClass, error: String) {
        tracing::error!(?class, error, "the job cannot go on");
        (self.report)(Report::Fatal { failure: Failure::new(class, error) });
    }

    /// Lets the control thread know what to say.
    fn publish(&self) {
        let Some(work) = &self.work else { return };
        let mut status = self.status.lock();
        status.beat.epoch = work.era.epoch;
        status.beat.phase = work.era.phase;
        status.beat.step = work
            .lanes
            .values()
            .filter_map(|run| run.pipeline.as_ref())
            .map(|pipeline| pipeline.reached)
            .min()
            .unwrap_or_default();
        status.busy = Some(work.busy(self.cut));
    }
}
