//! `heddle bench`: measures this machine, each figure beside a baseline in the same run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use heddle_am::report::format;
use heddle_bench::{Measurement, Samples, checkpoint, net, read, sparse, steps, table, train};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::Bytes;

use crate::failure::{CommandFailure, CommandResult, OrFail};
use crate::job_file::key_value;
use crate::output;

/// Largest size of parameters: a table has fewer than 2³² rows.
const MEBIBYTES_MAX: u64 = 8 << 10;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: BenchCommand,
}

#[derive(Debug, clap::Subcommand)]
enum BenchCommand {
    /// Push and pull over loopback, beside raw TCP
    Net(RoundsArgs),
    /// Rows of a shard under FTRL, beside a loop over the keys
    Table(RoundsArgs),
    /// Reading libsvm, beside a plain scan of the text
    Read(RoundsArgs),
    /// Saving a checkpoint, beside a plain write; and pushes meanwhile
    Checkpoint(CheckpointArgs),
    /// Rows of a sparse table over loopback, beside raw TCP; and a save of all of them, beside a plain write
    Sparse(SparseArgs),
    /// A whole run on a generated click log, beside one thread that trains in its own memory
    Train(TrainArgs),
}

#[derive(Debug, clap::Args)]
struct RoundsArgs {
    /// Blocks of each side in turn
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
}

#[derive(Debug, clap::Args)]
struct CheckpointArgs {
    /// Saves of each kind
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Parameters, at least 1MiB; the process takes one and a half times as much memory
    #[arg(long, default_value = "256MiB")]
    size: Bytes,
    /// Local folder on the disk that is measured; files in it are removed [default: the current one]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct SparseArgs {
    /// Saves of each kind
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Rows of one column with the state of FTRL; the process takes some 60 bytes of memory for each
    #[arg(long, default_value_t = 1_000_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(100_000..=1_000_000_000))]
    rows: u32,
    /// Local folder on the disk that is measured; files in it are removed [default: the current one]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct TrainArgs {
    /// Runs of each side
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Records to train on; a record has 40 of a million features, some 375 bytes
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(100..))]
    rows: u64,
    /// Keys of the job, as for `heddle run`: KEY=VALUE
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    set: Vec<String>,
    /// Time the parts of a step instead: pull, compute, push, waiting for lanes, apply; in bsp, ssp and asp
    #[arg(long, conflicts_with = "rounds")]
    steps: bool,
    /// Local folder for data, checkpoints and models; what is written is removed [default: the current one]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub fn bench(args: &Args, json: bool) -> CommandResult {
    let measured = match &args.what {
        BenchCommand::Net(args) => net::measure(args.rounds as usize),
        BenchCommand::Table(args) => table::measure(args.rounds as usize),
        BenchCommand::Read(args) => read::measure(args.rounds as usize),
        BenchCommand::Checkpoint(args) => {
            let folder = BenchFolder::new(args.dir.as_deref())?;
            checkpoint::measure(whole_mebibytes(args.size)?, &folder.0, args.rounds as usize)
        }
        BenchCommand::Sparse(args) => {
            let folder = BenchFolder::new(args.dir.as_deref())?;
            sparse::measure(args.rows, &folder.0, args.rounds as usize)
        }
        BenchCommand::Train(args) if args.steps => return steps_of_runs(args, json),
        BenchCommand::Train(args) => return whole_runs(args, json),
    };
    let measured = measured.or_fail(ExitCode::Internal, "cannot measure this machine")?;
    print(&measured, json)?;
    Ok(ExitCode::Ok)
}

/// The size in bytes, rounded up.
fn whole_mebibytes(size: Bytes) -> Result<u64, CommandFailure> {
    let mebibytes = size.0.div_ceil(1 << 20);
    if (1..=MEBIBYTES_MAX).contains(&mebibytes) {
        return Ok(mebibytes << 20);
    }
    let fact = format!("--size must be from 1MiB to {}GiB (got {size})", MEBIBYTES_MAX >> 10);
    Err(CommandFailure::new(ExitCode::Usage, fact))
}

/// A new folder, removed at the end.
struct BenchFolder(PathBuf);

impl BenchFolder {
    fn new(parent: Option<&Path>) -> Result<Self, CommandFailure> {
        let name = format!("heddle-bench-{}", std::process::id());
        let path = parent.unwrap_or(Path::new(".")).join(name);
        std::fs::create_dir_all(&path)
            .or_fail(ExitCode::Denied, format_args!("cannot create {}", path.display()))?;
        // Other processes get paths in it.
        let absolute = path.canonicalize().unwrap_or(path);
        Ok(Self(absolute))
    }
}

impl Drop for BenchFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            output::note(&format!("warning: cannot remove {}: {error}", self.0.display()));
        }
    }
}

/// Measures whole runs of this program.
fn whole_runs(args: &TrainArgs, json: bool) -> CommandResult {
    let folder = BenchFolder::new(args.dir.as_deref())?;
    train::write_records(&folder.0, args.rows)
        .or_fail(ExitCode::Internal, "cannot write the records")?;
    let rate = |time: Duration| args.rows as f64 / time.as_secs_f64() / 1e6;
    let (mut ours, mut plain) = (Samples::default(), Samples::default());
    for round in 1..=args.rounds {
        ours.add(rate(run_job(&folder.0, &round.to_string(), &args.set, None)?));
        let begun = Instant::now();
        let loss = train::train_plainly(&folder.0.join("train.libsvm"))
            .or_fail(ExitCode::Internal, "cannot train the baseline")?;
        plain.add(rate(begun.elapsed()));
        tracing::debug!(round, loss, "baseline_trained");
    }
    let what = format!("run over {} records, with its evaluation", format::thousands(args.rows));
    let baseline = "one thread in memory";
    print(&[Measurement::of_rates(what, "million rows/s", &ours, baseline, &plain)], json)?;
    Ok(ExitCode::Ok)
}

/// Times the steps of one run in each mode.
fn steps_of_runs(args: &TrainArgs, json: bool) -> CommandResult {
    let folder = BenchFolder::new(args.dir.as_deref())?;
    train::write_records(&folder.0, args.rows)
        .or_fail(ExitCode::Internal, "cannot write the records")?;
    let mut rows =
        vec![["mode", "part", "p50 us", "p99 us", "samples"].map(str::to_owned).to_vec()];
    for mode in ["bsp", "ssp", "asp"] {
        let mut sets = args.set.clone();
        sets.push(format!("training.consistency={mode:?}"));
        run_job(&folder.0, mode, &sets, Some(steps::LOG_FILTER))?;
        let runs = folder.0.join(format!("runs-{mode}"));
        let parts =
            steps::of_logs(mode, &runs).or_fail(ExitCode::Internal, "cannot read the logs")?;
        if json {
            parts.iter().try_for_each(output::json)?;
        }
        rows.extend(parts.into_iter().map(|part| {
            let (p50, p99) = (digits(part.p50_us), digits(part.p99_us));
            vec![part.mode, part.part.to_owned(), p50, p99, part.samples.to_string()]
        }));
    }
    if !json {
        output::line(&output::columns(&rows))?;
    }
    Ok(ExitCode::Ok)
}

/// Runs a job over the records of the folder, once as the baseline, with this filter of its logs. Returns how long it took.
fn run_job(
    folder: &Path,
    round: &str,
    sets: &[String],
    logs: Option<&str>,
) -> Result<Duration, CommandFailure> {
    let job = folder.join("job.toml");
    let text = format!(
        "name = \"bench\"\n[data]\ntrain = \"train.libsvm\"\ntest = \"test.libsvm\"\npasses = 1\n\
         [model]\nfeatures = {}\n[checkpoint]\ndir = \"checkpoints-{round}\"\n[output]\nmodel = \"model-{round}\"\n",
        train::FEATURES
    );
    std::fs::write(&job, text).or_fail(ExitCode::Internal, "cannot write the job file")?;
    let program = std::env::current_exe()
        .or_fail(ExitCode::Internal, "cannot determine the path of this program")?;
    let mut command = Command::new(program);
    command.arg("run").arg(&job).arg("--work-dir").arg(folder.join(format!("runs-{round}")));
    logs.into_iter().for_each(|filter| {
        command.env("RUST_LOG", filter);
    });
    sets.iter().for_each(|set| {
        command.args(["--set", set]);
    });
    let begun = Instant::now();
    let ended = command
        .stdin(Stdio::null())
        .output()
        .or_fail(ExitCode::Internal, "cannot start the run")?;
    let took = begun.elapsed();
    if ended.status.success() {
        return Ok(took);
    }
    let mut failure = CommandFailure::new(ExitCode::JobFailed, "the measured run failed");
    let errors = String::from_utf8_lossy(&ended.stderr);
    let last: Vec<&str> = errors.lines().rev().take(5).collect();
    failure.causes = last.into_iter().rev().map(str::to_owned).collect();
    Err(failure)
}

/// Prints a table, or one JSON object a line.
fn print(measured: &[Measurement], json: bool) -> Result<(), CommandFailure> {
    if json {
        return measured.iter().try_for_each(output::json);
    }
    let head = ["", "unit", "heddle p50", "p99", "baseline p50", "p99", "ratio", "baseline"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for one in measured {
        rows.push(vec![
            one.what.clone(),
            one.unit.to_owned(),
            digits(one.heddle),
            digits(one.heddle_p99),
            digits(one.baseline_value),
            digits(one.baseline_p99),
            format!("{:.2}", one.ratio),
            one.baseline.to_owned(),
        ]);
    }
    output::line(&output::columns(&rows))?;
    output::note(
        "ratio: speed of Heddle divided by that of the baseline; above 1 Heddle is faster",
    );
    Ok(())
}

/// Three digits that matter.
fn digits(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}
