//! What a round makes of reports, grants and statuses.

use heddle_controller::grants::FoundGrant;
use heddle_controller::rounds::{GrantedJob, Observation, PlannerInput, Rounds};
use heddle_controller::seen_job::SeenJob;
use heddle_controller_core::{
    ContainerCounts, FixedSize, NodeContainers, ResourceVector, ScalingDecision, ScalingReason,
    plan,
};
use heddle_protocol::grant::{ControllerGrant, GrantedResources, GrantedRole};
use heddle_protocol::handshake::PROTOCOL_VERSION;
use heddle_protocol::ids::RunId;
use heddle_protocol::view::SetBy;
use heddle_yarn::client::QueueInfo;
use heddle_yarn::{AllocationSteps, ApplicationReport, ApplicationState, NodeReport, proto};
use proptest::prelude::*;
use uuid::Uuid;

const STEPS: AllocationSteps = AllocationSteps { memory_mib: 1_024, vcores: 1 };
const FIRST: &str = "application_1_0001";
const SECOND: &str = "application_1_0002";

fn grant(application: &str) -> ControllerGrant {
    let each = GrantedResources { memory_mib: 1_500, vcores: 2, gpus: 0 };
    let role = |min, max, start| GrantedRole { min, max, start, each };
    ControllerGrant {
        protocol: PROTOCOL_VERSION,
        application: application.to_owned(),
        run: RunId(Uuid::from_u128(1)),
        secret: String::new(),
        am: None,
        trainers: role(1, 4, 1),
        pservers: role(1, 2, 2),
        lanes: None,
        master: each,
    }
}

fn report(application: &str, user: &str) -> ApplicationReport {
    let mut report = ApplicationReport::new(application.parse().expect("an id"));
    report.user = user.to_owned();
    report.queue = "root.ml".to_owned();
    report.state = Some(ApplicationState::Running);
    report
}

fn node(port: i32, used_vcores: i32) -> NodeReport {
    let resource = |mib, vcores| proto::ResourceProto {
        memory: Some(mib),
        virtual_cores: Some(vcores),
        ..Default::default()
    };
    let message = proto::NodeReportProto {
        node_id: Some(proto::NodeIdProto { host: Some("n".to_owned()), port: Some(port) }),
        node_state: Some(proto::NodeStateProto::NsRunning.into()),
        capability: Some(resource(8_192, 8)),
        used: Some(resource(1_024, used_vcores)),
        ..Default::default()
    };
    (&message).try_into().expect("complete")
}

fn queues() -> QueueInfo {
    let leaf = |name: &str, most: f32| proto::QueueInfoProto {
        queue_name: Some(name.to_owned()),
        maximum_capacity: Some(most),
        ..Default::default()
    };
    let statistics = proto::QueueStatisticsProto {
        pending_memory_mb: Some(6_144),
        pending_v_cores: Some(6),
        pending_containers: Some(3),
        ..Default::default()
    };
    let root = proto::QueueInfoProto {
        child_queues: vec![leaf("ml", 0.5), leaf("web", 1.0)],
        queue_statistics: Some(statistics),
        ..leaf("root", 1.0)
    };
    QueueInfo::from(&root)
}

fn observation() -> Observation {
    Observation {
        applications: vec![report(FIRST, "alice")],
        nodes: vec![node(1, 1), node(2, 1)],
        queues: Some(queues()),
        grants: vec![FoundGrant { owner: "alice".to_owned(), grant: grant(FIRST) }],
        other_files: Vec::new(),
    }
}

fn seen(trainers: u32) -> SeenJob {
    let wanted = ContainerCounts::new(trainers, 1);
    SeenJob { set_by: SetBy::Controller, wanted, useful: 4, ..SeenJob::default() }
}

fn input(rounds: &mut Rounds, read: &Observation, now_ms: u64) -> PlannerInput {
    let (granted, _) = rounds.granted(read);
    rounds.input(read, &granted, STEPS, now_ms)
}

#[test]
fn job_has_what_yarn_gives_for_its_request() {
    let mut rounds = Rounds::default();
    rounds.saw(FIRST, SeenJob { asks: true, ..seen(2) }, 500);
    rounds.saw(FIRST, SeenJob { asks: true, ..seen(2) }, 900);
    let PlannerInput { cluster, jobs } = input(&mut rounds, &observation(), 1_000);
    assert_eq!(jobs.len(), 1);
    let job = &jobs[0];
    assert_eq!(job.trainer, ResourceVector::new(0, 2, 2_048), "rounded up to YARN's steps");
    assert_eq!((job.queue.as_str(), job.master), ("ml", None));
    assert_eq!(job.sizes.first().copied(), Some(ContainerCounts::new(1, 1)));
    assert_eq!(job.sizes.last().copied(), Some(ContainerCounts::new(4, 2)));
    assert_eq!((job.wanted, job.fixed), (ContainerCounts::new(2, 1), None));
    assert_eq!(job.asked_since_ms, Some(500), "since the first status that shows it");
    let half = ResourceVector::new(0, 8, 8_192);
    let ml = cluster.queues.iter().find(|queue| queue.name == "ml").expect("a leaf");
    assert_eq!(ml.most, Some(half));
    // Three containers of 6 GiB are asked for, and three are the job's: two trainers and a pserver.
    assert_eq!(cluster.asked_by_others, ResourceVector::new(0, 0, 0));
    assert_eq!(cluster.containers_asked_by_others, 0);
}

#[test]
fn requests_of_others_are_those_that_are_not_of_the_jobs() {
    let mut rounds = Rounds::default();
    rounds.saw(FIRST, seen(0), 0);
    let cluster = input(&mut rounds, &observation(), 0).cluster;
    assert_eq!(cluster.asked_by_others, ResourceVector::new(0, 4, 4_096), "a pserver is the job's");
    assert_eq!(cluster.containers_asked_by_others, 2);
}

#[test]
fn job_that_has_not_started_asks_for_its_master() {
    let mut read = observation();
    read.applications[0].state = Some(ApplicationState::Accepted);
    let job = input(&mut Rounds::default(), &read, 0).jobs.remove(0);
    assert_eq!(job.wanted, ContainerCounts::new(1, 2));
    assert_eq!((job.master, job.fixed), (Some(ResourceVector::new(0, 2, 2_048)), None));
}

#[test]
fn sizes_stay_of_jobs_that_the_planner_must_leave() {
    let fixed = |seen: Option<SeenJob>, protocol, now_ms| {
        let mut rounds = Rounds::default();
        let mut read = observation();
        read.grants[0].grant.protocol = protocol;
        if let Some(seen) = seen {
            rounds.saw(FIRST, seen, 1_000);
        }
        input(&mut rounds, &read, now_ms).jobs[0].fixed
    };
    let version = PROTOCOL_VERSION;
    assert_eq!(fixed(Some(seen(1)), version, 1_000), None);
    assert_eq!(fixed(Some(seen(1)), version, 9_000), Some(FixedSize::StaleStatus));
    assert_eq!(fixed(None, version, 1_000), Some(FixedSize::StaleStatus));
    assert_eq!(fixed(Some(seen(1)), version + 1, 1_000), Some(FixedSize::OtherVersion));
    let ending = SeenJob { ends: true, ..seen(1) };
    assert_eq!(fixed(Some(ending), version, 1_000), Some(FixedSize::Ending));
    let pinned = SeenJob { set_by: SetBy::Operator, ..seen(1) };
    assert_eq!(fixed(Some(pinned), version, 1_000), Some(FixedSize::Pinned));
}

#[test]
fn grant_of_another_users_application_is_ignored_with_a_line() {
    let mut read = observation();
    read.grants[0].owner = "mallory".to_owned();
    let (granted, lines) = Rounds::default().granted(&read);
    assert!(granted.is_empty());
    assert_eq!(
        lines,
        [format!(
            "the grant of {FIRST} is ignored: it is of user mallory, and the application of alice"
        )]
    );
}

#[test]
fn nodes_that_are_missing_after_a_restart_are_waited_for() {
    let mut rounds = Rounds::default();
    assert!(
        !rounds.has_all_nodes(30),
        "a leader's first list: the ResourceManager may have just started"
    );
    assert!(!rounds.has_all_nodes(100));
    assert!(!rounds.has_all_nodes(100));
    assert!(rounds.has_all_nodes(100));
    assert!(rounds.has_all_nodes(90), "a tenth may go");
    assert!(!rounds.has_all_nodes(0));
    assert!(!rounds.has_all_nodes(20));
    assert!(!rounds.has_all_nodes(60), "more of them come");
    assert!(!rounds.has_all_nodes(60));
    assert!(rounds.has_all_nodes(60), "the others are gone");
    assert!(rounds.has_all_nodes(60));
    for _ in 0..9 {
        assert!(!rounds.has_all_nodes(0), "a cluster without nodes is not planned");
    }
}

#[test]
fn grants_lapse_some_time_after_their_applications() {
    let mut rounds = Rounds::default();
    let mut read = observation();
    let mut lapsed = |read: &Observation, now_ms| {
        let (granted, _) = rounds.granted(read);
        rounds.lapsed(read, &granted, now_ms)
    };
    assert!(lapsed(&read, 0).is_empty());
    let applications = std::mem::take(&mut read.applications);
    assert!(lapsed(&read, 1_000).is_empty(), "it may be about to be submitted");
    assert!(lapsed(&read, 600_999).is_empty());
    read.applications = applications;
    assert!(lapsed(&read, 601_000).is_empty());
    read.applications.clear();
    read.other_files.push(".draft".to_owned());
    assert!(lapsed(&read, 602_000).is_empty());
    assert_eq!(lapsed(&read, 1_202_000), [".draft".to_owned(), format!("{FIRST}.json")]);
    // A name that a user has taken before the application.
    read = observation();
    assert!(lapsed(&read, 1_250_000).is_empty());
    read.grants[0].owner = "mallory".to_owned();
    assert!(lapsed(&read, 1_300_000).is_empty());
    assert_eq!(lapsed(&read, 1_900_000), [format!("{FIRST}.json")]);
}

#[test]
fn job_of_another_version_is_told_in_a_line() {
    let mut read = observation();
    read.grants[0].grant.protocol += 1;
    let (_, lines) = Rounds::default().granted(&read);
    let why = "its program has another version than the controller";
    assert_eq!(lines, [format!("the size of {FIRST} stays: {why}")]);
}

#[test]
fn queues_that_are_not_shown_are_told_in_a_line() {
    let mut read = observation();
    read.queues = None;
    let (_, lines) = Rounds::default().granted(&read);
    assert!(lines.iter().any(|line| line.contains("does not show its queues")), "{lines:?}");
}

#[test]
fn job_without_a_master_waits_from_its_first_round() {
    let mut rounds = Rounds::default();
    let mut read = observation();
    read.applications[0].state = Some(ApplicationState::Accepted);
    for now_ms in [1_000, 700_000] {
        let job = input(&mut rounds, &read, now_ms).jobs.remove(0);
        assert_eq!(job.asked_since_ms, Some(1_000));
    }
    // Its next attempt waits after one has run: what it holds is not known.
    read.grants[0].grant.am = Some("127.0.0.1:1/1/7".parse().expect("an address"));
    let job = input(&mut rounds, &read, 700_000).jobs.remove(0);
    assert_eq!((job.master, job.fixed), (None, Some(FixedSize::StaleStatus)));
}

#[test]
fn full_parent_queue_bounds_its_leaves() {
    let mut read = observation();
    let root = read.queues.as_mut().expect("it has queues");
    let mut parent = root.children.remove(0);
    parent.vcores.allocated = 7;
    let mut leaf = parent.clone();
    leaf.name = "leaf".to_owned();
    parent.children = vec![leaf];
    root.children.push(parent);
    let queues = input(&mut Rounds::default(), &read, 0).cluster.queues;
    let leaf = queues.iter().find(|queue| queue.name == "leaf").expect("a leaf");
    assert_eq!(leaf.parents_free, Some(ResourceVector::new(0, 1, 8_192)));
}

#[test]
fn accepted_order_is_remembered_for_the_pauses() {
    let mut rounds = Rounds::default();
    let read = observation();
    rounds.saw(FIRST, SeenJob { asks: true, ..seen(1) }, 0);
    let decision = ScalingDecision {
        job: FIRST.to_owned(),
        from: ContainerCounts::new(1, 1),
        to: ContainerCounts::new(3, 1),
        reason: ScalingReason::BelowMinimum,
        leave: Vec::new(),
        room: Vec::new(),
    };
    rounds.ordered(&decision, 100);
    let job = input(&mut rounds, &read, 100).jobs.remove(0);
    assert_eq!((job.wanted, job.asked_since_ms), (ContainerCounts::new(3, 1), None));
    assert_eq!(job.changes, [decision.as_change(100)]);
    let job = input(&mut rounds, &read, 700_000).jobs.remove(0);
    assert!(job.changes.is_empty(), "of the last ten minutes");
    let ended = Vec::<GrantedJob>::new();
    rounds.input(&read, &ended, STEPS, 0);
    assert_eq!(rounds.seen(FIRST), None, "a job that has ended is forgotten");
}

#[test]
fn vcores_that_the_scheduler_does_not_count_are_no_limit() {
    let mut read = observation();
    read.nodes.push(node(3, 9));
    let nodes = |read: &Observation| input(&mut Rounds::default(), read, 0).cluster.nodes;
    assert_eq!(nodes(&read)[2].free.vcores, -1, "one node may have been made smaller");
    read.nodes.push(node(4, 9));
    let nodes = nodes(&read);
    assert!(nodes.iter().all(|node| node.free.vcores > 1_000_000), "{nodes:?}");
}

#[test]
fn absurd_grant_is_bounded() {
    let mut read = observation();
    let grant = &mut read.grants[0].grant;
    let each = GrantedResources { memory_mib: u64::MAX, vcores: u32::MAX, gpus: u64::MAX };
    let role = GrantedRole { min: u32::MAX, max: 0, start: u32::MAX, each };
    (grant.trainers, grant.pservers, grant.master) = (role, role, each);
    grant.lanes = Some(0);
    let input = input(&mut Rounds::default(), &read, 0);
    assert_eq!(input.jobs[0].sizes.len(), 1);
    assert_eq!(plan(&input.cluster, &input.jobs, 0).decisions, []);
}

/// What strangers write: small, or as large as the type permits.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0..40u32, 1 => any::<u32>(), 1 => Just(u32::MAX)]
}

fn resources() -> impl Strategy<Value = GrantedResources> {
    let large = || prop_oneof![4 => 0..9_000u64, 1 => any::<u64>(), 1 => Just(u64::MAX)];
    (large(), number(), prop_oneof![3 => Just(0), 1 => large()])
        .prop_map(|(memory_mib, vcores, gpus)| GrantedResources { memory_mib, vcores, gpus })
}

fn role() -> impl Strategy<Value = GrantedRole> {
    (number(), number(), number(), resources()).prop_map(|(min, max, start, each)| GrantedRole {
        min,
        max,
        start,
        each,
    })
}

fn grants(application: &'static str) -> impl Strategy<Value = ControllerGrant> {
    (role(), role(), prop::option::of(number()), resources()).prop_map(
        move |(trainers, pservers, lanes, master)| ControllerGrant {
            trainers,
            pservers,
            lanes,
            master,
            ..grant(application)
        },
    )
}

fn statuses() -> impl Strategy<Value = SeenJob> {
    let wanted = (number(), number()).prop_map(|(t, p)| ContainerCounts::new(t, p));
    let containers = || {
        // A status lists containers one by one.
        let counts = (0..40u32, 0..40u32).prop_map(|(t, p)| ContainerCounts::new(t, p));
        let node = prop_oneof!["n:1", "n:2", "elsewhere:1"];
        let one = (node, counts).prop_map(|(node, counts)| NodeContainers { node, counts });
        prop::collection::vec(one, 0..4)
    };
    (wanted, number(), containers(), containers(), any::<bool>()).prop_map(
        |(wanted, useful, held, draining, asks)| SeenJob {
            wanted,
            useful,
            held,
            draining,
            asks,
            ..seen(1)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Users write grants, and ApplicationMasters their statuses.
    #[test]
    fn absurd_grants_and_statuses_give_a_plan(
        one in grants(FIRST),
        other in grants(SECOND),
        of_one in statuses(),
        of_other in statuses(),
        pending in any::<i64>(),
    ) {
        let mut read = observation();
        read.applications.push(report(SECOND, "bob"));
        read.grants[0].grant = one;
        read.grants.push(FoundGrant { owner: "bob".to_owned(), grant: other });
        let queues = read.queues.as_mut().expect("it has queues");
        queues.containers_pending = pending;
        queues.vcores.pending = pending;
        let mut rounds = Rounds::default();
        rounds.saw(FIRST, of_one, 0);
        rounds.saw(SECOND, of_other, 0);
        let input = input(&mut rounds, &read, 0);
        for decision in plan(&input.cluster, &input.jobs, 0).decisions {
            let job = input.jobs.iter().find(|job| job.id == decision.job).expect("a job");
            let (top, from, to) = (job.sizes[job.sizes.len() - 1], job.wanted, decision.to);
            prop_assert!(to.trainers <= top.trainers.max(from.trainers), "{decision}");
            prop_assert!(to.pservers <= top.pservers.max(from.pservers), "{decision}");
        }
    }
}
