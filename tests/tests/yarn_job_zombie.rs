//! ApplicationMasters that live on beside their successors, and an application beside the next one of the same job:
//! whatever they do when they wake, one lineage of checkpoints remains.
//!
//! A stopped ApplicationMaster whose NodeManager lives is killed by it, so the NodeManager is killed first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use heddle_protocol::ids::Generation;
use heddle_protocol::view::{Event, JobView};
use heddle_tests::hadoop::{Cluster, Daemon, Options, wait_until};
use heddle_tests::hdfs_job::Shape;
use heddle_tests::local::is_alive;
use heddle_tests::yarn_job::{Process, Submitted, YarnJob, exit_code_left, is_stopped, settled};
use nix::sys::signal::{Signal, kill};

const LIMIT: Duration = Duration::from_secs(180);
const SHAPE: Shape = Shape {
    passes: 20,
    every: "20 steps",
    local_data: false,
};
/// Looks at HDFS in a row that find the same when nothing is under way any more.
const AT_REST: u32 = 5;
/// What an ApplicationMaster ends with that another one has replaced.
const SUPERSEDED: i32 = 9;

/// Four nodes: three may lose their NodeManager, the last one holds what is left of all jobs.
fn cluster() -> Result<Cluster> {
    Cluster::start(Options {
        datanodes: 3,
        nodemanagers: 4,
        // A stopped ApplicationMaster is not to be given up before its node is.
        am_expiry_ms: 60_000,
        nm_expiry_ms: 8_000,
        ..Options::default()
    })
}

/// Everything durable in the job's checkpoint directory: claims, checkpoints and their files, journals, what is being
/// made. Paths below it.
fn durable(job: &YarnJob<'_>) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let mut open = vec!["ckpt".to_owned()];
    while let Some(dir) = open.pop() {
        for (name, is_dir) in job.entries(&dir)? {
            let path = format!("{dir}/{name}");
            if is_dir {
                open.push(path.clone());
            }
            found.insert(path);
        }
    }
    Ok(found)
}

/// The same, once what a process had asked of HDFS before it was stopped is done.
fn durable_at_rest(job: &YarnJob<'_>) -> Result<BTreeSet<String>> {
    let mut last = BTreeMap::new();
    wait_until("nothing changes", LIMIT, || {
        let now: BTreeSet<String> = durable(job)?.into_iter().filter(by_masters).collect();
        let same = last.remove(&now).unwrap_or(0) + 1;
        last = BTreeMap::from([(now.clone(), same)]);
        ensure!(same == AT_REST, "seen {same} times");
        Ok(now)
    })
}

/// Whether only ApplicationMasters make and delete a path: what pservers save of the successor's next cut comes at
/// any time.
fn by_masters(path: &String) -> bool {
    !path.starts_with("ckpt/.staging/g2/c")
}

/// The first ApplicationMaster, once it has stopped itself at the point that its hook names.
fn stopped(submitted: &Submitted<'_>) -> Result<Process> {
    wait_until("it stops itself", LIMIT, || {
        let am = submitted.am(1)?;
        ensure!(is_stopped(am.pid), "{am:?} runs; {}", submitted.story());
        Ok(am)
    })
}

/// The processes that the job as its ApplicationMaster sees it is made of.
fn members(submitted: &Submitted<'_>, view: &JobView) -> Vec<Process> {
    let pids: BTreeSet<u32> = view.slots.iter().map(|place| place.pid).collect();
    let mut all = submitted.processes();
    all.retain(|process| pids.contains(&process.pid.as_raw().cast_unsigned()));
    all
}

/// Lets a stopped ApplicationMaster go on and waits until it has ended by itself.
fn wakes_and_ends(cluster: &Cluster, submitted: &Submitted<'_>, zombie: &Process) -> Result<()> {
    ensure!(
        is_alive(zombie.pid) && is_stopped(zombie.pid),
        "{zombie:?} is not asleep"
    );
    kill(zombie.pid, Signal::SIGCONT)?;
    let code = wait_until("the old one ends", LIMIT, || {
        exit_code_left(cluster, &submitted.id, zombie)
    })?;
    ensure!(
        code == SUPERSEDED,
        "it ended with {code}: {}",
        submitted.story()
    );
    Ok(())
}

/// Three jobs, whose first ApplicationMasters stop in the middle of a checkpoint and wake when their successors have
/// committed. Returns the NodeManagers that it has killed.
fn wakes_in_a_checkpoint(cluster: &Cluster) -> Result<BTreeSet<Daemon>> {
    let mut jobs = Vec::new();
    for point in ["before-manifest", "before-rename", "before-delete"] {
        let job = YarnJob::bsp(cluster, point, SHAPE)?;
        let submitted = job.submit(&[], &format!("pause:40:{{slow}},stop:{point}:cut=5"))?;
        jobs.push((point, job, submitted));
    }
    let mut zombies = Vec::new();
    for (point, _, submitted) in &jobs {
        zombies.push(stopped(submitted).context(*point)?);
    }
    let nodes: BTreeSet<Daemon> = zombies.iter().map(|zombie| zombie.node).collect();
    for node in &nodes {
        cluster.kill(*node)?;
    }
    let killed = Instant::now();
    for ((point, job, submitted), zombie) in jobs.iter_mut().zip(&zombies) {
        wakes_beside_its_successor(cluster, job, submitted, zombie).context(*point)?;
        println!("{point}: woken and gone after {:.1?}", killed.elapsed());
        job.hurry()?;
    }
    for (point, job, mut submitted) in jobs {
        submitted.ends_well(LIMIT).context(point)?;
        job.same_as_local(SHAPE).context(point)?;
        job.verify()?;
    }
    Ok(nodes)
}

/// It commits nothing, deletes nothing, commands nobody.
fn wakes_beside_its_successor(
    cluster: &Cluster,
    job: &YarnJob<'_>,
    submitted: &mut Submitted<'_>,
    zombie: &Process,
) -> Result<()> {
    let second = submitted.wait_for("attempt 2 commits", LIMIT, |view| {
        let newest = view.checkpoints.last();
        view.attempt.0 == 2
            && settled(view)
            && newest.is_some_and(|newest| newest.cut.generation == Generation(2))
    })?;
    // While the second one sleeps, whatever its processes do and whatever changes is the old one's doing.
    let am = submitted.am(2)?;
    kill(am.pid, Signal::SIGSTOP)?;
    let (before, commanded) = (durable_at_rest(job)?, members(submitted, &second));
    ensure!(
        commanded.len() == second.slots.len(),
        "{commanded:?} of {second:#?}"
    );
    wakes_and_ends(cluster, submitted, zombie)?;
    let after = durable(job)?.into_iter().filter(by_masters).collect();
    let still = members(submitted, &second);
    kill(am.pid, Signal::SIGCONT)?;
    ensure!(before == after, "{before:#?}, then {after:#?}");
    ensure!(commanded == still, "{commanded:?}, then {still:?}");
    let on = submitted.wait_for("the second goes on", LIMIT, |view| {
        view.attempt.0 == 2 && view.rows > second.rows
    })?;
    ensure!(on.epoch == second.epoch, "{second:#?}, then {on:#?}");
    Ok(())
}

/// A job whose old application lives is refused, and goes on as a new application when the ResourceManager has ended
/// the old one, whatever that does then.
fn taken_over_by_a_new_application(cluster: &Cluster) -> Result<()> {
    let job = YarnJob::bsp(cluster, "again", SHAPE)?;
    let mut first = job.submit(&[], "pause:40:{slow}")?;
    first.wait_for("checkpoints", LIMIT, |view| {
        settled(view) && view.checkpoints_taken >= 3
    })?;
    let zombie = first.am(1)?;
    kill(zombie.pid, Signal::SIGSTOP)?;
    cluster.kill(zombie.node)?;

    // The ResourceManager believes in it.
    let refused = job.submit_and_wait(&[])?;
    ensure!(
        refused.code == Some(SUPERSEDED) && refused.stderr.contains(&first.id),
        "{refused:?}"
    );

    first.kill()?;
    wait_until("it is over", LIMIT, || {
        let report = first.report()?;
        ensure!(
            report.state.is_some_and(|state| state.is_final()),
            "{report:?}"
        );
        Ok(())
    })?;
    let newest = job.committed()?.pop().context("checkpoints")?;
    let mut second = job.submit(&[], "pause:40:{slow}")?;
    second.wait_for("the new application commits", LIMIT, |view| {
        settled(view) && view.checkpoints_taken >= 2
    })?;
    let resumed = second.events().iter().find_map(|event| match event {
        Event::Started { resumed_from, .. } => Some(*resumed_from),
        _ => None,
    });
    let from = resumed.flatten().context("it says from where it goes on")?;
    ensure!(
        from.to_string() == newest,
        "{from}, and the newest was {newest}"
    );
    wakes_and_ends(cluster, &first, &zombie)?;
    job.hurry()?;
    second.ends_well(LIMIT)?;
    job.same_as_local(SHAPE)?;
    let names = job.verify()?;
    ensure!(
        names.iter().all(|name| !name.starts_with("g1-")),
        "one lineage: {names:?}"
    );
    Ok(())
}

#[test]
fn old_applicationmasters_that_wake_commit_delete_and_command_nothing() -> Result<()> {
    let cluster = cluster()?;
    for node in wakes_in_a_checkpoint(&cluster)? {
        cluster.restart(node)?;
    }
    cluster.wait_ready()?;
    taken_over_by_a_new_application(&cluster)
}
