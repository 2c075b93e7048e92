//! A trainer whose tables use the rules that algorithms of one's own have: a sparse table with normal initial values and an
//! optimizer, and tables with `add`, `mean` and `least`.
//!
//! It is built on the public interface for trainers of one's own, and started by `trainers.command`. Tables by name:
//! `vectors` (sparse, a row for each feature), `counts`, `means` (the last column counts) and `firsts` (the least row).

use std::collections::BTreeMap;

use heddle_client::gradient::TableGradient;
use heddle_client::layout::Rows;
use heddle_client::machine::PullItem;
use heddle_protocol::failure::Failure;
use heddle_protocol::ids::TableId;
use heddle_protocol::job_spec::position::position_of_key;
use heddle_protocol::job_spec::{JobPhase, JobSpec};
use heddle_protocol::metrics::TaskMetrics;
use heddle_trainer::algorithm::{Algorithm, StepWork};

/// Rows of each dense table: features are taken modulo this number.
const DENSE_ROWS: u32 = 16;

struct Rules {
    vectors: TableId,
    vector_cols: usize,
    counts: TableId,
    means: TableId,
    firsts: TableId,
    /// Whether the phase changes nothing.
    evaluates: bool,
}

impl Rules {
    fn new(spec: &JobSpec) -> Self {
        let tables = spec.tables();
        let table = |name: &str| {
            let found = tables.iter().find(|table| table.name == name);
            found.unwrap_or_else(|| panic!("the job file needs a [[model.table]] named {name:?}"))
        };
        Self {
            vectors: table("vectors").id,
            vector_cols: table("vectors").cols as usize,
            counts: table("counts").id,
            means: table("means").id,
            firsts: table("firsts").id,
            evaluates: false,
        }
    }
}

/// Rows of a dense table with two columns or one, by their number.
fn push<const COLS: usize>(work: &mut StepWork, table: TableId, rows: BTreeMap<u32, [f32; COLS]>) {
    let values = rows.values().flatten().copied().collect();
    let rows = Rows::Keys(rows.into_keys().collect());
    work.gradient.tables.push(TableGradient { table, rows, values });
}

impl Algorithm for Rules {
    fn begin(&mut self, phase: JobPhase, _constants: Vec<PullItem>) -> Result<(), Failure> {
        self.evaluates = !phase.pushes();
        Ok(())
    }

    fn prepare(&mut self, work: &mut StepWork) {
        let features = work.batch.indices.iter();
        let mut positions: Vec<u64> =
            features.map(|feature| position_of_key(u64::from(*feature))).collect();
        positions.sort_unstable();
        positions.dedup();
        let values = vec![0.0; positions.len() * self.vector_cols];
        let rows = Rows::Positions(positions);
        work.pulls.push(PullItem { table: self.vectors, rows, values });
        // The means of the pass before: they change between passes alone.
        let values = vec![0.0; DENSE_ROWS as usize * 2];
        let rows = Rows::Range(0..u64::from(DENSE_ROWS));
        work.pulls.push(PullItem { table: self.means, rows, values });
    }

    fn compute(&mut self, work: &mut StepWork, metrics: &mut TaskMetrics) {
        metrics.rows += work.batch.rows() as u64;
        if self.evaluates {
            return;
        }
        let [vectors, means] = work.pulls.as_mut_slice() else {
            return;
        };
        // Every value that was read shows in what is pushed.
        let drawn: f32 = means.values.iter().sum::<f32>() * 1e-3;
        let values = vectors.values.iter().map(|value| value * 0.1 + drawn).collect();
        let rows = std::mem::replace(&mut vectors.rows, Rows::Range(0..0));
        work.gradient.tables.push(TableGradient { table: self.vectors, rows, values });
        let (mut counts, mut means) = (BTreeMap::new(), BTreeMap::new());
        let mut firsts: BTreeMap<u32, [f32; 2]> = BTreeMap::new();
        for (&feature, &value) in work.batch.indices.iter().zip(&work.batch.values) {
            let row = feature % DENSE_ROWS;
            counts.entry(row).or_insert([0.0])[0] += 1.0;
            let [sum, count] = means.entry(row).or_insert([0.0; 2]);
            (*sum, *count) = (*sum + value, *count + 1.0);
            let offered = [value, feature as f32];
            let first = firsts.entry(row).or_insert(offered);
            if offered < *first {
                *first = offered;
            }
        }
        push(work, self.counts, counts);
        push(work, self.means, means);
        push(work, self.firsts, firsts);
    }
}

fn main() -> std::process::ExitCode {
    heddle_trainer::main_with(|spec| Ok(Rules::new(spec)))
}
