//! Replies of one connection on their way from the tables to the socket.
//!
//! Values are not copied: each write names pieces of the tables themselves, as they are when their
//! turn comes. A reply whose shard has moved on before its turn is refused; one that has moved on in
//! the middle of a reply costs the connection, since its length was promised.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytemuck::cast_slice;
use heddle_protocol::frame::{HEADER_BYTES, Header, Kind, Status};
use heddle_shard::{Rows, ShardSet};

/// Replies that are written with one call: two slices each.
const BATCH: usize = 16;

/// What is to be sent, in order.
#[derive(Default)]
pub(crate) struct ReplyBuffer {
    replies: VecDeque<Reply>,
    /// Bytes of the first reply that are written.
    written: usize,
    /// Values of the first reply, if they go by key and its turn has come.
    gathered: Vec<f32>,
    is_gathered: bool,
}

enum Reply {
    Head([u8; HEADER_BYTES]),
    Values { header: Header, head: [u8; HEADER_BYTES], rows: Rows },
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

    pub(crate) fn push_values(&mut self, header: Header, rows: Rows) {
        let head = header.encode();
        self.replies.push_back(Reply::Values { header, head, rows });
    }

    pub(crate) fn len(&self) -> usize {
        self.replies.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// Writes as much as `write` takes. Ends without error when all is written or `write` would block.
    ///
    /// # Errors
    /// What `write` says; `Other` when a reply that is half written cannot be finished.
    pub(crate) fn flush(
        &mut self,
        host: &ShardSet,
        mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<()> {
        while !self.replies.is_empty() {
            self.settle(host)?;
            let mut slices = [IoSlice::new(&[]); 2 * BATCH];
            let used = self.fill(host, &mut slices);
            // A byte of the first that is written already is left out.
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

    /// Makes sure that the first reply can be given, gathering what goes by key.
    fn settle(&mut self, host: &ShardSet) -> io::Result<()> {
        let Some(Reply::Values { header, rows, .. }) = self.replies.front() else {
            return Ok(());
        };
        let there = match rows {
            Rows::Range => host.range(header).is_some(),
            Rows::Keys(_) if self.is_gathered => true,
            Rows::Keys(keys) => {
                self.gathered.clear();
                host.gather(header, keys, &mut self.gathered).is_some()
            }
        };
        if there {
            self.is_gathered = matches!(rows, Rows::Keys(_));
            return Ok(());
        }
        if self.written > 0 {
            return Err(io::Error::other("the shard moved on in the middle of a reply"));
        }
        let refused = header.reply(Kind::Refused, Status::Stale);
        self.replies[0] = Reply::Head(refused.encode());
        Ok(())
    }

    /// Names the pieces of the next replies. Tells how many slices.
    fn fill<'a>(&'a self, host: &'a ShardSet, slices: &mut [IoSlice<'a>]) -> usize {
        let mut used = 0;
        for (n, reply) in self.replies.iter().enumerate().take(BATCH) {
            match reply {
                Reply::Head(head) => {
                    slices[used] = IoSlice::new(head);
                    used += 1;
                }
                Reply::Values { header, head, rows } => {
                    let values = match rows {
                        Rows::Keys(_) if n == 0 => Some(&self.gathered[..]),
                        // Gathered when its turn comes.
                        Rows::Keys(_) => None,
                        Rows::Range => host.range(header),
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
