//! Simulations of whole clusters, one tick a second: what each policy gives to the same jobs.
//!
//! `cargo run --release -p heddle-controller-core --example day -- --experiment day`; others are `a2`, `m` and `b`. It fails if
//! jobs wait longer with the planner than with FIFO, or one waits beyond half an hour.
#![allow(clippy::disallowed_types, reason = "the run time of a policy is printed")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::Instant;

use heddle_controller_core::{ResourceVector, SizeRange};
use support::random::Random;
use support::world::{Job, Policy, World};

const SECOND_MS: u64 = 1_000;

/// A cluster and its jobs, and a service whose containers come and go.
struct Experiment {
    nodes: Vec<ResourceVector>,
    jobs: Vec<Job>,
    /// Of one container.
    service: ResourceVector,
    /// Containers of the service, by the second.
    service_wanted: fn(u64) -> u32,
    /// Seconds between which the use is measured beside that of the whole run.
    off_peak: Option<(u64, u64)>,
}

fn range(min: u32, max: u32, pservers: u32) -> SizeRange {
    SizeRange {
        trainers_min: min,
        trainers_max: max,
        trainers_useful: max,
        lanes: None,
        pservers_min: pservers,
        pservers_max: pservers,
    }
}

fn vcores(count: i64) -> ResourceVector {
    ResourceVector::new(0, count, count * 1_024)
}

/// Equal jobs that come one after the other. `work`: trainers × seconds of each.
fn equal(
    count: u64,
    every_s: u64,
    trainer: i64,
    pserver: i64,
    range: SizeRange,
    work: u64,
) -> Vec<Job> {
    let job = |at: u64| {
        let submitted_ms = at * every_s * SECOND_MS;
        let id = format!("job_{at:03}");
        Job::new(
            id,
            submitted_ms,
            vcores(trainer),
            vcores(pserver),
            range.sizes(),
            work * SECOND_MS,
        )
    };
    (0..count).map(job).collect()
}

impl Experiment {
    fn named(name: &str) -> Self {
        let still = |nodes, jobs| Self {
            nodes,
            jobs,
            service: ResourceVector::default(),
            service_wanted: |_| 0,
            off_peak: None,
        };
        match name {
            "a2" => still(vec![vcores(20); 117], equal(20, 10, 5, 4, range(2, 60, 2), 18_000)),
            "m" => still(vec![vcores(64); 4], equal(20, 10, 2, 1, range(2, 30, 1), 1_900)),
            "b" => Self {
                nodes: vec![vcores(20); 117],
                jobs: equal(6, 10, 5, 4, range(2, 60, 2), 40_000),
                service: vcores(3),
                service_wanted: |second| match second / 90 {
                    step @ 0..=3 => 400 - 100 * step as u32,
                    step @ 4..=6 => 100 + 100 * (step as u32 - 3),
                    _ => 400,
                },
                off_peak: Some((300, 370)),
            },
            "day" => Self {
                nodes: (0..1_000)
                    .map(|at| {
                        let gpus = if at % 10 == 0 { 4 } else { 0 };
                        ResourceVector::new(gpus, 32, 128 * 1_024)
                    })
                    .collect(),
                jobs: day_jobs(),
                service: vcores(4),
                // Twice as much at noon as at midnight.
                service_wanted: |second| {
                    let quarter = (second % 86_400) / 900;
                    1_500 + 30 * u32::try_from(quarter.min(96 - quarter)).expect("within the range")
                },
                off_peak: None,
            },
            _ => panic!("the experiment must be a2, m, b or day (got {name})"),
        }
    }
}

/// 100 jobs over a day, most of them in the morning and the afternoon; one in six with GPUs.
fn day_jobs() -> Vec<Job> {
    let mut random = Random(7);
    let job = |at: u64| {
        let peak = random.pick(&[9, 10, 11, 14, 15, 16, 20, 2]);
        let submitted_ms = (peak * 3_600 + random.range(0, 3_599)) * SECOND_MS;
        let with_gpus = random.once_in(6);
        let vcores = random.amount(2, 8);
        let gpus = if with_gpus { random.amount(1, 2) } else { 0 };
        let trainer = ResourceVector::new(gpus, vcores, vcores * random.amount(2, 4) * 1_024);
        let min = random.count(1, 20);
        let max =
            if with_gpus { min + random.count(10, 100) } else { min * 4 + random.count(20, 600) };
        let sizes = SizeRange {
            pservers_max: random.count(2, 8),
            lanes: random.once_in(4).then_some(max),
            ..range(min, max, 2)
        };
        // Half an hour to three hours at the full size.
        let work = u64::from(max) * random.range(1_800, 10_800) * SECOND_MS;
        let pserver = ResourceVector::new(0, 4, 16 * 1_024);
        Job::new(format!("job_{at:03}"), submitted_ms, trainer, pserver, sizes.sizes(), work)
    };
    (0..100).map(job).collect()
}

/// Runs one policy, and prints a row. Returns the mean and the longest time for which jobs were pending, s.
fn run(name: &str, policy: Policy) -> (f64, f64) {
    let Experiment { nodes, jobs, service, service_wanted, off_peak } = Experiment::named(name);
    let total: i64 = nodes.iter().map(|node| node.vcores).sum();
    let began = Instant::now();
    let mut world = World::new(policy, nodes, jobs);
    world.service.demand = service;
    let (mut use_before, mut off_peak_use) = (0, None);
    let mut second = 0;
    while world.jobs.iter().any(|job| job.ended_ms.is_none()) && second < 7 * 86_400 {
        second += 1;
        world.service.wanted = service_wanted(second);
        world.advance(SECOND_MS);
        if let Some((from, to)) = off_peak {
            if second == from {
                use_before = world.used;
            } else if second == to {
                let most = total * (to - from) as i64 * 1_000;
                off_peak_use = Some((world.used - use_before) as f64 / most as f64 * 100.0);
            }
        }
    }
    let count = world.jobs.len() as f64;
    let pending: Vec<f64> = world
        .jobs
        .iter()
        .map(|job| (job.started_ms.unwrap_or(world.now_ms) - job.submitted_ms) as f64 / 1e3)
        .collect();
    let ended = |job: &Job| job.ended_ms.unwrap_or(world.now_ms);
    let completion = world.jobs.iter().map(|job| (ended(job) - job.submitted_ms) as f64 / 1e3);
    let makespan_ms = world.jobs.iter().map(ended).max().unwrap_or(0);
    let changes: u32 = world.jobs.iter().map(|job| job.changes_count).sum();
    let used = world.used as f64 / (total as f64 * makespan_ms as f64) * 100.0;
    let mean = pending.iter().sum::<f64>() / count;
    let longest = pending.iter().copied().fold(0.0, f64::max);
    println!(
        "| {policy:?} | {mean:.1} | {longest:.0} | {used:.1} % | {} | {:.0} | {:.1} | {} | {} | {:.1} |",
        makespan_ms / 1_000,
        completion.sum::<f64>() / count,
        f64::from(changes) / count,
        world.service.lacked / 1_000,
        off_peak_use.map_or("-".to_owned(), |percent| format!("{percent:.1} %")),
        began.elapsed().as_secs_f64(),
    );
    (mean, longest)
}

fn main() {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--experiment").skip(1);
    let name = arguments.next().unwrap_or_else(|| "day".to_owned());
    println!("experiment {name}\n");
    println!(
        "| policy | mean pending s | max pending s | CPU use | makespan s | mean completion s | changes a job | \
         service lacked s | off-peak use | run time s |"
    );
    println!("| --- |{}", " --- |".repeat(9));
    run(&name, Policy::Fixed);
    let (fifo, _) = run(&name, Policy::Fifo);
    run(&name, Policy::Fair);
    let (mean, longest) = run(&name, Policy::Planner);
    assert!(mean <= fifo, "jobs were pending for {mean:.1} s in the mean, with FIFO {fifo:.1} s");
    assert!(longest <= 1_800.0, "a job was pending for {longest:.0} s");
}
