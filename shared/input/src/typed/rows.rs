//! Rows of a file with types as records.

use std::sync::Arc;

use async_trait::async_trait;
use heddle_columns::typed::{LeafBlock, RowBlock};
use heddle_columns::{Cell, CellError, Encoder};

use super::block_source::{BlockSource, FileBlock};
use super::layout::{CellLeaves, ColumnCells, FileLayout};
use super::rejected::RejectedRow;
use crate::batch::{Batch, FeaturesOfRow, Negatives};
use crate::error::ReadError;
use crate::formats::label;
use crate::record_format::RecordFormat;
use crate::source::{BatchLimit, Filled, RecordSource};
use crate::storage_wait::ReaderWait;

/// The kind of a dense vector of Spark.
const SPARK_DENSE: f64 = 1.0;

/// The rows of a piece.
#[derive(Debug)]
pub(crate) struct TypedRows {
    format: RecordFormat,
    encoder: Encoder,
    label: Option<usize>,
    weight: Option<usize>,
    cells: Vec<ColumnCells>,
    blocks: Box<dyn BlockSource>,
    block: Option<PresentBlock>,
    /// The numbers of the batch's rows.
    rows_of_batch: Vec<u64>,
    negatives: Negatives,
    /// The last malformed row, as it is quarantined.
    rejected: Vec<u8>,
    last_row: u64,
}

/// A block, of which some rows are read.
#[derive(Debug)]
struct PresentBlock {
    block: RowBlock,
    next_row: u64,
    left: usize,
}

impl TypedRows {
    /// `blocks`: of the leaves that `layout` needs.
    pub(crate) fn new(
        format: RecordFormat,
        layout: FileLayout,
        blocks: Box<dyn BlockSource>,
    ) -> Self {
        let FileLayout { label, weight, cells, .. } = layout;
        let encoder = format.table().encoder.clone();
        Self {
            format,
            encoder,
            label,
            weight,
            cells,
            blocks,
            block: None,
            rows_of_batch: Vec::new(),
            negatives: Negatives::default(),
            rejected: Vec::new(),
            last_row: 0,
        }
    }

    /// Receives the next block; `false` at the end.
    async fn receive(&mut self) -> Result<bool, ReadError> {
        let Some(FileBlock { block, first_row }) = self.blocks.next_block().await? else {
            return Ok(false);
        };
        block.leaves.iter().for_each(LeafBlock::read_all);
        let left = block.rows;
        self.block = Some(PresentBlock { block, next_row: first_row, left });
        Ok(true)
    }

    /// Appends the next row of the block.
    fn row(&mut self, block: &mut RowBlock, batch: &mut Batch) -> Result<(), String> {
        for leaf in &mut block.leaves {
            leaf.next_row();
        }
        let number = |leaf: usize| block.leaves[leaf].numbers().first().copied();
        let label = match self.label {
            None => f32::NAN,
            Some(leaf) => label::of_number(self.format.labels, number(leaf))?,
        };
        let weight = self.weight.map(|leaf| label::weight_of_number(number(leaf))).transpose()?;
        let mut sink = FeaturesOfRow::new(batch, self.format.features, &self.encoder);
        for ColumnCells { place, leaves } in &self.cells {
            let read = cells(&mut self.encoder, *place, *leaves, &block.leaves, &mut sink);
            if let Err(error) = read {
                self.encoder.drop_record();
                return Err(error.to_string());
            }
        }
        self.encoder.end_record(&mut sink);
        label::end_row(self.format.labels, label, weight, batch);
        Ok(())
    }

    /// The present row of the block, which is malformed.
    fn rejected_row(&self, block: &RowBlock) -> Vec<u8> {
        let (table, leaf) = (self.format.table(), |leaf: usize| &block.leaves[leaf]);
        let row = RejectedRow::new(self.last_row)
            .number(Some(&table.schema.label), self.label.map(leaf))
            .number(table.schema.weight.as_deref(), self.weight.map(leaf));
        row.cells(&table.schema, &self.cells, &block.leaves).end()
    }
}

/// Adds the features of a column.
#[inline]
fn cells(
    encoder: &mut Encoder,
    place: usize,
    leaves: CellLeaves,
    block: &[LeafBlock],
    sink: &mut FeaturesOfRow<'_>,
) -> Result<(), CellError> {
    match leaves {
        CellLeaves::Number(leaf) => {
            let number = block[leaf].numbers().first();
            let cell = number.map_or(Cell::Missing, |number| Cell::Number(*number));
            encoder.cell(place, cell, sink)
        }
        CellLeaves::Key(leaf) => {
            let cell = block[leaf].keys().next().map_or(Cell::Missing, Cell::Key);
            encoder.cell(place, cell, sink)
        }
        CellLeaves::Items(leaf) => {
            block[leaf].keys().for_each(|key| encoder.item(place, key, sink));
            Ok(())
        }
        CellLeaves::Weights { keys, values } => {
            let mut entries = block[keys].keys().zip(block[values].numbers());
            entries.try_for_each(|(key, value)| encoder.weighted_item(place, key, *value, sink))
        }
        CellLeaves::Indices { indices, values: None } => {
            encoder.indices(place, block[indices].indices(), sink)
        }
        CellLeaves::Indices { indices, values: Some(values) } => {
            pairs(encoder, place, &block[indices], block[values].numbers(), sink)
        }
        CellLeaves::Dense(values) => dense(encoder, place, block[values].numbers(), sink),
        CellLeaves::Vector { kind, indices, values } => {
            let numbers = block[values].numbers();
            match block[kind].numbers() {
                [SPARK_DENSE] => dense(encoder, place, numbers, sink),
                _ => pairs(encoder, place, &block[indices], numbers, sink),
            }
        }
    }
}

fn dense(
    encoder: &mut Encoder,
    place: usize,
    values: &[f64],
    sink: &mut FeaturesOfRow<'_>,
) -> Result<(), CellError> {
    let values = (0..).zip(values).filter(|(_, value)| **value != 0.0);
    values.into_iter().try_for_each(|(index, value)| encoder.entry(place, index, *value, sink))
}

fn pairs(
    encoder: &mut Encoder,
    place: usize,
    indices: &LeafBlock,
    values: &[f64],
    sink: &mut FeaturesOfRow<'_>,
) -> Result<(), CellError> {
    let indices = indices.indices();
    let mut pairs = indices.iter().zip(values);
    pairs.try_for_each(|(index, value)| encoder.entry(place, *index, *value, sink))?;
    match (indices.len(), values.len()) {
        (indices, values) if indices == values => Ok(()),
        (indices, values) => {
            Err(encoder.wrong(place, &format!("{indices} indices and {values} values")))
        }
    }
}

#[async_trait]
impl RecordSource for TypedRows {
    async fn fill(&mut self, batch: &mut Batch, most: BatchLimit) -> Result<Filled, ReadError> {
        if batch.is_empty() {
            self.rows_of_batch.clear();
        }
        while !batch.full(most.rows, most.features) {
            let Some(mut present) = self.block.take() else {
                if self.receive().await? {
                    continue;
                }
                return Ok(Filled::End);
            };
            while present.left > 0 && !batch.full(most.rows, most.features) {
                (self.last_row, present.left) = (present.next_row, present.left - 1);
                present.next_row += 1;
                let read = self.row(&mut present.block, batch);
                match read.and_then(|()| batch.check_last(most.features)) {
                    Ok(()) => self.rows_of_batch.push(self.last_row),
                    Err(what) => {
                        batch.drop_unended();
                        self.rejected = self.rejected_row(&present.block);
                        self.block = (present.left > 0).then_some(present);
                        return Ok(Filled::Bad(format!(" {what}")));
                    }
                }
                let new = batch.negatives.without(self.negatives);
                if !new.is_empty() {
                    self.negatives = self.negatives.with(new);
                    self.block = (present.left > 0).then_some(present);
                    let place = self.blocks.place_of(self.last_row);
                    return Ok(Filled::FirstOf { label: new.word(), place });
                }
            }
            self.block = (present.left > 0).then_some(present);
        }
        Ok(Filled::Full)
    }

    async fn place(&mut self) -> Result<String, ReadError> {
        Ok(self.blocks.place_of(self.last_row))
    }

    fn rejected(&self) -> &[u8] {
        &self.rejected
    }

    fn place_of(&self, row: usize) -> String {
        self.blocks.place_of(self.rows_of_batch.get(row).copied().unwrap_or(self.last_row))
    }

    fn watch(&mut self, wait: &Arc<ReaderWait>) {
        self.blocks.watch(wait);
    }
}

/// Stands for a stream, which is refused.
#[derive(Debug)]
pub(crate) struct NoStream {
    /// What stands for it in messages.
    pub(crate) name: String,
    /// The name of the format.
    pub(crate) format: &'static str,
}

#[async_trait]
impl RecordSource for NoStream {
    async fn fill(&mut self, _batch: &mut Batch, _most: BatchLimit) -> Result<Filled, ReadError> {
        let what = format!("{} is read at several places of a file, not as a stream", self.format);
        Err(ReadError::Damaged { file: self.name.clone(), what })
    }

    async fn place(&mut self) -> Result<String, ReadError> {
        Ok(self.name.clone())
    }

    fn rejected(&self) -> &[u8] {
        &[]
    }

    fn place_of(&self, _row: usize) -> String {
        self.name.clone()
    }

    fn watch(&mut self, _wait: &Arc<ReaderWait>) {}
}
