//! The quick start's data and settings reach the quality of its documentation.
//!
//! The whole job in one thread: the real readers, lane order, algorithm and merging of scores, with a
//! plain loop instead of the processes. A poor figure of the real job is therefore not caused by the settings.

use std::path::Path;
use std::sync::Arc;

use heddle_client::layout::Rows;
use heddle_input::{TaskLength, compression_of, plan_input};
use heddle_metrics::{PhaseMetrics, Summary};
use heddle_optimizer::Rule;
use heddle_protocol::ids::{Lane, PhaseNo, TableId, TaskId};
use heddle_protocol::lanes::{lane_tasks, task_order};
use heddle_protocol::manifest::{InputFile, InputPlan, TaskRange};
use heddle_protocol::metrics::TaskMetrics;
use heddle_protocol::spec::file::{ReadContext, read};
use heddle_protocol::spec::{JobSpec, PhaseKind, TableSpec, phase_count, phase_kind};
use heddle_storage::{LocalStorage, StorageUrl, find_files};
use heddle_trainer::algorithm::{Algorithm, KeyIndex, LogisticRegression, StepWork};
use heddle_trainer::reader::{BadPolicy, Labels, RecordFormat, TaskReader};

fn wait<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

fn files(pattern: &heddle_protocol::spec::Location) -> Vec<InputFile> {
    let location = StorageUrl::parse(&pattern.url()).expect("a location");
    wait(find_files(&LocalStorage, location.path()))
        .expect("the quick start's data")
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
    values: Vec<f32>,
    z: Vec<f32>,
    n: Vec<f32>,
    /// Sums of the open step over all lanes, and rows pushed.
    sums: Vec<f32>,
    touched: Vec<bool>,
}

impl Table {
    fn new(spec: TableSpec) -> Self {
        let len = spec.values() as usize;
        let zeros = || vec![0.0; len];
        let state = |index: u32| match spec.optimizer.state_per_value() > index {
            true => zeros(),
            false => Vec::new(),
        };
        Self {
            values: zeros(),
            rule: Rule::new(&spec.optimizer, spec.l2),
            z: state(0),
            n: state(1),
            sums: zeros(),
            touched: vec![false; len],
            spec,
        }
    }

    fn at(&self, rows: &Rows) -> Vec<usize> {
        let cols = self.spec.cols as usize;
        let rows: Vec<usize> = match rows {
            Rows::Range(range) => (range.start as usize..range.end as usize).collect(),
            Rows::Keys(keys) => keys.iter().map(|key| *key as usize).collect(),
        };
        rows.into_iter().flat_map(|row| row * cols..(row + 1) * cols).collect()
    }

    fn apply(&mut self, rows: u32) {
        for i in 0..self.values.len() {
            if !std::mem::take(&mut self.touched[i]) {
                continue;
            }
            let sum = std::mem::take(&mut self.sums[i]);
            let own = |state: &[f32]| if state.is_empty() { 0..0 } else { i..i + 1 };
            let state = [own(&self.z), own(&self.n)];
            let [z, n] = [&mut self.z[state[0].clone()], &mut self.n[state[1].clone()]];
            self.rule.apply(&mut self.values[i..=i], [z, n], &[sum], u64::from(rows));
        }
    }
}

struct Job {
    spec: JobSpec,
    plan: InputPlan,
    tables: Vec<Table>,
    algorithm: LogisticRegression,
    index: KeyIndex,
}

impl Job {
    fn new(spec: JobSpec) -> Self {
        let find =
            |places: &[heddle_protocol::spec::Location]| places.iter().flat_map(files).collect();
        let length = TaskLength::Auto { workers: spec.training.lanes };
        Self {
            plan: plan_input(find(&spec.data.train), find(&spec.data.test), length),
            tables: spec.tables().into_iter().map(Table::new).collect(),
            algorithm: LogisticRegression::new(&spec),
            index: KeyIndex::new(spec.model.features),
            spec,
        }
    }

    fn open(&self, task: TaskRange) -> TaskReader {
        let format = RecordFormat {
            format: self.spec.data.format,
            index_base: self.spec.data.index_base,
            features: self.spec.model.features,
            labels: Labels::Required,
        };
        let file = &self.plan.files[task.file as usize];
        wait(TaskReader::open(Arc::new(LocalStorage), file, task, format, BadPolicy::Fail))
            .expect("opened")
    }

    fn fill(&self, pulls: &mut [heddle_client::machine::PullItem]) {
        for pull in pulls {
            let table = &self.tables[usize::from(pull.table.0)];
            pull.values = table.at(&pull.rows).into_iter().map(|at| table.values[at]).collect();
        }
    }

    fn step(
        &mut self,
        reader: &mut TaskReader,
        work: &mut StepWork,
        metrics: &mut TaskMetrics,
    ) -> bool {
        work.clear();
        wait(reader.next_batch(self.spec.training.batch_rows(), &mut work.batch)).expect("read");
        if work.batch.is_empty() {
            return false;
        }
        work.index_features(&mut self.index);
        self.algorithm.prepare(work);
        self.fill(&mut work.pulls);
        self.algorithm.compute(work, metrics);
        true
    }

    fn collective(&mut self, no: PhaseNo) -> Summary {
        let training = &self.spec.training;
        let lanes = training.lanes;
        let order =
            task_order(training.seed, no, self.plan.train.len() as u32, self.spec.data.shuffle);
        let mut metrics: Vec<TaskMetrics> = vec![TaskMetrics::default(); lanes as usize];
        let mut tasks: Vec<_> =
            (0..lanes).map(|lane| lane_tasks(&order, Lane(lane), lanes)).collect();
        let mut readers: Vec<Option<TaskReader>> = (0..lanes).map(|_| None).collect();
        loop {
            let mut rows = 0;
            let mut work = StepWork::default();
            for lane in 0..lanes as usize {
                loop {
                    if readers[lane].is_none() {
                        let Some(task) = tasks[lane].next() else {
                            break;
                        };
                        readers[lane] = Some(self.open(self.plan.train[task.0 as usize]));
                    }
                    let mut reader = readers[lane].take().expect("opened above");
                    if self.step(&mut reader, &mut work, &mut metrics[lane]) {
                        readers[lane] = Some(reader);
                        rows += work.batch.rows() as u32;
                        for push in &work.gradient.tables {
                            let table = &mut self.tables[usize::from(push.table.0)];
                            for (at, value) in table.at(&push.rows).into_iter().zip(&push.values) {
                                table.sums[at] += value;
                                table.touched[at] = true;
                            }
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

    fn evaluate(&mut self) -> Summary {
        let mut phase = PhaseMetrics::default();
        for (task, range) in self.plan.test.clone().into_iter().enumerate() {
            let mut reader = self.open(range);
            let (mut work, mut metrics) = (StepWork::default(), TaskMetrics::default());
            while self.step(&mut reader, &mut work, &mut metrics) {}
            phase.add(TaskId(task as u32), metrics);
        }
        phase.summary()
    }

    fn run(&mut self) -> Summary {
        let mut last = Summary::default();
        for no in (0..phase_count(&self.spec)).map(PhaseNo) {
            let kind = phase_kind(&self.spec, no).expect("below the count");
            let mut constants = self.algorithm.constants(kind);
            self.fill(&mut constants);
            self.algorithm.begin(kind, constants).expect("sound constants");
            if let PhaseKind::Evaluate { .. } = kind {
                last = self.evaluate();
            } else {
                let summary = self.collective(no);
                assert_eq!(summary.rows, 3601, "every record once in {kind:?}");
            }
        }
        last
    }

    fn weights(&self) -> &[f32] {
        &self.tables[usize::from(TableId(0).0)].values
    }
}

#[test]
fn the_quick_start_reaches_its_quality_and_is_repeatable() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart");
    let spec = quickstart(&dir);
    let mut job = Job::new(spec.clone());
    let summary = job.run();
    let (log_loss, auc) = (summary.mean_loss().expect("rows"), summary.auc.expect("both classes"));
    println!(
        "log-loss {log_loss:.5} auc {:.5} ± {:.6} accuracy {:?}",
        auc.value,
        auc.error,
        summary.accuracy()
    );
    assert_eq!(summary.rows, 1000);
    assert!(log_loss <= 0.215, "log-loss {log_loss}");
    assert!(auc.value - auc.error >= 0.970, "auc {auc:?}");
    let mut again = Job::new(spec);
    assert_eq!(again.run(), summary);
    let bits = |job: &Job| -> Vec<u32> { job.weights().iter().map(|w| w.to_bits()).collect() };
    assert_eq!(bits(&again), bits(&job));
}

/// The job file as `heddle run` reads it.
fn quickstart(dir: &Path) -> JobSpec {
    let dir = dir.canonicalize().expect("the quick start's folder");
    let text = std::fs::read_to_string(dir.join("job.toml")).expect("the quick start's job file");
    let context = ReadContext {
        file: "job.toml".to_owned(),
        job_dir: dir.clone(),
        working_dir: dir,
        run_label: "00000000".to_owned(),
        ..ReadContext::default()
    };
    read(&text, &context).expect("a sound job file").spec
}
