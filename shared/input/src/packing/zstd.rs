//! zstd: frames (RFC 8878 §3.1), also skippable ones. The decompressor keeps a window of the text, at most 128 MiB
//! (`ZSTD_WINDOWLOG_LIMIT_DEFAULT`), as the zstd program does.

use ::zstd::zstd_safe::zstd_sys::ZSTD_ErrorCode;
use ::zstd::zstd_safe::{DCtx, ErrorCode, InBuffer, OutBuffer, get_error_name};

use super::parts::{Decoded, PartDecoder};

/// A frame of zstd.
pub struct Zstd(DCtx<'static>);

impl std::fmt::Debug for Zstd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Zstd")
    }
}

impl Default for Zstd {
    fn default() -> Self {
        Self(DCtx::create())
    }
}

impl PartDecoder for Zstd {
    const PACKING: &'static str = "zstd";
    const PART: &'static str = "frame";
    const MAGIC_BYTES: usize = 4;

    fn begins(start: &[u8]) -> bool {
        let magic = start.first_chunk().map(|magic| u32::from_le_bytes(*magic));
        magic.is_some_and(|magic| magic == 0xfd2f_b528 || magic >> 4 == 0x0184_d2a5)
    }

    fn decode(&mut self, packed: &[u8], room: &mut [u8]) -> Result<Decoded, String> {
        let (mut input, mut output) = (InBuffer::around(packed), OutBuffer::around(room));
        let hint = self.0.decompress_stream(&mut output, &mut input).map_err(failed)?;
        Ok(Decoded { taken: input.pos(), written: output.pos(), is_over: hint == 0 })
    }
}

fn failed(code: ErrorCode) -> String {
    let too_large = ZSTD_ErrorCode::ZSTD_error_frameParameter_windowTooLarge as usize;
    if code == 0usize.wrapping_sub(too_large) {
        return "its window is larger than 128 MiB: pack it without --long, or with --long=27"
            .into();
    }
    get_error_name(code).to_owned()
}
