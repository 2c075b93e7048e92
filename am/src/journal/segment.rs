//! The bytes of one journal segment. Pure.
//!
//! ```text
//! offset  bytes  content (all numbers little-endian)
//!      0      8  magic "HEDLJRNL"
//!      8      4  version
//!     12      4  generation
//!     16      8  sequence number, from 1
//!     24      4  kind: 1 records, 2 snapshot (all records that still matter; readers may begin here)
//!     28      4  number of records
//! then each record:
//!      0      4  L: length of the payload
//!      4      4  type: 1 JSON
//!      8     32  SHA-256 of the whole record before it, in this segment or the one before; of the
//!                first record of a journal and of a snapshot: zero bytes
//!     40      L  payload
//!   40+L      4  CRC-32 (IEEE) of all bytes of the record before this
//! ```

use heddle_protocol::ids::Generation;
use sha2::{Digest as _, Sha256};

/// First bytes of every segment.
const MAGIC: [u8; 8] = *b"HEDLJRNL";
/// Version that is written, and the highest that is read.
pub const JOURNAL_VERSION: u32 = 1;
/// Bytes before the first record.
const HEADER_BYTES: usize = 32;
/// Bytes of a record besides its payload.
const FRAME_BYTES: usize = 44;
/// The one type of record there is.
const TYPE_JSON: u32 = 1;
/// Longest payload: an outcome with a long message takes some kilobytes.
const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// Longest segment. A snapshot is some kilobytes and the map of shards once, a record less than [`PAYLOAD_BYTES_MAX`].
pub(super) const SEGMENT_BYTES_MAX: usize = 64 << 20;

/// SHA-256 of a record; what the next one refers to.
pub(super) type Link = [u8; 32];
/// What the first record of a chain refers to.
pub(super) const START: Link = [0; 32];

/// What a segment holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Records that follow those of the segment before.
    Records,
    /// All records so far that still matter.
    Snapshot,
}

/// A decoded segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub kind: Kind,
    /// What its first record refers to; `None` without records.
    pub after: Option<Link>,
    /// The records' payloads.
    pub payloads: Vec<Vec<u8>>,
    /// What the next segment's first record has to refer to.
    pub last: Link,
}

/// Why bytes are no segment, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset}: {what}")]
pub struct SegmentError {
    /// Where the record (or the header: 0) begins that is wrong.
    pub offset: usize,
    /// What is wrong with it.
    pub what: Flaw,
}

/// What is wrong with a segment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// It ends in the middle.
    #[error("the segment ends in the middle")]
    Partial,
    /// Other first bytes.
    #[error("not a journal segment")]
    Magic,
    /// A later version.
    #[error(
        "format version {0} is newer than {JOURNAL_VERSION}, the newest that this program reads"
    )]
    Newer(u32),
    /// It is of another generation or number than its name says.
    #[error("it says that it is segment {found}, expected {expected}")]
    Name {
        /// By its path.
        expected: String,
        /// By its content.
        found: String,
    },
    /// A number that no writer writes.
    #[error("{0}")]
    Value(String),
    /// The checksum is wrong.
    #[error("the CRC-32 is {found:08x}, expected {expected:08x}")]
    Crc {
        /// What the record says.
        expected: u32,
        /// What its bytes give.
        found: u32,
    },
    /// It does not follow the record before it.
    #[error("the record does not follow the one before it")]
    Chain,
}

/// Why records cannot be written: one is longer than any reader takes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a journal record of {0} bytes is too long (at most {PAYLOAD_BYTES_MAX})")]
pub struct TooLong(usize);

/// A segment's bytes, and what the next segment's first record refers to.
pub(super) fn encode(
    generation: Generation,
    seq: u64,
    kind: Kind,
    after: Link,
    payloads: &[Vec<u8>],
) -> Result<(Vec<u8>, Link), TooLong> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&JOURNAL_VERSION.to_le_bytes());
    bytes.extend_from_slice(&generation.0.to_le_bytes());
    bytes.extend_from_slice(&seq.to_le_bytes());
    let kind: u32 = match kind {
        Kind::Records => 1,
        Kind::Snapshot => 2,
    };
    bytes.extend_from_slice(&kind.to_le_bytes());
    let count = u32::try_from(payloads.len()).map_err(|_| TooLong(payloads.len()))?;
    bytes.extend_from_slice(&count.to_le_bytes());
    let mut link = after;
    for payload in payloads {
        if payload.len() > PAYLOAD_BYTES_MAX {
            return Err(TooLong(payload.len()));
        }
        let start = bytes.len();
        let length = u32::try_from(payload.len()).expect("at most PAYLOAD_BYTES_MAX");
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&TYPE_JSON.to_le_bytes());
        bytes.extend_from_slice(&link);
        bytes.extend_from_slice(payload);
        let crc = crc32fast::hash(&bytes[start..]);
        bytes.extend_from_slice(&crc.to_le_bytes());
        link = Sha256::digest(&bytes[start..]).into();
    }
    if bytes.len() > SEGMENT_BYTES_MAX {
        return Err(TooLong(bytes.len()));
    }
    Ok((bytes, link))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.first_chunk().map(|four| u32::from_le_bytes(*four))
}

/// Reads the segment that lies under the name of this generation and number.
pub(super) fn decode(
    bytes: &[u8],
    generation: Generation,
    seq: u64,
) -> Result<Segment, SegmentError> {
    let at = |offset, what| Err(SegmentError { offset, what });
    // A writer that died, or a power loss, leaves a short file or one of zero bytes.
    if bytes.len() < HEADER_BYTES || bytes.iter().all(|byte| *byte == 0) {
        return at(0, Flaw::Partial);
    }
    if bytes[..8] != MAGIC {
        return at(0, Flaw::Magic);
    }
    let word = |at| u32_at(bytes, at).unwrap_or_default();
    match word(8) {
        0 => return at(0, Flaw::Value("version 0 was never written".to_owned())),
        1..=JOURNAL_VERSION => {}
        newer => return at(0, Flaw::Newer(newer)),
    }
    let found_seq = u64::from(word(16)) | u64::from(word(20)) << 32;
    if (Generation(word(12)), found_seq) != (generation, seq) {
        let expected = format!("{seq} of {generation}");
        let found = format!("{found_seq} of {}", Generation(word(12)));
        return at(0, Flaw::Name { expected, found });
    }
    let kind = match word(24) {
        1 => Kind::Records,
        2 => Kind::Snapshot,
        other => return at(0, Flaw::Value(format!("unknown kind {other}"))),
    };
    let (mut offset, mut payloads) = (HEADER_BYTES, Vec::new());
    let (mut after, mut last) = (None, START);
    // The count is believed only as far as there are bytes: nothing is allocated by it.
    for _ in 0..word(28) {
        let (Some(length), Some(kind)) = (u32_at(bytes, offset), u32_at(bytes, offset + 4)) else {
            return at(offset, Flaw::Partial);
        };
        let length = length as usize;
        if length > PAYLOAD_BYTES_MAX {
            return at(offset, Flaw::Value(format!("a payload of {length} bytes")));
        }
        let Some(record) = bytes.get(offset..offset + FRAME_BYTES + length) else {
            return at(offset, Flaw::Partial);
        };
        let (body, crc) = record.split_at(record.len() - 4);
        let expected = u32_at(crc, 0).unwrap_or_default();
        let found = crc32fast::hash(body);
        if found != expected {
            return at(offset, Flaw::Crc { expected, found });
        }
        if kind != TYPE_JSON {
            return at(offset, Flaw::Value(format!("unknown record type {kind}")));
        }
        let link: Link = *body[8..].first_chunk().expect("the frame is longer than a link");
        match after {
            None => after = Some(link),
            Some(_) if link != last => return at(offset, Flaw::Chain),
            Some(_) => {}
        }
        payloads.push(body[40..].to_vec());
        last = Sha256::digest(record).into();
        offset += record.len();
    }
    if offset != bytes.len() {
        let more = bytes.len() - offset;
        return at(offset, Flaw::Value(format!("{more} bytes after the last record")));
    }
    if kind == Kind::Snapshot && after.is_some_and(|after| after != START) {
        return at(HEADER_BYTES, Flaw::Chain);
    }
    Ok(Segment { kind, after, payloads, last })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const G: Generation = Generation(3);

    fn sample() -> (Vec<u8>, Link) {
        encode(G, 5, Kind::Records, [7; 32], &[b"one".to_vec(), b"".to_vec(), b"three".to_vec()])
            .expect("short")
    }

    #[test]
    fn a_segment_reads_back_as_written() {
        let (bytes, last) = sample();
        let segment = decode(&bytes, G, 5).expect("read");
        assert_eq!(segment.payloads, [b"one".to_vec(), b"".to_vec(), b"three".to_vec()]);
        assert_eq!((segment.after, segment.last), (Some([7; 32]), last));
        assert_eq!(segment.kind, Kind::Records);
    }

    #[test]
    fn the_bytes_of_version_1_are_these() {
        let (bytes, _) =
            encode(Generation(2), 1, Kind::Snapshot, START, &[b"{}".to_vec()]).expect("short");
        let mut golden =
            b"HEDLJRNL\x01\0\0\0\x02\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\x01\0\0\0".to_vec();
        golden.extend_from_slice(b"\x02\0\0\0\x01\0\0\0");
        golden.extend_from_slice(&[0; 32]);
        golden.extend_from_slice(b"{}");
        let crc = crc32fast::hash(&golden[32..]);
        golden.extend_from_slice(&crc.to_le_bytes());
        assert_eq!(bytes, golden);
    }

    #[test]
    fn every_truncation_is_partial() {
        let (bytes, _) = sample();
        for end in 0..bytes.len() {
            let error = decode(&bytes[..end], G, 5).expect_err("short");
            assert_eq!(error.what, Flaw::Partial, "{end} bytes");
        }
        assert_eq!(decode(&[0; 100], G, 5).expect_err("zeros").what, Flaw::Partial);
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let (bytes, _) = sample();
        for at in 0..bytes.len() * 8 {
            let mut wrong = bytes.clone();
            wrong[at / 8] ^= 1 << (at % 8);
            assert!(decode(&wrong, G, 5).is_err(), "bit {at}");
        }
    }

    #[test]
    fn a_flaw_is_named_with_its_offset() {
        let (mut bytes, _) = sample();
        let second = HEADER_BYTES + FRAME_BYTES + 3;
        bytes[second + 9] ^= 1;
        let error = decode(&bytes, G, 5).expect_err("flipped");
        assert!(
            error.to_string().starts_with(&format!("at byte {second}: the CRC-32 is")),
            "{error}"
        );
    }

    #[test]
    fn a_segment_under_another_name_is_refused() {
        let (bytes, _) = sample();
        let error = decode(&bytes, G, 6).expect_err("other number").to_string();
        assert_eq!(error, "at byte 0: it says that it is segment 5 of g3, expected 6 of g3");
        assert!(decode(&bytes, Generation(4), 5).is_err());
    }

    #[test]
    fn records_from_another_chain_are_refused() {
        let (one, _) = encode(G, 5, Kind::Records, [1; 32], &[b"a".to_vec()]).expect("short");
        let (two, _) = encode(G, 5, Kind::Records, [2; 32], &[b"b".to_vec()]).expect("short");
        let mut spliced = one;
        spliced[28] = 2;
        spliced.extend_from_slice(&two[HEADER_BYTES..]);
        assert_eq!(decode(&spliced, G, 5).expect_err("spliced").what, Flaw::Chain);
    }

    #[test]
    fn a_later_version_is_refused_naming_both() {
        let (mut bytes, _) = sample();
        bytes[8] = 4;
        let error = decode(&bytes, G, 5).expect_err("newer").to_string();
        assert!(error.contains("format version 4 is newer than 1"), "{error}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>, at in 0usize..200, byte: u8) {
            let _ = decode(&bytes, G, 5);
            let (mut near, _) = sample();
            let len = near.len();
            near[at % len] = byte;
            let _ = decode(&near, G, 5);
        }
    }
}
