//! Journals on the real file system: what is read back, and what stops the start.

use std::path::PathBuf;
use std::sync::Arc;

use heddle_am_core::{Record, RecordedView};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::figure::Figure;
use heddle_protocol::ids::{
    Attempt, CutId, Epoch, Generation, Incarnation, Member, PhaseNo, ShardId, Slot, Step, Term,
    ViewVersion,
};
use heddle_protocol::manifest::Salt;
use heddle_protocol::view::EvaluationView;
use heddle_storage::checkpoint::{CheckpointDir, ClaimRecord, Owner};
use heddle_storage::testing::{Faults, Faulty, MemoryStorage, run_interleaved};
use heddle_storage::{LocalStorage, StorePath};
use uuid::Uuid;

use super::*;

struct Fixture {
    temp: tempfile::TempDir,
    dir: CheckpointDir,
}

async fn fixture() -> Fixture {
    let temp = tempfile::tempdir().expect("a temporary directory");
    let root = StorePath::parse(temp.path().to_str().expect("UTF-8")).expect("absolute");
    let dir = CheckpointDir::open_or_create(Arc::new(LocalStorage), root).await.expect("opened");
    Fixture { temp, dir }
}

impl Fixture {
    async fn open(&self, generation: u32, carried: &[Record]) -> Journal {
        Journal::open(self.dir.clone(), Generation(generation), carried).await.expect("opened")
    }

    async fn read(&self) -> Result<Vec<Record>, JournalError> {
        read(&self.dir, Generation(u32::MAX)).await
    }

    async fn read_below(&self, below: u32) -> Vec<Record> {
        read(&self.dir, Generation(below)).await.expect("read")
    }

    fn file(&self, generation: u32, name: &str) -> PathBuf {
        self.temp.path().join(format!("journal/g{generation}/{name}"))
    }

    fn files(&self, generation: u32) -> Vec<String> {
        let dir = self.temp.path().join(format!("journal/g{generation}"));
        let mut names: Vec<String> = std::fs::read_dir(dir)
            .expect("listed")
            .map(|entry| entry.expect("listed").file_name().into_string().expect("UTF-8"))
            .collect();
        names.sort();
        names
    }

    fn remove(&self, generation: u32, name: &str) {
        std::fs::remove_file(self.file(generation, name)).expect("removed");
    }
}

fn record(n: u64) -> Record {
    // Scores of different phases all matter, so compaction keeps all of them.
    Record::Evaluated {
        epoch: Epoch::first(Generation(1)),
        phase: PhaseNo(u32::try_from(n).expect("a small number")),
        scores: EvaluationView {
            pass: 0,
            rows: n,
            figures: [(Figure::LogLoss, 0.5), (Figure::Auc, 0.5)].into_iter().collect(),
        },
    }
}

fn records(range: std::ops::Range<u64>) -> Vec<Record> {
    range.map(record).collect()
}

/// Appends each record with a write of its own.
async fn append_each(journal: &mut Journal, range: std::ops::Range<u64>) {
    for n in range {
        journal.append(&[record(n)]).await.expect("durable");
    }
}

#[tokio::test]
async fn records_are_read_back_in_order_from_one_file() {
    let journals = fixture().await;
    let mut journal = journals.open(1, &[]).await;
    for n in 0..50 {
        journal.append(&records(n * 2..n * 2 + 2)).await.expect("durable");
        journal.delete_older().await;
    }
    assert_eq!(journals.read().await.expect("read"), records(0..100));
    assert_eq!(journals.files(1), ["00000051.json", "00000051.json.md5"]);
}

#[tokio::test]
async fn successor_carries_records_on_and_reads_no_older_journal() {
    let journals = fixture().await;
    let mut first = journals.open(1, &[]).await;
    first.append(&records(0..3)).await.expect("durable");
    let carried = journals.read().await.expect("read");
    let mut second = journals.open(2, &carried).await;
    second.append(&records(3..4)).await.expect("durable");
    // The first is a stale process that finishes a write late.
    first.append(&records(90..91)).await.expect("its own journal");
    assert_eq!(journals.read().await.expect("read"), records(0..4));
    std::fs::write(journals.file(1, "00000001.json"), b"nonsense").expect("written");
    assert_eq!(journals.read().await.expect("read"), records(0..4));
}

#[tokio::test]
async fn generation_without_a_complete_file_is_skipped() {
    let journals = fixture().await;
    journals.open(1, &[]).await.append(&records(0..3)).await.expect("durable");
    std::fs::create_dir(journals.file(2, "")).expect("made");
    std::fs::write(journals.file(2, ".00000001.json.0123"), b"a draft").expect("written");
    assert_eq!(journals.read().await.expect("read"), records(0..3));
    std::fs::write(journals.file(2, "00000001.json"), b"{").expect("written");
    assert_eq!(journals.read().await.expect("read"), records(0..3));
    assert!(journals.read_below(1).await.is_empty());
}

#[tokio::test]
async fn superseded_owner_cannot_append() {
    let journals = fixture().await;
    let mut journal = journals.open(1, &[]).await;
    let claim = ClaimRecord {
        format_version: 1,
        generation: Generation(2),
        run: heddle_protocol::ids::RunId(Uuid::from_u128(1)),
        owner: Owner::Application {
            application: "application_1_1".to_owned(),
            attempt: Attempt(2),
        },
        base: None,
        salt: Salt(Uuid::from_u128(2)),
        at_ms: 0,
    };
    assert!(journals.dir.write_claim(&claim).await.expect("claimed"));
    let error = journal.append(&records(0..1)).await.expect_err("refused");
    assert!(error.is_fenced(), "{error}");
}

/// A view that a primary and a backup of one shard are to have.
fn views() -> Record {
    let member = |index| Member { slot: Slot::pserver(index), incarnation: Incarnation(1) };
    let view = RecordedView {
        shard: ShardId(0),
        term: Term(2),
        version: ViewVersion(3),
        primary: member(1),
        in_sync: vec![member(1)],
        fills: Vec::new(),
        began_at: None,
    };
    let epoch = Epoch::first(Generation(1));
    Record::Views { epoch, views: vec![view], cause: "pserver-0 was lost".to_owned(), at_ms: 0 }
}

/// An attempt writes a record while its successor claims the directory and reads the journal, which happens after `steps` calls
/// of the attempt. Returns whether the record was confirmed, and whether the successor has read it.
fn written_beside_a_claim(record: &Record, steps: usize) -> (bool, bool) {
    let memory = MemoryStorage::new();
    let storage = Faulty::over(Arc::new(memory), Faults::yielding());
    let root = StorePath::parse("/ckpt").expect("absolute");
    let claim = |generation: u32| ClaimRecord {
        format_version: 1,
        generation: Generation(generation),
        run: heddle_protocol::ids::RunId(Uuid::from_u128(1)),
        owner: Owner::Application {
            application: "application_1_1".to_owned(),
            attempt: Attempt(generation),
        },
        base: None,
        salt: Salt(Uuid::from_u128(u128::from(generation))),
        at_ms: 0,
    };
    let opening = async {
        let dir = CheckpointDir::open_or_create(Arc::clone(&storage), root.clone()).await;
        let dir = dir.expect("opened");
        assert!(dir.write_claim(&claim(1)).await.expect("claimed"));
        Journal::open(dir, Generation(1), &[]).await.expect("opened")
    };
    let (mut journal, ()) = run_interleaved(opening, async {}, || false);
    let writes = async { journal.append(std::slice::from_ref(record)).await.is_ok() };
    let dir = CheckpointDir::existing(Arc::clone(&storage), root.clone());
    let successor = async {
        assert!(dir.write_claim(&claim(2)).await.expect("claimed"));
        read(&dir, Generation(2)).await.expect("read").contains(record)
    };
    let mut left = steps;
    run_interleaved(writes, successor, || {
        let is_over = left == 0;
        left = left.saturating_sub(1);
        is_over
    })
}

/// A record that becomes durable after the successor has read is not confirmed: nobody would know of the view.
#[test]
fn s11_views_that_are_confirmed_are_read_by_any_successor() {
    for steps in 0..60 {
        let (confirmed, is_read) = written_beside_a_claim(&views(), steps);
        assert!(is_read || !confirmed, "confirmed and not read after {steps} steps");
    }
    let confirmed_at_last = written_beside_a_claim(&views(), 1_000);
    assert_eq!(confirmed_at_last, (true, true));
    // Without the second look at the claim there is such a moment.
    let is_lost = |steps| written_beside_a_claim(&record(1), steps) == (true, false);
    assert!((0..60).any(is_lost), "the test finds no moment between the look and the write");
}

#[tokio::test]
async fn journal_is_opened_once() {
    let journals = fixture().await;
    journals.open(1, &[]).await;
    let error = Journal::open(journals.dir.clone(), Generation(1), &[]).await.expect_err("taken");
    assert!(error.is_fenced(), "{error}");
}

#[tokio::test]
async fn other_bytes_under_the_next_number_fence_the_writer() {
    let journals = fixture().await;
    let mut journal = journals.open(1, &[]).await;
    std::fs::write(journals.file(1, "00000002.json"), b"of another process").expect("written");
    let error = journal.append(&records(0..1)).await.expect_err("taken");
    assert!(error.is_fenced(), "{error}");
}

#[tokio::test]
async fn retry_of_a_half_written_file_succeeds() {
    for lost in ["00000002.json", "00000002.json.md5"] {
        let journals = fixture().await;
        let mut journal = journals.open(1, &[]).await;
        journal.append(&records(0..1)).await.expect("durable");
        // As if the reply to one of the two writes had been lost.
        journal.number = 1;
        journal.records.clear();
        journals.remove(1, lost);
        journal.append(&records(0..1)).await.expect("durable");
        journal.delete_older().await;
        assert_eq!(journals.files(1), ["00000002.json", "00000002.json.md5"]);
        assert_eq!(journals.read().await.expect("read"), records(0..1));
    }
}

#[tokio::test]
async fn write_without_its_sidecar_was_never_confirmed() {
    let journals = fixture().await;
    let mut journal = journals.open(1, &[]).await;
    append_each(&mut journal, 0..3).await;
    journals.remove(1, "00000004.json.md5");
    assert_eq!(journals.read().await.expect("read"), records(0..2));
}

#[tokio::test]
async fn malformed_sidecar_stops_the_start_naming_its_file() {
    let other = sidecar_line(file::sum(b"x"), "00000003.json");
    // The file before is there, and must not be used in its place.
    for malformed in ["", "00", &other, &"x".repeat(1_000)] {
        let journals = fixture().await;
        let mut journal = journals.open(1, &[]).await;
        append_each(&mut journal, 0..3).await;
        std::fs::write(journals.file(1, "00000004.json.md5"), malformed).expect("written");
        let error = journals.read().await.expect_err("damaged");
        assert_eq!(error.exit_code(), ExitCode::Checkpoint, "{malformed:?}");
        let text = chain(&error);
        assert!(text.contains("journal/g1/00000004.json is damaged: the sidecar"), "{text}");
    }
}

#[tokio::test]
async fn torn_last_write_is_ignored() {
    let journals = fixture().await;
    let mut journal = journals.open(1, &[]).await;
    append_each(&mut journal, 0..3).await;
    let file = journals.file(1, "00000004.json");
    std::fs::OpenOptions::new()
        .write(true)
        .open(file)
        .expect("opened")
        .set_len(50)
        .expect("truncated");
    journals.remove(1, "00000004.json.md5");
    assert_eq!(journals.read().await.expect("read"), records(0..2));
}

#[tokio::test]
async fn missing_complete_file_stops_the_start() {
    for lost in ["00000004.json", "00000004.json.md5"] {
        let journals = fixture().await;
        let mut journal = journals.open(1, &[]).await;
        append_each(&mut journal, 0..3).await;
        journal.delete_older().await;
        journals.remove(1, lost);
        let error = journals.read().await.expect_err("lost");
        assert_eq!(error.exit_code(), ExitCode::Checkpoint);
        let error = error.to_string();
        assert!(error.contains("neither") && error.contains("journal/g1/00000004.json"), "{error}");
    }
}

#[tokio::test]
async fn damaged_newest_file_stops_the_start_naming_it() {
    let journals = fixture().await;
    let mut journal = journals.open(1, &[]).await;
    append_each(&mut journal, 0..3).await;
    let file = journals.file(1, "00000004.json");
    let mut bytes = std::fs::read(&file).expect("read");
    bytes[80] ^= 1;
    std::fs::write(&file, &bytes).expect("written");
    let error = journals.read().await.expect_err("damaged");
    assert_eq!(error.exit_code(), ExitCode::Checkpoint);
    let text = chain(&error);
    assert!(text.contains("journal/g1/00000004.json is damaged: its MD5 is"), "{text}");
}

#[tokio::test]
async fn folder_in_place_of_the_newest_file_is_damage() {
    for (name, cause) in
        [("00000002.json", "it must be a regular file"), ("00000002.json.md5", "the sidecar")]
    {
        let journals = fixture().await;
        append_each(&mut journals.open(1, &[]).await, 0..1).await;
        journals.remove(1, name);
        std::fs::create_dir(journals.file(1, name)).expect("made");
        let error = journals.read().await.expect_err("damaged");
        assert_eq!(error.exit_code(), ExitCode::Checkpoint);
        let text = chain(&error);
        assert!(text.contains("00000002.json is damaged") && text.contains(cause), "{text}");
    }
}

#[tokio::test]
async fn journal_of_version_1_is_refused() {
    let journals = fixture().await;
    journals.open(1, &[]).await.append(&records(0..3)).await.expect("durable");
    std::fs::create_dir(journals.file(2, "")).expect("made");
    std::fs::write(journals.file(2, "00000001"), b"HEDLJRNL\x01\0\0\0").expect("written");
    let error = journals.read().await.expect_err("old");
    assert_eq!(error.exit_code(), ExitCode::Checkpoint);
    let error = error.to_string();
    assert!(error.contains("journal/g2: its format version 1 is not supported"), "{error}");
    assert_eq!(journals.read_below(2).await, records(0..3));
}

#[tokio::test]
async fn ten_thousand_rollbacks_leave_one_short_file() {
    let journals = fixture().await;
    let mut journal = journals.open(1, &[]).await;
    let holders: Vec<Slot> = (0..700).map(Slot::pserver).collect();
    let rollback = |count| Record::Restore {
        epoch: Epoch { count, ..Epoch::first(Generation(1)) },
        base: None,
        dir: None,
        phase: PhaseNo(1),
        step: Step(0),
        holders: holders.clone(),
        lost: Vec::new(),
        cause: "pserver-0 was lost".to_owned(),
        at_ms: 0,
    };
    let bytes = serde_json::to_vec(&rollback(0)).expect("JSON").len();
    assert!(10_000 * bytes > file::FILE_BYTES_MAX, "all of them do not fit a file");
    for batch in 0..100u32 {
        let records: Vec<Record> = (100 * batch..100 * (batch + 1)).map(rollback).collect();
        journal.append(&records).await.expect("appended");
        journal.delete_older().await;
    }
    assert_eq!(journals.read().await.expect("read"), [rollback(9_999)]);
    let written = std::fs::metadata(journals.file(1, "00000101.json")).expect("there").len();
    assert!(written < bytes as u64 + 200, "{written} bytes for one record of {bytes}");
}

#[tokio::test]
async fn write_of_a_job_with_a_thousand_passes_stays_small() {
    let journals = fixture().await;
    let mut journal = journals.open(1, &[]).await;
    journal.append(&records(0..1000)).await.expect("durable");
    let written = std::fs::metadata(journals.file(1, "00000002.json")).expect("there").len();
    assert!(written < 200_000, "{written} bytes");
}

#[tokio::test]
async fn recorded_checkpoint_that_is_gone_stops_the_start() {
    let journals = fixture().await;
    let cut = CutId { generation: Generation(1), number: 4 };
    let commit = Record::Commit {
        cut,
        dir: "/ckpt/g1-c4".to_owned(),
        phase: PhaseNo(0),
        step: Step(9),
        at_ms: 0,
    };
    let history = [record(0), commit, record(1)];
    let error = check_base(&journals.dir, &history, None).expect_err("stops");
    assert!(error.to_string().contains("g1-c4"), "{error}");
    check_base(&journals.dir, &history, Some(cut)).expect("it is there");
    check_base(&journals.dir, &history[..1], None).expect("there never was one");
}

#[tokio::test]
async fn empty_directory_has_no_records() {
    let journals = fixture().await;
    assert_eq!(journals.read().await.expect("read"), []);
    journals.open(1, &[]).await;
    assert_eq!(journals.read().await.expect("read"), []);
}

#[tokio::test]
async fn every_record_is_reported_durable_in_order() {
    let journals = fixture().await;
    let journal = journals.open(1, &[]).await;
    let (records_in, records_out) = mpsc::unbounded_channel();
    let (events_in, mut events_out) = mpsc::unbounded_channel();
    let (notices, _none) = mpsc::unbounded_channel();
    for n in 0..10 {
        records_in.send((RecordId(n), Box::new(record(n)))).expect("open");
    }
    drop(records_in);
    journal.run(records_out, events_in, notices).await;
    for n in 0..10 {
        match events_out.recv().await {
            Some(Event::RecordDurable { record }) => assert_eq!(record, RecordId(n)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(journals.read().await.expect("read"), records(0..10));
    let files = journals.files(1);
    assert_eq!(files, ["00000002.json", "00000002.json.md5"], "what waits goes into one file");
}

/// The rows of the table below the journal's heading in `docs/formats.md`.
fn documented() -> Vec<(String, String)> {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/formats.md");
    let page = std::fs::read_to_string(page).expect("docs/formats.md is there");
    let (_, below) = page.split_once("### Journal\n").expect("the heading is there");
    let table = below.split("\n\n").find(|text| text.starts_with('|')).expect("a table");
    let cells = |line: &str| {
        let mut cells = line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned());
        let mut next = || cells.next().expect("two cells");
        (next(), next())
    };
    table.lines().skip(2).map(cells).collect()
}

#[tokio::test]
async fn file_has_the_documented_fields() {
    let journals = fixture().await;
    let carried = records(0..1);
    journals.open(5, &carried).await;
    let bytes = std::fs::read(journals.file(5, "00000001.json")).expect("read");
    let file: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&bytes).expect("a JSON object");
    let rows = documented();
    let fields: Vec<String> = rows.iter().map(|(field, _)| field.replace('`', "")).collect();
    let mut found: Vec<&String> = file.keys().collect();
    found.sort();
    assert_eq!(
        fields.iter().collect::<std::collections::BTreeSet<_>>(),
        found.into_iter().collect()
    );
    let content = |name: &str| {
        rows.iter().find(|(field, _)| field.trim_matches('`') == name).map(|(_, text)| text.clone())
    };
    assert!(content("format_version").is_some_and(|text| text.contains("2")));
    assert_eq!(file["format_version"], JOURNAL_VERSION);
    assert_eq!(file["generation"], 5);
    assert_eq!(file["number"], 1);
    assert_eq!(file["records"], serde_json::to_value(&carried).expect("JSON"));
    let line = std::fs::read_to_string(journals.file(5, "00000001.json.md5")).expect("read");
    assert_eq!(line, sidecar_line(file::sum(&bytes), "00000001.json"));
}
