//! Schedules that a planner can get wrong, each by name.

use heddle_controller_core::{
    ClusterState, ContainerCounts, ElasticJob, FixedSize, LoadLimit, NodeCapacity, NodeContainers,
    QueueCapacity, ResourceVector, ScalingDecision, ScalingPlan, ScalingReason, SizeChange,
    SizeRange, WaitingReason, plan,
};

const NOW_MS: u64 = 10_000_000;

fn vcores(count: i64) -> ResourceVector {
    ResourceVector::new(0, count, count)
}

fn trainers(count: u32) -> ContainerCounts {
    ContainerCounts::new(count, 0)
}

fn on(node: &str, count: u32) -> NodeContainers {
    NodeContainers { node: node.to_owned(), counts: trainers(count) }
}

/// A cluster without a margin. Each node: its name, its total, what others use of it.
fn cluster(nodes: &[(&str, ResourceVector, ResourceVector)], jobs: &[ElasticJob]) -> ClusterState {
    let used = |node: &str| {
        let containers = |job: &ElasticJob| {
            let here = job.held.iter().chain(&job.draining).filter(|on| on.node == node);
            job.trainer.times(here.map(|on| on.counts.trainers).sum())
        };
        jobs.iter().map(containers).fold(ResourceVector::default(), |sum, used| sum + used)
    };
    let nodes = nodes.iter().map(|(name, total, others)| NodeCapacity {
        name: (*name).to_owned(),
        total: *total,
        free: *total - *others - used(name),
    });
    ClusterState {
        nodes: nodes.collect(),
        limit: LoadLimit { vcores_permille: 1000, memory_permille: 1000 },
        ..ClusterState::default()
    }
}

/// A job that holds what it wants.
fn job(id: &str, min: u32, max: u32, held: &[NodeContainers]) -> ElasticJob {
    let count = held.iter().map(|on| on.counts.trainers).sum();
    ElasticJob {
        id: id.to_owned(),
        queue: "default".to_owned(),
        trainer: vcores(1),
        sizes: (min..=max).map(trainers).collect(),
        wanted: trainers(count),
        held: held.to_vec(),
        ..ElasticJob::default()
    }
}

/// A job that waits for its minimum.
fn waiting(id: &str, min: u32, trainer: ResourceVector) -> ElasticJob {
    let wanted = trainers(min);
    ElasticJob { trainer, wanted, asked_since_ms: Some(NOW_MS), ..job(id, min, min + 4, &[]) }
}

fn change(at_ms: u64, from: u32, to: u32, is_fallback: bool) -> SizeChange {
    SizeChange { at_ms, from: trainers(from), to: trainers(to), is_fallback }
}

fn decision<'p>(plan: &'p ScalingPlan, id: &str) -> Option<&'p ScalingDecision> {
    plan.decisions.iter().find(|decision| decision.job == id)
}

fn wait<'p>(plan: &'p ScalingPlan, id: &str) -> Option<&'p WaitingReason> {
    plan.waiting.iter().find(|waiting| waiting.job == id).map(|waiting| &waiting.reason)
}

#[test]
fn room_of_a_node_that_died_is_not_offered() {
    // Job a was releasing trainers on n2, which is no longer listed.
    let mut a = job("a", 1, 8, &[on("n1", 4)]);
    a.draining = vec![on("n2", 4)];
    let jobs = [a, waiting("b", 4, vcores(1))];
    let cluster = cluster(&[("n1", vcores(4), vcores(0))], &jobs);
    let plan = plan(&cluster, &jobs, NOW_MS);
    assert_eq!(
        wait(&plan, "b"),
        Some(&WaitingReason::MinimumHasNoRoom { waited_ms: 0, nodes_kept: 0 })
    );
    assert_eq!(plan.decisions, [], "a would have to give all four");
}

#[test]
fn room_is_promised_once_in_a_round() {
    let jobs = [job("a", 1, 8, &[on("n1", 1)]), job("b", 1, 8, &[on("n1", 1)])];
    let cluster = cluster(&[("n1", vcores(5), vcores(0))], &jobs);
    let plan = plan(&cluster, &jobs, NOW_MS);
    let grown: u32 = plan.decisions.iter().map(|decision| decision.to.trainers - 1).sum();
    assert_eq!(grown, 3);
}

#[test]
fn room_that_has_been_asked_for_is_not_promised_again() {
    let mut a = job("a", 1, 8, &[on("n1", 1)]);
    (a.class, a.wanted, a.asked_since_ms) = (1, trainers(4), Some(NOW_MS - 1_000));
    let jobs = [a, job("b", 1, 8, &[on("n1", 1)])];
    let cluster = cluster(&[("n1", vcores(5), vcores(0))], &jobs);
    assert_eq!(plan(&cluster, &jobs, NOW_MS).decisions, []);
}

#[test]
fn a_request_in_vain_is_withdrawn_and_backed_off() {
    // The plan saw four free cores, which another application got.
    let mut a = job("a", 1, 8, &[on("n1", 1)]);
    (a.wanted, a.asked_since_ms) = (trainers(5), Some(NOW_MS - 60_000));
    let jobs = [a];
    let full = cluster(&[("n1", vcores(5), vcores(4))], &jobs);
    let first = plan(&full, &jobs, NOW_MS);
    let fallback = decision(&first, "a").expect("it falls back");
    assert_eq!(fallback.to, trainers(1));
    assert_eq!(fallback.reason, ScalingReason::AskedInVain { waited_ms: 60_000 });
    // The room comes back in the next round: no flapping.
    let [mut a] = jobs;
    (a.wanted, a.asked_since_ms) = (trainers(1), None);
    a.changes = vec![fallback.as_change(NOW_MS)];
    let jobs = [a];
    let free = cluster(&[("n1", vcores(5), vcores(0))], &jobs);
    let second = plan(&free, &jobs, NOW_MS + 5_000);
    assert_eq!(second.decisions, []);
    assert_eq!(wait(&second, "a"), Some(&WaitingReason::Pause { until_ms: NOW_MS + 60_000 }));
    assert_eq!(plan(&free, &jobs, NOW_MS + 60_000).decisions.len(), 1);
}

#[test]
fn repeated_requests_in_vain_wait_longer() {
    let mut a = job("a", 1, 8, &[on("n1", 1)]);
    a.changes = vec![change(NOW_MS - 300_000, 5, 1, true), change(NOW_MS - 60_000, 5, 1, true)];
    let jobs = [a];
    let cluster = cluster(&[("n1", vcores(5), vcores(0))], &jobs);
    let until_ms = NOW_MS + 60_000;
    let plan = plan(&cluster, &jobs, NOW_MS);
    assert_eq!(wait(&plan, "a"), Some(&WaitingReason::Pause { until_ms }));
}

/// On a node of eight cores the minimum of job c needs no victim.
fn c_gets_what_drains(jobs: &[ElasticJob]) {
    let cluster = cluster(&[("n1", vcores(8), vcores(0))], jobs);
    let plan = plan(&cluster, jobs, NOW_MS);
    assert_eq!(wait(&plan, "c"), Some(&WaitingReason::MinimumComing));
    assert_eq!(plan.decisions, []);
}

#[test]
fn a_minimum_counts_room_that_drains_and_takes_no_second_victim() {
    let mut a = job("a", 1, 2, &[on("n1", 2)]);
    a.draining = vec![on("n1", 2)];
    let jobs = [a, job("b", 1, 4, &[on("n1", 4)]), waiting("c", 2, vcores(1))];
    c_gets_what_drains(&jobs);
}

#[test]
fn containers_above_the_ordered_size_count_as_draining() {
    // The order of the last round has arrived, and its drains have not begun.
    let mut a = job("a", 1, 6, &[on("n1", 6)]);
    (a.wanted, a.changes) = (trainers(4), vec![change(NOW_MS - 5_000, 6, 4, false)]);
    let jobs = [a, job("b", 1, 2, &[on("n1", 2)]), waiting("c", 2, vcores(1))];
    c_gets_what_drains(&jobs);
}

#[test]
fn a_preempted_job_does_not_grow_until_the_notice_ends() {
    let mut a = job("a", 1, 8, &[on("n1", 1)]);
    a.is_preempted = true;
    let mut jobs = [a];
    let cluster = cluster(&[("n1", vcores(5), vcores(0))], &jobs);
    let noticed = plan(&cluster, &jobs, NOW_MS);
    assert_eq!(
        (noticed.decisions.len(), wait(&noticed, "a")),
        (0, Some(&WaitingReason::Preempted))
    );
    jobs[0].is_preempted = false;
    assert_eq!(plan(&cluster, &jobs, NOW_MS).decisions.len(), 1);
}

#[test]
fn fixed_sizes_are_never_changed() {
    for by in
        [FixedSize::Pinned, FixedSize::StaleStatus, FixedSize::OtherVersion, FixedSize::Ending]
    {
        // Above its maximum, on a cluster that is too full, with a minimum that waits.
        let mut a = job("a", 1, 2, &[on("n1", 6)]);
        a.fixed = Some(by);
        let jobs = [a, waiting("b", 2, vcores(1))];
        let mut cluster = cluster(&[("n1", vcores(6), vcores(0))], &jobs);
        cluster.asked_by_others = vcores(3);
        let plan = plan(&cluster, &jobs, NOW_MS);
        assert_eq!(plan.decisions, [], "{by}");
        assert_eq!(wait(&plan, "a"), Some(&WaitingReason::Fixed { by }));
    }
}

#[test]
fn one_order_changes_trainers_and_pservers() {
    let mut a = job("a", 1, 4, &[]);
    let range = SizeRange {
        trainers_min: 1,
        trainers_max: 4,
        trainers_useful: 4,
        lanes: None,
        pservers_min: 1,
        pservers_max: 2,
    };
    (a.sizes, a.pserver, a.wanted) = (range.sizes(), vcores(1), ContainerCounts::new(1, 1));
    a.held = vec![NodeContainers { node: "n1".to_owned(), counts: a.wanted }];
    let jobs = [a];
    let mut cluster = cluster(&[("n1", vcores(6), vcores(0))], &jobs);
    cluster.nodes[0].free = vcores(4);
    let plan = plan(&cluster, &jobs, NOW_MS);
    let grown = decision(&plan, "a").expect("there is room");
    assert_eq!((grown.from, grown.to), (ContainerCounts::new(1, 1), ContainerCounts::new(4, 2)));
    let words = "a grows from 1 to 4 trainers and from 1 to 2 pservers: \
                 its score 2/3 was the lowest that fits";
    assert_eq!(grown.to_string(), words);
}

#[test]
fn submission_times_are_not_compared_with_the_controllers_clock() {
    // The clock of the ResourceManager is an hour ahead.
    let mut jobs = [waiting("a", 2, vcores(1)), waiting("b", 2, vcores(1))];
    (jobs[0].submitted_ms, jobs[1].submitted_ms) = (NOW_MS + 3_600_002, NOW_MS + 3_600_001);
    let cluster = cluster(&[("n1", vcores(2), vcores(0))], &jobs);
    let plan = plan(&cluster, &jobs, NOW_MS);
    assert_eq!(wait(&plan, "b"), Some(&WaitingReason::MinimumAsked), "it came first");
    assert!(matches!(wait(&plan, "a"), Some(WaitingReason::MinimumHasNoRoom { .. })));
}

#[test]
fn growth_skips_sizes_that_bsp_lanes_do_not_divide() {
    let mut a = job("a", 1, 12, &[on("n1", 4)]);
    a.sizes = [1, 2, 3, 4, 6, 12].map(trainers).to_vec();
    let jobs = [a];
    let five = cluster(&[("n1", vcores(5), vcores(0))], &jobs);
    assert_eq!(plan(&five, &jobs, NOW_MS).decisions, [], "five are no faster than four");
    let nine = cluster(&[("n1", vcores(9), vcores(0))], &jobs);
    assert_eq!(decision(&plan(&nine, &jobs, NOW_MS), "a").expect("room").to, trainers(6));
}

#[test]
fn a_minimum_larger_than_cluster_or_queue_never_fits() {
    let mut jobs = [waiting("a", 9, vcores(1)), waiting("b", 3, vcores(1))];
    jobs[1].queue = "small".to_owned();
    let mut cluster = cluster(&[("n1", vcores(8), vcores(0))], &jobs);
    cluster.queues = vec![queue("small", Some(vcores(2)), None)];
    let plan = plan(&cluster, &jobs, NOW_MS);
    assert_eq!(wait(&plan, "a"), Some(&WaitingReason::NeverFits));
    assert_eq!(wait(&plan, "b"), Some(&WaitingReason::NeverFits));
}

fn queue(
    name: &str,
    most: Option<ResourceVector>,
    parents_free: Option<ResourceVector>,
) -> QueueCapacity {
    QueueCapacity { name: name.to_owned(), most, used: vcores(0), parents_free }
}

#[test]
fn full_parent_of_a_queue_leaves_its_jobs_without_room() {
    let mut jobs = [waiting("a", 2, vcores(1)), job("b", 1, 4, &[on("n1", 1)])];
    jobs.iter_mut().for_each(|job| job.queue = "leaf".to_owned());
    let mut cluster = cluster(&[("n1", vcores(8), vcores(0))], &jobs);
    cluster.queues = vec![queue("leaf", Some(vcores(6)), Some(vcores(1)))];
    let plan = plan(&cluster, &jobs, NOW_MS);
    assert!(matches!(wait(&plan, "a"), Some(WaitingReason::MinimumHasNoRoom { .. })), "{plan:?}");
    assert_eq!(decision(&plan, "b").map(|decision| decision.to), Some(trainers(2)));
}

#[test]
fn job_with_an_order_of_release_gives_what_it_will_release() {
    let mut donor = job("a", 1, 4, &[on("n1", 2), on("n2", 2)]);
    // One container on n1 would do, but it releases another one first.
    donor.release_order.trainers = ["n2", "n1", "n2", "n1"].map(str::to_owned).to_vec();
    let jobs = [donor, waiting("b", 1, vcores(2))];
    let cluster = cluster(&[("n1", vcores(3), vcores(0)), ("n2", vcores(2), vcores(0))], &jobs);
    let plan = plan(&cluster, &jobs, NOW_MS);
    let given = decision(&plan, "a").expect("it makes room");
    assert_eq!(given.to, trainers(2));
    assert_eq!(given.leave, [on("n1", 1), on("n2", 1)]);
}

#[test]
fn job_that_started_with_more_pservers_keeps_them_as_it_grows() {
    let mut grows = job("a", 1, 4, &[on("n1", 1)]);
    let size = ContainerCounts::new;
    grows.sizes = vec![size(1, 1), size(2, 1), size(3, 1), size(4, 2)];
    grows.wanted = size(1, 2);
    grows.held[0].counts = size(1, 2);
    let jobs = [grows];
    let cluster = cluster(&[("n1", vcores(16), vcores(0))], &jobs);
    let plan = plan(&cluster, &jobs, NOW_MS);
    let to = decision(&plan, "a").expect("there is room").to;
    assert!(to.trainers > 1 && to.pservers == 2, "{to:?}");
}

#[test]
fn a_minimum_takes_from_the_highest_score_what_it_needs() {
    let jobs = [
        job("a", 1, 5, &[on("n1", 5)]),
        job("b", 1, 10, &[on("n1", 3)]),
        waiting("c", 2, vcores(1)),
    ];
    let cluster = cluster(&[("n1", vcores(8), vcores(0))], &jobs);
    let plan = plan(&cluster, &jobs, NOW_MS);
    assert_eq!(plan.decisions.len(), 1);
    assert_eq!(decision(&plan, "a").expect("it has the highest score").to, trainers(3));
}

#[test]
fn a_minimum_does_not_take_from_a_higher_class_at_first() {
    let mut a = job("a", 1, 8, &[on("n1", 8)]);
    a.class = 1;
    let mut jobs = [a, waiting("b", 2, vcores(1))];
    let cluster = cluster(&[("n1", vcores(8), vcores(0))], &jobs);
    assert_eq!(plan(&cluster, &jobs, NOW_MS).decisions, []);
    jobs[1].asked_since_ms = Some(NOW_MS - 30 * 60_000);
    assert_eq!(plan(&cluster, &jobs, NOW_MS).decisions.len(), 1, "after 30 minutes it does");
}

#[test]
fn nodes_are_kept_for_a_minimum_that_waits_for_long() {
    // Others have half of n1, where alone the container of b fits.
    let others = vcores(4);
    let mut jobs = [job("a", 1, 8, &[on("n2", 1)]), waiting("b", 1, vcores(8))];
    let nodes = [("n1", vcores(8), others), ("n2", vcores(1), vcores(0))];
    let cluster = cluster(&nodes, &jobs);
    assert_eq!(plan(&cluster, &jobs, NOW_MS).decisions.len(), 1, "a grows onto n1");
    jobs[1].asked_since_ms = Some(NOW_MS - 600_000);
    let later = plan(&cluster, &jobs, NOW_MS);
    assert_eq!(later.decisions, []);
    let waited_ms = 600_000;
    assert_eq!(
        wait(&later, "b"),
        Some(&WaitingReason::MinimumHasNoRoom { waited_ms, nodes_kept: 1 })
    );
    jobs[0].class = 1;
    assert_eq!(plan(&cluster, &jobs, NOW_MS).decisions.len(), 1, "a higher class grows");
}

#[test]
fn trainers_give_way_to_a_gpu_that_idles_without_cpu() {
    let with_gpu = ResourceVector::new(1, 4, 4);
    let mut a = job("a", 1, 2, &[on("n1", 1)]);
    a.trainer = with_gpu;
    let jobs = [a, job("b", 1, 8, &[on("n1", 2), on("n2", 4)])];
    let gpu_node = ResourceVector::new(2, 8, 8);
    let nodes = [("n1", gpu_node, ResourceVector::default()), ("n2", vcores(4), vcores(0))];
    let cluster = cluster(&nodes, &jobs);
    let first = plan(&cluster, &jobs, NOW_MS);
    let given = decision(&first, "b").expect("it gives way");
    assert_eq!((given.to, &given.leave[..]), (trainers(4), &[on("n1", 2)][..]));
    assert!(matches!(&given.reason, ScalingReason::ForIdleGpu { of, .. } if of == "a"));
    assert_eq!(wait(&first, "a"), Some(&WaitingReason::RoomComing));
    // While they drain, no others give way.
    let [a, mut b] = jobs;
    (b.held, b.draining, b.wanted) = (vec![on("n2", 4)], vec![on("n1", 2)], trainers(4));
    b.changes = vec![given.as_change(NOW_MS)];
    let jobs = [a, b];
    assert_eq!(plan(&cluster, &jobs, NOW_MS + 5_000).decisions, []);
}

#[test]
fn trainers_without_gpus_leave_cpu_to_idle_gpus() {
    let mut a = job("a", 1, 3, &[on("n1", 1)]);
    (a.trainer, a.changes) =
        (ResourceVector::new(1, 4, 4), vec![change(NOW_MS - 5_000, 1, 2, false)]);
    let jobs = [a, job("b", 1, 8, &[on("n2", 1)])];
    let gpu_node = ResourceVector::new(2, 10, 10);
    let nodes = [("n1", gpu_node, ResourceVector::default()), ("n2", vcores(1), vcores(0))];
    let plan = plan(&cluster(&nodes, &jobs), &jobs, NOW_MS);
    assert_eq!(decision(&plan, "b").expect("two cores are left").to, trainers(3));
    assert!(matches!(wait(&plan, "a"), Some(WaitingReason::Pause { .. })));
}

#[test]
fn room_moves_to_the_lower_score_a_quarter_at_a_time() {
    let jobs = [job("a", 1, 12, &[on("n1", 12)]), job("b", 1, 12, &[on("n1", 1)])];
    let full = cluster(&[("n1", vcores(13), vcores(0))], &jobs);
    let first = plan(&full, &jobs, NOW_MS);
    let given = decision(&first, "a").expect("it gives");
    assert_eq!(given.to, trainers(9));
    let words = "a shrinks from 12 to 9 trainers: its score is above the score 2/11 of b, \
                 which has no room";
    assert_eq!(given.to_string(), words);
    assert_eq!(decision(&first, "b"), None, "it grows once the room is there");
    let [mut a, b] = jobs;
    (a.held, a.wanted, a.changes) = (vec![on("n1", 9)], trainers(9), vec![given.as_change(NOW_MS)]);
    let jobs = [a, b];
    let later = plan(&cluster(&[("n1", vcores(10), vcores(0))], &jobs), &jobs, NOW_MS + 30_000);
    assert_eq!(later.decisions, [], "no more within a minute");
}

#[test]
fn others_get_room_for_a_container_not_only_for_the_sum() {
    // Four free cores, one on each node; a container of others needs two.
    let node = |name| (name, vcores(4), vcores(0));
    let jobs = [job("a", 1, 12, &[on("n1", 3), on("n2", 3), on("n3", 3), on("n4", 3)])];
    let mut cluster = cluster(&[node("n1"), node("n2"), node("n3"), node("n4")], &jobs);
    (cluster.asked_by_others, cluster.containers_asked_by_others) = (vcores(2), 1);
    let plan = plan(&cluster, &jobs, NOW_MS);
    assert_eq!(decision(&plan, "a").expect("it gives").to, trainers(11));
}
