//! A driver without IO: performs the core's actions on simulated containers, journal and store. A test can delay, drop
//! or forge each of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use heddle_am_core::{
    Action, CallId, Checkpoint, Config, ConnectionId, ContainerName, ContainerOrder,
    ContainerRequest, Core, DamagedCheckpoint, Event, Exit, InputHost, Limits, MonotonicMs, Now,
    OperationId, Outcome, Probe, Record, RecordId, RecordedSpec, StartupState, StoreCall, Stored,
    SurvivingContainer,
};
use heddle_protocol::control::{
    BeginPhase, Command, CutAt, ExportOrder, ExportedFile, ExportedModel, HandOver, HeartbeatStats,
    LaneGrant, LoadShards, Operation, OrderedFault, Phase, PserverCommand, PserverReport,
    PserverState, Registration, ReplicaState, Report, SetViews, ShardCommand, ShardReport,
    ShardState, ShardStop, ShardView, TakeCut, TaskGrant, TaskPosition, TrainerCommand,
    TrainerReport, TrainerState,
};
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{
    Attempt, CutId, Epoch, Generation, Incarnation, Lane, Member, RECORD_COUNTER, Role, RunId,
    ShardId, Slot, Step, TaskId,
};
use heddle_protocol::job_spec::{Bytes, Consistency, DurationMs, Every, JobSpec, ModelFormat};
use heddle_protocol::manifest::{InputFile, InputPlan, Manifest, Md5, ShardFile, TaskRange};
use heddle_protocol::metrics::{RecordSums, TaskMetrics};
use heddle_protocol::plan_file::PlanFile;
use heddle_protocol::task_set::TaskSet;
use heddle_protocol::view;
use uuid::Uuid;

/// A small job: 2 pservers, 2 trainers, 4 shards, 2 lanes, one pass, periodic checkpoints.
pub fn spec(consistency: Consistency) -> JobSpec {
    let mut spec = heddle_protocol::job_spec::job::sample();
    spec.data.shuffle = false;
    spec.training.consistency = consistency;
    spec.training.batch = 1;
    spec.trainers.min = 2;
    (spec.pservers.memory, spec.trainers.memory) = (Bytes::mib(64), Bytes::mib(64));
    spec.checkpoint.every = Every::Time(DurationMs::secs(600));
    spec.checkpoint.timeout = DurationMs::secs(60);
    spec.output.formats = vec![ModelFormat::Text];
    spec
}

/// This number of tasks of ten bytes each.
pub fn plan(train: u32, test: u32) -> InputPlan {
    let file = |url: &str, tasks: u32| InputFile {
        url: url.to_owned(),
        bytes: u64::from(tasks) * 10,
        modified_ms: 0,
        compression: Default::default(),
    };
    let tasks = |file: u32, count: u32| {
        (0..u64::from(count)).map(|n| TaskRange { file, start: n * 10, end: n * 10 + 10 }).collect()
    };
    InputPlan {
        files: vec![file("file:///data/train", train), file("file:///data/test", test)],
        train: tasks(0, train),
        test: tasks(1, test),
    }
}

/// What the driver does by itself; a test switches off what it does by hand.
#[derive(Clone, Copy, Debug)]
pub struct Auto {
    pub journal: bool,
    pub store: bool,
    pub cluster: bool,
    pub register: bool,
    pub hold: bool,
    pub begin: bool,
    pub arm: bool,
    pub snap: bool,
    pub save: bool,
    pub barrier: bool,
    pub export: bool,
    pub exit: bool,
    pub withdraw: bool,
    pub hand_over: bool,
}

const ALL: Auto = Auto {
    journal: true,
    store: true,
    cluster: true,
    register: true,
    hold: true,
    begin: true,
    arm: true,
    snap: true,
    save: true,
    barrier: true,
    export: true,
    exit: true,
    withdraw: true,
    hand_over: true,
};

/// A simulated container.
#[derive(Clone, Debug, Default)]
pub struct Process {
    pub container: Option<ContainerName>,
    pub connection: Option<ConnectionId>,
    pub epoch: Epoch,
    pub phase: Option<Phase>,
    pub step: Step,
    pub shards: Vec<ShardId>,
    pub lanes: Vec<LaneGrant>,
    pub tasks: Vec<TaskGrant>,
    /// Highest cut received.
    pub cut: CutId,
    pub members: Vec<Member>,
    /// Of the copies that it holds.
    pub views: Vec<ShardView>,
    pub me: Option<Member>,
    /// Copies that it saves beside the shards that it serves.
    pub saves: Vec<ShardId>,
}

/// The job under test.
pub struct Job {
    pub core: Core,
    pub now: u64,
    pub auto: Auto,
    pub config: Config,
    pub processes: BTreeMap<Member, Process>,
    pub sent: Vec<(Member, Command)>,
    pub records: Vec<Record>,
    pub durable: usize,
    pub calls: Vec<(CallId, StoreCall)>,
    pub checkpoints: Vec<Checkpoint>,
    pub asks: BTreeSet<(Slot, Incarnation)>,
    pub stopped: Vec<Member>,
    pub released: Vec<ContainerName>,
    pub probes: Vec<Member>,
    pub notices: Vec<view::JobEvent>,
    pub answers: BTreeMap<OperationId, Result<String, String>>,
    pub refused: Vec<Member>,
    /// Of all requests: excluded nodes, preferred hosts, memory other than the spec's.
    pub avoided: Vec<Vec<String>>,
    pub preferred: BTreeMap<Slot, Vec<InputHost>>,
    pub memory: Vec<(Slot, Bytes)>,
    /// Where a slot's container is granted.
    pub node: fn(Slot) -> String,
    pub outcome: Option<Outcome>,
    /// Of the ApplicationMaster itself, by order.
    pub faults: Vec<OrderedFault>,
    events: VecDeque<Event>,
    next_connection: u64,
    next_container: u64,
}

impl Job {
    /// A job of `spec` over `train` and `test` tasks that has not begun.
    pub fn new(spec: JobSpec, train: u32, test: u32) -> Self {
        let config = Config {
            run: RunId(Uuid::nil()),
            limits: Limits::of_job(&spec, 120_000),
            spec: Arc::new(spec),
            recorded: RecordedSpec::default(),
            plan: Arc::new(plan(train, test)),
            plan_file: PlanFile::default(),
            address: "127.0.0.1:1".to_owned(),
            started_ms: 0,
            cluster_lease_ms: None,
            locality: Arc::default(),
            output: Some("file:///out".to_owned()),
        };
        Self::with(config)
    }

    pub fn with(config: Config) -> Self {
        Self {
            core: Core::new(config.clone()),
            now: 1_000,
            auto: ALL,
            config,
            processes: BTreeMap::new(),
            sent: Vec::new(),
            records: Vec::new(),
            durable: 0,
            calls: Vec::new(),
            checkpoints: Vec::new(),
            asks: BTreeSet::new(),
            stopped: Vec::new(),
            released: Vec::new(),
            probes: Vec::new(),
            notices: Vec::new(),
            answers: BTreeMap::new(),
            refused: Vec::new(),
            avoided: Vec::new(),
            preferred: BTreeMap::new(),
            memory: Vec::new(),
            node: |_| "node".to_owned(),
            outcome: None,
            faults: Vec::new(),
            events: VecDeque::new(),
            next_connection: 0,
            next_container: 0,
        }
    }

    /// The same job in a new ApplicationMaster, with the journal and the checkpoints of this one. It has not begun.
    pub fn successor(&self) -> Self {
        let mut next = Self::with(self.config.clone());
        next.records = self.records.clone();
        next.durable = self.durable;
        next.checkpoints = self.checkpoints.clone();
        next
    }

    /// BSP, started, all trainers at work.
    pub fn bsp() -> Self {
        Self::started(spec(Consistency::Bsp), 4, 0)
    }

    /// ASP with this number of tasks, started, all trainers at work.
    pub fn asp(tasks: u32) -> Self {
        Self::started(spec(Consistency::Asp), tasks, 0)
    }

    pub fn started(spec: JobSpec, train: u32, test: u32) -> Self {
        let mut job = Self::new(spec, train, test);
        job.start();
        job
    }

    /// The first attempt begins, on an empty directory.
    pub fn start(&mut self) {
        self.recover(1, 1, Vec::new());
    }

    /// An attempt begins with the records and checkpoints so far.
    pub fn recover(&mut self, attempt: u32, generation: u32, kept: Vec<ContainerName>) {
        self.recover_with(attempt, generation, kept, Vec::new());
    }

    /// As [`Self::recover`], with recoveries that the attempt before had not ended.
    pub fn recover_with(
        &mut self,
        attempt: u32,
        generation: u32,
        kept: Vec<ContainerName>,
        unfinished: Vec<view::RecoveryView>,
    ) {
        let on_node = |container| SurvivingContainer { container, node: "node".to_owned() };
        let recovered = StartupState {
            attempt: Attempt(attempt),
            generation: Generation(generation),
            journal: self.records[..self.durable].to_vec(),
            damaged: Vec::new(),
            base: self.checkpoints.last().cloned(),
            checkpoints: self.checkpoints.clone(),
            kept: kept.into_iter().map(on_node).collect(),
            unfinished,
        };
        self.on(Event::Startup(Box::new(recovered)));
    }

    /// Handles one event and all events that the driver makes from its actions.
    pub fn on(&mut self, event: Event) {
        self.events.push_back(event);
        while let Some(event) = self.events.pop_front() {
            let now = Now { mono: MonotonicMs(self.now), wall_ms: 1_700_000_000_000 + self.now };
            for action in self.core.on(event, now) {
                self.perform(action);
            }
        }
    }

    /// Time passes; every deadline on the way fires; all living containers send heartbeats.
    pub fn pass(&mut self, ms: u64) {
        let end = self.now + ms;
        loop {
            let beat = self.now + 1_000;
            let next =
                self.core.next_deadline().map_or(end, |at| at.0.max(self.now)).min(beat).min(end);
            self.now = next;
            if next == beat {
                self.beat_all();
            }
            self.on(Event::Timer);
            if self.now >= end || self.outcome.is_some() {
                return;
            }
        }
    }

    /// Time passes without a heartbeat.
    pub fn pass_silently(&mut self, ms: u64) {
        let end = self.now + ms;
        while let Some(at) = self.core.next_deadline().filter(|at| at.0 <= end) {
            self.now = at.0.max(self.now + 1);
            self.on(Event::Timer);
            if self.outcome.is_some() {
                return;
            }
        }
        self.now = end;
    }

    fn beat_all(&mut self) {
        let members: Vec<Member> = self.processes.keys().copied().collect();
        for member in members {
            self.beat(member, |_| {});
        }
    }

    pub fn beat(&mut self, member: Member, change: impl FnOnce(&mut HeartbeatStats)) {
        let Some(process) = self.processes.get(&member) else {
            return;
        };
        let mut beat = HeartbeatStats {
            epoch: process.epoch,
            phase: process.phase.map(|phase| phase.no).unwrap_or_default(),
            step: process.step,
            ..HeartbeatStats::default()
        };
        change(&mut beat);
        self.report(member, Report::Heartbeat(beat));
    }

    /// The texts of the warnings of this kind.
    pub fn warnings(&self, of: view::WarningCode) -> Vec<&str> {
        let text = |notice| match notice {
            &view::JobEvent::Warning { ref text, code } if code == of => Some(text.as_str()),
            _ => None,
        };
        self.notices.iter().filter_map(text).collect()
    }

    pub fn report(&mut self, member: Member, report: impl Into<Report>) {
        if let Some(connection) = self.processes.get(&member).and_then(|process| process.connection)
        {
            self.on(Event::Report { connection, report: Box::new(report.into()) });
        }
    }

    /// The member that fills a slot now.
    pub fn at(&self, slot: Slot) -> Member {
        let here = |member: &&Member| member.slot == slot;
        *self.processes.keys().rev().find(here).unwrap_or_else(|| panic!("{slot} is empty"))
    }

    pub fn pserver(&self, index: u32) -> Member {
        self.at(Slot::pserver(index))
    }

    pub fn trainer(&self, index: u32) -> Member {
        self.at(Slot::trainer(index))
    }

    pub fn process(&self, member: Member) -> &Process {
        &self.processes[&member]
    }

    /// The process ends; the cluster reports it at once, as a local one does.
    pub fn kill(&mut self, member: Member) {
        if let Some(container) =
            self.processes.remove(&member).and_then(|process| process.container)
        {
            self.on(Event::Exited { container, exit: Exit::Signal(9), text: String::new() });
        }
    }

    pub fn exit(&mut self, member: Member, exit: Exit) {
        if let Some(container) =
            self.processes.remove(&member).and_then(|process| process.container)
        {
            self.on(Event::Exited { container, exit, text: String::new() });
        }
    }

    /// The control connection breaks; the process lives.
    pub fn disconnect(&mut self, member: Member) {
        let process = self.processes.get_mut(&member).expect("it is there");
        if let Some(connection) = process.connection.take() {
            self.on(Event::Closed { connection });
        }
    }

    /// A process registers (again).
    pub fn register(&mut self, member: Member) {
        self.next_connection += 1;
        let connection = ConnectionId(self.next_connection);
        let process = self.processes.entry(member).or_default();
        process.connection = Some(connection);
        let port = |thread: u32| {
            SocketAddr::from((
                [127, 0, 0, 1],
                (1_000 + member.slot.index * 10 + thread + member.incarnation.0 * 100) as u16,
            ))
        };
        let fresh = process.epoch == Epoch::default();
        let registration = Registration {
            member,
            container: process.container.as_ref().map(|container| container.0.clone()),
            pid: 1,
            host: "localhost".to_owned(),
            endpoints: if member.slot.role == Role::Pserver { vec![port(0)] } else { Vec::new() },
            pserver_state: (member.slot.role == Role::Pserver && !fresh).then(|| process.held()),
            trainer_state: (member.slot.role == Role::Trainer && !fresh).then(|| process.busy()),
        };
        let registration = Box::new(registration);
        self.events.push_back(Event::Registered { connection, registration });
    }

    pub fn registers(&mut self, member: Member) {
        self.register(member);
        self.on(Event::Timer);
    }

    pub fn operate(&mut self, id: u64, operation: Operation) {
        self.on(Event::Operation { id: OperationId(id), operation });
    }

    pub fn probed(&mut self, member: Member, outcome: Probe) {
        self.on(Event::Probed { member, outcome });
    }

    fn order(&mut self, order: ContainerOrder) {
        match order {
            ContainerOrder::Ask(request) => {
                let ContainerRequest { member, avoid, prefer, memory } = request;
                if !avoid.is_empty() {
                    self.avoided.push(avoid);
                }
                self.preferred.insert(member.slot, prefer);
                self.memory.extend(memory.map(|memory| (member.slot, memory)));
                let Member { slot, incarnation } = member;
                assert!(self.asks.insert((slot, incarnation)), "{slot} was asked for twice");
                if self.auto.cluster {
                    self.grant(slot, incarnation);
                }
            }
            ContainerOrder::CancelAsk(Member { slot, incarnation }) => {
                self.asks.remove(&(slot, incarnation));
            }
            ContainerOrder::Release(container) => self.released.push(container),
            ContainerOrder::Launch { container, member } => {
                self.processes
                    .insert(member, Process { container: Some(container), ..Process::default() });
                if self.auto.register {
                    self.register(member);
                }
            }
            ContainerOrder::Stop { container, member, grace_ms: _ } => {
                self.stopped.push(member);
                if self.auto.exit {
                    self.processes.remove(&member);
                    self.events.push_back(Event::Exited {
                        container,
                        exit: Exit::Signal(15),
                        text: String::new(),
                    });
                }
            }
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Container(order) => self.order(order),
            Action::Send { connection, member, command } => {
                let Some(member) = member else { return };
                if let Command::Refused { .. } = *command {
                    self.refused.push(member);
                    return;
                }
                let reads = self
                    .processes
                    .get(&member)
                    .is_some_and(|process| process.connection == Some(connection));
                if reads {
                    self.sent.push((member, (*command).clone()));
                    self.obey(member, Arc::unwrap_or_clone(command));
                }
            }
            Action::Disconnect { .. } => {}
            Action::Journal { id, record } => {
                self.records.push(*record);
                if self.auto.journal {
                    self.durable(id);
                }
            }
            Action::Store { id, call } => {
                self.calls.push((id, (*call).clone()));
                if self.auto.store {
                    self.store(id);
                }
            }
            Action::ProbePort { member, endpoint: _ } => self.probes.push(member),
            Action::Notice(event) => self.notices.push(*event),
            Action::Answer { id, result } => {
                self.answers.insert(id, result);
            }
            Action::Fault(fault) => self.faults.push(fault),
            Action::Finish(outcome) => self.outcome = Some(*outcome),
        }
    }

    pub fn grant(&mut self, slot: Slot, incarnation: Incarnation) {
        self.next_container += 1;
        let container = ContainerName(format!("c{}", self.next_container));
        self.asks.remove(&(slot, incarnation));
        self.events.push_back(Event::Allocated {
            container,
            slot,
            incarnation,
            node: (self.node)(slot),
        });
    }

    fn durable(&mut self, record: RecordId) {
        self.durable = self.records.len();
        self.events.push_back(Event::RecordDurable { record });
    }

    /// All records so far are on disk.
    pub fn all_durable(&mut self) {
        self.durable(RecordId(self.records.len() as u64));
        self.on(Event::Timer);
    }

    /// The store performs the call.
    pub fn store(&mut self, id: CallId) {
        let (_, call) =
            self.calls.iter().find(|(call, _)| *call == id).expect("it was called").clone();
        let outcome = match call {
            StoreCall::Stage { cut } => Stored::Staged(format!("file:///ck/.staging/{cut}")),
            StoreCall::Commit { manifest, .. } => {
                let bytes = manifest.to_json().expect("the core writes sound manifests");
                let manifest = Manifest::from_json(&bytes).expect("and they read back");
                let checkpoint = Checkpoint {
                    dir: format!("file:///ck/{}", manifest.cut),
                    manifest: Arc::new(manifest),
                };
                self.checkpoints.push(checkpoint.clone());
                Stored::Committed(Box::new(checkpoint))
            }
            StoreCall::Discard { .. }
            | StoreCall::Retain { .. }
            | StoreCall::ReplaceCopies { .. } => Stored::Done,
            StoreCall::OlderBase { below, error } => {
                self.checkpoints.retain(|checkpoint| checkpoint.manifest.cut < below);
                let dir = format!("file:///ck/damaged/{below}-0");
                Stored::Base {
                    base: self.checkpoints.last().cloned().map(Box::new),
                    damaged: vec![DamagedCheckpoint { cut: below, dir, error }],
                }
            }
            StoreCall::PublishModel { dir, .. } => Stored::Published(dir),
        };
        self.events.push_back(Event::Stored { call: id, outcome });
    }

    /// All tries of the final cut but the last one fail, and the last one has its directory. The storage is to be answered by hand.
    pub fn fail_final_cuts_but_the_last(&mut self) {
        for _ in 1..self.config.limits.store_tries {
            let failure = Failure::new(ErrorClass::Denied, "the quota is exceeded");
            self.answer_store(Stored::NotDone { failure });
            self.pass(60_000);
        }
        self.answer_store(Stored::Staged("file:///ck/.staging/x".to_owned()));
    }

    /// The storage is answered and all save again: the job takes another final cut and ends with it.
    pub fn takes_the_final_cut_again(&mut self) {
        (self.auto.store, self.auto.snap, self.auto.save) = (true, true, true);
        let last = self.calls.last().expect("to discard").0;
        self.store(last);
        self.pass(60_000);
        let outcome = self.outcome.clone().expect("it ends");
        assert_eq!(outcome.state, view::JobState::Finished, "{outcome:?}");
    }

    /// Answers the last call of a kind by hand.
    pub fn answer_store(&mut self, outcome: Stored) {
        let (call, _) =
            *self.calls.last().map(|(id, call)| (id, call)).as_ref().expect("something was called");
        self.on(Event::Stored { call: *call, outcome });
    }

    fn obey(&mut self, member: Member, command: Command) {
        let auto = self.auto;
        let Some(process) = self.processes.get_mut(&member) else {
            return;
        };
        let mut ups = Vec::new();
        match command {
            Command::Pserver(PserverCommand::LoadShards(LoadShards {
                epoch,
                shards,
                base: _,
                phase,
                step,
                views,
                ..
            })) => {
                let from_storage = shards.len() as u32;
                if process.epoch != epoch && auto.hold {
                    process.epoch = epoch;
                    process.shards = shards;
                    (process.views, process.me) = (views, Some(member));
                    process.phase = Some(phase);
                    process.step = step;
                }
                if auto.hold {
                    let loaded = Vec::new();
                    ups.push(Report::Pserver(PserverReport::ShardsReady {
                        epoch,
                        from_memory: 0,
                        from_storage,
                        loaded,
                    }));
                }
            }
            Command::Pserver(PserverCommand::Begin(BeginPhase { epoch, phase }))
                if auto.begin && epoch == process.epoch =>
            {
                process.phase = Some(phase);
                process.step = Step(0);
                ups.push(Report::Pserver(PserverReport::Begun { epoch, phase: phase.no }));
            }
            Command::Shards(ShardCommand::Views(SetViews { epoch, views }))
                if epoch == process.epoch =>
            {
                for view in views {
                    ups.extend(process.take_view(epoch, view));
                }
            }
            Command::Shards(ShardCommand::HandOver(HandOver { epoch, shards }))
                if auto.hand_over =>
            {
                ups.extend(shards.into_iter().map(|ShardStop { shard, term, version }| {
                    Report::Shard {
                        epoch,
                        report: ShardReport::Drained { shard, term, version, number: 0 },
                    }
                }));
            }
            Command::Shards(ShardCommand::Members { trainers }) => process.members = trainers,
            Command::Pserver(PserverCommand::Cut(TakeCut { cut, epoch, at, copies, .. })) => {
                process.cut = cut;
                process.saves = copies;
                if auto.arm {
                    ups.push(Report::Pserver(PserverReport::CutArmed { cut, epoch }));
                }
                let at_once = match &at {
                    CutAt::Steps(step) => *step == process.step,
                    CutAt::Barriers(set) => set.is_empty(),
                };
                if auto.snap && at_once {
                    ups.extend(snaps(process, cut, epoch, process.step));
                    if auto.save {
                        ups.extend(saves(process, cut, epoch));
                        ups.extend(saves_copies(process, cut, epoch));
                    }
                }
            }
            Command::Trainer(TrainerCommand::Work { epoch, phase, .. }) => {
                if process.epoch != epoch || process.phase.map(|phase| phase.no) != Some(phase.no) {
                    process.tasks.clear();
                    process.lanes.clear();
                }
                process.epoch = epoch;
                process.phase = Some(phase);
            }
            Command::Trainer(TrainerCommand::Lanes { lanes, .. }) => process.lanes = lanes,
            Command::Trainer(TrainerCommand::Tasks { tasks, .. }) => process.tasks.extend(tasks),
            Command::Trainer(TrainerCommand::Withdraw { tasks, .. }) if auto.withdraw => {
                process.tasks.retain(|grant| {
                    !tasks
                        .iter()
                        .any(|over| (over.task, over.attempt) == (grant.task, grant.attempt))
                });
                ups.push(Report::Trainer(TrainerReport::Withdrawn { tasks }));
            }
            Command::Trainer(TrainerCommand::Barrier { cut, epoch }) if auto.barrier => {
                process.cut = cut;
                let tasks = process.positions();
                ups.push(Report::Trainer(TrainerReport::AtBarrier { cut, epoch, tasks }));
            }
            Command::Export(ExportOrder { lease, .. }) if auto.export => {
                let files = vec![ExportedFile {
                    name: "model.txt".to_owned(),
                    bytes: 1,
                    md5: "0".repeat(32),
                }];
                ups.push(Report::Exported(ExportedModel { lease, dir: member.to_string(), files }));
            }
            _ => {}
        }
        let connection = process.connection;
        if let Some(connection) = connection {
            let report = |up| Event::Report { connection, report: Box::new(up) };
            self.events.extend(ups.into_iter().map(report));
        }
    }

    /// Every shard has its snapshot of the cut, at this step, and saves it.
    pub fn snap_all(&mut self, cut: CutId, step: u64) {
        for member in self.pservers() {
            for up in snaps(self.process(member), cut, self.process(member).epoch, Step(step)) {
                self.report(member, up);
            }
        }
    }

    pub fn save_all(&mut self, cut: CutId) {
        for member in self.pservers() {
            for up in saves(self.process(member), cut, self.process(member).epoch) {
                self.report(member, up);
            }
        }
    }

    pub fn pservers(&self) -> Vec<Member> {
        self.processes.keys().copied().filter(|member| member.slot.role == Role::Pserver).collect()
    }

    pub fn trainers(&self) -> Vec<Member> {
        self.processes.keys().copied().filter(|member| member.slot.role == Role::Trainer).collect()
    }

    /// BSP: the phase ends on all shards after this number of steps.
    pub fn end_phase(&mut self, step: u64) {
        self.end_phase_with(step, None);
    }

    /// The same; the first shard has counted this.
    pub fn end_phase_with(&mut self, step: u64, counted: Option<RecordSums>) {
        for member in self.pservers() {
            let process = self.processes.get_mut(&member).expect("it is there");
            process.step = Step(step);
            let (epoch, phase) = (process.epoch, process.phase.expect("it serves one").no);
            for shard in process.shards.clone() {
                let (step, sums) = (Step(step), counted.filter(|_| shard == RECORD_COUNTER));
                self.report(
                    member,
                    Report::Shard {
                        epoch,
                        report: ShardReport::PhaseEnded { phase, shard, step, sums },
                    },
                );
            }
        }
    }

    /// The trainer that has a task finishes it.
    pub fn finish(&mut self, member: Member, task: TaskId) {
        self.finish_with(member, task, 0);
    }

    /// The same with this number of bad records in the task.
    pub fn finish_with(&mut self, member: Member, task: TaskId, bad_records: u64) {
        let process = self.processes.get_mut(&member).expect("it is there");
        let at =
            process.tasks.iter().rposition(|grant| grant.task == task).expect("it holds the task");
        let grant = process.tasks.remove(at);
        let mut up = process.finished(grant);
        if let Report::Trainer(TrainerReport::TaskFinished { metrics, .. }) = &mut up {
            metrics.bad_records = bad_records;
        }
        self.report(member, up);
    }

    /// All trainers finish their tasks until no trainer has one.
    pub fn finish_all(&mut self) {
        while let Some((member, task)) = self
            .processes
            .iter()
            .find_map(|(member, process)| Some((*member, process.tasks.first()?.task)))
        {
            self.finish(member, task);
        }
    }

    /// The open cut's name, from the last `Cut` command.
    pub fn cut(&self) -> CutId {
        let cut = self.sent.iter().rev().find_map(|(_, command)| match command {
            Command::Pserver(PserverCommand::Cut(TakeCut { cut, .. })) => Some(*cut),
            _ => None,
        });
        cut.expect("a cut was ordered")
    }

    pub fn cut_at(&self) -> CutAt {
        let at = self.sent.iter().rev().find_map(|(_, command)| match command {
            Command::Pserver(PserverCommand::Cut(TakeCut { at, .. })) => Some(at.clone()),
            _ => None,
        });
        at.expect("a cut was ordered")
    }

    /// Commands to a member since `from`.
    pub fn told(&self, member: Member, from: usize) -> Vec<&Command> {
        self.sent[from..]
            .iter()
            .filter(|(to, _)| *to == member)
            .map(|(_, command)| command)
            .collect()
    }

    pub fn warned(&self, words: &str) -> bool {
        self.notices.iter().any(|notice| format!("{notice:?}").contains(words))
    }
}

impl Process {
    pub fn positions(&self) -> Vec<TaskPosition> {
        let position = |grant: &TaskGrant| TaskPosition {
            task: grant.task,
            attempt: grant.attempt,
            step: grant.start,
        };
        self.tasks.iter().map(position).collect()
    }

    pub fn finished(&self, grant: TaskGrant) -> Report {
        Report::Trainer(TrainerReport::TaskFinished {
            epoch: self.epoch,
            phase: self.phase.expect("it works").no,
            cut: self.cut,
            task: grant.task,
            attempt: grant.attempt,
            metrics: Box::new(TaskMetrics {
                rows: 10,
                loss_sum: 5.0,
                correct: 8,
                ..TaskMetrics::default()
            }),
        })
    }

    fn held(&self) -> PserverState {
        let phase = self.phase.expect("it holds");
        let state = |shard: &ShardId| ShardState {
            shard: *shard,
            phase: phase.no,
            step: self.step,
            ended: false,
            counted: None,
            tasks: Vec::new(),
            done: TaskSet::default(),
            replica: self.views.iter().find(|view| view.shard == *shard).map_or(
                ReplicaState::ALONE,
                |view| ReplicaState {
                    term: view.term,
                    version: view.version,
                    primary: Some(view.primary) == self.me,
                    ..ReplicaState::ALONE
                },
            ),
        };
        let shards = self.shards.iter().map(state).collect();
        PserverState::new(self.epoch, self.cut, shards)
    }

    /// Another view of a copy; returns the report of a primary that serves in it.
    fn take_view(&mut self, epoch: Epoch, view: ShardView) -> Option<Report> {
        let at = self.views.iter().position(|own| own.shard == view.shard);
        if at.is_some_and(|at| self.views[at].order() >= view.order()) {
            return None;
        }
        // The first view of a copy that a refill brings is the one that orders it.
        let at = at.unwrap_or(self.views.len());
        match self.views.get_mut(at) {
            Some(own) => *own = view,
            None => self.views.push(view),
        }
        let own = &self.views[at];
        let ShardView { shard, term, version, primary, .. } = *own;
        if self.me.is_some_and(|me| own.in_sync.contains(&me)) && !self.shards.contains(&shard) {
            // A refill has brought it.
            self.shards.push(shard);
        }
        (Some(primary) == self.me).then_some(Report::Shard {
            epoch,
            report: ShardReport::ViewTaken { shard, term, version },
        })
    }

    fn busy(&self) -> TrainerState {
        TrainerState {
            epoch: self.epoch,
            phase: self.phase.map(|phase| phase.no).unwrap_or_default(),
            cut: self.cut,
            tasks: self.positions(),
            lanes: self.lanes.clone(),
        }
    }
}

pub fn snaps(process: &Process, cut: CutId, epoch: Epoch, step: Step) -> Vec<Report> {
    process
        .shards
        .iter()
        .map(|shard| Report::Shard {
            epoch,
            report: ShardReport::SnapshotTaken { cut, shard: *shard, step },
        })
        .collect()
}

pub fn saves(process: &Process, cut: CutId, epoch: Epoch) -> Vec<Report> {
    let serves = |shard: &&ShardId| {
        let view = process.views.iter().find(|view| view.shard == **shard);
        view.is_none_or(|view| Some(view.primary) == process.me)
    };
    process.shards.iter().filter(serves).map(|shard| saved(cut, epoch, *shard, 0, 0)).collect()
}

/// It saves the copies that it was ordered to save.
pub fn saves_copies(process: &Process, cut: CutId, epoch: Epoch) -> Vec<Report> {
    let holder = process.me.map_or(0, |me| 1 + me.slot.index);
    process.saves.iter().map(|shard| saved(cut, epoch, *shard, holder, 0)).collect()
}

/// A file of a shard is saved. `holder`: makes the name another one; `sum`: the content.
pub fn saved(cut: CutId, epoch: Epoch, shard: ShardId, holder: u32, sum: u8) -> Report {
    let (number, holder) = (u128::from(cut.number), u128::from(holder));
    let uuid = Uuid::from_u128(number << 64 | holder << 32 | u128::from(shard.0));
    let file = ShardFile {
        shard,
        uuid,
        file: ShardFile::name(shard, uuid),
        md5: Md5([sum; 16]),
        bytes: 1,
        at_ms: 0,
        sha256: None,
        copies: Vec::new(),
    };
    Report::Pserver(PserverReport::Saved { cut, epoch, file, tables: Vec::new() })
}

/// The lanes that a trainer runs.
pub fn lanes_of(job: &Job, trainer: Member) -> Vec<Lane> {
    let lanes = &job.process(trainer).lanes;
    lanes.iter().map(|grant| grant.lane).collect()
}

/// A position at a step of a hand-out.
pub fn position(grant: TaskGrant, step: u64) -> TaskPosition {
    TaskPosition { task: grant.task, attempt: grant.attempt, step: Step(step) }
}
