//! The centres in the tables: which rows hold the centres of a pass.
//!
//! Table `centres` is `[clusters × (features + 1)]`: the means of the last pass that ended, and the number of records of
//! each. Table `previous-centres` is `[2 · clusters × (features + 1)]`: the centres with which a pass began, those of even
//! passes first. Their first column is −1 − the number of the pass, so that the rule `least` keeps the latest. Each task
//! pushes them with its first step, all the same rows. So a cluster without records finds its centre there, and both the
//! centres before a pass and those after it are known, whatever was lost in between.

use std::ops::Range;

use heddle_protocol::failure::Failure;
use heddle_protocol::metrics::ClusterFigures;

use super::points::{PointSet, squared_distance};

/// Rows of `previous-centres` with the centres of a pass.
pub(crate) fn previous_rows(pass: u32, clusters: u64) -> Range<u64> {
    let first = u64::from(pass % 2) * clusters;
    first..first + clusters
}

/// The values of these rows, for the centres with which `pass` begins.
pub(super) fn previous_values(pass: u32, centres: &PointSet) -> Vec<f32> {
    let key = -1.0 - pass as f32;
    centres
        .iter()
        .flat_map(|row| std::iter::once(key).chain(row.iter().map(|x| *x as f32)))
        .collect()
}

/// The centres after a pass.
#[derive(Clone, Debug)]
pub(crate) struct PassCentres {
    pub(crate) centres: PointSet,
    /// Squared movement in the pass.
    moved: f64,
    empty: u32,
}

impl PassCentres {
    /// By the rows of `centres` and of `previous-centres` of `pass`, which has ended.
    ///
    /// # Errors
    /// The centres with which the pass began are missing.
    pub(crate) fn after(
        pass: u32,
        dim: usize,
        rows: &[f32],
        previous: &[f32],
    ) -> Result<Self, Failure> {
        let mut after = Self { centres: PointSet::new(dim), moved: 0.0, empty: 0 };
        for (row, before) in rows.chunks_exact(dim + 1).zip(previous.chunks_exact(dim + 1)) {
            let (key, before) = before.split_at(1);
            if key[0] != -1.0 - pass as f32 {
                let text = format!("the centres before pass {} are missing", pass + 1);
                return Err(Failure::training(text));
            }
            let (row, count) = row.split_at(dim);
            let wide = |row: &[f32]| row.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
            let before = wide(before);
            if count[0] > 0.0 {
                let now = wide(row);
                after.moved += squared_distance(&now, &before);
                after.centres.push(now);
            } else {
                after.empty += 1;
                after.centres.push(before);
            }
        }
        Ok(after)
    }

    /// As figures, of data with this sum of variances.
    pub(super) fn figures(&self, variance: f64) -> ClusterFigures {
        let moved = if self.moved == 0.0 { 0.0 } else { self.moved / variance };
        ClusterFigures { moved, empty: self.empty }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_without_records_keeps_its_centre() {
        let mut before = PointSet::new(2);
        before.push([1.0, 2.0]);
        before.push([5.0, 5.0]);
        let previous = previous_values(3, &before);
        assert_eq!(previous, [-4.0, 1.0, 2.0, -4.0, 5.0, 5.0]);
        assert_eq!((previous_rows(3, 2), previous_rows(4, 2)), (2..4, 0..2));
        let rows = [1.0, 5.0, 7.0, 9.0, 9.0, 0.0];
        let after = PassCentres::after(3, 2, &rows, &previous).expect("sound rows");
        assert_eq!(after.centres.iter().collect::<Vec<_>>(), [[1.0, 5.0], [5.0, 5.0]]);
        assert_eq!(after.figures(18.0), ClusterFigures { moved: 0.5, empty: 1 });
        assert!(PassCentres::after(4, 2, &rows, &previous).is_err(), "those of another pass");
    }
}
