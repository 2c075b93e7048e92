//! How long jobs take to get over the loss of a trainer, a pserver, a node, the ApplicationMaster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use heddle_protocol::ids::{Role, Slot};
use heddle_protocol::view::RecoveryView;
use heddle_tests::hadoop::{Cluster, wait_until};
use heddle_tests::hdfs_job::Shape;
use heddle_tests::local::kill9;
use heddle_tests::yarn_job::{Submitted, Watch, YarnJob, settled};

use crate::{Figures, print};

const ROUNDS: usize = 5;
const LIMIT: Duration = Duration::from_secs(120);
/// Longer than all faults together take; the job is ended after the last one.
const SHAPE: Shape = Shape { passes: 100_000, every: "2s", local_data: false };

/// One of the five rows of a recovery, ms.
type Row = fn(&RecoveryView) -> Option<u64>;

pub fn measure(cluster: &Cluster) -> Result<()> {
    let job = YarnJob::bsp(cluster, "recoveries", SHAPE)?;
    let mut runs: BTreeMap<&str, Vec<Figures>> = BTreeMap::new();
    for name in ["trainer", "pserver"] {
        let mut submitted = job.submit(&["--fresh"], "")?;
        for round in 0..ROUNDS {
            let slot = match name {
                "trainer" => Slot::trainer(round as u32 % 2),
                _ => Slot::pserver(round as u32 % 2),
            };
            let figures = process(&mut submitted, slot)?;
            eprintln!("{round} {name} {figures:.3?}");
            runs.entry(name).or_default().push(figures);
        }
        submitted.kill()?;
        submitted.wait_gone(LIMIT)?;
    }
    // A job of its own for each: new pservers are on two nodes, replacements are where there is room.
    for name in ["NodeManager", "ApplicationMaster"] {
        for round in 0..ROUNDS {
            let mut submitted = job.submit(&["--fresh"], "")?;
            let figures = match name {
                "NodeManager" => node(cluster, &mut submitted)?,
                _ => master(&mut submitted)?,
            };
            eprintln!("{round} {name} {figures:.3?}");
            runs.entry(name).or_default().push(figures);
            submitted.kill()?;
            submitted.wait_gone(LIMIT)?;
        }
    }
    print("recovery, s", &runs);
    Ok(())
}

/// Recoveries with `network.protection` off and on, in turn. A new job for each: a replacement in a job that lost a process
/// a moment ago is delayed.
pub fn compare_protection(cluster: &Cluster) -> Result<()> {
    let job = YarnJob::bsp(cluster, "protection", SHAPE)?;
    let mut runs: BTreeMap<&str, Vec<Figures>> = BTreeMap::new();
    for round in 0..ROUNDS {
        for (name, protection, slot) in [
            ("trainer, off", "off", Slot::trainer(0)),
            ("trainer, on", "on", Slot::trainer(0)),
            ("pserver, off", "off", Slot::pserver(0)),
            ("pserver, on", "on", Slot::pserver(0)),
        ] {
            let set = format!("network.protection={protection}");
            let mut submitted = job.submit(&["--fresh", "--set", &set], "")?;
            let figures = process(&mut submitted, slot)?;
            eprintln!("{round} {name} {figures:.3?}");
            runs.entry(name).or_default().push(figures);
            submitted.kill()?;
            submitted.wait_gone(LIMIT)?;
        }
    }
    print("recovery, s", &runs);
    Ok(())
}

fn process(submitted: &mut Submitted<'_>, slot: Slot) -> Result<Figures> {
    let watch = Watch::in_a_step(submitted, 2)?;
    let (killed, at) = (Instant::now(), now_ms());
    kill9(watch.process(slot)?.pid)?;
    figures(submitted, &watch, &BTreeSet::from([slot]), killed, at)
}

/// A node without the ApplicationMaster loses its NodeManager and all containers at once.
fn node(cluster: &Cluster, submitted: &mut Submitted<'_>) -> Result<Figures> {
    let watch = Watch::in_a_step(submitted, 2)?;
    let leads = |process: &&heddle_tests::yarn_job::Process| process.slot.is_none();
    let am = watch.processes.iter().find(leads).context("it is led")?.node;
    let is_pserver = |slot: Slot| slot.role == Role::Pserver;
    let node = watch
        .processes
        .iter()
        .find(|process| process.node != am && process.slot.is_some_and(is_pserver))
        .context("pservers are on two nodes")?
        .node;
    let there: Vec<_> = watch.processes.iter().filter(|process| process.node == node).collect();
    let (killed, at) = (Instant::now(), now_ms());
    cluster.kill(node)?;
    for process in &there {
        kill9(process.pid)?;
    }
    let lost = there.iter().filter_map(|process| process.slot).collect();
    let figures = figures(submitted, &watch, &lost, killed, at)?;
    cluster.restart(node)?;
    cluster.wait_ready()?;
    Ok(figures)
}

fn figures(
    submitted: &mut Submitted<'_>,
    watch: &Watch,
    lost: &BTreeSet<Slot>,
    killed: Instant,
    at_ms: u64,
) -> Result<Figures> {
    let known = watch.view.recoveries.len();
    let after = submitted.wait_for("all train again", LIMIT, |view| {
        settled(view) && view.recoveries.len() >= known + lost.len()
    })?;
    let seen = killed.elapsed().as_secs_f64();
    let new = &after.recoveries[known..];
    let noticed = new.iter().map(|recovery| recovery.at_ms).min().context("one at least")?;
    let seconds = |of: fn(&RecoveryView) -> Option<u64>| {
        new.iter().filter_map(of).max().map(|ms| ms as f64 / 1000.0)
    };
    let mut figures = Figures::from([
        ("6 kill → noticed, by the test's clock", noticed.saturating_sub(at_ms) as f64 / 1000.0),
        ("7 kill → all train, by the test's clock", seen),
    ]);
    let rows: [(&str, Row); 5] = [
        ("1 checkpoint (to save the one returned to)", |it| it.save_ms),
        ("2 notice", |it| it.notice_ms),
        ("3 restart", |it| it.restart_ms),
        ("4 load", |it| it.load_ms),
        ("5 resume", |it| it.resume_ms),
    ];
    figures.extend(rows.into_iter().filter_map(|(name, of)| Some((name, seconds(of)?))));
    Ok(figures)
}

/// Trainers and pservers go on meanwhile, so that nothing is loaded and nothing is rolled back.
fn master(submitted: &mut Submitted<'_>) -> Result<Figures> {
    let watch = Watch::in_a_step(submitted, 1)?;
    let killed = Instant::now();
    kill9(submitted.am(1)?.pid)?;
    wait_until("the next one starts", LIMIT, || submitted.am(2))?;
    let started = killed.elapsed().as_secs_f64();
    submitted.wait_for("the next one leads", LIMIT, |view| view.attempt.0 == 2)?;
    let answers = killed.elapsed().as_secs_f64();
    let after = submitted
        .wait_for("all are known again", LIMIT, |view| view.attempt.0 == 2 && settled(view))?;
    ensure!(after.epoch == watch.view.epoch, "nothing is rolled back: {after:#?}");
    let seen = killed.elapsed().as_secs_f64();
    Ok(Figures::from([
        ("2 notice", started),
        ("3 restart", answers - started),
        ("5 resume", seen - answers),
        ("7 kill → all train, by the test's clock", seen),
    ]))
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
