//! Avro files as input, which another implementation has written: the same rows as text give the same values.

use std::path::Path;

use heddle_tests::local::heddle;

use super::tables::{NAMES, all_rows, check_typed, folder, result_of_text, run};
use apache_avro::types::Value;
use apache_avro::{Codec, DeflateSettings, Schema, Writer};

/// Writes the rows, in blocks of `block_rows`.
pub fn write(path: &Path, rows: &[[String; 5]], block_rows: usize, codec: Codec) {
    let field = |name: &str, kind: &str| format!("{{\"name\": \"{name}\", \"type\": {kind}}}");
    let kinds = ["\"string\"", "\"long\"", "\"string\"", "\"int\"", "[\"null\", \"double\"]"];
    let fields: Vec<_> = NAMES.iter().zip(kinds).map(|(name, kind)| field(name, kind)).collect();
    let fields = fields.join(", ");
    let schema = format!("{{\"type\": \"record\", \"name\": \"row\", \"fields\": [{fields}]}}");
    let schema = Schema::parse_str(&schema).expect("a schema");
    let file = std::fs::File::create(path).expect("a file");
    let mut writer = Writer::with_codec(&schema, file, codec);
    for (n, row) in rows.iter().cloned().enumerate() {
        let age = match row[4].parse() {
            Ok(age) => Value::Union(1, Box::new(Value::Double(age))),
            Err(_) => Value::Union(0, Box::new(Value::Null)),
        };
        let [id, price, site, clicked, _] = row;
        let record = vec![
            Value::String(id),
            Value::Long(price.parse().expect("a number")),
            Value::String(site),
            Value::Int(clicked.parse().expect("a number")),
            age,
        ];
        let names = NAMES.map(str::to_owned).into_iter();
        writer.append(Value::Record(names.zip(record).collect())).expect("written");
        if (n + 1) % block_rows == 0 {
            writer.flush().expect("written");
        }
    }
    writer.into_inner().expect("written");
}

#[test]
fn avro_gives_the_values_of_the_same_rows_as_text() {
    let expected = result_of_text();
    for codec in [Codec::Null, Codec::Deflate(DeflateSettings::default()), Codec::Snappy] {
        let write = |path: &Path| write(path, &all_rows(400), 150, codec);
        check_typed(&expected, "avro", write, codec, "avro, 5 columns, 150 records");
    }
}

#[test]
fn cut_anywhere_each_record_is_read_once() {
    let dir = folder("data.avro", "", "format = \"avro\"");
    write(&dir.path().join("data.avro"), &all_rows(5_000), 70, Codec::Snappy);
    std::fs::write(dir.path().join("empty.avro"), b"").expect("an empty file");
    for size in ["700B", "1KiB", "20KiB"] {
        let size = format!("data.task-size={size}");
        let ended = run(dir.path(), &[&size, "data.passes=1", "data.train=*.avro"]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(ended.stdout.contains("rows         5,000 in"), "{}", ended.stdout);
        std::fs::remove_dir_all(dir.path().join("model")).expect("a model");
        std::fs::remove_dir_all(dir.path().join("ckpt")).expect("checkpoints");
    }
}

#[test]
fn damaged_and_unfit_avro_files_are_named() {
    let cases: [(&str, &[&str], &[&str]); 6] = [
        ("cut", &[], &["data.avro: block at byte ", "the file ends within it"]),
        ("header", &[], &["data.avro: this is not an Avro file"]),
        ("data", &[], &["data.avro: block at byte ", "its checksum is wrong"]),
        ("marker", &[], &["it does not end with the sync marker of the file"]),
        ("", &["data.label=click"], &["data.label names the column \"click\"", "\"clicked\""]),
        (
            "",
            &["data.columns=[{ names = [\"*\"], as = \"category\" }]"],
            &["the column \"age\" is a number with a fraction, which cannot be read as a category"],
        ),
    ];
    for (damage, sets, words) in cases {
        let dir = folder("data.avro", "", "format = \"avro\"");
        let path = dir.path().join("data.avro");
        write(&path, &all_rows(400), 150, Codec::Snappy);
        let mut bytes = std::fs::read(&path).expect("it is there");
        let end = bytes.len();
        match damage {
            "cut" => bytes.truncate(end - 9),
            "header" => bytes[..4].fill(b'x'),
            "data" => bytes[end - 18] ^= 1,
            "marker" => bytes[end - 1] ^= 1,
            _ => {}
        }
        std::fs::write(&path, bytes).expect("written");
        let ended = run(dir.path(), sets);
        assert_eq!(ended.code, Some(7), "{damage} {sets:?}: {ended:?}");
        for word in words {
            assert!(ended.stderr.contains(word), "{word:?} is not printed: {}", ended.stderr);
        }
        assert!(!dir.path().join("model").exists(), "something was published");
    }
}

#[test]
fn map_of_numbers_is_a_list_whose_items_have_values() {
    let dir = folder("data.avro", "", "format = \"avro\"");
    let field = |name: &str, kind: &str| format!("{{\"name\": \"{name}\", \"type\": {kind}}}");
    let map = |values: &str| format!("{{\"type\": \"map\", \"values\": \"{values}\"}}");
    let fields =
        [field("clicked", "\"int\""), field("m", &map("double")), field("t", &map("string"))];
    let fields = fields.join(", ");
    let schema = format!("{{\"type\": \"record\", \"name\": \"R\", \"fields\": [{fields}]}}");
    let schema = Schema::parse_str(&schema).expect("a schema");
    let file = std::fs::File::create(dir.path().join("data.avro")).expect("a file");
    let mut writer = Writer::with_codec(&schema, file, Codec::Null);
    for n in 0..200 {
        let own = |key: &str, value: Value| Value::Map([(key.to_owned(), value)].into());
        let record = [
            ("clicked", Value::Int(n % 2)),
            ("m", own(["a", "b"][n as usize % 2], Value::Double(0.5))),
            ("t", own("a", Value::String("x".to_owned()))),
        ];
        let record = record.map(|(name, value)| (name.to_owned(), value)).to_vec();
        writer.append(Value::Record(record)).expect("written");
    }
    writer.into_inner().expect("written");
    let rules = |list: &str| {
        format!(
            "data.columns=[{{ names = [{list}], as = \"list\" }}, {{ names = [\"*\"], as = \"ignore\" }}]"
        )
    };
    let ended = run(dir.path(), &["data.id=[]", &rules("\"m\", \"t\"")]);
    assert_eq!(ended.code, Some(7), "{ended:?}");
    let what =
        "data.avro: the column \"t\" is a map of another type, which cannot be read as a list";
    assert!(ended.stderr.contains(what), "{}", ended.stderr);
    let ended = run(dir.path(), &["data.id=[]", &rules("\"m\"")]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let sample = heddle(dir.path(), &["data", "sample", "data.avro", "--rows", "1"]);
    let sample = sample.expect("heddle starts").stdout;
    for text in ["m=a:0.5 (", "\"t\",   # it is a map of another type, which cannot be a feature"] {
        assert!(sample.contains(text), "{text:?} in {sample}");
    }
    let (_, key) = sample.split_once("m=a:0.5 (").expect("it is there");
    let key = u64::from_str_radix(&key[..16], 16).expect("a key");
    let model = std::fs::read_to_string(dir.path().join("model/model.txt")).expect("a model");
    assert!(model.contains(&format!("\n{key} ")), "{key} in {model}");
}
