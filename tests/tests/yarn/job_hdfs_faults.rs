//! HDFS fails under jobs on YARN while a checkpoint is written: the NameNode hangs for half a minute, a DataNode dies.
//! Only checkpoints are delayed: no container is replaced, no rollback happens, results do not change.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use heddle_protocol::ids::CutId;
use heddle_protocol::view::{JobEvent, JobState, JobView};
use heddle_tests::hadoop::{Cluster, Daemon, Options, wait_until};
use heddle_tests::hdfs_job::Shape;
use heddle_tests::logs;
use heddle_tests::yarn_job::{Counting, Submitted, Watch, YarnJob};

const LIMIT: Duration = Duration::from_secs(180);
/// How long the NameNode hangs.
const OUTAGE: Duration = Duration::from_secs(30);
/// A checkpoint with at least this duration was in progress during the outage.
const LATE_MS: u64 = 20_000;
/// How long a page may take to be answered meanwhile: it has nothing to do with HDFS.
const PAGE: Duration = Duration::from_secs(5);
/// Enough steps for both faults, whatever the machine: a test that has done its part lets the job run out.
const SHAPE: Shape = Shape { passes: 60, every: "20 steps", local_data: false };
const NAMENODE: Daemon = Daemon::NameNode(1);

/// A BSP job, whose bytes are known, beside a counting job in ASP.
struct Jobs<'c> {
    bytes: YarnJob<'c>,
    counts: Counting<'c>,
}

impl<'c> Jobs<'c> {
    fn new(cluster: &'c Cluster) -> Result<Self> {
        Ok(Self {
            bytes: YarnJob::bsp(cluster, "bytes", SHAPE)?,
            counts: Counting::new(cluster, "counts", "asp", 60)?,
        })
    }

    fn all(&self) -> [&YarnJob<'c>; 2] {
        [&self.bytes, &self.counts.job]
    }
}

/// The newest checkpoint.
fn newest(view: &JobView) -> Option<CutId> {
    view.checkpoints.last().map(|last| last.cut)
}

/// Waits until files of a checkpoint are being written that has no manifest yet.
fn in_a_checkpoint(job: &YarnJob<'_>) -> Result<()> {
    wait_until("a checkpoint is being written", LIMIT, || {
        for name in job.names("ckpt/.staging/g1")? {
            let files = job.names(&format!("ckpt/.staging/g1/{name}"))?;
            let whole = files.iter().any(|file| file.starts_with("MANIFEST"));
            if name.starts_with('c') && !files.is_empty() && !whole {
                return Ok(());
            }
        }
        bail!("nothing is staged")
    })
}

/// Both jobs in a step, the first one in a checkpoint besides.
fn watched(jobs: &Jobs<'_>, submitted: &mut [Submitted<'_>; 2]) -> Result<[Watch; 2]> {
    let [bytes, counts] = submitted;
    let counts = Watch::in_a_step(counts, 2).context("counts")?;
    let bytes = Watch::in_a_step(bytes, 2).context("bytes")?;
    in_a_checkpoint(&jobs.bytes)?;
    Ok([bytes, counts])
}

/// The job goes on as if nothing had been, and a later checkpoint than all before is committed.
fn is_untouched(job: &mut Submitted<'_>, watch: &Watch) -> Result<()> {
    let view = watch.untouched(job)?;
    let later = job.wait_for("a later checkpoint", LIMIT, |now| newest(now) > newest(&view))?;
    ensure!(later.attempt == watch.view.attempt && later.epoch == watch.view.epoch, "{later:#?}");
    Ok(())
}

fn namenode_hangs(
    cluster: &Cluster,
    jobs: &Jobs<'_>,
    submitted: &mut [Submitted<'_>; 2],
) -> Result<()> {
    let watches = watched(jobs, submitted)?;
    cluster.pause(NAMENODE)?;
    let paused = Instant::now();
    for (job, watch) in submitted.iter_mut().zip(&watches) {
        job.wait_for("steps without a NameNode", LIMIT, |view| view.rows > watch.view.rows)?;
    }
    while paused.elapsed() < OUTAGE {
        for job in submitted.iter_mut() {
            job.wait_for("it answers", PAGE, |view| view.state == JobState::Running)?;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    // Passes go on: what was opened before is opened again without the NameNode.
    let bytes = &mut submitted[0];
    let now = bytes.wait_for("it answers", PAGE, |_| true)?;
    let later =
        bytes.wait_for("passes without a NameNode", PAGE * 12, |view| view.phase > now.phase)?;
    // The ApplicationMaster waits for the NameNode; no trainer does.
    let waiting = later.storage_wait.as_ref().map_or(0, |wait| wait.trainers);
    ensure!(waiting == 0, "{:?}", later.storage_wait);
    cluster.resume(NAMENODE)?;
    // Both at once: a view has the newest checkpoints alone, and the other job takes more meanwhile.
    let mut late = [false; 2];
    wait_until("what was being written is a checkpoint", LIMIT, || {
        for (late, job) in late.iter_mut().zip(submitted.iter_mut()) {
            let is_late = |view: &JobView| {
                view.checkpoints.iter().any(|checkpoint| checkpoint.took_ms >= LATE_MS)
            };
            *late |= is_late(&job.view()?);
        }
        ensure!(late == [true; 2], "of {late:?}");
        Ok(())
    })?;
    for (job, watch) in submitted.iter_mut().zip(&watches) {
        is_untouched(job, watch)?;
    }
    Ok(())
}

fn datanode_dies(
    cluster: &Cluster,
    jobs: &Jobs<'_>,
    submitted: &mut [Submitted<'_>; 2],
) -> Result<()> {
    let watches = watched(jobs, submitted)?;
    cluster.kill(Daemon::DataNode(2))?;
    for (job, watch) in submitted.iter_mut().zip(&watches) {
        is_untouched(job, watch)?;
    }
    Ok(())
}

/// All DataNodes hang: no read succeeds, and every report to users shows it.
fn datanodes_hang(
    cluster: &Cluster,
    jobs: &Jobs<'_>,
    submitted: &mut [Submitted<'_>; 2],
) -> Result<()> {
    let left = [Daemon::DataNode(1), Daemon::DataNode(3)];
    for daemon in left {
        cluster.pause(daemon)?;
    }
    let [bytes, _] = submitted;
    let view = bytes.wait_for("it waits for HDFS", LIMIT, |view| view.storage_wait.is_some())?;
    let wait = view.storage_wait.context("waited for")?;
    ensure!(wait.storage() == "HDFS" && wait.file.contains("/data/"), "{wait:?}");
    let status = jobs.bytes.heddle(&["status", &bytes.id])?;
    ensure!(status.stdout.contains("waiting for HDFS since 2"), "{status:?}");
    ensure!(bytes.proxied("/")?.contains("waiting for HDFS since 2"), "the page");
    let metrics = bytes.proxied("/metrics")?;
    let seconds = metrics
        .lines()
        .find_map(|line| line.strip_prefix("heddle_input_wait_seconds "))
        .context("a figure")?;
    ensure!(seconds.parse::<f64>()? >= 3.0, "{seconds}");
    for daemon in left {
        cluster.resume(daemon)?;
    }
    let after = bytes.wait_for("it reads again", LIMIT, |view| view.storage_wait.is_none())?;
    ensure!(after.history.storage_waits_total >= 1, "{:?}", after.history);
    let events = bytes.events();
    let reported = |over: bool| {
        let mut waits = events.iter().filter_map(|event| match event {
            JobEvent::StorageWait(wait) => Some(wait.ended_ms.is_some()),
            _ => None,
        });
        waits.any(|ended| ended == over)
    };
    ensure!(reported(false), "the client prints the begin: {events:?}");
    Ok(())
}

#[test]
#[ignore = "nightly: two minutes of outages"]
fn a_hung_namenode_and_a_dead_datanode_only_delay_checkpoints() -> Result<()> {
    let cluster = Cluster::start(Options { datanodes: 3, ..Options::default() })?;
    let jobs = Jobs::new(&cluster)?;
    let [bytes, counts] =
        jobs.all().map(|job| job.submit(&[], "step-computed=return(sleep=60,while={slow})"));
    let mut submitted = [bytes?, counts?].map(|job| job.expecting(logs::OUTAGE));
    namenode_hangs(&cluster, &jobs, &mut submitted).context("the NameNode hangs")?;
    datanode_dies(&cluster, &jobs, &mut submitted).context("a DataNode dies")?;
    datanodes_hang(&cluster, &jobs, &mut submitted).context("DataNodes hang")?;

    for job in jobs.all() {
        job.hurry()?;
    }
    for job in &mut submitted {
        job.ends_well(LIMIT)?;
    }
    let report = jobs.bytes.heddle(&["report", &submitted[0].id])?;
    ensure!(
        report.stdout.contains("Waits for storage")
            && report.stdout.contains("waited for HDFS for"),
        "{report:?}"
    );
    jobs.bytes.same_as_local(SHAPE)?;
    jobs.counts.check()?;
    for job in jobs.all() {
        job.verify()?;
    }
    // The ResourceManager's report is shown without HDFS.
    cluster.kill(NAMENODE)?;
    let status = jobs.bytes.heddle(&["status", &submitted[0].id])?;
    ensure!(
        status.code == Some(0)
            && status.stdout.contains("  finished\n")
            && status.stderr.contains("the report is not shown"),
        "{status:?}"
    );
    Ok(())
}
