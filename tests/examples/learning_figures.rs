//! Measures whole training runs beside Vowpal Wabbit on the same records: the learning figures of docs/performance.md.
//!
//! ```text
//! cargo build --release --workspace --bins
//! cargo run --release -p heddle-tests --example learning_figures -- --vw "python3 -m vowpalwabbit"
//! ```
//!
//! The records are those of `examples/ctr`, written once to `--data`. A round trains one pass with each of: Vowpal Wabbit (left
//! out without `--vw`), one, two and four trainers and one pserver in ASP, one trainer in BSP, and a job file with only name,
//! data and features. Heddle's times are those of the whole command, from text to model, with its evaluation and checkpoints;
//! those of Vowpal Wabbit are training alone, less its start-up. CPU time is that of all processes of a command.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use click_log::{ClickLog, Shape, Split};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// Learning figures beside Vowpal Wabbit.
#[derive(Parser)]
struct Args {
    /// Directory of the generated records; they are written if they are not there.
    #[arg(long, default_value = "target/learning-figures")]
    data: PathBuf,
    /// Records to train on.
    #[arg(long, default_value_t = 2_000_000)]
    rows: u64,
    /// Rounds; medians are printed.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The command of Vowpal Wabbit, such as `vw`.
    #[arg(long)]
    vw: Option<String>,
    /// What to measure.
    #[arg(long, value_enum, default_value_t = Table::Speed)]
    table: Table,
    /// Another build of Heddle to measure in the same rounds, as a path of its program.
    #[arg(long)]
    baseline: Option<PathBuf>,
}

/// Records to evaluate on.
const TEST_ROWS: u64 = 100_000;

/// What a command took and what its model scored.
#[derive(Clone, Copy, Debug)]
struct Figures {
    wall: f64,
    cpu: f64,
    log_loss: f64,
    auc: f64,
}

/// Name and keys of a job that is measured.
type Variant = (&'static str, &'static [&'static str]);

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Table {
    /// Speed and quality beside Vowpal Wabbit.
    Speed,
    /// The quality of four trainers with fresher and staler values, beside that of one.
    Staleness,
}

impl Table {
    fn variants(self) -> &'static [Variant] {
        match self {
            Self::Speed => &SPEED,
            Self::Staleness => &STALENESS,
        }
    }
}

/// A pass of four trainers, each with 4,096 records a step.
const STALENESS: [Variant; 5] = [
    (
        "ASP, 1 trainer",
        &["training.consistency=asp", "training.batch=4096", "trainers.min=1", "trainers.max=1"],
    ),
    (
        "SSP, 4 trainers, staleness 0",
        &[
            "training.consistency=ssp",
            "training.staleness=0",
            "training.batch=4096",
            "trainers.min=4",
            "trainers.max=4",
        ],
    ),
    (
        "SSP, 4 trainers, staleness 1",
        &[
            "training.consistency=ssp",
            "training.staleness=1",
            "training.batch=4096",
            "trainers.min=4",
            "trainers.max=4",
        ],
    ),
    (
        "SSP, 4 trainers, staleness 4",
        &[
            "training.consistency=ssp",
            "training.staleness=4",
            "training.batch=4096",
            "trainers.min=4",
            "trainers.max=4",
        ],
    ),
    (
        "ASP, 4 trainers",
        &["training.consistency=asp", "training.batch=4096", "trainers.min=4", "trainers.max=4"],
    ),
];

const SPEED: [Variant; 5] = [
    (
        "ASP, 1 trainer",
        &["training.consistency=asp", "trainers.min=1", "trainers.max=1", "pservers.count=1"],
    ),
    (
        "ASP, 2 trainers",
        &["training.consistency=asp", "trainers.min=2", "trainers.max=2", "pservers.count=1"],
    ),
    (
        "ASP, 4 trainers",
        &["training.consistency=asp", "trainers.min=4", "trainers.max=4", "pservers.count=1"],
    ),
    (
        "BSP, 1 trainer",
        &["training.consistency=bsp", "trainers.min=1", "trainers.max=1", "pservers.count=1"],
    ),
    ("defaults", &[]),
];

fn main() -> Result<()> {
    let args = Args::parse();
    let data = prepare(&args)?;
    let program = heddle_tests::local::program("heddle")?;
    let mut figures: BTreeMap<String, Vec<Figures>> = BTreeMap::new();
    let start_up = args.vw.as_deref().map(|vw| start_up_of_vw(vw, &data)).transpose()?;
    for round in 1..=args.rounds {
        let mut add = |name: &str, figure: Figures| {
            let Figures { wall, cpu, log_loss, auc } = figure;
            eprintln!(
                "{round} {name}: {wall:.2} s, CPU {cpu:.2} s, log-loss {log_loss:.5}, AUC {auc:.5}"
            );
            figures.entry(name.to_owned()).or_default().push(figure);
        };
        if let (Some(vw), Some((wall, cpu))) = (&args.vw, start_up) {
            let whole = run_vw(vw, &data)?;
            add(
                "Vowpal Wabbit",
                Figures { wall: whole.wall - wall, cpu: whole.cpu - cpu, ..whole },
            );
        }
        for (name, keys) in args.table.variants() {
            add(name, run_heddle(&program, &data, keys)?);
            if let Some(baseline) = &args.baseline {
                add(&format!("baseline: {name}"), run_heddle(baseline, &data, keys)?);
            }
        }
    }
    print!("{}", table(&figures, args.rows));
    Ok(())
}

/// Medians, beside those of Vowpal Wabbit; of the log-loss the range too, since that of ASP differs from run to run.
fn table(figures: &BTreeMap<String, Vec<Figures>>, rows: u64) -> String {
    let median = |all: &[Figures], of: fn(&Figures) -> f64| {
        let mut all: Vec<f64> = all.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let vw = figures.get("Vowpal Wabbit");
    let mut out = String::from(
        "\n| medians | s | million rows/s | to VW | CPU s | to VW | log-loss (range) | AUC |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for (name, all) in figures {
        let (wall, cpu) = (median(all, |it| it.wall), median(all, |it| it.cpu));
        let to_vw = |own: f64, of: fn(&Figures) -> f64, inverse: bool| {
            vw.map_or(String::new(), |vw| {
                let ratio = own / median(vw, of);
                format!("{:.2}", if inverse { 1.0 / ratio } else { ratio })
            })
        };
        let losses = || all.iter().map(|it| it.log_loss);
        let _infallible = writeln!(
            out,
            "| {name} | {wall:.2} | {:.2} | {} | {cpu:.2} | {} | {:.5} ({:.5}–{:.5}) | {:.5} |",
            rows as f64 / wall / 1e6,
            to_vw(wall, |it| it.wall, true),
            to_vw(cpu, |it| it.cpu, false),
            median(all, |it| it.log_loss),
            losses().fold(f64::INFINITY, f64::min),
            losses().fold(0.0, f64::max),
            median(all, |it| it.auc),
        );
    }
    out
}

/// Writes the records and the job file, unless they are there. Returns their directory.
fn prepare(args: &Args) -> Result<PathBuf> {
    let data = args.data.join(args.rows.to_string());
    fs::create_dir_all(&data)?;
    let data = data.canonicalize()?;
    for (split, name, rows) in
        [(Split::Train, "train", args.rows), (Split::Test, "test", TEST_ROWS)]
    {
        let path = data.join(format!("{name}.libsvm"));
        if path.exists() {
            continue;
        }
        let unfinished = data.join(format!("{name}.unfinished"));
        let vw = data.join(format!("{name}.vw"));
        ClickLog::new(Shape::default(), 1, split).write_files(rows, &unfinished, Some(&vw))?;
        fs::rename(&unfinished, &path)?;
    }
    let features = Shape::default().features;
    fs::write(
        data.join("job.toml"),
        format!(
            "name = \"figures\"\n[data]\ntrain = \"train.libsvm\"\ntest = \"test.libsvm\"\n[model]\nfeatures = {features}\n"
        ),
    )?;
    Ok(data)
}

/// Runs a command to its end. Returns its standard output, seconds of the clock and of all its processes.
fn measured(command: &mut Command) -> Result<(String, f64, f64)> {
    let cpu = || -> Result<f64> {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
        Ok((usage.user_time() + usage.system_time()).num_microseconds() as f64 / 1e6)
    };
    let (begun, before) = (Instant::now(), cpu()?);
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let wall = begun.elapsed().as_secs_f64();
    ensure!(
        output.status.success(),
        "{command:?} ended with {}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), wall, cpu()? - before))
}

/// Trains with Heddle, in a state directory of its own.
fn run_heddle(program: &Path, data: &Path, keys: &[&str]) -> Result<Figures> {
    let state = tempfile::tempdir_in(data)?;
    let mut command = Command::new(program);
    command.current_dir(data).args(["run", "job.toml"]);
    command.env("XDG_STATE_HOME", state.path());
    let dirs = ["checkpoint.dir=checkpoints", "output.model=model"].map(|key| {
        let (key, dir) = key.split_once('=').expect("both have a value");
        format!("{key}={}", state.path().join(dir).display())
    });
    for key in keys.iter().copied().chain(dirs.iter().map(String::as_str)) {
        command.args(["--set", key]);
    }
    let (stdout, wall, cpu) = measured(&mut command)?;
    let figure = |name: &str| -> Result<f64> {
        let line = stdout.lines().rev().find(|line| line.contains(name));
        let line = line.with_context(|| format!("no {name} in: {stdout}"))?;
        let after = line.split(name).nth(1).unwrap_or_default().trim_start();
        let number: String =
            after.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        number.parse().with_context(|| format!("no number after {name} in {line:?}"))
    };
    Ok(Figures { wall, cpu, log_loss: figure("log-loss")?, auc: figure("auc")? })
}

fn vw(command: &str, data: &Path, arguments: &[&str]) -> Command {
    let mut words = command.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("vw"));
    command.args(words).args(arguments).current_dir(data);
    command
}

/// Wall and CPU time of training on one record.
fn start_up_of_vw(command: &str, data: &Path) -> Result<(f64, f64)> {
    let mut first = String::new();
    BufReader::new(File::open(data.join("train.vw"))?).read_line(&mut first)?;
    fs::write(data.join("one.vw"), first)?;
    let mut times = Vec::new();
    for _ in 0..5 {
        let arguments = ["-b", "22", "--loss_function", "logistic", "--quiet", "-d", "one.vw"];
        let (_, wall, cpu) = measured(&mut vw(command, data, &arguments))?;
        times.push((wall, cpu));
    }
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(times[times.len() / 2])
}

/// Trains with Vowpal Wabbit, then scores the test set with its model.
fn run_vw(command: &str, data: &Path) -> Result<Figures> {
    let arguments =
        ["-b", "22", "--loss_function", "logistic", "--quiet", "-d", "train.vw", "-f", "vw.model"];
    let (_, wall, cpu) = measured(&mut vw(command, data, &arguments))?;
    let arguments = [
        "-t",
        "-i",
        "vw.model",
        "--link",
        "logistic",
        "--quiet",
        "-d",
        "test.vw",
        "-p",
        "vw.scores",
    ];
    measured(&mut vw(command, data, &arguments))?;
    let lines =
        |name: &str| -> Result<_> { Ok(BufReader::new(File::open(data.join(name))?).lines()) };
    let mut scored = Vec::new();
    for (record, score) in lines("test.vw")?.zip(lines("vw.scores")?) {
        scored.push((score?.trim().parse::<f64>()?, record?.starts_with('1')));
    }
    ensure!(scored.len() as u64 == TEST_ROWS, "{} scores", scored.len());
    Ok(Figures { wall, cpu, log_loss: log_loss(&scored), auc: auc(scored) })
}

fn log_loss(scored: &[(f64, bool)]) -> f64 {
    let loss = |&(score, clicked): &(f64, bool)| {
        -(if clicked { score } else { 1.0 - score }).max(1e-15).ln()
    };
    scored.iter().map(loss).sum::<f64>() / scored.len() as f64
}

/// The share of pairs of a click and another record that are in order; equal scores count half.
fn auc(mut scored: Vec<(f64, bool)>) -> f64 {
    scored.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut below, mut pairs) = (0.0, 0.0);
    for equal in scored.chunk_by(|a, b| a.0 == b.0) {
        let clicks = equal.iter().filter(|(_, clicked)| *clicked).count() as f64;
        let others = equal.len() as f64 - clicks;
        pairs += clicks * (below + others / 2.0);
        below += others;
    }
    let clicks = scored.len() as f64 - below;
    pairs / (clicks * below)
}
