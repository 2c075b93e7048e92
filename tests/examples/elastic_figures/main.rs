//! Measures elastic jobs on a cluster that they fill, with the controller and without it. The figures of docs/elastic.md.
//!
//! ```text
//! cargo build --workspace --bins
//! cargo run -p heddle-tests --example elastic_figures -- arrivals --raw FILE
//! cargo run -p heddle-tests --example elastic_figures -- service
//! ```
//!
//! Four NodeManagers of 64 vcores, and counting jobs whose trainers have 8 vcores. A step sleeps for a second, so cores of this
//! machine are not what is measured.

mod arrivals;
mod service;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use heddle_tests::controller::{Controller, group_of, make_folder};
use heddle_tests::hadoop::{Cluster, Options, wait_until};
use heddle_tests::yarn_job::{Counting, Submitted};

const LIMIT: Duration = Duration::from_secs(600);
const VCORES: u32 = 4 * 64;
const SERVICE_USER: &str = "service";
const DIR: &str = "/controllers/figures";

/// Figures of elastic jobs.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Subcommand)]
enum Experiment {
    /// Jobs arrive faster than the cluster serves them: a FIFO queue, a fair scheduler with preemption, the controller.
    Arrivals {
        /// File to which each job's times are appended, as a line of JSON.
        #[arg(long)]
        raw: Option<PathBuf>,
    },
    /// A service that grows and shrinks, beside jobs of fixed sizes and beside elastic ones.
    Service,
}

fn main() -> Result<()> {
    match Args::parse().experiment {
        Experiment::Arrivals { raw } => arrivals::measure(raw.as_deref()),
        Experiment::Service => service::measure(),
    }
}

/// A cluster with these properties of yarn-site.xml, and the controller's folder.
fn start_cluster(properties: &[(&str, &str)]) -> Result<Cluster> {
    let vcores = [("yarn.nodemanager.resource.cpu-vcores", "64")];
    let of_yarn = vcores
        .iter()
        .chain(properties)
        .map(|(key, value)| ("yarn-site.xml".to_owned(), (*key).to_owned(), (*value).to_owned()));
    let properties = of_yarn.chain([group_of(SERVICE_USER)]).collect();
    let cluster = Cluster::start(Options { nodemanagers: 4, properties, ..Options::default() })?;
    make_folder(&cluster, "root", SERVICE_USER, DIR)?;
    Ok(cluster)
}

/// A controller that leads, which logs to the folder of a job.
fn start_controller(job: &Counting<'_>) -> Result<Controller> {
    let mut command = job.job.command()?;
    command.env("HADOOP_USER_NAME", SERVICE_USER);
    let log = job.job.path().join("controller.log");
    let controller = Controller::start(command, &format!("hdfs://{DIR}"), log)?;
    wait_until("it leads", LIMIT, || {
        ensure!(controller.log().contains("leads: "), "{}", controller.log());
        Ok(())
    })?;
    Ok(controller)
}

/// Submits a job of trainers of 8 vcores with these keys.
fn submit<'c>(job: &Counting<'c>, keys: &[&str], is_controlled: bool) -> Result<Submitted<'c>> {
    let dir = format!("controller.dir=hdfs://{DIR}");
    let mut keys = [&["trainers.vcores=8", "pservers.count=1"], keys].concat();
    if is_controlled {
        keys.extend(["run.elastic=controller", &dir]);
    }
    let keys: Vec<&str> = keys.iter().flat_map(|key| ["--set", key]).collect();
    job.job.submit(&keys, "step-computed=return(sleep=1000)")
}

/// The sum over time of the part of the vcores that containers have, in seconds, until `is_done`.
fn vcores_used(cluster: &Cluster, is_done: impl Fn() -> bool) -> Result<f64> {
    let mut sum = 0.0;
    let mut last = Instant::now();
    while !is_done() {
        std::thread::sleep(Duration::from_millis(500));
        let metrics = cluster.rm_get("/ws/v1/cluster/metrics")?;
        let used = metrics["clusterMetrics"]["allocatedVirtualCores"].as_f64();
        sum += used.context("no figure")? / f64::from(VCORES) * last.elapsed().as_secs_f64();
        last = Instant::now();
    }
    Ok(sum)
}
