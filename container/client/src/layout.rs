//! The shard of each row, and how a run of rows is cut into frames.
//!
//! Cutting depends on the rows alone, never on values. The pieces of a step have the same boundaries on every trainer, so a
//! shard detects a part that it has already.
//!
//! Dense tables are cut by row ranges, sparse ones by ranges of positions. The sorted keys of one shard are a run of the whole list, and a piece is a slice of
//! the caller's buffers: nothing is copied between gradient and socket.

use std::ops::Range;

use heddle_protocol::frame::{KEY_BYTES, PART_VALUES_MAX, POSITION_BYTES, VALUE_BYTES_MAX, flags};
use heddle_protocol::ids::{ShardId, TableId};
use heddle_protocol::job_spec::position::{shard_of_position, shard_positions};
use heddle_protocol::job_spec::{JobSpec, TableKind, TableSpec, shard_of_row, shard_rows};

use crate::error::RequestError;

/// Maximum values per row. A row is never cut, so it must fit into one frame.
pub const COLS_MAX: u32 = VALUE_BYTES_MAX / 4;

/// Rows and columns of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableShape {
    /// How rows are found.
    pub kind: TableKind,
    /// Rows of a dense table, at least 1 and below 2³².
    pub rows: u64,
    /// Values per row, 1 to [`COLS_MAX`].
    pub cols: u32,
}

/// The rows of a table in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rows {
    /// All rows of a range. Numbers are of the whole table.
    Range(Range<u64>),
    /// `keys: [n]`, row numbers, sorted and unique.
    Keys(Vec<u32>),
    /// Rows of a sparse table by their [positions](heddle_protocol::job_spec::position), `[n]`, sorted and unique.
    Positions(Vec<u64>),
}

impl Rows {
    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Range(range) => {
                usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX)
            }
            Self::Keys(keys) => keys.len(),
            Self::Positions(positions) => positions.len(),
        }
    }

    /// Flags and bytes of the keys of a frame with `count` of these rows.
    pub(crate) fn key_fields(&self, count: u32) -> (u16, u32) {
        match self {
            Self::Range(_) => (0, 0),
            Self::Keys(_) => (flags::KEYS, count * KEY_BYTES as u32),
            Self::Positions(_) => (flags::KEYS | flags::POSITIONS, count * POSITION_BYTES as u32),
        }
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Shapes of a job's tables, and its number of shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    shards: u32,
    tables: Vec<TableShape>,
}

/// The rows of one frame: a run of the request's rows on one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowPiece {
    pub shard: ShardId,
    /// Indexes into the request's rows: `keys[rows]`, `values[rows × cols]`.
    pub rows: Range<usize>,
    /// Ranges: the table's row number of the first row.
    pub start: u64,
}

impl Layout {
    /// A layout of `shards` shards over these tables, in the order of their ids.
    ///
    /// # Errors
    /// [`RequestError::Layout`] when the tables lack a shard, or a table has no row, no column, 2³² rows or
    /// more, or more than [`COLS_MAX`] columns.
    pub fn new(shards: u32, tables: Vec<TableShape>) -> Result<Self, RequestError> {
        let fits = |t: &TableShape| {
            let rows = t.kind == TableKind::Sparse || (t.rows > 0 && t.rows < 1 << 32);
            rows && t.cols > 0 && t.cols <= COLS_MAX
        };
        let unheld = shards == 0 && !tables.is_empty();
        if unheld || tables.len() > usize::from(u16::MAX) || !tables.iter().all(fits) {
            return Err(RequestError::Layout);
        }
        Ok(Self { shards, tables })
    }

    /// The layout of a job.
    ///
    /// # Errors
    /// As [`Layout::new`].
    pub fn of(spec: &JobSpec) -> Result<Self, RequestError> {
        let shape =
            |table: &TableSpec| TableShape { kind: table.kind, rows: table.rows, cols: table.cols };
        Self::new(spec.shards(), spec.tables().iter().map(shape).collect())
    }

    /// Number of shards of the job.
    #[must_use]
    pub fn shards(&self) -> u32 {
        self.shards
    }

    /// Rows and columns of a table.
    ///
    /// # Errors
    /// [`RequestError::Table`] when the job does not have the table.
    pub fn table(&self, table: TableId) -> Result<TableShape, RequestError> {
        self.tables.get(usize::from(table.0)).copied().ok_or(RequestError::Table(table))
    }

    /// Checks that rows are inside the table, and keys sorted and unique.
    ///
    /// # Errors
    /// [`RequestError::Table`], [`RequestError::Rows`], [`RequestError::Unsorted`], [`RequestError::Kind`].
    pub(crate) fn check(&self, table: TableId, rows: &Rows) -> Result<TableShape, RequestError> {
        let shape = self.table(table)?;
        let is_sparse = shape.kind == TableKind::Sparse;
        if is_sparse != matches!(rows, Rows::Positions(_)) {
            return Err(RequestError::Kind { table, is_sparse });
        }
        match rows {
            Rows::Range(range) if range.start > range.end || range.end > shape.rows => {
                Err(RequestError::Rows { table, row: range.end, rows: shape.rows })
            }
            Rows::Range(_) => Ok(shape),
            Rows::Positions(positions) => {
                match positions.windows(2).find(|pair| pair[0] >= pair[1]) {
                    Some(pair) => Err(RequestError::Unsorted { table, key: pair[1] }),
                    None => Ok(shape),
                }
            }
            Rows::Keys(keys) => {
                if let Some(pair) = keys.windows(2).find(|pair| pair[0] >= pair[1]) {
                    return Err(RequestError::Unsorted { table, key: u64::from(pair[1]) });
                }
                match keys.last() {
                    Some(&last) if u64::from(last) >= shape.rows => {
                        Err(RequestError::Rows { table, row: u64::from(last), rows: shape.rows })
                    }
                    _ => Ok(shape),
                }
            }
        }
    }

    /// Cuts checked rows of a table into frames: by shard in order, then into runs of at most
    /// [`PART_VALUES_MAX`] values, at least one row.
    pub(crate) fn pieces(&self, shape: TableShape, rows: &Rows) -> Vec<RowPiece> {
        let rows_max = (PART_VALUES_MAX / shape.cols as usize).max(1);
        let mut pieces = Vec::new();
        let len = rows.len();
        let mut at = 0;
        let of_row = |row| {
            let shard = shard_of_row(shape.rows, row, self.shards);
            (shard, shard_rows(shape.rows, shard, self.shards).end)
        };
        while at < len {
            let (shard, end) = match rows {
                Rows::Range(range) => {
                    let (shard, end_row) = of_row(range.start + at as u64);
                    (shard, (end_row.min(range.end) - range.start) as usize)
                }
                Rows::Keys(keys) => {
                    let (shard, end_row) = of_row(u64::from(keys[at]));
                    (shard, at + keys[at..].partition_point(|&key| u64::from(key) < end_row))
                }
                Rows::Positions(positions) => {
                    let shard = shard_of_position(positions[at], self.shards);
                    let last = *shard_positions(shard, self.shards).end();
                    (shard, at + positions[at..].partition_point(|&position| position <= last))
                }
            };
            while at < end {
                let next = end.min(at + rows_max);
                let start = match rows {
                    Rows::Range(range) => range.start + at as u64,
                    Rows::Keys(_) | Rows::Positions(_) => 0,
                };
                pieces.push(RowPiece { shard, rows: at..next, start });
                at = next;
            }
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn layout(shards: u32, rows: u64, cols: u32) -> (Layout, TableShape) {
        let shape = TableShape { kind: TableKind::Dense, rows, cols };
        (Layout::new(shards, vec![shape]).expect("a sound table"), shape)
    }

    #[test]
    fn row_wider_than_a_part_gets_its_own_frame() {
        let (layout, shape) = layout(1, 3, PART_VALUES_MAX as u32 + 1);
        let pieces = layout.pieces(shape, &Rows::Range(0..3));
        assert_eq!(pieces.iter().map(|p| p.rows.clone()).collect::<Vec<_>>(), [0..1, 1..2, 2..3]);
    }

    #[test]
    fn unsorted_or_outside_rows_are_rejected() {
        let (layout, _) = layout(2, 10, 1);
        let table = TableId(0);
        for wrong in [
            Rows::Keys(vec![1, 1]),
            Rows::Keys(vec![2, 1]),
            Rows::Keys(vec![10]),
            Rows::Range(3..11),
        ] {
            assert!(layout.check(table, &wrong).is_err(), "{wrong:?} was taken");
        }
        assert!(
            layout.check(TableId(1), &Rows::Range(0..0)).is_err(),
            "an unknown table was taken"
        );
        assert!(layout.check(table, &Rows::Keys(vec![0, 9])).is_ok());
        let table = |rows| TableShape { kind: TableKind::Dense, rows, cols: 1 };
        assert!(Layout::new(0, vec![table(1)]).is_err());
        assert!(Layout::new(1, vec![table(0)]).is_err());
        assert!(Layout::new(0, vec![]).is_ok(), "a job without tables");
    }

    proptest! {
        #[test]
        fn positions_are_cut_by_shard(
            shards in 1u32..20,
            cols in 1u32..40,
            picks in prop::collection::btree_set(any::<u64>(), 0..3000),
        ) {
            let shape = TableShape { kind: TableKind::Sparse, rows: 0, cols };
            let layout = Layout::new(shards, vec![shape]).expect("a sound table");
            let positions: Vec<u64> = picks.into_iter().collect();
            let wanted = Rows::Positions(positions.clone());
            layout.check(TableId(0), &wanted).expect("sorted");
            let mut next = 0;
            for piece in layout.pieces(shape, &wanted) {
                prop_assert_eq!(piece.rows.start, next);
                prop_assert!(piece.rows.len() * cols as usize <= PART_VALUES_MAX);
                let held = shard_positions(piece.shard, shards);
                prop_assert!(positions[piece.rows.clone()].iter().all(|p| held.contains(p)));
                next = piece.rows.end;
            }
            prop_assert_eq!(next, positions.len());
        }

        #[test]
        fn pieces_cover_the_rows_and_are_on_their_shard(
            shards in 1u32..20,
            rows in 1u64..400_000,
            cols in 1u32..40,
            picks in prop::collection::btree_set(0u64..1 << 32, 0..200),
            range in any::<bool>(),
        ) {
            let (layout, shape) = layout(shards, rows, cols);
            let mut keys: Vec<u32> = picks.iter().map(|p| ((rows * p) >> 32) as u32).collect();
            keys.dedup();
            let wanted = match (range, keys.first(), keys.last()) {
                (true, Some(&a), Some(&b)) => Rows::Range(u64::from(a)..u64::from(b)),
                _ => Rows::Keys(keys),
            };
            layout.check(TableId(0), &wanted).expect("sorted and inside");
            let pieces = layout.pieces(shape, &wanted);
            let mut next = 0;
            for piece in &pieces {
                prop_assert_eq!(piece.rows.start, next, "no row is left out or sent twice");
                prop_assert!(piece.rows.end > piece.rows.start);
                prop_assert!(piece.rows.len() * cols as usize <= PART_VALUES_MAX);
                next = piece.rows.end;
                let held = shard_rows(rows, piece.shard, shards);
                let (first, last) = match &wanted {
                    Rows::Range(r) => {
                        prop_assert_eq!(piece.start, r.start + piece.rows.start as u64);
                        (piece.start, r.start + piece.rows.end as u64 - 1)
                    }
                    Rows::Keys(k) => {
                        (u64::from(k[piece.rows.start]), u64::from(k[piece.rows.end - 1]))
                    }
                    Rows::Positions(_) => unreachable!("the table is dense"),
                };
                prop_assert!(held.contains(&first) && held.contains(&last));
            }
            prop_assert_eq!(next, wanted.len());
        }
    }
}
