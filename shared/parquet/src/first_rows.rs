//! The first rows of a file with all columns, to be shown.

use std::sync::Arc;

use heddle_columns::typed::{FirstValue, ReadAhead};
use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::record::{Field, List, Row};

use crate::FileError;
use crate::source::{ColumnBytes, ReadAt};

/// Reads the first `rows` rows of a file of `bytes` bytes: the values in the order of its columns.
///
/// # Errors
/// The file is damaged, or the storage failed.
pub fn first_rows(
    file: Arc<dyn ReadAt>,
    bytes: u64,
    rows: usize,
) -> Result<Vec<Vec<FirstValue>>, FileError> {
    let reader = SerializedFileReader::new(ColumnBytes::new(file, bytes, ReadAhead::default()))?;
    let values = |row: Row| row.get_column_iter().map(|(_, field)| value(field)).collect();
    let rows = reader.get_row_iter(None)?.take(rows);
    rows.map(|row| Ok(values(row?))).collect()
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
