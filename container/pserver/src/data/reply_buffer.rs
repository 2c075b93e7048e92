//! Replies of one connection that wait for the socket.
//!
//! Values are not copied: each write refers to the tables, with their content at that time. If the shard has moved on before
//! a reply is written, the reply becomes a refusal. If it moves on in the middle of a reply, the connection is closed, since
//! the length of the reply is sent already.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytemuck::cast_slice;
use heddle_protocol::frame::{HEADER_BYTES, Header, Kind, Status};
use heddle_shard::{PulledRows, ShardSet};

/// Replies in one system call: two slices each.
const BATCH: usize = 16;

/// Replies to send, in order.
#[derive(Default)]
pub(crate) struct ReplyBuffer {
    replies: VecDeque<Reply>,
    /// Written bytes of the first reply.
    written: usize,
    /// Values of the first reply, if they are by key.
    gathered: Vec<f32>,
    is_gathered: bool,
}

enum Reply {
    Head([u8; HEADER_BYTES]),
    Values { header: Header, head: [u8; HEADER_BYTES], rows: PulledRows },
}

impl Reply {
    fn bytes(&self) -> usize {
        match self {
            Self::Head(_) => HEADER_BYTES,
            Self::Values { header, .. } => HEADER_BYTES + header.value_bytes as usize,
        }
    }
}

impl ReplyBuffer {
    pub(crate) fn push(&mut self, header: &Header) {
        self.replies.push_back(Reply::Head(header.encode()));
    }

    pub(crate) fn push_values(&mut self, header: Header, rows: PulledRows) {
        let head = header.encode();
        self.replies.push_back(Reply::Values { header, head, rows });
    }

    pub(crate) fn len(&self) -> usize {
        self.replies.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// Writes until all is written or `write` would block.
    ///
    /// # Errors
    /// The error of `write`; `Other` when a partially written reply cannot be finished.
    pub(crate) fn flush(
        &mut self,
        shards: &ShardSet,
        mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<()> {
        while !self.replies.is_empty() {
            self.prepare(shards)?;
            let mut slices = [IoSlice::new(&[]); 2 * BATCH];
            let used = self.fill(shards, &mut slices);
            // Written bytes of the first reply are left out.
            let mut rest = &mut slices[..used];
            IoSlice::advance_slices(&mut rest, self.written);
            match write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => self.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Gathers the first reply if it is by key; replaces it by a refusal if its shard has moved on.
    fn prepare(&mut self, shards: &ShardSet) -> io::Result<()> {
        let Some(Reply::Values { header, rows, .. }) = self.replies.front() else {
            return Ok(());
        };
        let there = match rows {
            PulledRows::Range => shards.range(header).is_some(),
            PulledRows::Keys(_) if self.is_gathered => true,
            PulledRows::Keys(keys) => {
                self.gathered.clear();
                shards.gather(header, keys, &mut self.gathered).is_some()
            }
        };
        if there {
            self.is_gathered = matches!(rows, PulledRows::Keys(_));
            return Ok(());
        }
        if self.written > 0 {
            return Err(io::Error::other(
                "the shard moved to another step or epoch in the middle of a reply",
            ));
        }
        let refused = header.reply(Kind::Refused, Status::Stale);
        self.replies[0] = Reply::Head(refused.encode());
        Ok(())
    }

    /// Fills in the slices of the next replies. Returns their number.
    fn fill<'a>(&'a self, shards: &'a ShardSet, slices: &mut [IoSlice<'a>]) -> usize {
        let mut used = 0;
        for (n, reply) in self.replies.iter().enumerate().take(BATCH) {
            match reply {
                Reply::Head(head) => {
                    slices[used] = IoSlice::new(head);
                    used += 1;
                }
                Reply::Values { header, head, rows } => {
                    let values = match rows {
                        PulledRows::Keys(_) if n == 0 => Some(&self.gathered[..]),
                        // Gathered when it is the first.
                        PulledRows::Keys(_) => None,
                        PulledRows::Range => shards.range(header),
                    };
                    let Some(values) = values else { break };
                    slices[used] = IoSlice::new(head);
                    slices[used + 1] = IoSlice::new(cast_slice(values));
                    used += 2;
                }
            }
        }
        used
    }

    fn advance(&mut self, written: usize) {
        self.written += written;
        while let Some(bytes) = self.replies.front().map(Reply::bytes) {
            if self.written < bytes {
                return;
            }
            self.written -= bytes;
            self.replies.pop_front();
            self.is_gathered = false;
        }
    }
}
