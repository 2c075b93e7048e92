//! Measures moves of shards: how long a moving shard's pushes stand still, how long 256 MB take to move, and what a job that
//! could move and does not costs. The figures of docs/performance.md.
//!
//! ```text
//! cargo build --release --workspace --bins
//! cargo run --release -p heddle-tests --example move_figures
//! ```
//!
//! An ASP job of two trainers without pauses; the pservers go from 2 to 4 and back again. Pause: from the stop of the shard at its
//! source until another pserver has the view with which it serves, by the logs of both, which one clock stamps.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use heddle_protocol::view::JobView;
use heddle_tests::local::{Run, heddle, write_libsvm};
use heddle_tests::logs::logs_below;

const LIMIT: Duration = Duration::from_secs(300);

/// Figures of moves.
#[derive(Parser)]
struct Args {
    /// Directory for records and checkpoints; what is written is removed.
    #[arg(long, default_value = "target")]
    dir: PathBuf,
    /// Growths and shrinks, large moves, and pairs of jobs.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
}

/// Sizes of a job.
#[derive(Clone, Copy)]
struct Size {
    features: u32,
    shards: u32,
    /// `pservers.min` and `max`.
    between: Option<[u32; 2]>,
    passes: u32,
}

fn main() -> Result<()> {
    let args = Args::parse();
    fs::create_dir_all(&args.dir)?;
    let folder = tempfile::tempdir_in(&args.dir)?;
    let dir = folder.path().canonicalize()?;
    write_libsvm(&dir.join("data"), "train", 16, 2_000, 1_000_000, 20, 3)?;
    pauses(&dir, args.rounds)?;
    large_moves(&dir, args.rounds)?;
    pairs(&dir, args.rounds)
}

fn start(dir: &Path, size: Size) -> Result<Run> {
    let Size { features, shards, between, passes } = size;
    let bounds =
        between.map_or_else(String::new, |[least, most]| format!("min = {least}\nmax = {most}\n"));
    let text = format!(
        "name = \"moves\"\n[data]\ntrain = \"data/train-*.libsvm\"\npasses = {passes}\n\
         [model]\nalgorithm = \"logistic-regression\"\nfeatures = {features}\nstandardise = false\n\
         [training]\nconsistency = \"asp\"\nbatch = 64\n\
         [pservers]\ncount = 2\n{bounds}shards = {shards}\nmemory = \"3GiB\"\n[trainers]\nmin = 2\nmax = 2\n\
         [checkpoint]\ndir = \"ckpt\"\nevery = \"10min\"\n[output]\nmodel = \"model\"\nformats = [\"safetensors\"]\n"
    );
    fs::write(dir.join("job.toml"), text)?;
    let mut run = Run::start(dir, "job.toml", &["--fresh", "--overwrite"])?;
    run.wait_for("training begins", LIMIT, |view| view.rows > 0)?;
    Ok(run)
}

/// Changes the number of pservers; returns the seconds until all shards are where they belong.
fn scale(dir: &Path, run: &mut Run, pservers: u32, shards: u32) -> Result<f64> {
    let id = run.view()?.run.to_string();
    let began = Instant::now();
    let scaled = heddle(dir, &["scale", &id, "pservers", &pservers.to_string()])?;
    ensure!(scaled.code == Some(0), "{scaled:?}");
    let is_spread = |view: &JobView| {
        let copies = view.replication.as_ref();
        let is_even = copies.is_some_and(|copies| {
            copies.refills.is_empty()
                && copies.served.len() as u32 == pservers
                && copies.served.values().all(|served| *served == shards / pservers)
        });
        is_even && view.pservers.as_ref().is_some_and(|of| of.present == pservers)
    };
    run.wait_for("shards have moved", LIMIT, is_spread)?;
    Ok(began.elapsed().as_secs_f64())
}

fn pauses(dir: &Path, rounds: u32) -> Result<()> {
    let size = Size { features: 2_000_000, shards: 12, between: Some([1, 4]), passes: 10_000 };
    let mut run = start(dir, size)?;
    for _ in 0..rounds {
        for pservers in [4, 2] {
            scale(dir, &mut run, pservers, size.shards)?;
        }
    }
    let id = run.view()?.run.to_string();
    run.end(dir, LIMIT)?;
    let logs = logs_below(&dir.join("state/heddle/runs").join(id).join("logs"));
    let mut pauses = pauses_of(&logs)?;
    pauses.sort_by(f64::total_cmp);
    ensure!(!pauses.is_empty(), "no move in {} logs", logs.len());
    let at = |share: f64| pauses[((pauses.len() - 1) as f64 * share).round() as usize];
    println!(
        "pause of a moving shard, {} moves: p50 {:.1} ms, p90 {:.1}, p99 {:.1}, longest {:.1}",
        pauses.len(),
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0)
    );
    Ok(())
}

/// From each stop of a shard to the next view of it at another pserver, ms.
fn pauses_of(logs: &[(String, String)]) -> Result<Vec<f64>> {
    let mut events: BTreeMap<(String, u64), Vec<(bool, &str)>> = BTreeMap::new();
    for (process, text) in logs {
        for line in text.lines() {
            let is_stop = line.contains(" shard_drained ");
            if !is_stop && !line.contains(" view_taken ") {
                continue;
            }
            let time = line.split_whitespace().next().context("a time")?;
            let time = micros_of_day(time)?;
            let shard = line.split_whitespace().find_map(|word| word.strip_prefix("shard="));
            let shard = shard.context("a shard")?.to_owned();
            events.entry((shard, time)).or_default().push((is_stop, process));
        }
    }
    let mut found = Vec::new();
    let mut open: Option<(String, u64, &str)> = None;
    for ((shard, time), all) in events {
        for (is_stop, process) in all {
            if is_stop {
                open = Some((shard.clone(), time, process));
            } else if let Some((of, since, source)) = &open
                && *of == shard
                && *source != process
            {
                found.push((time - since) as f64 / 1e3);
                open = None;
            }
        }
    }
    Ok(found)
}

/// Microseconds of the day, of the time at the beginning of a log line: `2026-11-30T01:55:29.660459Z`.
fn micros_of_day(text: &str) -> Result<u64> {
    let (_, time) = text.trim_end_matches('Z').split_once('T').context("a time of day")?;
    let mut parts = time.split(':');
    let mut part = || parts.next().context("hours, minutes, seconds");
    let (hours, minutes, seconds): (u64, u64, f64) =
        (part()?.parse()?, part()?.parse()?, part()?.parse()?);
    Ok((hours * 60 + minutes) * 60_000_000 + (seconds * 1e6).round() as u64)
}

fn large_moves(dir: &Path, rounds: u32) -> Result<()> {
    // Weights and the two planes of FTRL: 12 bytes a feature.
    let size = Size { features: 45_000_000, shards: 2, between: Some([1, 2]), passes: 10_000 };
    let mut run = start(dir, size)?;
    let mut seconds = Vec::new();
    for _ in 0..rounds {
        seconds.push(scale(dir, &mut run, 1, size.shards)?);
        scale(dir, &mut run, 2, size.shards)?;
    }
    run.end(dir, LIMIT)?;
    seconds.sort_by(f64::total_cmp);
    println!(
        "move of a shard of 270 MB and the end of its pserver: median {:.2} s, longest {:.2}",
        seconds[seconds.len() / 2],
        seconds[seconds.len() - 1]
    );
    Ok(())
}

/// Rates of jobs that could move and do not, each beside one with a fixed number.
fn pairs(dir: &Path, rounds: u32) -> Result<()> {
    let fixed = Size { features: 1_000_000, shards: 12, between: None, passes: 10_000 };
    let elastic = Size { between: Some([1, 4]), ..fixed };
    let mut ratios = Vec::new();
    for round in 0..rounds {
        let order = if round % 2 == 0 { [fixed, elastic] } else { [elastic, fixed] };
        let rates = [rate(dir, order[0])?, rate(dir, order[1])?];
        let ratio = rates[1] / rates[0];
        ratios.push(if round % 2 == 0 { ratio } else { 1.0 / ratio });
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "records/s of a job that could move and does not, to one with a fixed number: median {:.3} ({:.3} to {:.3})",
        ratios[ratios.len() / 2],
        ratios[0],
        ratios[ratios.len() - 1]
    );
    Ok(())
}

/// Records a second within ten seconds.
fn rate(dir: &Path, size: Size) -> Result<f64> {
    let run = start(dir, size)?;
    std::thread::sleep(Duration::from_secs(2));
    let (began, before) = (Instant::now(), run.view()?.rows);
    std::thread::sleep(Duration::from_secs(10));
    let rate = (run.view()?.rows - before) as f64 / began.elapsed().as_secs_f64();
    run.end(dir, LIMIT)?;
    Ok(rate)
}
