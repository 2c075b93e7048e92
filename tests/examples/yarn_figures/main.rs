//! Measures hello-yarn beside Hadoop's DistributedShell on one real cluster: the figures of docs/performance.md.
//!
//! ```text
//! cargo build --release -p hello-yarn
//! cargo run --release -p heddle-tests --example yarn_figures
//! ```
//!
//! Both run one container with `sleep 4`, in turn, five times after a first round that is not counted. Times come from
//! the logs of the ResourceManager and the NodeManagers, the same lines for both; memory is the peak resident set.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result, ensure};
use heddle_tests::hadoop::{Cluster, Options, wait_until};
use heddle_tests::local::program;

const ROUNDS: usize = 5;
const WAIT: Duration = Duration::from_secs(60);

/// What one run showed, by name: seconds or MB.
type Figures = BTreeMap<&'static str, f64>;

fn main() -> Result<()> {
    let cluster = Cluster::start(Options::default())?;
    let mut runs: BTreeMap<&str, Vec<Figures>> = BTreeMap::new();
    for round in 0..=ROUNDS {
        for name in ["hello-yarn", "DistributedShell"] {
            let client = if name == "hello-yarn" {
                hello(&cluster)?
            } else {
                distributed_shell(&cluster)?
            };
            let figures = measure(&cluster, client)?;
            eprintln!("{round} {name} {figures:.3?}");
            // The first round localises files and warms caches.
            if round > 0 {
                runs.entry(name).or_default().push(figures);
            }
        }
    }
    println!("| median of {ROUNDS} (range) | hello-yarn | DistributedShell |\n| --- | --- | --- |");
    let names: Vec<&str> = runs["hello-yarn"][0].keys().copied().collect();
    for name in names {
        println!(
            "| {name} | {} | {} |",
            cell(&runs["hello-yarn"], name),
            cell(&runs["DistributedShell"], name)
        );
    }
    Ok(())
}

fn cell(runs: &[Figures], name: &str) -> String {
    let mut values: Vec<f64> = runs
        .iter()
        .filter_map(|run| run.get(name).copied())
        .collect();
    values.sort_by(f64::total_cmp);
    match values[..] {
        [] => "?".to_owned(),
        [first, .., last] => format!("{:.2} ({first:.2}–{last:.2})", values[values.len() / 2]),
        [one] => format!("{one:.2}"),
    }
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
        .args([
            "-shell_command",
            "sleep",
            "-shell_args",
            "4",
            "-num_containers",
            "1",
        ])
        .args(["-container_memory", "64", "-master_memory", "256"]);
    Ok(command)
}

/// Runs the client to the end of its application.
fn measure(cluster: &Cluster, mut command: Command) -> Result<Figures> {
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
        applications(cluster)?
            .into_iter()
            .find(|id| !before.contains(id))
            .context("none yet")
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
    // In the middle of the four seconds that the worker sleeps.
    thread::sleep(Duration::from_secs(1));
    let am_mb = peak_mb_of_container(&am)?;
    let client_mb = peak_mb(&client)?;
    ensure!(client.wait()?.success(), "{command:?} failed");

    let log = rm_log()?;
    let submitted = moment(&log, "from NEW to NEW_SAVING").context("submission in the log")?;
    let accepted = moment(&log, "from SUBMITTED to ACCEPTED").context("acceptance in the log")?;
    let registered = moment(&log, "from ACCEPTED to RUNNING").context("registration in the log")?;
    let worker = worker_time(cluster, &id)?.context("the worker in the log")?;
    Ok(Figures::from([
        ("1 client start → accepted, s", accepted - start),
        (
            "2 submit → ApplicationMaster registered, s",
            registered - submitted,
        ),
        ("3 submit → first worker, s", worker - submitted),
        ("4 client, MB", client_mb),
        ("5 ApplicationMaster, MB", am_mb),
    ]))
}

fn applications(cluster: &Cluster) -> Result<Vec<String>> {
    let apps = cluster.rm_get("/ws/v1/cluster/apps")?;
    let list = apps["apps"]["app"].as_array().cloned().unwrap_or_default();
    Ok(list
        .iter()
        .filter_map(|app| app["id"].as_str().map(str::to_owned))
        .collect())
}

/// When the line with all of these was logged: seconds of the day.
fn logged(log: &str, id: &str, words: &str) -> Option<f64> {
    let line = log
        .lines()
        .find(|line| line.contains(id) && line.contains(words))?;
    // 2026-11-21 12:47:25,388 …
    let clock = line.split(' ').nth(1)?;
    let mut parts = clock.split([':', ',']).map(|part| part.parse::<f64>().ok());
    let (hours, minutes, seconds, millis) = (
        parts.next()??,
        parts.next()??,
        parts.next()??,
        parts.next()??,
    );
    Some(hours * 3600.0 + minutes * 60.0 + seconds + millis / 1000.0)
}

fn worker_time(cluster: &Cluster, id: &str) -> Result<Option<f64>> {
    let worker = format!("{}_01_000002", id.replace("application", "container"));
    for n in 1..=3 {
        let log = fs::read_to_string(cluster.dir().join(format!("nm{n}.log")))?;
        if let Some(time) = logged(&log, &worker, "to RUNNING") {
            return Ok(Some(time));
        }
    }
    Ok(None)
}

/// Seconds of the day, by the clock and the zone of the daemons' logs.
fn now_s() -> Result<f64> {
    let output = Command::new("date").arg("+%H %M %S.%N").output()?;
    let text = String::from_utf8(output.stdout)?;
    let parts: Vec<f64> = text
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let [hours, minutes, seconds] = parts[..] else {
        anyhow::bail!("date says {text}")
    };
    Ok(hours * 3600.0 + minutes * 60.0 + seconds)
}

fn peak_mb(process: &Child) -> Result<f64> {
    peak_of(&Path::new("/proc").join(process.id().to_string())).context("the client runs")
}

/// The largest process of a container.
fn peak_mb_of_container(container: &str) -> Result<f64> {
    let mark = format!("CONTAINER_ID={container}");
    let mut peak: f64 = 0.0;
    for entry in fs::read_dir("/proc")? {
        let folder = entry?.path();
        let environment = fs::read(folder.join("environ")).unwrap_or_default();
        if environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == mark.as_bytes())
        {
            peak = peak.max(peak_of(&folder).unwrap_or(0.0));
        }
    }
    ensure!(peak > 0.0, "no process of {container}");
    Ok(peak)
}

/// Peak resident set, MB.
fn peak_of(process: &Path) -> Option<f64> {
    let status = fs::read_to_string(process.join("status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024.0 / 1e6)
}
