//! Bytes of a file that is read from start to end.

use bytes::Bytes;

/// Bytes that are read at once.
const AHEAD_BYTES: u64 = 1 << 20;

/// The bytes that were read ahead.
#[derive(Debug, Default)]
pub struct ReadAhead {
    start: u64,
    bytes: Bytes,
}

impl ReadAhead {
    /// The bytes from `start` on: `least` at least, unless `end` comes before. `read`: reads as many bytes from an offset.
    ///
    /// # Errors
    /// The error of `read`.
    pub fn from<E>(
        &mut self,
        start: u64,
        least: usize,
        end: u64,
        read: impl FnOnce(u64, usize) -> Result<Bytes, E>,
    ) -> Result<Bytes, E> {
        let least = (least as u64).min(end.saturating_sub(start));
        let at = start.checked_sub(self.start).filter(|at| *at <= self.bytes.len() as u64);
        let held = at.map_or_else(Bytes::new, |at| self.bytes.slice(at as usize..));
        if held.len() as u64 >= least {
            return Ok(held);
        }
        let from = start + held.len() as u64;
        let wanted = least.max(AHEAD_BYTES).min(end - start) - held.len() as u64;
        let more = read(from, wanted as usize)?;
        self.start = start;
        self.bytes = if held.is_empty() { more } else { [&held[..], &more[..]].concat().into() };
        Ok(self.bytes.clone())
    }
}
