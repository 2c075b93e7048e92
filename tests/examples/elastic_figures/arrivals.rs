//! Twelve jobs arrive, one each 8 s, of one to eight trainers and 300 trainer-seconds of work. Without the controller a job asks
//! for all of its trainers: a FIFO queue serves jobs in their order, and a fair scheduler takes containers back after 5 s.
//! Pending: from the submission until the job trains.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use heddle_protocol::view::JobState;
use heddle_tests::controller::Controller;
use heddle_tests::hadoop::Cluster;
use heddle_tests::logs::KILLS;
use heddle_tests::yarn_job::Counting;

use super::{LIMIT, start_cluster, start_controller, submit, vcores_used};

const JOBS: u32 = 12;
const EVERY: Duration = Duration::from_secs(8);
/// Files of the job's data, and samples in each: five are a step.
const DATA: [u32; 2] = [60, 25];

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

/// Prints the table of all policies.
pub fn measure(raw: Option<&Path>) -> Result<()> {
    println!(
        "| policy | mean pending, s | longest | mean completion | all done after | vcores used | changes a job |\n\
         | --- | --- | --- | --- | --- | --- | --- |"
    );
    let cluster = start_cluster(&[])?;
    for policy in ["FIFO", "controller"] {
        row(&cluster, policy, raw)?;
    }
    drop(cluster);
    let pools = tempfile::NamedTempFile::new()?;
    let preempts = "<fairSharePreemptionTimeout>5</fairSharePreemptionTimeout>\
        <fairSharePreemptionThreshold>1.0</fairSharePreemptionThreshold>\
        <schedulingPolicy>drf</schedulingPolicy>";
    let pool = format!("<queue name=\"default\">{preempts}</queue>");
    std::fs::write(pools.path(), format!("<allocations>{pool}</allocations>\n"))?;
    let pools = pools.path().display().to_string();
    let cluster = start_cluster(&[
        ("yarn.resourcemanager.scheduler.class", FAIR_SCHEDULER),
        ("yarn.scheduler.fair.allocation.file", &pools),
        ("yarn.scheduler.fair.preemption", "true"),
        ("yarn.scheduler.fair.preemption.cluster-utilization-threshold", "0"),
        ("yarn.resource-types.memory-mb.increment-allocation", "64"),
    ])?;
    row(&cluster, "fair", raw)
}

const FAIR_SCHEDULER: &str =
    "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fair.FairScheduler";

/// Runs all jobs with a policy, prints its row, and appends the times of each job.
fn row(cluster: &Cluster, policy: &'static str, raw: Option<&Path>) -> Result<()> {
    let times = run(cluster, policy)?;
    let Some(path) = raw else { return Ok(()) };
    let mut raw = File::options().create(true).append(true).open(path)?;
    for JobTimes { policy, job, pending, completion, .. } in times {
        let line = serde_json::json!({
            "policy": policy, "job": job, "pending_s": pending, "completion_s": completion,
        });
        writeln!(raw, "{line}")?;
    }
    Ok(())
}

/// All jobs with this policy; prints their row.
fn run(cluster: &Cluster, policy: &'static str) -> Result<Vec<JobTimes>> {
    let names: Vec<String> = (0..JOBS).map(|job| format!("figures-{policy}-{job}")).collect();
    let jobs = names.iter().map(|name| Counting::of_files(cluster, name, "asp", 1, DATA));
    let jobs = jobs.collect::<Result<Vec<_>>>()?;
    let is_controlled = policy == "controller";
    let controller = is_controlled.then(|| start_controller(&jobs[0])).transpose()?;
    let done = AtomicBool::new(false);
    let began = Instant::now();
    let (times, used) = std::thread::scope(|threads| {
        let used = threads.spawn(|| vcores_used(cluster, || done.load(Ordering::Relaxed)));
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

fn train(job: &Counting<'_>, policy: &'static str, number: u32) -> Result<JobTimes> {
    let is_controlled = policy == "controller";
    let submitted = submit(job, &["trainers.min=1", "trainers.max=8"], is_controlled)?;
    let mut submitted = submitted.expecting(KILLS);
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
