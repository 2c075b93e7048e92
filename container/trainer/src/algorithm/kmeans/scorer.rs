//! The nearest centre of a record.

use super::points::{PointSet, Space};
use crate::algorithm::RecordScorer;

/// Centres in a space.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClusterScorer {
    pub(super) space: Space,
    pub(super) centres: PointSet,
}

impl ClusterScorer {
    /// Of a model: `centres` of raw features, `[clusters × features]`, and the scales of the columns, if there are any.
    pub(crate) fn of_model(features: usize, centres: &[f32], scales: &[f32]) -> Self {
        let space = Space::scaled(features, scales);
        let columns: Vec<u32> = (0..).take(features).collect();
        let (mut points, mut x) = (PointSet::new(features), Vec::new());
        for centre in centres.chunks_exact(features) {
            space.place(&columns, centre, &mut x);
            points.push(x.iter().copied());
        }
        Self { space, centres: points }
    }

    /// The cluster of a record, whose coordinates `x` becomes, and the squared distance from the centre.
    pub(super) fn nearest(
        &self,
        indices: &[u32],
        values: &[f32],
        x: &mut Vec<f64>,
    ) -> Option<(usize, f64)> {
        self.space.place(indices, values, x);
        self.centres.nearest(x)
    }
}

impl RecordScorer for ClusterScorer {
    fn score(&self, indices: &[u32], values: &[f32], scores: &mut Vec<f64>) {
        let (cluster, distance) = self.nearest(indices, values, scores).unwrap_or_default();
        scores.clear();
        scores.extend([cluster as f64, distance]);
    }
}
