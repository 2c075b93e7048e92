//! A sparse table of one pserver over loopback: requests of long rows, beside raw TCP; new rows; a save of all of them,
//! beside a plain write of the same bytes, and pushes meanwhile.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Instant;

use heddle_optimizer::{KINDS, Optimizer};
use heddle_protocol::control::{PserverReport, Report};
use heddle_protocol::job_spec::position::position_of_key;

use crate::checkpoint::{end_cut, is_saved, take_cut, write_plain};
use crate::cores::TwoCores;
use crate::measurement::{Measurement, Samples, timed};
use crate::peer::{TrainerPeer, sparse_pserver, wait};
use crate::random::SplitMix;
use crate::raw_peer::RawPeer;
use crate::requests::position_words;

/// Columns of a long row.
const COLS: usize = 16;
/// Rows of a request of long rows, and of a push while the table is saved.
const KEYS: usize = 10_000;
/// Long rows of the table.
const LONG_ROWS: u64 = 500_000;
/// Requests of long rows of each side in a round.
const EXCHANGES: usize = 20;
/// New rows of a request.
const NEW_ROWS: usize = 26_000;
/// Pushes before each save.
const PUSHES: usize = 100;
/// A saved row of one column with the state of FTRL and its position.
const SAVED_ROW_BYTES: u64 = 3 * 4 + 8;

/// Measures requests of long rows, and fills a table of one column with `rows` rows, which is then saved `rounds` times
/// into an empty directory.
///
/// # Errors
/// The directory cannot be written, or a socket or thread of this machine fails.
pub fn measure(rows: u32, dir: &Path, rounds: usize) -> io::Result<Vec<Measurement>> {
    let mut measured = long_rows(rounds)?;
    measured.extend(table(rows, dir, rounds)?);
    Ok(measured)
}

/// Sorted positions of keys as words, and how many.
fn positions(keys: impl Iterator<Item = u64>) -> (Vec<u32>, usize) {
    let words = position_words(keys.map(position_of_key).collect());
    let count = words.len() / 2;
    (words, count)
}

/// Random rows of those with the keys below `rows`.
fn random_rows(random: &mut SplitMix, rows: u64) -> (Vec<u32>, usize) {
    positions((0..KEYS).map(|_| random.bits() % rows))
}

/// Requests of 10,000 rows of 16 values with AdaGrad.
fn long_rows(rounds: usize) -> io::Result<Vec<Measurement>> {
    let rows_max = LONG_ROWS as u32;
    let kind = KINDS.iter().find(|kind| kind.name == "adagrad").ok_or(io::ErrorKind::NotFound)?;
    let adagrad = Optimizer::new(kind, &BTreeMap::new(), None).map_err(io::Error::other)?;
    let cores = TwoCores::pin()?;
    let server = cores.start(|| sparse_pserver(COLS as u32, adagrad, rows_max, 0, 1))?;
    let mut peer = TrainerPeer::connect(server.endpoints()[0], 0)?;
    let mut values = vec![1e-3f32; KEYS * COLS];
    for first in (0..LONG_ROWS).step_by(KEYS) {
        let (words, count) = positions(first..(first + KEYS as u64).min(LONG_ROWS));
        peer.push_positions(&words, &values[..count * COLS])?;
    }
    let mut random = SplitMix(3);
    // The keys of a request count as bytes of it.
    let bytes = KEYS * (8 + 4 * COLS);
    let mut measured = Vec::new();
    for is_push in [true, false] {
        let mut raw = cores.start(|| RawPeer::start(bytes, is_push))?;
        let mut message = vec![0.0; bytes / 4];
        let (mut ours, mut theirs) = (Samples::default(), Samples::default());
        for _ in 0..rounds {
            for _ in 0..EXCHANGES {
                let (words, count) = random_rows(&mut random, LONG_ROWS);
                let values = &mut values[..count * COLS];
                let mut result = Ok(());
                ours.add_micros(timed(|| {
                    result = match is_push {
                        true => peer.push_positions(&words, values),
                        false => peer.pull_positions(&words, values),
                    };
                }));
                result?;
            }
            for _ in 0..EXCHANGES {
                let mut result = Ok(());
                theirs.add_micros(timed(|| result = raw.exchange(&mut message)));
                result?;
            }
        }
        let kind = if is_push { "push" } else { "pull" };
        let what = format!("{kind} of {KEYS} sparse rows of {COLS}");
        measured.push(Measurement::of_times(what, "us", &ours, "raw TCP", &theirs));
    }
    Ok(measured)
}

/// A table of rows of one column with FTRL: creating the rows, saving them, and pushes meanwhile.
fn table(rows: u32, dir: &Path, rounds: usize) -> io::Result<Vec<Measurement>> {
    let ftrl = Optimizer::ftrl(0.2, 1.0, 0.0, 0.0);
    let bytes = u64::from(rows) * SAVED_ROW_BYTES;
    let server = sparse_pserver(1, ftrl, rows, bytes / 4, 1)?;
    let mut peer = TrainerPeer::connect(server.endpoints()[0], 0)?;
    let gradient = vec![1e-3f32; NEW_ROWS];
    let (mut created, mut sent) = (Samples::default(), Samples::default());
    let mut raw = RawPeer::start(NEW_ROWS * 12, true)?;
    let mut message = vec![0.0; NEW_ROWS * 3];
    for first in (0..rows).step_by(NEW_ROWS) {
        let end = rows.min(first + NEW_ROWS as u32);
        let (words, count) = positions(u64::from(first)..u64::from(end));
        let mut result = Ok(());
        created.add_micros(timed(|| result = peer.push_positions(&words, &gradient[..count])));
        result?;
        let mut result = Ok(());
        sent.add_micros(timed(|| result = raw.exchange(&mut message)));
        result?;
    }
    let mut random = SplitMix(5);
    let mut push = |samples: &mut Samples| {
        let (words, count) = random_rows(&mut random, u64::from(rows));
        let mut result = Ok(());
        samples.add_micros(timed(|| result = peer.push_positions(&words, &gradient[..count])));
        result
    };
    let [mut calm, mut during, mut saved, mut written] = [(); 4].map(|()| Samples::default());
    let rate = |begun: Instant| bytes as f64 / begun.elapsed().as_secs_f64() / 1e9;
    for round in 0..rounds as u32 {
        for _ in 0..PUSHES {
            push(&mut calm)?;
        }
        let staging = take_cut(&server, 2 * round + 1, dir)?;
        while !is_saved(&server)? {
            push(&mut during)?;
        }
        end_cut(&server, 2 * round + 1, &staging)?;
        let begun = Instant::now();
        let staging = take_cut(&server, 2 * round + 2, dir)?;
        wait(&server, |up| matches!(up, Report::Pserver(PserverReport::Saved { .. })))?;
        saved.add(rate(begun));
        end_cut(&server, 2 * round + 2, &staging)?;
        let plain = dir.join(format!("plain-{round}"));
        let begun = Instant::now();
        write_plain(&plain, bytes)?;
        written.add(rate(begun));
        fs::remove_file(&plain)?;
    }
    let creation = format!("push of {NEW_ROWS} new rows");
    let push = format!("push of {KEYS} rows while {rows} are saved");
    let save = format!("save of {rows} rows, with MD5");
    Ok(vec![
        Measurement::of_times(creation, "us", &created, "raw TCP", &sent),
        Measurement::of_times(push, "us", &during, "before the save", &calm),
        Measurement::of_rates(save, "GB/s", &saved, "plain write and sync", &written),
    ])
}
