//! The file that holds one shard of a checkpoint.
//!
//! ```text
//! offset  bytes  content
//!      0      8  magic "HEDLSHRD"
//!      8      4  version, u32 little-endian
//!     12      4  H: length of the header, u32 little-endian
//!     16      H  header: JSON, see Header
//!             …  zero bytes up to the next multiple of 64
//!                first section, its raw little-endian values
//!             …  zero bytes up to the next multiple of 64
//!                next section, …; the file ends with the zero bytes after the last one
//! ```
//!
//! Sections are aligned so that a reader that maps or reads the file whole finds values where SIMD loads need them.
//! `heddle-shard` defines what the sections mean; this module stores names and lengths. A sparse table is a section of keys
//! beside its values, in the same format.

mod header;
mod identity;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub use header::{
    FormatError, HEADER_BYTES_MAX, SHARD_VERSION, Section, ShardHeader, ShardRows, Table, VALUES,
    Values,
};
pub(crate) use identity::name_other_version;
pub(crate) use read::check_sidecar;
pub use read::{Piece, ShardReader};
pub use write::{SaveError, ShardWriter};
