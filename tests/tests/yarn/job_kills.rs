//! Kills in running steps of jobs on YARN: processes, nodes, the ResourceManager. A BSP job ends with the bytes of
//! an undisturbed local run, a counting job with exact counts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use heddle_protocol::ids::{PhaseNo, Role, Slot};
use heddle_protocol::view::{JobEvent, JobState, JobView, SlotState, WarningCode};
use heddle_tests::hadoop::{Cluster, Daemon, Options, wait_until};
use heddle_tests::hdfs_job::Shape;
use heddle_tests::local::kill9;
use heddle_tests::logs::{KILLS, LOST_NODE, RM_LOST};
use heddle_tests::yarn_job::{
    Counting, Process, Submitted, Watch, YarnJob, exit_code_left, settled,
};
use nix::sys::signal::{Signal, kill};

const LIMIT: Duration = Duration::from_secs(180);
/// Enough steps for every kill, whatever the machine: a test that has done its part lets the job run out.
const SHAPE: Shape = Shape { passes: 40, every: "20 steps", local_data: false };
/// A loss costs at most the steps since the last checkpoint, and those of the one that was under way.
const REWORK_STEPS: u64 = 60;
/// What a container ends with that the ApplicationMaster has replaced.
const REFUSED: i32 = 9;

/// A job that is hurt and then held to its result.
enum Job<'c> {
    Bytes(YarnJob<'c>),
    Counts(Counting<'c>),
}

impl<'c> Job<'c> {
    fn bytes(cluster: &'c Cluster, name: &str) -> Result<Self> {
        Ok(Self::Bytes(YarnJob::bsp(cluster, name, SHAPE)?))
    }

    fn counts(cluster: &'c Cluster, name: &str) -> Result<Self> {
        Ok(Self::Counts(Counting::new(cluster, name, "asp", 60)?))
    }

    fn job(&self) -> &YarnJob<'c> {
        match self {
            Self::Bytes(job) => job,
            Self::Counts(counting) => &counting.job,
        }
    }

    /// Waits for a good end and checks what must come out.
    fn is_right(&self, mut submitted: Submitted<'_>) -> Result<JobView> {
        let id = submitted.id.clone();
        self.job().hurry()?;
        let view = submitted.ends_well(LIMIT)?;
        match self {
            Self::Bytes(job) => {
                job.same_as_local(SHAPE)?;
            }
            Self::Counts(counting) => counting.check()?,
        }
        ensure!(!self.job().heddle_names("staging")?.contains(&id), "staging is gone");
        Ok(view)
    }
}

/// The one cluster of this file, for one test at a time and in health.
fn cluster() -> Result<MutexGuard<'static, Cluster>> {
    static CLUSTER: OnceLock<Result<Mutex<Cluster>, String>> = OnceLock::new();
    let started = CLUSTER.get_or_init(|| {
        let started = Cluster::start(Options {
            datanodes: 3,
            am_expiry_ms: 60_000,
            nm_expiry_ms: 8_000,
            ..Options::default()
        });
        started.map(Mutex::new).map_err(|error| format!("{error:#}"))
    });
    let cluster = started.as_ref().map_err(|error| anyhow!("{error}"))?;
    let cluster = cluster.lock().unwrap_or_else(PoisonError::into_inner);
    let daemons = (1..=3).map(Daemon::NodeManager);
    for daemon in daemons.chain([Daemon::ResourceManager(1)]) {
        if cluster.pid(daemon).is_none() {
            cluster.restart(daemon)?;
        }
    }
    cluster.wait_ready()?;
    Ok(cluster)
}

/// A trainer, a pserver and the ApplicationMaster, one after the other, the last one without a successor for ten seconds.
fn processes_die(job: &Job<'_>) -> Result<()> {
    // The shell that is to become the second ApplicationMaster reads this file first: until it goes on there is none.
    // There are several shells, one in another, and the first one sleeps for all.
    let delay = "case \"$CONTAINER_ID$SLEPT\" in *_02_000001) export SLEPT=yes; sleep 10;; esac";
    let mut submitted = job.job().submit_with_shell(
        &[],
        "step-computed=return(sleep=50,while={slow});step-slowed=return(sleep=500,while={slow}er);log-pushes=return(on)",
        delay,
    )?;
    // A record of the journal that the last one was writing when it died.
    submitted = submitted.expecting(KILLS);
    for slot in [Slot::trainer(1), Slot::pserver(0)] {
        let watch = Watch::in_a_step(&mut submitted, 2)?;
        kill9(watch.process(slot)?.pid)?;
        watch.replaced(&mut submitted, &BTreeSet::from([slot]), REWORK_STEPS)?;
    }

    let watch = Watch::in_a_step(&mut submitted, 2)?;
    let before = watch.view.clone();
    let am = submitted.am(1)?;
    // What is left of a pass is what there is to push without an ApplicationMaster.
    let slower = job.job().path().join("slower");
    early_in_a_pass(&mut submitted, before.phase, &slower)?;
    kill9(am.pid)?;
    let killed = Instant::now();
    // Read before anything slow: a trainer without an ApplicationMaster stops when its task ends.
    let mut pushes = vec![pushes_taken(&submitted)];
    wait_until("a second ApplicationMaster", LIMIT, || {
        let led = || {
            let all = submitted.processes();
            all.iter().any(|process| process.slot.is_none())
        };
        // What is counted between two looks was there without one.
        let before = led();
        let taken = pushes_taken(&submitted);
        if !before && !led() {
            pushes.push(taken);
            pushes.dedup();
        }
        ensure!(
            submitted.am(2).is_ok(),
            "none after {:?}, pushes {pushes:?}; {}",
            killed.elapsed(),
            submitted.story()
        );
        Ok(())
    })?;
    std::fs::remove_file(&slower)?;
    ensure!(killed.elapsed() >= Duration::from_secs(9), "{:?}", killed.elapsed());
    // How many is a matter of how far the pass is: its end needs an ApplicationMaster.
    ensure!(
        pushes.len() >= 2,
        "pservers took pushes while there was no ApplicationMaster: {pushes:?}"
    );
    let after = submitted.wait_for("attempt 2 leads", LIMIT, |view| {
        view.attempt.0 == 2 && settled(view) && view.rows > 0
    })?;
    println!("led again after {:.1?}", killed.elapsed());
    ensure!(after.epoch == before.epoch, "{:?}, then {:?}", before.epoch, after.epoch);
    let alive = submitted.processes();
    for process in watch.processes.iter().filter(|process| process.slot.is_some()) {
        ensure!(alive.contains(process), "{process:?} is gone: {alive:?}");
    }
    let slots: BTreeSet<_> = alive.iter().filter_map(|process| process.slot).collect();
    ensure!(slots.len() + 1 == alive.len(), "every slot has one process: {alive:?}");
    job.is_right(submitted).map(drop)
}

/// Waits for steps of half a second each with most of a later pass left, whenever this machine gives this test its turn.
fn early_in_a_pass(job: &mut Submitted<'_>, after: PhaseNo, slower: &Path) -> Result<()> {
    let mut last = after;
    loop {
        last =
            job.wait_for("a pass begins", LIMIT, |view| settled(view) && view.phase > last)?.phase;
        std::fs::write(slower, "")?;
        // What a view shows is as old as the last heartbeats: of two steps, when these are slow.
        std::thread::sleep(Duration::from_secs(1));
        let view = job.view()?;
        if view.phase == last && view.phase_done.is_none_or(|done| done < 0.6) {
            return Ok(());
        }
        std::fs::remove_file(slower)?;
    }
}

/// Frames that the pservers have accepted, by the last figure in the log of each.
fn pushes_taken(submitted: &Submitted<'_>) -> u64 {
    let logs = submitted.logs("pserver.log");
    let last = |log: &String| {
        let line = log.lines().rfind(|line| line.contains("pushes_counted"))?;
        let number = line.split("pushes=").nth(1)?;
        number.split_whitespace().next()?.parse::<u64>().ok()
    };
    logs.values().filter_map(last).sum()
}

#[test]
fn bytes_outlive_the_death_of_any_process() -> Result<()> {
    let cluster = cluster()?;
    let cluster: &Cluster = &cluster;
    std::thread::scope(|scope| {
        let counts = scope.spawn(|| processes_die(&Job::counts(cluster, "counts")?));
        processes_die(&Job::bytes(cluster, "bytes")?).context("bytes")?;
        counts.join().expect("no panic").context("counts")
    })
}

/// A job that has a pserver on each of the three nodes, and at most two of its trainers on one.
const SPREAD: [&str; 10] = [
    "--set",
    "pservers.count=3",
    "--set",
    "pservers.shards=6",
    "--set",
    "trainers.min=4",
    "--set",
    "trainers.max=4",
    "--set",
    "trainers.memory=1300MiB",
];

/// A node without the ApplicationMaster that has trainers, and a pserver or none; and what runs there.
fn node(watch: &Watch, pserver: bool) -> Option<(Daemon, Vec<Process>)> {
    (1..=3).map(Daemon::NodeManager).find_map(|node| {
        let there: Vec<Process> =
            watch.processes.iter().filter(|process| process.node == node).cloned().collect();
        let has = |role| slots(&there).iter().any(|slot| slot.role == role);
        let leads = there.iter().any(|process| process.slot.is_none());
        (has(Role::Pserver) == pserver && has(Role::Trainer) && !leads).then_some((node, there))
    })
}

/// A job in a step, a node of it with a pserver and trainers and without the ApplicationMaster, and what runs there.
fn in_a_step_on_a_node(
    cluster: &Cluster,
    submitted: &mut Submitted<'_>,
) -> Result<(Watch, Daemon, Vec<Process>)> {
    let mut watch = Watch::in_a_step(submitted, 2)?;
    if node(&watch, true).is_none() {
        // The scheduler put all trainers elsewhere. Where they are now cannot be left but for such a node.
        let (manager, lost) = node(&watch, false).context("no trainers to be moved")?;
        lose_node(cluster, submitted, &watch, manager, &lost)?;
        watch = Watch::in_a_step(submitted, 2)?;
    }
    let (manager, there) =
        node(&watch, true).with_context(|| format!("no such node: {:?}", watch.processes))?;
    Ok((watch, manager, there))
}

/// A NodeManager dies with all its containers, and comes back when they are replaced.
fn lose_node(
    cluster: &Cluster,
    submitted: &mut Submitted<'_>,
    watch: &Watch,
    manager: Daemon,
    lost: &[Process],
) -> Result<()> {
    cluster.kill(manager)?;
    for process in lost {
        kill9(process.pid)?;
    }
    watch.replaced(submitted, &slots(lost), REWORK_STEPS)?;
    cluster.restart(manager)?;
    cluster.wait_ready()
}

fn slots(processes: &[Process]) -> BTreeSet<Slot> {
    processes.iter().filter_map(|process| process.slot).collect()
}

/// A node with its containers, a NodeManager alone, the ResourceManager. Containers whose NodeManager died live on
/// beside their replacements, until they hear that they are not wanted.
fn nodes_die(cluster: &Cluster, job: &Job<'_>) -> Result<()> {
    let slow = "step-computed=return(sleep=40,while={slow})";
    let submitted = job.job().submit(&SPREAD, slow)?;
    let mut submitted = submitted.expecting(KILLS).expecting(LOST_NODE).expecting(RM_LOST);

    let (watch, manager, lost) = in_a_step_on_a_node(cluster, &mut submitted)?;
    lose_node(cluster, &mut submitted, &watch, manager, &lost)?;

    let (watch, manager, stale_ones) = in_a_step_on_a_node(cluster, &mut submitted)?;
    cluster.kill(manager)?;
    // One of each role sleeps, so that it is there beside its replacement for certain; the others work on.
    let asleep = [Role::Pserver, Role::Trainer].map(|role| {
        stale_ones.iter().find(|stale| stale.slot.is_some_and(|slot| slot.role == role))
    });
    for stale in asleep.into_iter().flatten() {
        kill(stale.pid, Signal::SIGSTOP)?;
    }
    watch.replaced(&mut submitted, &slots(&stale_ones), REWORK_STEPS)?;
    let beside = submitted.processes();
    let mut watch = Watch::in_a_step(&mut submitted, 2)?;
    for stale in asleep.into_iter().flatten() {
        let replaced = beside
            .iter()
            .any(|other| other.slot == stale.slot && other.incarnation > stale.incarnation);
        ensure!(beside.contains(stale) && replaced, "{stale:?} of {beside:?}");
        kill(stale.pid, Signal::SIGCONT)?;
    }
    for stale in &stale_ones {
        let code = wait_until("a stale process stops by itself", LIMIT, || {
            exit_code_left(cluster, &submitted.id, stale)
        })?;
        ensure!(code == REFUSED, "{stale:?} ended with {code}");
    }
    watch.processes.retain(|process| !stale_ones.contains(process));
    watch.untouched(&mut submitted)?;
    let watch = Watch::in_a_step(&mut submitted, 2)?;
    cluster.restart(manager)?;
    cluster.wait_ready()?;
    watch.untouched(&mut submitted)?;

    let watch = Watch::in_a_step(&mut submitted, 2)?;
    let rm = Daemon::ResourceManager(1);
    cluster.kill(rm)?;
    submitted.wait_for("it trains without a ResourceManager", LIMIT, |view| {
        view.rows > watch.view.rows
    })?;
    cluster.restart(rm)?;
    cluster.wait_ready()?;
    let view = watch.untouched(&mut submitted)?;
    submitted.wait_for("checkpoints go on", LIMIT, |now| {
        now.checkpoints_taken > view.checkpoints_taken || now.state == JobState::Finishing
    })?;
    let now = submitted.processes();
    ensure!(now.len() == 8, "nothing is allocated twice: {now:?}");
    let report = submitted.report()?;
    ensure!(report.attempt.is_some_and(|attempt| attempt.attempt == 1), "{report:?}");

    leader_dies_with_its_node(cluster, &mut submitted)?;
    job.is_right(submitted).map(drop)
}

/// The node of the ApplicationMaster with all that runs there. The next attempt learns from the ResourceManager alone which
/// is left.
fn leader_dies_with_its_node(cluster: &Cluster, submitted: &mut Submitted<'_>) -> Result<()> {
    let watch = Watch::in_a_step(submitted, 2)?;
    let manager = submitted.am(1)?.node;
    let (lost, left): (Vec<Process>, Vec<Process>) =
        watch.processes.iter().cloned().partition(|process| process.node == manager);
    cluster.kill(manager)?;
    for process in &lost {
        kill9(process.pid)?;
    }
    let after = submitted.wait_for("attempt 2 leads", LIMIT, |view| {
        view.attempt.0 == 2 && settled(view) && view.rows > 0
    })?;
    println!(
        "{:?} lost with the leader, led again after {:.1?}",
        slots(&lost),
        watch.since.elapsed()
    );
    let pserver = |slot: &Slot| slot.role == Role::Pserver;
    let rolled_back = after.epoch.generation > watch.view.epoch.generation;
    ensure!(rolled_back == slots(&lost).iter().any(pserver), "{lost:?} lost: {after:#?}");
    let alive = submitted.processes();
    ensure!(
        left.iter().all(|process| alive.contains(process)),
        "{left:?} were not to be touched: {alive:?}"
    );
    cluster.restart(manager)?;
    cluster.wait_ready()
}

#[test]
#[ignore = "nightly: two jobs, which lose three nodes and the ResourceManager each"]
fn bytes_and_counts_outlive_nodes_and_the_resourcemanager() -> Result<()> {
    let cluster = cluster()?;
    nodes_die(&cluster, &Job::bytes(&cluster, "bytes-nodes")?).context("bytes")?;
    nodes_die(&cluster, &Job::counts(&cluster, "counts-nodes")?).context("counts")
}

/// Three pservers, and a node has room for one: what a lost node had finds no room on the two others.
const ONE_A_NODE: [&str; 8] = [
    "--set",
    "pservers.count=3",
    "--set",
    "pservers.shards=6",
    "--set",
    "pservers.memory=2200MiB",
    "--set",
    "pservers.replacement=3s",
];

/// Waits until the client has printed the last rollback, which has this cause.
fn rolled_back(job: &Submitted<'_>, cause: &str) -> Result<()> {
    wait_until("the rollback is reported", LIMIT, || {
        let causes = job.rollbacks();
        ensure!(causes.last().is_some_and(|last| last == cause), "{causes:?}");
        Ok(())
    })
}

/// A node with a pserver and without the ApplicationMaster, with all that runs there, is lost. Returns the state before, the
/// NodeManager and the pserver.
fn loses_a_pserver(cluster: &Cluster, job: &mut Submitted<'_>) -> Result<(Watch, Daemon, Slot)> {
    let watch = Watch::in_a_step(job, 2)?;
    let leads = job.am(1)?.node;
    let is_pserver = |process: &&Process| process.slot.is_some_and(|it| it.role == Role::Pserver);
    let elsewhere = watch.processes.iter().filter(|process| process.node != leads);
    let lost = elsewhere.clone().find(is_pserver).context("the ApplicationMaster has one node")?;
    let (manager, slot) = (lost.node, lost.slot.context("filtered")?);
    cluster.kill(manager)?;
    for process in elsewhere.filter(|process| process.node == manager) {
        kill9(process.pid)?;
    }
    Ok((watch, manager, slot))
}

fn runs(view: &JobView, slot: Slot) -> bool {
    view.slots.iter().any(|place| place.slot == slot && place.state == SlotState::Running)
}

#[test]
#[ignore = "nightly: a job that waits for a lost node"]
fn survivors_take_over_shards_and_return_them() -> Result<()> {
    let cluster = cluster()?;
    let job = Job::bytes(&cluster, "survivors")?;
    let slow = "step-computed=return(sleep=80,while={slow})";
    let mut submitted = job.job().submit(&ONE_A_NODE, slow)?.expecting(LOST_NODE);
    let (watch, manager, lost) = loses_a_pserver(&cluster, &mut submitted)?;
    let trains = |view: &JobView| view.state == JobState::Running && !runs(view, lost);
    let without = submitted.wait_for("the survivors serve its shards", LIMIT, |view| {
        trains(view) && view.epoch.count >= watch.view.epoch.count + 2
    })?;
    rolled_back(&submitted, &format!("no replacement came for {lost}: the others take over"))?;
    submitted.wait_for("steps with two pservers", LIMIT, |view| {
        trains(view) && view.rows > without.rows
    })?;

    cluster.restart(manager)?;
    cluster.wait_ready()?;
    let whole = submitted.wait_for("the shards are back", LIMIT, |view| {
        settled(view) && view.epoch.count > without.epoch.count
    })?;
    rolled_back(&submitted, "shards go back to pservers that were replaced")?;
    ensure!(whole.epoch.count == watch.view.epoch.count + 3, "{:?}", submitted.rollbacks());
    job.is_right(submitted).map(drop)
}

/// Sparse tables take what is left of the memory: no pserver has room for more shards than it began with.
#[test]
#[ignore = "nightly: a job that waits for a lost node"]
fn survivors_without_room_wait_and_say_so() -> Result<()> {
    let cluster = cluster()?;
    let job = YarnJob::bsp(&cluster, "no-survivors", SHAPE)?;
    let arguments = [&ONE_A_NODE[..], &["--set", "model.features=\"any\""]].concat();
    let slow = "step-computed=return(sleep=80,while={slow})";
    let submitted = job.submit(&arguments, slow)?.expecting(LOST_NODE);
    let mut submitted = submitted.expecting(&["no_room_for_shards"]);
    let (watch, manager, lost) = loses_a_pserver(&cluster, &mut submitted)?;
    let waits = format!("waiting for a container for {lost}: the other pservers have no room");
    let is_it = |event: &JobEvent| {
        matches!(
            event,
            JobEvent::Warning { text, code: WarningCode::NoRoomForShards }
                if text.starts_with(&waits) && text.ends_with("nothing is moved")
        )
    };
    wait_until("people are told", LIMIT, || {
        ensure!(submitted.events().iter().any(is_it), "{:?}", submitted.events());
        Ok(())
    })?;
    // It has been looked at three times more.
    std::thread::sleep(Duration::from_secs(10));
    let view = submitted.view()?;
    ensure!(view.state == JobState::Recovering && !runs(&view, lost), "{view:#?}");
    ensure!(submitted.events().iter().filter(|&it| is_it(it)).count() == 1, "said once");
    ensure!(submitted.rollbacks().len() == 1, "{:?}", submitted.rollbacks());

    cluster.restart(manager)?;
    cluster.wait_ready()?;
    let view = submitted.wait_for("it trains again", LIMIT, |view| {
        view.state == JobState::Running && runs(view, lost)
    })?;
    ensure!(view.epoch.count == watch.view.epoch.count + 1, "{view:#?}");
    job.hurry()?;
    submitted.ends_well(LIMIT).map(drop)
}

/// The directory of a node's containers, replaced by a file: the NodeManager takes containers and starts none.
struct BrokenDisk {
    dir: PathBuf,
    aside: PathBuf,
}

impl BrokenDisk {
    fn of(cluster: &Cluster, node: Daemon) -> Result<Self> {
        let local = cluster.dir().join(format!("{node}/local"));
        let broken = Self { dir: local.join("usercache"), aside: local.join("usercache.away") };
        std::fs::rename(&broken.dir, &broken.aside)?;
        std::fs::write(&broken.dir, "")?;
        Ok(broken)
    }
}

impl Drop for BrokenDisk {
    fn drop(&mut self) {
        let _restored =
            std::fs::remove_file(&self.dir).and_then(|()| std::fs::rename(&self.aside, &self.dir));
    }
}

/// The other nodes are paused meanwhile: the scheduler offers the broken one first.
#[test]
fn node_that_cannot_start_containers_is_avoided_and_named() -> Result<()> {
    let cluster = cluster()?;
    let job = Job::bytes(&cluster, "broken")?;
    let sets = ["--set", "pservers.count=3", "--set", "pservers.shards=6"];
    let slow = "step-computed=return(sleep=25,while={slow})";
    let starts = ["container_not_started", "node_avoided"];
    let submitted = job.job().submit(&sets, slow)?;
    let mut submitted = submitted.expecting(KILLS).expecting(&starts);
    let watch = Watch::in_a_step(&mut submitted, 2)?;
    let leader = submitted.am(1)?.node;
    let is_pserver =
        |process: &&Process| process.slot.is_some_and(|slot| slot.role == Role::Pserver);
    let mut pservers = watch.processes.iter().filter(is_pserver);
    let lost = pservers.find(|process| process.node != leader).context("three pservers")?;
    let broken = BrokenDisk::of(&cluster, lost.node)?;
    let slot = lost.slot.context("a pserver")?;
    let host = cluster.host(lost.node);
    let fails_there = |view: &JobView| {
        let named = format!("(node {host})");
        view.history.ended.iter().any(|ended| ended.slot == slot && ended.cause.contains(&named))
    };
    let others: Vec<Daemon> =
        (1..=3).map(Daemon::NodeManager).filter(|node| *node != lost.node).collect();
    others.iter().try_for_each(|node| cluster.pause(*node))?;
    kill9(lost.pid)?;
    submitted.wait_for("a start on the broken node has failed", LIMIT, fails_there)?;
    others.iter().try_for_each(|node| cluster.resume(*node))?;
    let view = watch.replaced(&mut submitted, &BTreeSet::from([slot]), REWORK_STEPS)?;
    drop(broken);
    let failed = view.history.ended.iter().filter(|ended| ended.slot == slot);
    let failed: Vec<&String> = failed.map(|ended| &ended.cause).collect();
    ensure!(failed.len() <= 3, "one kill, and at most two starts on the node: {failed:?}");
    job.is_right(submitted).map(drop)
}

/// No NodeManager is there to end its containers, and the ResourceManager answers the ApplicationMaster as if another attempt
/// led.
#[test]
#[ignore = "nightly: a job whose nodes lose their NodeManagers"]
fn processes_of_a_killed_application_end_without_nodemanagers() -> Result<()> {
    let cluster = cluster()?;
    let job = YarnJob::bsp(&cluster, "killed-alone", SHAPE)?;
    let mut submitted = job.submit(&[], "step-computed=return(sleep=50,while={slow})")?;
    Watch::in_a_step(&mut submitted, 2)?;
    for node in (1..=3).map(Daemon::NodeManager) {
        cluster.kill(node)?;
    }
    submitted.kill()?;
    // The orphan timeout is two minutes.
    submitted.wait_gone(Duration::from_secs(15))
}

/// Without fail points, so that the program that clusters get takes it too (`scripts/nightly.sh released`).
#[test]
#[ignore = "nightly: a job of a thousand passes"]
fn bytes_outlive_kills_without_fail_points() -> Result<()> {
    let long = Shape { passes: 1000, every: "200 steps", local_data: false };
    let cluster = cluster()?;
    let job = YarnJob::bsp(&cluster, "unslowed", long)?;
    let mut submitted = job.submit(&[], "")?.expecting(KILLS);
    let lost = Slot::pserver(0);
    let watch = Watch::in_a_step(&mut submitted, 1)?;
    kill9(watch.process(lost)?.pid)?;
    // How many steps a commit takes is a matter of the machine.
    watch.replaced(&mut submitted, &BTreeSet::from([lost]), u64::MAX)?;
    kill9(submitted.am(1)?.pid)?;
    let view = submitted.wait_for("attempt 2 leads", LIMIT, |view| {
        view.attempt.0 == 2 && settled(view) && view.rows > 0
    })?;
    let recovered: Vec<_> = view.recoveries.iter().map(|recovery| recovery.slot).collect();
    ensure!(recovered == [Some(lost), None], "{:#?}", view.recoveries);
    submitted.ends_well(Duration::from_secs(600))?;
    job.same_as_local(long)
}
