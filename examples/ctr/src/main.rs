//! Writes the generated click log for `job.toml` beside it.

use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use click_log::{ClickLog, Shape, Split};

/// Generate a click log with a known model: train.libsvm and test.libsvm.
#[derive(Parser)]
struct ClickLogArgs {
    /// Directory for the files; it is created.
    directory: PathBuf,
    /// Records to train on.
    #[arg(long, default_value_t = 2_000_000)]
    rows: u64,
    /// Records to evaluate on.
    #[arg(long, default_value_t = 100_000)]
    test_rows: u64,
    /// Fields of a record.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(2..=4096))]
    fields: u32,
    /// Features; `model.features` of the job must be as large.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(64..))]
    features: u32,
    /// The same seed gives the same bytes.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also write the same records for Vowpal Wabbit: train.vw and test.vw.
    #[arg(long)]
    vw: bool,
}

fn main() -> anyhow::Result<()> {
    let args = ClickLogArgs::parse();
    let directory = &args.directory;
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    for (split, name, rows) in
        [(Split::Train, "train", args.rows), (Split::Test, "test", args.test_rows)]
    {
        let shape = Shape { fields: args.fields, features: args.features };
        let vw = directory.join(format!("{name}.vw"));
        let clicks = ClickLog::new(shape, args.seed, split).write_files(
            rows,
            &directory.join(format!("{name}.libsvm")),
            args.vw.then_some(&*vw),
        )?;
        println!("{name}: {rows} records, {clicks} clicks");
    }
    Ok(())
}
