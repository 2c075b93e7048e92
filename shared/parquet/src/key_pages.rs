//! Pages of texts as pages of the keys of their features: a text of a dictionary is hashed once for the column of a row group.
//!
//! The column is then read as whole numbers of 64 bits, whose pages have the same layout but for the values: levels and
//! indices of the dictionary stay as they are.

use bytes::Bytes;
use heddle_columns::key;
use parquet::basic::Encoding;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::serialized_reader::SerializedPageReader;

use crate::block::NULL_KEY;
use crate::source::ColumnBytes;

/// How texts become keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextKeys {
    /// The seed of the column.
    pub seed: u64,
    /// Texts that stand for a missing value.
    pub null: Vec<Vec<u8>>,
}

impl TextKeys {
    pub(crate) fn key(&self, text: &[u8]) -> u64 {
        if self.null.iter().any(|null| null == text) {
            return NULL_KEY;
        }
        key::of_text(self.seed, text)
    }

    /// The keys of texts in the encoding PLAIN, which are at the end of `values` after `levels` bytes, in the same encoding.
    fn plain(&self, buffer: &[u8], levels: usize, most: u32) -> Result<Bytes> {
        let short = || ParquetError::EOF("a text ends beyond its page".to_owned());
        let (levels, mut rest) = buffer.split_at_checked(levels).ok_or_else(short)?;
        let mut out = levels.to_vec();
        out.reserve(8 * (most as usize).min(rest.len() / 4));
        while let Some((len, text)) = rest.split_first_chunk::<4>() {
            let len = u32::from_le_bytes(*len) as usize;
            let (text, next) = text.split_at_checked(len).ok_or_else(short)?;
            out.extend(self.key(text).to_le_bytes());
            rest = next;
        }
        Ok(out.into())
    }
}

/// The pages of a column of texts.
pub(crate) struct KeyPages {
    pub(crate) pages: SerializedPageReader<ColumnBytes>,
    pub(crate) keys: TextKeys,
    /// Whether pages have repetition levels, and definition levels.
    pub(crate) has_repetitions: bool,
    pub(crate) has_definitions: bool,
}

impl KeyPages {
    fn keys_of(&self, page: Page) -> Result<Page> {
        match page {
            Page::DictionaryPage { buf, num_values, encoding, is_sorted } => {
                let buf = self.keys.plain(&buf, 0, num_values)?;
                Ok(Page::DictionaryPage { buf, num_values, encoding, is_sorted })
            }
            Page::DataPage {
                buf,
                num_values,
                encoding: encoding @ Encoding::PLAIN,
                def_level_encoding,
                rep_level_encoding,
                statistics,
            } => {
                let mut levels = 0;
                let kinds = [
                    (self.has_repetitions, rep_level_encoding),
                    (self.has_definitions, def_level_encoding),
                ];
                for (_, level_encoding) in kinds.into_iter().filter(|(has, _)| *has) {
                    levels += levels_len(&buf, levels, level_encoding)?;
                }
                let buf = self.keys.plain(&buf, levels, num_values)?;
                Ok(Page::DataPage {
                    buf,
                    num_values,
                    encoding,
                    def_level_encoding,
                    rep_level_encoding,
                    statistics,
                })
            }
            Page::DataPageV2 {
                buf,
                num_values,
                encoding: encoding @ Encoding::PLAIN,
                num_nulls,
                num_rows,
                def_levels_byte_len,
                rep_levels_byte_len,
                is_compressed,
                statistics,
            } => {
                let levels = def_levels_byte_len as usize + rep_levels_byte_len as usize;
                let buf = self.keys.plain(&buf, levels, num_values)?;
                Ok(Page::DataPageV2 {
                    buf,
                    num_values,
                    encoding,
                    num_nulls,
                    num_rows,
                    def_levels_byte_len,
                    rep_levels_byte_len,
                    is_compressed,
                    statistics,
                })
            }
            page @ (Page::DataPage { .. } | Page::DataPageV2 { .. }) => match page.encoding() {
                Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY => Ok(page),
                encoding => {
                    let what = format!("the encoding {encoding}, which its metadata does not name");
                    Err(ParquetError::General(what))
                }
            },
        }
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
