//! From the submission to the first worker and the first gradient, and what client and ApplicationMaster weigh.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use heddle_tests::hadoop::{Cluster, wait_until};
use heddle_tests::hdfs_job::Shape;
use heddle_tests::local::program;
use heddle_tests::yarn_job::YarnJob;

use crate::daemons::{
    applications, logged, now_s, of_clock, peak_mb, peak_mb_of_container, worker_time,
};
use crate::{Figures, print};

const ROUNDS: usize = 5;
const WAIT: Duration = Duration::from_secs(60);

pub fn measure(cluster: &Cluster) -> Result<()> {
    let mut runs: BTreeMap<&str, Vec<Figures>> = BTreeMap::new();
    for round in 0..=ROUNDS {
        for name in ["DistributedShell", "heddle", "hello-yarn"] {
            // Its folders on HDFS are there before the clock starts.
            let job = YarnJob::bsp(cluster, &format!("{name}-{round}"), SHAPE)?;
            let client = match name {
                "hello-yarn" => hello(cluster)?,
                "heddle" => heddle(&job)?,
                _ => distributed_shell(cluster)?,
            };
            let figures = of_run(cluster, client, name == "heddle")?;
            eprintln!("{round} {name} {figures:.3?}");
            // The first round localises files and warms caches.
            if round > 0 {
                runs.entry(name).or_default().push(figures);
            }
        }
    }
    print("start", &runs);
    Ok(())
}

/// About four seconds of steps, during which processes are weighed.
const SHAPE: Shape = Shape { passes: 2_000, every: "2s", local_data: false };

fn heddle(job: &YarnJob<'_>) -> Result<Command> {
    let mut command = job.submit_command(&["--json", "--set", "pservers.count=1"])?;
    command.args(["--set", "trainers.min=1", "--set", "trainers.max=1"]);
    command.args(job.shell("", "")?);
    Ok(command)
}

fn hello(cluster: &Cluster) -> Result<Command> {
    let mut command = Command::new(program("hello-yarn")?);
    command
        .args(["submit", "--containers", "1", "--", "sleep", "4"])
        .env("HADOOP_CONF_DIR", cluster.conf_dir());
    Ok(command)
}

fn distributed_shell(cluster: &Cluster) -> Result<Command> {
    let jar = cluster
        .jar("hadoop-yarn-applications-distributedshell")
        .context("no DistributedShell among the jars")?;
    let mut command = cluster.java("org.apache.hadoop.yarn.applications.distributedshell.Client");
    command
        .arg("-jar")
        .arg(jar)
        .args(["-shell_command", "sleep", "-shell_args", "4", "-num_containers", "1"])
        .args(["-container_memory", "64", "-master_memory", "256"]);
    Ok(command)
}

/// Runs the client to the end of its application.
fn of_run(cluster: &Cluster, mut command: Command, trains: bool) -> Result<Figures> {
    let before = applications(cluster)?;
    let started = Instant::now();
    let mut client = command
        .env("HADOOP_USER_NAME", "alice")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let output = BufReader::new(client.stdout.take().context("piped above")?);
    thread::spawn(move || output.lines().map_while(Result::ok).for_each(drop));
    let id = wait_until("an application", WAIT, || {
        applications(cluster)?.into_iter().find(|id| !before.contains(id)).context("none yet")
    })?;
    let rm_log = || fs::read_to_string(cluster.dir().join("rm1.log"));
    let moment = |text: &str, state: &str| logged(text, &id, state);
    // The ResourceManager's clock is ours.
    let wall =
        |started: Instant| Ok::<_, anyhow::Error>(now_s()? - started.elapsed().as_secs_f64());
    let start = wall(started)?;
    wait_until("a worker", WAIT, || {
        ensure!(worker_time(cluster, &id)?.is_some(), "no worker");
        Ok(())
    })?;
    let am = format!("{}_01_000001", id.replace("application", "container"));
    // In the middle of the four seconds that the worker sleeps or trains.
    thread::sleep(Duration::from_secs(1));
    let am_mb = peak_mb_of_container(&am)?;
    let client_mb = peak_mb(&client)?;
    ensure!(client.wait()?.success(), "{command:?} failed");

    let log = rm_log()?;
    let submitted = moment(&log, "from NEW to NEW_SAVING").context("submission in the log")?;
    let accepted = moment(&log, "from SUBMITTED to ACCEPTED").context("acceptance in the log")?;
    let registered = moment(&log, "from ACCEPTED to RUNNING").context("registration in the log")?;
    let worker = worker_time(cluster, &id)?.context("the worker in the log")?;
    let mut figures = Figures::from([
        ("1 client start → accepted, s", accepted - start),
        ("2 submit → ApplicationMaster registered, s", registered - submitted),
        ("3 submit → first worker, s", worker - submitted),
        ("5 client, MB", client_mb),
        ("6 ApplicationMaster, MB", am_mb),
    ]);
    if trains {
        let begun = training_begun(cluster, &id)?;
        figures.insert("4 submit → training begins, s", begun - submitted);
    }
    Ok(figures)
}

/// When the trainer began its first step, by its log: seconds of the day in the zone of the daemons' logs.
fn training_begun(cluster: &Cluster, id: &str) -> Result<f64> {
    let mut first: Option<f64> = None;
    for n in 1..=3 {
        let folder = cluster.dir().join(format!("nm{n}/logs/{id}"));
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let log = fs::read_to_string(entry.path().join("trainer.log")).unwrap_or_default();
            let line = log.lines().find(|line| line.contains("lanes_assigned"));
            // 2026-11-21T12:47:25.388123Z …
            let clock = line.and_then(|line| line.split_once('T')?.1.split_once('Z'));
            if let Some(time) = clock.and_then(|(clock, _)| of_clock(clock)) {
                first = Some(first.map_or(time, |first| first.min(time)));
            }
        }
    }
    let zone = Command::new("date").arg("+%:z").output()?;
    let zone = String::from_utf8(zone.stdout)?;
    let hours = zone.trim().trim_start_matches(['+', '-']);
    let ahead = of_clock(&format!("{hours}:0")).context("date prints the zone")?;
    let ahead = if zone.starts_with('-') { -ahead } else { ahead };
    Ok(first.context("no training began")? + ahead)
}
