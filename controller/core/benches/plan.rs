//! Time of one round: a cluster on which all jobs have just got their minimum, and one at rest.
//!
//! ```sh
//! cargo bench -p heddle-controller-core --bench plan           # 1000x100 and 10000x1000, nodes × jobs
//! cargo bench -p heddle-controller-core --bench plan -- 500x50
//! ```
#![allow(clippy::disallowed_types, reason = "a benchmark reads a clock")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::hint::black_box;
use std::time::Instant;

use heddle_controller_core::{ResourceVector, SizeRange, plan};
use support::random::Random;
use support::world::{Job, Policy, ROUND_MS, World};

/// Rounds that are measured, each with the same input.
const ROUNDS: usize = 9;

#[derive(Clone, Copy)]
struct Size {
    nodes: u32,
    jobs: u32,
}

impl Size {
    /// `<nodes>x<jobs>`.
    fn parse(text: &str) -> Option<Self> {
        let (nodes, jobs) = text.split_once('x')?;
        Some(Self { nodes: nodes.parse().ok()?, jobs: jobs.parse().ok()? })
    }
}

/// Jobs of many shapes, a quarter with GPUs, which together could use twice the cluster. None ends.
fn world(size: Size) -> World {
    let mut random = Random(1);
    let node = |at: u32| {
        let gpus = if at.is_multiple_of(4) { 8 } else { 0 };
        ResourceVector::new(gpus, 64, 256 * 1_024)
    };
    let each = 2 * 64 * size.nodes / size.jobs;
    let job = |at: u32| {
        let with_gpus = random.once_in(4);
        let vcores = random.count(2, 8);
        let gpus = if with_gpus { random.amount(1, 2) } else { 0 };
        let memory_mib = i64::from(vcores) * random.amount(2, 6) * 1_024;
        let min = random.count(1, 8);
        let range = SizeRange {
            trainers_min: min,
            trainers_max: min + each / vcores,
            trainers_useful: u32::MAX,
            lanes: random.once_in(4).then_some(each / vcores),
            pservers_min: 1,
            pservers_max: 4,
        };
        let trainer = ResourceVector::new(gpus, vcores.into(), memory_mib);
        let pserver = ResourceVector::new(0, 4, 16 * 1_024);
        let id = format!("application_1_{at:06}");
        let mut job = Job::new(id, 0, trainer, pserver, range.sizes(), u64::MAX);
        job.class = random.pick(&[0, 0, 1, 2]);
        job
    };
    let jobs = (0..size.jobs).map(job).collect();
    World::new(Policy::Planner, (0..size.nodes).map(node).collect(), jobs)
}

struct Figures {
    best_ms: f64,
    worst_ms: f64,
    decisions: usize,
}

/// Makes the same plan some times.
fn measure(world: &World, rounds: usize) -> Figures {
    let (cluster, jobs) = (world.cluster(), world.elastic_jobs());
    let mut figures = Figures { best_ms: f64::MAX, worst_ms: 0.0, decisions: 0 };
    for _ in 0..rounds {
        let began = Instant::now();
        let plan = black_box(plan(&cluster, &jobs, world.now_ms));
        let ms = began.elapsed().as_secs_f64() * 1e3;
        figures.best_ms = figures.best_ms.min(ms);
        figures.worst_ms = figures.worst_ms.max(ms);
        figures.decisions = plan.decisions.len();
    }
    figures
}

fn row(size: Size, name: &str, world: &World) {
    let Figures { best_ms, worst_ms, decisions } = measure(world, ROUNDS);
    let Size { nodes, jobs } = size;
    println!("| {nodes}x{jobs} | {name} | {best_ms:.2} | {worst_ms:.2} | {decisions} |");
}

fn main() {
    let mut sizes: Vec<Size> = std::env::args().filter_map(|arg| Size::parse(&arg)).collect();
    if sizes.is_empty() {
        sizes = vec![Size { nodes: 1_000, jobs: 100 }, Size { nodes: 10_000, jobs: 1_000 }];
    }
    if std::env::var_os("HEDDLE_BENCH_QUICK").is_some() {
        sizes.truncate(1);
    }
    println!(
        "| nodes x jobs | round | best ms | worst ms | decisions |\n| --- | --- | --- | --- | --- |"
    );
    for size in sizes {
        let mut world = world(size);
        row(size, "no job has its minimum", &world);
        // Granted by the scheduler; this tick has no round.
        world.advance(1_000);
        row(size, "all have their minimum", &world);
        let mut busiest = 0.0;
        let mut rest = 0;
        for _ in 0..150 {
            if rest > 14 {
                break;
            }
            world.advance(ROUND_MS - world.now_ms % ROUND_MS - 1_000);
            busiest = f64::max(busiest, measure(&world, 3).best_ms);
            let plan = world.advance(1_000).expect("a round");
            rest = if plan.decisions.is_empty() { rest + 1 } else { 0 };
        }
        let Size { nodes, jobs } = size;
        println!("| {nodes}x{jobs} | slowest on the way to rest | {busiest:.2} | | |");
        row(size, "at rest", &world);
    }
}
