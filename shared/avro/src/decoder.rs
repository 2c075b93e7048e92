//! The records of a block as the values of its rows.

use std::sync::Arc;

use heddle_columns::typed::{ColumnShape, FirstValue, LeafKind, NeededLeaf, RowBlock, TypedColumn};

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

/// Decodes the needed leaves of blocks, some rows at a time, and small blocks together.
#[derive(Debug)]
pub struct BlockDecoder {
    header: Arc<AvroHeader>,
    fields: Vec<FieldPlan>,
    leaves: Vec<LeafBuilder>,
    /// What was decoded and not taken yet.
    rows: usize,
    bytes: usize,
}

/// The records of a block, unpacked, of which some are decoded.
#[derive(Clone, Copy, Debug)]
pub struct UnpackedBlock<'r> {
    records: Wire<'r>,
    left: u64,
    decoded: u64,
}

impl<'r> UnpackedBlock<'r> {
    /// `records`: of the block, [unpacked](AvroHeader::unpack).
    ///
    /// # Errors
    /// It is damaged.
    pub fn new(head: BlockHead, records: &'r [u8]) -> Result<Self, AvroError> {
        Ok(Self { records: Wire(records), left: checked_records(head, records)?, decoded: 0 })
    }
}

/// What becomes of a field of a record.
#[derive(Debug)]
struct FieldPlan {
    id: TypeId,
    /// The leaves that are made of it.
    leaves: Vec<usize>,
    kind: FieldKind,
    /// Of a union of null and another type.
    branches: Vec<TypeId>,
    /// The type beside null.
    own: TypeId,
}

/// The usual types of columns, for which less is decided at each value.
#[derive(Clone, Copy, Debug)]
enum FieldKind {
    Whole,
    Text,
    Wholes,
    /// Any type.
    Other,
}

impl BlockDecoder {
    /// `needed`: leaves of the file's [columns](AvroHeader::columns).
    #[must_use]
    pub fn new(header: Arc<AvroHeader>, needed: &[NeededLeaf]) -> Self {
        let shape = |leaf: usize| header.columns.columns.get(leaf).map(|column| column.shape);
        let is_list =
            |leaf| matches!(shape(leaf), Some(ColumnShape::List(_) | ColumnShape::Map(_)));
        let leaf =
            |needed: &NeededLeaf| LeafBuilder::new(needed.need.clone(), is_list(needed.leaf));
        let leaves = needed.iter().map(leaf).collect();
        let plan = |(place, (_, id)): (usize, &(String, TypeId))| {
            let own = needed.iter().enumerate().filter(|(_, needed)| needed.leaf == place);
            FieldPlan::new(&header.schema, *id, own.map(|(leaf, _)| leaf).collect())
        };
        let fields = header.schema.fields.iter().enumerate().map(plan).collect();
        Self { header, fields, leaves, rows: 0, bytes: 0 }
    }

    /// Decodes records of a block until it ends, or as many are decoded as are [taken](Self::take_rows) at once. Returns
    /// whether they are.
    ///
    /// # Errors
    /// It is damaged. The rows before can be taken.
    pub fn decode(&mut self, block: &mut UnpackedBlock<'_>) -> Result<bool, AvroError> {
        let all = block.records.0.len() + self.bytes;
        while self.rows < ROWS_MAX && self.bytes < BYTES_MAX {
            if block.left == 0 {
                return Ok(false);
            }
            for field in &self.fields {
                let read = field.read(&self.header.schema, &mut block.records, &mut self.leaves);
                read.map_err(|error| AvroError(format!("record {}: {error}", block.decoded)))?;
            }
            (block.left, block.decoded) = (block.left - 1, block.decoded + 1);
            (self.rows, self.bytes) = (self.rows + 1, all - block.records.0.len());
            if block.left == 0 && !block.records.0.is_empty() {
                let rest = block.records.0.len();
                return Err(AvroError(format!("{rest} bytes come after its last record")));
            }
        }
        Ok(true)
    }

    /// Number of rows that were decoded and not taken.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Takes the rows that were decoded, if there are any.
    pub fn take_rows(&mut self) -> Option<RowBlock> {
        let rows = std::mem::take(&mut self.rows);
        self.bytes = 0;
        let leaves = self.leaves.iter_mut().map(LeafBuilder::take);
        (rows > 0).then(|| RowBlock { rows, leaves: leaves.collect() })
    }
}

/// The number of records, each of which takes a byte at least.
fn checked_records(head: BlockHead, records: &[u8]) -> Result<u64, AvroError> {
    let count = head.records;
    if count > records.len() as u64 {
        let bytes = records.len();
        return Err(AvroError(format!("{count} records in {bytes} bytes, unpacked")));
    }
    Ok(count)
}

impl FieldPlan {
    fn new(schema: &AvroSchema, id: TypeId, leaves: Vec<usize>) -> Self {
        let types = &schema.types;
        let (own, kind) = match schema.beside_null(id) {
            None => (id, FieldKind::Other),
            Some(own) => match &types[own] {
                _ if leaves.len() != 1 => (own, FieldKind::Other),
                AvroType::Whole(_) => (own, FieldKind::Whole),
                AvroType::Text => (own, FieldKind::Text),
                AvroType::Array(items) if matches!(types[*items], AvroType::Whole(_)) => {
                    (own, FieldKind::Wholes)
                }
                _ => (own, FieldKind::Other),
            },
        };
        let branches = match &types[id] {
            AvroType::Union(branches) => branches.clone(),
            _ => Vec::new(),
        };
        Self { id, leaves, kind, branches, own }
    }

    #[inline]
    fn read(
        &self,
        schema: &AvroSchema,
        wire: &mut Wire<'_>,
        leaves: &mut [LeafBuilder],
    ) -> Result<(), AvroError> {
        let [first, ..] = self.leaves[..] else {
            return skip(&schema.types, self.id, wire, 0);
        };
        let leaf = &mut leaves[first];
        match self.kind {
            FieldKind::Other => {
                let add = |value: Scalar<'_>| {
                    self.leaves.iter().for_each(|leaf| leaves[*leaf].push(value));
                };
                each_value(schema, self.id, wire, add)?;
                self.leaves.iter().for_each(|leaf| leaves[*leaf].end_row());
                return Ok(());
            }
            _ if !self.branches.is_empty() && branch(&self.branches, wire)? != self.own => {}
            FieldKind::Whole => leaf.push(Scalar::Whole(wire.long()?)),
            FieldKind::Text => leaf.push(Scalar::Text(wire.text()?)),
            FieldKind::Wholes => each_item(wire, |wire| {
                leaf.push(Scalar::Whole(wire.long()?));
                Ok(())
            })?,
        }
        leaf.end_row();
        Ok(())
    }
}

/// Calls `add` with each value of a column in a row: the items of a list, the key and the number of each entry of a map, or the
/// value.
fn each_value(
    schema: &AvroSchema,
    mut id: TypeId,
    wire: &mut Wire<'_>,
    mut add: impl FnMut(Scalar<'_>),
) -> Result<(), AvroError> {
    let types = &schema.types;
    if let AvroType::Union(branches) = &types[id] {
        id = branch(branches, wire)?;
    }
    match &types[id] {
        AvroType::Array(items) => each_item(wire, |wire| {
            add(scalar(types, *items, wire)?);
            Ok(())
        }),
        AvroType::Map(values) => each_item(wire, |wire| {
            let key = wire.text()?;
            if let Some(number) = scalar(types, *values, wire)?.number() {
                add(Scalar::Text(key));
                add(Scalar::Number(number));
            }
            Ok(())
        }),
        _ => {
            add(scalar(types, id, wire)?);
            Ok(())
        }
    }
}

/// Reads an array.
#[inline(always)]
fn each_item<'v>(
    wire: &mut Wire<'v>,
    mut read: impl FnMut(&mut Wire<'v>) -> Result<(), AvroError>,
) -> Result<(), AvroError> {
    let mut all = 0;
    loop {
        let count = wire.items()?;
        if count == 0 {
            return Ok(());
        }
        all += count;
        if all > ITEMS_MAX {
            return Err(AvroError(format!("a list of more than {ITEMS_MAX} items")));
        }
        for _ in 0..count {
            read(wire)?;
        }
    }
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
    let end = header.unpack(packed, &mut records, 0)?;
    records.truncate(end);
    let count = checked_records(head, &records)?.min(most as u64);
    let mut wire = Wire(&records);
    let columns = header.columns.columns.iter().zip(&header.columns.leaves);
    let columns: Vec<_> = columns.zip(&header.schema.fields).collect();
    let record = |_| {
        let value = |((column, leaf), (_, id)): &((&TypedColumn, &LeafKind), &(String, TypeId))| {
            let mut values = Vec::new();
            let add = |value: Scalar<'_>| values.push(first_value(value));
            each_value(&header.schema, *id, &mut wire, add)?;
            Ok(match column.shape {
                ColumnShape::List(_) => list_of(values, **leaf),
                ColumnShape::Map(_) => {
                    FirstValue::Weights(values.chunks(2).filter_map(entry).collect())
                }
                _ => values.pop().unwrap_or(FirstValue::Missing),
            })
        };
        columns.iter().map(value).collect()
    };
    (0..count).map(record).collect()
}

fn first_value(value: Scalar<'_>) -> FirstValue {
    match value {
        Scalar::Text(text) => FirstValue::Text(text.to_vec()),
        other => other.number().map_or(FirstValue::Missing, FirstValue::Number),
    }
}

/// The entry of a map.
fn entry(values: &[FirstValue]) -> Option<(Vec<u8>, f64)> {
    match values {
        [FirstValue::Text(key), FirstValue::Number(number)] => Some((key.clone(), *number)),
        _ => None,
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
