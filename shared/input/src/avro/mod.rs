//! Avro object container files: a thread reads and unpacks blocks ([`pieces`]), another one decodes them ([`blocks`]).

mod blocks;
mod pieces;

use async_trait::async_trait;
use heddle_avro::{
    AvroError, AvroHeader, BlockHead, HEADER_BYTES_MAX, MARKER_BYTES, first_records,
};
use heddle_columns::typed::FirstValue;
use heddle_protocol::manifest::{InputFile, TaskRange};

use crate::error::ReadError;
use crate::record_format::RecordFormat;
use crate::source::RecordSource;
use crate::typed::{FileLayout, StoredFile, TypedFormat, TypedHead, TypedRows};
use blocks::AvroBlocks;
use pieces::in_block;

/// Bytes that have the header, as a rule.
const START_BYTES: u64 = 64 << 10;

/// Avro files. A block belongs to the piece that has the first byte of the marker before it.
pub(crate) struct Avro;

#[async_trait]
impl TypedFormat for Avro {
    fn name(&self) -> &'static str {
        "Avro"
    }

    async fn open_rows(
        &self,
        format: RecordFormat,
        file: &InputFile,
        piece: TaskRange,
    ) -> Result<Box<dyn RecordSource>, ReadError> {
        let table = format.table();
        let stored = StoredFile::find(file)?;
        let header = table.headers.get_or_read(file, header(&stored)).await?;
        let layout = FileLayout::find(&table, &header.columns, format.labels);
        let layout = layout.map_err(|what| stored.unfit(&table, &what))?;
        let blocks = AvroBlocks::new(stored, header, &layout.needed, piece.start..piece.end);
        Ok(Box::new(TypedRows::new(format, layout, Box::new(blocks))))
    }

    async fn head(&self, file: &InputFile) -> Result<TypedHead, ReadError> {
        let stored = StoredFile::find(file)?;
        let header = header(&stored).await?;
        // As many as if all blocks were like the first one.
        let rows = match first_block(&stored, &header).await? {
            None => 0,
            Some(head) => {
                let block = (head.head_bytes + MARKER_BYTES) as u64 + head.bytes;
                let rows = u128::from(head.records) * u128::from(file.bytes - header.bytes);
                u64::try_from(rows / u128::from(block)).unwrap_or(u64::MAX)
            }
        };
        Ok(TypedHead::new(&header.columns, rows, Vec::new()))
    }

    async fn rows(&self, file: &InputFile, most: usize) -> Result<Vec<Vec<FirstValue>>, ReadError> {
        let stored = StoredFile::find(file)?;
        let header = header(&stored).await?;
        let Some(head) = first_block(&stored, &header).await? else { return Ok(Vec::new()) };
        let start = header.bytes + head.head_bytes as u64;
        let left = stored.bytes().saturating_sub(start);
        let packed = stored.read(start, head.bytes.min(left) as usize).await?;
        let rows = first_records(&header, head, &packed, most);
        rows.map_err(|error| in_block(&stored, header.bytes, &error))
    }
}

/// Reads the header of a file.
async fn header(file: &StoredFile) -> Result<AvroHeader, ReadError> {
    for most in [START_BYTES, HEADER_BYTES_MAX] {
        let start = file.read(0, file.bytes().min(most) as usize).await?;
        let parsed = AvroHeader::parse(&start).map_err(|error| file.damaged(&error))?;
        if let Some(header) = parsed {
            return Ok(header);
        }
    }
    let what = if file.bytes() > HEADER_BYTES_MAX {
        format!("its header is damaged, or has more than {} MiB", HEADER_BYTES_MAX >> 20)
    } else {
        "the file ends within its header".to_owned()
    };
    Err(file.damaged(&AvroError(what)))
}

/// The head of the first block, if there is one.
async fn first_block(
    file: &StoredFile,
    header: &AvroHeader,
) -> Result<Option<BlockHead>, ReadError> {
    let left = file.bytes().saturating_sub(header.bytes);
    if left == 0 {
        return Ok(None);
    }
    let start = file.read(header.bytes, left.min(BlockHead::BYTES_MAX as u64) as usize).await?;
    let head = BlockHead::parse(&start);
    head.map(Some).map_err(|error| in_block(file, header.bytes, &error))
}
