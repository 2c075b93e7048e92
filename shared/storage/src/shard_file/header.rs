//! The prologue and header of a shard file. Pure: bytes in, bytes out.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use heddle_protocol::ids::{CutId, Epoch, PhaseNo, RunId, ShardId, Step, TableId};
use heddle_protocol::job_spec::position::POSITIONS;
use heddle_protocol::job_spec::{TableKind, TableSpec, shard_rows};
use heddle_protocol::manifest::CutIdentity;

/// First bytes of every shard file.
const MAGIC: [u8; 8] = *b"HEDLSHRD";
/// Version that is written, and the highest that is read.
pub const SHARD_VERSION: u32 = 1;
/// Bytes before the header's JSON.
pub(super) const PROLOGUE_BYTES: usize = 16;
/// Longest header that is read. One table with its sections takes some 500 bytes, so this has room
/// for tens of thousands.
pub const HEADER_BYTES_MAX: usize = 16 << 20;
/// Name of the section with a table's parameters. Others hold positions or optimizer state.
pub const VALUES: &str = "values";
/// Sections begin at multiples of this: a cache line, and the widest vector register.
pub(super) const ALIGN: u64 = 64;

/// Type of a section's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Values {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 64 bits: positions of sparse tables.
    U64,
    /// Bytes whose meaning the section's owner defines.
    Bytes,
}

impl Values {
    /// Bytes of one value.
    pub fn size(self) -> u64 {
        match self {
            Self::Bytes => 1,
            Self::F32 | Self::U32 => 4,
            Self::F64 | Self::U64 => 8,
        }
    }
}

/// A run of values in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// Its table; `None` for data of the whole shard (the record of applied steps).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<TableId>,
    /// Its content: `values`, `positions`, a name of optimizer state. Once per table.
    pub name: String,
    /// Type of its values.
    pub values: Values,
    /// Number of values.
    pub count: u64,
}

impl Section {
    /// Its length in the file, without padding.
    pub fn bytes(&self) -> u64 {
        // Checked when the header was read or passed to a writer.
        self.count.saturating_mul(self.values.size())
    }
}

/// The rows of a table that the shard holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum ShardRows {
    /// Rows `first .. first + count` of a dense table.
    Dense {
        /// First row.
        first: u64,
        /// Number of rows.
        count: u64,
    },
    /// The rows of a sparse table whose positions are those of the shard, in the order of their creation; the positions
    /// are a section.
    Sparse {
        /// Number of rows.
        count: u64,
    },
}

impl ShardRows {
    /// Number of rows.
    pub fn count(self) -> u64 {
        match self {
            Self::Dense { count, .. } | Self::Sparse { count } => count,
        }
    }

    /// The rows: of a dense table their numbers in the whole table, of a sparse one from 0.
    pub fn range(self) -> Range<u64> {
        match self {
            // Checked when the header was read.
            Self::Dense { first, count } => first..first.saturating_add(count),
            Self::Sparse { count } => 0..count,
        }
    }
}

/// A table's slice in this shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Its number in the job.
    pub id: TableId,
    /// Its name in the job.
    pub name: String,
    /// Values per row.
    pub cols: u32,
    /// Its rows.
    pub rows: ShardRows,
    /// The optimizer whose state is saved beside the values, by its name in the job file.
    pub optimizer: String,
}

/// The header of a shard file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardHeader {
    /// The run.
    pub run: RunId,
    /// The shard.
    pub shard: ShardId,
    /// How many shards the job has.
    pub shards: u32,
    /// The cut.
    pub cut: CutId,
    /// The epoch of the cut.
    pub epoch: Epoch,
    /// The phase of the shard.
    pub phase: PhaseNo,
    /// BSP: job steps of the phase applied.
    pub step: Step,
    /// Tables, each once.
    pub tables: Vec<Table>,
    /// Sections in the order of the file.
    pub sections: Vec<Section>,
}

/// Why bytes are not a shard file.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// Other first bytes.
    #[error("not a shard file (it begins with {0:02x?})")]
    Magic([u8; 8]),
    /// Written by a later version.
    #[error(
        "shard file version {found} is newer than {SHARD_VERSION}, the newest that this program reads"
    )]
    Newer {
        /// The version in the file.
        found: u32,
    },
    /// Version 0 was never written.
    #[error("shard file version 0 does not exist")]
    VersionZero,
    /// The header would be longer than any that is written.
    #[error("header of {0} bytes (at most {HEADER_BYTES_MAX})")]
    HeaderLength(u64),
    /// The header is not JSON of this form.
    #[error("unreadable header")]
    Header(#[source] serde_json::Error),
    /// The header contradicts itself.
    #[error("header: {0}")]
    Contradiction(String),
    /// The length of the file differs from the length in its header.
    #[error("the header makes the file {expected} bytes long, it has {found}")]
    Length {
        /// According to the header.
        expected: u64,
        /// Length of the file.
        found: u64,
    },
}

/// The first offset at or after `offset` at which a section may begin.
pub(super) fn aligned(offset: u64) -> Option<u64> {
    offset.checked_next_multiple_of(ALIGN)
}

impl ShardHeader {
    /// Checks that tables and sections fit each other.
    ///
    /// # Errors
    /// [`FormatError::Contradiction`].
    pub fn check(&self) -> Result<(), FormatError> {
        let wrong = |what: String| Err(FormatError::Contradiction(what));
        if self.shard.0 >= self.shards {
            return wrong(format!("shard {} of {}", self.shard, self.shards));
        }
        for (index, table) in self.tables.iter().enumerate() {
            if self.tables[..index].iter().any(|other| other.id == table.id) {
                return wrong(format!("table {} twice", table.id));
            }
            if let ShardRows::Dense { first, count } = table.rows
                && first.checked_add(count).is_none()
            {
                return wrong(format!("table {}: no such rows", table.id));
            }
        }
        let mut seen = std::collections::BTreeSet::new();
        for section in &self.sections {
            let shown = format!("section '{}'", section.name);
            if !seen.insert((section.table, section.name.as_str())) {
                return wrong(format!("{shown} twice"));
            }
            if section.count.checked_mul(section.values.size()).is_none() {
                return wrong(format!("{shown} with {} values", section.count));
            }
            let Some(id) = section.table else { continue };
            let Some(table) = self.tables.iter().find(|table| table.id == id) else {
                return wrong(format!("{shown} of table {id}, which is not there"));
            };
            let rows = table.rows.count();
            let expected = match section.name.as_str() {
                VALUES => rows.checked_mul(u64::from(table.cols)),
                POSITIONS => Some(rows),
                _ => continue,
            };
            if expected != Some(section.count) {
                return wrong(format!(
                    "{shown} of table {id} has {} values for {rows} rows of {}",
                    section.count, table.cols
                ));
            }
        }
        Ok(())
    }

    /// What the manifest of its checkpoint has too.
    pub fn identity(&self) -> CutIdentity {
        let Self { run, cut, epoch, shards, .. } = *self;
        CutIdentity { run, cut, epoch, shards }
    }

    /// A table of the job in this file.
    ///
    /// # Errors
    /// The file has another table, or of a dense one the rows of another shard.
    pub fn table_of(&self, spec: &TableSpec) -> Result<&Table, String> {
        let is_of_job = |table: &&Table| {
            let rows_fit = match table.rows {
                ShardRows::Sparse { .. } => spec.kind == TableKind::Sparse,
                ShardRows::Dense { .. } => {
                    let held = shard_rows(spec.rows, self.shard, self.shards);
                    spec.kind == TableKind::Dense && table.rows.range() == held
                }
            };
            rows_fit && (table.id, &table.name, table.cols) == (spec.id, &spec.name, spec.cols)
        };
        let found = self.tables.iter().find(is_of_job);
        found.ok_or_else(|| format!("table {} is not that of the job in the manifest", spec.name))
    }

    /// The section with a plane of a table: its values, its positions or one kind of its optimizer's state.
    ///
    /// # Errors
    /// There is none for all rows of the table.
    pub fn section_of(&self, table: &Table, plane: &str) -> Result<usize, String> {
        let rows = table.rows.count();
        let (values, count) = match plane {
            POSITIONS => (Values::U64, rows),
            _ => (Values::F32, rows.saturating_mul(u64::from(table.cols))),
        };
        let is_plane = |section: &Section| {
            (section.table, &*section.name) == (Some(table.id), plane)
                && (section.values, section.count) == (values, count)
        };
        let found = self.sections.iter().position(is_plane);
        found.ok_or_else(|| format!("it has no '{plane}' of table {}", table.name))
    }

    /// Prologue, header and padding: all bytes before the first section.
    ///
    /// # Errors
    /// The header contradicts itself or is too long.
    pub(super) fn encode(&self) -> Result<Vec<u8>, FormatError> {
        self.check()?;
        let json = serde_json::to_vec(self).map_err(FormatError::Header)?;
        if json.len() > HEADER_BYTES_MAX {
            return Err(FormatError::HeaderLength(json.len() as u64));
        }
        let length = u32::try_from(json.len()).expect("at most HEADER_BYTES_MAX");
        let mut bytes = Vec::with_capacity(PROLOGUE_BYTES + json.len() + ALIGN as usize);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&SHARD_VERSION.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&json);
        bytes.resize(bytes.len().next_multiple_of(ALIGN as usize), 0);
        Ok(bytes)
    }

    /// Parses and checks the JSON.
    pub(super) fn decode(json: &[u8]) -> Result<Self, FormatError> {
        let header: Self = serde_json::from_slice(json).map_err(FormatError::Header)?;
        header.check()?;
        Ok(header)
    }

    /// The offset of the sections, given the length of the header's JSON, and the length of the file.
    pub(super) fn layout(&self, json_bytes: u64) -> Result<(u64, u64), FormatError> {
        let too_long = || FormatError::Contradiction("sections beyond any length".to_owned());
        let start = aligned(PROLOGUE_BYTES as u64 + json_bytes).ok_or_else(too_long)?;
        let mut end = start;
        for section in &self.sections {
            end = end.checked_add(section.bytes()).and_then(aligned).ok_or_else(too_long)?;
        }
        Ok((start, end))
    }
}

/// Parses the prologue; returns the length of the header's JSON.
pub(super) fn decode_prologue(bytes: &[u8; PROLOGUE_BYTES]) -> Result<usize, FormatError> {
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let magic: [u8; 8] = std::array::from_fn(|at| bytes[at]);
    if magic != MAGIC {
        return Err(FormatError::Magic(magic));
    }
    match word(8) {
        0 => return Err(FormatError::VersionZero),
        1..=SHARD_VERSION => {}
        found => return Err(FormatError::Newer { found }),
    }
    let length = word(12);
    if length as usize > HEADER_BYTES_MAX {
        return Err(FormatError::HeaderLength(u64::from(length)));
    }
    Ok(length as usize)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use heddle_protocol::ids::Generation;
    use proptest::prelude::*;
    use uuid::Uuid;

    pub(crate) fn header(shard: u32, shards: u32, rows: u64) -> ShardHeader {
        let section = |table, name: &str, values, count| Section {
            table,
            name: name.to_owned(),
            values,
            count,
        };
        let generation = Generation(1);
        ShardHeader {
            run: RunId(Uuid::from_u128(9)),
            shard: ShardId(shard),
            shards,
            cut: CutId { generation, number: 2 },
            epoch: Epoch::first(generation),
            phase: PhaseNo(0),
            step: Step(7),
            tables: vec![Table {
                id: TableId(0),
                name: "weights".to_owned(),
                cols: 2,
                rows: ShardRows::Dense { first: u64::from(shard) * rows, count: rows },
                optimizer: "ftrl".to_owned(),
            }],
            sections: vec![
                section(Some(TableId(0)), "values", Values::F32, rows * 2),
                section(Some(TableId(0)), "ftrl.z", Values::F32, rows * 2),
                section(None, "marks", Values::Bytes, 5),
            ],
        }
    }

    fn contradiction(change: impl FnOnce(&mut ShardHeader)) -> String {
        let mut wrong = header(0, 2, 10);
        change(&mut wrong);
        assert!(wrong.encode().is_err(), "the writer let it pass");
        let json = serde_json::to_vec(&wrong).expect("JSON");
        ShardHeader::decode(&json).expect_err("refused").to_string()
    }

    #[test]
    fn a_header_reads_back_as_written_and_is_aligned() {
        let header = header(0, 2, 10);
        let bytes = header.encode().expect("encoded");
        assert_eq!(bytes.len() % 64, 0);
        let length = decode_prologue(bytes.first_chunk().expect("long enough")).expect("ours");
        let json = &bytes[PROLOGUE_BYTES..PROLOGUE_BYTES + length];
        assert_eq!(ShardHeader::decode(json).expect("read"), header);
        let start = bytes.len() as u64;
        assert_eq!(header.layout(length as u64).expect("fits"), (start, start + 128 + 128 + 64));
    }

    #[test]
    fn the_first_bytes_of_version_1_are_these() {
        let bytes = header(0, 2, 10).encode().expect("encoded");
        let mut golden = b"HEDLSHRD\x01\0\0\0".to_vec();
        let json = [
            r#"{"run":"00000000-0000-0000-0000-000000000009","shard":0,"shards":2,"#,
            r#""cut":{"generation":1,"number":2},"epoch":{"generation":1,"count":0},"phase":0,"step":7,"#,
            r#""tables":[{"id":0,"name":"weights","cols":2,"#,
            r#""rows":{"kind":"dense","first":0,"count":10},"optimizer":"ftrl"}],"#,
            r#""sections":[{"table":0,"name":"values","values":"f32","count":20},"#,
            r#"{"table":0,"name":"ftrl.z","values":"f32","count":20},"#,
            r#"{"name":"marks","values":"bytes","count":5}]}"#,
        ]
        .concat();
        golden.extend_from_slice(&(json.len() as u32).to_le_bytes());
        golden.extend_from_slice(json.as_bytes());
        assert_eq!(bytes[..golden.len()], golden);
        assert!(bytes[golden.len()..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn contradictions_are_refused() {
        assert_eq!(contradiction(|h| h.shards = 0), "header: shard 0 of 0");
        assert_eq!(contradiction(|h| h.tables.push(h.tables[0].clone())), "header: table 0 twice");
        assert_eq!(
            contradiction(|h| h.sections.push(h.sections[2].clone())),
            "header: section 'marks' twice"
        );
        assert!(
            contradiction(|h| h.sections[0].count = 19).contains("has 19 values for 10 rows of 2")
        );
        assert!(
            contradiction(|h| h.sections[0].table = Some(TableId(3)))
                .contains("table 3, which is not there")
        );
        assert!(contradiction(|h| h.sections[1].count = u64::MAX / 2).contains("ftrl.z"));
        assert!(
            contradiction(|h| h.tables[0].rows = ShardRows::Dense { first: u64::MAX, count: 10 })
                .contains("no such rows")
        );
    }

    #[test]
    fn sections_that_no_file_can_hold_are_refused() {
        let mut huge = header(0, 2, 10);
        huge.sections[2].count = u64::MAX - 10;
        assert!(matches!(huge.layout(100), Err(FormatError::Contradiction(_))));
    }

    #[test]
    fn other_files_and_newer_versions_are_refused() {
        let mut bytes: [u8; 16] = *b"HEDLSHRD\x01\0\0\0\x08\0\0\0";
        assert_eq!(decode_prologue(&bytes).expect("ours"), 8);
        bytes[8] = 3;
        let newer = decode_prologue(&bytes).expect_err("refused").to_string();
        assert_eq!(
            newer,
            "shard file version 3 is newer than 1, the newest that this program reads"
        );
        bytes[8] = 0;
        assert!(matches!(decode_prologue(&bytes), Err(FormatError::VersionZero)));
        bytes[8] = 1;
        bytes[15] = 0xff;
        assert!(matches!(decode_prologue(&bytes), Err(FormatError::HeaderLength(_))));
        bytes[0] = b'X';
        assert!(matches!(decode_prologue(&bytes), Err(FormatError::Magic(_))));
    }

    proptest! {
        #[test]
        fn damaged_headers_never_panic(at in 0usize..700, byte: u8, cut in 0usize..700) {
            let mut json = serde_json::to_vec(&header(0, 2, 10)).expect("JSON");
            let len = json.len();
            json[at % len] = byte;
            if let Ok(header) = ShardHeader::decode(&json) {
                let _ = header.layout(len as u64);
            }
            let _ = ShardHeader::decode(&json[..cut % len]);
        }

        #[test]
        fn any_prologue_is_read_without_panic(bytes: [u8; 16]) {
            let _ = decode_prologue(&bytes);
        }
    }
}
