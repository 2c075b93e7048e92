//! The records of a block as the values of its rows.

use std::sync::Arc;

use heddle_columns::typed::{ColumnShape, FirstValue, LeafKind, NeededLeaf, RowBlock};

use crate::AvroError;
use crate::builder::LeafBuilder;
use crate::header::{AvroHeader, BlockHead};
use crate::schema::{AvroSchema, AvroType, TypeId};
use crate::values::{Scalar, branch, scalar, skip};
use crate::wire::Wire;

/// Rows that are decoded at once at the most.
const ROWS_MAX: usize = 1_024;
/// Bytes that are decoded at once, where each value takes one at least; the last row may exceed it.
const BYTES_MAX: usize = 256 << 10;
/// Items of a list at the most.
const ITEMS_MAX: usize = 8 << 20;

/// Decodes the needed leaves of blocks.
#[derive(Debug)]
pub struct BlockDecoder {
    header: Arc<AvroHeader>,
    fields: Vec<FieldPlan>,
    leaves: Vec<LeafBuilder>,
    /// The present block, unpacked.
    records: Vec<u8>,
    /// Of these bytes, those that are decoded.
    at: usize,
    left: u64,
    decoded: u64,
}

/// What becomes of a field of a record.
#[derive(Debug)]
struct FieldPlan {
    id: TypeId,
    /// The leaves that are made of it.
    leaves: Vec<usize>,
}

impl BlockDecoder {
    /// `needed`: leaves of the file's [columns](AvroHeader::columns).
    #[must_use]
    pub fn new(header: Arc<AvroHeader>, needed: &[NeededLeaf]) -> Self {
        let shape = |leaf: usize| header.columns.columns.get(leaf).map(|column| column.shape);
        let is_list = |leaf| matches!(shape(leaf), Some(ColumnShape::List(_)));
        let leaf =
            |needed: &NeededLeaf| LeafBuilder::new(needed.need.clone(), is_list(needed.leaf));
        let leaves = needed.iter().map(leaf).collect();
        let plan = |(place, (_, id)): (usize, &(String, TypeId))| {
            let own = needed.iter().enumerate().filter(|(_, needed)| needed.leaf == place);
            FieldPlan { id: *id, leaves: own.map(|(leaf, _)| leaf).collect() }
        };
        let fields = header.schema.fields.iter().enumerate().map(plan).collect();
        Self { header, fields, leaves, records: Vec::new(), at: 0, left: 0, decoded: 0 }
    }

    /// Begins a block.
    ///
    /// # Errors
    /// It is damaged.
    pub fn begin(&mut self, head: BlockHead, packed: &[u8]) -> Result<(), AvroError> {
        self.header.codec.unpack(packed, &mut self.records)?;
        (self.at, self.decoded) = (0, 0);
        self.left = checked_records(head, &self.records)?;
        Ok(())
    }

    /// The next rows of the block, unless it has ended.
    ///
    /// # Errors
    /// It is damaged.
    pub fn next_rows(&mut self) -> Result<Option<RowBlock>, AvroError> {
        if self.left == 0 {
            return Ok(None);
        }
        let mut wire = Wire(&self.records[self.at..]);
        let (mut rows, all) = (0, wire.0.len());
        while self.left > 0 && rows < ROWS_MAX && all - wire.0.len() < BYTES_MAX {
            for field in &self.fields {
                let read = field.read(&self.header.schema, &mut wire, &mut self.leaves);
                read.map_err(|error| AvroError(format!("record {}: {error}", self.decoded)))?;
            }
            (rows, self.left, self.decoded) = (rows + 1, self.left - 1, self.decoded + 1);
        }
        self.at = self.records.len() - wire.0.len();
        if self.left == 0 && !wire.0.is_empty() {
            let rest = wire.0.len();
            return Err(AvroError(format!("{rest} bytes come after its last record")));
        }
        Ok(Some(RowBlock { rows, leaves: self.leaves.iter_mut().map(LeafBuilder::take).collect() }))
    }
}

/// The number of records, each of which takes a byte at least.
fn checked_records(head: BlockHead, records: &[u8]) -> Result<u64, AvroError> {
    let BlockHead { records: count, .. } = head;
    if count > records.len() as u64 {
        let bytes = records.len();
        return Err(AvroError(format!("{count} records in {bytes} bytes, unpacked")));
    }
    Ok(count)
}

impl FieldPlan {
    fn read<'v>(
        &self,
        schema: &'v AvroSchema,
        wire: &mut Wire<'v>,
        leaves: &mut [LeafBuilder],
    ) -> Result<(), AvroError> {
        let [first, others @ ..] = &self.leaves[..] else {
            return skip(&schema.types, self.id, wire, 0);
        };
        let mut add = |value: Scalar<'_>, is_first| {
            leaves[*first].push(value, is_first);
            others.iter().for_each(|leaf| leaves[*leaf].push(value, is_first));
        };
        each_value(schema, self.id, wire, &mut add)
    }
}

/// Calls `add` with each value of a column in a row, and whether it is the first: an item of a list, or the value. An empty
/// list has a missing one.
#[inline]
fn each_value<'v>(
    schema: &'v AvroSchema,
    mut id: TypeId,
    wire: &mut Wire<'v>,
    add: &mut impl FnMut(Scalar<'_>, bool),
) -> Result<(), AvroError> {
    let types = &schema.types;
    if let AvroType::Union(branches) = &types[id] {
        id = branch(branches, wire)?;
    }
    let AvroType::Array(items) = &types[id] else {
        add(scalar(types, id, wire)?, true);
        return Ok(());
    };
    let mut all = 0;
    loop {
        let count = wire.items()?;
        if count == 0 {
            break;
        }
        if all + count > ITEMS_MAX {
            return Err(AvroError(format!("a list of more than {ITEMS_MAX} items")));
        }
        for _ in 0..count {
            add(scalar(types, *items, wire)?, all == 0);
            all += 1;
        }
    }
    if all == 0 {
        add(Scalar::Missing, true);
    }
    Ok(())
}

/// The first records of a block, with all their columns.
///
/// # Errors
/// It is damaged.
pub fn first_records(
    header: &AvroHeader,
    head: BlockHead,
    packed: &[u8],
    most: usize,
) -> Result<Vec<Vec<FirstValue>>, AvroError> {
    let mut records = Vec::new();
    header.codec.unpack(packed, &mut records)?;
    let count = checked_records(head, &records)?.min(most as u64);
    let mut wire = Wire(&records);
    let columns = header.columns.columns.iter().zip(&header.columns.leaves);
    let columns: Vec<_> = columns.zip(&header.schema.fields).collect();
    let record = |_| {
        let value = |((column, leaf), (_, id)): &(
            (&heddle_columns::typed::TypedColumn, &LeafKind),
            &(String, TypeId),
        )| {
            let mut values = Vec::new();
            let mut add = |value: Scalar<'_>, _| values.push(first_value(value));
            each_value(&header.schema, *id, &mut wire, &mut add)?;
            Ok(match column.shape {
                ColumnShape::List(_) => list_of(values, **leaf),
                _ => values.pop().unwrap_or(FirstValue::Missing),
            })
        };
        columns.iter().map(value).collect()
    };
    (0..count).map(record).collect()
}

fn first_value(value: Scalar<'_>) -> FirstValue {
    match value {
        Scalar::Missing => FirstValue::Missing,
        Scalar::Boolean(is_true) => FirstValue::Number(f64::from(u8::from(is_true))),
        Scalar::Whole(number) => FirstValue::Number(number as f64),
        Scalar::Number(number) => FirstValue::Number(number),
        Scalar::Text(text) => FirstValue::Text(text.to_vec()),
    }
}

/// The items of a list.
fn list_of(values: Vec<FirstValue>, leaf: LeafKind) -> FirstValue {
    let number = |value: &FirstValue| match value {
        FirstValue::Number(number) => Some(*number),
        _ => None,
    };
    if leaf == LeafKind::Number {
        return FirstValue::Entries((0..).zip(values.iter().filter_map(number)).collect());
    }
    let text = |value| match value {
        FirstValue::Text(text) => Some(text),
        other => number(&other).map(|number| number.to_string().into_bytes()),
    };
    FirstValue::Items(values.into_iter().filter_map(text).collect())
}
