//! A refill of a copy of the shard: at the primary the state and rows that it sends, at the backup what it takes of them.
//!
//! Rows are read when they are put into the stream, between two changes, and the backup applies changes to the rows that it has
//! (below the cursor) and to no others. So each row gets each change once: within the row's piece or after it. Nothing is copied
//! before, and no change is kept for later. BSP begins right after a step was applied, when nothing is staged, so that the sums
//! of a step need not be sent.

use std::sync::Arc;

use heddle_protocol::fill_frame::STATE_WORDS_MAX;
use heddle_protocol::frame::{Header, Kind, flags};
use heddle_protocol::ids::{Epoch, Generation, HandOut, TableId};

use super::Shard;
use super::follow::Unfit;
use crate::change::ShardChange;
use crate::dedup::DedupState;
use crate::effect::ShardEffect;
use crate::frame::Frame;
use crate::phase_progress::PhaseProgress;
use crate::sparse_rows::POSITION_CELLS;
use crate::table::TableSlice;

/// The next row of a refill: the table, and the row of the shard's slice of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FillCursor {
    table: usize,
    row: usize,
}

/// The next piece of a refill.
pub(crate) struct FillPiece {
    /// Without the name of the refill and the number of the chunk.
    pub(crate) frame: ShardChange,
    /// Where the next piece begins; none after the last one.
    pub(crate) next: Option<FillCursor>,
}

impl Shard {
    /// A refill begins as soon as the state can be sent.
    pub(crate) fn want_fill(&mut self) {
        self.begins_fill = true;
    }

    /// BSP: a step was applied and nothing is staged. A refill that waits for this begins with the state of now.
    pub(super) fn begin_wanted_fill(&mut self, out: &[ShardEffect]) {
        if std::mem::take(&mut self.begins_fill)
            && let Some(state) = self.fill_state()
            && let Some(changes) = &mut self.changes
        {
            changes.push((out.len(), Arc::new(state)));
        }
    }

    /// The beginning of a refill; none if the state cannot be sent now.
    pub(crate) fn fill_state(&self) -> Option<ShardChange> {
        if self.is_partly_applied() || self.progress.lanes().is_some_and(|it| !it.is_unstaged()) {
            return None;
        }
        let seen = self.progress.seen()?;
        let state = DedupState { phase: self.phase, steps: self.steps.count(), seen }.encode();
        let mut words: Vec<u32> = Vec::with_capacity(state.len().div_ceil(4));
        for bytes in state.chunks(4) {
            let mut word = [0; 4];
            word[..bytes.len()].copy_from_slice(bytes);
            words.push(u32::from_le_bytes(word));
        }
        for asked in self.progress.lanes().into_iter().flat_map(|lanes| lanes.asked()) {
            words.extend([asked.generation.0, asked.count]);
        }
        if words.len() > STATE_WORDS_MAX {
            return None;
        }
        let rows = state.len() as u32;
        let header =
            Header { shard: self.id, rows, ..Header::new(Kind::FillBegin, Epoch::default()) };
        Some(ShardChange::fill(header, words.into_iter().map(f32::from_bits).collect()))
    }

    /// The piece of a refill at `cursor`; none while rows are of no state between two changes.
    pub(crate) fn fill_piece(&self, cursor: FillCursor) -> Option<FillPiece> {
        if self.is_partly_applied() {
            return None;
        }
        let header = Header { shard: self.id, ..Header::new(Kind::FillEnd, Epoch::default()) };
        let Some(table) = self.memory.tables.all().get(cursor.table) else {
            return Some(FillPiece { frame: ShardChange::fill(header, Vec::new()), next: None });
        };
        let per_chunk = (self.fill_values / cells_of_row(table)).max(1);
        let end = (cursor.row + per_chunk).min(table.rows_len());
        let is_last = end == table.rows_len();
        let mut values = Vec::with_capacity((end - cursor.row) * cells_of_row(table));
        for (start, width) in planes(table) {
            values.extend_from_slice(
                &self.memory.arena.cells()[start + cursor.row * width..start + end * width],
            );
        }
        let header = Header {
            kind: Kind::FillChunk,
            table: TableId(cursor.table as u16),
            start: cursor.row as u64,
            count: (end - cursor.row) as u32,
            flags: if is_last { flags::LAST } else { 0 },
            ..header
        };
        let next = match is_last {
            true => FillCursor { table: cursor.table + 1, row: 0 },
            false => FillCursor { row: end, ..cursor },
        };
        Some(FillPiece { frame: ShardChange::fill(header, values), next: Some(next) })
    }

    /// Bytes of all rows that exist now, as a refill sends them.
    pub(crate) fn fill_bytes(&self) -> u64 {
        let tables = self.memory.tables.all().iter();
        tables.map(|table| 4 * (table.rows_len() * cells_of_row(table)) as u64).sum()
    }

    /// Whether a row may have a change that others lack.
    fn is_partly_applied(&self) -> bool {
        self.pass_end.is_some() || self.progress.lanes().is_some_and(|lanes| lanes.is_applying())
    }

    /// Whether rows are missing, because the copy is being filled.
    pub(crate) fn is_filling(&self) -> bool {
        self.memory.tables.all().iter().any(|table| table.filled.is_some())
    }

    /// Begins to take a refill: the state of the primary, and no row.
    ///
    /// # Errors
    /// It is not a state of this shard.
    pub(crate) fn begin_filling(&mut self, frame: &Frame<'_>) -> Result<(), Unfit> {
        let words: Vec<u32> = frame.values.iter().map(|word| word.to_bits()).collect();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let len = frame.header.rows as usize;
        let state = DedupState::decode(bytes.get(..len).ok_or(Unfit)?).map_err(|_| Unfit)?;
        let (asked, rest) = words[len.div_ceil(4)..].as_chunks::<2>();
        let asked = asked.iter().map(|[generation, count]| HandOut {
            generation: Generation(*generation),
            count: *count,
        });
        let asked: Vec<HandOut> = asked.collect();
        if !rest.is_empty() {
            return Err(Unfit);
        }
        self.memory.empty();
        (self.loaded, self.pass_end, self.full_reported) = (None, None, false);
        self.counted = None;
        self.phase = state.phase;
        self.steps.restore(state.steps);
        self.steps.serve(state.phase);
        let tables = self.memory.tables.all().len();
        self.progress = PhaseProgress::of(state.seen, tables, self.early_bytes_max);
        let fits = match &mut self.progress {
            PhaseProgress::Lanes(lanes) => lanes.set_asked(&asked),
            PhaseProgress::Queue(_) | PhaseProgress::ReadOnly | PhaseProgress::Idle => {
                asked.is_empty()
            }
        };
        fits.then_some(()).ok_or(Unfit)
    }

    /// Takes rows of a refill, which are those at the cursor.
    ///
    /// # Errors
    /// They are not.
    pub(crate) fn take_fill(&mut self, frame: &Frame<'_>) -> Result<(), Unfit> {
        let header = &frame.header;
        let index = usize::from(header.table.0);
        let whole_before =
            self.memory.tables.all().iter().take(index).all(|table| table.filled.is_none());
        let cells = self.memory.arena.cells_for_loading();
        let table = self.memory.tables.all_mut().get_mut(index).ok_or(Unfit)?;
        let first = usize::try_from(header.start).map_err(|_| Unfit)?;
        let count = header.count as usize;
        let end = first.checked_add(count).ok_or(Unfit)?;
        let room = (table.rows.end - table.rows.start) as usize;
        let len = count.checked_mul(cells_of_row(table)).ok_or(Unfit)?;
        let fits = whole_before && table.filled == Some(first) && end <= room;
        if !fits || frame.values.len() != len {
            return Err(Unfit);
        }
        let mut rest = frame.values;
        for (start, width) in planes(table) {
            let (rows, others) = rest.split_at(count * width);
            cells[start + first * width..start + end * width].copy_from_slice(rows);
            rest = others;
        }
        if let Some(sparse) = &mut table.sparse {
            sparse.extend(cells, u32::try_from(end).map_err(|_| Unfit)?).map_err(|_| Unfit)?;
        }
        let is_last = header.has(flags::LAST);
        if is_last && table.sparse.is_none() && end != room {
            return Err(Unfit);
        }
        table.filled = (!is_last).then_some(end);
        Ok(())
    }

    /// Ends a refill.
    ///
    /// # Errors
    /// Rows are missing.
    pub(crate) fn end_filling(&mut self) -> Result<(), Unfit> {
        if self.is_filling() { Err(Unfit) } else { Ok(()) }
    }
}

/// Where each plane begins, and its cells of a row.
fn planes(table: &TableSlice) -> impl Iterator<Item = (usize, usize)> {
    let planes = table.planes.iter().map(|(_, cells)| (cells.start, table.cols));
    planes.chain(table.sparse.as_ref().map(|rows| (rows.plane().start, POSITION_CELLS)))
}

/// Cells of a row in all planes.
fn cells_of_row(table: &TableSlice) -> usize {
    planes(table).map(|(_, width)| width).sum()
}
