//! Dense push and pull of one connection, beside raw TCP of the same sizes: whole messages over blocking sockets, added
//! into a table or copied from one. Then encrypted ones beside plain ones, and what encryption adds beside the arithmetic that it
//! cannot do without. All over loopback, each end on a core of its own.

use std::io;

use heddle_protocol::handshake::Mechanism;

use crate::cores::TwoCores;
use crate::measurement::{Measurement, Samples, timed};
use crate::peer::{TrainerPeer, pserver};
use crate::raw_peer::RawPeer;
use crate::requests::{Request, Requests};
use crate::sealing::Sealing;

/// Sizes of an exchange, with their names.
pub const SIZES: [(&str, usize); 3] = [("64 B", 64), ("1 MiB", 1 << 20), ("16 MiB", 16 << 20)];
/// Requests in flight, with the end of a row's name.
const WINDOWS: [(usize, &str); 2] = [(1, ""), (4, ", 4 in flight")];

/// Times of an exchange; `rounds` blocks of each side in turn.
///
/// # Errors
/// A socket or thread of this machine fails.
pub fn measure(rounds: usize) -> io::Result<Vec<Measurement>> {
    let cores = TwoCores::pin()?;
    let server = cores.start(|| pserver(4 << 20, 0, 1))?;
    let mut plain = TrainerPeer::connect(server.endpoints()[0], 0)?;
    let mut encrypted = TrainerPeer::connect_by(server.endpoints()[0], 1, Mechanism::Noise)?;
    let mut measured = Vec::new();
    for (window, suffix) in WINDOWS {
        for (name, exchanges) in kinds(window) {
            let mut raw = cores.start(|| RawPeer::start(exchanges.bytes, exchanges.is_push))?;
            let (ours, theirs) = exchanges.in_turn(rounds, &mut plain, &mut raw)?;
            let what = format!("{name}{suffix}");
            measured.push(Measurement::of_times(what, "us", &ours, "raw TCP", &theirs));
        }
    }
    let sealing = Sealing::new()?;
    for (name, exchanges) in kinds(1) {
        let (sealed, open) = exchanges.in_turn(rounds, &mut encrypted, &mut plain)?;
        let what = format!("{name}, encrypted");
        measured.push(Measurement::of_times(what, "us", &sealed, "plain", &open));
        if exchanges.bytes >= 1 << 20 {
            let (mut added, mut alone) = (Samples::default(), Samples::default());
            added.add(sealed.median() - open.median());
            let mut message = vec![0; exchanges.bytes];
            for _ in 0..rounds {
                let mut result = Ok(());
                alone.add_micros(timed(|| result = sealing.seal_and_open(&mut message)));
                result?;
            }
            let what = format!("{name}, added by encryption");
            measured.push(Measurement::of_times(what, "us", &added, "seal and open", &alone));
        }
    }
    Ok(measured)
}

/// Exchanges of each size, with their names.
fn kinds(window: usize) -> impl Iterator<Item = (String, Exchanges)> {
    let both = move |(name, bytes)| {
        [("push", true), ("pull", false)]
            .map(|(kind, is_push)| (format!("{kind} {name}"), Exchanges { is_push, bytes, window }))
    };
    SIZES.into_iter().flat_map(both)
}

/// Exchanges of one size.
struct Exchanges {
    is_push: bool,
    bytes: usize,
    /// Requests in flight.
    window: usize,
}

impl Exchanges {
    /// Times of one exchange in blocks of the first peer and of the second one in turn.
    fn in_turn(
        &self,
        rounds: usize,
        first: &mut impl Requests,
        second: &mut impl Requests,
    ) -> io::Result<(Samples, Samples)> {
        let mut values = vec![1e-6; self.bytes / 4];
        let (mut times, mut others) = (Samples::default(), Samples::default());
        for _ in 0..rounds {
            self.block(first, &mut values, &mut times)?;
            self.block(second, &mut values, &mut others)?;
        }
        Ok((times, others))
    }

    /// One block. Small exchanges are many to a block, so that switching between the peers is not a part of it. Of exchanges that
    /// overlap, the block's time divided by their number is one sample.
    fn block(
        &self,
        peer: &mut impl Requests,
        values: &mut [f32],
        samples: &mut Samples,
    ) -> io::Result<()> {
        let count = ((1 << 20) / self.bytes.max(1 << 14)).max(1);
        let request = Request { is_push: self.is_push, positions: &[] };
        let (blocks, count) = if self.window == 1 { (count, 1) } else { (1, 4 * count) };
        for _ in 0..blocks {
            let mut result = Ok(());
            let took = timed(|| {
                result = peer.exchanges(request, values, count, self.window);
            });
            samples.add_micros(took / count as u32);
            result?;
        }
        Ok(())
    }
}
