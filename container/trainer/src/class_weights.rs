//! Weights of classes (`data.class-weights`): each record's weight is multiplied by its label's weight.

use std::sync::Arc;

use heddle_input::Batch;
use heddle_protocol::job_spec::JobSpec;

/// The weights of a job's classes; the others weigh 1.
#[derive(Clone, Debug, Default)]
pub struct ClassWeights(Arc<[(f32, f32)]>);

impl ClassWeights {
    /// The weights of a job.
    #[must_use]
    pub fn of(spec: &JobSpec) -> Self {
        // Classes are below 2¹⁶, which f32 holds exactly.
        Self(
            spec.data
                .class_weights
                .iter()
                .map(|(class, weight)| (*class as f32, *weight as f32))
                .collect(),
        )
    }

    /// Multiplies the weights of a batch's records.
    pub fn apply(&self, batch: &mut Batch) {
        for (class, weight) in self.0.iter() {
            for row in 0..batch.rows() {
                if batch.labels[row] == *class {
                    batch.weigh(row, *weight);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::sample;

    #[test]
    fn weight_of_the_class_multiplies_that_of_the_record() {
        let mut spec = sample();
        spec.data.class_weights = vec![(1, 3.0)];
        let mut batch = Batch::default();
        [0.0, 1.0, 1.0, 0.0].into_iter().for_each(|label| batch.end_row(label));
        batch.weigh(2, 0.5);
        ClassWeights::of(&spec).apply(&mut batch);
        let weights: Vec<_> = (0..4).map(|row| batch.weight(row)).collect();
        assert_eq!(weights, [Some(1.0), Some(3.0), Some(1.5), None]);
        let mut plain = Batch::default();
        plain.end_row(1.0);
        let before = plain.clone();
        ClassWeights::of(&sample()).apply(&mut plain);
        assert_eq!(plain, before);
    }
}
