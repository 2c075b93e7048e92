//! Measures elastic jobs that arrive faster than the cluster serves them, with the controller and without it. The figures of
//! docs/elastic.md.
//!
//! ```text
//! cargo build --workspace --bins
//! cargo run -p heddle-tests --example elastic_figures -- --raw FILE
//! ```
//!
//! Four NodeManagers of 64 vcores. Twelve counting jobs arrive, one each 8 s, of one to eight trainers of 8 vcores, and 300
//! trainer-seconds of work: a step sleeps for a second, so cores of this machine are not what is measured. Without the controller
//! a job asks for all of its trainers, and the queue serves jobs in their order. Pending: from the submission until the job trains.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use heddle_protocol::view::JobState;
use heddle_tests::controller::{Controller, group_of, make_folder};
use heddle_tests::hadoop::{Cluster, Options};
use heddle_tests::yarn_job::Counting;

const JOBS: u32 = 12;
const EVERY: Duration = Duration::from_secs(8);
const LIMIT: Duration = Duration::from_secs(600);
/// Files of the job's data, and samples in each: five are a step.
const DATA: [u32; 2] = [60, 25];
const VCORES: u32 = 4 * 64;
const SERVICE: &str = "service";
const DIR: &str = "/controllers/figures";

/// Figures of elastic jobs.
#[derive(Parser)]
struct Args {
    /// File to which each job's times are appended, as a line of JSON.
    #[arg(long)]
    raw: Option<PathBuf>,
}

/// A job's times, seconds.
#[derive(Clone)]
struct JobTimes {
    policy: &'static str,
    job: u32,
    /// From the submission until it trains.
    pending: f64,
    /// From the submission to its end.
    completion: f64,
    /// Of its end, ms since 1970.
    ended_ms: i64,
    began_ms: i64,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let cluster = Cluster::start(Options {
        nodemanagers: 4,
        properties: vec![
            ("yarn-site.xml".into(), "yarn.nodemanager.resource.cpu-vcores".into(), "64".into()),
            group_of(SERVICE),
        ],
        ..Options::default()
    })?;
    make_folder(&cluster, "root", SERVICE, DIR)?;
    println!(
        "| policy | mean pending, s | longest | mean completion | all done after | vcores used | changes a job |\n\
         | --- | --- | --- | --- | --- | --- | --- |"
    );
    let mut raw = match &args.raw {
        Some(path) => Some(File::options().create(true).append(true).open(path)?),
        None => None,
    };
    for policy in ["FIFO", "controller"] {
        for times in run(&cluster, policy)? {
            if let Some(raw) = &mut raw {
                let JobTimes { policy, job, pending, completion, .. } = times;
                let line = serde_json::json!({
                    "policy": policy, "job": job, "pending_s": pending, "completion_s": completion,
                });
                writeln!(raw, "{line}")?;
            }
        }
    }
    Ok(())
}

/// All jobs with this policy; prints their row.
fn run(cluster: &Cluster, policy: &'static str) -> Result<Vec<JobTimes>> {
    let names: Vec<String> = (0..JOBS).map(|job| format!("figures-{policy}-{job}")).collect();
    let jobs = names.iter().map(|name| Counting::of_files(cluster, name, "asp", 1, DATA));
    let jobs = jobs.collect::<Result<Vec<_>>>()?;
    let log = jobs[0].job.path().join("controller.log");
    let is_controlled = policy == "controller";
    let controller = is_controlled.then(|| start_controller(&jobs[0], log)).transpose()?;
    let done = AtomicBool::new(false);
    let began = Instant::now();
    let (times, used) = std::thread::scope(|threads| {
        let used = threads.spawn(|| vcores_used(cluster, &done));
        let running: Vec<_> = (0..)
            .zip(&jobs)
            .map(|(number, job)| {
                threads.spawn(move || {
                    std::thread::sleep((began + EVERY * number).duration_since(Instant::now()));
                    train(job, policy, number)
                })
            })
            .collect();
        let times: Vec<Result<JobTimes>> =
            running.into_iter().map(|job| job.join().expect("no panic")).collect();
        done.store(true, Ordering::Relaxed);
        (times, used.join().expect("no panic"))
    });
    let times = times.into_iter().collect::<Result<Vec<_>>>()?;
    let changes = controller.as_ref().map(Controller::log).unwrap_or_default();
    drop(controller);
    let changes = changes.lines().filter(|line| line.contains(" from ")).count();
    let mean =
        |value: fn(&JobTimes) -> f64| times.iter().map(value).sum::<f64>() / times.len() as f64;
    let longest = times.iter().map(|job| job.pending).fold(0.0, f64::max);
    let ended = times.iter().map(|job| job.ended_ms).max().context("jobs")?;
    let first = times.iter().map(|job| job.began_ms).min().context("jobs")?;
    let all = (ended - first) as f64 / 1e3;
    println!(
        "| {policy} | {:.1} | {longest:.1} | {:.1} | {all:.0} s | {:.0} % | {:.1} |",
        mean(|job| job.pending),
        mean(|job| job.completion),
        used? / all * 100.0,
        changes as f64 / f64::from(JOBS),
    );
    Ok(times)
}

fn start_controller(job: &Counting<'_>, log: PathBuf) -> Result<Controller> {
    let mut command = job.job.command()?;
    command.env("HADOOP_USER_NAME", SERVICE);
    Controller::start(command, &format!("hdfs://{DIR}"), log)
}

fn train(job: &Counting<'_>, policy: &'static str, number: u32) -> Result<JobTimes> {
    let dir = format!("controller.dir=hdfs://{DIR}");
    let mut keys =
        vec!["trainers.min=1", "trainers.max=8", "trainers.vcores=8", "pservers.count=1"];
    if policy == "controller" {
        keys.extend(["run.elastic=controller", &dir]);
    }
    let keys: Vec<&str> = keys.iter().flat_map(|key| ["--set", key]).collect();
    let mut submitted = job.job.submit(&keys, "step-computed=return(sleep=1000)")?;
    submitted.wait_for("it trains", LIMIT, |view| view.state == JobState::Running)?;
    let running_ms = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as i64;
    submitted.ends_well(LIMIT)?;
    job.check()?;
    let report = submitted.report()?;
    ensure!(report.finish_time_ms > 0, "{report:?}");
    let seconds = |until_ms: i64| (until_ms - report.start_time_ms) as f64 / 1e3;
    Ok(JobTimes {
        policy,
        job: number,
        pending: seconds(running_ms),
        completion: seconds(report.finish_time_ms),
        ended_ms: report.finish_time_ms,
        began_ms: report.start_time_ms,
    })
}

/// The sum over time of the part of the vcores that containers have, in seconds.
fn vcores_used(cluster: &Cluster, done: &AtomicBool) -> Result<f64> {
    let mut sum = 0.0;
    let mut last = Instant::now();
    while !done.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(500));
        let metrics = cluster.rm_get("/ws/v1/cluster/metrics")?;
        let used = metrics["clusterMetrics"]["allocatedVirtualCores"].as_f64();
        sum += used.context("no figure")? / f64::from(VCORES) * last.elapsed().as_secs_f64();
        last = Instant::now();
    }
    Ok(sum)
}
