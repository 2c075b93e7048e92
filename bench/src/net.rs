//! Dense push and pull of one connection, beside raw TCP of the same sizes: whole messages over blocking sockets, added
//! into a table or copied from one. Both over loopback.

use std::io;

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
    let mut measured = Vec::new();
    for (name, bytes) in SIZES {
        // Small exchanges are many to a block, so that switching between the two is not a part of it.
        let block = ((1 << 20) / bytes.max(1 << 14)).max(1);
        for is_push in [true, false] {
            let mut values = vec![1e-6f32; bytes / 4];
            let mut raw = RawPeer::start(bytes, is_push)?;
            let (mut ours, mut theirs) = (Samples::default(), Samples::default());
            let mut result = Ok(());
            for _ in 0..rounds {
                for _ in 0..block {
                    ours.add_micros(timed(|| {
                        result = match is_push {
                            true => peer.push(0, &values),
                            false => peer.pull(0, &mut values),
                        };
                    }));
                    std::mem::replace(&mut result, Ok(()))?;
                }
                for _ in 0..block {
                    theirs.add_micros(timed(|| result = raw.exchange(&mut values)));
                    std::mem::replace(&mut result, Ok(()))?;
                }
            }
            let what = format!("{} {name}", if is_push { "push" } else { "pull" });
            measured.push(Measurement::of_times(what, "us", &ours, ("raw TCP", &theirs)));
        }
    }
    Ok(measured)
}
