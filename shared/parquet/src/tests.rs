//! Files that the crate's own writer has made, read as blocks.

use std::io;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use heddle_columns::{NullTexts, key};
use parquet::basic::{Compression, Encoding, GzipLevel, ZstdLevel};
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FixedLenByteArray,
    FixedLenByteArrayType, Int32Type, Int64Type,
};
use parquet::file::metadata::ParquetMetaDataWriter;
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use proptest::prelude::*;

use heddle_columns::typed::{ColumnShape, FirstValue, LeafBlock, LeafNeed, NeededLeaf, TextKeys};

use crate::*;

/// A file in memory.
struct Memory(Bytes);

impl ReadAt for Memory {
    fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let end = (offset as usize).checked_add(len).filter(|end| *end <= self.0.len());
        let end = end.ok_or_else(|| io::Error::other("beyond the end"))?;
        Ok(self.0.slice(offset as usize..end))
    }
}

const SCHEMA: &str = "message m {
    required int32 y;
    optional double price;
    optional binary site (STRING);
    optional group tags (LIST) { repeated group list { optional binary element (STRING); } }
    optional group v { required int32 type (INT_8); optional int32 size;
        optional group indices (LIST) { repeated group list { required int32 element; } }
        optional group values (LIST) { repeated group list { required double element; } } }
    required boolean flag;
    required fixed_len_byte_array(2) money (DECIMAL(4,1));
    required int64 big (INTEGER(64,false));
}";
/// Rows of a group.
const ROWS: usize = 3_000;
const GROUPS: usize = 2;

/// The values of row `n`.
struct Row {
    n: usize,
}

impl Row {
    fn price(&self) -> Option<f64> {
        (!self.n.is_multiple_of(5)).then_some(self.n as f64 / 4.0)
    }

    fn site(&self) -> Option<String> {
        // Every seventh is a text that means a missing value.
        match self.n % 7 {
            0 => Some("NA".to_owned()),
            1 => None,
            _ => Some(format!("site {}", self.n % 1_900)),
        }
    }

    /// Items, some of which are missing.
    fn tags(&self) -> Option<Vec<Option<String>>> {
        let item = |at: usize| (at != 1).then(|| format!("tag {}", (self.n + at) % 5));
        (!self.n.is_multiple_of(3)).then(|| (0..self.n % 4).map(item).collect())
    }

    fn pairs(&self) -> Vec<(u64, f64)> {
        (0..self.n % 3).map(|at| ((self.n + at) as u64, at as f64 + 0.5)).collect()
    }
}

fn write<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    values: &[T::T],
    definitions: Option<&[i16]>,
    repetitions: Option<&[i16]>,
) {
    let mut column = group.next_column().expect("a column").expect("a column");
    column.typed::<T>().write_batch(values, definitions, repetitions).expect("written");
    column.close().expect("closed");
}

/// Lists as values and levels, of which `there` says that a value is there.
fn levels<T: Clone>(lists: &[Option<Vec<Option<T>>>], there: i16) -> (Vec<T>, Vec<i16>, Vec<i16>) {
    let (mut values, mut definitions, mut repetitions) = (vec![], vec![], vec![]);
    for list in lists {
        match list.as_deref() {
            None | Some([]) => {
                definitions.push(if list.is_none() { 0 } else { 1 });
                repetitions.push(0);
            }
            Some(items) => {
                for (at, item) in items.iter().enumerate() {
                    definitions.push(if item.is_some() { there } else { there - 1 });
                    repetitions.push(i16::from(at > 0));
                    values.extend(item.clone());
                }
            }
        }
    }
    (values, definitions, repetitions)
}

/// A file with groups of `rows` rows.
fn file(properties: WriterPropertiesBuilder, rows: usize) -> Bytes {
    let schema = Arc::new(parse_message_type(SCHEMA).expect("a schema"));
    let properties = Arc::new(properties.set_data_page_row_count_limit(700).build());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, properties).expect("a writer");
    for number in 0..GROUPS {
        let own: Vec<Row> = (0..rows).map(|n| Row { n: number * rows + n }).collect();
        let mut group = writer.next_row_group().expect("a group");
        let ints = |f: fn(&Row) -> i32| own.iter().map(f).collect::<Vec<i32>>();
        write::<Int32Type>(&mut group, &ints(|row| (row.n % 2) as i32), None, None);
        let there = |is: bool| i16::from(is);
        let prices: Vec<f64> = own.iter().filter_map(Row::price).collect();
        let definitions: Vec<i16> = own.iter().map(|row| there(row.price().is_some())).collect();
        write::<DoubleType>(&mut group, &prices, Some(&definitions), None);
        let sites: Vec<ByteArray> =
            own.iter().filter_map(Row::site).map(|site| site.as_bytes().into()).collect();
        let definitions: Vec<i16> = own.iter().map(|row| there(row.site().is_some())).collect();
        write::<ByteArrayType>(&mut group, &sites, Some(&definitions), None);
        let tags: Vec<_> = own.iter().map(Row::tags).collect();
        let (tags, definitions, repetitions) = levels(&tags, 3);
        let tags: Vec<ByteArray> = tags.iter().map(|tag| tag.as_bytes().into()).collect();
        write::<ByteArrayType>(&mut group, &tags, Some(&definitions), Some(&repetitions));
        write::<Int32Type>(&mut group, &vec![0; rows], Some(&vec![1; rows]), None);
        write::<Int32Type>(&mut group, &[], Some(&vec![1; rows]), None);
        let of = |row: &Row| Some(row.pairs().into_iter().map(Some).collect::<Vec<_>>());
        let pairs: Vec<_> = own.iter().map(of).collect();
        let (pairs, mut definitions, repetitions) = levels(&pairs, 3);
        // Within the struct a list that is empty is one level deeper.
        definitions.iter_mut().filter(|level| **level == 1).for_each(|level| *level = 2);
        let indices: Vec<i32> = pairs.iter().map(|(index, _)| *index as i32).collect();
        write::<Int32Type>(&mut group, &indices, Some(&definitions), Some(&repetitions));
        let values: Vec<f64> = pairs.iter().map(|(_, value)| *value).collect();
        write::<DoubleType>(&mut group, &values, Some(&definitions), Some(&repetitions));
        let flags: Vec<bool> = own.iter().map(|row| row.n.is_multiple_of(3)).collect();
        write::<BoolType>(&mut group, &flags, None, None);
        let money = |row: &Row| {
            let cents = 40 - (row.n % 90) as i16;
            FixedLenByteArray::from(ByteArray::from(cents.to_be_bytes().to_vec()))
        };
        let money: Vec<_> = own.iter().map(money).collect();
        write::<FixedLenByteArrayType>(&mut group, &money, None, None);
        let big: Vec<i64> = own.iter().map(|row| (u64::MAX - row.n as u64).cast_signed()).collect();
        write::<Int64Type>(&mut group, &big, None, None);
        group.close().expect("closed");
    }
    writer.into_inner().expect("written").into()
}

fn footer(file: &Bytes) -> Result<Footer, FileError> {
    let bytes = file.len() as u64;
    let tail = &file[file.len() - file.len().min(TAIL_BYTES as usize)..];
    let len = footer_bytes(tail, bytes)? as usize;
    Footer::parse(&file[file.len() - len..], bytes)
}

fn needed(footer: &Footer) -> Vec<NeededLeaf> {
    let keys = |name: &str| {
        LeafNeed::Key(TextKeys { seed: key::seed(name), null: NullTexts::new(&["NA".to_owned()]) })
    };
    let shape = |name: &str| footer.columns.find(name).expect("it is there").shape;
    let mut needed = Vec::new();
    for (name, need) in [
        ("y", LeafNeed::Number),
        ("price", LeafNeed::Number),
        ("site", keys("site")),
        ("tags", keys("tags")),
        ("flag", keys("flag")),
        ("money", LeafNeed::Number),
        ("big", keys("big")),
    ] {
        let (ColumnShape::Value(leaf) | ColumnShape::List(leaf)) = shape(name) else {
            panic!("{name} is {:?}", shape(name));
        };
        needed.push(NeededLeaf { leaf, need });
    }
    let ColumnShape::SparkVector { indices, values, .. } = shape("v") else {
        panic!("v is {:?}", shape("v"));
    };
    needed.push(NeededLeaf { leaf: indices, need: LeafNeed::Index });
    needed.push(NeededLeaf { leaf: values, need: LeafNeed::Number });
    needed
}

/// Reads the rows of a range of bytes; `row` gets the number of each in the file.
fn read(
    file: &Bytes,
    range: Range<u64>,
    mut row: impl FnMut(u64, &[LeafBlock]),
) -> Result<(), FileError> {
    let footer = footer(file)?;
    let memory: Arc<dyn ReadAt> = Arc::new(Memory(file.clone()));
    for run in footer.runs(range) {
        let mut reader = RowReader::open(&memory, &footer, &run, &needed(&footer))?;
        let mut number = run.group.rows_before + run.rows.start;
        while let Some(mut block) = reader.next_block()? {
            for _ in 0..block.rows {
                block.leaves.iter_mut().for_each(LeafBlock::next_row);
                row(number, &block.leaves);
                number += 1;
            }
        }
    }
    Ok(())
}

fn check(number: u64, leaves: &[LeafBlock]) {
    let row = Row { n: number as usize };
    let [y, price, site, tags, flag, money, big, indices, values] = leaves else {
        panic!("{} leaves", leaves.len());
    };
    assert_eq!(y.numbers(), [(row.n % 2) as f64]);
    assert_eq!(price.numbers(), row.price().as_slice());
    let key_of = |column: &str, text: &str| key::of_text(key::seed(column), text.as_bytes());
    let keys = |leaf: &LeafBlock| leaf.keys().collect::<Vec<_>>();
    let found = row.site().filter(|site| site != "NA");
    assert_eq!(keys(site), found.map(|site| key_of("site", &site)).as_slice());
    let items = row.tags().unwrap_or_default().into_iter().flatten();
    assert_eq!(keys(tags), items.map(|tag| key_of("tags", &tag)).collect::<Vec<_>>());
    assert_eq!(
        keys(flag),
        [key_of("flag", if row.n.is_multiple_of(3) { "true" } else { "false" })]
    );
    assert_eq!(money.numbers(), [f64::from(40 - (row.n % 90) as i32) / 10.0]);
    assert_eq!(keys(big), [key_of("big", &(u64::MAX - row.n as u64).to_string())]);
    let pairs = row.pairs();
    assert_eq!(keys(indices), pairs.iter().map(|(index, _)| *index).collect::<Vec<_>>());
    assert_eq!(values.numbers(), pairs.iter().map(|(_, value)| *value).collect::<Vec<_>>());
}

fn forms() -> Vec<(&'static str, WriterPropertiesBuilder)> {
    let form = || WriterProperties::builder().set_write_batch_size(100);
    let delta = |column: &str| ColumnPath::from(column.to_owned());
    let gzip = Compression::GZIP(GzipLevel::default());
    vec![
        ("plain", form().set_dictionary_enabled(false)),
        ("dictionary", form().set_compression(Compression::SNAPPY)),
        ("small dictionary", form().set_dictionary_page_size_limit(300).set_compression(gzip)),
        ("version 2", form().set_writer_version(WriterVersion::PARQUET_2_0).set_compression(gzip)),
        (
            "version 2, plain",
            form()
                .set_writer_version(WriterVersion::PARQUET_2_0)
                .set_column_encoding(delta("site"), Encoding::PLAIN)
                .set_dictionary_enabled(false)
                .set_compression(Compression::ZSTD(ZstdLevel::default())),
        ),
        (
            "delta",
            form()
                .set_dictionary_enabled(false)
                .set_column_encoding(delta("site"), Encoding::DELTA_BYTE_ARRAY)
                .set_column_encoding(delta("big"), Encoding::DELTA_BINARY_PACKED),
        ),
    ]
}

#[test]
fn each_row_is_read_in_each_form_and_in_one_range() {
    for (name, form) in forms() {
        let file = file(form, ROWS);
        let end = file.len() as u64;
        for pieces in [1, 2, 7, 40] {
            let mut next = 0;
            for n in 0..pieces {
                let range = end * n / pieces..end * (n + 1) / pieces;
                let read = read(&file, range, |number, leaves| {
                    assert_eq!(number, next, "{name}");
                    next += 1;
                    check(number, leaves);
                });
                read.expect(name);
            }
            assert_eq!(next, (ROWS * GROUPS) as u64, "{name} in {pieces} pieces");
        }
    }
}

#[test]
fn columns_have_the_names_of_their_types() {
    let (_, form) = forms().remove(0);
    let footer = footer(&file(form, ROWS)).expect("sound");
    let kinds = footer.columns.columns.iter().map(|column| match column.kind {
        heddle_columns::ValueKind::Typed { name, .. } => format!("{}: {name}", column.name),
        heddle_columns::ValueKind::AnyText => column.name.clone(),
    });
    assert_eq!(
        kinds.collect::<Vec<_>>(),
        [
            "y: a whole number",
            "price: a number with a fraction",
            "site: text",
            "tags: a list of texts",
            "v: a vector",
            "flag: a Boolean",
            "money: a decimal number",
            "big: a whole number",
        ]
    );
}

#[test]
fn first_rows_have_all_columns() {
    for (name, form) in forms() {
        let file = file(form, 3);
        let footer = footer(&file).expect("sound");
        let memory: Arc<dyn ReadAt> = Arc::new(Memory(file));
        let rows = first_rows(&memory, &footer, 5).expect(name);
        assert_eq!(rows.len(), 5, "{name}");
        assert_eq!(
            rows[4],
            [
                FirstValue::Number(0.0),
                FirstValue::Number(1.0),
                FirstValue::Text(b"site 4".to_vec()),
                FirstValue::Items(Vec::new()),
                FirstValue::Entries(vec![(4, 0.5)]),
                FirstValue::Number(0.0),
                FirstValue::Number(3.6),
                FirstValue::Number(u64::MAX as f64),
            ],
            "{name}"
        );
    }
}

#[test]
fn a_codec_that_is_not_read_is_named() {
    let (_, form) = forms().remove(0);
    let mut bytes = file(form, 40).to_vec();
    let mut metadata = footer(&bytes.clone().into()).expect("sound").metadata.into_builder();
    let groups = metadata.take_row_groups().into_iter().map(|group| {
        let mut group = group.into_builder();
        let columns = group.take_columns().into_iter().map(|column| {
            column.into_builder().set_compression(Compression::LZ4_RAW).build().expect("whole")
        });
        let columns = columns.collect();
        group.set_column_metadata(columns).build().expect("whole")
    });
    let groups = groups.collect();
    let metadata = metadata.set_row_groups(groups).build();
    ParquetMetaDataWriter::new(&mut bytes, &metadata).finish().expect("written");
    let error = footer(&bytes.into()).expect_err("packed with LZ4");
    assert!(error.to_string().contains("LZ4_RAW, which is not read: write"), "{error}");
}

/// Bytes that the decoders may take for one file at a time: a page, packed and unpacked, of each column.
const MEMORY_MAX: u64 = 9 * (2 * (64 << 20));

/// A file in each form, with few rows.
fn small_files() -> &'static [Bytes] {
    static FILES: OnceLock<Vec<Bytes>> = OnceLock::new();
    FILES.get_or_init(|| forms().into_iter().map(|(_, form)| file(form, 40)).collect())
}

proptest! {
    /// A damaged file gives an error or other values; where the decoder panics, its thread catches it.
    #[test]
    fn damaged_files_end_with_an_error_or_with_rows(
        form in 0..forms().len(),
        changes in proptest::collection::vec((any::<bool>(), any::<usize>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = small_files()[form].to_vec();
        let data = bytes.len() - footer_bytes(&bytes, bytes.len() as u64).expect("sound") as usize;
        for (is_in_footer, place, byte) in changes {
            let range = if is_in_footer { data..bytes.len() } else { 4..data };
            bytes[range.start + place % range.len()] = byte;
        }
        let bytes = Bytes::from(bytes);
        let mut rows = 0;
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let taken = allocation_counter::measure(|| {
            // Either is an answer.
            let _ = std::panic::catch_unwind(AssertUnwindSafe(|| {
                read(&bytes, 0..bytes.len() as u64, |_, _| rows += 1)
            }));
        });
        std::panic::set_hook(hook);
        prop_assert!(taken.bytes_max < MEMORY_MAX, "{} bytes", taken.bytes_max);
        prop_assert!(rows <= 1 << 24);
    }
}
