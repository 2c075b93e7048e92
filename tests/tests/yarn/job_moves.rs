//! Shards of a BSP job move among pservers on a cluster of four NodeManagers, and processes die in the middle of moves: the
//! source, the destination, the ApplicationMaster, a node with its NodeManager. The job ends with the bytes of an
//! undisturbed run, and only the loss of a pserver that was the only one with a copy of a shard costs a rollback.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::MutexGuard;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use heddle_protocol::ids::{Role, Slot};
use heddle_protocol::view::JobView;
use heddle_tests::hadoop::{Cluster, Options, Shared, wait_until};
use heddle_tests::hdfs_job::Shape;
use heddle_tests::local::kill9;
use heddle_tests::logs::{KILLS, LOST_NODE};
use heddle_tests::yarn_job::{Process, Submitted, YarnJob, settled};

const LIMIT: Duration = Duration::from_secs(180);
/// Passes of a job for each fault, of three seconds: a test that has done its part lets the job run out.
const PASSES_A_ROUND: u32 = 20;
const SHARDS: u32 = 12;
/// As many pservers as the job begins with.
const FEW: u32 = 2;
const MANY: u32 = 4;
const ELASTIC: [&str; 10] = [
    "--set",
    "pservers.min=1",
    "--set",
    "pservers.max=4",
    "--set",
    "pservers.shards=12",
    "--set",
    "liveness.lag=8s",
    "--set",
    "yarn.max-attempts=10",
];

/// What dies while shards move.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Source,
    Destination,
    ApplicationMaster,
    /// A node without the ApplicationMaster, with the NodeManager.
    Node,
}

/// The one cluster of this file, for one test at a time and in health.
fn cluster() -> Result<(&'static Cluster, MutexGuard<'static, ()>)> {
    static CLUSTER: Shared = Shared::new();
    let options = || Options {
        nodemanagers: 4,
        am_expiry_ms: 60_000,
        nm_expiry_ms: 8_000,
        am_max_attempts: 10,
        ..Options::default()
    };
    CLUSTER.alone(options)
}

/// Whether this number of pservers serve all shards, as many each, and all moves and recoveries are over.
fn is_spread(view: &JobView, pservers: u32) -> bool {
    let copies = view.replication.as_ref();
    let is_even = copies.is_some_and(|copies| {
        copies.refills.is_empty()
            && copies.served.len() as u32 == pservers
            && copies.served.values().all(|shards| *shards == SHARDS / pservers)
    });
    let wanted = view.pservers.as_ref().is_some_and(|of| of.present == pservers);
    is_even && wanted && settled(view)
}

fn scale(job: &YarnJob<'_>, id: &str, pservers: u32) -> Result<()> {
    let scaled = job.heddle(&["scale", id, "pservers", &pservers.to_string()])?;
    ensure!(scaled.code == Some(0), "{scaled:?}");
    Ok(())
}

/// The processes on a node without the ApplicationMaster.
fn on_another_node(processes: &[Process]) -> Result<Vec<Process>> {
    let leads = processes.iter().find(|process| process.slot.is_none());
    let leads = leads.context("an ApplicationMaster")?.node;
    let elsewhere = processes.iter().find(|process| process.node != leads);
    let node = elsewhere.context("all containers are on one node")?.node;
    Ok(processes.iter().filter(|process| process.node == node).cloned().collect())
}

/// The processes that die, and how many of them have the only copy of a shard: each may cost a rollback of its own.
fn lost(victim: Victim, job: &Submitted<'_>, view: &JobView) -> Result<(Vec<Process>, usize)> {
    let copies = view.replication.as_ref().context("it is elastic")?;
    let refill = copies.refills.first().context("a shard moves")?;
    let processes = job.processes();
    let of = |slot: Slot| processes.iter().filter(move |process| process.slot == Some(slot));
    let lost: Vec<Process> = match victim {
        Victim::Source => of(refill.from).cloned().collect(),
        Victim::Destination => of(refill.to).cloned().collect(),
        Victim::ApplicationMaster => {
            processes.iter().filter(|process| process.slot.is_none()).cloned().collect()
        }
        Victim::Node => on_another_node(&processes)?,
    };
    let serves = |process: &Process| {
        let served = process.slot.and_then(|slot| copies.served.get(&slot));
        served.is_some_and(|shards| *shards > 0)
    };
    let only_copies = lost.iter().filter(|process| serves(process)).count();
    Ok((lost, only_copies))
}

/// Pservers grow from few to many and shrink again, and what the victim is dies in one of the two.
fn round(
    victim: Victim,
    pservers: u32,
    cluster: &Cluster,
    job: &YarnJob<'_>,
    submitted: &mut Submitted<'_>,
    slow_fills: &Path,
) -> Result<()> {
    submitted.wait_for("few pservers", LIMIT, |view| is_spread(view, FEW))?;
    if pservers == FEW {
        scale(job, &submitted.id, MANY)?;
        submitted.wait_for("many pservers", LIMIT, |view| is_spread(view, MANY))?;
    }
    let rollbacks = submitted.rollbacks().len();
    std::fs::write(slow_fills, "")?;
    scale(job, &submitted.id, pservers)?;
    let view = submitted.wait_for("shards move", LIMIT, |view| {
        view.replication.as_ref().is_some_and(|copies| !copies.refills.is_empty())
    })?;
    let (lost, only_copies) = lost(victim, submitted, &view)?;
    ensure!(!lost.is_empty(), "{victim:?} of {:?}", submitted.processes());
    let node = lost[0].node;
    if matches!(victim, Victim::Node) {
        cluster.kill(node)?;
    }
    for process in &lost {
        kill9(process.pid)?;
    }
    std::fs::remove_file(slow_fills)?;
    let pids: BTreeSet<u32> =
        lost.iter().map(|process| process.pid.as_raw().cast_unsigned()).collect();
    let attempt = view.attempt.0 + u32::from(matches!(victim, Victim::ApplicationMaster));
    let after = submitted.wait_for("all shards are there", LIMIT, |now| {
        now.attempt.0 == attempt
            && is_spread(now, pservers)
            && now.slots.iter().all(|place| !pids.contains(&place.pid))
    })?;
    if matches!(victim, Victim::Node) {
        cluster.restart(node)?;
        cluster.wait_ready()?;
    }
    let rolled_back = submitted.rollbacks().len() - rollbacks;
    let slots: Vec<Slot> = lost.iter().filter_map(|process| process.slot).collect();
    println!(
        "{victim:?}, {slots:?} lost in moves to {pservers} pservers: {rolled_back} rollbacks, {}",
        after.epoch
    );
    ensure!(rolled_back <= only_copies, "{:?}", submitted.rollbacks());
    if only_copies == 0 {
        ensure!(after.epoch == view.epoch, "{:?}, then {:?}", view.epoch, after.epoch);
    }
    if pservers == MANY {
        scale(job, &submitted.id, FEW)?;
        submitted.wait_for("few pservers again", LIMIT, |view| is_spread(view, FEW))?;
    }
    let unwanted = submitted.processes();
    let pservers = unwanted
        .iter()
        .filter_map(|process| process.slot)
        .filter(|slot| slot.role == Role::Pserver);
    ensure!(pservers.count() as u32 == FEW, "they have ended: {unwanted:?}");
    Ok(())
}

fn rounds(name: &str, times: u32) -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let shape = Shape { passes: PASSES_A_ROUND * times, every: "40 steps", local_data: false };
    let job = YarnJob::bsp(cluster, name, shape)?;
    // A copy takes the end of its filling late while this file exists.
    let slow_fills = job.path().join("slow-fills");
    let points = format!(
        "step-computed=return(sleep=80,while={{slow}});frame-received=return(sleep=1000,kind=FillEnd,while={})",
        slow_fills.display()
    );
    let mut submitted = job.submit(&ELASTIC, &points)?.expecting(KILLS).expecting(LOST_NODE);
    let victims = [Victim::Destination, Victim::ApplicationMaster, Victim::Source, Victim::Node];
    for (at, victim) in victims.into_iter().cycle().take(times as usize).enumerate() {
        // In growth and in a shrink in turn, also of one victim.
        let pservers = if (at + at / 4).is_multiple_of(2) { MANY } else { FEW };
        round(victim, pservers, cluster, &job, &mut submitted, &slow_fills)
            .with_context(|| format!("{victim:?} in moves to {pservers} pservers"))?;
    }
    job.hurry()?;
    // A pass takes a fifth of this on an idle machine.
    submitted.ends_well(LIMIT + Duration::from_secs(1) * shape.passes)?;
    job.same_as_local(shape)
}

#[test]
fn bytes_outlive_kills_while_shards_move() -> Result<()> {
    rounds("moved", 4)
}

#[test]
#[ignore = "nightly: twenty kills"]
fn bytes_outlive_twenty_kills_while_shards_move() -> Result<()> {
    rounds("moved-often", 20)
}

/// The ResourceManager hands exclusions of an attempt to the next one.
#[test]
fn exclusions_end_with_the_attempt_that_asked_for_them() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let shape = Shape { passes: PASSES_A_ROUND, every: "40 steps", local_data: false };
    let job = YarnJob::bsp(cluster, "avoided", shape)?;
    let slow = "step-computed=return(sleep=80,while={slow})";
    let mut submitted = job.submit(&ELASTIC, slow)?.expecting(KILLS).expecting(LOST_NODE);
    submitted.wait_for("few pservers", LIMIT, |view| is_spread(view, FEW))?;
    let lost = on_another_node(&submitted.processes())?;
    let node = lost[0].node;
    cluster.kill(node)?;
    lost.iter().try_for_each(|process| kill9(process.pid))?;
    // When the job is over, no host is excluded any more.
    let path = format!("/ws/v1/cluster/apps/{}/appattempts?user.name=root", submitted.id);
    let excluded = |hosts: &str| {
        wait_until(format!("excluded: {hosts:?}"), LIMIT, || {
            let answer = cluster.rm_get(&path)?;
            let attempts = answer["appAttempts"]["appAttempt"].as_array().context("attempts")?;
            let last = attempts.last().context("an attempt")?;
            let is_running = last["appAttemptState"] == "RUNNING";
            ensure!(is_running && last["blacklistedNodes"] == hosts, "{last}");
            Ok(())
        })
    };
    excluded(&cluster.host(node))?;
    // Else the second attempt is given containers there, finds that it cannot reach them, and excludes the node itself.
    wait_until("the node is lost", LIMIT, || {
        let metrics = cluster.rm_get("/ws/v1/cluster/metrics")?;
        ensure!(metrics["clusterMetrics"]["activeNodes"] == 3, "{metrics}");
        Ok(())
    })?;
    kill9(submitted.am(1)?.pid)?;
    submitted
        .wait_for("attempt 2 leads", LIMIT, |view| view.attempt.0 == 2 && is_spread(view, FEW))?;
    excluded("")?;
    cluster.restart(node)?;
    cluster.wait_ready()?;
    job.hurry()?;
    submitted.ends_well(LIMIT)?;
    job.same_as_local(shape)
}
