//! The beginning of a file, and of a block.

use heddle_columns::typed::TypedColumns;

use crate::codec::Codec;
use crate::schema::AvroSchema;
use crate::wire::Wire;
use crate::{AvroError, BLOCK_BYTES_MAX};

/// The largest header that is read.
pub const HEADER_BYTES_MAX: u64 = 16 << 20;
/// The length of the marker after the header and after each block.
pub const MARKER_BYTES: usize = 16;

const MAGIC: &[u8] = b"Obj\x01";

/// The header of a file.
#[derive(Debug)]
pub struct AvroHeader {
    /// The columns: the fields of its records.
    pub columns: TypedColumns,
    /// Its length. The first block begins there.
    pub bytes: u64,
    /// What follows the header and each block.
    pub marker: [u8; MARKER_BYTES],
    pub(crate) schema: AvroSchema,
    pub(crate) codec: Codec,
}

impl AvroHeader {
    /// Of the first bytes of a file, unless they end within it.
    ///
    /// # Errors
    /// It is not an Avro file, or its schema or codec is not read.
    pub fn parse(start: &[u8]) -> Result<Option<Self>, AvroError> {
        let magic = &start[..start.len().min(MAGIC.len())];
        if magic != &MAGIC[..magic.len()] {
            return Err(AvroError(
                "this is not an Avro file: it does not begin with Obj".to_owned(),
            ));
        }
        let Ok(metadata) = Metadata::parse(start) else { return Ok(None) };
        let Metadata { schema, codec, marker, bytes } = metadata;
        let schema = schema.ok_or_else(|| AvroError("its header has no schema".to_owned()))?;
        let schema = AvroSchema::parse(schema)?;
        let codec = Codec::of_name(codec)?;
        Ok(Some(Self { columns: schema.columns(), bytes, marker, schema, codec }))
    }

    /// Unpacks a block into `records` from `start` on, which they have: at most [`BLOCK_BYTES_MAX`]. Returns where it ends;
    /// bytes after that are room.
    ///
    /// # Errors
    /// It is damaged, or larger.
    pub fn unpack(
        &self,
        packed: &[u8],
        records: &mut Vec<u8>,
        start: usize,
    ) -> Result<usize, AvroError> {
        self.codec.unpack(packed, records, start)
    }
}

/// What a header has.
struct Metadata<'b> {
    schema: Option<&'b [u8]>,
    codec: &'b [u8],
    marker: [u8; MARKER_BYTES],
    bytes: u64,
}

impl<'b> Metadata<'b> {
    /// An error is a header that ends too early.
    fn parse(start: &'b [u8]) -> Result<Self, AvroError> {
        let mut wire = Wire(start);
        wire.take(MAGIC.len())?;
        let (mut schema, mut codec) = (None, &b"null"[..]);
        loop {
            let entries = wire.items()?;
            if entries == 0 {
                break;
            }
            for _ in 0..entries {
                let (key, value) = (wire.text()?, wire.text()?);
                match key {
                    b"avro.schema" => schema = Some(value),
                    b"avro.codec" => codec = value,
                    _ => {}
                }
            }
        }
        let marker = wire.array()?;
        Ok(Self { schema, codec, marker, bytes: (start.len() - wire.0.len()) as u64 })
    }
}

/// The beginning of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHead {
    /// Number of records.
    pub records: u64,
    /// Length of the packed records.
    pub bytes: u64,
    /// Its own length.
    pub head_bytes: usize,
}

impl BlockHead {
    /// Bytes that it takes at the most.
    pub const BYTES_MAX: usize = 20;

    /// Of the first bytes of a block.
    ///
    /// # Errors
    /// It is damaged, or the block is too long.
    pub fn parse(start: &[u8]) -> Result<Self, AvroError> {
        let mut wire = Wire(start);
        let (records, bytes) = (wire.long()?, wire.long()?);
        let sound = u64::try_from(records).ok().zip(u64::try_from(bytes).ok());
        let (records, bytes) =
            sound.ok_or_else(|| AvroError(format!("{records} records in {bytes} bytes")))?;
        if bytes > BLOCK_BYTES_MAX {
            let most = BLOCK_BYTES_MAX >> 20;
            return Err(AvroError(format!("{bytes} bytes; blocks of at most {most} MiB are read")));
        }
        Ok(Self { records, bytes, head_bytes: start.len() - wire.0.len() })
    }
}
