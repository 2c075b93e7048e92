//! Bytes of a file that is read from start to end.

use bytes::Bytes;

/// Bytes that are read at once, after bytes that were read, as a rule.
const AHEAD_BYTES: u64 = 1 << 20;
/// Bytes that are read at once at another place: what follows them may be skipped.
const FIRST_BYTES: u64 = 64 << 10;

/// The bytes that were read ahead.
#[derive(Debug)]
pub struct ReadAhead {
    start: u64,
    bytes: Bytes,
    ahead_bytes: u64,
}

impl Default for ReadAhead {
    fn default() -> Self {
        Self { start: 0, bytes: Bytes::new(), ahead_bytes: AHEAD_BYTES }
    }
}

impl ReadAhead {
    /// For a reader of several places at once, which reads `most` bytes ahead at all of them: a part of these, as far as it is
    /// enough for a call to a storage.
    #[must_use]
    pub fn within(most: u64, places: usize) -> Self {
        let ahead_bytes = (most / places.max(1) as u64).clamp(FIRST_BYTES, AHEAD_BYTES);
        Self { ahead_bytes, ..Self::default() }
    }

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
        let ahead = if at.is_some() { self.ahead_bytes } else { FIRST_BYTES };
        let wanted = least.max(ahead).min(end - start) - held.len() as u64;
        let more = read(from, wanted as usize)?;
        self.start = start;
        self.bytes = if held.is_empty() { more } else { [&held[..], &more[..]].concat().into() };
        Ok(self.bytes.clone())
    }
}
