//! The training loop against tables in the test: its pushes and its reports.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam::channel::{Receiver, bounded};
use heddle_client::gradient::TableGradient;
use heddle_client::layout::Rows;
use heddle_client::machine::{
    ClientEvent, DataRequest, Era, PullAt, PullId, PullItem, StepPush, Unit,
};
use heddle_input::{TaskLength, plan_input};
use heddle_protocol::control::{
    LaneGrant, Phase, Report, ShardPlace, Sharing, TaskGrant, TaskHandOut, TrainerCommand,
    TrainerReport,
};
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{
    CutId, Epoch, Generation, HandOut, Incarnation, Lane, Member, PhaseNo, ShardId, Slot, Step,
    TableId, TaskAttempt, TaskId,
};
use heddle_protocol::job_spec::*;
use heddle_protocol::manifest::InputFile;
use heddle_protocol::metrics::TaskMetrics;
use heddle_storage::{LocalStorage, Storage, StorePath};

use super::feeds::Feeds;
use super::plane::DataPlane;
use super::reports::LoopReports;
use super::status::SharedStatus;
use super::trainer::Trainer;
use crate::algorithm::{Algorithm, StepWork};
use crate::feed::{FeedId, FeedItem};

/// Adds 1 to the row of each feature of each record; pulls those rows first if `pulls` is set.
struct Counting {
    pulls: bool,
}

impl Algorithm for Counting {
    fn constants(&self, _: JobPhase) -> Vec<PullItem> {
        vec![PullItem { table: TableId(0), rows: Rows::Range(0..1), values: vec![0.0] }]
    }

    fn begin(&mut self, _: JobPhase, constants: Vec<PullItem>) -> Result<(), Failure> {
        assert_eq!(constants.len(), 1);
        Ok(())
    }

    fn prepare(&mut self, work: &mut StepWork) {
        if self.pulls {
            let mut keys = work.batch.indices.clone();
            keys.sort_unstable();
            let values = vec![0.0; keys.len()];
            work.pulls.push(PullItem { table: TableId(0), rows: Rows::Keys(keys), values });
        }
    }

    fn compute(&mut self, work: &mut StepWork, metrics: &mut TaskMetrics) {
        metrics.rows += work.batch.rows() as u64;
        let mut keys = work.batch.indices.clone();
        keys.sort_unstable();
        let values = vec![1.0; keys.len()];
        work.gradient.tables.push(TableGradient {
            table: TableId(0),
            rows: Rows::Keys(keys),
            values,
        });
    }
}

/// Shards, as one trainer sees them.
#[derive(Default)]
struct Shards {
    era: Option<Era>,
    table: Vec<f32>,
    events: VecDeque<ClientEvent>,
    parked: Vec<(Lane, Step, PullId, Vec<PullItem>)>,
    lanes: BTreeMap<Lane, LaneMark>,
    tasks: BTreeMap<TaskId, TaskGrant>,
    /// Accepted pushes, as (unit, step, rows).
    log: Vec<(u32, u64, u32)>,
    /// Positions of lanes that are taken over.
    stand: u64,
}

struct LaneMark {
    applied: u64,
    staged: Option<StepPush>,
    ended: bool,
}

impl Shards {
    fn answer(&mut self, pull: PullId, mut items: Vec<PullItem>) {
        for item in &mut items {
            let rows: Vec<usize> = match &item.rows {
                Rows::Positions(_) => unreachable!("the tables are dense"),
                Rows::Range(range) => (range.start as usize..range.end as usize).collect(),
                Rows::Keys(keys) => keys.iter().map(|key| *key as usize).collect(),
            };
            item.values = rows.into_iter().map(|row| self.table[row]).collect();
        }
        self.events.push_back(ClientEvent::Pulled { pull, items });
    }

    fn apply(&mut self, push: &StepPush) {
        for part in &push.gradient.tables {
            let Rows::Keys(keys) = &part.rows else { panic!("keys are pushed") };
            keys.iter()
                .zip(&part.values)
                .for_each(|(key, value)| self.table[*key as usize] += value);
        }
    }

    /// Applies the step if all lanes have staged theirs.
    fn barrier(&mut self) {
        if self.lanes.values().any(|lane| !lane.ended && lane.staged.is_none()) {
            return;
        }
        let cut = CutId::default();
        let names: Vec<Lane> = self.lanes.keys().copied().collect();
        for name in names {
            let Some(lane) = self.lanes.get_mut(&name) else {
                continue;
            };
            if let Some(push) = lane.staged.take() {
                lane.applied += 1;
                lane.ended = push.end;
                self.apply(&push);
                let (unit, gradient) = (Unit::Lane(name), Default::default());
                self.events.push_back(ClientEvent::Reached {
                    unit,
                    step: push.step,
                    cut,
                    gradient,
                });
                if push.end {
                    self.events.push_back(ClientEvent::Ended { lane: name });
                }
            }
        }
        let applied =
            self.lanes.iter().map(|(lane, mark)| (*lane, mark.applied)).collect::<BTreeMap<_, _>>();
        let (ready, parked): (Vec<_>, _) = std::mem::take(&mut self.parked)
            .into_iter()
            .partition(|(lane, step, ..)| applied.get(lane).is_some_and(|at| *at == step.0));
        self.parked = parked;
        for (_, _, pull, items) in ready {
            self.answer(pull, items);
        }
    }
}

impl DataPlane for Arc<Mutex<Shards>> {
    fn cut(&mut self, _pserver: Slot, _ms: u64) {}

    fn send(&mut self, request: DataRequest) {
        let mut shards = self.lock().unwrap();
        match request {
            DataRequest::Work { epoch, phase, .. } => shards.begin(Era { epoch, phase: phase.no }),
            DataRequest::Barrier { cut, epoch } => {
                shards.events.push_back(ClientEvent::AtBarrier { cut, epoch, tasks: vec![] });
            }
            DataRequest::TakeOver { era, grant } => shards.take_over(era, grant),
            DataRequest::ReleaseLane { lane, .. } => {
                shards.lanes.remove(&lane);
            }
            DataRequest::HoldTask { grant, .. } => {
                shards.tasks.insert(grant.task, grant);
            }
            DataRequest::ReleaseTask { task, .. } => {
                shards.tasks.remove(&task);
            }
            DataRequest::EndTask { task, .. } => {
                let attempt = shards.tasks.remove(&task).expect("a held task").attempt;
                shards.events.push_back(ClientEvent::Finished {
                    task,
                    attempt,
                    steps: 0,
                    cut: CutId::default(),
                });
            }
            DataRequest::Pull { era, pull, at, items } => shards.pull(era, pull, at, items),
            DataRequest::PushStep { era, unit, push } => shards.push_step(era, unit, push),
        }
    }
}

impl Shards {
    fn begin(&mut self, era: Era) {
        if self.era != Some(era) {
            self.era = Some(era);
            self.parked.clear();
            self.lanes.clear();
            self.tasks.clear();
            self.events.push_back(ClientEvent::Begun { era });
        }
    }

    fn take_over(&mut self, era: Era, LaneGrant { lane, .. }: LaneGrant) {
        assert_eq!(self.era, Some(era));
        let stand = self.stand;
        self.lanes.insert(lane, LaneMark { applied: stand, staged: None, ended: false });
        self.events.push_back(ClientEvent::Compute { lane, step: Step(stand) });
    }

    fn pull(&mut self, era: Era, pull: PullId, at: PullAt, items: Vec<PullItem>) {
        if self.era != Some(era) {
            return;
        }
        match at {
            PullAt::Before(lane, step) if self.lanes[&lane].applied != step.0 => {
                assert!(self.lanes[&lane].applied < step.0, "a pull of the past");
                self.parked.push((lane, step, pull, items));
            }
            _ => self.answer(pull, items),
        }
    }

    fn push_step(&mut self, era: Era, unit: Unit, push: StepPush) {
        if self.era != Some(era) {
            return;
        }
        self.log.push((unit.number(), push.step.0, push.rows));
        match unit {
            Unit::Task(task) => {
                assert!(self.tasks.contains_key(&task), "a push of a task that is not held");
                self.apply(&push);
                let (step, cut, gradient) = (push.step, CutId::default(), Default::default());
                self.events.push_back(ClientEvent::Reached { unit, step, cut, gradient });
            }
            Unit::Lane(lane) => {
                let mark = self.lanes.get_mut(&lane).expect("a lane that is run");
                assert!(!mark.ended && mark.staged.is_none() && mark.applied == push.step.0);
                mark.staged = Some(push);
                self.barrier();
            }
        }
    }
}

struct Rig {
    _dir: tempfile::TempDir,
    trainer: Trainer<Arc<Mutex<Shards>>>,
    shards: Arc<Mutex<Shards>>,
    items: Receiver<(FeedId, FeedItem)>,
    reports: Arc<Mutex<Vec<Report>>>,
}

const EPOCH: Epoch = Epoch { generation: Generation(1), count: 0 };

fn lane_grant(lane: u32, count: u32) -> LaneGrant {
    let generation = Generation(1);
    LaneGrant { lane: Lane(lane), hand_out: HandOut { generation, count } }
}

impl Rig {
    /// Files with these numbers of records; each record has a feature of its own, counted over all files.
    fn new(rows: &[usize], pulls: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut next = 0;
        let files = rows.iter().enumerate().map(|(file, rows)| {
            let text: String = (next..next + rows).map(|row| format!("1 {row}:1\n")).collect();
            next += rows;
            input(dir.path(), file, &format!("\n{text}"))
        });
        let files: Vec<_> = files.collect();
        let (items, read) = bounded(64);
        let shards = Arc::new(Mutex::new(Shards { table: vec![0.0; 1000], ..Shards::default() }));
        let reports = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&reports);
        let status = SharedStatus::default();
        let plan = plan_input(DataFormat::Libsvm, files.clone(), files, TaskLength::Bytes(1 << 20));
        let trainer = Trainer::new(
            sample(),
            Box::new(Counting { pulls }),
            Arc::clone(&shards),
            LoopReports::new(Box::new(move |report| sink.lock().unwrap().push(report))),
            status.clone(),
            Feeds::new(plan, dir.path().join("bad"), status.waits(), None, items),
        );
        Self { _dir: dir, trainer, shards, items: read, reports }
    }

    fn phase(&mut self, epoch: Epoch, no: u32, sharing: Sharing) {
        let phase = Phase { no: PhaseNo(no), sharing };
        self.trainer.command(TrainerCommand::Work { epoch, phase, places: vec![] });
    }

    fn lanes(&mut self, epoch: Epoch, lanes: &[u32], task_steps: &[(u32, u64)]) {
        let grants: Vec<LaneGrant> = lanes.iter().map(|lane| lane_grant(*lane, 1)).collect();
        self.lane_grants(epoch, grants, task_steps);
    }

    fn lane_grants(&mut self, epoch: Epoch, lanes: Vec<LaneGrant>, task_steps: &[(u32, u64)]) {
        self.trainer.command(TrainerCommand::Lanes {
            epoch,
            phase: PhaseNo(0),
            lanes,
            task_steps: task_steps.iter().map(|(task, steps)| (TaskId(*task), *steps)).collect(),
        });
    }

    fn tasks(&mut self, phase: u32, grants: &[(u32, u32, u64)]) {
        let grant = |(task, attempt, start): &(u32, u32, u64)| TaskGrant {
            task: TaskId(*task),
            attempt: TaskAttempt(*attempt),
            start: Step(*start),
        };
        let tasks = grants.iter().map(grant).collect();
        self.trainer.command(TrainerCommand::Tasks { epoch: EPOCH, phase: PhaseNo(phase), tasks });
    }

    /// Runs until `done` returns true.
    fn until(&mut self, done: impl Fn(&Shards, &[Report]) -> bool) {
        loop {
            loop {
                let event = self.shards.lock().unwrap().events.pop_front();
                let Some(event) = event else { break };
                self.trainer.event(event);
            }
            if done(&self.shards.lock().unwrap(), &self.reports.lock().unwrap()) {
                return;
            }
            let item = self.items.recv_timeout(Duration::from_secs(20));
            let (feed, item) = item
                .unwrap_or_else(|_| panic!("stuck; reports: {:?}", self.reports.lock().unwrap()));
            self.trainer.item(feed, item);
        }
    }

    fn counts(&self, rows: usize) -> Vec<f32> {
        self.shards.lock().unwrap().table[..rows].to_vec()
    }

    fn task_steps(&self) -> BTreeMap<u32, u64> {
        let reports = self.reports.lock().unwrap();
        let steps = reports.iter().filter_map(|report| match report {
            Report::Trainer(TrainerReport::TaskSteps { task, steps, .. }) => Some((task.0, *steps)),
            _ => None,
        });
        steps.collect()
    }
}

fn input(dir: &Path, file: usize, text: &str) -> InputFile {
    let path = dir.join(format!("{file:03}.libsvm"));
    std::fs::write(&path, text).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let entry = runtime
        .block_on(LocalStorage.stat(&StorePath::parse(path.to_str().unwrap()).unwrap()))
        .unwrap();
    InputFile {
        url: format!("file://{}", path.display()),
        bytes: entry.bytes,
        modified_ms: entry.modified_ms,
        compression: Default::default(),
    }
}

fn finished(reports: &[Report]) -> Vec<(u32, u32, u64)> {
    let finished = reports.iter().filter_map(|report| match report {
        Report::Trainer(TrainerReport::TaskFinished { task, attempt, metrics, .. }) => {
            Some((task.0, attempt.0, metrics.rows))
        }
        _ => None,
    });
    let mut finished: Vec<_> = finished.collect();
    finished.sort();
    finished
}

#[test]
fn lanes_push_every_record_once_and_report_steps_of_tasks() {
    for pulls in [true, false] {
        let mut rig = Rig::new(&[5, 0, 3, 7, 1], pulls);
        rig.phase(EPOCH, 0, Sharing::Lanes { lanes: 3 });
        rig.lanes(EPOCH, &[0, 1, 2], &[]);
        rig.until(|shards, reports| {
            let done = reports
                .iter()
                .filter(|report| matches!(report, Report::Trainer(TrainerReport::TaskSteps { .. })))
                .count();
            done == 5 && shards.lanes.values().all(|lane| lane.ended)
        });
        assert_eq!(rig.counts(16), [1.0; 16]);
        assert_eq!(rig.task_steps(), BTreeMap::from([(0, 3), (1, 0), (2, 2), (3, 4), (4, 1)]));
        let reports = rig.reports.lock().unwrap();
        assert_eq!(
            reports
                .iter()
                .filter(|report| matches!(report, Report::Trainer(TrainerReport::Stepping { .. })))
                .count(),
            1
        );
    }
}

#[test]
fn first_step_after_a_shard_moved_is_reported() {
    let place = |incarnation| ShardPlace {
        shard: ShardId(0),
        holder: Member { slot: Slot::pserver(0), incarnation: Incarnation(incarnation) },
        endpoint: ([127, 0, 0, 1], 7000).into(),
    };
    let mut rig = Rig::new(&[40], true);
    let phase = Phase { no: PhaseNo(0), sharing: Sharing::Lanes { lanes: 1 } };
    let steppings = |reports: &[Report]| {
        reports
            .iter()
            .filter(|report| matches!(report, Report::Trainer(TrainerReport::Stepping { .. })))
            .count()
    };
    rig.trainer.command(TrainerCommand::Work { epoch: EPOCH, phase, places: vec![place(1)] });
    rig.lanes(EPOCH, &[0], &[]);
    rig.until(|_, reports| steppings(reports) == 1);
    // The same map again says nothing, another one asks for a report.
    rig.trainer.command(TrainerCommand::Work { epoch: EPOCH, phase, places: vec![place(1)] });
    rig.trainer.command(TrainerCommand::Work { epoch: EPOCH, phase, places: vec![place(2)] });
    rig.until(|shards, _| shards.lanes.values().all(|lane| lane.ended));
    assert_eq!(steppings(&rig.reports.lock().unwrap()), 2);
}

#[test]
fn a_lane_without_data_ends_with_an_empty_step() {
    let mut rig = Rig::new(&[2], true);
    rig.phase(EPOCH, 0, Sharing::Lanes { lanes: 2 });
    rig.lanes(EPOCH, &[0, 1], &[]);
    rig.until(|shards, _| shards.lanes.values().all(|lane| lane.ended));
    let mut log = rig.shards.lock().unwrap().log.clone();
    log.sort();
    assert_eq!(log, [(0, 0, 2), (1, 0, 0)]);
}

#[test]
fn the_next_holder_of_a_lane_computes_its_remaining_steps() {
    let mut first = Rig::new(&[4, 4, 4, 4], true);
    first.phase(EPOCH, 0, Sharing::Lanes { lanes: 2 });
    first.lanes(EPOCH, &[0, 1], &[]);
    first.until(|shards, _| shards.lanes.values().all(|lane| lane.ended));
    let whole = first.shards.lock().unwrap().log.clone();
    let steps: Vec<(u32, u64)> = first.task_steps().into_iter().collect();
    for known in [&steps[..], &[]] {
        for stand in 0..4 {
            let mut second = Rig::new(&[4, 4, 4, 4], true);
            second.shards.lock().unwrap().stand = stand;
            second.phase(EPOCH, 0, Sharing::Lanes { lanes: 2 });
            second.lanes(EPOCH, &[0, 1], known);
            second.until(|shards, _| shards.lanes.values().all(|lane| lane.ended));
            let mut rest: Vec<_> = whole.iter().copied().filter(|push| push.1 >= stand).collect();
            let mut log = second.shards.lock().unwrap().log.clone();
            rest.sort();
            log.sort();
            assert_eq!(log, rest, "from step {stand}");
            assert_eq!(second.counts(16).iter().sum::<f32>(), 16.0 - 4.0 * stand as f32);
        }
    }
}

#[test]
fn tasks_finish_on_acknowledgement_and_start_at_their_position() {
    let mut rig = Rig::new(&[5, 0, 3], true);
    rig.phase(EPOCH, 0, Sharing::Queue);
    rig.tasks(0, &[(0, 1, 1), (1, 1, 0), (2, 3, 0)]);
    // The order is repeated, as after a reconnection.
    rig.tasks(0, &[(0, 1, 1), (2, 3, 0)]);
    rig.until(|_, reports| finished(reports).len() == 3);
    assert_eq!(finished(&rig.reports.lock().unwrap()), [(0, 1, 3), (1, 1, 0), (2, 3, 3)]);
    assert_eq!(rig.counts(8), [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
}

#[test]
fn an_evaluation_pushes_nothing() {
    let mut rig = Rig::new(&[5, 3], true);
    rig.phase(EPOCH, 1, Sharing::ReadOnly);
    rig.tasks(1, &[(0, 1, 0), (1, 1, 0)]);
    rig.until(|_, reports| finished(reports).len() == 2);
    assert_eq!(finished(&rig.reports.lock().unwrap()), [(0, 1, 5), (1, 1, 3)]);
    assert_eq!(rig.shards.lock().unwrap().log, []);
}

#[test]
fn a_new_epoch_drops_steps_in_progress() {
    let mut rig = Rig::new(&[40, 40], true);
    rig.phase(EPOCH, 0, Sharing::Lanes { lanes: 2 });
    rig.lanes(EPOCH, &[0, 1], &[]);
    rig.until(|shards, _| shards.log.len() > 5);
    rig.shards.lock().unwrap().table.fill(0.0);
    let later = EPOCH.next();
    rig.phase(later, 0, Sharing::Lanes { lanes: 2 });
    // Orders of a stale process and of the epoch before have no effect.
    rig.phase(EPOCH, 0, Sharing::Lanes { lanes: 2 });
    rig.lanes(EPOCH, &[0], &[]);
    rig.lanes(later, &[0, 1], &[]);
    rig.until(|shards, _| shards.lanes.values().all(|lane| lane.ended));
    assert_eq!(rig.counts(80), [1.0; 80]);
}

#[test]
fn a_revoked_lane_is_not_computed_further() {
    let mut rig = Rig::new(&[8, 8], true);
    rig.phase(EPOCH, 0, Sharing::Lanes { lanes: 2 });
    rig.lanes(EPOCH, &[0, 1], &[]);
    rig.lanes(EPOCH, &[1], &[]);
    rig.until(|shards, _| shards.lanes[&Lane(1)].ended);
    assert!(rig.shards.lock().unwrap().log.iter().all(|push| push.0 == 1));
}

/// S1: a fenced lane is dropped and reported; after a new hand-out it is taken over again.
#[test]
fn fenced_lane_is_taken_over_at_its_next_hand_out() {
    let mut rig = Rig::new(&[8], true);
    rig.phase(EPOCH, 0, Sharing::Lanes { lanes: 1 });
    rig.lanes(EPOCH, &[0], &[]);
    let fenced = |count| ClientEvent::LaneFenced { grant: lane_grant(0, count) };
    let reported = |rig: &Rig| {
        let reports = rig.reports.lock().unwrap();
        let is = |report: &&Report| {
            matches!(
                report,
                Report::Trainer(TrainerReport::LaneFenced { lane, .. }) if *lane == lane_grant(0, 1)
            )
        };
        reports.iter().filter(is).count()
    };
    rig.until(|shards, _| !shards.log.is_empty());
    rig.shards.lock().unwrap().lanes.clear();
    rig.trainer.event(fenced(1));
    rig.trainer.event(fenced(1));
    assert_eq!(reported(&rig), 1);
    rig.lane_grants(EPOCH, vec![lane_grant(0, 2)], &[]);
    assert!(rig.shards.lock().unwrap().lanes.contains_key(&Lane(0)));
    rig.trainer.event(fenced(1));
    assert_eq!(reported(&rig), 1, "of the hand-out before");
    // The same order again, as after a reconnection.
    rig.shards.lock().unwrap().lanes.clear();
    rig.lane_grants(EPOCH, vec![lane_grant(0, 2)], &[]);
    assert!(rig.shards.lock().unwrap().lanes.is_empty());
}

#[test]
fn a_lane_taken_again_receives_no_items_of_its_old_feed() {
    let mut rig = Rig::new(&[30], true);
    rig.phase(EPOCH, 0, Sharing::Lanes { lanes: 1 });
    rig.lanes(EPOCH, &[0], &[]);
    rig.until(|shards, _| shards.log.len() > 2);
    rig.lanes(EPOCH, &[], &[]);
    let applied = rig.counts(30).iter().filter(|count| **count > 0.0).count();
    rig.shards.lock().unwrap().stand = applied as u64 / 2;
    rig.lanes(EPOCH, &[0], &[]);
    rig.until(|shards, _| shards.lanes[&Lane(0)].ended);
    assert_eq!(rig.counts(30), [1.0; 30]);
}

#[test]
fn a_malformed_record_fails_its_task_with_its_place() {
    for sharing in [Sharing::Lanes { lanes: 1 }, Sharing::Queue] {
        let mut rig = Rig::new(&[2], true);
        let file = input(rig._dir.path(), 0, "\n1 0:1\nbad x\n");
        rig.trainer.feeds.replace_plan(plan_input(
            DataFormat::Libsvm,
            vec![file],
            vec![],
            TaskLength::Bytes(1 << 20),
        ));
        rig.phase(EPOCH, 0, sharing);
        rig.lanes(EPOCH, &[0], &[]);
        rig.tasks(0, &[(0, 2, 0)]);
        rig.until(|_, reports| {
            reports
                .iter()
                .any(|report| matches!(report, Report::Trainer(TrainerReport::TaskFailed { .. })))
        });
        let reports = rig.reports.lock().unwrap();
        let failed = reports.iter().find_map(|report| match report {
            Report::Trainer(TrainerReport::TaskFailed { attempt, retryable, failure, .. }) => {
                Some((attempt.0, *retryable, failure.clone()))
            }
            _ => None,
        });
        let (attempt, retryable, failure) = failed.unwrap();
        assert_eq!(attempt, if sharing == Sharing::Queue { 2 } else { 0 });
        assert!(
            failure
                .text
                .contains("000.libsvm:3:1: expected a label, found \"bad\"; data.bad-records"),
            "{failure}"
        );
        assert_eq!((retryable, failure.class), (false, ErrorClass::Input));
    }
}

#[test]
fn a_drained_trainer_hands_back_its_work() {
    let mut rig = Rig::new(&[50, 5], true);
    rig.phase(EPOCH, 0, Sharing::Queue);
    rig.tasks(0, &[(0, 1, 0), (1, 1, 0)]);
    rig.until(|shards, _| shards.log.len() > 3);
    rig.trainer.command(TrainerCommand::Drain);
    let reports = rig.reports.lock().unwrap();
    let Some(Report::Trainer(TrainerReport::Drained { tasks, .. })) = reports.last() else {
        panic!("{reports:?}")
    };
    assert!(tasks.iter().any(|position| position.task == TaskId(0) && position.step > Step(0)));
    assert!(rig.shards.lock().unwrap().tasks.is_empty());
}

#[test]
fn s41_a_trainer_stops_work_on_a_hand_out_that_is_over() {
    let mut rig = Rig::new(&[50, 5], true);
    rig.phase(EPOCH, 0, Sharing::Queue);
    rig.tasks(0, &[(0, 1, 0)]);
    rig.until(|shards, _| shards.log.len() > 3);
    let withdraw = |rig: &mut Rig, attempt| {
        let hand_out = TaskHandOut { task: TaskId(0), attempt: TaskAttempt(attempt) };
        let tasks = vec![hand_out];
        rig.trainer.command(TrainerCommand::Withdraw { epoch: EPOCH, phase: PhaseNo(0), tasks });
        let reports = rig.reports.lock().unwrap();
        assert!(
            matches!(
                reports.last(),
                Some(Report::Trainer(TrainerReport::Withdrawn { tasks })) if tasks[..] == [hand_out]
            ),
            "{reports:?}"
        );
    };
    withdraw(&mut rig, 9);
    assert!(!rig.shards.lock().unwrap().tasks.is_empty(), "another hand-out of the task");
    withdraw(&mut rig, 1);
    assert!(rig.shards.lock().unwrap().tasks.is_empty());
    // The next task is computed to its end.
    rig.tasks(0, &[(1, 2, 0)]);
    rig.until(|_, reports| {
        let ends = |report: &Report| {
            matches!(
                report,
                Report::Trainer(TrainerReport::TaskFinished {
                    task: TaskId(1),
                    attempt: TaskAttempt(2),
                    ..
                })
            )
        };
        reports.iter().any(ends)
    });
    let reports = rig.reports.lock().unwrap();
    let of_first = |report: &&Report| {
        matches!(report, Report::Trainer(TrainerReport::TaskFinished { task: TaskId(0), .. }))
    };
    assert_eq!(reports.iter().find(of_first).map(|_| ()), None);
}

#[test]
fn a_trainer_without_work_answers_a_drain_at_once() {
    let mut rig = Rig::new(&[5], true);
    rig.trainer.command(TrainerCommand::Drain);
    let drained = |rig: &Rig| {
        let reports = rig.reports.lock().unwrap();
        let is_drained =
            |report: &&Report| matches!(report, Report::Trainer(TrainerReport::Drained { .. }));
        reports.iter().filter(is_drained).count()
    };
    assert_eq!(drained(&rig), 1);
    // Assigned work that has not begun does not begin.
    rig.phase(EPOCH, 0, Sharing::Queue);
    rig.tasks(0, &[(0, 1, 0)]);
    assert_eq!(drained(&rig), 2);
    assert!(rig.shards.lock().unwrap().log.is_empty());
}

/// 1000 features, 3 lanes of 2 records, one shard.
pub(crate) fn sample() -> JobSpec {
    let mut spec = job::sample();
    spec.data.test = spec.data.train.clone();
    spec.data.index_base = 0;
    spec.model.features = 1000;
    (spec.training.lanes, spec.training.batch) = (3, 2);
    (spec.pservers.count, spec.pservers.shards) = (1, 1);
    spec
}
