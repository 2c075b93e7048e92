//! MD5 on a thread of its own, taken as the bytes go by.
//!
//! MD5 runs at some 600 MB/s on one core, slower than a disk cache or a fast network takes bytes. On
//! the stream's own thread it would add its time to the stream's; beside it the slower of the two
//! counts. A file is never read again just to sum it: what is read back may differ from what was
//! written, and then the sum would vouch for the damage.

use std::thread::JoinHandle;

use bytes::Bytes;
use crossbeam::channel::{Sender, TrySendError, bounded};
use heddle_protocol::manifest::Md5;
use md5::Digest as _;

/// Pieces on their way to the summing thread. With pieces of at most [`PIECE_BYTES`], 8 MiB: enough
/// to cover a hiccup of either side, little beside the buffers of a stream.
const PIECES_MAX: usize = 8;
/// Longer pieces are cut, so that the queue is bounded in bytes too.
const PIECE_BYTES: usize = 1 << 20;

/// The sum of a few bytes in memory.
pub(crate) fn sum_of(bytes: &[u8]) -> Md5 {
    Md5(md5::Md5::digest(bytes).into())
}

/// A sum in the making.
#[derive(Debug)]
pub(crate) struct Digester {
    pieces: Sender<Bytes>,
    thread: JoinHandle<Md5>,
}

impl Digester {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (pieces, taken) = bounded::<Bytes>(PIECES_MAX);
        let thread = std::thread::Builder::new()
            .name("md5".to_owned())
            .spawn(move || {
                let mut sum = md5::Md5::new();
                for piece in taken {
                    sum.update(&piece);
                }
                Md5(sum.finalize().into())
            })?;
        Ok(Self { pieces, thread })
    }

    /// Adds bytes; they are shared, not copied. Waits, without holding up the event loop, while the
    /// thread is [`PIECES_MAX`] pieces behind.
    pub(crate) async fn update(&self, mut data: Bytes) {
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(PIECE_BYTES));
            match self.pieces.try_send(piece) {
                Ok(()) => {}
                Err(TrySendError::Full(piece)) => {
                    let pieces = self.pieces.clone();
                    // Both losses (no runtime any more, no thread any more) come out in `finish`.
                    let _ = tokio::task::spawn_blocking(move || pieces.send(piece)).await;
                }
                Err(TrySendError::Disconnected(_)) => return,
            }
        }
    }

    /// The sum over all that was added.
    pub(crate) async fn finish(self) -> Md5 {
        let Self { pieces, thread } = self;
        drop(pieces);
        match tokio::task::spawn_blocking(move || thread.join()).await {
            Ok(Ok(sum)) => sum,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pieces_of_any_size_give_the_sum_of_the_whole() {
        let data: Vec<u8> = (0..20_000_000u32).map(|n| (n ^ (n >> 7)) as u8).collect();
        let whole = sum_of(&data);
        let digester = Digester::start().expect("a thread");
        let mut rest = Bytes::from(data);
        for len in [0, 1, 17, 9_000_000, 3_000_000] {
            digester.update(rest.split_to(len)).await;
        }
        digester.update(rest).await;
        assert_eq!(digester.finish().await, whole);
    }

    #[tokio::test]
    async fn nothing_has_the_known_sum() {
        let digester = Digester::start().expect("a thread");
        let sum = digester.finish().await;
        assert_eq!(sum.to_string(), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(sum, sum_of(b""));
    }
}
