//! An application that lives on beside the next one of the same job: whatever it does when it wakes, one lineage of
//! checkpoints remains.
//!
//! A stopped ApplicationMaster whose NodeManager lives is killed by it, so the NodeManager is killed first.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use heddle_protocol::view::Event;
use heddle_tests::hadoop::{Cluster, Options, wait_until};
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

#[test]
fn a_job_whose_old_application_lives_is_refused_then_taken_over() -> Result<()> {
    let cluster = cluster()?;
    let job = YarnJob::bsp(&cluster, "again", SHAPE)?;
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
    wakes_and_ends(&cluster, &first, &zombie)?;
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
