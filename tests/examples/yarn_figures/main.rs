//! Measures jobs of Heddle and hello-yarn beside Hadoop's DistributedShell on one real cluster, and recoveries of jobs:
//! the figures of docs/performance.md.
//!
//! ```text
//! HEDDLE_PROGRAM=$(scripts/release.sh) cargo run --release -p heddle-tests --example yarn_figures
//! ```
//!
//! The three start one worker each, in turn, five times after a first round that is not counted. Times come from the
//! logs of the ResourceManager and the NodeManagers, the same lines for all; the start of training from the log of the
//! trainer; memory is the peak resident set. No process has fail points: the program may be the released one.
//!
//! `-- --protection` measures only recoveries with plain and with encrypted connections between containers.

mod daemons;
mod recovery;
mod start;

use std::collections::BTreeMap;

use anyhow::Result;
use heddle_tests::hadoop::{Cluster, Options};

/// What one run showed, by name: seconds or MB.
type Figures = BTreeMap<&'static str, f64>;

fn main() -> Result<()> {
    let compares_protection = std::env::args().any(|argument| argument == "--protection");
    if !compares_protection {
        let cluster = Cluster::start(Options {
            // A file is on as many disks as on a cluster, and closing one does not wait for a single DataNode's report.
            datanodes: 3,
            ..Options::default()
        })?;
        start::measure(&cluster)?;
    }
    let cluster = Cluster::start(Options {
        datanodes: 3,
        am_expiry_ms: 60_000,
        nm_expiry_ms: 5_000,
        ..Options::default()
    })?;
    if compares_protection {
        return recovery::compare_protection(&cluster);
    }
    recovery::measure(&cluster)
}

/// One line for each figure, one column for each program or fault: medians with their range.
fn print(title: &str, runs: &BTreeMap<&str, Vec<Figures>>) {
    let names: Vec<&str> = runs.keys().copied().collect();
    println!("| {title}, median (range) | {} |", names.join(" | "));
    println!("| --- |{}", " --- |".repeat(names.len()));
    let mut rows: Vec<&str> = runs.values().flatten().flat_map(|run| run.keys().copied()).collect();
    rows.sort_unstable();
    rows.dedup();
    for row in rows {
        let cells: Vec<String> = names.iter().map(|name| cell(&runs[name], row)).collect();
        println!("| {row} | {} |", cells.join(" | "));
    }
    println!();
}

fn cell(runs: &[Figures], name: &str) -> String {
    let mut values: Vec<f64> = runs.iter().filter_map(|run| run.get(name).copied()).collect();
    values.sort_by(f64::total_cmp);
    match values[..] {
        [] => "–".to_owned(),
        [first, .., last] => format!("{:.2} ({first:.2}–{last:.2})", values[values.len() / 2]),
        [one] => format!("{one:.2}"),
    }
}
