//! The end of a file: its columns and row groups.

use std::ops::Range;

use heddle_columns::typed::TypedColumns;
use parquet::basic::CompressionCodec;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};

use crate::FileError;
use crate::encrypted::EncryptedLeaves;
use crate::types;

/// Bytes at the end of a file that have the footer, as a rule.
pub const TAIL_BYTES: u64 = 64 << 10;
/// The largest footer that is read.
const FOOTER_BYTES_MAX: u64 = 16 << 20;
/// The length of the footer, and `PAR1`.
const END_BYTES: u64 = 8;

const READ_CODECS: [CompressionCodec; 4] = [
    CompressionCodec::UNCOMPRESSED,
    CompressionCodec::SNAPPY,
    CompressionCodec::GZIP,
    CompressionCodec::ZSTD,
];

/// What the end of a file shows.
#[derive(Debug)]
pub struct Footer {
    /// The columns.
    pub columns: TypedColumns,
    /// The row groups, in the order of the file.
    pub groups: Vec<RowGroup>,
    pub(crate) metadata: ParquetMetaData,
    /// Bytes of the file.
    pub(crate) file_bytes: u64,
}

/// Rows whose columns lie beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowGroup {
    /// Its number in the file, from 0.
    pub number: usize,
    /// Number of rows; at least 1.
    pub rows: u64,
    /// Number of rows before it.
    pub rows_before: u64,
    /// Offset of its first byte.
    pub start: u64,
    /// Its length, packed.
    pub bytes: u64,
}

/// Rows of a row group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowRun {
    /// The row group.
    pub group: RowGroup,
    /// The rows, within the group.
    pub rows: Range<u64>,
}

/// How many bytes at the end of a file its footer takes. `tail`: the last bytes of the file, of which there are `file_bytes`.
///
/// # Errors
/// It is not a Parquet file.
pub fn footer_bytes(tail: &[u8], file_bytes: u64) -> Result<u64, FileError> {
    let end = tail.last_chunk::<8>().ok_or_else(not_parquet)?;
    match &end[4..] {
        b"PAR1" => {}
        b"PARE" => return Err(FileError("the file is encrypted, which is not read".to_owned())),
        _ => return Err(not_parquet()),
    }
    let len = u64::from(u32::from_le_bytes([end[0], end[1], end[2], end[3]]));
    if len > FOOTER_BYTES_MAX {
        let most = FOOTER_BYTES_MAX >> 20;
        return Err(FileError(format!(
            "its footer has {len} bytes; footers of at most {most} MiB are read: write files with fewer row groups"
        )));
    }
    let whole = len + END_BYTES;
    if whole + 4 > file_bytes {
        return Err(FileError(format!(
            "its footer has {len} bytes and the file {file_bytes}: it is damaged"
        )));
    }
    Ok(whole)
}

/// Encrypted columns may be without what the decoder needs of each column.
fn not_decoded(encrypted: &EncryptedLeaves, error: &ParquetError) -> FileError {
    if encrypted.leaves.is_empty() {
        return FileError(format!("its footer is damaged: {error}"));
    }
    let names: Vec<String> = encrypted.names.iter().map(|name| format!("{name:?}")).collect();
    let names = names.join(", ");
    FileError(format!(
        "columns of it are encrypted with all that its footer has of them ({names}): write it without encryption"
    ))
}

fn not_parquet() -> FileError {
    FileError("this is not a whole Parquet file: it does not end with PAR1".to_owned())
}

impl Footer {
    /// Of the [bytes](footer_bytes) of the footer, the last of a file of `file_bytes`.
    ///
    /// # Errors
    /// They are damaged.
    pub fn parse(bytes: &[u8], file_bytes: u64) -> Result<Self, FileError> {
        let len = bytes.len() - (END_BYTES as usize).min(bytes.len());
        let encrypted = EncryptedLeaves::find(&bytes[..len]);
        let metadata = ParquetMetaDataReader::decode_metadata(&bytes[..len]);
        let metadata = metadata.map_err(|error| not_decoded(&encrypted, &error))?;
        let data = 4..file_bytes - bytes.len() as u64;
        let (mut groups, mut rows_before) = (Vec::new(), 0u64);
        for number in 0..metadata.num_row_groups() {
            let group = group_of(&metadata, number, rows_before, &data)?;
            rows_before = rows_before.saturating_add(group.rows);
            groups.extend((group.rows > 0).then_some(group));
        }
        groups.sort_by_key(|group| group.start);
        let columns = types::columns(metadata.file_metadata().schema_descr(), &encrypted);
        Ok(Self { columns, groups, metadata, file_bytes })
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.groups.iter().fold(0, |sum, group| sum.saturating_add(group.rows))
    }

    /// The rows whose place is in a range of bytes: row `i` of a group has the place `start + i × bytes ÷ rows`.
    #[must_use]
    pub fn runs(&self, range: Range<u64>) -> Vec<RowRun> {
        let run = |group: &RowGroup| {
            let rows = group.first_row(range.start)..group.first_row(range.end);
            (!rows.is_empty()).then_some(RowRun { group: *group, rows })
        };
        self.groups.iter().filter_map(run).collect()
    }
}

impl RowGroup {
    /// The first row whose place is not below `offset`.
    fn first_row(&self, offset: u64) -> u64 {
        if offset <= self.start {
            return 0;
        }
        if offset >= self.start.saturating_add(self.bytes) {
            return self.rows;
        }
        // The lowest i with i × bytes ÷ rows, rounded down, at least offset − start.
        let product = u128::from(offset - self.start) * u128::from(self.rows);
        (product.div_ceil(u128::from(self.bytes.max(1))) as u64).min(self.rows)
    }
}

/// The row group of this number. `data`: where columns may lie.
fn group_of(
    metadata: &ParquetMetaData,
    number: usize,
    rows_before: u64,
    data: &Range<u64>,
) -> Result<RowGroup, FileError> {
    let damaged = |what: &str| FileError(format!("row group {number} {what}: the file is damaged"));
    let group = metadata.row_group(number);
    let rows = u64::try_from(group.num_rows()).map_err(|_| damaged("has fewer rows than none"))?;
    let (mut start, mut end) = (data.end, data.start);
    for chunk in group.columns() {
        let codec = chunk.compression_codec();
        if !READ_CODECS.contains(&codec) {
            return Err(FileError(format!(
                "its pages are packed with {codec:?}, which is not read: write the file with snappy, gzip or zstd"
            )));
        }
        let first = match chunk.dictionary_page_offset() {
            // Some writers state 0 where it is absent.
            Some(offset) if offset > 0 => offset.min(chunk.data_page_offset()),
            _ => chunk.data_page_offset(),
        };
        let place = u64::try_from(first).ok().zip(u64::try_from(chunk.compressed_size()).ok());
        let (first, len) = place.ok_or_else(|| damaged("has a column at a negative place"))?;
        let last = first.saturating_add(len);
        if first < data.start || last > data.end {
            return Err(damaged("has a column beyond the data of the file"));
        }
        (start, end) = (start.min(first), end.max(last));
    }
    Ok(RowGroup { number, rows, rows_before, start, bytes: end.saturating_sub(start) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_is_in_one_range_however_it_is_cut() {
        for (rows, bytes) in [(1, 1), (7, 3), (3, 7), (1_000, 100_000), (5, 0), (100, 101)] {
            let group = RowGroup { number: 0, rows, rows_before: 0, start: 10, bytes };
            let place = |row: u64| 10 + (row * bytes) / rows;
            for cut in 0..10 + bytes.min(300) + 5 {
                let expected = (0..rows).find(|row| place(*row) >= cut).unwrap_or(rows);
                // Without bytes all rows are at the start.
                assert_eq!(group.first_row(cut), expected, "{rows} rows, {bytes} bytes, {cut}");
            }
        }
    }

    #[test]
    fn ends_of_files_are_checked() {
        let error = |tail: &[u8]| footer_bytes(tail, 100).expect_err("wrong").to_string();
        assert!(error(b"1,2,3\n4,5,6\n").contains("does not end with PAR1"));
        assert!(error(b"PAR1").contains("does not end with PAR1"));
        assert!(error(b"\x01\0\0\0PARE").contains("encrypted"));
        assert!(error(b"\xff\xff\xff\x7fPAR1").contains("at most 16 MiB"));
        assert!(error(b"\x60\0\0\0PAR1").contains("96 bytes and the file 100"));
        assert_eq!(footer_bytes(b"\x10\0\0\0PAR1", 100), Ok(24));
    }
}
