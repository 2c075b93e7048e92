//! Several streams side by side.

use crate::{Block, LANES_MAX, Md5Stream};

/// Appends whole blocks to several streams: the same number of blocks to each. Up to [`LANES_MAX`] streams run side by
/// side if the processor has AVX2; otherwise, and for one stream alone, they go through the `md-5` crate.
///
/// # Panics
/// If the slices differ in length, or if a stream has [buffered](Md5Stream::buffered) bytes.
pub fn update_together(streams: &mut [(&mut Md5Stream, &[Block])]) {
    let Some(blocks) = streams.first().map(|(_, blocks)| blocks.len()) else { return };
    let fits = |(stream, data): &(&mut Md5Stream, &[Block])| {
        stream.buffered() == 0 && data.len() == blocks
    };
    assert!(streams.iter().all(fits), "streams must take equally many blocks at a block boundary");
    streams.chunks_mut(LANES_MAX).for_each(update_group);
}

/// Appends blocks to at most [`LANES_MAX`] streams.
fn update_group(streams: &mut [(&mut Md5Stream, &[Block])]) {
    #[cfg(target_arch = "x86_64")]
    if streams.len() > 1 && is_x86_feature_detected!("avx2") {
        // SAFETY: the line above detects AVX2, the only feature that the function requires.
        #[expect(unsafe_code, reason = "Rust has no safe call of a function for some processors")]
        unsafe {
            crate::avx2::update(streams);
        }
        return;
    }
    streams.iter_mut().for_each(|(stream, blocks)| stream.update_blocks(blocks));
}
