//! A trainer that counts: sample i adds 1 to row i. Whatever is lost or applied twice shows in the sums.
//!
//! It is built on the public interface for trainers of one's own, and started by `trainers.command`. With the arguments
//! `--save-every STEPS --block-ms MS` it asks for a save of the model after each such number of its steps.

use std::time::Duration;

use heddle_client::gradient::TableGradient;
use heddle_client::layout::Rows;
use heddle_client::machine::PullItem;
use heddle_protocol::ids::TableId;
use heddle_protocol::job_spec::TableKind;
use heddle_protocol::job_spec::position::position_of_key;
use heddle_protocol::metrics::TaskMetrics;
use heddle_trainer::algorithm::{Algorithm, StepWork};
use heddle_trainer::{ModelSaver, PendingSave};

struct Counting {
    /// The table is sparse: its rows have positions.
    sparse: bool,
    saves: Option<Saves>,
}

/// Requests for saves of the model.
struct Saves {
    saver: ModelSaver,
    every: u64,
    block: Duration,
    steps: u64,
    pending: Option<PendingSave>,
}

impl Saves {
    fn step(&mut self) {
        self.steps += 1;
        if let Some(answer) = self.pending.as_ref().and_then(PendingSave::answer) {
            eprintln!("save: {answer:?}");
            self.pending = None;
        }
        if self.pending.is_none() && self.steps.is_multiple_of(self.every) {
            self.pending = Some(self.saver.ask(self.block));
        }
    }

    /// By the arguments of the program.
    fn of(saver: ModelSaver) -> Option<Self> {
        let arguments: Vec<String> = std::env::args().collect();
        let value = |name: &str| -> Option<u64> {
            let at = arguments.iter().position(|argument| argument == name)?;
            arguments.get(at + 1)?.parse().ok()
        };
        let (every, block_ms) = (value("--save-every")?, value("--block-ms")?);
        let block = Duration::from_millis(block_ms);
        Some(Self { saver, every, block, steps: 0, pending: None })
    }
}

impl Counting {
    /// The distinct rows of the samples, in the order of a request, and how often each comes.
    fn counts(&self, samples: &[u32]) -> (Rows, Vec<f32>) {
        let place = |key: u32| {
            if self.sparse { position_of_key(u64::from(key)) } else { u64::from(key) }
        };
        let mut places: Vec<u64> = samples.iter().copied().map(place).collect();
        places.sort_unstable();
        let runs = || places.chunk_by(|one, next| one == next);
        let values = runs().map(|run| run.len() as f32).collect();
        let distinct = runs().map(|run| run[0]);
        let rows = if self.sparse {
            Rows::Positions(distinct.collect())
        } else {
            Rows::Keys(distinct.map(|place| place as u32).collect())
        };
        (rows, values)
    }
}

impl Algorithm for Counting {
    fn prepare(&mut self, work: &mut StepWork) {
        // Its values are not needed; the pull is what makes a step of BSP wait for the one before.
        let (rows, _) = self.counts(&work.batch.indices);
        work.pulls.push(PullItem { table: TableId(0), rows, values: Vec::new() });
    }

    fn compute(&mut self, work: &mut StepWork, metrics: &mut TaskMetrics) {
        let (rows, values) = self.counts(&work.batch.indices);
        work.gradient.tables.push(TableGradient { table: TableId(0), rows, values });
        metrics.rows += work.batch.rows() as u64;
        self.saves.iter_mut().for_each(Saves::step);
    }
}

fn main() -> std::process::ExitCode {
    heddle_trainer::main_with_saver(|spec, saver| {
        let sparse = spec.tables().iter().all(|table| table.kind == TableKind::Sparse);
        Ok(Counting { sparse, saves: Saves::of(saver) })
    })
}
