//! The container registry: grants, spreading, sizes, exclusions.

use super::*;
use heddle_protocol::ids::Incarnation;
use heddle_protocol::job_spec::job::sample;
use heddle_yarn::ids::ApplicationAttemptId;

const NOW: Duration = Duration::from_secs(100);

fn attempt() -> ApplicationAttemptId {
    "appattempt_1_0001_000001".parse().expect("an id")
}

fn container(number: i64, host: &str, ask: AskId) -> Container {
    let mut container = Container::new(
        ContainerId { attempt: attempt(), id: number },
        NodeId { host: host.to_owned(), port: 8041 },
        Resources::default(),
        heddle_hadoop::Token::new(Vec::new(), Vec::new(), "ContainerToken", "n:1"),
    );
    container.node_http_address = format!("{host}:8042");
    container.priority = Priority(1);
    container.ask = Some(ask);
    container
}

fn member(slot: Slot, incarnation: u32) -> Member {
    Member { slot, incarnation: Incarnation(incarnation) }
}

fn wanted(slot: Slot, incarnation: u32) -> ContainerRequest {
    ContainerRequest {
        member: member(slot, incarnation),
        avoid: Vec::new(),
        prefer: Vec::new(),
        memory: None,
    }
}

fn registry() -> ContainerRegistry {
    ContainerRegistry::new(Sizes::of(&sample()))
}

fn take(registry: &mut ContainerRegistry, slot: Slot, number: i64, host: &str) -> GrantVerdict {
    let (ask, _) = registry.ask(wanted(slot, 1));
    registry.granted(ask, container(number, host, ask), 3, NOW)
}

#[test]
fn ask_is_answered_once_by_its_id() {
    let mut registry = registry();
    let (first, _) = registry.ask(wanted(Slot::trainer(0), 1));
    let (second, _) = registry.ask(wanted(Slot::trainer(1), 4));
    let member = member(Slot::trainer(1), 4);
    let crowded = false;
    assert_eq!(
        registry.granted(second, container(2, "n1", second), 3, NOW),
        GrantVerdict::Take { member, crowded }
    );
    assert_eq!(
        registry.granted(second, container(3, "n2", second), 3, NOW),
        GrantVerdict::Unwanted
    );
    assert_eq!(registry.cancel(self::member(Slot::trainer(0), 1)), Some(first));
    assert_eq!(registry.granted(first, container(4, "n2", first), 3, NOW), GrantVerdict::Unwanted);
    assert_eq!(registry.of_member(member).map(|(id, _)| id.id), Some(2));
}

#[test]
fn pservers_are_spread_while_a_node_without_one_is_left() {
    let mut registry = registry();
    assert!(matches!(
        take(&mut registry, Slot::pserver(0), 2, "n1"),
        GrantVerdict::Take { crowded: false, .. }
    ));
    let (ask, _) = registry.ask(wanted(Slot::pserver(1), 1));
    assert_eq!(registry.granted(ask, container(3, "n1", ask), 3, NOW), GrantVerdict::Return);
    assert!(matches!(
        registry.granted(ask, container(4, "n2", ask), 3, NOW),
        GrantVerdict::Take { crowded: false, .. }
    ));
    // A trainer may be anywhere.
    assert!(matches!(
        take(&mut registry, Slot::trainer(0), 5, "n1"),
        GrantVerdict::Take { crowded: false, .. }
    ));
    // Of two nodes both have one.
    let (ask, _) = registry.ask(wanted(Slot::pserver(2), 1));
    assert!(matches!(
        registry.granted(ask, container(6, "n1", ask), 2, NOW),
        GrantVerdict::Take { crowded: true, .. }
    ));
}

#[test]
fn spreading_ends_after_some_tries_or_some_time() {
    let mut registry = registry();
    take(&mut registry, Slot::pserver(0), 2, "n1");
    let (ask, _) = registry.ask(wanted(Slot::pserver(1), 1));
    for number in 0..i64::from(RETURNS_MAX) {
        let grant = container(10 + number, "n1", ask);
        assert_eq!(registry.granted(ask, grant, 3, NOW), GrantVerdict::Return);
    }
    let grant = container(30, "n1", ask);
    assert!(matches!(
        registry.granted(ask, grant, 3, NOW),
        GrantVerdict::Take { crowded: true, .. }
    ));
    let (ask, _) = registry.ask(wanted(Slot::pserver(2), 1));
    // Time counts from the first release: before that the cluster may have had no room.
    let grant = container(31, "n1", ask);
    let late = NOW + 10 * RETURNS_FOR;
    assert_eq!(registry.granted(ask, grant, 3, late), GrantVerdict::Return);
    let grant = container(32, "n1", ask);
    assert!(matches!(
        registry.granted(ask, grant, 3, late + RETURNS_FOR),
        GrantVerdict::Take { crowded: true, .. }
    ));
}

#[test]
fn copies_of_shards_have_more_tries_for_a_host_of_their_own() {
    let mut spec = sample();
    spec.pservers.replicas = 1;
    let mut registry = ContainerRegistry::new(Sizes::of(&spec));
    take(&mut registry, Slot::pserver(0), 2, "n1");
    let (ask, _) = registry.ask(wanted(Slot::pserver(1), 1));
    for number in 0..i64::from(RETURNS_MAX_OF_COPIES) {
        let grant = container(10 + number, "n1", ask);
        assert_eq!(registry.granted(ask, grant, 3, NOW), GrantVerdict::Return);
    }
    assert!(matches!(
        registry.granted(ask, container(99, "n1", ask), 3, NOW),
        GrantVerdict::Take { crowded: true, .. }
    ));
}

#[test]
fn ending_pserver_does_not_occupy_its_node() {
    let mut registry = registry();
    take(&mut registry, Slot::pserver(0), 2, "n1");
    registry.mark_stopping(container(2, "n1", AskId(1)).id);
    assert!(registry.awaits());
    assert!(matches!(
        take(&mut registry, Slot::pserver(0), 3, "n1"),
        GrantVerdict::Take { crowded: false, .. }
    ));
}

#[test]
fn each_exit_is_reported_once() {
    let mut registry = registry();
    take(&mut registry, Slot::trainer(0), 2, "n1");
    let id = container(2, "n1", AskId(1)).id;
    assert!(registry.ended(id).is_some());
    assert!(registry.ended(id).is_none());
}

#[test]
fn request_has_the_overhead_and_the_label() {
    let mut spec = sample();
    spec.yarn.node_label = Some("gpu".into());
    spec.trainers.resources.insert("yarn.io/gpu".into(), 1);
    let mut registry = ContainerRegistry::new(Sizes::of(&spec));
    let (_, ask) = registry.ask(wanted(Slot::trainer(0), 1));
    // 256 MiB and a tenth, whole MiB.
    assert_eq!(ask.resources.memory, Memory::mib(282));
    assert_eq!(ask.resources.others["yarn.io/gpu"], Amount::count(1));
    assert_eq!(ask.label.as_deref(), Some("gpu"));
    let again = ContainerRequest { memory: Some(Bytes::mib(512)), ..wanted(Slot::pserver(0), 1) };
    let (_, ask) = registry.ask(again);
    assert_eq!(ask.resources.memory, Memory::mib(564));
    assert!(ask.resources.others.is_empty());
}

#[test]
fn raised_memory_exceeds_the_previous_grant() {
    let mut registry = registry();
    let slot = Slot::pserver(0);
    let (first, _) = registry.ask(wanted(slot, 1));
    // 282 MiB were requested, and rounded up to the scheduler's unit.
    let mut given = container(1, "a", first);
    given.resources.memory = Memory::mib(1024);
    assert!(matches!(registry.granted(first, given, 3, NOW), GrantVerdict::Take { .. }));
    let more = |incarnation| ContainerRequest {
        memory: Some(Bytes::mib(384)),
        ..wanted(slot, incarnation)
    };
    let (second, ask) = registry.ask(more(2));
    assert_eq!(ask.resources.memory, Memory::mib(1025), "the next unit");
    let mut given = container(2, "b", second);
    given.resources.memory = Memory::mib(2048);
    assert!(matches!(registry.granted(second, given, 3, NOW), GrantVerdict::Take { .. }));
    let (_, ask) = registry.ask(more(3));
    assert_eq!(ask.resources.memory, Memory::mib(423), "lost for another reason");
}

#[test]
fn containers_that_training_needs_are_requested_first() {
    let sizes = Sizes::of(&sample());
    let order: Vec<_> = [Slot::pserver(1), Slot::trainer(0), Slot::trainer(1)]
        .map(|slot| sizes.priority(slot))
        .into();
    assert_eq!(order, [Priority(1), Priority(2), Priority(3)]);
}

#[test]
fn preferred_hosts_are_requested_with_relaxed_locality() {
    let mut registry = registry();
    let host = |(name, rack): (&str, &str)| InputHost { name: name.into(), rack: rack.into() };
    let prefer = [("n1", "/r1"), ("n2", "")].map(host).to_vec();
    let ask = ContainerRequest { prefer, ..wanted(Slot::trainer(0), 1) };
    let (_, ask) = registry.ask(ask);
    let RequestedPlacement::Near { nodes, relax, .. } = ask.placement else {
        panic!("near the data")
    };
    let racks: Vec<_> = nodes.iter().map(|node| node.rack.as_str()).collect();
    assert_eq!((racks, relax), (vec!["/r1", DEFAULT_RACK], true));
}

#[test]
fn at_most_a_third_of_the_nodes_is_excluded_for_a_time() {
    let mut registry = registry();
    registry.is_unreachable("n9", NOW);
    let ask =
        ContainerRequest { avoid: vec!["n1".into(), "n2".into()], ..wanted(Slot::trainer(0), 1) };
    registry.ask(ask);
    let excluded = |registry: &mut ContainerRegistry, nodes, now| {
        registry.exclusions(nodes, now).into_iter().collect::<Vec<_>>()
    };
    assert!(excluded(&mut registry, 2, NOW).is_empty());
    assert_eq!(excluded(&mut registry, 3, NOW), ["n9"]);
    assert_eq!(excluded(&mut registry, 9, NOW), ["n1", "n2", "n9"]);
    assert_eq!(excluded(&mut registry, 9, NOW + UNREACHABLE_FOR), ["n1", "n2"]);
}

#[test]
fn surviving_container_belongs_to_the_member_of_its_ask() {
    let mut registry = registry();
    let survivor = member(Slot::pserver(0), 7);
    let left = container(7, "n1", ask_id(survivor));
    registry.kept(left.clone());
    assert_eq!(registry.of_member(survivor).map(|(id, _)| id), Some(left.id));
    // Its node has a pserver, also before it registers.
    let (ask, _) = registry.ask(wanted(Slot::pserver(1), 8));
    assert_eq!(registry.granted(ask, container(8, "n1", ask), 3, NOW), GrantVerdict::Return);
    assert_eq!(registry.unregistered(), [(left.id, left.node.clone())]);
    registry.registered(left.id);
    assert!(registry.unregistered().is_empty());
    assert!(registry.start(left.id).is_none(), "its process runs");
}

#[test]
fn process_is_started_once_and_not_in_an_ending_container() {
    let mut registry = registry();
    take(&mut registry, Slot::trainer(0), 2, "n1");
    take(&mut registry, Slot::trainer(1), 3, "n1");
    let id = |number| container(number, "n1", AskId(1)).id;
    assert_eq!(registry.start(id(2)).map(|grant| grant.id), Some(id(2)));
    assert!(registry.start(id(2)).is_none());
    registry.mark_stopping(id(3));
    assert!(registry.start(id(3)).is_none());
}

#[test]
fn grant_without_an_ask_id_has_the_member_of_its_ask() {
    let mut registry = registry();
    let (ask, _) = registry.ask(wanted(Slot::trainer(0), 3));
    let mut grant = container(2, "n1", ask);
    grant.ask = None;
    assert!(matches!(registry.granted(ask, grant, 3, NOW), GrantVerdict::Take { .. }));
    assert!(registry.of_member(member(Slot::trainer(0), 3)).is_some());
}

#[test]
fn late_container_is_released_unless_it_registers() {
    let mut registry = registry();
    let of = |number| {
        let incarnation = u32::try_from(number).expect("small");
        container(number, "n1", ask_id(member(Slot::trainer(0), incarnation)))
    };
    // 2 registers before it is reported, 3 afterwards, 4 ends, 5 does nothing.
    registry.registered(of(2).id);
    for number in 2..=5 {
        registry.reported_after_restart(of(number), NOW);
    }
    registry.registered(of(3).id);
    registry.ended(of(4).id);
    assert!(registry.overdue(NOW + LATE_MAX / 2).is_empty());
    assert_eq!(registry.overdue(NOW + LATE_MAX), [of(5).id]);
    registry.mark_stopping(of(5).id);
    assert!(registry.overdue(NOW + 2 * LATE_MAX).is_empty(), "once");
}

#[test]
fn withdrawn_request_excludes_no_node() {
    let mut registry = registry();
    let member = member(Slot::trainer(0), 1);
    let request = ContainerRequest { avoid: vec!["n1".into()], ..wanted(member.slot, 1) };
    registry.ask(request);
    assert_eq!(registry.exclusions(9, NOW).into_iter().collect::<Vec<_>>(), ["n1"]);
    registry.cancel(member);
    assert!(registry.exclusions(9, NOW).is_empty());
}

/// The scheduler offers the node without pservers again and again, since nothing runs there.
#[test]
fn pserver_goes_to_a_used_node_rather_than_to_a_bad_one() {
    let mut registry = registry();
    take(&mut registry, Slot::pserver(0), 2, "n1");
    take(&mut registry, Slot::pserver(1), 3, "n2");
    let slot = Slot::pserver(2);
    let (ask, _) = registry.ask(wanted(slot, 1));
    let grant = |number, host| container(number, host, ask);
    assert!(!registry.start_failed("bad", slot, NOW));
    assert_eq!(registry.granted(ask, grant(4, "bad"), 3, NOW), GrantVerdict::Return);
    assert!(matches!(
        registry.granted(ask, grant(5, "n1"), 3, NOW),
        GrantVerdict::Take { crowded: true, .. }
    ));
}

#[test]
fn node_where_starts_fail_is_excluded_for_one_then_for_all() {
    let mut registry = registry();
    let excluded = |registry: &mut ContainerRegistry| registry.exclusions(2, NOW).contains("bad");
    registry.ask(wanted(Slot::trainer(0), 1));
    registry.start_failed("bad", Slot::trainer(1), NOW);
    assert!(!excluded(&mut registry));
    registry.ask(wanted(Slot::trainer(1), 2));
    assert!(excluded(&mut registry), "one of two nodes");
    registry.cancel(member(Slot::trainer(1), 2));
    assert!(!excluded(&mut registry));
    assert!(registry.start_failed("bad", Slot::trainer(1), NOW), "the second time");
    assert!(excluded(&mut registry));
}
