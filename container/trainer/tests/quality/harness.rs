//! A whole job in one thread: the real readers, lane order, algorithm and merging of scores, with a plain loop instead of
//! the processes. A poor figure of the real job is therefore not caused by the settings.

use std::path::Path;

use heddle_client::layout::Rows;
use heddle_input::{
    BadPolicy, Head, RecordFormat, TaskLength, TaskReader, TextHead, compression_of, decide,
    plan_input, sample, unpack_beginning,
};
use heddle_metrics::{PhaseMetrics, Summary};
use heddle_optimizer::{Optimizer, Rule, is_less};
use heddle_protocol::ids::{Lane, PhaseNo, TaskId};
use heddle_protocol::job_spec::file::{KeyOverride, ReadContext, read};
use heddle_protocol::job_spec::identity::decided_keys;
use heddle_protocol::job_spec::table::WEIGHTS;
use heddle_protocol::job_spec::{JobPhase, JobSpec, KeptPass, TableSpec, job_phase, phase_count};
use heddle_protocol::lanes::{lane_tasks, task_order};
use heddle_protocol::manifest::{InputFile, InputPlan, TaskRange};
use heddle_protocol::metrics::TaskMetrics;
use heddle_storage::{LocalStorage, StorageUrl, find_files};
use heddle_trainer::algorithm::{Algorithm, KeyIndex, StepWork, built_in};

fn wait<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

fn files(pattern: &heddle_protocol::job_spec::Location) -> Vec<InputFile> {
    let location = StorageUrl::parse(&pattern.url()).expect("a location");
    wait(find_files(&LocalStorage, location.path()))
        .expect("the quick start's data")
        .files
        .into_iter()
        .map(|entry| InputFile {
            url: format!("file://{}", entry.path.as_str()),
            bytes: entry.bytes,
            modified_ms: entry.modified_ms,
            compression: compression_of(entry.name()),
        })
        .collect()
}

/// One table with its optimizer, in one shard.
struct Table {
    spec: TableSpec,
    rule: Rule,
    /// Steps applied.
    steps: u64,
    values: Vec<f32>,
    z: Vec<f32>,
    n: Vec<f32>,
    /// Sums of the open step over all lanes, and rows pushed.
    sums: Vec<f32>,
    touched: Vec<bool>,
}

impl Table {
    fn new(spec: TableSpec, seed: u64) -> Self {
        let len = spec.values() as usize;
        let zeros = || vec![0.0; len];
        let state = |index: u32| match spec.optimizer.state_per_value() > index {
            true => zeros(),
            false => Vec::new(),
        };
        let mut values = zeros();
        spec.init.fill(seed, spec.id.0, 0, spec.cols as usize, &mut values);
        let rule = Rule::new(&spec.optimizer, spec.l2);
        let rule = rule.with_schedule(spec.schedule).of_rows(spec.cols as usize);
        let (mut z, mut n) = (state(0), state(1));
        rule.begin(&values, [&mut z, &mut n]);
        Self { values, rule, steps: 0, z, n, sums: zeros(), touched: vec![false; len], spec }
    }

    fn at(&self, rows: &Rows) -> Vec<usize> {
        let cols = self.spec.cols as usize;
        let rows: Vec<usize> = match rows {
            Rows::Positions(_) => unreachable!("the tables are dense"),
            Rows::Range(range) => (range.start as usize..range.end as usize).collect(),
            Rows::Keys(keys) => keys.iter().map(|key| *key as usize).collect(),
        };
        rows.into_iter().flat_map(|row| row * cols..(row + 1) * cols).collect()
    }

    /// Takes in the gradient of a lane.
    fn push(&mut self, rows: &Rows, values: &[f32]) {
        let cols = self.spec.cols as usize;
        for (at, row) in self.at(rows).chunks_exact(cols).zip(values.chunks_exact(cols)) {
            let own = at[0]..at[0] + cols;
            let sums = &mut self.sums[own.clone()];
            let is_new = !std::mem::replace(&mut self.touched[at[0]], true);
            self.touched[own].fill(true);
            if !self.rule.keeps_least() {
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            } else if is_new || is_less(row, sums) {
                sums.copy_from_slice(row);
            }
        }
    }

    /// The end of a training pass.
    fn end_pass(&mut self) {
        let cols = self.spec.cols as usize;
        self.rule.end_pass(&mut self.values, [&mut self.z, &mut self.n], cols);
    }

    fn apply(&mut self, rows: u32) {
        self.steps += 1;
        let rule = self.rule.at(self.steps);
        let mut start = 0;
        while let Some(first) = self.touched[start..].iter().position(|touched| *touched) {
            start += first;
            let run = self.touched[start..].iter_mut().take_while(|touched| **touched);
            let end = start + run.map(|touched| *touched = false).count();
            let own = |state: &[f32]| if state.is_empty() { 0..0 } else { start..end };
            let state = [own(&self.z), own(&self.n)];
            let [z, n] = [&mut self.z[state[0].clone()], &mut self.n[state[1].clone()]];
            let (values, sums) = (&mut self.values[start..end], &mut self.sums[start..end]);
            rule.apply(values, [z, n], sums, u64::from(rows));
            sums.fill(0.0);
            start = end;
        }
    }
}

/// A task that is being read, and its records so far.
struct OpenTask {
    task: TaskId,
    records: u64,
    reader: TaskReader,
}

/// A job in this thread.
pub struct Job {
    pub spec: JobSpec,
    plan: InputPlan,
    tables: Vec<Table>,
    algorithm: Box<dyn Algorithm>,
    index: KeyIndex,
}

/// Decides what the job file leaves to the data.
fn decided(mut spec: JobSpec, plan: &InputPlan) -> JobSpec {
    let file = &plan.files[plan.train[0].file as usize];
    let packed = std::fs::read(file.url.trim_start_matches("file://")).expect("a file");
    let head = &packed[..packed.len().min(256 << 10)];
    let text = unpack_beginning(file.compression, head);
    let share = plan.train_bytes() as f64 / head.len() as f64;
    let head = Head::Text(TextHead { text, share, ..TextHead::default() });
    let sample = wait(sample(&spec, &head)).expect("it is text");
    let decisions = decide(&mut spec, &sample, None);
    decisions.iter().for_each(|one| println!("{} = {} ({})", one.key, one.value, one.reason));
    spec
}

impl Job {
    pub fn new(spec: JobSpec) -> Self {
        let find = |places: &[heddle_protocol::job_spec::Location]| {
            places.iter().flat_map(files).collect()
        };
        let length = TaskLength::Auto { workers: spec.training.lanes };
        let plan =
            plan_input(spec.data.format, find(&spec.data.train), find(&spec.data.test), length);
        let spec = decided(spec, &plan);
        Self {
            plan,
            tables: spec
                .tables()
                .into_iter()
                .map(|table| Table::new(table, spec.training.seed))
                .collect(),
            algorithm: built_in(&spec).expect("a built-in algorithm"),
            index: KeyIndex::new(spec.model.features),
            spec,
        }
    }

    fn open(&self, task: TaskRange) -> TaskReader {
        let format = RecordFormat::of(&self.spec, self.spec.model.features);
        let file = &self.plan.files[task.file as usize];
        wait(TaskReader::open(file, task, format, BadPolicy::Fail)).expect("opened")
    }

    fn fill(&self, pulls: &mut [heddle_client::machine::PullItem]) {
        for pull in pulls {
            let table = &self.tables[usize::from(pull.table.0)];
            pull.values = table.at(&pull.rows).into_iter().map(|at| table.values[at]).collect();
        }
    }

    fn step(
        &mut self,
        open: &mut OpenTask,
        work: &mut StepWork,
        metrics: &mut TaskMetrics,
    ) -> bool {
        work.clear();
        wait(open.reader.next_batch(self.spec.training.batch as usize, &mut work.batch))
            .expect("read");
        if work.batch.is_empty() {
            return false;
        }
        (work.task, work.first_record) = (open.task, open.records);
        open.records += work.batch.rows() as u64;
        work.index_features(&mut self.index);
        self.algorithm.prepare(work);
        self.fill(&mut work.pulls);
        self.algorithm.compute(work, metrics);
        true
    }

    fn collective(&mut self, no: PhaseNo) -> Summary {
        let training = &self.spec.training;
        let lanes = training.lanes;
        let order = task_order(&self.spec, no, self.plan.train.len() as u32);
        let mut metrics: Vec<TaskMetrics> = vec![TaskMetrics::default(); lanes as usize];
        let mut tasks: Vec<_> =
            (0..lanes).map(|lane| lane_tasks(&order, Lane(lane), lanes)).collect();
        let mut readers: Vec<Option<OpenTask>> = (0..lanes).map(|_| None).collect();
        loop {
            let mut rows = 0;
            let mut work = StepWork::default();
            for lane in 0..lanes as usize {
                loop {
                    if readers[lane].is_none() {
                        let Some(task) = tasks[lane].next() else {
                            break;
                        };
                        let reader = self.open(self.plan.train[task.0 as usize]);
                        readers[lane] = Some(OpenTask { task, records: 0, reader });
                    }
                    let mut reader = readers[lane].take().expect("opened above");
                    if self.step(&mut reader, &mut work, &mut metrics[lane]) {
                        readers[lane] = Some(reader);
                        rows += work.batch.rows() as u32;
                        for push in &work.gradient.tables {
                            let table = &mut self.tables[usize::from(push.table.0)];
                            table.push(&push.rows, &push.values);
                        }
                        break;
                    }
                }
            }
            if rows == 0 {
                break;
            }
            self.tables.iter_mut().for_each(|table| table.apply(rows));
        }
        let mut phase = PhaseMetrics::default();
        for (lane, metrics) in metrics.into_iter().enumerate() {
            phase.add(TaskId(lane as u32), metrics);
        }
        phase.summary()
    }

    fn evaluate(&mut self, tasks: Vec<TaskRange>) -> Summary {
        let mut phase = PhaseMetrics::default();
        for (task, range) in tasks.into_iter().enumerate() {
            let (task, reader) = (TaskId(task as u32), self.open(range));
            let mut reader = OpenTask { task, records: 0, reader };
            let (mut work, mut metrics) = (StepWork::default(), TaskMetrics::default());
            while self.step(&mut reader, &mut work, &mut metrics) {}
            phase.add(task, metrics);
        }
        phase.summary()
    }

    fn begin(&mut self, kind: JobPhase) {
        let mut constants = self.algorithm.constants(kind);
        self.fill(&mut constants);
        self.algorithm.begin(kind, constants).expect("sound constants");
    }

    /// All phases, until the test loss has not fallen for `training.early-stop` passes. The evaluation of the model that
    /// comes out.
    pub fn run(&mut self) -> Summary {
        let (mut last, mut best, mut worse) = (Summary::default(), f64::INFINITY, 0);
        let (early_stop, keep) = (self.spec.training.early_stop, self.spec.training.keep);
        let mut kept = Summary::default();
        for no in (0..phase_count(&self.spec)).map(PhaseNo) {
            let kind = job_phase(&self.spec, no).expect("below the count");
            self.begin(kind);
            if !kind.pushes() {
                last = self.evaluate(self.plan.test.clone());
                let loss = last.mean_loss().expect("records");
                worse = if loss < best { 0 } else { worse + 1 };
                if loss < best {
                    (best, kept) = (loss, last);
                }
                if early_stop > 0 && worse >= early_stop {
                    break;
                }
            } else {
                self.collective(no);
                if kind.trains.is_some() {
                    self.tables.iter_mut().for_each(Table::end_pass);
                }
            }
        }
        if keep == KeptPass::Best { kept } else { last }
    }

    /// The figures of the training data at the present values.
    pub fn on_training_data(&mut self) -> Summary {
        self.begin(JobPhase::evaluation(self.spec.data.passes - 1));
        self.evaluate(self.plan.train.clone())
    }

    /// Mean loss on the training data + ½·l2·‖w‖².
    pub fn objective(&mut self) -> f64 {
        let squares: f64 = self.values(WEIGHTS).iter().map(|w| f64::from(*w) * f64::from(*w)).sum();
        let mean = self.on_training_data().mean_loss().expect("records");
        mean + 0.5 * self.spec.model.l2 * squares
    }

    /// The values of a table.
    pub fn values(&self, name: &str) -> &[f32] {
        &self.tables.iter().find(|table| table.spec.name == name).expect("a table").values
    }

    /// The bits of all values of a table.
    pub fn bits(&self, name: &str) -> Vec<u32> {
        self.values(name).iter().map(|value| value.to_bits()).collect()
    }
}

/// A job file as `heddle run` reads it, with overrides.
pub fn job_file(file: &Path, sets: &[&str]) -> JobSpec {
    let dir = file.parent().expect("a folder").canonicalize().expect("the folder of the job");
    let text = std::fs::read_to_string(file).expect("the job file");
    let context = ReadContext {
        file: "job.toml".to_owned(),
        job_dir: dir.clone(),
        working_dir: dir,
        sets: sets.iter().map(|set| KeyOverride::set(set)).collect(),
        run_label: "00000000".to_owned(),
        ..ReadContext::default()
    };
    read(&text, &context).expect("a sound job file").spec
}

/// The test loss of an example with every key that can be automatic left to the data, and the optimizer to its default.
pub fn loss_of_required_keys(name: &str) -> f64 {
    let mut spec = example(name, &[]);
    spec.undecided = decided_keys();
    spec.model.optimizer = Optimizer::default();
    let loss = Job::new(spec).run().mean_loss().expect("records");
    println!("{name}, required keys: loss {loss:.4}");
    loss
}

/// The job file of an example.
pub fn example(name: &str, sets: &[&str]) -> JobSpec {
    example_file(name, "job.toml", sets)
}

/// A job file of an example's folder.
pub fn example_file(name: &str, file: &str, sets: &[&str]) -> JobSpec {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    job_file(&examples.join(name).join(file), sets)
}

/// Numbers that look random and are the same everywhere (splitmix64, Steele et al. 2014).
pub struct Mixed(pub u64);

impl Mixed {
    /// From 0 to 1, without 1.
    pub fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Mean 0, variance 1: the sum of twelve even numbers is close enough to normal here.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }
}
