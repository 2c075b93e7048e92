//! `docs/formats.md` agrees with the code: its tables are read and compared with the encoders.

use std::collections::BTreeMap;
use std::path::Path;

use heddle_protocol::frame::{HEADER_BYTES, Header, Kind, Status, flags};
use heddle_protocol::handshake::{HELLO_BYTES, Hello};
use heddle_protocol::ids::{
    CutId, Epoch, Generation, HandOut, Incarnation, Member, Part, PhaseNo, RunId, ShardId, Slot,
    Step, TableId,
};
use heddle_protocol::metrics::LossSum;

/// The table rows below a heading or sentence that holds `after`, up to the table's end.
fn table(after: &str) -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/formats.md");
    let text = std::fs::read_to_string(path).expect("docs/formats.md is there");
    let (_, below) =
        text.split_once(after).unwrap_or_else(|| panic!("docs/formats.md has no {after:?}"));
    let rows: Vec<Vec<String>> = below
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect())
        .collect();
    assert!(!rows.is_empty(), "no table after {after:?}");
    rows
}

/// Reads a little-endian number at the offset of the table.
fn number(bytes: &[u8], row: &[String]) -> u64 {
    let (at, len) = place(row);
    bytes[at..at + len].iter().rev().fold(0, |sum, byte| (sum << 8) | u64::from(*byte))
}

fn place(row: &[String]) -> (usize, usize) {
    (row[0].parse().expect("an offset"), row[1].parse().expect("a length"))
}

fn is_contiguous(rows: &[Vec<String>], end: usize) {
    let mut at = 0;
    for row in rows {
        let (offset, len) = place(row);
        assert_eq!(offset, at, "gap or overlap before {row:?}");
        at += len;
    }
    assert_eq!(at, end);
}

#[test]
fn the_frame_header_has_the_documented_layout() {
    let header = Header {
        kind: Kind::Push,
        epoch: Epoch { generation: Generation(0x11), count: 0x12 },
        request: 0x13,
        phase: PhaseNo(0x14),
        unit: 0x15,
        step: Step(0x16),
        part: Part(0x17),
        shard: ShardId(0x18),
        table: TableId(0x19),
        flags: flags::LAST,
        rows: 0x1b,
        loss: LossSum::new(f64::from_bits(0x1c)),
        cut: CutId::default(),
        start: 0x1d,
        count: 0x1e,
        status: Status::Later,
        key_bytes: 0x20,
        value_bytes: 0x24,
        hand_out: HandOut { generation: Generation(0x25), count: 0x26 },
    };
    let bytes = header.encode();
    let expected = BTreeMap::from([
        ("version", 6),
        ("kind", 2),
        ("generation", 0x11),
        ("epoch count", 0x12),
        ("request", 0x13),
        ("phase", 0x14),
        ("unit", 0x15),
        ("step", 0x16),
        ("part", 0x17),
        ("shard", 0x18),
        ("table", 0x19),
        ("flags", u64::from(flags::LAST)),
        ("rows", 0x1b),
        ("losses", 0x1c),
        ("start", 0x1d),
        ("count", 0x1e),
        ("status", 2),
        ("0", 0),
        ("key bytes", 0x20),
        ("value bytes", 0x24),
        ("hand-out generation", 0x25),
        ("hand-out count", 0x26),
    ]);
    let rows = table("### Frames");
    is_contiguous(&rows, HEADER_BYTES);
    for row in &rows {
        if row[2].starts_with("magic") {
            assert_eq!(&bytes[..4], b"HDLF");
            continue;
        }
        assert_eq!(number(&bytes, row), expected[row[2].as_str()], "{row:?}");
    }
    assert_eq!(rows.len(), expected.len() + 1);
}

#[test]
fn the_hello_has_the_documented_layout() {
    let hello = Hello {
        run: RunId(uuid::Uuid::from_bytes([0xaa; 16])),
        member: Some(Member { slot: Slot::trainer(0x21), incarnation: Incarnation(0x22) }),
        nonce: [0xbb; 32],
    };
    let bytes = hello.encode();
    let rows = table("Hello:");
    is_contiguous(&rows, HELLO_BYTES);
    assert_eq!(&bytes[..4], b"HDLH");
    let at = |field: &str| {
        rows.iter().find(|row| row[2].starts_with(field)).unwrap_or_else(|| panic!("no {field}"))
    };
    assert_eq!(number(&bytes, at("version")), 4);
    assert_eq!(number(&bytes, at("role")), 2);
    assert_eq!(number(&bytes, at("slot")), 0x21);
    assert_eq!(number(&bytes, at("incarnation")), 0x22);
    for (field, byte) in [("run", 0xaa), ("nonce", 0xbb)] {
        let (from, len) = place(at(field));
        assert!(bytes[from..from + len].iter().all(|found| *found == byte), "{field}");
    }
}

#[test]
fn frame_kinds_flags_and_statuses_match_the_documentation() {
    for row in table("The kinds:") {
        let number = row[1].parse().expect("a number");
        let kind =
            Kind::from_u16(number).unwrap_or_else(|| panic!("{row:?} is not known to the code"));
        assert_eq!(format!("{kind:?}"), row[0]);
    }
    let known = [
        ("KEYS", flags::KEYS),
        ("LAST", flags::LAST),
        ("END", flags::END),
        ("FREE", flags::FREE),
        ("STAGED", flags::STAGED),
        ("DONE", flags::DONE),
        ("EMPTY", flags::EMPTY),
        ("POSITIONS", flags::POSITIONS),
    ];
    let rows = table("| Position | 37 |");
    assert_eq!(rows.len(), known.len());
    for (row, (name, bit)) in rows.iter().zip(known) {
        assert_eq!(row[0], name);
        assert_eq!(1u16 << row[1].parse::<u32>().expect("a bit"), bit, "{row:?}");
    }
    let rows = table("| POSITIONS | 8 |");
    for (expected, row) in rows.iter().enumerate() {
        let number: u16 = row[1].parse().expect("a number");
        assert_eq!(usize::from(number), expected);
        let status =
            Status::from_u16(number).unwrap_or_else(|| panic!("{row:?} is not known to the code"));
        assert_eq!(format!("{status:?}"), row[0]);
    }
    assert_eq!(Status::from_u16(rows.len() as u16), None, "a status is not documented");
}
