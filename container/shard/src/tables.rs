//! The slices of all tables on one shard, one after the other in the arena.

use std::ops::Range;

use heddle_optimizer::Initialiser;
use heddle_protocol::frame::{Header, Status, VALUE_BYTES_MAX};
use heddle_protocol::ids::{ShardId, TableId};
use heddle_protocol::spec::TableSpec;

use crate::content::ShardSection;
use crate::frame::Frame;
use crate::table::{TableSlice, Target};

/// The slices, by table id.
pub(crate) struct Tables(Vec<TableSlice>);

/// A checked push: its table, rows and sums. None for a push without rows.
pub(crate) type CheckedGradient<'a> = Option<(usize, Target<'a>, &'a [f32])>;

impl Tables {
    pub(crate) fn new(specs: &[TableSpec], shard: ShardId, shards: u32) -> Self {
        let mut at = 0;
        let slice = |spec| {
            let table = TableSlice::new(spec, shard, shards, at);
            at = table.end();
            table
        };
        Self(specs.iter().map(slice).collect())
    }

    pub(crate) fn all(&self) -> &[TableSlice] {
        &self.0
    }

    pub(crate) fn get(&self, table: TableId) -> Option<&TableSlice> {
        self.0.get(usize::from(table.0))
    }

    /// Cells of the arena that all slices take.
    pub(crate) fn cells(&self) -> usize {
        self.0.last().map_or(0, TableSlice::end)
    }

    pub(crate) fn sections(&self) -> Vec<ShardSection> {
        let mut sections = Vec::new();
        for (id, table) in self.0.iter().enumerate() {
            for (plane, _) in &table.planes {
                sections.push(ShardSection {
                    // Ids are indexes of the spec's list, which has at most 1024 tables.
                    table: TableId(id as u16),
                    name: table.name.clone(),
                    plane,
                    rows: table.rows.clone(),
                    cols: table.cols as u32,
                });
            }
        }
        sections
    }

    /// Fills the values with which the tables begin, where they are not zeros. `cells` are those of the arena, all zero.
    pub(crate) fn initialise(&self, seed: u64, cells: &mut [f32]) {
        for (id, table) in (0u16..).zip(&self.0).filter(|(_, t)| t.init != Initialiser::Zero) {
            let values = &mut cells[table.planes[0].1.clone()];
            table.init.fill(seed, id, table.rows.start, table.cols, values);
            self.begin(TableId(id), cells);
        }
    }

    /// Sets the state of a table to the beginning of its values: the first step continues from them.
    pub(crate) fn begin(&self, table: TableId, cells: &mut [f32]) {
        let Some(table) = self.get(table) else { return };
        let plane = |n: usize| table.planes.get(n).map(|(_, cells)| cells.clone());
        let own = table.planes[0].1.clone();
        let first = plane(1).unwrap_or(own.end..own.end);
        let second = plane(2).unwrap_or(first.end..first.end);
        // The planes follow each other, with gaps between.
        let (values, rest) = cells.split_at_mut(own.end);
        let (front, back) = rest.split_at_mut(first.end - own.end);
        let front = &mut front[first.start - own.end..];
        let back = &mut back[second.start - first.end..second.end - first.end];
        front.fill(0.0);
        back.fill(0.0);
        table.rule.begin(&values[own], [front, back]);
    }

    /// Cells of a section.
    pub(crate) fn section(&self, section: usize) -> Option<Range<usize>> {
        let mut planes = self.0.iter().flat_map(|table| &table.planes);
        planes.nth(section).map(|(_, cells)| cells.clone())
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
