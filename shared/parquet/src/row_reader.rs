//! The wanted columns of a run of rows, some rows at a time.

use std::sync::Arc;

use heddle_columns::typed::{NeededLeaf, ReadAhead, RowBlock};

use crate::FileError;
use crate::footer::{Footer, RowRun};
use crate::leaf::LeafReader;
use crate::source::ReadAt;

/// Rows of a block at the most.
const ROWS_MAX: u64 = 1_024;
/// Values of a leaf in a block, on average, at the most: lists may be long.
const VALUES_MAX: u64 = 64 << 10;

/// Bytes that are read ahead, of all columns together: a trainer has a reader for each lane.
const AHEAD_BYTES_MAX: u64 = 16 << 20;

/// Reads the rows of a run.
pub struct RowReader {
    leaves: Vec<LeafReader>,
    rows_of_block: u64,
    left: u64,
}

impl RowReader {
    /// Begins with the run's first row.
    ///
    /// # Errors
    /// A column cannot be read, or the storage has failed.
    pub fn open(
        file: &Arc<dyn ReadAt>,
        footer: &Footer,
        run: &RowRun,
        needed: &[NeededLeaf],
    ) -> Result<Self, FileError> {
        let group = footer.metadata.row_group(run.group.number);
        let mut leaves = Vec::with_capacity(needed.len());
        for NeededLeaf { leaf, need } in needed {
            let chunk = group.columns().get(*leaf).ok_or_else(|| {
                FileError(format!("row group {} lacks a column", run.group.number))
            })?;
            let named = |error: FileError| {
                FileError(format!("column {}: {error}", chunk.column_path().string()))
            };
            let ahead = ReadAhead::within(AHEAD_BYTES_MAX, needed.len());
            let opened = LeafReader::open(file, footer, chunk, run, need.clone(), ahead);
            let mut reader = opened.map_err(named)?;
            reader.skip(run.rows.start as usize).map_err(named)?;
            leaves.push(reader);
        }
        let of_row = leaves.iter().map(|leaf| leaf.values_of_row).max().unwrap_or(1).max(1);
        let rows_of_block = (VALUES_MAX / of_row).clamp(1, ROWS_MAX);
        Ok(Self { leaves, rows_of_block, left: run.rows.end - run.rows.start })
    }

    /// The next rows; `None` after the last one.
    ///
    /// # Errors
    /// A column is damaged, or the storage has failed.
    pub fn next_block(&mut self) -> Result<Option<RowBlock>, FileError> {
        let rows = self.rows_of_block.min(self.left);
        if rows == 0 {
            return Ok(None);
        }
        self.left -= rows;
        let rows = rows as usize;
        let read = |leaf: &mut LeafReader| leaf.read_named(rows);
        let leaves = self.leaves.iter_mut().map(read).collect::<Result<_, _>>()?;
        Ok(Some(RowBlock { rows, leaves }))
    }
}
