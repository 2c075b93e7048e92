//! The rows of sparse tables that a shard takes over from the files of another job (`model.init`).
//!
//! A file has the values before the positions. It is therefore read twice: first for the positions, which decide the rows
//! that the shard takes over and their numbers there, then for values and state. Only four bytes a row are kept between.

use std::ops::RangeInclusive;

use heddle_protocol::ids::{ShardId, TableId};
use heddle_protocol::spec::position::{POSITIONS, shard_positions};
use heddle_shard::{Shard, ShardConfig};
use heddle_storage::shard_file::Piece;

/// Stands for a row that belongs to another shard.
const ELSEWHERE: u32 = u32::MAX;

/// Rows that a shard has taken over so far.
pub(crate) struct InheritedRows {
    positions: RangeInclusive<u64>,
    rows_max: u32,
    /// Number of rows by table id; 0 for dense tables.
    counts: Vec<u32>,
    /// The section of the shard with the positions, by table id.
    sections: Vec<Option<usize>>,
}

/// By the rows of a table in a file: their numbers in the shard.
#[derive(Debug, Default)]
pub(crate) struct RowNumbers(Vec<u32>);

impl InheritedRows {
    pub(crate) fn new(config: &ShardConfig) -> Self {
        let sections = config.sections(&[]);
        let positions_of = |id: TableId| {
            sections.iter().position(|section| section.table == id && section.plane == POSITIONS)
        };
        let ids = (0u16..).map(TableId).take(config.tables.len());
        Self {
            positions: shard_positions(config.shard, config.shards),
            rows_max: config.sparse.rows_max,
            counts: vec![0; config.tables.len()],
            sections: ids.map(positions_of).collect(),
        }
    }

    /// Number of rows by table id.
    pub(crate) fn counts(&self) -> &[u32] {
        &self.counts
    }

    /// Whether a file of shard `shard` of `shards` may have rows of this one.
    pub(crate) fn overlaps(&self, shard: ShardId, shards: u32) -> bool {
        let there = shard_positions(shard, shards);
        self.positions.start() <= there.end() && there.start() <= self.positions.end()
    }

    /// Takes the next positions of a table in a file, little-endian, and gives the shard's rows a number each.
    ///
    /// # Errors
    /// There is no room.
    pub(crate) fn take(
        &mut self,
        table: TableId,
        positions: &[u8],
        numbers: &mut RowNumbers,
        shard: &mut Shard,
    ) -> Result<(), String> {
        let at = usize::from(table.0);
        let section = self.sections.get(at).copied().flatten();
        let cells = section.and_then(|section| shard.section_mut(section));
        let (Some(cells), Some(count)) = (cells, self.counts.get_mut(at)) else {
            return Err(format!("table {table} has no positions"));
        };
        for words in positions.as_chunks::<8>().0 {
            let position = u64::from_le_bytes(*words);
            if !self.positions.contains(&position) {
                numbers.0.push(ELSEWHERE);
                continue;
            }
            let own = cells.get_mut(*count as usize * 2..).and_then(<[f32]>::first_chunk_mut);
            let Some(own) = own.filter(|_: &&mut [f32; 2]| *count < self.rows_max) else {
                return Err(format!(
                    "it has rows of the shard beyond the {} for which there is room; raise pservers.memory",
                    self.rows_max
                ));
            };
            *own = [position as u32, (position >> 32) as u32].map(f32::from_bits);
            numbers.0.push(*count);
            *count += 1;
        }
        Ok(())
    }
}

impl RowNumbers {
    /// Writes what a piece of a section has of these rows. `to` is the shard's section, with `cols` values a row. `None` if
    /// the section is longer than the positions.
    pub(crate) fn write(
        &self,
        to: usize,
        cols: usize,
        piece: &Piece,
        shard: &mut Shard,
    ) -> Option<()> {
        let own = shard.section_mut(to)?;
        // Pieces have whole values, but may begin and end within a row.
        let mut cell = piece.offset as usize / 4;
        let mut values = piece.data.as_chunks::<4>().0;
        while !values.is_empty() {
            let (row, col) = (cell / cols, cell % cols);
            let (part, rest) = values.split_at(values.len().min(cols - col));
            let number = *self.0.get(row)?;
            if number != ELSEWHERE {
                let at = number as usize * cols + col;
                let place = own.get_mut(at..at + part.len())?;
                for (place, bytes) in place.iter_mut().zip(part) {
                    *place = f32::from_le_bytes(*bytes);
                }
            }
            cell += part.len();
            values = rest;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use heddle_protocol::ids::PhaseNo;
    use heddle_protocol::spec::{Optimizer, TableKind, dense_table};
    use heddle_shard::SparseLimits;

    use super::*;

    fn config(shards: u32, rows_max: u32) -> ShardConfig {
        let mut table = dense_table(0, "t", 0, 3, Optimizer::sgd(1.0));
        table.kind = TableKind::Sparse;
        ShardConfig {
            shard: ShardId(0),
            shards,
            tables: vec![table],
            sparse: SparseLimits { rows_max, ..SparseLimits::default() },
            seed: 0,
            training_from: PhaseNo(0),
            copy_bytes_max: 1 << 20,
            early_bytes_max: 1 << 20,
            waiting_bytes_max: 1 << 20,
            fill_values: 1 << 16,
        }
    }

    fn bytes<const N: usize, T: Copy>(values: &[T], of: impl Fn(T) -> [u8; N]) -> Vec<u8> {
        values.iter().flat_map(|value| of(*value)).collect()
    }

    #[test]
    fn rows_of_the_shard_are_taken_wherever_pieces_end() {
        let config = config(2, 4);
        let upper = 1 << 63;
        let positions = bytes(&[7, upper, 5, upper + 1], u64::to_le_bytes);
        let values: Vec<f32> = (0..12u8).map(f32::from).collect();
        let values = bytes(&values, f32::to_le_bytes);
        for cut in 0..=12 {
            let mut shard = Shard::initial(&config);
            let mut taken = InheritedRows::new(&config);
            let mut numbers = RowNumbers::default();
            for part in positions.chunks(8 * (1 + cut % 4)) {
                taken.take(TableId(0), part, &mut numbers, &mut shard).expect("there is room");
            }
            for (offset, data) in [(0, &values[..4 * cut]), (4 * cut as u64, &values[4 * cut..])] {
                let piece = Piece { section: 1, offset, data: Bytes::copy_from_slice(data) };
                numbers.write(0, 3, &piece, &mut shard).expect("it fits");
            }
            shard.load_sparse_rows(taken.counts()).expect("the rows are the shard's");
            assert_eq!(shard.table_values(TableId(0)), Some(&[0.0, 1.0, 2.0, 6.0, 7.0, 8.0][..]));
        }
    }

    #[test]
    fn rows_without_room_name_the_key() {
        let config = config(1, 1);
        let mut shard = Shard::initial(&config);
        let mut numbers = RowNumbers::default();
        let positions = bytes(&[7, 8], u64::to_le_bytes);
        let taken =
            InheritedRows::new(&config).take(TableId(0), &positions, &mut numbers, &mut shard);
        assert!(taken.expect_err("one row fits").contains("pservers.memory"));
    }

    #[test]
    fn a_longer_section_than_positions_is_refused() {
        let config = config(1, 4);
        let mut shard = Shard::initial(&config);
        let piece = Piece { section: 1, offset: 0, data: Bytes::from_static(&[0; 12]) };
        assert_eq!(RowNumbers::default().write(0, 3, &piece, &mut shard), None);
    }
}
