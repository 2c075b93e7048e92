//! The pages of a column in a run of rows, by the file's index of them (`OffsetIndex` of the format, which Spark and others
//! write): those before the run and after it are not read.

use std::ops::Range;

use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::page_index::index_reader::decode_offset_index;
use parquet::file::page_index::offset_index::PageLocation;

use crate::FileError;
use crate::source::ReadAt;

/// The longest index that is read: of 40,000 pages.
const INDEX_BYTES_MAX: usize = 1 << 20;

/// The pages of a column up to the end of a run, and where they end.
pub(crate) struct PagesOfRun {
    pub(crate) locations: Vec<PageLocation>,
    pub(crate) end: u64,
}

impl PagesOfRun {
    /// Of `rows`, a part of the `all` rows of the row group, in a file of `file_bytes`. `None` without such an index that
    /// fits the column: its pages are then found in their order.
    pub(crate) fn find(
        file: &dyn ReadAt,
        file_bytes: u64,
        chunk: &ColumnChunkMetaData,
        rows: &Range<u64>,
        all: u64,
    ) -> Result<Option<Self>, FileError> {
        let place = || {
            let offset = u64::try_from(chunk.offset_index_offset()?).ok()?;
            let len = usize::try_from(chunk.offset_index_length()?).ok()?;
            let fits = len <= INDEX_BYTES_MAX && offset.checked_add(len as u64)? <= file_bytes;
            fits.then_some(offset..offset + len as u64)
        };
        let Some(place) = place().filter(|_| *rows != (0..all)) else {
            return Ok(None);
        };
        let read = file.read_at(place.start, (place.end - place.start) as usize);
        let bytes = read.map_err(|error| FileError(format!("its index of pages: {error}")))?;
        let Ok(index) = decode_offset_index(&bytes) else { return Ok(None) };
        let (start, len) = chunk.byte_range();
        Ok(pages_of(index.page_locations(), start..start + len, rows.end, all))
    }
}

/// The pages before the row `end`. `column`: where its pages lie; `all`: its rows.
fn pages_of(
    locations: &[PageLocation],
    column: Range<u64>,
    end: u64,
    all: u64,
) -> Option<PagesOfRun> {
    let (mut at, mut row) = (column.start, 0);
    for (number, page) in locations.iter().enumerate() {
        let first_row = u64::try_from(page.first_row_index).ok()?;
        let offset = u64::try_from(page.offset).ok()?;
        let len = u64::try_from(page.compressed_page_size).ok().filter(|len| *len > 0)?;
        let follows = if number == 0 { first_row == 0 } else { first_row > row };
        if !follows || first_row >= all || offset < at {
            return None;
        }
        (at, row) = (offset.checked_add(len)?, first_row);
    }
    if at > column.end || locations.is_empty() {
        return None;
    }
    let own = locations.iter().take_while(|page| page.first_row_index.cast_unsigned() < end);
    let own: Vec<PageLocation> = own.cloned().collect();
    let last = own.last()?;
    let end = last.offset.cast_unsigned() + u64::from(last.compressed_page_size.cast_unsigned());
    Some(PagesOfRun { locations: own, end })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_end_with_the_run_if_their_index_fits() {
        let page = |offset, compressed_page_size, first_row_index| PageLocation {
            offset,
            compressed_page_size,
            first_row_index,
        };
        let pages = [page(110, 50, 0), page(160, 40, 10), page(200, 100, 25)];
        let find = |pages: &[PageLocation], end| pages_of(pages, 100..300, end, 30);
        for (end, expected) in [(1, (1, 160)), (10, (1, 160)), (11, (2, 200)), (30, (3, 300))] {
            let found = find(&pages, end).expect("it fits");
            assert_eq!((found.locations.len(), found.end), expected, "{end}");
        }
        for (number, wrong) in [
            (0, page(110, 50, 1)),
            (0, page(90, 50, 0)),
            (1, page(150, 40, 10)),
            (1, page(160, 0, 10)),
            (1, page(160, -1, 10)),
            (1, page(160, 40, 25)),
            (2, page(200, 101, 25)),
            (2, page(200, 100, 30)),
            (2, page(200, 100, -1)),
        ] {
            let mut pages = pages.clone();
            pages[number] = wrong;
            assert!(find(&pages, 30).is_none(), "{pages:?}");
        }
        assert!(find(&[], 30).is_none());
    }
}
