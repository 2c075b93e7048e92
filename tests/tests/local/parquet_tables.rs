//! Parquet files as input: the same rows as text give the same values.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArrayType, DataType, DoubleType, Int32Type, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

use super::policies::quarantined;
use super::tables::{NAMES, all_rows, check_typed, folder, result_of_text, run, scores};

fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, std::fs::File>,
    values: &[Option<T::T>],
    is_optional: bool,
) {
    let mut column = group.next_column().expect("written").expect("a column");
    let levels: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
    let there: Vec<T::T> = values.iter().flatten().cloned().collect();
    let levels = is_optional.then_some(&levels[..]);
    column.typed::<T>().write_batch(&there, levels, None).expect("written");
    column.close().expect("written");
}

/// Writes the rows, in groups of `group_rows`.
pub fn write(path: &Path, rows: &[[String; 5]], group_rows: usize, compression: Compression) {
    let schema = format!(
        "message m {{ required binary {} (STRING); required int64 {}; required binary {} (STRING);
         required int32 {}; optional double {}; }}",
        NAMES[0], NAMES[1], NAMES[2], NAMES[3], NAMES[4]
    );
    let schema = Arc::new(parse_message_type(&schema).expect("a schema"));
    let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
    let file = std::fs::File::create(path).expect("a file");
    let mut writer = SerializedFileWriter::new(file, schema, properties).expect("a writer");
    for some in rows.chunks(group_rows) {
        let mut group = writer.next_row_group().expect("written");
        let text = |place: usize| -> Vec<_> {
            some.iter().map(|row| Some(row[place].as_bytes().into())).collect()
        };
        column::<ByteArrayType>(&mut group, &text(0), false);
        let number = |row: &[String; 5]| row[1].parse().ok();
        column::<Int64Type>(&mut group, &some.iter().map(number).collect::<Vec<_>>(), false);
        column::<ByteArrayType>(&mut group, &text(2), false);
        let label = |row: &[String; 5]| row[3].parse().ok();
        column::<Int32Type>(&mut group, &some.iter().map(label).collect::<Vec<_>>(), false);
        let age = |row: &[String; 5]| row[4].parse().ok();
        column::<DoubleType>(&mut group, &some.iter().map(age).collect::<Vec<_>>(), true);
        group.close().expect("written");
    }
    writer.close().expect("written");
}

#[test]
fn parquet_gives_the_values_of_the_same_rows_as_text() {
    let expected = result_of_text();
    let zstd = Compression::ZSTD(ZstdLevel::default());
    for packing in [Compression::UNCOMPRESSED, Compression::SNAPPY, zstd] {
        let write = |path: &Path| write(path, &all_rows(400), 150, packing);
        check_typed(&expected, "parquet", write, packing, "parquet, 5 columns, 400 records");
    }
}

#[test]
fn cut_within_row_groups_each_row_is_read_once() {
    let dir = folder("data.parquet", "", "format = \"parquet\"");
    write(&dir.path().join("data.parquet"), &all_rows(5_000), 2_000, Compression::SNAPPY);
    let ended = run(dir.path(), &["data.task-size=1KiB", "data.passes=1"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("rows         5,000 in"), "{}", ended.stdout);
    assert_eq!(scores(dir.path(), "data.parquet").lines().count(), 5_000);
}

/// Texts for the prices too.
fn write_with_texts(path: &Path, rows: &[[String; 5]]) {
    let schema = NAMES.map(|name| format!("required binary {name} (STRING);")).concat();
    let schema = parse_message_type(&format!("message m {{ {schema} }}")).expect("a schema");
    let file = std::fs::File::create(path).expect("a file");
    let properties = Arc::new(WriterProperties::builder().build());
    let mut writer = SerializedFileWriter::new(file, schema.into(), properties).expect("a writer");
    let mut group = writer.next_row_group().expect("written");
    for place in 0..NAMES.len() {
        let texts: Vec<_> = rows.iter().map(|row| Some(row[place].as_bytes().into())).collect();
        column::<ByteArrayType>(&mut group, &texts, false);
    }
    group.close().expect("written");
    writer.close().expect("written");
}

#[test]
fn later_file_with_other_types_is_named_with_the_first() {
    let dir = folder("data.parquet", "", "format = \"parquet\"");
    write(&dir.path().join("data.parquet"), &all_rows(400), 150, Compression::SNAPPY);
    write_with_texts(&dir.path().join("later.parquet"), &all_rows(40));
    let ended = run(dir.path(), &["data.train=*.parquet"]);
    assert_eq!(ended.code, Some(7), "{ended:?}");
    let what = "later.parquet: the column \"clicked\" is text, which cannot be read as a number";
    assert!(ended.stderr.contains(what), "{}", ended.stderr);
    assert!(ended.stderr.contains("; the columns of the job are those of /"), "{}", ended.stderr);
    assert!(ended.stderr.contains("/data.parquet"), "{}", ended.stderr);
}

#[test]
fn rows_that_are_set_apart_have_their_columns() {
    let dir = folder("data.parquet", "", "format = \"parquet\"");
    let mut rows = all_rows(400);
    "7".clone_into(&mut rows[170][3]);
    write(&dir.path().join("data.parquet"), &rows, 150, Compression::SNAPPY);
    let ended = run(dir.path(), &["data.bad-records=quarantine", "data.passes=1"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let mut files = Vec::new();
    quarantined(&dir.path().join("state/heddle/runs"), &mut files);
    let read = |file: &PathBuf| std::fs::read_to_string(file).expect("readable");
    let text = files.iter().map(read).collect::<Vec<_>>().concat();
    assert!(text.contains("data.parquet: row group 1, row 20: label 7, "), "{text}");
    // Measured, numbers alone are read.
    let measured = "{\"row\":170,\"clicked\":7,\"age\":null,\"price\":100";
    assert!(text.contains(&format!("\n{measured}}}\n")), "{text}");
    assert!(text.contains(&format!("\n{measured},\"site\":{{\"key\":\"")), "{text}");
}

#[test]
fn damaged_and_unfit_parquet_files_are_named() {
    let whole = |dir: &Path| {
        write(&dir.join("data.parquet"), &all_rows(400), 150, Compression::SNAPPY);
        std::fs::read(dir.join("data.parquet")).expect("it is there")
    };
    let cases: [(&str, &[&str], &[&str]); 6] = [
        ("cut", &[], &["data.parquet: this is not a whole Parquet file"]),
        ("footer", &[], &["data.parquet: its footer is damaged"]),
        ("data", &[], &["data.parquet: row group 0: column"]),
        ("", &["data.label=click"], &["data.label names the column \"click\""]),
        ("", &["data.header=true"], &["data.header", "\"parquet\""]),
        (
            "",
            &["data.columns=[{ names = [\"*\"], as = \"category\" }]"],
            &["the column \"age\" is a number with a fraction, which cannot be read as a category"],
        ),
    ];
    for (damage, sets, words) in cases {
        let dir = folder("data.parquet", "", "format = \"parquet\"");
        let mut bytes = whole(dir.path());
        match damage {
            "cut" => bytes.truncate(bytes.len() - 9),
            "footer" => {
                let end = bytes.len() - 8;
                bytes[end - 300..end].fill(0xff);
            }
            "data" => {
                let end = bytes.len() - 8;
                let footer: [u8; 4] = bytes[end..end + 4].try_into().expect("four bytes");
                bytes[4..end - u32::from_le_bytes(footer) as usize].fill(0xff);
            }
            _ => {}
        }
        std::fs::write(dir.path().join("data.parquet"), bytes).expect("written");
        let ended = run(dir.path(), sets);
        assert_eq!(ended.code, Some(7), "{damage} {sets:?}: {ended:?}");
        for word in words {
            assert!(ended.stderr.contains(word), "{word:?} is not printed: {}", ended.stderr);
        }
        assert!(!dir.path().join("model").exists(), "something was published");
    }
}
