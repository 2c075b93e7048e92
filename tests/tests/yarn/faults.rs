//! hello-yarn through the faults of a cluster: a ResourceManager dies, fails over, rolls its keys; a node is lost.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use heddle_tests::hadoop::{Cluster, Daemon, Hello, Options};

fn submit<'c>(cluster: &'c Cluster, gate: &Path) -> Result<Hello<'c>> {
    // 1500 MiB each: no node of 4096 takes all of them.
    let options = ["--containers", "4", "--memory", "1500", "--"].map(str::to_owned);
    let command: Vec<String> = options.into_iter().chain(Hello::until(gate)).collect();
    Hello::submit(cluster, &command.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Waits until the ResourceManager counts four workers and the ApplicationMaster.
async fn five_containers(cluster: &Cluster, hello: &Hello<'_>) -> Result<()> {
    let client = cluster.yarn("alice")?;
    let id = hello.id.parse()?;
    let mut running = 0;
    for _ in 0..300 {
        running = client.report(id).await?.usage.containers;
        if running == 5 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bail!("{running} containers run")
}

#[tokio::test]
#[ignore = "nightly: a cluster of its own"]
async fn a_job_survives_rm_restarts_a_new_key_and_a_lost_node() -> Result<()> {
    let cluster = Cluster::start(Options {
        am_expiry_ms: 10_000,
        // More than three times the expiry of ApplicationMasters, or the ResourceManager does not start.
        amrm_token_roll_s: Some(31),
        ..Options::default()
    })?;
    let gate = cluster.dir().join("gate");
    let hello = submit(&cluster, &gate)?;
    let workers = hello.wait_workers(4)?;
    let rm = Daemon::ResourceManager(1);

    cluster.kill(rm)?;
    cluster.restart(rm)?;
    cluster.wait_ready()?;
    hello.wait_log(1, "Resynchronised", 1)?;
    five_containers(&cluster, &hello).await?;
    ensure!(hello.workers() == workers, "the same processes after the restart, and no others");

    // With the old key a new connection would be refused; the next restart makes one.
    hello.wait_log(1, "TokenRolled", 1)?;
    cluster.kill(rm)?;
    cluster.restart(rm)?;
    cluster.wait_ready()?;
    hello.wait_log(1, "Resynchronised", 2)?;
    five_containers(&cluster, &hello).await?;
    ensure!(
        hello.workers() == workers,
        "the same processes after the second restart, and no others"
    );
    let log = hello.am_log(1);
    ensure!(
        log.matches("Accepted").count() == 4 && !log.contains("Excess"),
        "nothing was doubled:\n{log}"
    );

    // A node with workers and without the ApplicationMaster.
    let am =
        hello.logs().into_iter().find(|(name, _)| Hello::is_am(name)).context("the AM's logs")?.1;
    let of_node = |n: u8| cluster.dir().join(format!("nm{n}"));
    let node = (1..=3)
        .filter(|n| !am.starts_with(of_node(*n)))
        .find(|n| hello.logs().values().any(|path| path.starts_with(of_node(*n))))
        .context("a node with workers alone")?;
    let lost: Vec<String> = hello
        .logs()
        .into_iter()
        .filter(|(_, path)| path.starts_with(of_node(node)))
        .map(|(name, _)| name)
        .collect();
    cluster.kill(Daemon::NodeManager(node))?;
    hello.wait_log(1, "ended with -100 (ABORTED)", lost.len())?;
    // The lost node's processes live on, unwatched, beside their replacements on the other nodes.
    let all = hello.wait_workers(4 + lost.len())?;
    let elsewhere = hello
        .logs()
        .iter()
        .filter(|(name, path)| {
            !workers.contains_key(*name)
                && !path.starts_with(of_node(node))
                && all.contains_key(*name)
        })
        .count();
    ensure!(elsewhere == lost.len(), "{elsewhere} replacements for {lost:?}");

    fs::write(&gate, "")?;
    hello.succeed()?;
    Ok(())
}

#[tokio::test]
#[ignore = "nightly: a cluster of its own"]
async fn job_and_client_follow_a_resourcemanager_failover() -> Result<()> {
    let cluster =
        Cluster::start(Options { nodemanagers: 2, resourcemanagers: 2, ..Options::default() })?;
    let gate = cluster.dir().join("gate");
    let hello = submit(&cluster, &gate)?;
    let workers = hello.wait_workers(4)?;

    // It keeps its connections and answers nothing, for longer than one try of a call lasts (5 s) and for less than
    // the expiry.
    cluster.pause(Daemon::ResourceManager(1))?;
    tokio::time::sleep(Duration::from_secs(6)).await;
    cluster.resume(Daemon::ResourceManager(1))?;
    five_containers(&cluster, &hello).await?;
    let log = hello.am_log(1);
    ensure!(
        !log.contains("Resynchronised") && hello.workers() == workers,
        "a pause changes nothing:\n{log}"
    );

    cluster.kill(Daemon::ResourceManager(1))?;
    cluster.activate(2)?;
    hello.wait_log(1, "Resynchronised", 1)?;
    five_containers(&cluster, &hello).await?;
    ensure!(hello.workers() == workers, "the same processes under the other ResourceManager");
    fs::write(&gate, "")?;
    let client = hello.succeed()?;
    ensure!(client.contains("Finished"), "the client saw the end: {client}");
    Ok(())
}
