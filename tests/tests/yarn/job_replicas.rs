//! Jobs with `pservers.replicas = 1` on a cluster of four NodeManagers: the loss of a process, of a node, of the
//! ApplicationMaster costs no rollback and no step. A BSP job ends with the bytes of an undisturbed run without backups, a
//! counting job with exact counts, and each save that its program asked for has one model.

use std::collections::BTreeSet;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use heddle_protocol::ids::{Role, SaveNo, Slot};
use heddle_protocol::process_figures::ProcessFigure;
use heddle_protocol::view::{
    JobEvent, JobState, JobView, RecoveryKind, RecoveryView, SlotState, SlotView,
};
use heddle_tests::hadoop::{Cluster, Daemon, Options, Shared, wait_until};
use heddle_tests::hdfs_job::Shape;
use heddle_tests::local::{kill9, program};
use heddle_tests::logs::{KILLS, LOST_NODE};
use heddle_tests::yarn_job::{Counting, Process, Submitted, Watch, YarnJob, exit_code_left};
use nix::sys::signal::{Signal, kill};

const LIMIT: Duration = Duration::from_secs(180);
/// The exit code of a process that is not wanted any more.
const REFUSED: i32 = 9;
/// Enough steps for every fault: a test that has done its part lets the job run out.
const SHAPE: Shape = Shape { passes: 30, every: "40 steps", local_data: false };

/// The one cluster of this file, for one test at a time and in health.
fn cluster() -> Result<(&'static Cluster, MutexGuard<'static, ()>)> {
    static CLUSTER: Shared = Shared::new();
    let options = || Options {
        nodemanagers: 4,
        am_expiry_ms: 60_000,
        nm_expiry_ms: 8_000,
        ..Options::default()
    };
    let (cluster, turn) = CLUSTER.alone(options)?;
    for daemon in (1..=4).map(Daemon::NodeManager) {
        if cluster.pid(daemon).is_none() {
            cluster.restart(daemon)?;
        }
    }
    cluster.wait_ready()?;
    Ok((cluster, turn))
}

/// Three pservers on three of the four nodes, and three trainers on three, since a node has room for one: at least one node
/// without the ApplicationMaster has both. Backups may be late on a machine whose cores others use too.
const REPLICATED: [&str; 16] = [
    "--set",
    "pservers.count=3",
    "--set",
    "pservers.shards=6",
    "--set",
    "pservers.replicas=1",
    "--set",
    "trainers.min=3",
    "--set",
    "trainers.max=3",
    "--set",
    "trainers.memory=2200MiB",
    "--set",
    "liveness.lag=8s",
    "--set",
    "yarn.max-attempts=4",
];

/// Whether the job trains with all containers, and each shard has its backup. What a recovery took is shown by other tests: one
/// of a pserver that had no copy yet may stay open.
pub fn is_whole(view: &JobView) -> bool {
    let copied = view.replication.as_ref().is_some_and(|replication| {
        replication.under_replicated == 0 && replication.refills.is_empty()
    });
    let runs = |place: &SlotView| place.state == SlotState::Running && place.pid > 0;
    view.state == JobState::Running
        && view.phase_text.starts_with("pass")
        && view.slots.iter().all(runs)
        && copied
}

/// Whether each pserver serves a third of the shards, too.
fn is_even(view: &JobView) -> bool {
    let served = view.replication.as_ref().map(|replication| &replication.served);
    is_whole(view) && served.is_some_and(|served| served.values().all(|shards| *shards == 2))
}

/// A job in a step, with all its copies and its shards spread evenly.
fn in_a_step(job: &mut Submitted<'_>) -> Result<Watch> {
    job.wait_for("all copies are there", LIMIT, is_even)?;
    let first = job.wait_for("a checkpoint", LIMIT, |view| view.checkpoints_taken > 0)?;
    let view =
        job.wait_for("a step is taken", LIMIT, |view| is_even(view) && view.rows > first.rows)?;
    Ok(Watch { processes: job.processes(), view, since: Instant::now() })
}

fn slots(processes: &[Process]) -> BTreeSet<Slot> {
    processes.iter().filter_map(|process| process.slot).collect()
}

/// Pservers and trainers on a node without the ApplicationMaster that has both.
fn on_one_node(watch: &Watch) -> Result<(Daemon, Vec<Process>)> {
    let of = |node| -> Vec<Process> {
        watch.processes.iter().filter(|process| process.node == node).cloned().collect()
    };
    let has_both = |there: &[Process]| {
        let has = |role| slots(there).iter().any(|slot| slot.role == role);
        there.iter().all(|process| process.slot.is_some())
            && has(Role::Pserver)
            && has(Role::Trainer)
    };
    let mut nodes = (1..=4).map(Daemon::NodeManager).map(|node| (node, of(node)));
    nodes
        .find(|(_, there)| has_both(there))
        .with_context(|| format!("no node has both: {:?}", watch.processes))
}

/// The recoveries that a fault has added.
fn added<'v>(before: &JobView, view: &'v JobView) -> Vec<&'v RecoveryView> {
    let known = before.recoveries.iter().map(|recovery| recovery.at_ms).max().unwrap_or(0);
    view.recoveries.iter().filter(|recovery| recovery.at_ms > known).collect()
}

/// Waits until these processes are replaced and each shard has its backup again, with this attempt in the lead. Holds the job
/// to what the loss may cost: nothing returns to a checkpoint, no step is done again, and all other processes stay.
fn survives(
    job: &mut Submitted<'_>,
    before: &Watch,
    lost: &[Process],
    attempt: u32,
) -> Result<JobView> {
    let pid = |slot: Slot, view: &JobView| {
        let place = view.slots.iter().find(|place| place.slot == slot);
        place.map_or(0, |place| place.pid)
    };
    let is_replaced = |process: &Process, view: &JobView| {
        process.slot.is_none_or(|slot| pid(slot, view).cast_signed() != process.pid.as_raw())
    };
    let what = format!("{:?} replaced", slots(lost));
    let after = job.wait_for(&what, LIMIT, |view| {
        view.attempt.0 == attempt
            && is_whole(view)
            && lost.iter().all(|process| is_replaced(process, view))
    })?;
    ensure!(after.epoch == before.view.epoch, "{:?}, {after:#?}", before.view.epoch);
    ensure!(
        (after.phase, after.step) >= (before.view.phase, before.view.step),
        "steps are lost: {:?}, {after:#?}",
        (before.view.phase, before.view.step)
    );
    for recovery in added(&before.view, &after) {
        ensure!(
            recovery.base.is_none()
                && recovery.steps_again.is_none_or(|steps| steps == 0)
                && recovery.epoch_after == recovery.epoch_before,
            "{recovery:#?}"
        );
    }
    let alive = job.processes();
    for process in before.processes.iter().filter(|process| process.slot.is_some()) {
        ensure!(
            lost.contains(process) || alive.contains(process),
            "{process:?} is gone: {alive:?}"
        );
    }
    ensure!(job.rollbacks().is_empty(), "{:?}", job.rollbacks());
    println!(
        "{:?} lost and replaced after {:.1?}: {:?}",
        slots(lost),
        before.since.elapsed(),
        added(&before.view, &after)
    );
    Ok(after)
}

/// An event tells that backups serve shards of this slot, and that other shards lost a backup there.
fn failed_over(job: &Submitted<'_>, of: Slot) -> Result<()> {
    let is_it = |event: &JobEvent| {
        matches!(
            event,
            JobEvent::FailedOver { slot, promoted: 1.., backups_lost: 1.., .. } if *slot == of
        )
    };
    wait_until("the failover is reported", LIMIT, || {
        ensure!(job.events().iter().any(is_it), "{of}: {:?}", job.events());
        Ok(())
    })
}

/// A pserver, which is the primary of shards and has backups of others; then the ApplicationMaster, while these shards get other
/// backups.
fn master_dies_in_a_refill(job: &mut Submitted<'_>, slow_fills: &std::path::Path) -> Result<()> {
    std::fs::write(slow_fills, "")?;
    let watch = in_a_step(job)?;
    let lost = watch.process(Slot::pserver(0))?.clone();
    kill9(lost.pid)?;
    // Both of its shards are served by their backups.
    job.wait_for("a refill is under way", LIMIT, |view| {
        view.replication.as_ref().is_some_and(|replication| {
            replication.promotions == 2 && !replication.refills.is_empty()
        })
    })?;
    let am = job.am(1)?;
    kill9(am.pid)?;
    job.wait_for("attempt 2 leads", LIMIT, |view| view.attempt.0 == 2)?;
    std::fs::remove_file(slow_fills)?;
    survives(job, &watch, &[lost], 2).map(drop)
}

/// The primary of shards and the ApplicationMaster, at once.
fn master_and_primary_die(job: &mut Submitted<'_>) -> Result<()> {
    let watch = in_a_step(job)?;
    let (am, lost) = (job.am(2)?, watch.process(Slot::pserver(1))?.clone());
    kill9(am.pid)?;
    kill9(lost.pid)?;
    survives(job, &watch, &[lost], 3).map(drop)
}

/// A pserver and a trainer of one node; then a node with a pserver and a trainer, whose NodeManager dies too. The job avoids that
/// node for a minute, so this comes after all that needs each node.
fn node_dies(cluster: &Cluster, job: &mut Submitted<'_>) -> Result<()> {
    for with_manager in [false, true] {
        let watch = in_a_step(job)?;
        let (manager, lost) = on_one_node(&watch)?;
        if with_manager {
            cluster.kill(manager)?;
        }
        for process in &lost {
            kill9(process.pid)?;
        }
        survives(job, &watch, &lost, 3)?;
        for slot in slots(&lost).into_iter().filter(|slot| slot.role == Role::Pserver) {
            failed_over(job, slot)?;
        }
        if with_manager {
            cluster.restart(manager)?;
            cluster.wait_ready()?;
        }
    }
    Ok(())
}

/// A node is decommissioned: its shards are handed over, and its containers move. Then it comes back.
fn node_leaves(cluster: &Cluster, job: &mut Submitted<'_>) -> Result<()> {
    let watch = in_a_step(job)?;
    let (leaving, there) = on_one_node(&watch)?;
    let Daemon::NodeManager(n) = leaving else { anyhow::bail!("{leaving}") };
    cluster.decommission(Some(n), 300)?;
    let after = survives(job, &watch, &there, 3)?;
    let host = cluster.host(leaving);
    ensure!(after.slots.iter().all(|place| place.host != host), "{:#?}", after.slots);
    let handed_over = |event: &JobEvent| {
        matches!(
            event,
            JobEvent::Moved { slot, .. } if slots(&there).contains(slot)
        )
    };
    ensure!(job.events().iter().any(handed_over), "{:?}", job.events());
    wait_until("no process is left there", LIMIT, || {
        let alive = job.processes();
        ensure!(alive.iter().all(|process| process.node != leaving), "{alive:?}");
        Ok(())
    })?;
    cluster.decommission(None, 1)?;
    // It ends by itself once the ResourceManager has released it.
    let _ended_already = cluster.kill(leaving);
    cluster.restart(leaving)?;
    cluster.wait_ready()
}

/// Both copies of some shards at once, those that two hosts have.
fn both_copies_die(job: &mut Submitted<'_>) -> Result<()> {
    let watch = in_a_step(job)?;
    let pserver = |index| watch.process(Slot::pserver(index));
    let first = pserver(0)?;
    let others = [pserver(1)?, pserver(2)?];
    let second = others.into_iter().find(|other| other.node != first.node);
    for process in [first, second.context("all pservers are on one node")?] {
        kill9(process.pid)?;
    }
    let after =
        job.wait_for("rolled back", LIMIT, |view| view.epoch > watch.view.epoch && is_whole(view))?;
    let rolled_back = added(&watch.view, &after);
    ensure!(
        rolled_back.iter().any(|recovery| recovery.kind == RecoveryKind::Rollback),
        "{rolled_back:#?}"
    );
    let causes = job.rollbacks();
    ensure!(
        causes.len() == 1 && causes[0].contains("no copy is left of shard"),
        "the shards are named: {causes:?}"
    );
    Ok(())
}

#[test]
fn bytes_outlive_losses_without_a_rollback() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let job = YarnJob::bsp(cluster, "replicated", SHAPE)?;
    // A backup takes the end of a refill late while this file exists.
    let slow_fills = job.path().join("slow-fills");
    let points = format!(
        "step-computed=return(sleep=80,while={{slow}});frame-received=return(sleep=1000,kind=FillEnd,while={})",
        slow_fills.display()
    );
    let submitted = job.submit(&REPLICATED, &points)?.expecting(KILLS).expecting(LOST_NODE);
    let mut submitted = submitted.expecting(&["node_leaves", "copies_lost"]);
    master_dies_in_a_refill(&mut submitted, &slow_fills)?;
    master_and_primary_die(&mut submitted)?;
    node_leaves(cluster, &mut submitted)?;
    node_dies(cluster, &mut submitted)?;
    both_copies_die(&mut submitted)?;
    job.hurry()?;
    let view = submitted.ends_well(LIMIT)?;
    ensure!(view.state == JobState::Finished, "{view:#?}");
    job.same_as_local(SHAPE)
}

/// `heddle status` shows five rows for each recovery, whose shares add up to 100.
fn tables_add_up(job: &YarnJob<'_>, submitted: &Submitted<'_>) -> Result<()> {
    let status = job.heddle(&["status", &submitted.id])?;
    ensure!(status.code == Some(0), "{status:?}");
    let names = ["checkpoint", "notice", "restart", "load", "resume"];
    let lines = status.stdout.lines().map(str::split_whitespace);
    let rows: Vec<Vec<&str>> = lines.map(Iterator::collect).collect();
    let tables: Vec<&[Vec<&str>]> = rows
        .windows(5)
        .filter(|rows| rows.iter().zip(names).all(|(row, name)| row.first() == Some(&name)))
        .collect();
    ensure!(!tables.is_empty(), "no recovery in {}", status.stdout);
    for table in tables {
        let share = |row: &Vec<&str>| {
            let at = row.iter().position(|word| *word == "%")?;
            row[at - 1].parse::<u64>().ok()
        };
        let sum: u64 = table.iter().filter_map(share).sum();
        ensure!(sum == 100, "{sum} % in {table:?}");
    }
    Ok(())
}

/// A primary that stands still on a node whose NodeManager is dead, so that nobody can end it. Backups serve its shards; when
/// it wakes, nothing that it holds or sends changes anything, and it ends by itself.
#[test]
fn stopped_primary_that_wakes_changes_nothing() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let job = YarnJob::bsp(cluster, "superseded", SHAPE)?;
    let slow = "step-computed=return(sleep=80,while={slow})";
    let mut submitted = job.submit(&REPLICATED, slow)?.expecting(KILLS).expecting(LOST_NODE);
    let watch = in_a_step(&mut submitted)?;
    let (manager, there) = on_one_node(&watch)?;
    let is_pserver = |process: &&Process| process.slot.is_some_and(|it| it.role == Role::Pserver);
    let stale = there.iter().find(is_pserver).context("it has one")?.clone();
    cluster.kill(manager)?;
    kill(stale.pid, Signal::SIGSTOP)?;
    survives(&mut submitted, &watch, &there, 1)?;
    // Its backups of other shards may have left before, since it did not acknowledge.
    let is_it = |event: &JobEvent| {
        matches!(
            event,
            JobEvent::FailedOver { slot, promoted: 1.., .. } if Some(*slot) == stale.slot
        )
    };
    ensure!(submitted.events().iter().any(is_it), "{:?}", submitted.events());
    tables_add_up(&job, &submitted)?;
    let watch = in_a_step(&mut submitted)?;
    kill(stale.pid, Signal::SIGCONT)?;
    let code = wait_until("the old primary ends by itself", LIMIT, || {
        exit_code_left(cluster, &submitted.id, &stale)
    })?;
    ensure!(code == REFUSED, "{stale:?} ended with {code}");
    let view = submitted.wait_for("training goes on", LIMIT, |view| {
        is_whole(view) && view.rows > watch.view.rows
    })?;
    ensure!(view.epoch == watch.view.epoch && submitted.rollbacks().is_empty(), "{view:#?}");
    ensure!(added(&watch.view, &view).is_empty(), "{:?}", added(&watch.view, &view));
    let refused = |view: &JobView| {
        view.slots.iter().map(|it| it.figures.get(ProcessFigure::FramesRefused)).sum::<u64>()
    };
    println!("{} frames refused, {} of them since it woke", refused(&view), {
        refused(&view).saturating_sub(refused(&watch.view))
    });
    cluster.restart(manager)?;
    cluster.wait_ready()?;
    job.hurry()?;
    submitted.ends_well(LIMIT)?;
    job.same_as_local(SHAPE)
}

/// The job goes back to a checkpoint, and waits for no container.
#[test]
#[ignore = "nightly: the local test of spares is in scripts/test.sh"]
fn spare_takes_the_place_of_a_pserver() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let job = YarnJob::bsp(cluster, "spared", SHAPE)?;
    let spares = ["--set", "pservers.spares=1"];
    let slow = "step-computed=return(sleep=80,while={slow})";
    let mut submitted = job.submit(&spares, slow)?.expecting(KILLS);
    for slot in [Slot::pserver(1), Slot::pserver(0)] {
        let ready = |view: &JobView| view.spares.is_some_and(|it| it.pservers.ready == 1);
        submitted.wait_for("the spare is ready", LIMIT, ready)?;
        let watch = Watch::in_a_step(&mut submitted, 2)?;
        kill9(watch.process(slot)?.pid)?;
        let after = watch.replaced(&mut submitted, &BTreeSet::from([slot]), 80)?;
        let recovery = after.recoveries.last().context("it is listed")?;
        ensure!(recovery.kind == RecoveryKind::Spare, "{recovery:#?}");
    }
    job.hurry()?;
    submitted.ends_well(LIMIT)?;
    job.same_as_local(SHAPE)
}

/// SSP: a promoted copy waits for the clocks of all trainers, and each loss leaves the counts exact.
#[test]
#[ignore = "nightly: a job of minutes"]
fn counts_of_an_ssp_job_outlive_losses_without_a_rollback() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let counting = Counting::new(cluster, "clocks", "ssp", 30)?;
    let job = &counting.job;
    let arguments = [&REPLICATED[..], &["--set", "training.staleness=1"]].concat();
    let slow = "step-computed=return(sleep=40,while={slow})";
    let mut submitted = job.submit(&arguments, slow)?.expecting(KILLS);
    for slot in [Slot::pserver(0), Slot::trainer(1), Slot::pserver(2)] {
        let watch = in_a_step(&mut submitted)?;
        let lost = watch.process(slot)?.clone();
        kill9(lost.pid)?;
        survives(&mut submitted, &watch, &[lost], 1)?;
    }
    job.hurry()?;
    submitted.ends_well(LIMIT)?;
    counting.check()
}

/// Numbers of the saves that were published, in order.
fn saved(job: &Submitted<'_>) -> Vec<SaveNo> {
    let number = |event: &JobEvent| match event {
        JobEvent::ModelSaved { save, .. } => Some(*save),
        _ => None,
    };
    job.events().iter().filter_map(number).collect()
}

fn wait_saved(job: &Submitted<'_>, save: SaveNo) -> Result<()> {
    wait_until("the save is published", LIMIT, || {
        ensure!(saved(job).contains(&save), "{:?}; {}", saved(job), job.story());
        Ok(())
    })
}

/// The trainers that write the first save exit; the ApplicationMaster exits when it is about to publish the second.
#[test]
#[ignore = "nightly: a job of a minute"]
fn saves_and_counts_outlive_savers_and_masters() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let counting = Counting::new(cluster, "saves", "asp", 30)?;
    let trainer = program("counting-trainer")?;
    let command = format!(
        "trainers.command=[\"{}\", \"--save-every\", \"40\", \"--block-ms\", \"100\"]",
        trainer.display()
    );
    let of_saves = ["--set", &command, "--set", "output.save-lease=5s"];
    let points = "step-computed=return(sleep=40,while={slow});\
        export-begun=return(exit,incarnation=1,save=1)";
    let first_master = "case \"$CONTAINER_ID\" in *_01_000001) \
         export FAILPOINTS=\"$FAILPOINTS;before-publish=return(exit,save=2)\";; esac";
    let job = &counting.job;
    let arguments = [&REPLICATED[..], &of_saves].concat();
    let submitted = job.submit_with_shell(&arguments, points, first_master)?;
    let mut submitted = submitted.expecting(KILLS);
    wait_saved(&submitted, SaveNo(1))?;
    let lost = |event: &&JobEvent| matches!(event, JobEvent::Lost { .. });
    ensure!(submitted.events().iter().filter(lost).count() >= 2, "{:?}", submitted.events());
    wait_saved(&submitted, SaveNo(2))?;
    let view = submitted.wait_for("attempt 2 leads", LIMIT, |view| view.attempt.0 == 2)?;
    ensure!(view.epoch.count == 0, "{view:#?}");
    let watch = in_a_step(&mut submitted)?;
    let lost = watch.process(Slot::pserver(1))?.clone();
    kill9(lost.pid)?;
    survives(&mut submitted, &watch, &[lost], 2)?;
    job.hurry()?;
    submitted.ends_well(LIMIT)?;
    counting.check()?;
    for save in saved(&submitted) {
        counting.check_save(save.0)?;
    }
    Ok(())
}
