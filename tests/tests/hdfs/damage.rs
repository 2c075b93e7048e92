//! Bytes that change on DataNodes' disks, and disks that cannot be read for a while. HDFS reads another replica instead
//! of a damaged one. If all replicas are damaged, the sums of Heddle show it, an older checkpoint is used and an event
//! reports it. A checkpoint that only cannot be read at the moment never leads to an older one.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use heddle_protocol::ids::Slot;
use heddle_tests::hadoop::{Cluster, Daemon, Options, Replica, wait_until};
use heddle_tests::hdfs_job::{HdfsJob, Shape, ends_well};
use heddle_tests::local::{Ended, kill9, pid_of};

/// Longest wait for one thing; other builds may keep all cores busy.
const LIMIT: Duration = Duration::from_secs(300);
const DATANODES: [Daemon; 3] = [Daemon::DataNode(1), Daemon::DataNode(2), Daemon::DataNode(3)];

/// The one cluster of this file, for one test at a time and in health.
fn cluster() -> Result<MutexGuard<'static, Cluster>> {
    static CLUSTER: OnceLock<Result<Mutex<Cluster>, String>> = OnceLock::new();
    let cluster = CLUSTER
        .get_or_init(|| {
            Cluster::start(Options::hdfs()).map(Mutex::new).map_err(|error| format!("{error:#}"))
        })
        .as_ref()
        .map_err(|error| anyhow::anyhow!(error.clone()))?;
    let cluster = cluster.lock().unwrap_or_else(PoisonError::into_inner);
    start_datanodes(&cluster)?;
    Ok(cluster)
}

fn start_datanodes(cluster: &Cluster) -> Result<()> {
    for daemon in DATANODES {
        if cluster.pid(daemon).is_none() {
            cluster.restart(daemon)?;
        }
    }
    for n in 1..=3 {
        cluster.wait_datanode(n)?;
    }
    cluster.wait_ready()
}

/// A job that has ended well, and what is on disks of one shard's file of its newest checkpoint.
struct Finished<'c> {
    job: HdfsJob<'c>,
    /// The checkpoints, oldest first.
    checkpoints: Vec<String>,
    /// Name of the file.
    file: String,
    /// Its three copies.
    copies: Vec<Replica>,
}

fn finished<'c>(cluster: &'c Cluster, name: &str) -> Result<Finished<'c>> {
    let shape = Shape { every: "1 pass", ..Shape::passes(3) };
    let job = HdfsJob::new(cluster, name, shape)?;
    ends_well(job.start(&[], "step-computed=sleep(20)")?, LIMIT)?;
    let checkpoints = job.verify()?;
    ensure!(checkpoints.len() >= 2, "{checkpoints:?}");
    let newest = checkpoints.last().context("two at least")?;
    let files = job.names(&format!("ckpt/{newest}"))?;
    let file = files.into_iter().find(|name| name.ends_with(".ckpt")).context("a shard's file")?;
    let path = format!("{}/ckpt/{newest}/{file}", job.root);
    // A file is complete with its first copy on a disk; the others may still be on their way.
    let copies = wait_until("three copies", LIMIT, || {
        let mut blocks = cluster.blocks(&path)?;
        ensure!(blocks.len() == 1, "{blocks:?}");
        let copies = blocks.remove(0).replicas;
        let ended = |copy: &Replica| copy.file.to_string_lossy().contains("/finalized/");
        ensure!(copies.len() == 3 && copies.iter().all(ended), "{copies:?}");
        Ok(copies)
    })?;
    Ok(Finished { job, checkpoints, file, copies })
}

impl Finished<'_> {
    /// A byte in the middle. Not in the last 512: of those a DataNode has HDFS's sum in memory.
    fn offset(&self) -> Result<u64> {
        let bytes = self.copies[0].file.metadata()?.len();
        ensure!(bytes > 2048, "{bytes} bytes");
        Ok(bytes / 2)
    }

    fn newest(&self) -> &str {
        self.checkpoints.last().map_or("", String::as_str)
    }

    fn verify(&self) -> Result<Ended> {
        self.job.heddle(&["checkpoint", "verify", &self.job.checkpoints()])
    }

    /// Goes on for a pass more.
    fn go_on(&self, more: &[&str]) -> Result<Ended> {
        let set = ["--set", "data.passes=4"];
        let arguments = ["run", "job.toml", "--resume", "--overwrite"];
        self.job.heddle(&arguments.iter().chain(&set).chain(more).copied().collect::<Vec<_>>())
    }
}

#[test]
fn one_good_replica_hides_two_bad_ones() -> Result<()> {
    let cluster = cluster()?;
    let done = finished(&cluster, "hidden")?;
    for copy in &done.copies[..2] {
        copy.damage(done.offset()?)?;
    }
    let verified = done.verify()?;
    ensure!(verified.code == Some(0), "{verified:?}");
    let ended = done.go_on(&[])?;
    ensure!(ended.code == Some(0), "{ended:?}");
    let said = format!("continues from checkpoint {}", done.newest());
    ensure!(
        ended.stderr.contains(done.newest()) && !ended.stderr.contains("DAMAGED"),
        "{said} in {ended:?}"
    );
    Ok(())
}

#[test]
fn damage_of_all_replicas_falls_back_to_an_older_checkpoint() -> Result<()> {
    let cluster = cluster()?;
    let done = finished(&cluster, "lying")?;
    for copy in &done.copies {
        copy.damage_unnoticed(done.offset()?)?;
    }
    let verified = done.verify()?;
    ensure!(verified.code == Some(8), "{verified:?}");
    let said = format!("{}{}", verified.stdout, verified.stderr);
    ensure!(said.contains(&done.file), "the file is named: {said}");

    let stopped = done.go_on(&["--set", "checkpoint.on-corrupt=fail"])?;
    ensure!(stopped.code == Some(8), "{stopped:?}");
    ensure!(done.job.committed()? == done.checkpoints, "nothing changed");

    let ended = done.go_on(&[])?;
    ensure!(ended.code == Some(0), "{ended:?}");
    ensure!(ended.stderr.contains(&done.file), "the file is named: {ended:?}");
    ensure!(ended.stderr.contains("DAMAGED"), "in loud words: {ended:?}");
    let names = done.job.verify()?;
    ensure!(!names.iter().any(|name| name == done.newest()), "{names:?}");
    Ok(())
}

#[test]
fn unreadable_replicas_do_not_cause_a_fallback() -> Result<()> {
    let cluster = cluster()?;
    let done = finished(&cluster, "unreadable")?;
    for copy in &done.copies {
        copy.damage(done.offset()?)?;
    }
    let verified = done.verify()?;
    ensure!(verified.code == Some(6), "not proven damaged: {verified:?}");
    ensure!(done.job.committed()? == done.checkpoints, "nothing is set aside");
    // The disks come back to their senses.
    for copy in &done.copies {
        copy.damage(done.offset()?)?;
    }
    let ended = done.go_on(&[])?;
    ensure!(ended.code == Some(0), "{ended:?}");
    ensure!(!ended.stderr.contains("DAMAGED"), "{ended:?}");
    done.job.verify()?;
    Ok(())
}

#[test]
fn a_datanode_outage_in_a_recovery_keeps_the_newest_checkpoint() -> Result<()> {
    let cluster = cluster()?;
    let shape = Shape { local_data: true, ..Shape::passes(30) };
    let job = HdfsJob::new(&cluster, "away", shape)?;
    let mut run = job.start(&[], "step-computed=sleep(20)")?;
    run.wait_for("checkpoints", LIMIT, |view| view.checkpoints_taken >= 3)?;
    for datanode in DATANODES {
        cluster.kill(datanode)?;
    }
    let view = run.view()?;
    let newest = view.checkpoints.last().context("three")?.cut;
    kill9(pid_of(&view, Slot::pserver(0))?)?;
    run.wait_for("the loss is noticed", LIMIT, |view| !view.recoveries.is_empty())?;
    // As long as a rack may be away that is plugged in again.
    sleep(Duration::from_secs(5));
    start_datanodes(&cluster)?;
    let after = run.wait_for("recovered", LIMIT, |view| {
        view.recoveries.iter().all(|recovery| recovery.done)
    })?;
    let recovery = after.recoveries.last().context("one")?;
    ensure!(
        recovery.base.is_some_and(|base| base >= newest),
        "back to {:?}, and {newest} was committed",
        recovery.base
    );
    run.wait_for("checkpoints go on", LIMIT, |view| {
        view.checkpoints.last().is_some_and(|last| last.cut > newest)
    })?;
    nix::sys::signal::kill(run.pid(), nix::sys::signal::Signal::SIGINT)?;
    let (code, ..) = run.finish(LIMIT)?;
    ensure!(code == Some(130), "{code:?}");
    job.verify()?;
    Ok(())
}

/// The checkpoint directory on HDFS is lost; a mirror on the machine's disk has its newest checkpoint.
#[test]
fn a_lost_directory_is_continued_from_a_local_mirror() -> Result<()> {
    let cluster = cluster()?;
    let shape = Shape { every: "1 pass", ..Shape::passes(3) };
    let job = HdfsJob::new(&cluster, "mirrored", shape)?;
    let mirror = job.path().join("mirror").to_string_lossy().into_owned();
    let mirrors = format!("checkpoint.mirrors=[\"file://{mirror}\"]");
    let set = ["--set", mirrors.as_str(), "--set", "data.passes=2"];
    ends_well(job.start(&set, "step-computed=sleep(20)")?, LIMIT)?;
    let newest = job.verify()?.pop().context("one at least")?;
    let verified = job.heddle(&["checkpoint", "verify", &mirror])?;
    ensure!(verified.code == Some(0) && verified.stdout.contains(&newest), "{verified:?}");
    let lost = format!("{}/ckpt", job.root);
    cluster.dfs(job.user, &["-rm", "-r", "-skipTrash", &lost])?;
    let dir = format!("checkpoint.dir={}-2", job.checkpoints());
    let from = ["run", "job.toml", "--resume", "--from", &mirror, "--overwrite", "--set", &dir];
    let ended = job.heddle(&from)?;
    ensure!(ended.code == Some(0), "{ended:?}");
    job.same_as_local(shape)
}
