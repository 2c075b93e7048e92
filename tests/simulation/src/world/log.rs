//! The event log of a run: a hash of everything that happened in order, and its words where they are wanted.

use std::fmt::{self, Write};

/// FNV-1a, 64 bits (Fowler, Noll, Vo): the same on every machine and in every process.
const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

/// What happened so far.
pub(super) struct Log {
    hash: u64,
    lines: Option<Vec<String>>,
    is_on: bool,
}

impl Log {
    pub(super) fn new() -> Self {
        Self { hash: FNV_START, lines: None, is_on: true }
    }

    /// Remembers the words too, from now on.
    pub(super) fn keep_lines(&mut self) {
        self.lines = Some(Vec::new());
    }

    /// Ends the log: to write it takes a tenth of a run.
    pub(super) fn end(&mut self) {
        self.is_on = false;
    }

    pub(super) fn keeps_lines(&self) -> bool {
        self.lines.is_some()
    }

    pub(super) fn append(&mut self, more: Vec<String>) {
        self.lines.get_or_insert_default().extend(more);
    }

    pub(super) fn take_lines(&mut self) -> Vec<String> {
        self.lines.take().unwrap_or_default()
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn note(&mut self, event: u64, now_ms: u64, what: fmt::Arguments<'_>) {
        if !self.is_on {
            return;
        }
        let mut sink = Sink(self.hash);
        sink.bytes(&event.to_le_bytes());
        sink.bytes(&now_ms.to_le_bytes());
        // A sink takes everything.
        let _written = sink.write_fmt(what);
        self.hash = sink.0;
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{event:>6} {now_ms:>8} ms  {what}"));
        }
    }
}

struct Sink(u64);

impl Sink {
    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(FNV_PRIME);
        }
    }
}

impl Write for Sink {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.bytes(text.as_bytes());
        Ok(())
    }
}

/// The beginning of a message in words: enough to tell it from others, whatever its length.
pub(super) struct Brief<'a, T>(pub &'a T);

impl<T: fmt::Debug> fmt::Display for Brief<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Of a welcome hundreds of lines would follow.
        const LETTERS_MAX: usize = 220;
        let mut short = Short { to: f, left: LETTERS_MAX };
        match write!(short, "{:?}", self.0) {
            // It ends itself when it has enough.
            Err(_) if short.left == 0 => Ok(()),
            written => written,
        }
    }
}

struct Short<'a, 'b> {
    to: &'a mut fmt::Formatter<'b>,
    left: usize,
}

impl Write for Short<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut most = self.left.min(text.len());
        while !text.is_char_boundary(most) {
            most -= 1;
        }
        self.to.write_str(&text[..most])?;
        self.left = if most < text.len() { 0 } else { self.left - most };
        if self.left == 0 { Err(fmt::Error) } else { Ok(()) }
    }
}
