//! Two shards on two pservers and a few clients, moved frame by frame: for schedules that are known to break the obvious
//! protocol. Without an ApplicationMaster; the script sends its commands.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use heddle_client::machine::{
    ClientEvent, ClientMachine, Closed, DataRequest, Era, PullAt, PullId, PullItem, RequestFrame,
    StepPush, Unit,
};
use heddle_protocol::control::{
    Base, CutAt, EndCut, LaneGrant, LoadShards, Phase, ShardPlace, ShardReport, Sharing, TakeCut,
    TaskGrant,
};
use heddle_protocol::frame::{Header, Kind, Status};
use heddle_protocol::ids::{
    CutId, Epoch, Generation, HandOut, Incarnation, Lane, Member, PhaseNo, RunId, ShardId, Slot,
    Step, TaskAttempt, TaskId,
};
use heddle_protocol::job_spec::Consistency;
use heddle_protocol::process_figures::ProcessFigure;
use heddle_shard::{Conn, PulledRows, Shard, ShardEffect, ShardSet};

use super::job::{COUNTS, Job, WEIGHT_ROWS, WEIGHTS};
use super::world::Bits;

/// The first shard and the second: A and B.
pub const A: usize = 0;
/// See [`A`].
pub const B: usize = 1;

struct Client {
    machine: ClientMachine,
    member: Member,
    conns: [Option<Conn>; 2],
    /// Replies on their way, by shard.
    replies: [VecDeque<ShardEffect>; 2],
    events: VecDeque<ClientEvent>,
    pulls: u64,
}

/// The stage on which a schedule is played.
pub struct Scene {
    job: Job,
    hosts: [ShardSet; 2],
    clients: BTreeMap<usize, Client>,
    era: Era,
    phase: Phase,
    now_ms: u64,
    /// The ApplicationMaster's.
    generation: Generation,
    /// How often a lane was handed out.
    hand_outs: u32,
    /// Reports of shards to the ApplicationMaster, oldest first.
    pub reports: Vec<(usize, ShardReport)>,
}

/// The pserver of a shard.
fn holder(shard: usize) -> Member {
    Member { slot: Slot::pserver(shard as u32), incarnation: Incarnation(1) }
}

fn endpoint(shard: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 7000 + shard as u16))
}

impl Scene {
    /// Both shards at their initial values in phase 0, without a connection.
    #[must_use]
    pub fn new(job: Job) -> Self {
        let sharing = match job.consistency {
            Consistency::Bsp => Sharing::Lanes { lanes: job.lanes },
            Consistency::Ssp => Sharing::ClockedQueue { staleness: job.staleness },
            Consistency::Asp => Sharing::Queue,
        };
        let mut scene = Self {
            job,
            hosts: [0, 1].map(|shard| ShardSet::new(holder(shard), 0)),
            clients: BTreeMap::new(),
            era: Era { epoch: Epoch::default(), phase: PhaseNo(0) },
            phase: Phase { no: PhaseNo(0), sharing },
            now_ms: 0,
            generation: Generation(1),
            hand_outs: 0,
            reports: Vec::new(),
        };
        scene.roll_back(None);
        scene
    }

    /// All shards roll back: to a snapshot in memory, or to the start. Clients receive no order ([`Scene::order_work`]).
    pub fn roll_back(&mut self, base: Option<(CutId, Step)>) {
        let epoch = match self.era.epoch {
            none if none == Epoch::default() => Epoch::first(Generation(1)),
            known => known.next(),
        };
        self.era.epoch = epoch;
        for shard in [A, B] {
            self.load(shard, base);
        }
    }

    /// Sends the epoch to one pserver (again).
    pub fn load(&mut self, shard: usize, base: Option<(CutId, Step)>) {
        let mut out = Vec::new();
        let step = base.map_or(Step(0), |(_, step)| step);
        let host = &mut self.hosts[shard];
        let ids = [ShardId(shard as u32)];
        let base = base.map(|(cut, _)| Base {
            cut,
            run: RunId::default(),
            epoch: Epoch::default(),
            dir: String::new(),
            files: BTreeMap::new(),
            initial: false,
        });
        let (epoch, phase) = (self.era.epoch, self.phase);
        let load = LoadShards {
            epoch,
            shards: ids.to_vec(),
            base,
            phase,
            step,
            views: Vec::new(),
            lost: None,
        };
        let missing = host.load(&load, &ids, &mut out);
        // A host that is in the epoch already reports that and changes nothing.
        for id in missing.unwrap_or_default() {
            let installed = host.install(self.era.epoch, Shard::new(&self.job.shard(id)), &mut out);
            assert_eq!(installed, Ok(()), "initial values fit");
        }
        self.take(shard, out);
    }

    /// A trainer joins, connects to both shards and receives work.
    pub fn join(&mut self, number: usize) {
        let member = Member { slot: Slot::trainer(number as u32), incarnation: Incarnation(1) };
        let client = Client {
            machine: ClientMachine::of(self.job.layout(), self.job.spec().pservers.moves_shards()),
            member,
            conns: [None, None],
            replies: Default::default(),
            events: VecDeque::new(),
            pulls: 0,
        };
        self.clients.insert(number, client);
        self.tell_members();
        self.order_work(number);
        for shard in [A, B] {
            self.connect(number, shard);
        }
    }

    fn tell_members(&mut self) {
        let members: Vec<_> = self.clients.values().map(|client| client.member).collect();
        for shard in [A, B] {
            let mut out = Vec::new();
            self.hosts[shard].members(&members, &mut out);
            self.take(shard, out);
        }
    }

    fn request(&mut self, number: usize, request: DataRequest) {
        let now_ms = self.now_ms;
        self.client(number).machine.on(request, now_ms);
    }

    /// Sends epoch and phase to a trainer.
    pub fn order_work(&mut self, number: usize) {
        let place = |shard: usize| ShardPlace {
            shard: ShardId(shard as u32),
            holder: holder(shard),
            endpoint: endpoint(shard),
        };
        let (epoch, phase, now_ms) = (self.era.epoch, self.phase, self.now_ms);
        self.request(number, DataRequest::Work { epoch, phase, places: vec![place(A), place(B)] });
        while self.client(number).machine.next_connect(now_ms).is_some() {}
        self.listen(number);
    }

    /// A connection that is down opens.
    pub fn connect(&mut self, number: usize, shard: usize) {
        let member = self.client(number).member;
        let mut out = Vec::new();
        let conn = self.hosts[shard].connect(member, &mut out).ok();
        self.take(shard, out);
        let client = self.client(number);
        client.conns[shard] = conn;
        client.machine.opened(endpoint(shard), 0);
    }

    /// A connection breaks, with all that is on it, and is opened again.
    pub fn reconnect(&mut self, number: usize, shard: usize) {
        self.disconnect(number, shard);
        self.connect(number, shard);
    }

    /// A connection breaks, with all that is on it.
    pub fn disconnect(&mut self, number: usize, shard: usize) {
        if let Some(conn) = self.client(number).conns[shard].take() {
            let mut out = Vec::new();
            self.hosts[shard].disconnect(conn, &mut out);
            self.take(shard, out);
        }
        let client = self.client(number);
        client.replies[shard].clear();
        let now_ms = self.now_ms;
        let client = self.client(number);
        client.machine.closed(endpoint(shard), Closed::Broke, now_ms);
    }
    /// A trainer is dead: what it had not sent is gone, shards know it no more.
    pub fn kill(&mut self, number: usize) {
        if let Some(client) = self.clients.remove(&number) {
            for shard in [A, B] {
                if let Some(conn) = client.conns[shard] {
                    let mut out = Vec::new();
                    self.hosts[shard].disconnect(conn, &mut out);
                    self.take(shard, out);
                }
            }
        }
        self.tell_members();
    }

    fn client(&mut self, number: usize) -> &mut Client {
        self.clients.get_mut(&number).expect("the script names a trainer that has joined")
    }

    /// Puts effects of a shard where they belong.
    fn take(&mut self, shard: usize, effects: Vec<ShardEffect>) {
        for effect in effects {
            match &effect {
                ShardEffect::Reply { conn, .. } | ShardEffect::Values { conn, .. } => {
                    let asked =
                        self.clients.values_mut().find(|client| client.conns[shard] == Some(*conn));
                    if let Some(client) = asked {
                        client.replies[shard].push_back(effect);
                    }
                }
                ShardEffect::Close { conn } => {
                    for client in self
                        .clients
                        .values_mut()
                        .filter(|client| client.conns[shard] == Some(*conn))
                    {
                        client.conns[shard] = None;
                    }
                }
                ShardEffect::Report(report) => self.reports.push((shard, report.clone())),
                // No scene has replicas.
                ShardEffect::Local(_)
                | ShardEffect::Replicate
                | ShardEffect::CannotServe { .. }
                | ShardEffect::Settled { .. } => {}
            }
        }
    }

    /// The next frames of a trainer reach a shard. Returns what they were; fewer if there are no more.
    pub fn send(&mut self, number: usize, shard: usize, count: usize) -> Vec<Header> {
        let mut sent = Vec::new();
        while sent.len() < count {
            let Some(conn) = self.client(number).conns[shard] else {
                break;
            };
            let Some(RequestFrame { header, payload }) =
                self.client(number).machine.next_frame(endpoint(shard))
            else {
                break;
            };
            let mut out = Vec::new();
            let (keys, values) = (payload.key_words(), payload.values());
            let frame = heddle_shard::Frame { conn, header, keys, values };
            let _ = self.hosts[shard].on_frame(&frame, &mut out);
            self.take(shard, out);
            sent.push(header);
        }
        sent
    }

    /// All replies of a shard reach the trainer.
    pub fn hear(&mut self, number: usize, shard: usize) {
        let now_ms = self.now_ms;
        while let Some(effect) = self.client(number).replies[shard].pop_front() {
            let (header, values) = match effect {
                ShardEffect::Reply { header, .. } => (header, Vec::new()),
                ShardEffect::Values { header, rows, .. } => self.values(shard, &header, &rows),
                ShardEffect::Close { .. }
                | ShardEffect::Report(_)
                | ShardEffect::Local(_)
                | ShardEffect::Replicate
                | ShardEffect::CannotServe { .. }
                | ShardEffect::Settled { .. } => continue,
            };
            self.client(number).machine.frame_with(endpoint(shard), &header, &values, now_ms);
        }
        self.listen(number);
    }

    fn values(&self, shard: usize, header: &Header, rows: &PulledRows) -> (Header, Vec<f32>) {
        let host = &self.hosts[shard];
        let mut values = Vec::new();
        let there = match rows {
            PulledRows::Range => host.range(header).map(|range| values.extend_from_slice(range)),
            PulledRows::Keys(keys) => host.gather(header, keys, &mut values),
        };
        match there {
            Some(()) => (*header, values),
            None => (header.reply(Kind::Refused, Status::Stale), Vec::new()),
        }
    }

    fn listen(&mut self, number: usize) {
        let client = self.client(number);
        while let Some(event) = client.machine.next_event() {
            client.events.push_back(event);
        }
    }

    /// Everything of these trainers arrives, both ways, until nothing moves.
    pub fn settle(&mut self, numbers: &[usize]) {
        loop {
            let mut moved = 0;
            for &number in numbers {
                for shard in [A, B] {
                    moved += self.send(number, shard, usize::MAX).len();
                    moved += self.client(number).replies[shard].len();
                    self.hear(number, shard);
                }
            }
            if moved == 0 {
                return;
            }
        }
    }

    /// Time passes: what trainers wait to do again becomes due.
    pub fn wait(&mut self, ms: u64) {
        self.now_ms += ms;
        let now_ms = self.now_ms;
        let numbers: Vec<usize> = self.clients.keys().copied().collect();
        for number in numbers {
            self.client(number).machine.timer(now_ms);
            self.listen(number);
        }
    }

    /// Events of a trainer since the last call.
    pub fn events(&mut self, number: usize) -> Vec<ClientEvent> {
        std::mem::take(&mut self.client(number).events).into()
    }

    /// A trainer takes a lane over; where it is to compute, or nothing if it does not yet know or need not.
    pub fn take_over(&mut self, number: usize, lane: u32) -> Option<u64> {
        self.hand_out(number, lane);
        self.settle(&[number]);
        self.events(number).into_iter().find_map(|event| match event {
            ClientEvent::Compute { lane: of, step } if of == Lane(lane) => Some(step.0),
            _ => None,
        })
    }

    /// A trainer receives a lane; none of its requests has been sent yet. The trainer that had the lane receives no order.
    pub fn hand_out(&mut self, number: usize, lane: u32) {
        self.hand_outs += 1;
        let grant = LaneGrant {
            lane: Lane(lane),
            hand_out: HandOut { generation: self.generation, count: self.hand_outs },
        };
        let era = self.era;
        self.request(number, DataRequest::TakeOver { era, grant });
    }

    /// A trainer's lane is revoked.
    pub fn give_up(&mut self, number: usize, lane: u32) {
        let era = self.era;
        self.request(number, DataRequest::ReleaseLane { era, lane: Lane(lane) });
        self.listen(number);
    }

    /// A trainer pulls what a lane's step needs (all of which arrives), computes, and pushes (none of which arrives yet).
    /// False: the pull was not answered.
    pub fn compute(&mut self, number: usize, lane: u32, step: u64) -> bool {
        let (task, own) = self.job.lane_step(Lane(lane), step).expect("the lane has this step");
        let keys = self.job.weight_keys(self.era.phase, task, own);
        let Some(values) = self.pull(number, PullAt::Before(Lane(lane), Step(step)), keys) else {
            return false;
        };
        let end = self.job.lane_step(Lane(lane), step + 1).is_none();
        let gradient = self.job.gradient(self.era.phase, task, own, &values);
        let (rows, loss) = (self.job.rows(task, own), self.job.step_loss(task, own));
        let push = StepPush { step: Step(step), gradient, rows, loss, end };
        let era = self.era;
        self.request(number, DataRequest::PushStep { era, unit: Unit::Lane(Lane(lane)), push });
        true
    }

    /// A trainer holds a task from this step on.
    pub fn grant(&mut self, number: usize, task: u32, start: u64) {
        let (era, grant) = (
            self.era,
            TaskGrant { task: TaskId(task), attempt: TaskAttempt(1), start: Step(start) },
        );
        self.request(number, DataRequest::HoldTask { era, grant });
    }

    /// As [`Scene::compute`], for a step of a task.
    pub fn compute_task(&mut self, number: usize, task: u32, step: u64) {
        let task = TaskId(task);
        let keys = self.job.weight_keys(self.era.phase, task, step);
        let values = self.pull(number, PullAt::Now, keys).expect("a free pull is served at once");
        self.push_task_step(number, task, step, &values);
    }

    fn push_task_step(&mut self, number: usize, task: TaskId, step: u64, values: &[f32]) {
        let gradient = self.job.gradient(self.era.phase, task, step, values);
        let (rows, loss) = (self.job.rows(task, step), self.job.step_loss(task, step));
        let push = StepPush { step: Step(step), gradient, rows, loss, end: false };
        let era = self.era;
        self.request(number, DataRequest::PushStep { era, unit: Unit::Task(task), push });
    }

    /// A trainer pulls all weights for a step of a task, from both shards. Nothing of it arrives yet.
    pub fn pull_step(&mut self, number: usize, task: u32, step: u64) -> PullId {
        let at = PullAt::Step(TaskId(task), Step(step));
        self.request_pull(number, at, (0..WEIGHT_ROWS as u32).collect())
    }

    /// A trainer computes and pushes the step of a pull (none of which arrives yet). False: the pull is not answered.
    pub fn push_pulled(&mut self, number: usize, task: u32, step: u64, pull: PullId) -> bool {
        let Some(all) = self.pulled(number, pull) else { return false };
        let task = TaskId(task);
        let cols = all.len() / WEIGHT_ROWS as usize;
        let keys = self.job.weight_keys(self.era.phase, task, step);
        let rows = keys.iter().map(|key| &all[*key as usize * cols..][..cols]);
        self.push_task_step(number, task, step, &rows.collect::<Vec<_>>().concat());
        true
    }

    /// SSP: the largest gap of a pull that a shard has granted.
    #[must_use]
    pub fn gap_max(&self) -> u64 {
        let gaps = self.hosts.iter().map(|host| host.figures().get(ProcessFigure::PullGapMax));
        gaps.max().unwrap_or(0)
    }

    /// A task has no more steps.
    pub fn task_done(&mut self, number: usize, task: u32) {
        let era = self.era;
        self.request(number, DataRequest::EndTask { era, task: TaskId(task) });
    }

    /// First step of a task that not every shard has acknowledged, as the trainer would report it.
    pub fn position(&mut self, number: usize, task: u32) -> Option<u64> {
        let positions = self.client(number).machine.positions();
        positions
            .iter()
            .find(|position| position.task == TaskId(task))
            .map(|position| position.step.0)
    }

    fn pull(&mut self, number: usize, at: PullAt, keys: Vec<u32>) -> Option<Vec<f32>> {
        let pull = self.request_pull(number, at, keys);
        self.settle(&[number]);
        self.pulled(number, pull)
    }

    fn request_pull(&mut self, number: usize, at: PullAt, keys: Vec<u32>) -> PullId {
        let era = self.era;
        let client = self.client(number);
        client.pulls += 1;
        let pull = PullId(client.pulls);
        let item = PullItem { table: WEIGHTS, rows: self.job.rows_of(keys), values: Vec::new() };
        self.request(number, DataRequest::Pull { era, pull, at, items: vec![item] });
        pull
    }

    /// The values of a pull, once it is answered.
    fn pulled(&mut self, number: usize, pull: PullId) -> Option<Vec<f32>> {
        let events = &mut self.client(number).events;
        let at = events.iter().position(
            |event| matches!(event, ClientEvent::Pulled { pull: of, .. } if *of == pull),
        )?;
        match events.remove(at) {
            Some(ClientEvent::Pulled { items, .. }) => {
                Some(items.into_iter().flat_map(|item| item.values).collect())
            }
            _ => None,
        }
    }

    /// Shards hear of a cut.
    pub fn cut(&mut self, shard: usize, number: u32, at: &CutAt) {
        let mut out = Vec::new();
        let (cut, epoch, phase) = (self.cut_id(number), self.era.epoch, self.era.phase);
        let (at, staging, copies) = (at.clone(), String::new(), Vec::new());
        let command =
            TakeCut { cut, epoch, phase, at, staging, copies, initial: false, last: false };
        let result = self.hosts[shard].cut(&command, std::time::Duration::ZERO, &mut out);
        assert_eq!(result, Ok(()));
        self.take(shard, out);
    }

    /// The cut became a checkpoint, or not.
    pub fn end_cut(&mut self, number: u32, committed: bool) {
        for shard in [A, B] {
            let mut out = Vec::new();
            let cut = self.cut_id(number);
            self.hosts[shard].cut_end(EndCut { cut, committed }, &mut out);
            self.take(shard, out);
        }
    }

    /// The name of a cut.
    #[must_use]
    pub fn cut_id(&self, number: u32) -> CutId {
        CutId { generation: self.generation, number }
    }

    /// Another ApplicationMaster takes over: nothing changes but its generation, in which cuts are counted from 1 again.
    pub fn take_over_job(&mut self) {
        self.generation = self.generation.next();
    }

    /// Sends a cut's barrier to a trainer.
    pub fn barrier(&mut self, number: usize, cut: u32) {
        let (cut, epoch) = (self.cut_id(cut), self.era.epoch);
        self.request(number, DataRequest::Barrier { cut, epoch });
        self.listen(number);
    }

    /// The members of trainers, for a cut's set.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        self.clients.values().map(|client| client.member).collect()
    }

    /// Job steps that a shard has applied.
    #[must_use]
    pub fn applied(&self, shard: usize) -> u64 {
        self.hosts[shard].states().first().map_or(0, |state| state.step.0)
    }

    /// Where a shard stands with a task: its next step, and whether it is done.
    #[must_use]
    pub fn task_on(&self, shard: usize, task: u32) -> Option<(u64, bool)> {
        let states = self.hosts[shard].states();
        let state = states.first()?;
        if state.done.contains(TaskId(task)) {
            return Some((0, true));
        }
        let mut positions = state.tasks.iter();
        let position = positions.find(|position| position.task == TaskId(task))?;
        Some((position.step.0, false))
    }

    /// Shards that have snapped this cut.
    #[must_use]
    pub fn snapped(&self, number: u32) -> Vec<usize> {
        let cut = self.cut_id(number);
        let is = |report: &ShardReport| match report {
            ShardReport::SnapshotTaken { cut: of, .. } => *of == cut,
            _ => false,
        };
        self.reports.iter().filter(|(_, report)| is(report)).map(|(shard, _)| *shard).collect()
    }

    /// Values of both tables, by bits.
    #[must_use]
    pub fn bits(&self) -> Bits {
        let mut bits = Vec::new();
        for table in [WEIGHTS, COUNTS] {
            for (index, host) in self.hosts.iter().enumerate() {
                let values =
                    host.shard(ShardId(index as u32)).and_then(|shard| shard.table_values(table));
                bits.extend(values.unwrap_or_default().iter().map(|value| value.to_bits()));
            }
        }
        bits
    }

    /// How often each step was counted.
    #[must_use]
    pub fn counts(&self) -> Vec<f32> {
        let bits = self.bits();
        let weights = self.job.tables()[0].values() as usize;
        bits[weights..].iter().map(|bits| f32::from_bits(*bits)).collect()
    }
}
