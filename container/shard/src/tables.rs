//! The slices of all tables on one shard, one after the other in the arena.

use std::ops::Range;

use heddle_optimizer::Initialiser;
use heddle_protocol::control::SparseTableSize;
use heddle_protocol::frame::{Header, Status, VALUE_BYTES_MAX};
use heddle_protocol::ids::TableId;
use heddle_protocol::job_spec::TableSpec;
use heddle_protocol::job_spec::position::POSITIONS;

use crate::content::ShardSection;
use crate::frame::Frame;
use crate::sparse_rows::{POSITION_CELLS, SliceSetup};
use crate::table::{TableSlice, Target};

/// The slices, by table id.
pub(crate) struct Tables(Vec<TableSlice>);

/// A checked push: its table, rows and sums. None for a push without rows.
pub(crate) type CheckedGradient<'a> = Option<(usize, Target<'a>, &'a [f32])>;

impl Tables {
    /// The slices of a shard.
    pub(crate) fn new(specs: &[TableSpec], setup: SliceSetup) -> Self {
        let mut at = 0;
        let slice = |spec| {
            let table = TableSlice::new(spec, setup, at);
            at = table.end();
            table
        };
        Self(specs.iter().map(slice).collect())
    }

    /// Cells of the dense tables.
    pub(crate) fn dense_cells(&self) -> usize {
        let dense = self.0.iter().filter(|table| table.sparse.is_none());
        dense.map(|table| table.end() - table.planes[0].1.start).sum()
    }

    pub(crate) fn all(&self) -> &[TableSlice] {
        &self.0
    }

    pub(crate) fn all_mut(&mut self) -> &mut [TableSlice] {
        &mut self.0
    }

    /// Rows of each sparse table; 0 for dense ones.
    pub(crate) fn sparse_rows(&self) -> Vec<u32> {
        self.0.iter().map(|table| table.sparse.as_ref().map_or(0, |rows| rows.len())).collect()
    }

    /// The sparse table with most rows, and their number.
    pub(crate) fn fullest(&self) -> (TableId, u32) {
        let rows = (0u16..).zip(self.sparse_rows());
        let (table, rows) = rows.max_by_key(|(_, rows)| *rows).unwrap_or_default();
        (TableId(table), rows)
    }

    /// The size of each sparse table.
    pub(crate) fn sparse_sizes(&self) -> Vec<SparseTableSize> {
        let size = |(id, table): (u16, &TableSlice)| {
            let sparse = table.sparse.as_ref()?;
            let cells = table.planes.len() * table.cols + POSITION_CELLS;
            let rows = u64::from(sparse.len());
            Some(SparseTableSize {
                table: TableId(id),
                rows,
                bytes: rows * 4 * cells as u64 + sparse.index_bytes() as u64,
                dropped: sparse.dropped(),
            })
        };
        (0u16..).zip(&self.0).filter_map(size).collect()
    }

    /// Returns to these numbers of rows of sparse tables.
    pub(crate) fn truncate(&mut self, cells: &[f32], rows: &[u32]) {
        for (table, len) in self.0.iter_mut().zip(rows) {
            if let Some(sparse) = &mut table.sparse {
                sparse.truncate(cells, *len);
            }
        }
    }

    /// Builds the indexes of rows that were read from a file.
    ///
    /// # Errors
    /// The table, and what is wrong with its rows.
    pub(crate) fn load_rows(
        &mut self,
        cells: &[f32],
        rows: &[u32],
    ) -> Result<(), (TableId, String)> {
        for (id, table) in (0u16..).zip(&mut self.0) {
            let len = rows.get(usize::from(id)).copied().unwrap_or(0);
            if let Some(sparse) = &mut table.sparse {
                sparse.load(cells, len).map_err(|what| (TableId(id), what))?;
            }
        }
        Ok(())
    }

    pub(crate) fn get(&self, table: TableId) -> Option<&TableSlice> {
        self.0.get(usize::from(table.0))
    }

    /// Cells of the arena that all slices take.
    pub(crate) fn cells(&self) -> usize {
        self.0.last().map_or(0, TableSlice::end)
    }

    /// The sections of a file in which the sparse tables have these numbers of rows.
    pub(crate) fn sections(&self, sparse_rows: &[u32]) -> Vec<ShardSection> {
        let mut sections = Vec::new();
        // Ids are indexes of the spec's list, which has at most 1024 tables.
        for (id, table) in (0u16..).zip(&self.0) {
            let is_sparse = table.sparse.is_some();
            let rows = match is_sparse {
                true => 0..u64::from(sparse_rows.get(usize::from(id)).copied().unwrap_or(0)),
                false => table.rows.clone(),
            };
            let section = |plane, cols| ShardSection {
                table: TableId(id),
                name: table.name.clone(),
                plane,
                rows: rows.clone(),
                cols,
                is_sparse,
            };
            sections
                .extend(table.planes.iter().map(|(plane, _)| section(plane, table.cols as u32)));
            if is_sparse {
                sections.push(section(POSITIONS, POSITION_CELLS as u32));
            }
        }
        sections
    }

    /// Fills the values with which the tables begin, where they are not zeros. `cells` are those of the arena, all zero.
    pub(crate) fn initialise(&self, seed: u64, cells: &mut [f32]) {
        let dense = |table: &TableSlice| table.sparse.is_none() && table.init != Initialiser::Zero;
        for (id, table) in (0u16..).zip(&self.0).filter(|(_, table)| dense(table)) {
            let values = &mut cells[table.planes[0].1.clone()];
            table.init.fill(seed, id, table.rows.start, table.cols, values);
            self.begin(TableId(id), cells);
        }
    }

    /// Sets the state of a table to the beginning of its values: the first step continues from them.
    pub(crate) fn begin(&self, table: TableId, cells: &mut [f32]) {
        if let Some(table) = self.get(table) {
            let rows = table.rows_len() * table.cols;
            // A sparse table has room for more rows than exist, and that memory stays untouched.
            let [values, first, second] = table.split(cells).map(|plane| {
                let len = plane.len().min(rows);
                &mut plane[..len]
            });
            first.fill(0.0);
            second.fill(0.0);
            table.rule.begin(values, [first, second]);
        }
    }

    /// Cells of a section.
    pub(crate) fn section(&self, section: usize) -> Option<Range<usize>> {
        self.0.iter().flat_map(TableSlice::sections).nth(section)
    }

    /// Checks the rows of a pull, and returns the bytes of its values.
    pub(crate) fn check_pull(&self, header: &Header, keys: &[u32]) -> Result<u32, Status> {
        let table = self.get(header.table).ok_or(Status::BadRange)?;
        let values = table.target(header, keys)?.len().checked_mul(table.cols);
        let bytes = values.and_then(|values| u32::try_from(values).ok()?.checked_mul(4));
        bytes.filter(|&bytes| bytes <= VALUE_BYTES_MAX).ok_or(Status::BadLength)
    }

    /// Checks the rows of a push.
    pub(crate) fn check_push<'a>(&self, frame: &Frame<'a>) -> Result<CheckedGradient<'a>, Status> {
        let (header, keys, values) = (&frame.header, frame.keys, frame.values);
        if header.count == 0 {
            return if values.is_empty() { Ok(None) } else { Err(Status::BadLength) };
        }
        let table = self.get(header.table).ok_or(Status::BadRange)?;
        let target = table.target(header, keys)?;
        if target.len().checked_mul(table.cols) != Some(values.len()) {
            return Err(Status::BadLength);
        }
        Ok(Some((usize::from(header.table.0), target, values)))
    }
}
