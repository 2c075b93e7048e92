//! The columns of a file: what a column of a table can be read as.

use heddle_columns::ValueKind;
use parquet::basic::{ConvertedType, LogicalType, Type as PhysicalType};
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor, Type};

/// A column of a table: a field of the file's schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParquetColumn {
    /// Its name.
    pub name: String,
    /// What its values are.
    pub kind: ValueKind,
    /// Where they are.
    pub shape: ColumnShape,
}

/// The leaves of the schema in which a column has its values, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnShape {
    /// One value a row.
    Value(usize),
    /// A list of values.
    List(usize),
    /// Spark's `VectorUDT`.
    SparkVector {
        /// 0: sparse; 1: dense.
        kind: usize,
        /// A list of whole numbers; of sparse vectors.
        indices: usize,
        /// A list of numbers.
        values: usize,
    },
    /// Structs, maps, lists of lists.
    Other,
}

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
pub(crate) fn columns(schema: &SchemaDescriptor) -> Vec<ParquetColumn> {
    let mut leaf = 0;
    let fields = schema.root_schema().get_fields().iter();
    let columns = fields.map(|field| {
        let first = leaf;
        leaf += leaves(field);
        let (shape, kind) = shape_of(schema, field, first, leaf - first);
        ParquetColumn { name: field.name().to_owned(), kind, shape }
    });
    columns.collect()
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
    let other = |name| (ColumnShape::Other, kind(name, [false; 4]));
    let info = field.get_basic_info();
    let is_list = matches!(info.logical_type_ref(), Some(LogicalType::List))
        || info.converted_type() == ConvertedType::LIST
        || field.is_primitive();
    if count == 1 {
        let leaf = schema.column(first);
        let leaf_type = LeafType::new(&leaf);
        return match leaf.max_rep_level() {
            0 if field.is_primitive() => (ColumnShape::Value(first), leaf_type.kind()),
            1 if is_list => (ColumnShape::List(first), leaf_type.list_kind()),
            _ => other("a struct"),
        };
    }
    let mut names: Vec<&str> = Vec::new();
    if field.is_group() {
        names.extend(field.get_fields().iter().map(|field| field.name()));
    }
    if names == ["type", "size", "indices", "values"] && count == 4 {
        let shape = ColumnShape::SparkVector { kind: first, indices: first + 2, values: first + 3 };
        let of = |leaf: usize, rep: i16| {
            let leaf = schema.column(leaf);
            (leaf.max_rep_level() == rep).then(|| LeafType::new(&leaf))
        };
        let whole = Some(LeafType::Integer { is_signed: true });
        let fits = of(first, 0) == whole
            && of(first + 2, 1) == whole
            && of(first + 3, 1) == Some(LeafType::Number);
        return if fits {
            (shape, kind("a vector", [false, false, false, true]))
        } else {
            other("a struct")
        };
    }
    match info.converted_type() {
        ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE => other("a map"),
        ConvertedType::LIST => other("a list of structs"),
        _ => other("a struct"),
    }
}

/// `uses`: whether it can be a number, a category, a list, a vector.
fn kind(name: &'static str, uses: [bool; 4]) -> ValueKind {
    let [is_number, is_category, is_list, is_vector] = uses;
    ValueKind::Typed { name, is_number, is_category, is_list, is_vector }
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

    fn kind(self) -> ValueKind {
        match self {
            Self::Boolean => kind("a Boolean", [true, true, false, false]),
            Self::Integer { .. } => kind("a whole number", [true, true, false, false]),
            Self::Decimal { .. } => kind("a decimal number", [true, false, false, false]),
            Self::Number => kind("a number with a fraction", [true, false, false, false]),
            Self::Instant(name) => kind(name, [true, false, false, false]),
            Self::Text => kind("text", [false, true, false, false]),
            Self::Unread(name) => kind(name, [false; 4]),
        }
    }

    fn list_kind(self) -> ValueKind {
        match self {
            Self::Integer { .. } => kind("a list of whole numbers", [false, false, true, true]),
            Self::Number => kind("a list of numbers", [false, false, false, true]),
            Self::Text => kind("a list of texts", [false, false, true, false]),
            Self::Boolean | Self::Decimal { .. } | Self::Instant(_) | Self::Unread(_) => {
                kind("a list of another type", [false; 4])
            }
        }
    }
}
