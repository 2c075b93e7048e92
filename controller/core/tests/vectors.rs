//! The vectors of the autoscaler that the planner follows, as far as its own tests state them.
//!
//! Its passes give or take one size each and are repeated until nothing changes; a round of the planner gives the sum. Two results
//! differ on purpose: an exact fit is taken, where the other wants strictly more memory than asked, and a job of a fixed size above
//! its maximum is cut as any other.

use heddle_controller_core::{
    ClusterState, ContainerCounts, ElasticJob, LoadLimit, NodeCapacity, NodeContainers,
    QueueCapacity, ResourceVector, Score, plan,
};

const AMPLE: i64 = 1_000_000;

/// [GPUs, CPU in thousandths, memory].
type Amounts = [i64; 3];

fn vector([gpus, vcores, memory_mib]: Amounts) -> ResourceVector {
    ResourceVector::new(gpus, vcores, memory_mib)
}

fn cluster(total: Amounts, used: Amounts, load_permille: u32) -> ClusterState {
    let (total, used) = (vector(total), vector(used));
    ClusterState {
        nodes: vec![NodeCapacity { name: "n1".to_owned(), total, free: total - used }],
        limit: LoadLimit { vcores_permille: load_permille, memory_permille: load_permille },
        ..ClusterState::default()
    }
}

fn job(id: &str, min: u32, max: u32, trainers: u32, demand: Amounts) -> ElasticJob {
    let counts = |trainers| ContainerCounts::new(trainers, 0);
    ElasticJob {
        id: id.to_owned(),
        queue: "default".to_owned(),
        trainer: vector(demand),
        sizes: (min..=max).map(counts).collect(),
        wanted: counts(trainers),
        held: vec![NodeContainers { node: "n1".to_owned(), counts: counts(trainers) }],
        ..ElasticJob::default()
    }
}

fn changes(cluster: &ClusterState, jobs: &[ElasticJob]) -> Vec<(String, i64)> {
    let decisions = plan(cluster, jobs, 0).decisions.into_iter();
    let change = |to: ContainerCounts, from: ContainerCounts| {
        i64::from(to.trainers) - i64::from(from.trainers)
    };
    decisions.map(|decision| (decision.job, change(decision.to, decision.from))).collect()
}

#[test]
fn scores_are_parts_of_the_range() {
    assert_eq!(Score::new(2, 1, 2), Score::new(1, 0, 1));
    assert_eq!(Score::new(1, 1, 2), Score::new(0, 0, 1));
    assert_eq!(Score::new(2, 1, 3), Score::new(1, 0, 2));
}

/// The jobs in the order in which they are served. `room`: of their queue, for one trainer at a time, by number of those served.
fn order(mut jobs: Vec<ElasticJob>, room: impl Fn(usize) -> Amounts) -> Vec<String> {
    let total = vector([1, 100, 100]);
    let node = |name: &str, gpus| {
        let total = ResourceVector { gpus, ..total };
        NodeCapacity { name: name.to_owned(), total, free: total }
    };
    let mut cluster =
        ClusterState { nodes: vec![node("n1", 0), node("n2", 1)], ..ClusterState::default() };
    let mut order = Vec::new();
    loop {
        let most = Some(vector(room(order.len())));
        let used = ResourceVector::default();
        cluster.queues =
            vec![QueueCapacity { name: "default".to_owned(), most, used, parents_free: None }];
        let changes = changes(&cluster, &jobs);
        let Some((id, _)) = changes.first() else { return order };
        assert_eq!(changes.len(), 1, "there is room for one trainer: {changes:?}");
        jobs.retain(|job| job.id != *id);
        order.push(id.clone());
    }
}

#[test]
fn jobs_with_lower_scores_are_served_first() {
    let demand = [0, 1, 1];
    let jobs = vec![
        job("a", 1, 2, 2, demand),
        job("b", 1, 20, 2, demand),
        job("c", 1, 10, 2, demand),
        job("d", 1, 1, 1, demand),
    ];
    assert_eq!(order(jobs, |_| [0, 1, 1]), ["b", "c"], "a is at its top, d has one size");
    let [a, b, c] = [Score::new(2, 1, 2), Score::new(2, 1, 20), Score::new(2, 1, 10)];
    assert!(b < c && c < a);
}

#[test]
fn equal_scores_are_served_by_gpus_then_cpu_then_memory() {
    let jobs = vec![
        job("a", 1, 2, 1, [1, 1, 1]),
        job("b", 1, 2, 1, [0, 1, 1]),
        job("c", 1, 2, 1, [0, 10, 1]),
        job("d", 1, 2, 1, [0, 1, 2]),
    ];
    let memory = |served| if served == 1 { 2 } else { 1 };
    assert_eq!(order(jobs, |served| [1, 10, memory(served)]), ["b", "d", "c", "a"]);
}

#[test]
fn one_job_gets_what_the_vectors_give() {
    let cpu = [0, 1_000, 1];
    let gpu = [1, 1_000, 1];
    // Name, total, used, load in thousandths, minimum, maximum, present, demand, change.
    type Row = (&'static str, Amounts, Amounts, u32, u32, u32, u32, Amounts, i64);
    let rows: [Row; 13] = [
        ("at max", [0, 9_000, AMPLE], [0, 2_000, 2], 1000, 1, 2, 2, cpu, 0),
        // One in the first pass of two.
        ("room", [0, 3_000, AMPLE], [0, 100, 1], 1000, 1, 3, 1, cpu, 2),
        ("CPU full", [0, 1_000, AMPLE], [0, 1_000, 1], 1000, 1, 3, 1, cpu, 0),
        ("GPU full", [10, 99_000, AMPLE], [10, 1_000, 1], 1000, 1, 3, 1, gpu, 0),
        ("above max", [0, 9_000, AMPLE], [0, 6_000, 6], 1000, 1, 3, 6, cpu, -3),
        ("overload", [0, 3_000, AMPLE], [0, 5_000, 3], 1000, 1, 3, 3, cpu, -2),
        ("overload, up pass", [0, 1_000, AMPLE], [0, 2_000, 1], 1000, 1, 3, 1, cpu, 0),
        ("memory full", [0, 9_000, 1_000], [0, 1_000, 1_000], 1000, 1, 3, 1, cpu, 0),
        ("whole run", [0, 4_000, AMPLE], [0, 1_000, 1], 1000, 1, 3, 1, cpu, 2),
        ("whole run", [0, 3_000, AMPLE], [0, 1_000, 1], 800, 1, 3, 1, cpu, 1),
        ("whole run", [0, 3_000, AMPLE], [0, 3_000, 3], 800, 1, 3, 3, cpu, -1),
        ("GPU, CPU bound", [10, 3_000, AMPLE], [8, 2_000, 1], 1000, 1, 3, 1, gpu, 1),
        ("GPU, GPU bound", [10, 2_000, AMPLE], [9, 990, 1], 1000, 1, 3, 1, gpu, 1),
    ];
    for (name, total, used, load, min, max, present, demand, change) in rows {
        let found = changes(&cluster(total, used, load), &[job("a", min, max, present, demand)]);
        let expected = if change == 0 { vec![] } else { vec![("a".to_owned(), change)] };
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn an_exact_fit_is_taken() {
    let cluster = cluster([0, 9_000, 100], [0, 1_000, 90], 1000);
    assert_eq!(changes(&cluster, &[job("a", 1, 3, 1, [0, 1_000, 10])]), [("a".to_owned(), 1)]);
}

#[test]
fn an_inelastic_job_above_its_max_is_cut() {
    let cluster = cluster([0, 9_000, AMPLE], [0, 4_000, 4], 1000);
    assert_eq!(changes(&cluster, &[job("a", 2, 2, 4, [0, 1_000, 1])]), [("a".to_owned(), -2)]);
}
