//! The content of a shard from the files of a checkpoint.
//!
//! A restore reads the shard's own file. `model.init` reads each file of the other job that has rows of the shard, whatever the
//! numbers of shards. A file is read to its end, since its sum covers all of it, and a shard is used only after the sums of all
//! its files are right.
//!
//! The rows of a dense table are a range of those in a file. The rows of a sparse table are all of the own file, with the same
//! numbers. Of another file they are those with the shard's positions, and a file has the values before the positions. It is
//! therefore read twice: first for the positions, which decide the rows that the shard takes and their numbers there, then for
//! values and state. Only four bytes a row are kept between.

use std::ops::Range;

use bytemuck::cast_slice_mut;
use heddle_protocol::job_spec::TableSpec;
use heddle_protocol::job_spec::position::{POSITIONS, shard_positions};
use heddle_protocol::job_spec::warm_start::InheritedTable;
use heddle_shard::{Shard, ShardConfig};
use heddle_storage::checkpoint::CheckpointError;
use heddle_storage::shard_file::{Piece, ShardHeader, ShardReader, VALUES};

use crate::layout::DEDUP_STATE;
use crate::load_error::LoadError;

/// Stands for a row that belongs to another shard.
const ELSEWHERE: u32 = u32::MAX;
/// Optimizer state that files of older programs do not have, by optimizer: it begins as zeros.
const ADDED_STATE: (&str, &str) = ("add", "low");

/// A shard that takes its content from files.
pub(crate) struct ShardContent<'a> {
    config: &'a ShardConfig,
    pub(crate) shard: Box<Shard>,
    /// Rows of each sparse table so far, by table id; 0 for dense ones.
    pub(crate) sparse_rows: Vec<u32>,
    /// The tables of the files, by the shard's table; `None`: the shard keeps what it has.
    tables: Vec<Option<InheritedTable>>,
    /// The shard has a place for each section.
    takes_all: bool,
}

/// What goes from a section of a file to the shard.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Copied {
    /// It is left out.
    Skipped,
    DedupState,
    Rows(CopiedRows),
    /// Rows of a sparse table by their numbers; `to` is the shard's section with `cols` values a row.
    Numbered {
        table: usize,
        to: usize,
        cols: usize,
    },
    /// The positions of such rows.
    Positions {
        table: usize,
        to: usize,
    },
}

/// Rows that lie together in a file and in the shard.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CopiedRows {
    /// The shard's section.
    to: usize,
    /// Bytes of the file's section.
    from: Range<u64>,
    /// Where they go in the shard's section, in f32.
    at: usize,
}

/// By the rows of a sparse table in a file: their numbers in the shard.
#[derive(Clone, Debug, Default)]
struct RowNumbers(Vec<u32>);

impl<'a> ShardContent<'a> {
    /// A shard that continues from its own file.
    pub(crate) fn restored(config: &'a ShardConfig) -> Self {
        let same = |spec: &TableSpec| InheritedTable { spec: spec.clone(), keeps_state: true };
        let tables = config.tables.iter().map(|spec| Some(same(spec))).collect();
        Self { takes_all: true, ..Self::new(config, Shard::new(config), tables) }
    }

    /// A shard that begins with these tables of other files.
    pub(crate) fn inherited(config: &'a ShardConfig, tables: Vec<Option<InheritedTable>>) -> Self {
        Self::new(config, Shard::initial(config), tables)
    }

    fn new(config: &'a ShardConfig, shard: Shard, tables: Vec<Option<InheritedTable>>) -> Self {
        let (shard, sparse_rows) = (Box::new(shard), vec![0; config.tables.len()]);
        Self { config, shard, sparse_rows, tables, takes_all: false }
    }

    /// Takes what the shard has of a file, and returns the file's dedup state. `again` opens the file once more.
    ///
    /// # Errors
    /// The file is damaged, cannot be read, or is not of these tables.
    pub(crate) async fn take(
        &mut self,
        mut reader: ShardReader,
        again: impl AsyncFnOnce() -> Result<ShardReader, CheckpointError>,
    ) -> Result<Vec<u8>, LoadError> {
        let file = reader.file().to_owned();
        let wrong = |what| LoadError::Other { file: file.clone(), what };
        let copies = match self.copies(reader.header()) {
            Ok(copies) => copies,
            Err(what) => {
                // A header with a changed byte is damage, not a file of another job.
                reader.check().await?;
                return Err(wrong(what));
            }
        };
        let mut numbers = vec![RowNumbers::default(); self.config.tables.len()];
        if copies.iter().any(|copied| matches!(copied, Copied::Positions { .. })) {
            while let Some(piece) = reader.next().await? {
                if let Copied::Positions { table, to } = copies[piece.section] {
                    let numbers = &mut numbers[table];
                    self.number_rows(table, to, &piece.data, numbers).map_err(wrong)?;
                }
            }
            reader = again().await?;
        }
        let mut state = Vec::new();
        while let Some(piece) = reader.next().await? {
            let written = match copies.get(piece.section) {
                Some(Copied::DedupState) => {
                    state.extend_from_slice(&piece.data);
                    Some(())
                }
                Some(Copied::Rows(rows)) => rows.write(&piece, &mut self.shard),
                Some(Copied::Numbered { table, to, cols }) => {
                    numbers[*table].write(*to, *cols, &piece, &mut self.shard)
                }
                Some(Copied::Skipped | Copied::Positions { .. }) | None => Some(()),
            };
            let longer = || format!("section {} is longer than in the header", piece.section);
            written.ok_or_else(|| wrong(longer()))?;
        }
        Ok(state)
    }

    /// What goes from each section of a file to the shard.
    ///
    /// # Errors
    /// The file is not of these tables.
    fn copies(&mut self, header: &ShardHeader) -> Result<Vec<Copied>, String> {
        let first = header.sections.first();
        if first.is_none_or(|state| state.name != DEDUP_STATE || state.table.is_some()) {
            return Err(format!("the first section must be '{DEDUP_STATE}'"));
        }
        let own = (self.config.shard, self.config.shards);
        let is_own = (header.shard, header.shards) == own;
        if self.takes_all && !is_own {
            return Err(format!(
                "the shard must be {} of {} (got {} of {})",
                own.0, own.1, header.shard, header.shards
            ));
        }
        let mut copies = vec![Copied::Skipped; header.sections.len()];
        copies[0] = Copied::DedupState;
        for (to, section) in self.config.sections(&[]).iter().enumerate() {
            let at = usize::from(section.table.0);
            let is_state = !matches!(section.plane, VALUES | POSITIONS);
            let from = self.tables.get(at).and_then(Option::as_ref);
            let Some(from) = from.filter(|from| from.keeps_state || !is_state) else { continue };
            let table = header.table_of(&from.spec)?;
            let optimizer = from.spec.optimizer.kind().name;
            if from.keeps_state && table.optimizer != optimizer {
                return Err(format!("table {} must have state of {optimizer}", table.name));
            }
            let found = match header.section_of(table, section.plane) {
                Ok(found) => found,
                Err(_) if (optimizer, section.plane) == ADDED_STATE => continue,
                Err(what) => return Err(what),
            };
            let there = table.rows.range();
            copies[found] = match section.plane {
                POSITIONS if !is_own => Copied::Positions { table: at, to },
                _ if section.is_sparse && !is_own => {
                    Copied::Numbered { table: at, to, cols: section.cols as usize }
                }
                _ if section.is_sparse => {
                    let room = self.config.sparse.rows_max;
                    let rows = u32::try_from(there.end).ok().filter(|rows| *rows <= room);
                    self.sparse_rows[at] = rows.ok_or_else(|| no_room(room))?;
                    Copied::Rows(CopiedRows::between(to, section.cols, &there, &there))
                }
                _ => Copied::Rows(CopiedRows::between(to, section.cols, &section.rows, &there)),
            };
        }
        if self.takes_all && copies.contains(&Copied::Skipped) {
            return Err("the sections must be those of the job's tables".to_owned());
        }
        Ok(copies)
    }

    /// Takes the next positions of a table in a file, little-endian, and gives the shard's rows a number each.
    ///
    /// # Errors
    /// The memory is used up.
    fn number_rows(
        &mut self,
        table: usize,
        to: usize,
        positions: &[u8],
        numbers: &mut RowNumbers,
    ) -> Result<(), String> {
        let own = shard_positions(self.config.shard, self.config.shards);
        let room = self.config.sparse.rows_max;
        let cells = self.shard.section_mut(to).unwrap_or_default();
        let count = &mut self.sparse_rows[table];
        for words in positions.as_chunks::<8>().0 {
            let position = u64::from_le_bytes(*words);
            if !own.contains(&position) {
                numbers.0.push(ELSEWHERE);
                continue;
            }
            let place = cells.get_mut(*count as usize * 2..).and_then(<[f32]>::first_chunk_mut);
            let Some(place) = place.filter(|_: &&mut [f32; 2]| *count < room) else {
                return Err(no_room(room));
            };
            *place = [position as u32, (position >> 32) as u32].map(f32::from_bits);
            numbers.0.push(*count);
            *count += 1;
        }
        Ok(())
    }
}

fn no_room(rows_max: u32) -> String {
    format!(
        "it has rows of the shard beyond the {rows_max} for which there is room; raise pservers.memory"
    )
}

impl CopiedRows {
    /// The rows `here` of the shard's section, with `cols` values each, from a file that has the rows `there`.
    fn between(to: usize, cols: u32, here: &Range<u64>, there: &Range<u64>) -> Self {
        let rows = common(here, there);
        if rows.is_empty() {
            return Self { to, from: 0..0, at: 0 };
        }
        let row_bytes = 4 * u64::from(cols);
        Self {
            to,
            from: (rows.start - there.start) * row_bytes..(rows.end - there.start) * row_bytes,
            at: (rows.start - here.start) as usize * cols as usize,
        }
    }

    /// Writes what a piece has of these rows. `None` if it does not fit.
    fn write(&self, piece: &Piece, shard: &mut Shard) -> Option<()> {
        let bytes = piece.offset..piece.offset + piece.data.len() as u64;
        let part = common(&self.from, &bytes);
        if part.is_empty() {
            return Some(());
        }
        let values: &mut [u8] = cast_slice_mut(shard.section_mut(self.to)?);
        let at = 4 * self.at + (part.start - self.from.start) as usize;
        let len = (part.end - part.start) as usize;
        let skipped = (part.start - bytes.start) as usize;
        values.get_mut(at..at + len)?.copy_from_slice(piece.data.get(skipped..skipped + len)?);
        Some(())
    }
}

/// What two ranges have in common.
pub(crate) fn common(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    a.start.max(b.start)..a.end.min(b.end)
}

impl RowNumbers {
    /// Writes what a piece of a section has of these rows. `to` is the shard's section, with `cols` values a row. `None` if
    /// the section is longer than the positions.
    fn write(&self, to: usize, cols: usize, piece: &Piece, shard: &mut Shard) -> Option<()> {
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
    use heddle_protocol::ids::{CutId, Epoch, PhaseNo, RunId, ShardId, Step, TableId};
    use heddle_protocol::job_spec::{Optimizer, TableKind, dense_table};
    use heddle_shard::{SnapshotHead, SparseLimits};
    use heddle_storage::shard_file::Section;

    use super::*;
    use crate::layout::{self, Moment};

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

    /// The header of a shard's file with this number of rows.
    fn header(config: &ShardConfig, rows: u32) -> ShardHeader {
        let moment = Moment {
            run: RunId(uuid::Uuid::nil()),
            cut: CutId::default(),
            epoch: Epoch::default(),
            phase: PhaseNo(0),
            step: Step(0),
        };
        let head = SnapshotHead { dedup_state: vec![7], sparse_rows: vec![rows] };
        layout::header(config, moment, &head)
    }

    #[test]
    fn sections_of_the_own_file_are_copied_as_they_are() {
        let config = config(2, 4);
        let mut content = ShardContent::restored(&config);
        let mut header = header(&config, 3);
        let whole = |to, bytes| Copied::Rows(CopiedRows { to, from: 0..bytes, at: 0 });
        let all = vec![Copied::DedupState, whole(0, 36), whole(1, 24)];
        assert_eq!((content.copies(&header), &content.sparse_rows[..]), (Ok(all), &[3][..]));
        header.shards = 3;
        let text = "the shard must be 0 of 2 (got 0 of 3)";
        assert_eq!(content.copies(&header), Err(text.to_owned()));
        let table = InheritedTable { spec: config.tables[0].clone(), keeps_state: true };
        let mut content = ShardContent::inherited(&config, vec![Some(table)]);
        let rows = Copied::Numbered { table: 0, to: 0, cols: 3 };
        let by_row = vec![Copied::DedupState, rows, Copied::Positions { table: 0, to: 1 }];
        assert_eq!(content.copies(&header), Ok(by_row));
    }

    #[test]
    fn files_of_other_tables_are_refused() {
        let config = config(2, 4);
        let refused = |rows, change: &dyn Fn(&mut ShardHeader)| {
            let mut header = header(&config, rows);
            change(&mut header);
            ShardContent::restored(&config).copies(&header).expect_err("another file")
        };
        assert!(refused(5, &|_| ()).contains("pservers.memory"));
        assert!(refused(3, &|header| header.tables[0].cols = 4).contains("table t is not that"));
        assert!(refused(3, &|header| header.sections[1].count = 8).contains("no 'values'"));
        assert!(refused(3, &|header| header.tables[0].optimizer.clear()).contains("sgd"));
        let added = Section { name: "n".to_owned(), ..header(&config, 3).sections[1].clone() };
        let text = refused(3, &|header| header.sections.push(added.clone()));
        assert_eq!(text, "the sections must be those of the job's tables");
    }

    #[test]
    fn rows_of_the_shard_are_taken_wherever_pieces_end() {
        let config = config(2, 4);
        let upper = 1 << 63;
        let positions = bytes(&[7, upper, 5, upper + 1], u64::to_le_bytes);
        let values: Vec<f32> = (0..12u8).map(f32::from).collect();
        let values = bytes(&values, f32::to_le_bytes);
        for cut in 0..=12 {
            let mut content = ShardContent::inherited(&config, Vec::new());
            let mut numbers = RowNumbers::default();
            for part in positions.chunks(8 * (1 + cut % 4)) {
                content.number_rows(0, 1, part, &mut numbers).expect("there is room");
            }
            let mut shard = content.shard;
            for (offset, data) in [(0, &values[..4 * cut]), (4 * cut as u64, &values[4 * cut..])] {
                let piece = Piece { section: 1, offset, data: Bytes::copy_from_slice(data) };
                numbers.write(0, 3, &piece, &mut shard).expect("it fits");
            }
            shard.load_sparse_rows(&content.sparse_rows).expect("the rows are the shard's");
            assert_eq!(shard.table_values(TableId(0)), Some(&[0.0, 1.0, 2.0, 6.0, 7.0, 8.0][..]));
        }
    }

    #[test]
    fn rows_without_room_name_the_key() {
        let config = config(1, 1);
        let mut content = ShardContent::inherited(&config, Vec::new());
        let positions = bytes(&[7, 8], u64::to_le_bytes);
        let taken = content.number_rows(0, 1, &positions, &mut RowNumbers::default());
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
