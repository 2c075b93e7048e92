//! Measures a sparse table of many keys from text to checkpoint, and its restore into another number of shards: the figures
//! of large sparse tables in docs/performance.md.
//!
//! ```text
//! cargo build --release --workspace --bins
//! cargo run --release -p heddle-tests --example sparse_figures -- --keys 100000000
//! ```
//!
//! Every feature of the records is another one. A hundred million keys take 2.3 GB of text, 2 GB for each checkpoint and
//! 6 GB of memory. What a save costs the pushes meanwhile is measured by `heddle bench sparse`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use heddle_tests::local::write_distinct_keys;

/// Figures of large sparse tables.
#[derive(Parser)]
struct Args {
    /// Directory for records, checkpoints and models; what is written is removed.
    #[arg(long, default_value = "target")]
    dir: PathBuf,
    /// Keys of the table.
    #[arg(long, default_value_t = 10_000_000)]
    keys: u64,
    /// Shards of the job that continues.
    #[arg(long, default_value_t = 3)]
    shards: u32,
    /// Memory of the parameter server.
    #[arg(long, default_value = "9GiB")]
    memory: String,
}

fn main() -> Result<()> {
    let args = Args::parse();
    fs::create_dir_all(&args.dir)?;
    let folder = tempfile::tempdir_in(&args.dir)?;
    let dir = folder.path().canonicalize()?;
    write_distinct_keys(&dir.join("keys.libsvm"), args.keys)?;
    write_distinct_keys(&dir.join("few.libsvm"), 40)?;
    println!("| job | whole run, s | checkpoints |");
    println!("| --- | --- | --- |");
    let keys = args.keys;
    let created = run(&dir, "keys", &args.memory, &["pservers.shards=1"])?;
    println!("| {keys} keys in one shard | {:.1} | {} |", created.0, created.1);
    let shards = format!("pservers.shards={}", args.shards);
    let init = format!("model.init={}", dir.join("keys-checkpoints").display());
    let restored = run(&dir, "few", &args.memory, &[&shards, &init])?;
    println!("| restored into {} shards | {:.1} | {} |", args.shards, restored.0, restored.1);
    Ok(())
}

/// Runs a job over the records `<name>.libsvm`. Returns its time in seconds and what it says of its checkpoints.
fn run(dir: &Path, name: &str, memory: &str, sets: &[&str]) -> Result<(f64, String)> {
    let job = format!(
        "name = \"{name}\"\n[data]\ntrain = \"{name}.libsvm\"\n\
         [model]\nfeatures = \"any\"\n[training]\nconsistency = \"asp\"\nbatch = 1024\n\
         [pservers]\ncount = 1\nmemory = \"{memory}\"\n[trainers]\nmin = 1\nmax = 1\n\
         [checkpoint]\ndir = \"{name}-checkpoints\"\nkeep = 2\n[output]\nmodel = \"{name}-model\"\n"
    );
    fs::write(dir.join(format!("{name}.toml")), job)?;
    let mut command = Command::new(heddle_tests::local::program("heddle")?);
    command.current_dir(dir).env("XDG_STATE_HOME", dir).arg("run").arg(format!("{name}.toml"));
    for set in sets {
        command.args(["--set", set]);
    }
    let begun = Instant::now();
    let output = command.output().context("cannot start heddle")?;
    let seconds = begun.elapsed().as_secs_f64();
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Progress is on standard error.
    let progress = String::from_utf8_lossy(&output.stderr);
    let lines = progress.lines().filter_map(|line| line.strip_prefix("checkpoint "));
    Ok((seconds, lines.collect::<Vec<_>>().join("; ")))
}
