//! `heddle controller` on a cluster of four NodeManagers: jobs of several users grow into free room and give it back, operators
//! pin sizes, leaders die and are suspended.

use std::ops::Deref;
use std::process::Stdio;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use heddle_protocol::view::{ElasticView, SetBy};
use heddle_tests::controller::{Controller, group_of, make_folder};
use heddle_tests::hadoop::{Cluster, Daemon, Options, Shared, wait_until};
use heddle_tests::local::{Ended, kill9};
use heddle_tests::logs::{KILLS, OUTAGE, RM_LOST};
use heddle_tests::yarn_job::{Counting, Submitted, YarnJob};
use nix::sys::signal::{Signal, kill};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);
/// The service user.
const SERVICE: &str = "service";

/// The one cluster of this file, for one test at a time and in health.
fn cluster() -> Result<(&'static Cluster, MutexGuard<'static, ()>)> {
    static CLUSTER: Shared = Shared::new();
    let properties = vec![group_of(SERVICE)];
    CLUSTER.alone(|| Options {
        nodemanagers: 4,
        resourcemanagers: 2,
        properties,
        ..Options::default()
    })
}

/// The controller's folder of a test.
fn folder(cluster: &Cluster, name: &str) -> Result<String> {
    make_folder(cluster, "root", SERVICE, &format!("/controllers/{name}"))
}

/// A `heddle controller` that runs, and the job whose configuration it has.
struct JobsController<'j> {
    job: &'j YarnJob<'j>,
    dir: String,
    process: Controller,
}

impl Deref for JobsController<'_> {
    type Target = Controller;

    fn deref(&self) -> &Controller {
        &self.process
    }
}

impl<'j> JobsController<'j> {
    fn start(job: &'j YarnJob<'j>, name: &str, dir: &str) -> Result<Self> {
        Self::start_with(job, name, dir, "")
    }

    fn start_with(job: &'j YarnJob<'j>, name: &str, dir: &str, fail_points: &str) -> Result<Self> {
        let mut command = job.command()?;
        command.env("HADOOP_USER_NAME", SERVICE).env("FAILPOINTS", fail_points);
        let process = Controller::start(command, dir, job.path().join(format!("{name}.log")))?;
        Ok(Self { job, dir: dir.to_owned(), process })
    }

    fn wait_for(&self, words: &str, limit: Duration) -> Result<()> {
        wait_until(words, limit, || {
            let log = self.log();
            ensure!(log.contains(words), "no {words:?} in {log}");
            Ok(())
        })
    }

    /// Waits until the sizes of jobs are as `check` wants them.
    fn settles(&self, what: &str, check: impl Fn() -> Result<()>) -> Result<()> {
        wait_until(what, LIMIT, check).with_context(|| {
            let status = ask(self.job, &["status"], &self.dir);
            format!("{}\n{status:?}", self.log())
        })
    }

    /// Waits until a job has this number of trainers, by order of this.
    fn has(&self, job: &Submitted<'_>, trainers: u32, set_by: SetBy) -> Result<()> {
        self.settles(&format!("{trainers} trainers of {}", job.id), || {
            let now = size(job)?;
            ensure!((now.trainers, now.set_by) == (trainers, set_by), "{now:?}");
            Ok(())
        })
    }
}

/// `heddle controller` with these words, as the service user.
fn ask(job: &YarnJob<'_>, words: &[&str], dir: &str) -> Result<Ended> {
    let mut command = job.command()?;
    command.arg("controller").args(words).args(["--dir", dir]).env("HADOOP_USER_NAME", SERVICE);
    let output = command.stdin(Stdio::null()).output()?;
    Ok(Ended {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// A counting job of one to `most` trainers of one GiB that takes part.
fn submit<'c>(count: &Counting<'c>, dir: &str, [least, most]: [u32; 2]) -> Result<Submitted<'c>> {
    let (dir, least, most) = (
        format!("controller.dir={dir}"),
        format!("trainers.min={least}"),
        format!("trainers.max={most}"),
    );
    let keys = [
        "run.elastic=controller",
        &dir,
        &least,
        &most,
        "trainers.memory=900MiB",
        "pservers.count=1",
    ];
    let keys: Vec<&str> = keys.iter().flat_map(|key| ["--set", key]).collect();
    let submitted = count.job.submit(&keys, "step-computed=return(sleep=100,while={slow})")?;
    Ok(submitted.expecting(KILLS))
}

fn size(job: &Submitted<'_>) -> Result<ElasticView> {
    job.view()?.elastic.context("it takes part")
}

#[test]
fn unfit_folder_is_refused_with_commands() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let count = Counting::new(cluster, "no-controller", "asp", 1)?;
    let job = &count.job;
    let dir = "hdfs:///controllers/none";
    let refused = ask(job, &[], dir)?;
    ensure!(refused.code == Some(5), "{refused:?}");
    for words in [
        "there is no hdfs://",
        "hdfs dfs -mkdir -p hdfs://",
        "hdfs dfs -chown service:service hdfs://",
    ] {
        ensure!(refused.stderr.contains(words), "{words:?} in {refused:?}");
    }
    cluster.dfs("root", &["-mkdir", "-p", "/controllers/none"])?;
    let refused = ask(job, &["plan"], dir)?;
    let words = "belongs to root, and this command runs as service";
    ensure!(refused.code == Some(5) && refused.stderr.contains(words), "{refused:?}");
    cluster.dfs("root", &["-chown", SERVICE, "/controllers/none"])?;
    cluster.dfs("root", &["-chmod", "777", "/controllers/none"])?;
    let refused = ask(job, &["status"], dir)?;
    let words = "has mode 0777, expected 0711";
    ensure!(refused.code == Some(5) && refused.stderr.contains(words), "{refused:?}");
    cluster.dfs("root", &["-chmod", "711", "/controllers/none"])?;
    let empty = ask(job, &["plan"], dir)?;
    ensure!(empty.code == Some(0) && empty.stdout.is_empty(), "{empty:?}");
    let none = ask(job, &["status"], dir)?;
    ensure!(none.code == Some(7) && none.stderr.contains("has not led here yet"), "{none:?}");
    let elastic = ["--set", "run.elastic=controller"];
    let keyless = job.submit_and_wait(&elastic)?;
    ensure!(keyless.code == Some(7) && keyless.stderr.contains("controller.dir"), "{keyless:?}");
    let private = "controller.dir=hdfs:///controllers/none/private";
    let nowhere = job.submit_and_wait(&[&elastic[..], &["--set", private]].concat())?;
    ensure!(nowhere.code == Some(5), "{nowhere:?}");
    Ok(())
}

#[test]
fn jobs_grow_give_room_and_stay_where_they_are_pinned() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let dir = folder(cluster, "grows")?;
    let first = Counting::new(cluster, "grows", "asp", 40)?;
    let mut controller = JobsController::start(&first.job, "leader", &dir)?;
    controller.wait_for("leads: controller 1", LIMIT)?;
    let mut one = submit(&first, &dir, [1, 8])?;
    controller.has(&one, 8, SetBy::Controller)?;
    // Together the minimums of both fit, and the first job has most of the room.
    let second = Counting::new(cluster, "comes", "asp", 40)?;
    let mut two = submit(&second, &dir, [4, 8])?;
    controller.settles("both share", || {
        let (one, two) = (size(&one)?, size(&two)?);
        ensure!(two.trainers >= 4 && one.trainers < 8, "{one:?} {two:?}");
        Ok(())
    })?;
    let pinned = first.job.heddle(&["scale", &one.id, "trainers", "2"])?;
    ensure!(pinned.code == Some(0), "{pinned:?}");
    controller.has(&one, 2, SetBy::Operator)?;
    controller.has(&two, 8, SetBy::Controller)?;
    controller.has(&one, 2, SetBy::Operator)?;
    // The round that has sent the last order writes its status after it.
    wait_until("the status shows the pin", LIMIT, || {
        let status = ask(&first.job, &["status"], &dir)?;
        let words = "an operator has pinned its size";
        ensure!(status.code == Some(0) && status.stdout.contains(words), "{status:?}");
        Ok(())
    })?;
    let back = first.job.heddle(&["scale", &one.id, "auto"])?;
    ensure!(back.code == Some(0), "{back:?}");
    // Within a minute after it gave room it does not grow.
    controller.settles("the controller sets its size again", || {
        let one = size(&one)?;
        ensure!(one.set_by == SetBy::Controller, "{one:?}");
        Ok(())
    })?;
    first.job.hurry()?;
    second.job.hurry()?;
    one.ends_well(LIMIT)?;
    two.ends_well(LIMIT)?;
    controller.process.stop()?;
    let log = controller.log();
    ensure!(log.contains("grows from 1 to"), "{log}");
    first.check()?;
    second.check()
}

#[test]
fn suspended_leader_is_superseded_and_its_orders_are_refused() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let dir = folder(cluster, "leads")?;
    let count = Counting::new(cluster, "leads", "asp", 40)?;
    let hold = count.job.path().join("hold");
    std::fs::write(&hold, "")?;
    let planned = format!("controller-planned=return(stop,while={})", hold.display());
    let first = JobsController::start_with(&count.job, "first", &dir, &planned)?;
    first.wait_for("leads: controller 1", LIMIT)?;
    let second = JobsController::start(&count.job, "second", &dir)?;
    second.wait_for("waits: controller 1", LIMIT)?;
    let mut job = submit(&count, &dir, [1, 3])?;
    wait_until("the leader stops with what it has planned", LIMIT, || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", first.pid()))?;
        ensure!(stat.contains(") T "), "{stat}");
        Ok(())
    })?;
    let stopped = Instant::now();
    second.wait_for("leads: controller 2", Duration::from_secs(12))?;
    second.has(&job, 3, SetBy::Controller)?;
    ensure!(size(&job)?.generation == 2);
    std::thread::sleep(Duration::from_secs(30).saturating_sub(stopped.elapsed()));
    std::fs::remove_file(&hold)?;
    kill(first.pid(), Signal::SIGCONT)?;
    first.wait_for("does not lead any more: controller 2", LIMIT)?;
    first.wait_for("waits: controller 2", LIMIT)?;
    let log = first.log();
    ensure!(log.contains("refused: ") || !log.contains("grows"), "{log}");
    let now = size(&job)?;
    ensure!((now.trainers, now.generation) == (3, 2), "{now:?}");
    logs_agree(cluster, "leads")?;
    kill9(second.pid())?;
    first.wait_for("leads: controller 3", Duration::from_secs(15))?;
    count.job.hurry()?;
    job.ends_well(LIMIT)?;
    count.check()
}

/// The logs of decisions of all leaders of a folder: an earlier leader was not followed after a later one.
fn logs_agree(cluster: &Cluster, name: &str) -> Result<()> {
    let files = format!("/controllers/{name}/private/decisions/*.jsonl");
    let text = String::from_utf8(cluster.dfs(SERVICE, &["-cat", &files])?)?;
    let lines = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let mut followed: Vec<(u64, u64)> = lines
        .iter()
        .filter(|line| line["refused"] == "")
        .filter_map(|line| Some((line["at_ms"].as_u64()?, line["generation"].as_u64()?)))
        .collect();
    followed.sort_unstable();
    ensure!(!followed.is_empty() && followed.is_sorted_by_key(|(_, leader)| *leader), "{text}");
    Ok(())
}

#[test]
fn standby_orders_what_a_dead_leader_had_planned() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let dir = folder(cluster, "dies")?;
    let count = Counting::new(cluster, "dies", "asp", 40)?;
    let first =
        JobsController::start_with(&count.job, "first", &dir, "controller-planned=return(exit)")?;
    first.wait_for("leads: controller 1", LIMIT)?;
    let second = JobsController::start(&count.job, "second", &dir)?;
    second.wait_for("waits: controller 1", LIMIT)?;
    let mut job = submit(&count, &dir, [1, 3])?;
    second.wait_for("leads: controller 2", Duration::from_secs(60))?;
    ensure!(!first.log().contains("grows"), "{}", first.log());
    second.has(&job, 3, SetBy::Controller)?;
    ensure!(size(&job)?.generation == 2);
    count.job.hurry()?;
    job.ends_well(LIMIT)?;
    count.check()
}

#[test]
#[ignore = "nightly: HDFS is away for half a minute"]
fn sizes_stay_while_hdfs_does_not_respond() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let dir = folder(cluster, "outage")?;
    let count = Counting::new(cluster, "outage", "asp", 40)?;
    let controller = JobsController::start(&count.job, "leader", &dir)?;
    controller.wait_for("leads: controller 1", LIMIT)?;
    let mut job = submit(&count, &dir, [1, 6])?.expecting(OUTAGE).expecting(RM_LOST);
    controller.has(&job, 6, SetBy::Controller)?;
    // Room that an operator frees, and gives back to the controller, is there to grow into. A round may be faster than the fault.
    let mut rooms = 0;
    let away = loop {
        for words in [["trainers", "2"].as_slice(), &["auto"]] {
            let words: Vec<&str> = ["scale", &job.id].iter().chain(words).copied().collect();
            let set = count.job.heddle(&words)?;
            ensure!(set.code == Some(0), "{set:?}");
        }
        cluster.pause(Daemon::NameNode(1))?;
        let away = Instant::now();
        std::thread::sleep(Duration::from_secs(8));
        rooms += 1;
        if size(&job)?.trainers == 2 {
            break away;
        }
        ensure!(rooms < 5, "the controller grows the job at once: {}", controller.log());
        cluster.resume(Daemon::NameNode(1))?;
        cluster.wait_ready()?;
    };
    controller.wait_for("cannot renew the lease", LIMIT)?;
    while away.elapsed() < Duration::from_secs(30) {
        let now = size(&job)?;
        ensure!((now.trainers, now.generation) == (2, 1), "{now:?} {}", controller.log());
        std::thread::sleep(Duration::from_millis(500));
    }
    cluster.resume(Daemon::NameNode(1))?;
    cluster.wait_ready()?;
    controller.has(&job, 6, SetBy::Controller)?;
    let pinned = count.job.heddle(&["scale", &job.id, "trainers", "2"])?;
    ensure!(pinned.code == Some(0), "{pinned:?}");
    controller.has(&job, 2, SetBy::Operator)?;
    let back = count.job.heddle(&["scale", &job.id, "auto"])?;
    ensure!(back.code == Some(0), "{back:?}");
    controller.settles("it leads as before", || {
        let now = size(&job)?;
        ensure!((now.set_by, now.generation) == (SetBy::Controller, 1), "{now:?}");
        Ok(())
    })?;
    count.job.hurry()?;
    job.ends_well(LIMIT)?;
    count.check()
}

#[test]
#[ignore = "nightly: the ResourceManager restarts, and another one takes over"]
fn sizes_stay_while_resourcemanagers_restart_and_fail_over() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let dir = folder(cluster, "restarts")?;
    let count = Counting::new(cluster, "restarts", "asp", 40)?;
    let controller = JobsController::start(&count.job, "leader", &dir)?;
    controller.wait_for("leads: controller 1", LIMIT)?;
    let mut job = submit(&count, &dir, [1, 6])?.expecting(RM_LOST);
    controller.has(&job, 6, SetBy::Controller)?;
    let first = Daemon::ResourceManager(1);
    for active in [1, 2] {
        let misses = || controller.log().matches("cannot read the cluster's state").count();
        let before = misses();
        cluster.kill(first)?;
        wait_until("the ResourceManager is missed", LIMIT, || {
            ensure!(misses() > before, "{}", controller.log());
            Ok(())
        })?;
        if active == 1 {
            cluster.restart(first)?;
        }
        wait_until("an active ResourceManager", LIMIT, || cluster.activate(active))?;
        // Rounds with lists of nodes that grow.
        let until = Instant::now() + Duration::from_secs(40);
        while Instant::now() < until {
            let now = size(&job)?;
            ensure!((now.trainers, now.generation) == (6, 1), "{now:?} {}", controller.log());
            std::thread::sleep(Duration::from_millis(500));
        }
        let status = ask(&count.job, &["status", "--json"], &dir)?;
        let status: Value = serde_json::from_str(&status.stdout)?;
        let wanted = &status["jobs"][0]["wanted"]["trainers"];
        ensure!(status["nodes"] == 4 && *wanted == 6, "{status}");
    }
    // By the state that the other one shows.
    for words in [["trainers", "2"].as_slice(), &["auto"]] {
        let words: Vec<&str> = ["scale", &job.id].iter().chain(words).copied().collect();
        let set = count.job.heddle(&words)?;
        ensure!(set.code == Some(0), "{set:?}");
    }
    controller.has(&job, 6, SetBy::Controller)?;
    count.job.hurry()?;
    job.ends_well(LIMIT)?;
    cluster.restart(first)?;
    cluster.wait_ready()?;
    count.check()
}
