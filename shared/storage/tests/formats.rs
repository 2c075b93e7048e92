//! Compares the tables of `docs/formats.md` on shard files and the checkpoint directory with real files.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use heddle_protocol::ids::{CutId, Epoch, Generation, PhaseNo, RunId, ShardId, Step, TableId};
use heddle_protocol::manifest::ShardFile;
use heddle_storage::checkpoint::CheckpointDir;
use heddle_storage::shard_file::{Section, ShardHeader, ShardRows, ShardWriter, Table, Values};
use heddle_storage::{LocalStorage, StorePath};
use uuid::Uuid;

/// The text of a section of the page, and the first cells of the rows of its n-th table.
fn documented(heading: &str, table: usize) -> (String, Vec<Vec<String>>) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats.md");
    let page = std::fs::read_to_string(page).expect("docs/formats.md is there");
    let (_, below) = page.split_once(&format!("{heading}\n")).expect("the heading is there");
    let section = below.split("\n## ").next().and_then(|text| text.split("\n### ").next());
    let section = section.expect("split gives at least one").to_owned();
    let mut tables = vec![Vec::new()];
    for line in section.lines() {
        if line.starts_with('|') {
            let cells = line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned());
            tables.last_mut().expect("never empty").push(cells.collect::<Vec<_>>());
        } else if tables.last().is_some_and(|rows| !rows.is_empty()) {
            tables.push(Vec::new());
        }
    }
    let rows = tables.swap_remove(table).split_off(2);
    (section, rows)
}

async fn shard_file(dir: &Path) -> (ShardFile, ShardHeader) {
    let generation = Generation(2);
    let header = ShardHeader {
        run: RunId(Uuid::from_u128(1)),
        shard: ShardId(3),
        shards: 4,
        cut: CutId { generation, number: 5 },
        epoch: Epoch::first(generation),
        phase: PhaseNo(0),
        step: Step(9),
        tables: vec![Table {
            id: TableId(0),
            name: "w".to_owned(),
            cols: 1,
            rows: ShardRows::Dense { first: 0, count: 20 },
            optimizer: "sgd".to_owned(),
        }],
        sections: vec![
            Section {
                table: Some(TableId(0)),
                name: "values".to_owned(),
                values: Values::F32,
                count: 20,
            },
            Section { table: None, name: "marks".to_owned(), values: Values::Bytes, count: 3 },
        ],
    };
    let path = StorePath::parse(dir.to_str().expect("UTF-8")).expect("absolute");
    let mut writer =
        ShardWriter::create(&LocalStorage, &path, header.clone()).await.expect("created");
    let values = (1..=20u32).flat_map(|n| (n as f32).to_le_bytes());
    writer.write(Bytes::from(values.chain(*b"abc").collect::<Vec<_>>())).await.expect("written");
    (writer.finish(&LocalStorage).await.expect("durable"), header)
}

#[tokio::test]
async fn a_shard_file_has_the_documented_layout() {
    let temp = tempfile::tempdir().expect("a temporary directory");
    let (file, header) = shard_file(temp.path()).await;
    let bytes = std::fs::read(temp.path().join(&file.file)).expect("read");
    let json = serde_json::to_vec(&header).expect("JSON");

    let (_, rows) = documented("### Shard file", 0);
    let mut at = 0;
    for row in &rows {
        assert_eq!(row[0].parse::<usize>().expect("an offset"), at, "{row:?}");
        let len = if row[1] == "H" { json.len() } else { row[1].parse().expect("a length") };
        let found = &bytes[at..at + len];
        match row[2].split([' ', ',']).next().expect("a word") {
            "magic" => assert!(row[2].contains(std::str::from_utf8(found).expect("ASCII"))),
            "version" => assert_eq!(found, 1u32.to_le_bytes()),
            "H" => assert_eq!(found, u32::try_from(json.len()).expect("short").to_le_bytes()),
            "header" => assert_eq!(found, json),
            other => panic!("an unknown field {other}"),
        }
        at += len;
    }
    // Then the sections, each at the next multiple of 64.
    let first = at.next_multiple_of(64);
    assert!(bytes[at..first].iter().all(|byte| *byte == 0));
    assert_eq!(bytes[first..first + 4], 1f32.to_le_bytes());
    assert_eq!(bytes[first + 76..first + 80], 20f32.to_le_bytes());
    let second = (first + 80).next_multiple_of(64);
    assert!(bytes[first + 80..second].iter().all(|byte| *byte == 0));
    assert_eq!(&bytes[second..second + 3], b"abc");
    assert_eq!(bytes.len(), second + 64);
}

#[tokio::test]
async fn the_headers_fields_are_documented() {
    let temp = tempfile::tempdir().expect("a temporary directory");
    let (_, header) = shard_file(temp.path()).await;
    let json = serde_json::to_value(&header).expect("JSON");
    let (_, rows) = documented("### Shard file", 1);
    let mut fields: Vec<String> = rows
        .iter()
        .flat_map(|row| row[0].split(", ").map(|name| name.trim_matches('`').to_owned()))
        .collect();
    fields.sort();
    let mut found: Vec<_> = json.as_object().expect("an object").keys().cloned().collect();
    found.sort();
    assert_eq!(fields, found);
}

#[test]
fn the_manifests_fields_are_documented() {
    let sample =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../protocol/testdata/manifest-v1.json");
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(sample).expect("read")).expect("JSON");
    let (_, rows) = documented("### Manifest", 0);
    let mut fields: Vec<String> = rows
        .iter()
        .flat_map(|row| row[0].split(", ").map(|name| name.trim_matches('`').to_owned()))
        .collect();
    // Added after version 1 and left out where a checkpoint has no such thing.
    fields.retain(|name| !matches!(name.as_str(), "best_pass" | "initial" | "tables"));
    // Stands beside `work`, as the table says there.
    fields.push("tasks".to_owned());
    fields.sort();
    let mut found: Vec<_> = json.as_object().expect("an object").keys().cloned().collect();
    found.sort();
    assert_eq!(fields, found);
}

#[test]
fn the_fields_of_a_copy_are_documented() {
    let sample =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../protocol/testdata/manifest-copies.json");
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(sample).expect("read")).expect("JSON");
    let (_, rows) = documented("### Manifest", 1);
    let mut fields: Vec<String> = rows
        .iter()
        .flat_map(|row| row[0].split(", ").map(|name| name.trim_matches('`').to_owned()))
        .filter(|name| name != "sha256")
        .collect();
    fields.sort();
    let copy = json["shards"][0]["copies"][0].as_object().expect("an object");
    let mut found: Vec<_> = copy.keys().cloned().collect();
    found.sort();
    assert_eq!(fields, found);
}

#[tokio::test]
async fn a_new_directory_has_exactly_the_documented_names() {
    let temp = tempfile::tempdir().expect("a temporary directory");
    let root = StorePath::parse(temp.path().to_str().expect("UTF-8")).expect("absolute");
    CheckpointDir::open_or_create(Arc::new(LocalStorage), root).await.expect("opened");
    let (_, rows) = documented("## On disk: the checkpoint directory", 0);
    for entry in std::fs::read_dir(temp.path()).expect("listed") {
        let name = entry.expect("listed").file_name().into_string().expect("UTF-8");
        assert!(rows.iter().any(|row| row[0].trim_matches('`').starts_with(&name)), "{name}");
    }
    let marker = std::fs::read_to_string(temp.path().join("HEDDLE")).expect("read");
    assert!(marker.starts_with(r#"{"format_version":1,"made_by":"heddle "#), "{marker}");
}
