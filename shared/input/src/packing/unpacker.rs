//! What unpacks a file piece by piece, and its errors.

use std::fmt::Debug;

/// A step ends when it has unpacked this number of bytes. A chunk of snappy, which cannot be divided, may exceed it up
/// to 64 MiB.
pub const TEXT_STEP: usize = 256 << 10;

/// Why a file is not of its packing to its end.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnpackError {
    /// A part is damaged, or the file ends within it.
    #[error("not a sound {packing} file: {what} (in the {part} at byte {at})")]
    Damaged {
        /// Name of the packing.
        packing: &'static str,
        /// What the packing calls its parts.
        part: &'static str,
        /// Offset of the part.
        at: u64,
        /// What is wrong with it.
        what: String,
    },
    /// Other bytes than zeros come after the last part.
    #[error("bytes after the last {packing} {part}, at byte {at}")]
    Trailing {
        /// Name of the packing.
        packing: &'static str,
        /// What the packing calls its parts.
        part: &'static str,
        /// Offset of the first of them that is not zero.
        at: u64,
    },
}

/// Of a part that the file's end cuts off.
pub const CUT_OFF: &str = "the file ends within it";

/// Unpacks a file from its beginning to its end.
pub trait Unpacker: Debug + Send {
    /// Unpacks the next bytes of the file and removes them from the front of `packed`, until it is empty or [`TEXT_STEP`] bytes
    /// are appended to `text`. Returns whether it needs further bytes; otherwise it continues with the same ones.
    ///
    /// # Errors
    /// See [`UnpackError`].
    fn step(&mut self, packed: &mut &[u8], text: &mut Vec<u8>) -> Result<bool, UnpackError>;

    /// Checks that the file may end here.
    ///
    /// # Errors
    /// See [`UnpackError`].
    fn finish(&self) -> Result<(), UnpackError>;
}
