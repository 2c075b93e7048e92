//! Journals on the real file system: what comes back, and what stops the start.

use std::path::PathBuf;
use std::sync::Arc;

use heddle_am_core::Record;
use heddle_protocol::ids::{Attempt, CutId, Epoch, Generation, PhaseNo, Slot, Step};
use heddle_protocol::manifest::Salt;
use heddle_protocol::view::EvaluationView;
use heddle_storage::checkpoint::{CheckpointDir, ClaimRecord, Owner};
use heddle_storage::{LocalStorage, StorePath};
use uuid::Uuid;

use super::*;

struct Place {
    temp: tempfile::TempDir,
    dir: CheckpointDir,
}

async fn place() -> Place {
    let temp = tempfile::tempdir().expect("a temporary directory");
    let root = StorePath::parse(temp.path().to_str().expect("UTF-8")).expect("absolute");
    let dir = CheckpointDir::open_or_create(Arc::new(LocalStorage), root).await.expect("opened");
    Place { temp, dir }
}

impl Place {
    async fn open(&self, generation: u32, carried: &[Record]) -> Journal {
        Journal::open(self.dir.clone(), Generation(generation), carried).await.expect("opened")
    }

    async fn read(&self) -> Result<Vec<Record>, JournalError> {
        read(&self.dir, Generation(u32::MAX)).await
    }

    fn segment(&self, generation: u32, seq: u64) -> PathBuf {
        self.temp.path().join(format!("journal/g{generation}/{seq:08}"))
    }

    fn segments(&self, generation: u32) -> usize {
        let dir = self.temp.path().join(format!("journal/g{generation}"));
        std::fs::read_dir(dir).expect("listed").count()
    }
}

fn record(n: u64) -> Record {
    // Scores of different phases all matter, so none is left out of a snapshot.
    Record::Evaluated {
        epoch: Epoch::first(Generation(1)),
        phase: PhaseNo(u32::try_from(n).expect("a small number")),
        scores: EvaluationView {
            pass: 0,
            rows: n,
            log_loss: 0.5,
            auc: 0.5,
            auc_error: 0.0,
            accuracy: 0.5,
        },
    }
}

fn records(range: std::ops::Range<u64>) -> Vec<Record> {
    range.map(record).collect()
}

#[tokio::test]
async fn records_come_back_in_order_across_snapshots() {
    let place = place().await;
    let mut journal = place.open(1, &[]).await;
    for n in 0..50 {
        journal.append(&records(n * 2..n * 2 + 2)).await.expect("durable");
    }
    assert_eq!(place.read().await.expect("read"), records(0..100));
    assert!(place.segments(1) < 40, "segments before a snapshot are deleted");
}

#[tokio::test]
async fn a_successor_carries_the_records_on_and_reads_no_older_journal() {
    let place = place().await;
    let mut first = place.open(1, &[]).await;
    first.append(&records(0..3)).await.expect("durable");
    let carried = place.read().await.expect("read");
    let mut second = place.open(2, &carried).await;
    second.append(&records(3..4)).await.expect("durable");
    // The first was not dead after all.
    first.append(&records(90..91)).await.expect("its own journal");
    assert_eq!(place.read().await.expect("read"), records(0..4));
    std::fs::write(place.segment(1, 1), b"nonsense").expect("written");
    assert_eq!(place.read().await.expect("read"), records(0..4));
}

#[tokio::test]
async fn one_that_died_before_its_first_record_decided_nothing() {
    let place = place().await;
    place.open(1, &[]).await.append(&records(0..3)).await.expect("durable");
    std::fs::create_dir(place.temp.path().join("journal/g2")).expect("made");
    std::fs::write(place.temp.path().join("journal/g2/.00000001.0123"), b"a draft")
        .expect("written");
    assert_eq!(place.read().await.expect("read"), records(0..3));
    assert!(place.read_below(1).await.is_empty());
}

impl Place {
    async fn read_below(&self, below: u32) -> Vec<Record> {
        read(&self.dir, Generation(below)).await.expect("read")
    }
}

#[tokio::test]
async fn a_superseded_owner_cannot_append() {
    let place = place().await;
    let mut journal = place.open(1, &[]).await;
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
    assert!(place.dir.write_claim(&claim).await.expect("claimed"));
    let error = journal.append(&records(0..1)).await.expect_err("refused");
    assert!(error.is_fenced(), "{error}");
}

#[tokio::test]
async fn a_journal_is_opened_once() {
    let place = place().await;
    place.open(1, &[]).await;
    let error = Journal::open(place.dir.clone(), Generation(1), &[]).await.expect_err("taken");
    assert!(error.is_fenced(), "{error}");
}

#[tokio::test]
async fn a_missing_segment_stops_the_start_naming_its_number() {
    let place = place().await;
    let mut journal = place.open(1, &[]).await;
    for n in 0..5 {
        journal.append(&records(n..n + 1)).await.expect("durable");
    }
    std::fs::remove_file(place.segment(1, 4)).expect("removed");
    let error = place.read().await.expect_err("a gap").to_string();
    assert!(error.ends_with("segment 00000004 is missing"), "{error}");
    std::fs::remove_file(place.segment(1, 1)).expect("removed");
    std::fs::remove_file(place.segment(1, 5)).expect("removed");
    std::fs::remove_file(place.segment(1, 6)).expect("removed");
    let error = place.read().await.expect_err("no beginning").to_string();
    assert!(error.ends_with("segment 00000001 is missing"), "{error}");
}

#[tokio::test]
async fn a_damaged_segment_stops_the_start_naming_file_and_offset() {
    let place = place().await;
    let mut journal = place.open(1, &[]).await;
    journal.append(&records(0..2)).await.expect("durable");
    journal.append(&records(2..3)).await.expect("durable");
    let file = place.segment(1, 2);
    let mut bytes = std::fs::read(&file).expect("read");
    bytes[80] ^= 1;
    std::fs::write(&file, &bytes).expect("written");
    let error = place.read().await.expect_err("damaged");
    let text = chain(&error);
    assert!(text.contains("journal/g1/00000002 is damaged: at byte 32: the CRC-32 is"), "{text}");
}

#[tokio::test]
async fn a_segment_of_another_chain_stops_the_start() {
    let (place, other) = (place().await, place().await);
    for (place, from) in [(&place, 0), (&other, 10)] {
        let mut journal = place.open(1, &[]).await;
        journal.append(&records(from..from + 1)).await.expect("durable");
        journal.append(&records(from + 1..from + 2)).await.expect("durable");
    }
    std::fs::copy(other.segment(1, 3), place.segment(1, 3)).expect("copied");
    let text = chain(&place.read().await.expect_err("another chain"));
    assert!(text.contains("does not follow"), "{text}");
}

#[tokio::test]
async fn only_a_torn_last_segment_is_dropped() {
    let place = place().await;
    let mut journal = place.open(1, &[]).await;
    for n in 0..3 {
        journal.append(&records(n..n + 1)).await.expect("durable");
    }
    let truncate = |seq| {
        let file =
            std::fs::OpenOptions::new().write(true).open(place.segment(1, seq)).expect("opened");
        file.set_len(50).expect("truncated");
    };
    truncate(4);
    assert_eq!(place.read().await.expect("read"), records(0..2));
    truncate(3);
    let text = chain(&place.read().await.expect_err("in the middle"));
    assert!(
        text.contains("00000003 is damaged: at byte 32: the segment ends in the middle"),
        "{text}"
    );
}

#[tokio::test]
async fn ten_thousand_rollbacks_leave_a_short_journal() {
    let place = place().await;
    let mut journal = place.open(1, &[]).await;
    let holders: Vec<Slot> = (0..700).map(Slot::pserver).collect();
    let rollback = |count| Record::Restore {
        epoch: Epoch { count, ..Epoch::first(Generation(1)) },
        base: None,
        dir: None,
        phase: PhaseNo(1),
        step: Step(0),
        holders: holders.clone(),
        cause: "pserver-0 was lost".to_owned(),
        at_ms: 0,
    };
    let bytes = serde_json::to_vec(&rollback(0)).expect("JSON").len();
    assert!(10_000 * bytes > SEGMENT_BYTES_MAX, "all of them do not fit a snapshot");
    for batch in 0..100u32 {
        let records: Vec<Record> = (100 * batch..100 * (batch + 1)).map(rollback).collect();
        journal.append(&records).await.expect("appended");
    }
    let found = place.read().await.expect("read");
    assert!(found.len() <= 1 + 100 * SNAPSHOT_EVERY as usize);
    assert_eq!(found.last(), Some(&rollback(9_999)));
    place.open(2, &found).await;
    assert_eq!(place.read().await.expect("read"), [rollback(9_999)]);
}

#[tokio::test]
async fn a_recorded_checkpoint_that_is_gone_stops_the_start() {
    let place = place().await;
    let cut = CutId { generation: Generation(1), number: 4 };
    let commit = Record::Commit {
        cut,
        dir: "/ckpt/g1-c4".to_owned(),
        phase: PhaseNo(0),
        step: Step(9),
        at_ms: 0,
    };
    let history = [record(0), commit, record(1)];
    let error = check_base(&place.dir, &history, None).expect_err("stops");
    assert!(error.to_string().ends_with("checkpoint g1-c4 is recorded and not there"), "{error}");
    check_base(&place.dir, &history, Some(cut)).expect("it is there");
    check_base(&place.dir, &history[..1], None).expect("there never was one");
}

#[tokio::test]
async fn an_empty_directory_has_no_records() {
    let place = place().await;
    assert_eq!(place.read().await.expect("read"), []);
    place.open(1, &[]).await;
    assert_eq!(place.read().await.expect("read"), []);
}

#[tokio::test]
async fn every_record_that_is_sent_is_told_durable_in_order() {
    let place = place().await;
    let journal = place.open(1, &[]).await;
    let (records_in, records_out) = mpsc::unbounded_channel();
    let (events_in, mut events_out) = mpsc::unbounded_channel();
    for n in 0..10 {
        records_in.send((RecordId(n), Box::new(record(n)))).expect("open");
    }
    drop(records_in);
    journal.run(records_out, events_in).await;
    for n in 0..10 {
        match events_out.recv().await {
            Some(Event::RecordDurable { record }) => assert_eq!(record, RecordId(n)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(place.read().await.expect("read"), records(0..10));
    assert_eq!(place.segments(1), 2, "what waits goes into one segment");
}

/// The rows of the n-th table below the journal's heading in `docs/formats.md`.
fn documented(table: usize) -> Vec<(String, String, String)> {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/formats.md");
    let page = std::fs::read_to_string(page).expect("docs/formats.md is there");
    let (_, below) = page.split_once("### Journal\n").expect("the heading is there");
    let tables: Vec<_> = below.split("\n\n").filter(|text| text.starts_with('|')).collect();
    let cells = |line: &str| {
        let mut cells = line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned());
        let mut next = || cells.next().expect("three cells");
        (next(), next(), next())
    };
    tables[table].lines().skip(2).map(cells).collect()
}

#[tokio::test]
async fn a_segment_lies_as_documented() {
    let place = place().await;
    let carried = records(0..1);
    place.open(5, &carried).await;
    let bytes = std::fs::read(place.segment(5, 1)).expect("read");
    let payload = serde_json::to_vec(&carried[0]).expect("JSON");
    let number = |at: usize, len: usize| {
        bytes[at..at + len].iter().rev().fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte))
    };

    let mut at = 0;
    for (offset, len, field) in documented(0) {
        let len = len.parse().expect("a length");
        assert_eq!(offset.parse(), Ok(at), "{field}");
        match field.split([' ', ':', ',']).next().expect("a word") {
            "magic" => {
                assert!(field.contains(std::str::from_utf8(&bytes[at..at + len]).expect("ASCII")))
            }
            "version" => assert_eq!(number(at, len), 1),
            "generation" => assert_eq!(number(at, len), 5),
            "number" if field.ends_with("records") => assert_eq!(number(at, len), 1),
            "number" => assert_eq!(number(at, len), 1),
            "kind" => assert_eq!(number(at, len), 2, "a snapshot"),
            other => panic!("an unknown field {other}"),
        }
        at += len;
    }
    let record = at;
    for (offset, len, field) in documented(1) {
        let place = offset.replace("40+L", &(40 + payload.len()).to_string());
        assert_eq!(place.parse(), Ok(at - record), "{field}");
        let len = if len == "L" { payload.len() } else { len.parse().expect("a length") };
        let found = &bytes[at..at + len];
        match field.split([' ', ':']).next().expect("a word") {
            "L" => assert_eq!(number(at, len), payload.len() as u64),
            "type" => assert_eq!(number(at, len), 1),
            "SHA-256" => assert_eq!(found, [0; 32]),
            "payload" => assert_eq!(found, payload),
            "CRC-32" => assert_eq!(number(at, len), u64::from(crc32fast::hash(&bytes[record..at]))),
            other => panic!("an unknown field {other}"),
        }
        at += len;
    }
    assert_eq!(at, bytes.len());
}
