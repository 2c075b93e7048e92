//! Measures jobs in which one of four trainers computes slower than the others. The figures of docs/performance.md.
//!
//! ```text
//! cargo build --release --workspace --bins
//! cargo run --release -p heddle-tests --example straggler_figures
//! ```
//!
//! Each step takes 20 ms, of which the fail point `step-computed` waits nearly all: cores are not what is measured. The rate
//! counts from 15 s after the start, by when the slow trainer is noticed, until nine of ten records are computed. An
//! undisturbed job precedes each disturbed one. Losers: how long a trainer takes to stop computing a task that another one has
//! finished; it stops after its step.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use heddle_protocol::view::{JobState, JobView, StragglersView};
use heddle_tests::local::{Run, write_libsvm};

const LIMIT: Duration = Duration::from_secs(600);
const NOTICED: Duration = Duration::from_secs(15);
const EQUAL: &str = "step-computed=sleep(20)";

/// Figures of jobs with one slow trainer.
#[derive(Parser)]
struct Args {
    /// Directory for records and checkpoints; what is written is removed.
    #[arg(long, default_value = "target")]
    dir: PathBuf,
    /// Jobs of each kind.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
}

struct Kind {
    name: &'static str,
    consistency: &'static str,
    slowed: &'static str,
}

const KINDS: [Kind; 4] = [
    Kind {
        name: "ASP, twenty times slower",
        consistency: "asp",
        slowed: "step-computed=sleep(20);step-slowed=return(sleep=380,slot=3)",
    },
    Kind {
        name: "ASP, a hundred times slower",
        consistency: "asp",
        slowed: "step-computed=sleep(20);step-slowed=return(sleep=1980,slot=3)",
    },
    Kind {
        name: "BSP of 8 lanes, five times slower: lanes move",
        consistency: "bsp",
        slowed: "step-computed=sleep(20);step-slowed=return(sleep=80,slot=3)",
    },
    Kind {
        name: "BSP of 8 lanes, a hundred times slower: replaced",
        consistency: "bsp",
        slowed: "step-computed=sleep(20);step-slowed=return(sleep=1980,slot=3,incarnation=1)",
    },
];

fn main() -> Result<()> {
    let args = Args::parse();
    fs::create_dir_all(&args.dir)?;
    let folder = tempfile::tempdir_in(&args.dir)?;
    let dir = folder.path().canonicalize()?;
    // 5,000 steps of 8 records.
    write_libsvm(&dir.join("data"), "train", 50, 800, 50, 5, 3)?;
    println!(
        "| one of four trainers | records/s, undisturbed | disturbed | ratio | losers stopped within |\n| --- | --- | --- | --- | --- |"
    );
    for kind in &KINDS {
        for _ in 0..args.rounds {
            let (before, _) = rate(&dir, kind.consistency, EQUAL)?;
            let (after, late) = rate(&dir, kind.consistency, kind.slowed)?;
            let stop = late.map_or_else(String::new, |late| format!("{} ms", late.slowest_stop_ms));
            let ratio = after / before;
            println!("| {} | {before:.0} | {after:.0} | {ratio:.2} | {stop} |", kind.name);
        }
    }
    Ok(())
}

/// Records a second from 15 s after the first one until nine of ten are computed, and the late tasks.
fn rate(dir: &Path, consistency: &str, points: &str) -> Result<(f64, Option<StragglersView>)> {
    let text = format!(
        "name = \"stragglers\"\n[data]\ntrain = \"data/train-*.libsvm\"\npasses = 1\n\
         [model]\nalgorithm = \"logistic-regression\"\nfeatures = 50\n\
         [training]\nconsistency = \"{consistency}\"\nlanes = 8\nbatch = 8\n\
         [pservers]\ncount = 1\nshards = 2\n[trainers]\nmin = 4\nmax = 4\n\
         [checkpoint]\ndir = \"ckpt\"\nevery = \"10min\"\n[output]\nmodel = \"model\"\n"
    );
    fs::write(dir.join("job.toml"), text)?;
    let mut run =
        Run::start_with(dir, "job.toml", &["--fresh", "--overwrite"], &[("FAILPOINTS", points)])?
            .expecting(heddle_tests::logs::SLOWNESS);
    run.wait_for("training begins", LIMIT, |view| view.rows > 0)?;
    std::thread::sleep(NOTICED);
    let (from, rows) = (Instant::now(), run.view()?.rows);
    // Not all 40,000: the page ends with the job.
    let ended = |view: &JobView| view.rows >= 36_000 || view.state == JobState::Finished;
    let last = run.wait_for("nearly all records are computed", LIMIT, ended)?;
    let rate = (last.rows - rows) as f64 / from.elapsed().as_secs_f64();
    run.end(dir, LIMIT)?;
    Ok((rate, last.stragglers))
}
