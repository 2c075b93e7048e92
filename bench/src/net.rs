//! Dense push and pull of one connection, beside raw TCP of the same sizes: whole messages over blocking sockets, added
//! into a table or copied from one. Then encrypted ones beside plain ones. All over loopback.

use std::io;

use heddle_protocol::handshake::Mechanism;

use crate::measurement::{Measurement, Samples, timed};
use crate::peer::{RawPeer, TrainerPeer, pserver};

/// Sizes of an exchange, with their names.
pub const SIZES: [(&str, usize); 3] = [("64 B", 64), ("1 MiB", 1 << 20), ("16 MiB", 16 << 20)];

/// Times of an exchange; `rounds` blocks of each side in turn.
///
/// # Errors
/// A socket or thread of this machine fails.
pub fn measure(rounds: usize) -> io::Result<Vec<Measurement>> {
    let server = pserver(4 << 20, 0, 1)?;
    let mut peer = TrainerPeer::connect(server.endpoints()[0], 0)?;
    let mut encrypted = TrainerPeer::connect_by(server.endpoints()[0], 1, Mechanism::Noise)?;
    let mut measured = Vec::new();
    for (name, bytes) in SIZES {
        for is_push in [true, false] {
            let mut exchange = Exchange::new(bytes);
            let mut raw = RawPeer::start(bytes, is_push)?;
            let (mut ours, mut theirs) = (Samples::default(), Samples::default());
            for _ in 0..rounds {
                exchange.block(&mut ours, |values| peer.exchange(is_push, values))?;
                exchange.block(&mut theirs, |values| raw.exchange(values))?;
            }
            let what = format!("{} {name}", if is_push { "push" } else { "pull" });
            measured.push(Measurement::of_times(what, "us", &ours, "raw TCP", &theirs));
        }
    }
    for (name, bytes) in SIZES {
        for is_push in [true, false] {
            let mut exchange = Exchange::new(bytes);
            let (mut sealed, mut plain) = (Samples::default(), Samples::default());
            for _ in 0..rounds {
                exchange.block(&mut sealed, |values| encrypted.exchange(is_push, values))?;
                exchange.block(&mut plain, |values| peer.exchange(is_push, values))?;
            }
            let what = format!("{} {name}, encrypted", if is_push { "push" } else { "pull" });
            measured.push(Measurement::of_times(what, "us", &sealed, "plain", &plain));
        }
    }
    Ok(measured)
}

/// Exchanges of one size.
struct Exchange {
    values: Vec<f32>,
    /// Exchanges of one side before the other's turn. Small ones are many to a block, so that switching between the two is
    /// not a part of it.
    count: usize,
}

impl Exchange {
    fn new(bytes: usize) -> Self {
        Self { values: vec![1e-6; bytes / 4], count: ((1 << 20) / bytes.max(1 << 14)).max(1) }
    }

    /// Times one block of a side.
    fn block(
        &mut self,
        samples: &mut Samples,
        mut exchange: impl FnMut(&mut [f32]) -> io::Result<()>,
    ) -> io::Result<()> {
        for _ in 0..self.count {
            let mut result = Ok(());
            samples.add_micros(timed(|| result = exchange(&mut self.values)));
            result?;
        }
        Ok(())
    }
}
