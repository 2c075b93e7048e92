//! The gradient of a step, and the part of it that one frame carries.

use std::ops::Range;
use std::sync::Arc;

use heddle_protocol::ids::TableId;

use crate::error::RequestError;
use crate::layout::{Layout, Rows};

/// The gradient of one step for one table.
#[derive(Clone, Debug, PartialEq)]
pub struct TableGradient {
    /// The table. A step may name a table more than once; parts follow the order given.
    pub table: TableId,
    /// The rows of the gradient.
    pub rows: Rows,
    /// `values: [rows × cols]`, row-major: the **sum** over the step's records.
    pub values: Vec<f32>,
}

/// The gradient of one step: tables in any fixed order. Empty when the step has none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gradient {
    /// One entry for each run of rows.
    pub tables: Vec<TableGradient>,
}

impl Gradient {
    /// Checks rows and lengths against the tables.
    pub(crate) fn check(&self, layout: &Layout) -> Result<(), RequestError> {
        for part in &self.tables {
            let shape = layout.check(part.table, &part.rows)?;
            let expected = part.rows.len() * shape.cols as usize;
            if part.values.len() != expected {
                return Err(RequestError::Values {
                    table: part.table,
                    got: part.values.len(),
                    expected,
                });
            }
        }
        Ok(())
    }
}

/// The payload of a frame: slices of a gradient that all frames of the step share, or the keys of a pull. Cloning it copies
/// no data.
#[derive(Clone, Debug)]
pub struct Payload(PayloadContent);

#[derive(Clone, Debug)]
enum PayloadContent {
    None,
    Push { gradient: Arc<Gradient>, entry: usize, keys: Range<usize>, values: Range<usize> },
    Keys { keys: Arc<PulledKeys>, range: Range<usize> },
}

/// The keys of a pull.
#[derive(Clone, Debug)]
pub(crate) enum PulledKeys {
    /// Row numbers of a dense table.
    Rows(Vec<u32>),
    /// Positions of a sparse table.
    Positions(Vec<u64>),
}

impl Payload {
    /// An empty payload.
    pub(crate) fn none() -> Self {
        Self(PayloadContent::None)
    }

    /// Rows `rows` (by index) of one entry of a gradient.
    pub(crate) fn push(
        gradient: &Arc<Gradient>,
        entry: usize,
        rows: Range<usize>,
        cols: usize,
    ) -> Self {
        let keys = match gradient.tables[entry].rows {
            Rows::Range(_) => 0..0,
            Rows::Keys(_) | Rows::Positions(_) => rows.clone(),
        };
        let values = rows.start * cols..rows.end * cols;
        Self(PayloadContent::Push { gradient: Arc::clone(gradient), entry, keys, values })
    }

    /// A run of a pull's keys.
    pub(crate) fn keys(keys: &Arc<PulledKeys>, range: Range<usize>) -> Self {
        Self(PayloadContent::Keys { keys: Arc::clone(keys), range })
    }

    /// The keys as words of the wire format: `[n]` row numbers, or `[2 n]` of positions; empty for ranges.
    #[must_use]
    pub fn key_words(&self) -> &[u32] {
        match &self.0 {
            PayloadContent::None => &[],
            PayloadContent::Push { gradient, entry, keys, .. } => {
                match &gradient.tables[*entry].rows {
                    Rows::Range(_) => &[],
                    Rows::Keys(all) => &all[keys.clone()],
                    Rows::Positions(all) => bytemuck::cast_slice(&all[keys.clone()]),
                }
            }
            PayloadContent::Keys { keys, range } => match &**keys {
                PulledKeys::Rows(all) => &all[range.clone()],
                PulledKeys::Positions(all) => bytemuck::cast_slice(&all[range.clone()]),
            },
        }
    }

    /// The values, `[n × cols]`; empty in pulls.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        match &self.0 {
            PayloadContent::None | PayloadContent::Keys { .. } => &[],
            PayloadContent::Push { gradient, entry, values, .. } => {
                &gradient.tables[*entry].values[values.clone()]
            }
        }
    }

    /// The keys as bytes of the wire format.
    #[must_use]
    pub fn key_bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self.key_words())
    }

    /// The values as bytes of the wire format.
    #[must_use]
    pub fn value_bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self.values())
    }
}

// Frames are little-endian, and payloads are sent from memory without conversion.
#[cfg(target_endian = "big")]
compile_error!("data frames are little-endian; big-endian targets are not supported");
