//! A simulated trainer: the real client machine under a training loop of a few lines.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use heddle_client::gradient::Gradient;
use heddle_client::machine::{
    ClientEvent, ClientMachine, DataRequest, Era, PullAt, PullId, PullItem, StepPush, Unit,
};
use heddle_protocol::control::{
    Command, LaneGrant, Phase, Report, Sharing, TaskGrant, TaskHandOut, TrainerCommand,
    TrainerReport, TrainerState,
};
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{Epoch, HandOut, Lane, Member, Step, TaskId};
use heddle_protocol::metrics::{LossSum, TaskMetrics};

use super::exporter::Exporter;
use super::job::{Job, WEIGHTS};
use super::store::Durable;

/// Steps of a task that are pushed before the first is reached.
const AHEAD: usize = 2;

/// Work that takes time.
#[derive(Clone, Debug)]
pub struct Labour(Work);

#[derive(Clone, Debug)]
enum Work {
    /// A gradient, or the score of a task.
    Compute(Era, What, Vec<f32>),
    /// The export with this number.
    Export(u64),
}

#[derive(Clone, Copy, Debug)]
enum What {
    Lane(Lane, u64),
    Task(TaskId, u64),
    Evaluate(TaskId),
}

/// What a trainer wants done.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "few exist at a time, most of them reports")]
pub enum Output {
    /// Tell the ApplicationMaster.
    Report(Report),
    /// Do this some time.
    Labour(Labour),
    /// End.
    Exit,
}

struct Running {
    grant: TaskGrant,
    next: u64,
    /// Pulled or pushed and not reached.
    ahead: usize,
    asked: bool,
}

/// One trainer's process.
pub struct Trainer {
    /// Its side of the data plane.
    pub machine: ClientMachine,
    job: Arc<Job>,
    phase: Option<Phase>,
    /// The next step of each lane that is to be computed.
    lanes: BTreeMap<Lane, u64>,
    /// Of the same lanes.
    hand_outs: BTreeMap<Lane, HandOut>,
    tasks: VecDeque<TaskGrant>,
    running: Option<Running>,
    pulls: BTreeMap<PullId, What>,
    next_pull: u64,
    stepped: Option<Epoch>,
    draining: bool,
    /// Its exports, and requests of its program.
    pub exporter: Exporter,
    /// Pservers that it cannot reach.
    pub outages: Vec<Member>,
}

impl Trainer {
    /// A process that has just started.
    #[must_use]
    pub fn new(job: Arc<Job>) -> Self {
        Self {
            machine: ClientMachine::of(job.layout(), job.spec().pservers.moves_shards()),
            job,
            phase: None,
            lanes: BTreeMap::new(),
            hand_outs: BTreeMap::new(),
            tasks: VecDeque::new(),
            running: None,
            pulls: BTreeMap::new(),
            next_pull: 0,
            stepped: None,
            draining: false,
            exporter: Exporter::default(),
            outages: Vec::new(),
        }
    }

    /// Its registration.
    #[must_use]
    pub fn busy(&self) -> Option<TrainerState> {
        self.machine.era().map(|era| TrainerState {
            epoch: era.epoch,
            phase: era.phase,
            cut: self.machine.cut(),
            tasks: self.machine.positions(),
            lanes: self.lane_grants(),
        })
    }

    fn lane_grants(&self) -> Vec<LaneGrant> {
        let grant = |(&lane, &hand_out): (&Lane, &HandOut)| LaneGrant { lane, hand_out };
        self.hand_outs.iter().map(grant).collect()
    }

    /// The lowest step of its lanes that have not ended, for heartbeats.
    #[must_use]
    pub fn step(&self) -> Step {
        let steps = self.lanes.values().copied();
        let goes_on = steps.filter(|step| *step != u64::MAX);
        Step(goes_on.min().unwrap_or_default())
    }

    /// Carries out a command of the ApplicationMaster.
    ///
    /// # Errors
    /// A command that a sound ApplicationMaster never gives, or a fault of the client.
    pub fn command(
        &mut self,
        command: Command,
        now_ms: u64,
        out: &mut Vec<Output>,
    ) -> Result<(), String> {
        match command {
            Command::Trainer(TrainerCommand::Work { epoch, phase, places }) => {
                self.machine.on(DataRequest::Work { epoch, phase, places }, now_ms);
                if self.machine.era() == Some(Era { epoch, phase: phase.no }) {
                    self.phase = Some(phase);
                }
            }
            Command::Trainer(TrainerCommand::Lanes { epoch, phase, lanes, .. }) => {
                let era = Era { epoch, phase };
                if self.draining {
                    self.stays_drained(era, out);
                } else if self.machine.era() == Some(era) {
                    let gone: Vec<_> = self
                        .lanes
                        .keys()
                        .filter(|lane| !lanes.iter().any(|grant| grant.lane == **lane))
                        .copied()
                        .collect();
                    for lane in gone {
                        self.lanes.remove(&lane);
                        self.hand_outs.remove(&lane);
                        self.machine.on(DataRequest::ReleaseLane { era, lane }, now_ms);
                    }
                    for grant in lanes {
                        let LaneGrant { lane, hand_out } = grant;
                        self.lanes.entry(lane).or_insert(0);
                        let known = self.hand_outs.entry(lane).or_default();
                        *known = (*known).max(hand_out);
                        self.machine.on(DataRequest::TakeOver { era, grant }, now_ms);
                    }
                }
            }
            Command::Trainer(TrainerCommand::Tasks { epoch, phase, tasks }) => {
                let era = Era { epoch, phase };
                if self.draining {
                    self.stays_drained(era, out);
                } else if self.machine.era() == Some(era) {
                    self.take_tasks(era, tasks);
                }
            }
            Command::Trainer(TrainerCommand::Barrier { cut, epoch }) => {
                self.machine.on(DataRequest::Barrier { cut, epoch }, now_ms)
            }
            Command::Trainer(TrainerCommand::Withdraw { epoch, phase, tasks }) => {
                if self.machine.era() == Some(Era { epoch, phase }) {
                    self.withdraw(Era { epoch, phase }, &tasks);
                }
                out.push(Output::Report(Report::Trainer(TrainerReport::Withdrawn { tasks })));
            }
            Command::Trainer(TrainerCommand::Drain) => self.drain(out),
            Command::Export(order) => {
                let (begins, report) = self.exporter.ordered(order);
                out.extend(begins.map(|number| Output::Labour(Labour(Work::Export(number)))));
                out.extend(report.map(Output::Report));
            }
            Command::SaveAnswer { request, .. } => self.exporter.answered(request),
            Command::Stop { .. } => out.push(Output::Exit),
            Command::Welcome(_) => out.extend(self.exporter.connected().map(Output::Report)),
            Command::Refused { .. } => {}
            other => return Err(format!("a trainer received {other:?}")),
        }
        self.listen(out)
    }

    fn take_tasks(&mut self, era: Era, tasks: Vec<TaskGrant>) {
        for grant in tasks {
            let has = |held: &TaskGrant| held.task == grant.task && held.attempt == grant.attempt;
            let running = self.running.as_ref().map(|running| running.grant);
            if self.tasks.iter().chain(&running).any(has) {
                continue;
            }
            self.tasks.retain(|held| held.task != grant.task);
            if running.is_some_and(|running| running.task == grant.task) {
                self.running = None;
            }
            self.send(DataRequest::HoldTask { era, grant });
            self.tasks.push_back(grant);
        }
        self.go_on(era);
    }

    /// Hand-outs that are over.
    fn withdraw(&mut self, era: Era, tasks: &[TaskHandOut]) {
        let is_over = |held: &TaskGrant| {
            tasks.contains(&TaskHandOut { task: held.task, attempt: held.attempt })
        };
        let running = self.running.take_if(|running| is_over(&running.grant));
        let waiting: Vec<TaskGrant> = self.tasks.iter().copied().filter(is_over).collect();
        self.tasks.retain(|held| !is_over(held));
        for grant in running.map(|running| running.grant).into_iter().chain(waiting) {
            self.send(DataRequest::ReleaseTask { era, task: grant.task });
        }
        self.go_on(era);
    }

    /// Work of an ApplicationMaster that does not know.
    fn stays_drained(&self, era: Era, out: &mut Vec<Output>) {
        out.push(Output::Report(Report::Trainer(TrainerReport::Drained {
            epoch: era.epoch,
            phase: era.phase,
            tasks: Vec::new(),
        })));
    }

    fn drain(&mut self, out: &mut Vec<Output>) {
        self.draining = true;
        if let Some(era) = self.machine.era() {
            let tasks = self.machine.positions();
            out.push(Output::Report(Report::Trainer(TrainerReport::Drained {
                epoch: era.epoch,
                phase: era.phase,
                tasks,
            })));
        }
        out.push(Output::Exit);
    }

    /// Takes in what the machine has to tell.
    ///
    /// # Errors
    /// A fault, which none of these runs may have.
    pub fn listen(&mut self, out: &mut Vec<Output>) -> Result<(), String> {
        while let Some(event) = self.machine.next_event() {
            self.event(event, out)?;
        }
        Ok(())
    }

    fn event(&mut self, event: ClientEvent, out: &mut Vec<Output>) -> Result<(), String> {
        let Some(era) = self.machine.era() else {
            return Ok(());
        };
        match event {
            ClientEvent::Begun { .. } => {
                self.lanes.clear();
                self.hand_outs.clear();
                self.tasks.clear();
                self.running = None;
                self.pulls.clear();
            }
            ClientEvent::Compute { lane, step } => {
                self.lanes.insert(lane, step.0);
                self.go_on_lane(era, lane);
            }
            ClientEvent::Ended { lane } => {
                self.lanes.insert(lane, u64::MAX);
            }
            ClientEvent::LaneFenced { grant } => {
                if self.hand_outs.get(&grant.lane) == Some(&grant.hand_out) {
                    self.lanes.remove(&grant.lane);
                    self.hand_outs.remove(&grant.lane);
                    out.push(Output::Report(Report::Trainer(TrainerReport::LaneFenced {
                        epoch: era.epoch,
                        phase: era.phase,
                        lane: grant,
                    })));
                }
            }
            ClientEvent::Pulled { pull, items } => {
                if let Some(what) = self.pulls.remove(&pull) {
                    let values = items.into_iter().flat_map(|item| item.values).collect();
                    out.push(Output::Labour(Labour(Work::Compute(era, what, values))));
                }
            }
            ClientEvent::Reached { unit, .. } => {
                if self.stepped != Some(era.epoch) {
                    self.stepped = Some(era.epoch);
                    out.push(Output::Report(Report::Trainer(TrainerReport::Stepping {
                        epoch: era.epoch,
                    })));
                }
                out.extend(self.exporter.step(self.job.asks_every).map(Output::Report));
                if let (Unit::Task(task), Some(running)) = (unit, &mut self.running)
                    && running.grant.task == task
                {
                    running.ahead -= 1;
                }
                self.go_on(era);
            }
            ClientEvent::Finished { task, attempt, steps, cut } => {
                let metrics = Box::new(TaskMetrics { steps: Some(steps), ..self.metrics(task) });
                out.push(Output::Report(Report::Trainer(TrainerReport::TaskFinished {
                    epoch: era.epoch,
                    phase: era.phase,
                    cut,
                    task,
                    attempt,
                    metrics,
                })));
                self.running.take_if(|running| running.grant.task == task);
                self.go_on(era);
            }
            ClientEvent::AtBarrier { cut, epoch, tasks } => {
                out.push(Output::Report(Report::Trainer(TrainerReport::AtBarrier {
                    cut,
                    epoch,
                    tasks,
                })))
            }
            ClientEvent::Unreachable { member, .. } => {
                out.push(Output::Report(Report::Unreachable { member }))
            }
            ClientEvent::Outages { members } => {
                self.outages = members.into_iter().map(|(member, _)| member).collect();
            }
            ClientEvent::NotFinite { .. } | ClientEvent::Fault(_) => {
                return Err(format!("{event:?}"));
            }
        }
        Ok(())
    }

    /// Finishes a piece of work. An export goes to the folder `dir`.
    ///
    /// # Errors
    /// As [`Trainer::listen`].
    pub fn labour(
        &mut self,
        labour: Labour,
        dir: String,
        durable: &mut Durable,
        is_down: bool,
        out: &mut Vec<Output>,
    ) -> Result<(), String> {
        match labour.0 {
            Work::Compute(era, what, values) => self.computed(era, what, &values, out),
            Work::Export(number) => {
                let report = self.exporter.finish(number, dir, durable, is_down);
                self.exporter.store(durable);
                out.extend(report.map(Output::Report));
                Ok(())
            }
        }
    }

    fn computed(
        &mut self,
        era: Era,
        what: What,
        values: &[f32],
        out: &mut Vec<Output>,
    ) -> Result<(), String> {
        if self.machine.era() != Some(era) || self.draining {
            return Ok(());
        }
        match what {
            What::Lane(lane, step) if self.lanes.get(&lane) == Some(&step) => {
                if let Some((task, own)) = self.job.lane_step(lane, step) {
                    let end = self.job.end_on_last && self.job.lane_step(lane, step + 1).is_none();
                    let gradient = self.job.gradient(era.phase, task, own, values);
                    let push = StepPush {
                        step: Step(step),
                        gradient,
                        rows: self.job.rows(task, own),
                        loss: self.job.step_loss(task, own),
                        end,
                    };
                    self.send(DataRequest::PushStep { era, unit: Unit::Lane(lane), push });
                    if own + 1 == self.job.steps(task) {
                        let metrics = Box::new(self.metrics(task));
                        out.push(Output::Report(Report::Trainer(TrainerReport::TaskSteps {
                            phase: era.phase,
                            task,
                            steps: own + 1,
                            metrics,
                        })));
                    }
                    if !end {
                        self.lanes.insert(lane, step + 1);
                        self.go_on_lane(era, lane);
                    }
                }
            }
            What::Task(task, _) if let Some(retryable) = self.job.failure(era.phase, task) => {
                self.task_failed(era, task, retryable, out);
            }
            What::Task(task, step) => {
                if let Some(running) = self
                    .running
                    .as_mut()
                    .filter(|r| r.grant.task == task && r.next == step && r.asked)
                {
                    running.next += 1;
                    running.asked = false;
                    let gradient = self.job.gradient(era.phase, task, step, values);
                    let push = StepPush {
                        step: Step(step),
                        gradient,
                        rows: self.job.rows(task, step),
                        loss: self.job.step_loss(task, step),
                        end: false,
                    };
                    self.send(DataRequest::PushStep { era, unit: Unit::Task(task), push });
                    self.go_on(era);
                }
            }
            What::Evaluate(task) => {
                if let Some(running) = self.running.take_if(|running| running.grant.task == task) {
                    let (attempt, cut) = (running.grant.attempt, self.machine.cut());
                    let metrics = Box::new(TaskMetrics {
                        rows: 1,
                        loss_sum: self.job.loss(era.phase),
                        ..TaskMetrics::default()
                    });
                    self.send(DataRequest::ReleaseTask { era, task });
                    out.push(Output::Report(Report::Trainer(TrainerReport::TaskFinished {
                        epoch: era.epoch,
                        phase: era.phase,
                        cut,
                        task,
                        attempt,
                        metrics,
                    })));
                    self.go_on(era);
                }
            }
            What::Lane(..) => {}
        }
        self.listen(out)
    }

    /// The task cannot be computed: the ApplicationMaster decides about it.
    fn task_failed(&mut self, era: Era, task: TaskId, retryable: bool, out: &mut Vec<Output>) {
        let Some(running) = self.running.take_if(|running| running.grant.task == task) else {
            return;
        };
        let attempt = running.grant.attempt;
        self.send(DataRequest::ReleaseTask { era, task });
        out.push(Output::Report(Report::Trainer(TrainerReport::TaskFailed {
            epoch: era.epoch,
            phase: era.phase,
            task,
            attempt,
            retryable,
            failure: Failure::new(
                if retryable { ErrorClass::Unreachable } else { ErrorClass::Input },
                "its records cannot be read",
            ),
        })));
        self.go_on(era);
    }

    fn metrics(&self, task: TaskId) -> TaskMetrics {
        let rows = (0..self.job.steps(task)).map(|step| u64::from(self.job.rows(task, step))).sum();
        TaskMetrics { rows, ..TaskMetrics::default() }
    }

    fn go_on_lane(&mut self, era: Era, lane: Lane) {
        let Some(&step) = self.lanes.get(&lane) else {
            return;
        };
        if let Some((task, own)) = self.job.lane_step(lane, step) {
            let keys = self.job.weight_keys(era.phase, task, own);
            self.pull(era, PullAt::Before(lane, Step(step)), keys, What::Lane(lane, step));
        } else {
            let (step, gradient, loss) = (Step(step), Gradient::default(), LossSum::default());
            let push = StepPush { step, gradient, rows: 0, loss, end: true };
            self.send(DataRequest::PushStep { era, unit: Unit::Lane(lane), push });
        }
    }

    fn go_on(&mut self, era: Era) {
        if self.running.is_none()
            && let Some(grant) = self.tasks.pop_front()
        {
            self.running = Some(Running { grant, next: grant.start.0, ahead: 0, asked: false });
        }
        let Some(running) = self.running.as_mut().filter(|running| !running.asked) else {
            return;
        };
        let (task, next) = (running.grant.task, running.next);
        if matches!(self.phase, Some(Phase { sharing: Sharing::ReadOnly, .. })) {
            running.asked = true;
            self.pull(era, PullAt::Step(task, Step(0)), vec![0], What::Evaluate(task));
        } else if next >= self.job.steps(task) {
            self.send(DataRequest::EndTask { era, task });
        } else if running.ahead < AHEAD {
            running.asked = true;
            running.ahead += 1;
            let keys = self.job.weight_keys(era.phase, task, next);
            self.pull(era, PullAt::Step(task, Step(next)), keys, What::Task(task, next));
        }
    }

    fn pull(&mut self, era: Era, at: PullAt, keys: Vec<u32>, what: What) {
        let pull = PullId(self.next_pull);
        self.next_pull += 1;
        self.pulls.insert(pull, what);
        let item = PullItem { table: WEIGHTS, rows: self.job.rows_of(keys), values: Vec::new() };
        // Without pservers the step follows at once.
        let items = Some(item).filter(|_| self.job.pservers > 0).into_iter().collect();
        self.send(DataRequest::Pull { era, pull, at, items });
    }

    /// Requests of the training loop do not depend on the time.
    fn send(&mut self, request: DataRequest) {
        self.machine.on(request, 0);
    }
}
