//! Measures recoveries on one machine: a parameter server of a large model is killed, with and without backups or a spare, and
//! alone or together with a trainer. The figures of docs/performance.md.
//!
//! ```text
//! cargo build --release --workspace --bins
//! cargo run --release -p heddle-tests --example recovery_figures
//! ```
//!
//! Three parameter servers and two trainers train in BSP, with records that touch the whole range of features. `--megabytes` is
//! what values and optimizer state take without backups. Kinds alternate, so that a machine that slows down slows all of them.
//! The job reports the rows of a recovery; the test's own clock measures the last one, from the kill.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;
use heddle_protocol::ids::Slot;
use heddle_protocol::view::{JobState, JobView, RecoveryKind, RecoveryView};
use heddle_tests::local::{Run, heddle, kill9, pid_of, write_libsvm};

const LIMIT: Duration = Duration::from_secs(300);
/// Bytes of a feature's value and state with FTRL.
const ROW: u64 = 12;

/// Figures of recoveries.
#[derive(Parser)]
struct Args {
    /// Directory for records and checkpoints; what is written is removed.
    #[arg(long, default_value = "target")]
    dir: PathBuf,
    /// Megabytes of values and optimizer state.
    #[arg(long, default_value_t = 1000)]
    megabytes: u64,
    /// Jobs of each kind.
    #[arg(long, default_value_t = 10)]
    rounds: u32,
    /// Prints the values of every recovery as well.
    #[arg(long)]
    raw: bool,
}

/// What is killed, and what the job has for it.
struct Kind {
    name: &'static str,
    replicas: u32,
    spares: u32,
    /// Whether a trainer is killed at the same time.
    with_trainer: bool,
    expected: RecoveryKind,
}

const KINDS: [Kind; 4] = [
    Kind {
        name: "rollback",
        replicas: 0,
        spares: 0,
        with_trainer: false,
        expected: RecoveryKind::Rollback,
    },
    Kind {
        name: "spare",
        replicas: 0,
        spares: 1,
        with_trainer: false,
        expected: RecoveryKind::Spare,
    },
    Kind {
        name: "failover",
        replicas: 1,
        spares: 0,
        with_trainer: false,
        expected: RecoveryKind::Failover,
    },
    Kind {
        name: "failover, with a trainer",
        replicas: 1,
        spares: 0,
        with_trainer: true,
        expected: RecoveryKind::Failover,
    },
];

/// Rows of recoveries by kind and name, ms.
type Figures = BTreeMap<(&'static str, &'static str), Vec<u64>>;

fn main() -> Result<()> {
    let args = Args::parse();
    fs::create_dir_all(&args.dir)?;
    let folder = tempfile::tempdir_in(&args.dir)?;
    let dir = folder.path().canonicalize()?;
    let features = u32::try_from(args.megabytes * 1_000_000 / ROW)?;
    write_libsvm(&dir.join("data"), "train", 4, 20_000, features, 40, 7)?;
    let mut figures = Figures::new();
    for round in 0..args.rounds {
        for kind in &KINDS {
            measure(&dir, features, kind, &mut figures)?;
            eprintln!("round {} of {}: {}", round + 1, args.rounds, kind.name);
        }
    }
    print(&figures);
    if args.raw {
        for ((kind, row), values) in &figures {
            println!("{kind}, {row}: {values:?}");
        }
    }
    Ok(())
}

fn job(dir: &Path, features: u32, Kind { replicas, spares, .. }: &Kind) -> Result<()> {
    let text = format!(
        "name = \"recovery\"\n[data]\ntrain = \"data/train-*.libsvm\"\npasses = 1000\n\
         [model]\nfeatures = {features}\n\
         [training]\nconsistency = \"bsp\"\nlanes = 4\nbatch = 256\n\
         [pservers]\ncount = 3\nmemory = \"6GiB\"\nreplicas = {replicas}\nspares = {spares}\n\
         [trainers]\nmin = 2\nmax = 2\n\
         [checkpoint]\ndir = \"checkpoints\"\n[output]\nmodel = \"model\"\n"
    );
    Ok(fs::write(dir.join("job.toml"), text)?)
}

/// One job: its processes are killed in a step after the first checkpoint with files. With backups another one after the refill.
fn measure(dir: &Path, features: u32, kind: &Kind, figures: &mut Figures) -> Result<()> {
    job(dir, features, kind)?;
    let mut run = Run::start(dir, "job.toml", &["--fresh"])?;
    let view = run.wait_for("steps", LIMIT, is_training)?;
    let taken = heddle(dir, &["checkpoint", "now", &view.run.short()])?;
    ensure!(taken.code == Some(0), "{taken:?}");
    for number in 0..=kind.replicas {
        let pserver = Slot::pserver(1 + number);
        let killed: Vec<Slot> = match kind.with_trainer {
            true => vec![pserver, Slot::trainer(1)],
            false => vec![pserver],
        };
        let before = run.wait_for("all copies and spares are there", LIMIT, |view| {
            let spares = view.spares.as_ref().map(|it| it.pservers);
            let is_ready = spares.is_none_or(|it| it.ready == it.wanted);
            let whole = view.replication.as_ref().is_none_or(|it| it.under_replicated == 0);
            whole && is_ready && is_training(view) && view.slots.iter().all(|place| place.pid > 0)
        })?;
        let known = before.recoveries.len();
        let pids: Vec<_> =
            killed.iter().map(|slot| pid_of(&before, *slot)).collect::<Result<_>>()?;
        let begun = Instant::now();
        for pid in pids {
            kill9(pid)?;
        }
        let after = run.wait_for("all train again", LIMIT, |view| {
            view.recoveries.len() >= known + killed.len()
                && view.recoveries.iter().all(|recovery| recovery.done)
        })?;
        let seen = u64::try_from(begun.elapsed().as_millis())?;
        let recovered = after.recoveries[known..].iter();
        for recovery in recovered.filter(|it| it.slot == Some(pserver)) {
            ensure!(recovery.kind == kind.expected, "{}: {recovery:?}", kind.name);
            add(figures, kind.name, recovery, seen);
        }
    }
    run.end(dir, LIMIT)
}

fn is_training(view: &JobView) -> bool {
    view.state == JobState::Running && view.step.0 > 3
}

fn add(figures: &mut Figures, kind: &'static str, recovery: &RecoveryView, seen: u64) {
    let rows = [
        ("2 notice", recovery.notice_ms),
        ("3 restart", recovery.restart_ms),
        ("4 load", recovery.load_ms),
        ("5 resume", recovery.resume_ms),
        ("6 kill → all train, by the test's clock", Some(seen)),
    ];
    for (row, value) in rows {
        if let Some(value) = value {
            figures.entry((kind, row)).or_default().push(value);
        }
    }
}

/// One line for each row, one column for each kind: medians with their range.
fn print(figures: &Figures) {
    let names: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
    println!("| ms, median (range) | {} |", names.join(" | "));
    println!("| --- |{}", " --- |".repeat(names.len()));
    let mut rows: Vec<&str> = figures.keys().map(|(_, row)| *row).collect();
    rows.sort_unstable();
    rows.dedup();
    for row in rows {
        let cell = |name: &&str| {
            let mut values = figures.get(&(*name, row)).cloned().unwrap_or_default();
            values.sort_unstable();
            match values[..] {
                [] => "–".to_owned(),
                [first, .., last] => format!("{} ({first}–{last})", values[values.len() / 2]),
                [one] => one.to_string(),
            }
        };
        println!("| {row} | {} |", names.iter().map(cell).collect::<Vec<_>>().join(" | "));
    }
}
