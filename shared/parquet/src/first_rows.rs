//! The first rows of a file with all columns, to be shown.

use std::sync::Arc;

use heddle_columns::typed::{FirstValue, ReadAhead};
use parquet::bloom_filter::Sbbf;
use parquet::column::page::PageReader;
use parquet::errors::Result as ParquetResult;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::RowGroupReader;
use parquet::record::reader::RowIter;
use parquet::record::{Field, List, Row};
use parquet::schema::types::Type;

use crate::column_pages::ColumnPages;
use crate::encrypted::ENCRYPTED;
use crate::source::{ColumnBytes, ReadAt};
use crate::{FileError, Footer};

/// Reads the first `rows` rows of a file: the values in the order of its columns. Encrypted columns are missing.
///
/// # Errors
/// The file is damaged, or the storage failed.
pub fn first_rows(
    file: &Arc<dyn ReadAt>,
    footer: &Footer,
    rows: usize,
) -> Result<Vec<Vec<FirstValue>>, FileError> {
    let root = footer.metadata.file_metadata().schema();
    let is_read: Vec<bool> =
        footer.columns.columns.iter().map(|own| own.kind.name() != ENCRYPTED).collect();
    let fields = root.get_fields().iter().zip(&is_read).filter(|(_, is_read)| **is_read);
    let fields = fields.map(|(field, _)| Arc::clone(field)).collect();
    let projection = Type::group_type_builder(root.name()).with_fields(fields).build()?;
    let values = |row: Row| {
        let mut fields = row.get_column_iter();
        let mut next = |is_read: &bool| is_read.then(|| fields.next()).flatten();
        let field = |is_read| next(is_read).map_or(FirstValue::Missing, |(_, field)| value(field));
        is_read.iter().map(field).collect::<Vec<_>>()
    };
    let mut all = Vec::new();
    for metadata in footer.metadata.row_groups() {
        let group = FirstGroup { file, metadata };
        for row in group.get_row_iter(Some(projection.clone()))?.take(rows - all.len()) {
            all.push(values(row?));
        }
    }
    Ok(all)
}

/// The pages of a row group.
struct FirstGroup<'f> {
    file: &'f Arc<dyn ReadAt>,
    metadata: &'f RowGroupMetaData,
}

impl RowGroupReader for FirstGroup<'_> {
    fn metadata(&self) -> &RowGroupMetaData {
        self.metadata
    }

    fn num_columns(&self) -> usize {
        self.metadata.num_columns()
    }

    fn get_column_page_reader(&self, leaf: usize) -> ParquetResult<Box<dyn PageReader>> {
        let chunk = self.metadata.column(leaf);
        let (start, len) = chunk.byte_range();
        let bytes = ColumnBytes::new(self.file.clone(), start + len, ReadAhead::default());
        let rows = usize::try_from(self.metadata.num_rows())?;
        Ok(Box::new(ColumnPages::open(bytes, chunk, rows, None)?))
    }

    fn get_column_bloom_filter(&self, _leaf: usize) -> Option<&Sbbf> {
        None
    }

    fn get_row_iter(&self, projection: Option<Type>) -> ParquetResult<RowIter<'_>> {
        RowIter::from_row_group(projection, self)
    }
}

fn value(field: &Field) -> FirstValue {
    match field {
        Field::Null => FirstValue::Missing,
        Field::Str(text) => FirstValue::Text(text.clone().into_bytes()),
        Field::Bytes(bytes) => FirstValue::Text(bytes.data().to_vec()),
        Field::ListInternal(list) if is_dense(list) => {
            let values = list.elements().iter().map(|item| number(item).unwrap_or(0.0));
            FirstValue::Entries((0..).zip(values).collect())
        }
        Field::ListInternal(list) => {
            FirstValue::Items(list.elements().iter().filter_map(text).collect())
        }
        Field::Group(fields) => vector(fields),
        other => match number(other) {
            Some(number) => FirstValue::Number(number),
            None => FirstValue::Text(other.to_string().into_bytes()),
        },
    }
}

fn is_dense(list: &List) -> bool {
    list.elements().iter().any(|item| matches!(item, Field::Float(_) | Field::Double(_)))
}

fn text(field: &Field) -> Option<Vec<u8>> {
    match field {
        Field::Null => None,
        Field::Str(text) => Some(text.clone().into_bytes()),
        Field::Bytes(bytes) => Some(bytes.data().to_vec()),
        other => Some(other.to_string().into_bytes()),
    }
}

fn number(field: &Field) -> Option<f64> {
    Some(match field {
        Field::Bool(is_true) => f64::from(u8::from(*is_true)),
        Field::Byte(value) => (*value).into(),
        Field::Short(value) => (*value).into(),
        Field::Int(value) | Field::Date(value) | Field::TimeMillis(value) => (*value).into(),
        Field::Long(value)
        | Field::TimeMicros(value)
        | Field::TimestampMillis(value)
        | Field::TimestampMicros(value) => *value as f64,
        Field::UByte(value) => (*value).into(),
        Field::UShort(value) => (*value).into(),
        Field::UInt(value) => (*value).into(),
        Field::ULong(value) => *value as f64,
        Field::Float(value) => (*value).into(),
        Field::Double(value) => *value,
        Field::Decimal(_) => field.to_string().parse().ok()?,
        _ => return None,
    })
}

/// Spark's vector.
fn vector(fields: &Row) -> FirstValue {
    let find = |wanted: &str| fields.get_column_iter().find(|(name, _)| *name == wanted);
    let list = |name: &str| match find(name) {
        Some((_, Field::ListInternal(list))) => list.elements().iter().filter_map(number).collect(),
        _ => Vec::new(),
    };
    let (indices, values) = (list("indices"), list("values"));
    if indices.is_empty() {
        return FirstValue::Entries((0..).zip(values).collect());
    }
    FirstValue::Entries(indices.into_iter().map(|index| index as u64).zip(values).collect())
}
