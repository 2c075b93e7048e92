//! The beginning of a packed file from arbitrary bytes, the first of which chooses the packing.
#![no_main]

use heddle_input::{compression_of, unpack_beginning};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, packed)) = bytes.split_first() else { return };
    let suffixes = [".gz", ".zst", ".bz2", ".snappy"];
    let compression = compression_of(suffixes[usize::from(*first) % suffixes.len()]);
    let text = unpack_beginning(compression, packed);
    assert!(text.len() <= 128 << 20);
});
