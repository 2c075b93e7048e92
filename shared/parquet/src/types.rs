//! The columns of a file: what a column of a table can be read as.

use heddle_columns::ValueKind;
use heddle_columns::typed::{ColumnShape, LeafKind, TypedColumn, TypedColumns};
use parquet::basic::{ConvertedType, LogicalType, Type as PhysicalType};
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor, Type};

use crate::encrypted::{ENCRYPTED, EncryptedLeaves};

/// What the values of a leaf are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeafType {
    Boolean,
    Integer {
        is_signed: bool,
    },
    Decimal {
        scale: i32,
    },
    Number,
    /// Dates and times, as the number that the file has.
    Instant(&'static str),
    Text,
    /// Not read.
    Unread(&'static str),
}

/// The columns of a schema, in the order of the file.
pub(crate) fn columns(schema: &SchemaDescriptor, encrypted: &EncryptedLeaves) -> TypedColumns {
    let mut leaf = 0;
    let fields = schema.root_schema().get_fields().iter();
    let columns = fields.map(|field| {
        let first = leaf;
        leaf += leaves(field);
        let (shape, kind) = match encrypted.leaves.range(first..leaf).next() {
            Some(_) => ColumnShape::other(ENCRYPTED),
            None => shape_of(schema, field, first, leaf - first),
        };
        TypedColumn { name: field.name().to_owned(), kind, shape }
    });
    let columns = columns.collect();
    let leaves = schema.columns().iter().map(|leaf| LeafType::new(leaf).leaf_kind()).collect();
    TypedColumns { columns, leaves }
}

fn leaves(field: &Type) -> usize {
    if field.is_primitive() {
        return 1;
    }
    field.get_fields().iter().map(|field| leaves(field)).sum()
}

/// The shape of a field with `count` leaves, of which `first` is the first, and what it can be read as.
fn shape_of(
    schema: &SchemaDescriptor,
    field: &Type,
    first: usize,
    count: usize,
) -> (ColumnShape, ValueKind) {
    let other = ColumnShape::other;
    let info = field.get_basic_info();
    let is_list = matches!(info.logical_type_ref(), Some(LogicalType::List))
        || info.converted_type() == ConvertedType::LIST
        || field.is_primitive();
    if count == 1 {
        let leaf = schema.column(first);
        let leaf_type = LeafType::new(&leaf);
        return match leaf.max_rep_level() {
            0 if field.is_primitive() => (ColumnShape::Value(first), leaf_type.leaf_kind().value()),
            1 if is_list => (ColumnShape::List(first), leaf_type.leaf_kind().list()),
            _ => other("a struct"),
        };
    }
    let mut names: Vec<&str> = Vec::new();
    if field.is_group() {
        names.extend(field.get_fields().iter().map(|field| field.name()));
    }
    if names == ["type", "size", "indices", "values"] && count == 4 {
        let of = |leaf: usize, rep: i16| {
            let leaf = schema.column(leaf);
            (leaf.max_rep_level() == rep).then(|| LeafType::new(&leaf))
        };
        let whole = Some(LeafType::Integer { is_signed: true });
        let fits = of(first, 0) == whole
            && of(first + 2, 1) == whole
            && of(first + 3, 1) == Some(LeafType::Number);
        return if fits { ColumnShape::spark_vector(first) } else { other("a struct") };
    }
    match info.converted_type() {
        ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE => other("a map"),
        ConvertedType::LIST => other("a list of structs"),
        _ => other("a struct"),
    }
}

impl LeafType {
    pub(crate) fn new(leaf: &ColumnDescriptor) -> Self {
        let logical = leaf.logical_type_ref();
        let instant = match (logical, leaf.converted_type()) {
            (Some(LogicalType::Date), _) | (_, ConvertedType::DATE) => Some("a date"),
            (Some(LogicalType::Time { .. }), _)
            | (_, ConvertedType::TIME_MILLIS | ConvertedType::TIME_MICROS) => Some("a time"),
            (Some(LogicalType::Timestamp { .. }), _)
            | (_, ConvertedType::TIMESTAMP_MILLIS | ConvertedType::TIMESTAMP_MICROS) => {
                Some("a timestamp")
            }
            _ => None,
        };
        let is_decimal = matches!(logical, Some(LogicalType::Decimal { .. }))
            || leaf.converted_type() == ConvertedType::DECIMAL;
        let has_no_sign = matches!(logical, Some(LogicalType::Integer(own)) if !own.is_signed);
        let is_unsigned = has_no_sign
            || matches!(
                leaf.converted_type(),
                ConvertedType::UINT_8
                    | ConvertedType::UINT_16
                    | ConvertedType::UINT_32
                    | ConvertedType::UINT_64
            );
        match leaf.physical_type() {
            PhysicalType::BOOLEAN => Self::Boolean,
            PhysicalType::FLOAT | PhysicalType::DOUBLE => Self::Number,
            PhysicalType::INT96 => Self::Unread("a timestamp of 96 bits"),
            PhysicalType::BYTE_ARRAY if is_decimal => {
                Self::Unread("a decimal number of any length")
            }
            PhysicalType::BYTE_ARRAY => Self::Text,
            _ if is_decimal => Self::Decimal { scale: leaf.type_scale() },
            PhysicalType::FIXED_LEN_BYTE_ARRAY => Self::Unread("bytes of a fixed length"),
            PhysicalType::INT32 | PhysicalType::INT64 => match instant {
                Some(instant) => Self::Instant(instant),
                None => Self::Integer { is_signed: !is_unsigned },
            },
        }
    }

    /// By what the file's numbers are divided.
    pub(crate) fn divisor(self) -> f64 {
        match self {
            Self::Decimal { scale } => 10f64.powi(scale),
            _ => 1.0,
        }
    }

    fn leaf_kind(self) -> LeafKind {
        match self {
            Self::Boolean => LeafKind::Boolean,
            Self::Integer { .. } => LeafKind::Integer,
            Self::Decimal { .. } => LeafKind::Decimal,
            Self::Number => LeafKind::Number,
            Self::Instant(name) => LeafKind::Instant(name),
            Self::Text => LeafKind::Text,
            Self::Unread(name) => LeafKind::Unread(name),
        }
    }
}
