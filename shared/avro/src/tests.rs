//! Files that are written here byte by byte, read as blocks.

use std::io::Write;
use std::sync::{Arc, OnceLock};

use flate2::Crc;
use heddle_columns::typed::{FirstValue, LeafBlock, LeafNeed, NeededLeaf, RowBlock, TextKeys};
use heddle_columns::{NullTexts, ValueKind, key};
use proptest::prelude::*;

use crate::*;

const SCHEMA: &str = r#"{"type": "record", "name": "Row", "namespace": "test", "fields": [
    {"name": "y", "type": "int"},
    {"name": "price", "type": ["null", "double"], "default": null},
    {"name": "odd", "type": {"type": "record", "name": "Node", "fields": [
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "next", "type": ["null", "Node"]},
        {"name": "id", "type": {"type": "fixed", "name": "Id", "size": 3}}]}},
    {"name": "site", "type": ["string", "null"]},
    {"name": "tags", "type": ["null", {"type": "array", "items": ["null", "string"]}]},
    {"name": "indices", "type": {"type": "array", "items": "long"}},
    {"name": "weights", "type": {"type": "array", "items": "float"}},
    {"name": "flag", "type": "boolean"},
    {"name": "money", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["red", "green"]}},
    {"name": "either", "type": ["int", "string"]},
    {"name": "counts", "type": {"type": "map", "values": ["null", "long"]}},
    {"name": "names", "type": {"type": "map", "values": "string"}}]}"#;
const MARKER: [u8; MARKER_BYTES] = *b"0123456789abcdef";
const BLOCK_RECORDS: usize = 1_500;
const CODECS: [&str; 5] = ["null", "deflate", "snappy", "zstandard", "bzip2"];

fn long(out: &mut Vec<u8>, number: i64) {
    let mut rest = ((number << 1) ^ (number >> 63)).cast_unsigned();
    while rest > 127 {
        out.push(rest as u8 | 128);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn text(out: &mut Vec<u8>, text: &[u8]) {
    long(out, text.len() as i64);
    out.extend_from_slice(text);
}

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

    fn weights(&self) -> Vec<f64> {
        (0..self.n % 3).map(|at| at as f64 + 0.5).collect()
    }

    fn write(&self, out: &mut Vec<u8>) {
        long(out, (self.n % 2) as i64);
        long(out, i64::from(self.price().is_some()));
        self.price().iter().for_each(|price| out.extend(price.to_le_bytes()));
        for depth in 0..=self.n % 3 {
            // A map in two parts, the first of which has a length in bytes.
            long(out, -1);
            long(out, 3);
            text(out, b"a");
            long(out, 7);
            long(out, 1);
            text(out, b"b");
            long(out, -7);
            long(out, 0);
            long(out, i64::from(depth < self.n % 3));
        }
        (0..=self.n % 3).for_each(|_| out.extend(b"xyz"));
        long(out, i64::from(self.site().is_none()));
        self.site().iter().for_each(|site| text(out, site.as_bytes()));
        long(out, i64::from(self.tags().is_some()));
        if let Some(tags) = self.tags() {
            for tag in tags {
                long(out, 1);
                long(out, i64::from(tag.is_some()));
                tag.iter().for_each(|tag| text(out, tag.as_bytes()));
            }
            long(out, 0);
        }
        long(out, 2);
        long(out, self.n as i64);
        long(out, self.n as i64 + 1);
        long(out, 0);
        let weights = self.weights();
        if !weights.is_empty() {
            long(out, weights.len() as i64);
        }
        weights.iter().for_each(|weight| out.extend((*weight as f32).to_le_bytes()));
        long(out, 0);
        out.push(u8::from(self.n.is_multiple_of(3)));
        text(out, &(40 - (self.n % 90) as i16).to_be_bytes());
        long(out, 20_000 + self.n as i64);
        long(out, (self.n % 2) as i64);
        long(out, 0);
        long(out, 9);
        // A value is missing, and a key is a text that means one elsewhere.
        long(out, 3);
        for (key, value) in [("NA", Some(self.n as i64)), ("x", None), ("b", Some(-2))] {
            text(out, key.as_bytes());
            long(out, i64::from(value.is_some()));
            value.iter().for_each(|value| long(out, *value));
        }
        long(out, 0);
        long(out, 1);
        text(out, b"k");
        text(out, b"v");
        long(out, 0);
    }
}

fn pack(codec: &str, records: &[u8]) -> Vec<u8> {
    match codec {
        "deflate" => {
            let mut encoder =
                flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(records).expect("written");
            encoder.finish().expect("written")
        }
        "bzip2" => {
            let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
            encoder.write_all(records).expect("written");
            encoder.finish().expect("written")
        }
        "zstandard" => zstd::encode_all(records, 1).expect("packed"),
        "snappy" => {
            let mut packed = snap::raw::Encoder::new().compress_vec(records).expect("packed");
            let mut sum = Crc::new();
            sum.update(records);
            packed.extend(sum.sum().to_be_bytes());
            packed
        }
        _ => records.to_vec(),
    }
}

fn header(codec: &str) -> Vec<u8> {
    let mut file = b"Obj\x01".to_vec();
    long(&mut file, 3);
    for (name, value) in [("avro.schema", SCHEMA), ("avro.codec", codec), ("more", "any")] {
        text(&mut file, name.as_bytes());
        text(&mut file, value.as_bytes());
    }
    long(&mut file, 0);
    file.extend(MARKER);
    file
}

fn file(codec: &str, rows: usize, block_records: usize) -> Vec<u8> {
    let mut file = header(codec);
    for first in (0..rows).step_by(block_records) {
        let mut records = Vec::new();
        let own = first..rows.min(first + block_records);
        long(&mut file, own.len() as i64);
        own.for_each(|n| Row { n }.write(&mut records));
        text(&mut file, &pack(codec, &records));
        file.extend(MARKER);
    }
    file
}

fn parse(bytes: &[u8]) -> Result<AvroHeader, AvroError> {
    AvroHeader::parse(bytes)?.ok_or_else(|| AvroError("cut".to_owned()))
}

/// Reads all blocks; `row` gets the values of each row.
fn read(bytes: &[u8], mut row: impl FnMut(&[LeafBlock])) -> Result<(), AvroError> {
    let header = Arc::new(parse(bytes)?);
    let place = |name: &str| {
        let place = header.columns.columns.iter().position(|column| column.name == name);
        place.ok_or_else(|| AvroError(format!("no {name}")))
    };
    let mut needed = Vec::new();
    for name in
        ["y", "price", "site", "tags", "indices", "weights", "flag", "money", "day", "colour"]
    {
        let null = NullTexts::new(&["NA".to_owned()]);
        let need = match name {
            "site" | "tags" | "flag" | "colour" => {
                LeafNeed::Key(TextKeys { seed: key::seed(name), null })
            }
            "indices" => LeafNeed::Index,
            _ => LeafNeed::Number,
        };
        needed.push(NeededLeaf { leaf: place(name)?, need });
    }
    // Twice, as another need.
    let need = LeafNeed::Key(TextKeys { seed: key::seed("y"), null: NullTexts::new(&[]) });
    needed.push(NeededLeaf { leaf: place("y")?, need });
    for need in [LeafNeed::Key(TextKeys { seed: 7, null: NullTexts::new(&[]) }), LeafNeed::Number] {
        needed.push(NeededLeaf { leaf: place("counts")?, need });
    }
    let mut decoder = BlockDecoder::new(Arc::clone(&header), &needed);
    let mut take = |decoder: &mut BlockDecoder| {
        while let Some(RowBlock { rows, mut leaves }) = decoder.take_rows() {
            for _ in 0..rows {
                leaves.iter_mut().for_each(LeafBlock::next_row);
                row(&leaves);
            }
        }
    };
    let mut rest = &bytes[header.bytes as usize..];
    while !rest.is_empty() {
        let head = BlockHead::parse(rest)?;
        let block = rest.get(head.head_bytes..).and_then(|rest| rest.get(..head.bytes as usize));
        let block = block.ok_or_else(|| AvroError("cut".to_owned()))?;
        let mut records = Vec::new();
        let end = header.unpack(block, &mut records, 0)?;
        let mut block = UnpackedBlock::new(head, &records[..end])?;
        while decoder.decode(&mut block)? {
            take(&mut decoder);
        }
        rest = rest.get(head.head_bytes + head.bytes as usize + MARKER_BYTES..).unwrap_or_default();
    }
    take(&mut decoder);
    Ok(())
}

fn check(n: usize, leaves: &[LeafBlock]) {
    let row = Row { n };
    let [y, price, site, tags, indices, weights, flag, money, day, colour, rest @ ..] = leaves
    else {
        panic!("{} leaves", leaves.len());
    };
    let [y_key, counted, counts] = rest else { panic!("{} more leaves", rest.len()) };
    assert_eq!(y.numbers(), [(n % 2) as f64]);
    assert_eq!(price.numbers(), row.price().as_slice());
    let key_of = |column: &str, text: &str| key::of_text(key::seed(column), text.as_bytes());
    let keys = |leaf: &LeafBlock| leaf.keys().collect::<Vec<_>>();
    let found = row.site().filter(|site| site != "NA");
    assert_eq!(keys(site), found.map(|site| key_of("site", &site)).as_slice());
    let items = row.tags().unwrap_or_default().into_iter().flatten();
    assert_eq!(keys(tags), items.map(|tag| key_of("tags", &tag)).collect::<Vec<_>>());
    assert_eq!(keys(indices), [n as u64, n as u64 + 1]);
    assert_eq!(weights.numbers(), row.weights());
    assert_eq!(keys(flag), [key_of("flag", if n.is_multiple_of(3) { "true" } else { "false" })]);
    assert_eq!(money.numbers(), [f64::from(40 - (n % 90) as i32) / 10.0]);
    assert_eq!(day.numbers(), [20_000.0 + n as f64]);
    assert_eq!(keys(colour), [key_of("colour", ["red", "green"][n % 2])]);
    assert_eq!(keys(counted), ["NA", "b"].map(|text| key::of_text(7, text.as_bytes())));
    assert_eq!(counts.numbers(), [n as f64, -2.0]);
    assert_eq!(keys(y_key), [key_of("y", ["0", "1"][n % 2])]);
}

#[test]
fn each_row_is_read_with_each_codec() {
    for codec in CODECS {
        let mut next = 0;
        let read = read(&file(codec, 4_000, BLOCK_RECORDS), |leaves| {
            check(next, leaves);
            next += 1;
        });
        read.expect(codec);
        assert_eq!(next, 4_000, "{codec}");
    }
}

#[test]
fn columns_have_the_names_of_their_types() {
    let header = parse(&header("null")).expect("sound");
    let kinds = header.columns.columns.iter().map(|column| match column.kind {
        ValueKind::Typed { name, .. } => format!("{}: {name}", column.name),
        ValueKind::AnyText => column.name.clone(),
    });
    assert_eq!(
        kinds.collect::<Vec<_>>(),
        [
            "y: a whole number",
            "price: a number with a fraction",
            "odd: a record",
            "site: text",
            "tags: a list of texts",
            "indices: a list of whole numbers",
            "weights: a list of numbers",
            "flag: a Boolean",
            "money: a decimal number",
            "day: a date",
            "colour: text",
            "either: a union of types",
            "counts: a map of numbers",
            "names: a map of another type",
        ]
    );
}

#[test]
fn first_records_have_all_columns() {
    let bytes = file("deflate", 10, 10);
    let header = parse(&bytes).expect("sound");
    let rest = &bytes[header.bytes as usize..];
    let head = BlockHead::parse(rest).expect("sound");
    let packed = &rest[head.head_bytes..][..head.bytes as usize];
    let rows = first_records(&header, head, packed, 6).expect("sound");
    assert_eq!(rows.len(), 6);
    let text = |text: &str| text.as_bytes().to_vec();
    assert_eq!(
        rows[5],
        [
            FirstValue::Number(1.0),
            FirstValue::Missing,
            FirstValue::Missing,
            FirstValue::Text(text("site 5")),
            FirstValue::Items(vec![text("tag 0")]),
            FirstValue::Items(vec![text("5"), text("6")]),
            FirstValue::Entries(vec![(0, 0.5), (1, 1.5)]),
            FirstValue::Number(0.0),
            FirstValue::Number(3.5),
            FirstValue::Number(20_005.0),
            FirstValue::Text(text("green")),
            FirstValue::Number(9.0),
            FirstValue::Weights(vec![(text("NA"), 5.0), (text("b"), -2.0)]),
            FirstValue::Missing,
        ]
    );
}

#[test]
fn what_is_damaged_is_named() {
    let error = |bytes: &[u8]| read(bytes, |_| {}).expect_err("damaged").to_string();
    assert!(error(b"PAR1").contains("does not begin with Obj"));
    assert_eq!(error(b"Ob"), "cut");
    assert!(
        error(&header("xz")).contains("its codec is \"xz\", which is not read; those are: null,")
    );
    let of_schema = |schema: &str| {
        let mut file = b"Obj\x01\x02\x16avro.schema".to_vec();
        text(&mut file, schema.as_bytes());
        file.extend([0; 17]);
        error(&file)
    };
    assert!(of_schema("{").contains("its schema is not JSON"));
    assert_eq!(of_schema("\"int\""), "its schema is not a record");
    assert_eq!(
        of_schema(
            "{\"type\": \"record\", \"name\": \"a\", \"fields\": [{\"name\": \"b\", \"type\": \"c\"}]}"
        ),
        "its schema has no type \"c\""
    );
    let whole = file("snappy", 10, 10);
    let mut bytes = whole.clone();
    bytes[whole.len() - 20] ^= 1;
    assert_eq!(error(&bytes), "its checksum is wrong");
    let mut bytes = header("null");
    long(&mut bytes, 3);
    text(&mut bytes, b"\0\0");
    assert_eq!(error(&bytes), "3 records in 2 bytes, unpacked");
}

#[test]
fn rows_of_small_blocks_come_together_until_one_is_damaged() {
    let whole = Arc::new(parse(&header("null")).expect("sound"));
    let needed = [NeededLeaf { leaf: 1, need: LeafNeed::Number }];
    let mut decoder = BlockDecoder::new(Arc::clone(&whole), &needed);
    let mut decode = |records: &[u8], count: u64| {
        let head = BlockHead { records: count, bytes: records.len() as u64, head_bytes: 0 };
        decoder.decode(&mut UnpackedBlock::new(head, records)?).map(|_| decoder.rows())
    };
    let records = |rows: std::ops::Range<usize>| {
        let mut records = Vec::new();
        rows.for_each(|n| Row { n }.write(&mut records));
        records
    };
    assert_eq!(decode(&records(0..3), 3), Ok(3));
    assert_eq!(decode(&[], 0), Ok(3));
    assert_eq!(decode(&records(3..5), 2), Ok(5));
    let mut cut = records(5..8);
    cut.truncate(cut.len() - 1);
    let error = AvroError("record 2: it ends within a value".to_owned());
    assert_eq!(decode(&cut, 3), Err(error));
    let mut block = decoder.take_rows().expect("rows");
    assert_eq!(block.rows, 7);
    for n in 0..block.rows {
        block.leaves[0].next_row();
        assert_eq!(block.leaves[0].numbers(), Row { n }.price().as_slice());
    }
    assert!(decoder.take_rows().is_none());
}

/// Bytes that decoding may take at a time: the packed block, the unpacked one, and its rows.
const MEMORY_MAX: u64 = 4 * BLOCK_BYTES_MAX;

fn small_files() -> &'static [Vec<u8>] {
    static FILES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    FILES.get_or_init(|| CODECS.map(|codec| file(codec, 40, 15)).to_vec())
}

proptest! {
    #[test]
    fn damaged_files_end_with_an_error_or_with_rows(
        codec in 0..CODECS.len(),
        changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = small_files()[codec].clone();
        for (place, byte) in changes {
            let place = place % bytes.len();
            bytes[place] = byte;
        }
        let mut rows = 0;
        let taken = allocation_counter::measure(|| {
            // Either is an answer.
            let _ = read(&bytes, |_| rows += 1);
        });
        prop_assert!(taken.bytes_max < MEMORY_MAX, "{} bytes", taken.bytes_max);
        prop_assert!(rows <= BLOCK_BYTES_MAX);
    }
}
