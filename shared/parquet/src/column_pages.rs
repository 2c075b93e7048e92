//! The pages of a column, unpacked. The decoder unpacks all but gzip, which it would do without a limit: a page of 64 MiB may be
//! 64 GiB unpacked, whatever its header states.

use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;
use flate2::bufread::MultiGzDecoder;
use parquet::basic::{Compression, CompressionCodec};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::serialized_reader::SerializedPageReader;

use crate::source::{ColumnBytes, PAGE_BYTES_MAX, check_length};

/// The pages of a column of a row group.
pub(crate) struct ColumnPages {
    /// Packed ones if they are packed with gzip.
    pages: SerializedPageReader<ColumnBytes>,
    is_gzip: bool,
}

impl ColumnPages {
    /// `rows`: of the row group; `locations`: of the pages that are read, if not all of them in their order.
    pub(crate) fn open(
        bytes: ColumnBytes,
        chunk: &ColumnChunkMetaData,
        rows: usize,
        locations: Option<Vec<PageLocation>>,
    ) -> Result<Self> {
        let is_gzip = chunk.compression_codec() == CompressionCodec::GZIP;
        let packed = is_gzip.then(|| {
            chunk.clone().into_builder().set_compression(Compression::UNCOMPRESSED).build()
        });
        let packed = packed.transpose()?;
        let chunk = packed.as_ref().unwrap_or(chunk);
        let pages = SerializedPageReader::new(Arc::new(bytes), chunk, rows, locations)?;
        Ok(Self { pages, is_gzip })
    }
}

/// Unpacks a page that begins with `levels` bytes as they are.
fn unpack(page: &[u8], levels: usize) -> Result<Bytes> {
    let (levels, packed) = page
        .split_at_checked(levels)
        .ok_or_else(|| ParquetError::EOF("a page ends within its levels".to_owned()))?;
    let mut out = levels.to_vec();
    if packed.is_empty() {
        // A page of missing values.
        return Ok(out.into());
    }
    let most = PAGE_BYTES_MAX - levels.len() as u64;
    // Its end has its length, unless it is in several parts or damaged: then the limit is room enough.
    let stated = packed.last_chunk().map_or(0, |end| u64::from(u32::from_le_bytes(*end))).min(most);
    let (mut decoder, mut more) = (MultiGzDecoder::new(packed), [0]);
    out.reserve_exact(stated as usize);
    decoder.by_ref().take(stated).read_to_end(&mut out)?;
    if decoder.read(&mut more)? > 0 {
        out.reserve_exact((most - stated) as usize);
        let mut rest = more.chain(decoder);
        rest.by_ref().take(most - stated).read_to_end(&mut out)?;
        if rest.read(&mut [0])? > 0 {
            check_length(PAGE_BYTES_MAX + 1)?;
        }
    }
    Ok(out.into())
}

impl Iterator for ColumnPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for ColumnPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let mut page = self.pages.get_next_page()?;
        if self.is_gzip {
            match &mut page {
                None | Some(Page::DataPageV2 { is_compressed: false, .. }) => {}
                Some(Page::DictionaryPage { buf, .. } | Page::DataPage { buf, .. }) => {
                    *buf = unpack(buf, 0)?;
                }
                Some(Page::DataPageV2 {
                    buf, def_levels_byte_len, rep_levels_byte_len, ..
                }) => {
                    let levels = *def_levels_byte_len as usize + *rep_levels_byte_len as usize;
                    *buf = unpack(buf, levels)?;
                }
            }
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.pages.at_record_boundary()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression as Level;
    use flate2::write::GzEncoder;

    use super::*;

    fn packed(len: u64) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Level::fast());
        std::io::copy(&mut std::io::repeat(7).take(len), &mut encoder).expect("packed");
        encoder.flush().expect("packed");
        encoder.finish().expect("packed")
    }

    #[test]
    fn pages_of_several_parts_are_unpacked_after_their_levels() {
        let page = [&[1, 2][..], &packed(10), &packed(5)].concat();
        let expected = [&[1, 2][..], &[7; 15]].concat();
        assert_eq!(unpack(&page, 2).expect("sound"), expected);
        assert_eq!(unpack(&[1, 2], 2).expect("no value"), [1, 2][..]);
        assert!(unpack(&[1, 2], 3).is_err());
        assert!(unpack(&page[..page.len() - 1], 2).is_err());
    }

    /// Whatever lengths its header and its end state.
    #[test]
    fn page_takes_no_memory_above_the_limit() {
        assert_eq!(unpack(&packed(PAGE_BYTES_MAX), 0).expect("fits").len() as u64, PAGE_BYTES_MAX);
        let mut page = packed(PAGE_BYTES_MAX + 1);
        for stated in [u32::MAX, 7] {
            let end = page.len() - 4;
            page[end..].copy_from_slice(&stated.to_le_bytes());
            let mut error = None;
            let taken = allocation_counter::measure(|| error = unpack(&page, 0).err());
            let error = error.expect("it is too long").to_string();
            assert!(error.contains("pages of at most 64 MiB are read"), "{error}");
            assert!(taken.bytes_max < 2 * PAGE_BYTES_MAX, "{} bytes", taken.bytes_max);
        }
    }
}
