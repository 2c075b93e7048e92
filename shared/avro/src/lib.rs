//! Avro object container files (Apache Avro specification 1.12) for tables with columns: each record is a row.
//!
//! An [`AvroHeader`] has the schema of a file as columns, its codec and its sync marker. After it come blocks: a [`BlockHead`]
//! with the numbers of records and bytes, the packed records, the marker. A [`BlockDecoder`] turns [unpacked](UnpackedBlock)
//! blocks into the wanted values of their rows.
//!
//! Bytes come in as slices, so that the crate is free of input and output.

mod builder;
mod codec;
mod decoder;
mod header;
mod schema;
#[cfg(test)]
mod tests;
mod values;
mod wire;

pub use decoder::{BlockDecoder, UnpackedBlock, first_records};
pub use header::{AvroHeader, BlockHead, HEADER_BYTES_MAX, MARKER_BYTES};

/// The largest block that is read, packed and unpacked.
pub const BLOCK_BYTES_MAX: u64 = 64 << 20;

/// Why a file cannot be read. The file is the caller's to name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AvroError(pub String);
