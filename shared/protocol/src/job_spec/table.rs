//! The tables of a job, and which of their rows a shard holds.

use std::ops::Range;

use heddle_optimizer::{Initialiser, Optimizer, Schedule};
use serde::{Deserialize, Serialize};

use crate::ids::{ShardId, TableId};

/// Name of the table that holds one weight per feature.
pub const WEIGHTS: &str = "weights";
/// Name of the table that holds the single bias.
pub const BIAS: &str = "bias";
/// Name of the table that holds a row of factors per feature.
pub const FACTORS: &str = "factors";
/// Name of the table in which standardisation is measured.
pub const STATS: &str = "stats";
/// Name of the table in which numbers of columns are measured (`[[data.columns]]`).
pub const COLUMN_STATS: &str = "column-stats";
/// Name of the table in which the mean and the deviation of the labels are measured: sum, weights, squared distances.
pub const LABEL: &str = "label";

/// Name of the table of k-means' centres: coordinates, and the records of each.
pub const CENTRES: &str = "centres";
/// Name of the table of the centres with which the last two passes began: number of the pass, coordinates.
pub const PREVIOUS_CENTRES: &str = "previous-centres";
/// Name of the table of records drawn for the first centres: key of the draw, coordinates.
pub const CANDIDATES: &str = "candidates";
/// Name of the table of the records nearest to each candidate.
pub const CANDIDATE_COUNTS: &str = "candidate-counts";

/// Bytes of a row of a sparse table beyond values and state: 8 of its position, about 16 of the index, and some for the
/// marks of snapshots.
const SPARSE_ROW_BYTES: u64 = 26;

/// One named parameter of the model. Its place in [`JobSpec::tables`](super::JobSpec::tables) is its id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TableSpec {
    /// Its number, from 0 in the order of the spec.
    pub id: TableId,
    /// Unique in the job; letters, digits, `-` and `_`.
    pub name: String,
    /// Number of rows, 1 to 2³² − 1 (dense keys are u32 row numbers); 0 for a sparse table.
    pub rows: u64,
    /// Values per row, at least 1.
    pub cols: u32,
    /// How rows are found.
    pub kind: TableKind,
    /// What a push does to a row.
    pub optimizer: Optimizer,
    /// l2 of the objective, on the rows that a push names; see [`Gradient`](heddle_optimizer::GradientKind) for its scale.
    pub l2: f64,
    /// How the optimizer's rate changes with the applied steps.
    #[serde(default, skip_serializing_if = "is_default")]
    pub schedule: Schedule,
    /// How the rows begin.
    #[serde(default, skip_serializing_if = "is_default")]
    pub init: Initialiser,
}

/// What is as it was before the field existed is left out, so that a job file's identity stays the same.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl TableSpec {
    /// Bytes of a row with its optimizer state; in a sparse table with its position and its share of the index.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        let state = u64::from(self.optimizer.state_per_value());
        let values = 4 * u64::from(self.cols) * (1 + state);
        match self.kind {
            TableKind::Dense => values,
            TableKind::Sparse => values + SPARSE_ROW_BYTES,
        }
    }

    /// Number of f32 parameters of a dense table.
    #[must_use]
    pub fn values(&self) -> u64 {
        self.rows.saturating_mul(u64::from(self.cols))
    }
}

/// How the rows of a table are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TableKind {
    /// By row number; every row exists from the start. Cut into shards by ranges.
    Dense,
    /// By a u64 key; a row exists from the first push that names it. Cut into shards by ranges of
    /// [positions](super::position).
    Sparse,
}

/// The rows of a dense table of `rows` rows that shard `shard` of `shards` holds.
///
/// `[⌊rows·s/S⌋, ⌊rows·(s+1)/S⌋)`: the ranges are disjoint, cover the table in order, and differ by at
/// most one row. Empty where a table has fewer rows than there are shards.
///
/// # Panics
/// When `shards` is 0 or `shard` is not below it.
#[must_use]
pub fn shard_rows(rows: u64, shard: ShardId, shards: u32) -> Range<u64> {
    assert!(shard.0 < shards, "shard {shard} of {shards}");
    // 128 bits, since rows × shards may exceed 64.
    let bound = |s: u32| (u128::from(rows) * u128::from(s) / u128::from(shards)) as u64;
    bound(shard.0)..bound(shard.0 + 1)
}

/// The shard that holds `row` of a dense table of `rows` rows: the inverse of [`shard_rows`].
///
/// # Panics
/// When `shards` is 0 or `row` is not below `rows`.
#[must_use]
pub fn shard_of_row(rows: u64, row: u64, shards: u32) -> ShardId {
    assert!(row < rows && shards > 0, "row {row} of {rows}, {shards} shards");
    // The highest s with ⌊rows·s/S⌋ ≤ row, that is rows·s < (row + 1)·S.
    let shard = (u128::from(row) * u128::from(shards) + u128::from(shards) - 1) / u128::from(rows);
    ShardId(shard as u32)
}

/// A custom table as [`ModelSpec::tables`](super::ModelSpec::tables) holds it.
#[must_use]
pub fn dense_table(id: u16, name: &str, rows: u64, cols: u32, optimizer: Optimizer) -> TableSpec {
    TableSpec {
        id: TableId(id),
        name: name.to_owned(),
        rows,
        cols,
        kind: TableKind::Dense,
        optimizer,
        l2: 0.0,
        schedule: Schedule::CONSTANT,
        init: Initialiser::Zero,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_table_smaller_than_the_shards_leaves_some_empty() {
        let ranges: Vec<_> = (0..4).map(|s| shard_rows(1, ShardId(s), 4)).collect();
        assert_eq!(ranges, [0..0, 0..0, 0..0, 0..1]);
        assert_eq!(shard_of_row(1, 0, 4), ShardId(3));
    }

    proptest! {
        #[test]
        fn ranges_are_disjoint_cover_the_table_and_are_even(
            rows in 1u64..100_000,
            shards in 1u32..300,
        ) {
            let mut next = 0;
            for s in 0..shards {
                let range = shard_rows(rows, ShardId(s), shards);
                prop_assert_eq!(range.start, next);
                prop_assert!(range.end - range.start <= rows / u64::from(shards) + 1);
                next = range.end;
            }
            prop_assert_eq!(next, rows);
        }

        #[test]
        fn every_row_is_in_the_range_of_its_shard(
            rows in 1u64..=u64::from(u32::MAX),
            at in 0.0f64..1.0,
            shards in 1u32..5000,
        ) {
            let row = ((rows as f64 * at) as u64).min(rows - 1);
            let shard = shard_of_row(rows, row, shards);
            prop_assert!(shard_rows(rows, shard, shards).contains(&row));
        }
    }
}
