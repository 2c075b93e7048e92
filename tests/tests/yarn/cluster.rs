//! The cluster harness itself: what it starts ends with it, however the test ends.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use heddle_tests::hadoop::{Cluster, Daemon, Options, wait_until};

/// Set in the process that plays a test which is killed.
const VICTIM: &str = "HEDDLE_CLUSTER_VICTIM";

fn small() -> Options {
    Options { nodemanagers: 1, ..Options::default() }
}

/// Not a test by itself: the process that [`daemons_end_when_the_test_is_killed`] kills.
#[test]
fn victim() -> Result<()> {
    if env::var_os(VICTIM).is_none() {
        return Ok(());
    }
    let cluster = Cluster::start(small())?;
    println!("victim-dir {}", cluster.dir().display());
    loop {
        std::thread::park();
    }
}

/// How many processes name the cluster's directory on their command line.
fn processes(dir: &Path) -> Result<usize> {
    let mark = format!("-Dheddle.dir={}/", dir.display());
    let mut found = 0;
    for entry in fs::read_dir("/proc")? {
        let line = fs::read(entry?.path().join("cmdline")).unwrap_or_default();
        found += usize::from(line.windows(mark.len()).any(|window| window == mark.as_bytes()));
    }
    Ok(found)
}

#[test]
fn daemons_end_when_the_test_is_killed() -> Result<()> {
    let mut victim = Command::new(env::current_exe()?)
        .args(["--exact", "cluster::victim", "--nocapture"])
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .spawn()?;
    let output = BufReader::new(victim.stdout.take().context("piped above")?);
    let dir = output
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.split_once("victim-dir ").map(|(_, dir)| dir.to_owned()))
        .context("the victim did not start a cluster")?;
    let dir = Path::new(&dir);
    ensure!(processes(dir)? == 4, "NameNode, DataNode, ResourceManager, NodeManager");
    victim.kill()?;
    victim.wait()?;
    wait_until("all processes and the directory are gone", Duration::from_secs(20), || {
        let left = processes(dir)?;
        ensure!(
            left == 0 && !dir.exists(),
            "{left} processes left, directory there: {}",
            dir.exists()
        );
        Ok(())
    })
}

#[test]
fn a_killed_daemon_restarts_and_a_paused_one_continues() -> Result<()> {
    let cluster = Cluster::start(small())?;
    let nm = Daemon::NodeManager(1);
    let before = cluster.pid(nm);
    cluster.kill(nm)?;
    ensure!(cluster.pid(nm).is_none(), "it was killed");
    cluster.restart(nm)?;
    cluster.pause(Daemon::DataNode(1))?;
    cluster.resume(Daemon::DataNode(1))?;
    cluster.wait_ready()?;
    ensure!(cluster.pid(nm).is_some() && cluster.pid(nm) != before, "another process");
    ensure!(
        cluster.rm_get("/ws/v1/cluster/nodes")?["nodes"]["node"][0]["nodeHostName"]
            == cluster.host(nm)
    );
    let dir = cluster.dir().to_owned();
    cluster.stop()?;
    ensure!(processes(&dir)? == 0 && !dir.exists(), "stopping leaves nothing");
    Ok(())
}
