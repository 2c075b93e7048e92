//! Files of text with a record a line: how they are cut, and the records at their beginning.

use std::ops::Range;

use heddle_protocol::manifest::{Compression, InputFile};

use crate::batch::Batch;
use crate::lines::{LineFormat, line_of};

/// Pieces of a file of text: any, if it is not packed.
pub(super) fn line_pieces(file: &InputFile, length: u64) -> Vec<Range<u64>> {
    let pieces = match file.compression {
        Compression::None => file.bytes.div_ceil(length),
        Compression::Gzip => u64::from(file.bytes > 0),
    };
    // 128 bits, since length × pieces may exceed 64.
    let bound = |n: u64| (u128::from(file.bytes) * u128::from(n) / u128::from(pieces)) as u64;
    (0..pieces).map(|n| bound(n)..bound(n + 1)).collect()
}

/// See [`InputFormat::sample`](crate::InputFormat::sample).
pub(super) fn sample_lines(
    lines: &mut dyn LineFormat,
    text: &[u8],
    batch: &mut Batch,
) -> (u64, usize) {
    let (mut records, mut at) = (0, 0);
    while text[at..].contains(&b'\n') {
        let read = lines.read_line(&text[at..], batch);
        let (len, has_record) = read.unwrap_or_else(|_| (line_of(&text[at..]).len(), true));
        at += len;
        records += u64::from(has_record);
    }
    (records, at)
}
