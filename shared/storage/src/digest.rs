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

/// Bytes that are summed on the spot before a thread is started: less than starting one costs.
const INLINE_BYTES: usize = 64 << 10;

/// A sum in the making.
#[derive(Debug)]
pub(crate) struct Digester {
    state: State,
}

#[derive(Debug)]
enum State {
    /// So far there were few bytes.
    Inline { sum: md5::Md5, left: usize },
    Thread {
        pieces: Sender<Bytes>,
        thread: JoinHandle<Md5>,
    },
}

impl Digester {
    pub(crate) fn new() -> Self {
        let state = State::Inline {
            sum: md5::Md5::new(),
            left: INLINE_BYTES,
        };
        Self { state }
    }

    /// Adds bytes; they are shared, not copied. Waits, without holding up the event loop, while the
    /// thread is [`PIECES_MAX`] pieces behind.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) async fn update(&mut self, mut data: Bytes) -> std::io::Result<()> {
        if let State::Inline { sum, left } = &mut self.state {
            if data.len() <= *left {
                *left -= data.len();
                sum.update(&data);
                return Ok(());
            }
            self.state = start_thread(sum.clone())?;
        }
        let State::Thread { pieces, .. } = &self.state else {
            return Ok(());
        };
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(PIECE_BYTES));
            match pieces.try_send(piece) {
                Ok(()) => {}
                Err(TrySendError::Full(piece)) => {
                    let pieces = pieces.clone();
                    // Both losses (no runtime any more, no thread any more) come out in `finish`.
                    let _ = tokio::task::spawn_blocking(move || pieces.send(piece)).await;
                }
                Err(TrySendError::Disconnected(_)) => return Ok(()),
            }
        }
        Ok(())
    }

    /// The sum over all that was added.
    pub(crate) async fn finish(self) -> Md5 {
        let (pieces, thread) = match self.state {
            State::Inline { sum, .. } => return Md5(sum.finalize().into()),
            State::Thread { pieces, thread } => (pieces, thread),
        };
        drop(pieces);
        match tokio::task::spawn_blocking(move || thread.join()).await {
            Ok(Ok(sum)) => sum,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

fn start_thread(mut sum: md5::Md5) -> std::io::Result<State> {
    let (pieces, taken) = bounded::<Bytes>(PIECES_MAX);
    let thread = std::thread::Builder::new()
        .name("md5".to_owned())
        .spawn(move || {
            for piece in taken {
                sum.update(&piece);
            }
            Md5(sum.finalize().into())
        })?;
    Ok(State::Thread { pieces, thread })
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
        assert_eq!(digester.finish().await, whole);
    }

    #[tokio::test]
    async fn nothing_has_the_known_sum() {
        let digester = Digester::new();
        let sum = digester.finish().await;
        assert_eq!(sum.to_string(), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(sum, sum_of(b""));
    }
}
