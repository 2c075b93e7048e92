//! MD5 of streams, computed on a thread of its own while the bytes are written or read.
//!
//! On the stream's own thread the digest would add its time to the stream's; on another thread only the slower of the two
//! counts. The streams of a process share a thread, which sums several of them at once (`heddle-md5-lanes`). A file is
//! never read back to compute its digest: the bytes read may differ from those written, and the digest would then match
//! the damage.

mod worker;

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use crossbeam::channel::Sender;
use heddle_md5_lanes::Md5Stream;
use heddle_protocol::manifest::Md5;
use md5::Digest as _;
use tokio::sync::{Semaphore, oneshot};

use worker::{Id, Message};

/// Pieces of a stream in the queue of the summing thread. With pieces of at most [`PIECE_BYTES`], 8 MiB: enough
/// for a pause of either side, little beside the buffers of a stream.
const PIECES_MAX: usize = 8;
/// Longer pieces are cut, so that the queue is bounded in bytes too.
const PIECE_BYTES: usize = 1 << 20;

/// The sum of a few bytes in memory.
pub(crate) fn sum_of(bytes: &[u8]) -> Md5 {
    Md5(md5::Md5::digest(bytes).into())
}

/// Bytes that the caller's thread sums itself: below this, the hand-over costs more.
const INLINE_BYTES: usize = 64 << 10;

/// A sum that is being computed.
#[derive(Debug)]
pub(crate) struct Digester {
    state: DigestState,
}

#[derive(Debug)]
enum DigestState {
    /// Few bytes so far.
    Inline {
        sum: Md5Stream,
        left: usize,
    },
    Thread(Handed),
}

/// A stream registered with the summing thread, until this is dropped.
#[derive(Debug)]
struct Handed {
    id: Id,
    to: Sender<Message>,
    room: Arc<Semaphore>,
}

impl Digester {
    pub(crate) fn new() -> Self {
        let state = DigestState::Inline { sum: Md5Stream::new(), left: INLINE_BYTES };
        Self { state }
    }

    /// Adds bytes; they are shared, not copied. Waits while the thread is [`PIECES_MAX`] pieces behind.
    ///
    /// # Errors
    /// The system cannot create a thread.
    pub(crate) async fn update(&mut self, mut data: Bytes) -> io::Result<()> {
        if let DigestState::Inline { sum, left } = &mut self.state {
            if data.len() <= *left {
                *left -= data.len();
                sum.update(&data);
                return Ok(());
            }
            let (id, to) = worker::begin(sum.clone())?;
            let room = Arc::new(Semaphore::new(PIECES_MAX));
            self.state = DigestState::Thread(Handed { id, to, room });
        }
        let DigestState::Thread(handed) = &self.state else {
            return Ok(());
        };
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(PIECE_BYTES));
            let permit = Arc::clone(&handed.room).acquire_owned().await;
            let permit = permit.map_err(io::Error::other)?;
            handed.send(Message::Piece(handed.id, piece, permit))?;
        }
        Ok(())
    }

    /// The sum over all added bytes.
    ///
    /// # Errors
    /// The thread has ended.
    pub(crate) async fn finish(self) -> io::Result<Md5> {
        let handed = match self.state {
            DigestState::Inline { sum, .. } => return Ok(Md5(sum.finish())),
            DigestState::Thread(handed) => handed,
        };
        let (to, sum) = oneshot::channel();
        handed.send(Message::Finish(handed.id, to))?;
        sum.await.map_err(io::Error::other)
    }
}

impl Handed {
    fn send(&self, message: Message) -> io::Result<()> {
        let gone = |_| io::Error::other("the summing thread has ended");
        self.to.send(message).map_err(gone)
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        // A finished stream is no longer registered.
        let _gone_with_its_thread = self.send(Message::Forget(self.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pieces_of_any_size_give_the_sum_of_the_whole() {
        let data: Vec<u8> = (0..20_000_000u32).map(|n| (n ^ (n >> 7)) as u8).collect();
        let whole = sum_of(&data);
        let mut digester = Digester::new();
        let mut rest = Bytes::from(data);
        for len in [0, 1, 17, 9_000_000, 3_000_000] {
            digester.update(rest.split_to(len)).await.expect("a thread");
        }
        digester.update(rest).await.expect("a thread");
        assert_eq!(digester.finish().await.expect("a thread"), whole);
    }

    #[tokio::test]
    async fn nothing_has_the_known_sum() {
        let digester = Digester::new();
        let sum = digester.finish().await.expect("on the spot");
        assert_eq!(sum.to_string(), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(sum, sum_of(b""));
    }

    #[tokio::test]
    async fn streams_side_by_side_have_their_own_sums() {
        let data = |n: usize| -> Vec<u8> {
            (0..3_000_000 + 70_001 * n).map(|at| ((at * (n + 7)) >> 3) as u8).collect()
        };
        let mut streams: Vec<_> = (0..11).map(|_| Digester::new()).collect();
        let mut rests: Vec<_> = (0..11).map(|n| Bytes::from(data(n))).collect();
        let mut dropped = Digester::new();
        while rests.iter().any(|rest| !rest.is_empty()) {
            for (n, (stream, rest)) in streams.iter_mut().zip(&mut rests).enumerate() {
                let piece = rest.split_to(rest.len().min(100_003 + 1013 * n));
                dropped.update(piece.clone()).await.expect("a thread");
                stream.update(piece).await.expect("a thread");
            }
        }
        drop(dropped);
        for (n, stream) in streams.into_iter().enumerate() {
            assert_eq!(stream.finish().await.expect("a thread"), sum_of(&data(n)));
        }
    }
}
