//! Thrift's compact protocol, as far as bytes are looked at before the decoder reads them.

/// Structs and lists within each other at the most.
const DEPTH_MAX: usize = 32;

/// Types of fields that are looked for.
pub(crate) const NUMBER: u8 = 5;
const STOP: u8 = 0;
pub(crate) const TEXT: u8 = 8;
pub(crate) const LIST: u8 = 9;
pub(crate) const STRUCT: u8 = 12;

/// Bytes that are read from the front. A result is absent where they end within a value or are not
/// of the protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compact<'b>(pub(crate) &'b [u8]);

/// The beginning of a field, or the type of a list's items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FieldHead {
    /// The number of the field, or the number of items.
    pub(crate) id: u64,
    pub(crate) kind: u8,
}

impl<'b> Compact<'b> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    /// Seven bits a byte, the lowest first.
    pub(crate) fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 127) << shift;
            if byte & 128 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// A text.
    pub(crate) fn text(&mut self) -> Option<&'b [u8]> {
        let len = usize::try_from(self.varint()?).ok()?;
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(text)
    }

    /// The next field after number `last`; its type is [`STOP`] at the end of a struct.
    pub(crate) fn field(&mut self, last: u64) -> Option<FieldHead> {
        let byte = self.byte()?;
        let (step, kind) = (u64::from(byte >> 4), byte & 15);
        let id = match step {
            0 if kind != STOP => self.varint()? >> 1,
            step => last.checked_add(step)?,
        };
        Some(FieldHead { id, kind })
    }

    /// Reads a struct: `read` takes the value of each field, or [skips](Self::skip) it.
    pub(crate) fn fields(
        &mut self,
        mut read: impl FnMut(&mut Self, FieldHead) -> Option<()>,
    ) -> Option<()> {
        let mut last = 0;
        loop {
            let field = self.field(last)?;
            if field.kind == STOP {
                return Some(());
            }
            read(self, field)?;
            last = field.id;
        }
    }

    /// The beginning of a list.
    pub(crate) fn list(&mut self) -> Option<FieldHead> {
        let byte = self.byte()?;
        let id = match byte >> 4 {
            15 => self.varint()?,
            few => few.into(),
        };
        Some(FieldHead { id, kind: byte & 15 })
    }

    /// Skips the value of a field.
    pub(crate) fn skip(&mut self, kind: u8) -> Option<()> {
        self.skip_within(kind, 0)
    }

    fn skip_within(&mut self, kind: u8, depth: usize) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        let bytes = match kind {
            // A Boolean of a field is in its type.
            1 | 2 => 0,
            3 => 1,
            4..=6 => return self.varint().map(drop),
            7 => 8,
            TEXT => return self.text().map(drop),
            LIST | 10 => {
                let items = self.list()?;
                // A Boolean of a list has a byte, as each item has at least.
                let kind = if items.kind == 2 { 3 } else { items.kind.max(3) };
                return (0..items.id).try_for_each(|_| self.skip_within(kind, depth + 1));
            }
            11 => {
                let entries = self.varint()?;
                let kinds = if entries > 0 { self.byte()? } else { 0 };
                let (key, value) = ((kinds >> 4).max(3), (kinds & 15).max(3));
                return (0..entries).try_for_each(|_| {
                    self.skip_within(key, depth + 1)?;
                    self.skip_within(value, depth + 1)
                });
            }
            STRUCT => {
                return self.fields(|own, field| own.skip_within(field.kind, depth + 1));
            }
            13 => 16,
            _ => return None,
        };
        let (_, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(())
    }
}
