//! What is trained: small enough that a run takes a thousand events, with what makes errors visible.
//!
//! Table 0 is trained by gradient descent with gradients that depend on the values pulled, so a gradient of other
//! values, or sums in another order, give other bits. In table 1 every step adds 1 to a row of its own, so a step that
//! is lost or counted twice is named by its row.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use heddle_am_core::{Config, Limits, RecordedSpec};
use heddle_client::gradient::{Gradient, TableGradient};
use heddle_client::layout::{Layout, Rows, TableShape};
use heddle_protocol::frame::{Header, Kind, flags};
use heddle_protocol::ids::{Lane, PhaseNo, RunId, ShardId, TableId, TaskId};
use heddle_protocol::job_spec::position::{position_of_key, shard_of_position};
use heddle_protocol::job_spec::{
    AlgorithmKind, Consistency, DurationMs, Elasticity, Every, JobKind, JobSpec, KeptPass,
    ModelSpec, Optimizer, RecoveryScope, TableKind, TableSpec, TaskShare, dense_table, job_phase,
};
use heddle_protocol::manifest::{Compression, InputFile, InputPlan, TaskRange};
use heddle_protocol::metrics::{LossSum, RecordSums};
use heddle_shard::{ShardConfig, ShardSet, SparseLimits};

use super::chance::mix;

/// Table that is trained.
pub const WEIGHTS: TableId = TableId(0);
/// Table in which steps are counted.
pub const COUNTS: TableId = TableId(1);
/// How long an attempt leads after the ResourceManager's last answer.
pub const LEASE_MS: u64 = 10_000;
/// How long a trainer may write the model without progress.
pub const SAVE_LEASE_MS: u64 = 5_000;
/// Rows of [`WEIGHTS`].
pub const WEIGHT_ROWS: u64 = 5;
const WEIGHT_COLS: u32 = 2;

/// A job and its data.
#[derive(Clone, Debug)]
pub struct Job {
    /// What it is for.
    pub kind: JobKind,
    /// BSP, SSP or ASP.
    pub consistency: Consistency,
    /// SSP: how many steps a pull may be ahead of the slowest trainer.
    pub staleness: u32,
    /// BSP: number of lanes.
    pub lanes: u32,
    /// Steps of each task, from task 0.
    pub tasks: Vec<u64>,
    /// Times over the data.
    pub passes: u32,
    /// Tasks of the test data; an evaluation follows each pass if there are any.
    pub test_tasks: u32,
    /// BSP: whether the last real step of a lane carries its end, or an empty step after it.
    pub end_on_last: bool,
    /// Number of pservers.
    pub pservers: u32,
    /// Backups of each shard.
    pub replicas: u32,
    /// Least and most pservers of an elastic job.
    pub pservers_between: Option<[u32; 2]>,
    /// Files of each shard in a checkpoint.
    pub copies: u32,
    /// Controllers set the numbers of its trainers and pservers.
    pub elastic: bool,
    /// Number of trainers at the most; one is enough to work.
    pub trainers: u32,
    /// Pservers and trainers besides that are idle until one is lost.
    pub spares: [u32; 2],
    /// Trainers beyond them for late tasks.
    pub extra: u32,
    /// Trainers without work for this time leave until there is work.
    pub idle_timeout: DurationMs,
    /// Whether the shards of a lost pserver go back alone.
    pub local: bool,
    /// Number of shards.
    pub shards: u32,
    /// When to take checkpoints.
    pub every: Every,
    /// Data threads of each pserver.
    pub data_threads: u32,
    /// Evaluations without a better loss after which training ends; 0: never.
    pub early_stop: u32,
    /// Whether the model of the best pass is exported.
    pub keep_best: bool,
    /// Loss of the evaluation after each pass; 1 after the last of them.
    pub losses: Vec<f64>,
    /// Whether the model is exported.
    pub output: bool,
    /// After how many of its steps a trainer's program asks for a save of the model; 0: never.
    pub asks_every: u64,
    /// How long a trainer computes at the most, in simulated time: with 0 a phase is over between two heartbeats.
    pub compute_ms: u64,
    /// How many times as long as others the first container of trainer-0 computes, and a later one.
    pub slow: [u64; 2],
    /// A task that cannot be computed in the passes before this one.
    pub poisoned: Option<(TaskId, u32)>,
    /// Whether both tables are sparse: rows exist from the first push on, and a rollback removes them again.
    pub sparse: bool,
    /// What a shard may use for copies of snapshots, for gradients that come early and for frames that wait, bytes.
    pub room: Room,
    /// Of all this, for [`Job::config`].
    pub made: OnceLock<Arc<Config>>,
}

/// Room of a shard, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Copies of what snapshots hold.
    pub copies: usize,
    /// BSP: gradients of lanes before whose turn.
    pub early: usize,
    /// Frames that wait.
    pub waiting: usize,
}

impl Room {
    /// For everything.
    pub const AMPLE: Self = Self { copies: 1 << 16, early: 1 << 16, waiting: usize::MAX };
    /// For one copy of 1 KiB, of which a shard's tables take two; for one small gradient; for two frames or three.
    pub const TIGHT: Self = Self { copies: 1024, early: 48, waiting: 300 };
}

impl Job {
    /// Two lanes or as many trainers over two pservers, uneven tasks, two passes.
    #[must_use]
    pub fn small(consistency: Consistency) -> Self {
        Self {
            kind: JobKind::Train,
            consistency,
            staleness: 0,
            lanes: 2,
            tasks: vec![2, 1, 1],
            passes: 2,
            test_tasks: 0,
            end_on_last: true,
            pservers: 2,
            replicas: 0,
            pservers_between: None,
            copies: 1,
            elastic: false,
            trainers: 2,
            spares: [0, 0],
            extra: 0,
            idle_timeout: DurationMs::secs(60),
            local: false,
            shards: 2,
            every: Every::Steps(2),
            data_threads: 1,
            early_stop: 0,
            keep_best: false,
            losses: Vec::new(),
            output: false,
            asks_every: 0,
            compute_ms: 0,
            slow: [1, 1],
            poisoned: None,
            sparse: false,
            room: Room::AMPLE,
            made: OnceLock::new(),
        }
    }

    /// Whether it changes tables, so that its end is a checkpoint.
    #[must_use]
    pub fn has_state(&self) -> bool {
        self.kind == JobKind::Train
    }

    /// The loss that the evaluation of this phase finds.
    #[must_use]
    pub fn loss(&self, phase: PhaseNo) -> f64 {
        let pass = job_phase(self.spec(), phase).and_then(|phase| phase.scores);
        pass.map_or(0.0, |pass| self.loss_after(pass))
    }

    fn loss_after(&self, pass: u32) -> f64 {
        self.losses.get(pass as usize).copied().unwrap_or(1.0)
    }

    /// Passes until training ends: all of them, or until too many evaluations in a row found no lower loss than before.
    #[must_use]
    pub fn passes_run(&self) -> u32 {
        let (mut best, mut since) = (f64::INFINITY, 0);
        for pass in 0..self.passes {
            since += 1;
            if self.loss_after(pass) < best {
                (best, since) = (self.loss_after(pass), 0);
            }
            if self.early_stop > 0 && self.test_tasks > 0 && since >= self.early_stop {
                return pass + 1;
            }
        }
        self.passes
    }

    /// The pass whose model is exported.
    #[must_use]
    pub fn model_pass(&self) -> u32 {
        let passes = 0..self.passes_run();
        let by_loss = |a: &u32, b: &u32| self.loss_after(*a).total_cmp(&self.loss_after(*b));
        let best = passes.clone().min_by(by_loss).filter(|_| self.keep_best);
        best.or(passes.last()).unwrap_or(0)
    }

    /// Tasks of a lane, in order.
    #[must_use]
    pub fn lane_tasks(&self, lane: Lane) -> Vec<TaskId> {
        (lane.0..self.tasks.len() as u32).step_by(self.lanes as usize).map(TaskId).collect()
    }

    /// Steps of a task.
    #[must_use]
    pub fn steps(&self, task: TaskId) -> u64 {
        self.tasks[task.0 as usize]
    }

    /// Task and its own step behind a step of a lane; nothing beyond the lane's last.
    #[must_use]
    pub fn lane_step(&self, lane: Lane, step: u64) -> Option<(TaskId, u64)> {
        let mut left = step;
        for task in self.lane_tasks(lane) {
            if left < self.steps(task) {
                return Some((task, left));
            }
            left -= self.steps(task);
        }
        None
    }

    /// Records behind a step: a weight for the mean that differs from step to step.
    #[must_use]
    pub fn rows(&self, task: TaskId, step: u64) -> u32 {
        1 + (task.0 + step as u32) % 3
    }

    /// What the records of a step lose. Sums of these depend on the order of addition.
    #[must_use]
    pub fn step_loss(&self, task: TaskId, step: u64) -> LossSum {
        LossSum::new(f64::from(task.0 + 1) * 0.1 + step as f64 / 3.0)
    }

    /// What all records of a pass add up to, lane by lane.
    #[must_use]
    pub fn pass_sums(&self) -> RecordSums {
        let lane_sums = |lane| {
            let mut sums = RecordSums::default();
            let steps = (0..).map_while(|step| self.lane_step(Lane(lane), step));
            for (task, own) in steps {
                sums.add(self.rows(task, own), self.step_loss(task, own));
            }
            sums
        };
        let lanes: Vec<RecordSums> = (0..self.lanes).map(lane_sums).collect();
        RecordSums::over(&lanes)
    }

    /// The rows of `COUNTS` that this step adds to. Local recovery: one of each shard, so that each update of a shard that is
    /// lost is a count that is missing.
    #[must_use]
    pub fn count_keys(&self, task: TaskId, step: u64) -> Vec<u32> {
        let before: u64 = self.tasks[..task.0 as usize].iter().sum();
        let (row, steps) = (before + step, self.tasks.iter().sum::<u64>());
        (0..self.counts_of_a_step()).map(|copy| (copy * steps + row) as u32).collect()
    }

    fn counts_of_a_step(&self) -> u64 {
        match self.local && !self.sparse {
            true => u64::from(self.shards),
            false => 1,
        }
    }

    /// Whether each step counts on each shard.
    #[must_use]
    pub fn counts_on_each_shard(&self) -> bool {
        self.counts_of_a_step() == u64::from(self.shards)
    }

    /// The rows of `WEIGHTS` that a step needs: differ from step to step and may lie on one shard.
    #[must_use]
    pub fn weight_keys(&self, phase: PhaseNo, task: TaskId, step: u64) -> Vec<u32> {
        let draw = mix(u64::from(phase.0) << 40 | u64::from(task.0) << 20 | step);
        let mut keys: Vec<u32> =
            (0..WEIGHT_ROWS as u32).filter(|row| draw >> row & 1 == 1).collect();
        if self.sparse {
            keys.sort_by_key(|key| position_of_key(u64::from(*key)));
        }
        if keys.is_empty() { vec![0] } else { keys }
    }

    /// The rows of these keys, which are in the order of [`Self::weight_keys`].
    #[must_use]
    pub fn rows_of(&self, keys: Vec<u32>) -> Rows {
        match self.sparse {
            true => Rows::Positions(
                keys.into_iter().map(|key| position_of_key(u64::from(key))).collect(),
            ),
            false => Rows::Keys(keys),
        }
    }

    /// The bits of both tables, row by row, in shards that serve; rows that do not exist are zeros.
    #[must_use]
    pub fn bits_by_key<'a>(
        &self,
        host_of: impl Fn(ShardId) -> Option<&'a ShardSet>,
    ) -> Option<Vec<u32>> {
        let mut bits = Vec::new();
        for (table, rows) in [(WEIGHTS, WEIGHT_ROWS), (COUNTS, self.count_rows())] {
            for key in 0..rows {
                let position = position_of_key(key);
                let shard = shard_of_position(position, self.shards);
                let host = host_of(shard)?;
                let mut header = Header::new(Kind::Pull, host.epoch());
                (header.shard, header.table, header.count) = (shard, table, 1);
                header.flags = flags::KEYS | flags::POSITIONS | flags::FREE;
                let mut values = Vec::new();
                host.gather(&header, &[position as u32, (position >> 32) as u32], &mut values)?;
                bits.extend(values.iter().map(|value: &f32| value.to_bits()));
            }
        }
        Some(bits)
    }

    /// The same of rows in files: position and values of each, by table.
    #[must_use]
    pub fn saved_bits_by_key(&self, tables: &[BTreeMap<u64, Vec<u32>>; 2]) -> Vec<u32> {
        let of = |table: usize, rows: u64, cols: u32| {
            (0..rows).flat_map(move |key| {
                let row = tables[table].get(&position_of_key(key)).cloned();
                row.unwrap_or_else(|| vec![0; cols as usize])
            })
        };
        of(0, WEIGHT_ROWS, WEIGHT_COLS).chain(of(1, self.count_rows(), 1)).collect()
    }

    /// Values of the trained table.
    #[must_use]
    pub fn weight_values(&self) -> usize {
        WEIGHT_ROWS as usize * WEIGHT_COLS as usize
    }

    /// The gradient of a step at the values pulled (`values: [keys × cols]`).
    #[must_use]
    pub fn gradient(&self, phase: PhaseNo, task: TaskId, step: u64, values: &[f32]) -> Gradient {
        let keys = self.weight_keys(phase, task, step);
        let noise = |at: usize| {
            let draw = mix(0x5eed ^ u64::from(phase.0) << 48
                | u64::from(task.0) << 32
                | step << 16
                | at as u64);
            (draw >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        let values = values.iter().enumerate().map(|(at, w)| w * 0.37 + noise(at)).collect();
        let keys_of_counts = self.count_keys(task, step);
        let count = TableGradient {
            table: COUNTS,
            values: vec![1.0; keys_of_counts.len()],
            rows: self.rows_of(keys_of_counts),
        };
        Gradient {
            tables: vec![TableGradient { table: WEIGHTS, rows: self.rows_of(keys), values }, count],
        }
    }

    fn count_rows(&self) -> u64 {
        (self.tasks.iter().sum::<u64>() * self.counts_of_a_step()).max(1)
    }

    /// What every row of `COUNTS` holds in the end.
    #[must_use]
    pub fn counts(&self) -> Vec<f32> {
        if !self.has_state() {
            return Vec::new();
        }
        let tasks = (0..).map(TaskId).zip(&self.tasks);
        let of_steps = tasks.flat_map(|(task, steps)| {
            let fails = self.poisoned.filter(|(poisoned, _)| *poisoned == task);
            let passes = self.passes_run() - fails.map_or(0, |(_, passes)| passes);
            std::iter::repeat_n(passes as f32, *steps as usize)
        });
        of_steps.collect::<Vec<_>>().repeat(self.counts_of_a_step() as usize)
    }

    /// How the task cannot be computed in this phase, if it cannot: whether another try may help.
    #[must_use]
    pub fn failure(&self, phase: PhaseNo, task: TaskId) -> Option<bool> {
        let (poisoned, passes) = self.poisoned?;
        let pass = job_phase(self.spec(), phase)?.trains?;
        // Storage that fails in the first pass, records that are wrong in the next ones.
        (task == poisoned && pass < passes).then_some(pass == 0)
    }

    /// The tables as the job file would name them.
    #[must_use]
    pub fn tables(&self) -> Vec<TableSpec> {
        if self.pservers == 0 {
            return Vec::new();
        }
        let table = |id: TableId, name: &str, rows, cols, optimizer| match self.sparse {
            false => dense_table(id.0, name, rows, cols, optimizer),
            true => {
                let table = dense_table(id.0, name, 0, cols, optimizer);
                TableSpec { kind: TableKind::Sparse, ..table }
            }
        };
        vec![
            table(WEIGHTS, "weights", WEIGHT_ROWS, WEIGHT_COLS, Optimizer::sgd(0.5)),
            table(COUNTS, "counts", self.count_rows(), 1, Optimizer::add()),
        ]
    }

    /// The tables as a client needs them.
    #[must_use]
    pub fn layout(&self) -> Layout {
        let tables = self
            .tables()
            .iter()
            .map(|t| TableShape { kind: t.kind, rows: t.rows, cols: t.cols })
            .collect();
        Layout::new(self.shards, tables).expect("the tables above are sound")
    }

    /// A shard's configuration.
    #[must_use]
    pub fn shard(&self, shard: ShardId) -> ShardConfig {
        ShardConfig {
            shard,
            shards: self.shards,
            tables: self.tables(),
            sparse: SparseLimits { rows_max: 64, ..SparseLimits::default() },
            seed: 0,
            training_from: PhaseNo(0),
            copy_bytes_max: self.room.copies,
            early_bytes_max: self.room.early,
            waiting_bytes_max: self.room.waiting,
            fill_values: 8,
        }
    }

    /// The input plan: one file a task would be silly, so one file with a byte a step.
    #[must_use]
    pub fn plan(&self) -> InputPlan {
        let file = |name: &str, bytes| InputFile {
            url: format!("file:///{name}"),
            bytes,
            modified_ms: 0,
            compression: Compression::None,
        };
        let cut = |file, lengths: &[u64]| {
            let mut start = 0;
            let task = |&length: &u64| {
                start += length;
                TaskRange { file, start: start - length, end: start }
            };
            lengths.iter().map(task).collect::<Vec<_>>()
        };
        let tests = vec![1; self.test_tasks as usize];
        InputPlan {
            files: vec![file("train", self.tasks.iter().sum()), file("test", tests.iter().sum())],
            train: cut(0, &self.tasks),
            test: cut(1, &tests),
        }
    }

    /// The job in the ApplicationMaster.
    #[must_use]
    pub fn spec(&self) -> &JobSpec {
        &self.config().spec
    }

    fn new_spec(&self) -> JobSpec {
        let mut spec = heddle_protocol::job_spec::job::sample();
        if self.test_tasks > 0 {
            spec.data.test = vec!["/test".parse().expect("an absolute path is a location")];
        }
        spec.kind = self.kind;
        spec.data.passes = self.passes;
        spec.model = ModelSpec {
            algorithm: AlgorithmKind::Custom,
            features: 1,
            optimizer: Optimizer::add(),
            tables: self.tables(),
            ..spec.model
        };
        spec.training.consistency = self.consistency;
        spec.training.staleness = (self.consistency == Consistency::Ssp).then_some(self.staleness);
        spec.training.lanes = self.lanes;
        spec.training.batch = 1;
        spec.training.early_stop = self.early_stop;
        spec.training.keep = if self.keep_best { KeptPass::Best } else { KeptPass::Last };
        (spec.pservers.count, spec.pservers.shards) = (self.pservers, self.shards);
        [spec.pservers.min, spec.pservers.max] =
            self.pservers_between.map_or([None; 2], |bounds| bounds.map(Some));
        if self.elastic {
            spec.run.elastic = Elasticity::Controller;
        }
        spec.pservers.replicas = self.replicas;
        spec.checkpoint.copies = self.copies;
        spec.trainers.max = self.trainers;
        if self.local {
            spec.pservers.recovery = RecoveryScope::Local;
        }
        [spec.pservers.spares, spec.trainers.spares] = self.spares;
        spec.trainers.extra = self.extra;
        spec.trainers.idle_timeout = self.idle_timeout;
        if self.poisoned.is_some() {
            (spec.data.failed_share, spec.data.task_errors) = (TaskShare(100), 2);
        }
        spec.checkpoint.every = self.every;
        spec.checkpoint.timeout = DurationMs::secs(60);
        spec.output.save_lease = DurationMs(SAVE_LEASE_MS);
        spec
    }

    /// What the core is built from. The limits on failed containers are those of real jobs; the allocation timeout is that
    /// of an impatient one. Made once: the defaults of a spec are read like a job file.
    #[must_use]
    pub fn config(&self) -> &Arc<Config> {
        let made = || Config {
            run: RunId(uuid::Uuid::from_u128(7)),
            spec: Arc::new(self.new_spec()),
            recorded: RecordedSpec::default(),
            plan: Arc::new(self.plan()),
            plan_file: heddle_protocol::plan_file::PlanFile::default(),
            address: String::new(),
            started_ms: 0,
            limits: Limits { allocation_ms: 120_000, ..Limits::default() },
            cluster_lease_ms: Some(LEASE_MS),
            locality: Arc::default(),
            output: self.output.then(|| "file:///model".to_owned()),
        };
        self.made.get_or_init(|| Arc::new(made()))
    }
}
