//! Pages of texts as pages of the keys of their features: a text of a dictionary is hashed once for the column of a row group.
//!
//! The column is then read as whole numbers of 64 bits, whose pages have the same layout but for the values: levels and
//! indices of the dictionary stay as they are.

use bytes::Bytes;
use heddle_columns::typed::TextKeys;
use parquet::basic::Encoding;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};

use crate::column_pages::ColumnPages;

/// The keys of texts in the encoding PLAIN, which are at the end of `values` after `levels` bytes, in the same encoding.
fn plain_keys(keys: &TextKeys, buffer: &[u8], levels: usize, most: u32) -> Result<Bytes> {
    let short = || ParquetError::EOF("a text ends beyond its page".to_owned());
    let (levels, mut rest) = buffer.split_at_checked(levels).ok_or_else(short)?;
    let mut out = levels.to_vec();
    out.reserve(8 * (most as usize).min(rest.len() / 4));
    while let Some((len, text)) = rest.split_first_chunk::<4>() {
        let len = u32::from_le_bytes(*len) as usize;
        let (text, next) = text.split_at_checked(len).ok_or_else(short)?;
        out.extend(keys.key(text).to_le_bytes());
        rest = next;
    }
    Ok(out.into())
}

/// The pages of a column of texts.
pub(crate) struct KeyPages {
    pub(crate) pages: ColumnPages,
    pub(crate) keys: TextKeys,
    /// Whether pages have repetition levels, and definition levels.
    pub(crate) has_repetitions: bool,
    pub(crate) has_definitions: bool,
}

impl KeyPages {
    fn keys_of(&self, mut page: Page) -> Result<Page> {
        let levels = match &page {
            Page::DictionaryPage { .. } => 0,
            Page::DataPage { buf, encoding, def_level_encoding, rep_level_encoding, .. }
                if *encoding == Encoding::PLAIN =>
            {
                let repetitions = self.has_repetitions.then_some(rep_level_encoding);
                let mut kinds = repetitions
                    .into_iter()
                    .chain(self.has_definitions.then_some(def_level_encoding));
                kinds.try_fold(0, |at, kind| levels_len(buf, at, *kind).map(|len| at + len))?
            }
            Page::DataPageV2 { encoding, def_levels_byte_len, rep_levels_byte_len, .. }
                if *encoding == Encoding::PLAIN =>
            {
                *def_levels_byte_len as usize + *rep_levels_byte_len as usize
            }
            Page::DataPage { encoding, .. } | Page::DataPageV2 { encoding, .. } => match encoding {
                Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY => return Ok(page),
                encoding => {
                    let what = format!("the encoding {encoding}, which its metadata does not name");
                    return Err(ParquetError::General(what));
                }
            },
        };
        let keys = plain_keys(&self.keys, page.buffer(), levels, page.num_values())?;
        match &mut page {
            Page::DictionaryPage { buf, .. }
            | Page::DataPage { buf, .. }
            | Page::DataPageV2 { buf, .. } => *buf = keys,
        }
        Ok(page)
    }
}

/// Bytes of the levels of a page of version 1 that begin at `at`.
fn levels_len(buffer: &[u8], at: usize, encoding: Encoding) -> Result<usize> {
    if encoding != Encoding::RLE {
        return Err(ParquetError::General(format!("levels in the encoding {encoding}")));
    }
    let len = buffer.get(at..).and_then(<[u8]>::first_chunk::<4>);
    let len = len.ok_or_else(|| ParquetError::EOF("a page without its levels".to_owned()))?;
    Ok(4 + u32::from_le_bytes(*len) as usize)
}

impl Iterator for KeyPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for KeyPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.pages.get_next_page()?;
        page.map(|page| self.keys_of(page)).transpose()
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
