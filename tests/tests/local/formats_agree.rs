//! The same rows in files of each format, as many rows in each file: the model has the same bytes, with one lane and with four.

use std::path::Path;
use std::sync::Arc;

use apache_avro::{Codec, DeflateSettings};
use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{Int32Type, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use tempfile::TempDir;

use heddle_tests::local::{heddle, model_values};

use super::tables::{NAMES, all_rows, folder};
use super::{avro_tables, parquet_tables};

/// Files of a job.
const FILES: usize = 5;
/// Rows of a file.
const ROWS: usize = 90;

/// The model of files that `write` makes, with this number of lanes.
fn model(dir: &TempDir, format: &str, lanes: u32, write: impl Fn(&Path, usize)) -> Vec<u8> {
    for file in 0..FILES {
        write(&dir.path().join(format!("part-{file}.{format}")), file);
    }
    let (data, lanes) = (format!("part-*.{format}"), format!("training.lanes={lanes}"));
    let (train, test) = (format!("data.train={data}"), format!("data.test={data}"));
    let sets = [&train, &test, &lanes, "model.l2=0.001", "trainers.min=1"];
    let sets = sets.into_iter().flat_map(|set| ["--set", set]);
    let arguments: Vec<&str> = ["run", "job.toml"].into_iter().chain(sets).collect();
    let ended = heddle(dir.path(), &arguments).expect("heddle starts");
    assert_eq!(ended.code, Some(0), "{format}: {}", ended.stderr);
    model_values(dir.path())
}

#[test]
fn tables_of_each_format_give_the_same_model() {
    let all = all_rows((FILES * ROWS) as u32);
    let of_file = |file: usize| &all[file * ROWS..(file + 1) * ROWS];
    let text = |delimiter: &'static str| {
        move |path: &Path, file: usize| {
            let names = std::iter::once(NAMES.join(delimiter));
            let lines = names.chain(of_file(file).iter().map(|row| row.join(delimiter)));
            std::fs::write(path, lines.collect::<Vec<_>>().join("\n")).expect("written");
        }
    };
    let table = |format: &str| folder("unread", "", &format!("format = \"{format}\""));
    for lanes in [1, 4] {
        let expected = model(&table("csv"), "csv", lanes, text(","));
        assert!(model(&table("tsv"), "tsv", lanes, text("\t")) == expected, "TSV, {lanes} lanes");
        let zstd = Compression::ZSTD(ZstdLevel::default());
        for packing in [Compression::UNCOMPRESSED, Compression::SNAPPY, zstd] {
            let found = model(&table("parquet"), "parquet", lanes, |path, file| {
                parquet_tables::write(path, of_file(file), 40, packing);
            });
            assert!(found == expected, "Parquet, {packing:?}, {lanes} lanes");
        }
        for codec in [Codec::Null, Codec::Deflate(DeflateSettings::default()), Codec::Snappy] {
            let found = model(&table("avro"), "avro", lanes, |path, file| {
                avro_tables::write(path, of_file(file), 40, codec);
            });
            assert!(found == expected, "Avro, {codec:?}, {lanes} lanes");
        }
    }
}

/// The label and the indices of row `n`.
fn indices(n: usize) -> (i32, Vec<i64>) {
    let indices = (0..n % 5).map(|at| (17 * n % 90 + 20 * at) as i64).collect();
    (i32::from(n % 7 < 3), indices)
}

fn write_libsvm(path: &Path, file: usize) {
    let line = |n: usize| {
        let (label, indices) = indices(n);
        let indices: String = indices.iter().map(|index| format!(" {index}:1")).collect();
        format!("{label}{indices}\n")
    };
    let text: String = (file * ROWS..(file + 1) * ROWS).map(line).collect();
    std::fs::write(path, text).expect("written");
}

fn write_lists(path: &Path, file: usize) {
    let schema = "message m { required int32 label;
        required group v (LIST) { repeated group list { required int64 element; } } }";
    let schema = Arc::new(parse_message_type(schema).expect("a schema"));
    let out = std::fs::File::create(path).expect("a file");
    let properties = Arc::new(WriterProperties::builder().build());
    let mut writer = SerializedFileWriter::new(out, schema, properties).expect("a writer");
    let mut group = writer.next_row_group().expect("a group");
    let rows: Vec<_> = (file * ROWS..(file + 1) * ROWS).map(indices).collect();
    let mut column = group.next_column().expect("written").expect("a column");
    let labels: Vec<i32> = rows.iter().map(|(label, _)| *label).collect();
    column.typed::<Int32Type>().write_batch(&labels, None, None).expect("written");
    column.close().expect("written");
    let (mut values, mut definitions, mut repetitions) = (vec![], vec![], vec![]);
    for (_, indices) in &rows {
        definitions.extend(vec![i16::from(!indices.is_empty()); indices.len().max(1)]);
        repetitions.extend((0..indices.len().max(1)).map(|at| i16::from(at > 0)));
        values.extend(indices);
    }
    let mut column = group.next_column().expect("written").expect("a column");
    let levels = (Some(&definitions[..]), Some(&repetitions[..]));
    column.typed::<Int64Type>().write_batch(&values, levels.0, levels.1).expect("written");
    column.close().expect("written");
    group.close().expect("written");
    writer.close().expect("written");
}

#[test]
fn lists_of_parquet_give_the_model_of_libsvm() {
    let job = |data: &str| {
        let dir = tempfile::tempdir().expect("a folder");
        let text = format!(
            "name = \"lists\"\n[data]\ntrain = \"unread\"\npasses = 3\ntask-size = \"1MiB\"\n{data}\n\
             [model]\nfeatures = 200\n[training]\nbatch = 20\n[pservers]\nshards = 4\n\
             [checkpoint]\ndir = \"ckpt\"\n[output]\nmodel = \"model\"\n"
        );
        std::fs::write(dir.path().join("job.toml"), text).expect("a job file");
        dir
    };
    let libsvm = "index-base = 0";
    let lists = "format = \"parquet\"\nlabel = \"label\"\n\
                 [[data.columns]]\nnames = [\"v\"]\nas = \"vector\"";
    for lanes in [1, 4] {
        let expected = model(&job(libsvm), "libsvm", lanes, write_libsvm);
        let found = model(&job(lists), "parquet", lanes, write_lists);
        assert!(found == expected, "another model with {lanes} lanes");
    }
}
