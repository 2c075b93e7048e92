//! Cuts a byte stream into lines of JSON: the framing of control messages in both directions.
//!
//! Pure: bytes in, lines out. A line longer than its bound is refused before it is stored.

use crate::control::LINE_BYTES_MAX;

/// A line beyond [`LINE_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a control line is longer than {LINE_BYTES_MAX} bytes")]
pub struct LineTooLong;

/// Collects bytes until a line is whole.
#[derive(Debug, Default)]
pub struct LineBuffer {
    bytes: Vec<u8>,
    /// Bytes from the front that hold no line end; not searched again.
    searched: usize,
}

impl LineBuffer {
    /// Adds what arrived.
    ///
    /// # Errors
    /// [`LineTooLong`]; the stream cannot be used afterwards.
    pub fn push(&mut self, chunk: &[u8]) -> Result<(), LineTooLong> {
        if self.bytes.len() + chunk.len() > LINE_BYTES_MAX {
            return Err(LineTooLong);
        }
        self.bytes.extend_from_slice(chunk);
        Ok(())
    }

    /// Takes the next whole line, without its end; empty lines are skipped.
    pub fn next_line(&mut self) -> Option<Vec<u8>> {
        loop {
            let end = self.bytes[self.searched..].iter().position(|&byte| byte == b'\n');
            let Some(end) = end.map(|at| self.searched + at) else {
                self.searched = self.bytes.len();
                return None;
            };
            let rest = self.bytes.split_off(end + 1);
            let mut line = std::mem::replace(&mut self.bytes, rest);
            self.searched = 0;
            line.pop();
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            if !line.is_empty() {
                return Some(line);
            }
        }
    }
}

/// One message as a line with its end.
///
/// # Errors
/// When the message has no JSON form, which holds for no message here.
pub fn encode_line<T: serde::Serialize>(message: &T) -> Result<Vec<u8>, serde_json::Error> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lines_come_out_whole_however_they_arrive(
            lines in prop::collection::vec("[a-z{}]{1,20}", 0..8),
            cut in 1usize..7,
        ) {
            let stream: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let mut buffer = LineBuffer::default();
            let mut out = Vec::new();
            for chunk in stream.as_bytes().chunks(cut) {
                buffer.push(chunk).expect("short");
                while let Some(line) = buffer.next_line() {
                    out.push(String::from_utf8(line).expect("ascii"));
                }
            }
            prop_assert_eq!(out, lines);
        }
    }

    #[test]
    fn a_line_without_end_is_bounded() {
        let mut buffer = LineBuffer::default();
        let chunk = vec![b'x'; LINE_BYTES_MAX / 2 + 1];
        assert_eq!(buffer.push(&chunk), Ok(()));
        assert_eq!(buffer.push(&chunk), Err(LineTooLong));
    }
}
