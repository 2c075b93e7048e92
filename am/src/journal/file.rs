//! The bytes of one journal file. Pure.
//!
//! A file is one JSON object with all records that still matter, so that a reader needs no other file:
//!
//! ```json
//! {"format_version": 2, "generation": 3, "number": 42, "records": [{"record": "claim", …}, …]}
//! ```
//!
//! | version | change |
//! | --- | --- |
//! | 1 | binary segments that a reader joins; not read any more |
//! | 2 | one self-contained JSON file for each write, with an MD5 sidecar |

use heddle_am_core::Record;
use heddle_protocol::ids::Generation;
use heddle_protocol::manifest::Md5;
use heddle_storage::SidecarError;
use md5::Digest as _;
use serde::{Deserialize, Serialize};

/// Version that is written, and read.
pub const JOURNAL_VERSION: u32 = 2;
/// Longest file. Its records are some kilobytes, the shard map once, and 200 bytes for each evaluation.
pub(super) const FILE_BYTES_MAX: usize = 64 << 20;
/// What a file's name ends in.
const SUFFIX: &str = ".json";

/// Why bytes are not the journal file that their name promises.
#[derive(Debug, thiserror::Error)]
pub enum Flaw {
    /// The file's MD5 is not the sidecar's.
    #[error("its MD5 is {found}, expected {expected} as in its sidecar")]
    Sum {
        /// The sidecar's.
        expected: String,
        /// The file's.
        found: String,
    },
    /// The sidecar is malformed.
    #[error(transparent)]
    Sidecar(#[from] SidecarError),
    /// It is a directory or device, or has more bytes than any journal file.
    #[error("it must be a regular file of at most {FILE_BYTES_MAX} bytes")]
    Shape,
    /// Not the JSON of a journal file.
    #[error("it is not the JSON of a journal file")]
    Json(#[from] serde_json::Error),
    /// Another version.
    #[error("its format version is {0}, this program reads {JOURNAL_VERSION} only")]
    Version(u32),
    /// It is of another generation or number than its name has.
    #[error("it is number {found}, expected {expected}")]
    Name {
        /// By its path.
        expected: String,
        /// By its content.
        found: String,
    },
}

/// Why records cannot be written: no reader accepts a file of this size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the journal file has {0} bytes and must have at most {FILE_BYTES_MAX}")]
pub struct TooLong(usize);

#[derive(Serialize)]
struct FileOut<'a> {
    format_version: u32,
    generation: Generation,
    number: u64,
    records: &'a [Record],
}

#[derive(Deserialize)]
struct FileIn {
    generation: Generation,
    number: u64,
    records: Vec<Record>,
}

#[derive(Deserialize)]
struct JournalVersion {
    format_version: u32,
}

/// The name of the file with this number, from 1.
pub(super) fn name(number: u64) -> String {
    format!("{number:08}{SUFFIX}")
}

/// The number in a file's name.
pub(super) fn number_of(file: &str) -> Option<u64> {
    let number = file.strip_suffix(SUFFIX)?.parse().ok().filter(|number| *number > 0)?;
    (name(number) == file).then_some(number)
}

/// Whether a segment of version 1 has the name.
pub(super) fn is_segment_of_version_1(file: &str) -> bool {
    file.len() >= 8 && file.bytes().all(|byte| byte.is_ascii_digit())
}

/// The sum of a file's bytes.
pub(super) fn sum(bytes: &[u8]) -> Md5 {
    Md5(md5::Md5::digest(bytes).into())
}

/// A file's bytes.
pub(super) fn encode(
    generation: Generation,
    number: u64,
    records: &[Record],
) -> Result<Vec<u8>, TooLong> {
    let file = FileOut { format_version: JOURNAL_VERSION, generation, number, records };
    let bytes = serde_json::to_vec(&file).expect("records are plain data with text keys");
    if bytes.len() > FILE_BYTES_MAX {
        return Err(TooLong(bytes.len()));
    }
    Ok(bytes)
}

/// The records of the file with this generation and number.
pub(super) fn decode(
    bytes: &[u8],
    generation: Generation,
    number: u64,
) -> Result<Vec<Record>, Flaw> {
    let JournalVersion { format_version } = serde_json::from_slice(bytes)?;
    if format_version != JOURNAL_VERSION {
        return Err(Flaw::Version(format_version));
    }
    let file: FileIn = serde_json::from_slice(bytes)?;
    if (file.generation, file.number) != (generation, number) {
        return Err(Flaw::Name {
            expected: format!("{number} of {generation}"),
            found: format!("{} of {}", file.number, file.generation),
        });
    }
    Ok(file.records)
}

#[cfg(test)]
mod tests {
    use heddle_protocol::view::SetBy;
    use proptest::prelude::*;

    use super::*;

    const G: Generation = Generation(3);

    fn sample() -> Vec<u8> {
        let records = [Record::Scaled {
            trainers: 2,
            pservers: None,
            set_by: SetBy::Operator,
            generation: 0,
            at_ms: 7,
        }];
        encode(G, 5, &records).expect("short")
    }

    #[test]
    fn the_bytes_of_version_2_are_these() {
        assert_eq!(
            String::from_utf8(sample()).expect("UTF-8"),
            "{\"format_version\":2,\"generation\":3,\"number\":5,\
             \"records\":[{\"record\":\"scaled\",\"trainers\":2,\
             \"set_by\":\"operator\",\"generation\":0,\"at_ms\":7}]}"
        );
    }

    #[test]
    fn file_reads_back_as_written() {
        let records = decode(&sample(), G, 5).expect("read");
        assert_eq!(
            records,
            [Record::Scaled {
                trainers: 2,
                pservers: None,
                set_by: SetBy::Operator,
                generation: 0,
                at_ms: 7,
            }]
        );
    }

    #[test]
    fn every_truncation_is_an_error() {
        let bytes = sample();
        for end in 0..bytes.len() {
            assert!(decode(&bytes[..end], G, 5).is_err(), "{end} bytes");
        }
    }

    #[test]
    fn file_under_another_name_is_refused() {
        let error = decode(&sample(), G, 6).expect_err("other number").to_string();
        assert_eq!(error, "it is number 5 of g3, expected 6 of g3");
        assert!(decode(&sample(), Generation(4), 5).is_err());
    }

    #[test]
    fn another_version_is_refused_naming_both() {
        let error = decode(b"{\"format_version\":3}", G, 5).expect_err("newer").to_string();
        assert_eq!(error, "its format version is 3, this program reads 2 only");
    }

    #[test]
    fn names_have_a_number_of_at_least_eight_digits() {
        assert_eq!(number_of("00000042.json"), Some(42));
        assert_eq!(number_of("123456789.json"), Some(123_456_789));
        for other in ["42.json", "00000000.json", "00000042", "00000042.json.md5", ".00000042.json"]
        {
            assert_eq!(number_of(other), None, "{other}");
        }
        assert!(is_segment_of_version_1("00000042"));
        assert!(!is_segment_of_version_1("00000042.json"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>, at in 0usize..200, byte: u8) {
            let _ = decode(&bytes, G, 5);
            let mut changed = sample();
            let len = changed.len();
            changed[at % len] = byte;
            let _ = decode(&changed, G, 5);
        }
    }
}
