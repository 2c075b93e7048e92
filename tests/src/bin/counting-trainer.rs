//! A trainer that counts: sample i adds 1 to row i. Whatever is lost or applied twice shows in the sums.
//!
//! It is built on the public interface for trainers of one's own, and started by `trainers.command`.

use heddle_client::gradient::TableGradient;
use heddle_client::layout::Rows;
use heddle_client::machine::PullItem;
use heddle_protocol::failure::Failure;
use heddle_protocol::ids::TableId;
use heddle_protocol::metrics::TaskMetrics;
use heddle_protocol::spec::PhaseKind;
use heddle_trainer::algorithm::{Algorithm, StepWork};

struct Counting;

impl Algorithm for Counting {
    fn constants(&self, _phase: PhaseKind) -> Vec<PullItem> {
        Vec::new()
    }

    fn begin(&mut self, _phase: PhaseKind, _constants: Vec<PullItem>) -> Result<(), Failure> {
        Ok(())
    }

    fn prepare(&mut self, work: &mut StepWork) {
        // Its values are not needed; the pull is what makes a step of BSP wait for the one before.
        let mut keys = work.batch.indices.clone();
        keys.sort_unstable();
        keys.dedup();
        let values = Vec::new();
        work.pulls.push(PullItem { table: TableId(0), rows: Rows::Keys(keys), values });
    }

    fn compute(&mut self, work: &mut StepWork, metrics: &mut TaskMetrics) {
        let mut keys = work.batch.indices.clone();
        keys.sort_unstable();
        let mut counts: Vec<(u32, f32)> = Vec::new();
        for key in keys {
            match counts.last_mut() {
                Some((last, count)) if *last == key => *count += 1.0,
                _ => counts.push((key, 1.0)),
            }
        }
        let (keys, values) = counts.into_iter().unzip();
        work.gradient.tables.push(TableGradient {
            table: TableId(0),
            rows: Rows::Keys(keys),
            values,
        });
        metrics.rows += work.batch.rows() as u64;
    }
}

fn main() -> std::process::ExitCode {
    heddle_trainer::main_with(|_spec| Box::new(Counting))
}
