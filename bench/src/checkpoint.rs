//! A save of eight shards, beside a plain write of the same bytes; and pushes meanwhile, beside pushes before it.
//!
//! Heddle's files have MD5 sums. Both sides end when the bytes are on the disk.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use heddle_protocol::control::{
    Command, CutAt, EndCut, PserverCommand, PserverReport, Report, ShardCommand, TakeCut,
};
use heddle_protocol::ids::PhaseNo;
use heddle_pserver::standalone::Standalone;

use crate::measurement::{Measurement, Samples, timed};
use crate::peer::{EPOCH, TrainerPeer, cut, pserver, wait};
use crate::random::SplitMix;

const SHARDS: u32 = 8;
/// Rows of a push.
const KEYS: usize = 10_000;
/// Bytes of a plain write.
const CHUNK: usize = 1 << 20;
/// Memory for copies by that of tables where a job with default keys has tables that fit just so: a quarter of a pserver's
/// memory is for copies, an eighth for frames that wait.
const COPIES_OF_TABLES: (u64, u64) = (2, 5);
/// Pushes before each save.
const PUSHES: usize = 100;

/// Saves `bytes` of parameters, at least 1 MiB, into an empty directory, `rounds` times.
///
/// # Errors
/// The directory cannot be written, or a socket or thread of this machine fails.
pub fn measure(bytes: u64, dir: &Path, rounds: usize) -> io::Result<Vec<Measurement>> {
    Ok(vec![saves(bytes, dir, rounds)?, pushes(bytes, dir, rounds)?])
}

/// Eight shards, without pushes.
fn saves(bytes: u64, dir: &Path, rounds: usize) -> io::Result<Measurement> {
    let server = pserver(bytes / 4, 0, SHARDS)?;
    let (mut saved, mut written) = (Samples::default(), Samples::default());
    let rate = |begun: Instant| bytes as f64 / begun.elapsed().as_secs_f64() / 1e9;
    for round in 1..=rounds as u32 {
        let begun = Instant::now();
        let staging = take_cut(&server, round, dir)?;
        for _ in 0..SHARDS {
            wait(&server, |up| matches!(up, Report::Pserver(PserverReport::Saved { .. })))?;
        }
        saved.add(rate(begun));
        end_cut(&server, round, &staging)?;
        let plain = dir.join(format!("plain-{round}"));
        let begun = Instant::now();
        write_plain(&plain, bytes)?;
        written.add(rate(begun));
        fs::remove_file(&plain)?;
    }
    let what = format!("save of {} MiB in {SHARDS} shards, with MD5", bytes >> 20);
    Ok(Measurement::of_rates(what, "GB/s", &saved, "plain write and sync", &written))
}

/// One shard, which takes pushes while it is saved.
fn pushes(bytes: u64, dir: &Path, rounds: usize) -> io::Result<Measurement> {
    let rows = bytes / 4;
    let server = pserver(rows, bytes * COPIES_OF_TABLES.0 / COPIES_OF_TABLES.1, 1)?;
    let mut peer = TrainerPeer::connect(server.endpoints()[0], 0)?;
    // Every page of the table is there before anything is measured.
    let dense = vec![1e-6f32; CHUNK / 4];
    for start in (0..=rows - dense.len() as u64).step_by(dense.len()) {
        peer.push(start, &dense)?;
    }
    let mut random = SplitMix(1);
    let gradient = vec![1e-6f32; KEYS];
    let mut push = |samples: &mut Samples| {
        let keys = random.keys(KEYS, rows);
        let mut result = Ok(());
        samples.add_micros(timed(|| result = peer.push_keys(&keys, &gradient)));
        result
    };
    let (mut calm, mut during) = (Samples::default(), Samples::default());
    for round in 1..=rounds as u32 {
        for _ in 0..PUSHES {
            push(&mut calm)?;
        }
        let staging = take_cut(&server, round, dir)?;
        while !is_saved(&server)? {
            push(&mut during)?;
        }
        end_cut(&server, round, &staging)?;
    }
    let what = format!("push of {KEYS} rows while {} MiB are saved", bytes >> 20);
    Ok(Measurement::of_times(what, "us", &during, "before the save", &calm))
}

/// Whether a shard was saved since the last call.
///
/// # Errors
/// It could not be saved.
pub(crate) fn is_saved(server: &Standalone) -> io::Result<bool> {
    match server.reports().try_recv() {
        Ok(Report::Pserver(PserverReport::SaveFailed { failure, .. })) => {
            Err(io::Error::other(failure.to_string()))
        }
        Ok(Report::Pserver(PserverReport::Saved { .. })) => Ok(true),
        Ok(_) | Err(_) => Ok(false),
    }
}

/// Orders a cut at once. Returns its new directory.
pub(crate) fn take_cut(server: &Standalone, number: u32, dir: &Path) -> io::Result<PathBuf> {
    let staging = dir.join(format!("cut-{number}"));
    fs::create_dir(&staging)?;
    server.command(Command::Pserver(PserverCommand::Cut(TakeCut {
        cut: cut(number),
        epoch: EPOCH,
        phase: PhaseNo(0),
        at: CutAt::Barriers(Vec::new()),
        staging: staging.display().to_string(),
        copies: Vec::new(),
        initial: false,
        last: false,
    })));
    Ok(staging)
}

pub(crate) fn end_cut(server: &Standalone, number: u32, staging: &Path) -> io::Result<()> {
    server.command(Command::Shards(ShardCommand::CutEnd(EndCut {
        cut: cut(number),
        committed: true,
    })));
    fs::remove_dir_all(staging)
}

pub(crate) fn write_plain(path: &Path, bytes: u64) -> io::Result<()> {
    let chunk = vec![1u8; CHUNK];
    let mut file = File::create(path)?;
    for _ in 0..bytes / CHUNK as u64 {
        file.write_all(&chunk)?;
    }
    file.sync_all()
}
