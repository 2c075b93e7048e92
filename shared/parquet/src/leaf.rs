//! Reads the values of a leaf of the schema in one row group.

use std::sync::Arc;

use heddle_columns::key;
use heddle_columns::typed::{LeafBlock, LeafNeed, LeafValues, ReadAhead, TextKeys, unscaled};
use parquet::basic::{Encoding, Repetition, Type as PhysicalType};
use parquet::column::page::PageReader;
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{
    BoolType, ByteArrayType, DataType, DoubleType, FixedLenByteArrayType, FloatType, Int32Type,
    Int64Type,
};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::schema::types::{ColumnDescPtr, ColumnDescriptor, Type};

use crate::FileError;
use crate::column_pages::ColumnPages;
use crate::footer::{Footer, RowRun};
use crate::key_pages::KeyPages;
use crate::page_index::PagesOfRun;
use crate::source::{ColumnBytes, ReadAt};
use crate::types::LeafType;

/// The reader of a leaf.
pub(crate) struct LeafReader {
    typed: TypedReader,
    need: LeafNeed,
    leaf_type: LeafType,
    leaf: ColumnDescPtr,
    /// Values of a row, on average.
    pub(crate) values_of_row: u64,
}

/// By the type of the file.
enum TypedReader {
    Boolean(ColumnReaderImpl<BoolType>),
    Int32(ColumnReaderImpl<Int32Type>),
    Int64(ColumnReaderImpl<Int64Type>),
    Float(ColumnReaderImpl<FloatType>),
    Double(ColumnReaderImpl<DoubleType>),
    Fixed(ColumnReaderImpl<FixedLenByteArrayType>),
    /// Texts as their keys.
    Keys(ColumnReaderImpl<Int64Type>),
    /// Texts in encodings that are decoded text by text.
    Texts(ColumnReaderImpl<ByteArrayType>),
}

macro_rules! with_reader {
    ($typed:expr, $reader:ident => $body:expr) => {
        match $typed {
            TypedReader::Boolean($reader) => $body,
            TypedReader::Int32($reader) => $body,
            TypedReader::Int64($reader) | TypedReader::Keys($reader) => $body,
            TypedReader::Float($reader) => $body,
            TypedReader::Double($reader) => $body,
            TypedReader::Fixed($reader) => $body,
            TypedReader::Texts($reader) => $body,
        }
    };
}

impl LeafReader {
    /// Of the column `chunk` in the row group of a run, whose first row is still to be skipped to.
    pub(crate) fn open(
        file: &Arc<dyn ReadAt>,
        footer: &Footer,
        chunk: &ColumnChunkMetaData,
        run: &RowRun,
        need: LeafNeed,
        ahead: ReadAhead,
    ) -> Result<Self, FileError> {
        let leaf = chunk.column_descr_ptr();
        let rows = run.group.rows;
        let (start, len) = chunk.byte_range();
        let of_run = PagesOfRun::find(&**file, footer.file_bytes, chunk, &run.rows, rows)?;
        let (bytes, locations) = match of_run {
            Some(PagesOfRun { locations, end }) => {
                (ColumnBytes::new(file.clone(), end, ahead).with_headers(), Some(locations))
            }
            None => (ColumnBytes::new(file.clone(), start + len, ahead), None),
        };
        let pages = ColumnPages::open(bytes, chunk, rows as usize, locations)?;
        let (has_repetitions, has_definitions) =
            (leaf.max_rep_level() > 0, leaf.max_def_level() > 0);
        let typed = match (leaf.physical_type(), &need) {
            (PhysicalType::BYTE_ARRAY, LeafNeed::Key(keys)) if has_plain_texts(chunk) => {
                let keys = keys.clone();
                let pages = KeyPages { pages, keys, has_repetitions, has_definitions };
                TypedReader::Keys(ColumnReaderImpl::new(as_whole_numbers(&leaf)?, Box::new(pages)))
            }
            (kind, _) => TypedReader::new(kind, &leaf, Box::new(pages))?,
        };
        let values_of_row = chunk.num_values().max(0) as u64 / rows.max(1);
        Ok(Self { typed, need, leaf_type: LeafType::new(&leaf), leaf, values_of_row })
    }

    /// Skips rows.
    pub(crate) fn skip(&mut self, rows: usize) -> Result<(), FileError> {
        let skipped = with_reader!(&mut self.typed, reader => reader.skip_records(rows))?;
        if skipped < rows { Err(too_few_rows()) } else { Ok(()) }
    }

    /// Reads rows.
    pub(crate) fn read_named(&mut self, rows: usize) -> Result<LeafBlock, FileError> {
        let read = self.read(rows);
        read.map_err(|error| FileError(format!("column {}: {error}", self.leaf.path().string())))
    }

    fn read(&mut self, rows: usize) -> Result<LeafBlock, FileError> {
        let mut levels = Levels::default();
        let out = &mut levels;
        let values = match &mut self.typed {
            TypedReader::Boolean(reader) => {
                let read = records(reader, rows, out)?;
                of_booleans(&self.need, &read)
            }
            TypedReader::Int32(reader) => {
                let read = records(reader, rows, out)?;
                let unsigned = self.leaf_type == LeafType::Integer { is_signed: false };
                let wide = |value: i32| {
                    if unsigned { i64::from(value.cast_unsigned()) } else { i64::from(value) }
                };
                of_integers(&self.need, read.into_iter().map(wide), self.leaf_type)
            }
            TypedReader::Int64(reader) => {
                let read = records(reader, rows, out)?;
                of_integers(&self.need, read.into_iter(), self.leaf_type)
            }
            TypedReader::Float(reader) => {
                let read = records(reader, rows, out)?;
                LeafValues::Numbers(read.into_iter().map(f64::from).collect())
            }
            TypedReader::Double(reader) => LeafValues::Numbers(records(reader, rows, out)?),
            TypedReader::Fixed(reader) => {
                let read = records(reader, rows, out)?;
                let number = |bytes: &parquet::data_type::FixedLenByteArray| {
                    unscaled(bytes.data()) / self.leaf_type.divisor()
                };
                LeafValues::Numbers(read.iter().map(number).collect())
            }
            TypedReader::Keys(reader) => {
                let read = records(reader, rows, out)?;
                LeafValues::Keys(read.into_iter().map(i64::cast_unsigned).collect())
            }
            TypedReader::Texts(reader) => {
                let read = records(reader, rows, out)?;
                let LeafNeed::Key(keys) = &self.need else {
                    return Err(FileError("its texts are not numbers".to_owned()));
                };
                LeafValues::Keys(read.iter().map(|text| keys.key(text.data())).collect())
            }
        };
        let Levels { definitions, repetitions } = levels;
        let level_max = self.leaf.max_def_level();
        Ok(LeafBlock::from_levels(values, &definitions, level_max, &repetitions))
    }
}

impl TypedReader {
    fn new(
        kind: PhysicalType,
        leaf: &ColumnDescPtr,
        pages: Box<dyn PageReader>,
    ) -> Result<Self, FileError> {
        let leaf = leaf.clone();
        Ok(match kind {
            PhysicalType::BOOLEAN => Self::Boolean(ColumnReaderImpl::new(leaf, pages)),
            PhysicalType::INT32 => Self::Int32(ColumnReaderImpl::new(leaf, pages)),
            PhysicalType::INT64 => Self::Int64(ColumnReaderImpl::new(leaf, pages)),
            PhysicalType::FLOAT => Self::Float(ColumnReaderImpl::new(leaf, pages)),
            PhysicalType::DOUBLE => Self::Double(ColumnReaderImpl::new(leaf, pages)),
            PhysicalType::FIXED_LEN_BYTE_ARRAY => Self::Fixed(ColumnReaderImpl::new(leaf, pages)),
            PhysicalType::BYTE_ARRAY => Self::Texts(ColumnReaderImpl::new(leaf, pages)),
            PhysicalType::INT96 => {
                return Err(FileError("timestamps of 96 bits are not read".to_owned()));
            }
        })
    }
}

fn of_booleans(need: &LeafNeed, values: &[bool]) -> LeafValues {
    match need {
        LeafNeed::Key(keys) => {
            let keys = [false, true].map(|value| keys.key_of_boolean(value));
            LeafValues::Keys(values.iter().map(|value| keys[usize::from(*value)]).collect())
        }
        LeafNeed::Number | LeafNeed::Index => {
            let number = |value: &bool| f64::from(u8::from(*value));
            LeafValues::Numbers(values.iter().map(number).collect())
        }
    }
}

fn of_integers(
    need: &LeafNeed,
    values: impl Iterator<Item = i64>,
    leaf_type: LeafType,
) -> LeafValues {
    // 64 bits without a sign.
    let unsigned = leaf_type == LeafType::Integer { is_signed: false };
    match need {
        LeafNeed::Number => {
            let divisor = leaf_type.divisor();
            let number = |value: i64| {
                let value = if unsigned { value.cast_unsigned() as f64 } else { value as f64 };
                value / divisor
            };
            LeafValues::Numbers(values.map(number).collect())
        }
        LeafNeed::Key(TextKeys { seed, .. }) => {
            let key = |value: i64| {
                let value = if unsigned { value.cast_unsigned().into() } else { i128::from(value) };
                key::of_integer(*seed, value)
            };
            LeafValues::Keys(values.map(key).collect())
        }
        LeafNeed::Index => LeafValues::Indices(values.map(i64::cast_unsigned).collect()),
    }
}

/// Levels of some rows; see the format's "nested encoding".
#[derive(Default)]
struct Levels {
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
}

fn records<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    rows: usize,
    levels: &mut Levels,
) -> Result<Vec<T::T>, FileError> {
    let mut values = Vec::with_capacity(rows);
    let (definitions, repetitions) = (&mut levels.definitions, &mut levels.repetitions);
    let (read, ..) =
        reader.read_records(rows, Some(definitions), Some(repetitions), &mut values)?;
    if read < rows { Err(too_few_rows()) } else { Ok(values) }
}

fn too_few_rows() -> FileError {
    FileError("the column has fewer rows than its row group".to_owned())
}

/// Whether all texts are in a dictionary or plain.
fn has_plain_texts(chunk: &ColumnChunkMetaData) -> bool {
    chunk.encodings().all(|encoding| {
        !matches!(encoding, Encoding::DELTA_BYTE_ARRAY | Encoding::DELTA_LENGTH_BYTE_ARRAY)
    })
}

/// The column, with whole numbers of 64 bits in place of its values.
fn as_whole_numbers(leaf: &ColumnDescriptor) -> Result<ColumnDescPtr, FileError> {
    let own = Type::primitive_type_builder(leaf.name(), PhysicalType::INT64)
        .with_repetition(Repetition::OPTIONAL)
        .build()?;
    let (definition, repetition) = (leaf.max_def_level(), leaf.max_rep_level());
    let leaf = ColumnDescriptor::new(Arc::new(own), definition, repetition, leaf.path().clone());
    Ok(Arc::new(leaf))
}
