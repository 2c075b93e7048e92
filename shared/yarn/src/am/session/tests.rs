use heddle_hadoop::proto::common::TokenProto;
use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::am::ask::{NodeName, RequestedPlacement};
use crate::am::event::Excess;
use crate::container::Priority;
use crate::exit_status::ExitStatus;
use crate::ids::{ApplicationAttemptId, ApplicationId};
use crate::resource::{Memory, VCores};

const A: AskId = AskId(1);
const B: AskId = AskId(2);

fn id(number: i64) -> ContainerId {
    let application = ApplicationId { cluster_timestamp: 7, id: 1 };
    ContainerId { attempt: ApplicationAttemptId { application, attempt: 1 }, id: number }
}

/// A grant; ask -1 stands for a scheduler that does not return the id.
fn grant(number: i64, ask: i64) -> proto::ContainerProto {
    proto::ContainerProto {
        id: Some(id(number).into()),
        node_id: Some((&"n1:8041".parse::<NodeId>().unwrap()).into()),
        container_token: Some(TokenProto::default()),
        allocation_request_id: Some(ask),
        ..Default::default()
    }
}

fn ended(number: i64, exit: ExitStatus) -> proto::ContainerStatusProto {
    proto::ContainerStatusProto {
        container_id: Some(id(number).into()),
        exit_status: Some(exit.0),
        state: Some(proto::ContainerStateProto::CComplete.into()),
        ..Default::default()
    }
}

fn response(grants: &[(i64, i64)], ends: &[i64]) -> proto::AllocateResponseProto {
    proto::AllocateResponseProto {
        response_id: Some(1),
        allocated_containers: grants.iter().map(|&(number, ask)| grant(number, ask)).collect(),
        completed_container_statuses: ends
            .iter()
            .map(|&number| ended(number, ExitStatus(1)))
            .collect(),
        ..Default::default()
    }
}

fn ask() -> Ask {
    Ask { resources: Resources::new(Memory::mib(64), VCores(1)), ..Ask::default() }
}

/// `ask -> count` of the `*` rows, and the numbers of released containers.
type Said = (Vec<(i64, i32)>, Vec<i64>);

fn said(request: &proto::AllocateRequestProto) -> Said {
    let rows = request.ask.iter().filter(|row| row.resource_name() == "*");
    let rows = rows.map(|row| (row.allocation_request_id(), row.num_containers())).collect();
    (rows, request.release.iter().map(|id| id.id()).collect())
}

/// One answered heartbeat: the request and its events.
fn beat(session: &mut AmSession, answer: &proto::AllocateResponseProto) -> (Said, Vec<AmEvent>) {
    let request = session.request(0.0);
    session.answered(answer);
    (said(&request), session.take_events())
}

fn wanting(target: u32) -> AmSession {
    let mut session = AmSession::default();
    session.want(A, ask(), target);
    session
}

fn allocated(events: &[AmEvent]) -> Vec<i64> {
    let grants = events.iter().filter_map(|event| match event {
        AmEvent::Allocated { container, .. } => Some(container.id.id),
        _ => None,
    });
    grants.collect()
}

#[test]
fn a_row_is_sent_once_and_decreases_with_the_grants() {
    let mut session = wanting(3);
    assert_eq!(beat(&mut session, &response(&[], &[])).0, (vec![(1, 3)], vec![]));
    assert_eq!(
        beat(&mut session, &response(&[(2, 1)], &[])).0,
        (vec![], vec![]),
        "nothing new to say"
    );
    let (said, events) = beat(&mut session, &response(&[(3, 1), (4, 1)], &[]));
    assert_eq!((said, allocated(&events)), ((vec![], vec![]), vec![3, 4]));
    assert_eq!(session.table.counts(A), Some((3, 3)));
    assert!(!session.has_news());
}

#[test]
fn a1_grants_beyond_the_ask_are_released_in_the_next_heartbeat() {
    let mut session = wanting(1);
    beat(&mut session, &response(&[], &[]));
    let (_, events) = beat(&mut session, &response(&[(2, 1), (3, 1)], &[]));
    assert_eq!(allocated(&events), [2]);
    assert_eq!(events[1], AmEvent::Excess { container: id(3), reason: Excess::Filled });
    // The 0 cancels further grants of the scheduler.
    assert_eq!(beat(&mut session, &response(&[], &[])).0, (vec![(1, 0)], vec![3]));
    let (said, events) = beat(&mut session, &response(&[], &[3]));
    assert_eq!(said, (vec![], vec![]));
    assert!(matches!(&events[..], [AmEvent::Released(status)] if status.id == id(3)));
}

#[test]
fn a_new_target_is_sent_after_a_surplus_grant() {
    let mut session = wanting(1);
    beat(&mut session, &response(&[], &[]));
    beat(&mut session, &response(&[(2, 1), (3, 1)], &[]));
    session.want(A, ask(), 2);
    assert_eq!(beat(&mut session, &response(&[], &[])).0, (vec![(1, 1)], vec![3]));
}

#[test]
fn a_bad_release_is_found_and_good_ones_are_sent() {
    let mut session = wanting(3);
    beat(&mut session, &response(&[], &[]));
    beat(&mut session, &response(&[(2, 1), (3, 1), (4, 1)], &[]));
    session.want(A, ask(), 0);
    for number in [2, 3, 4] {
        assert!(session.table.release(id(number)));
    }
    // The ResourceManager accepts or refuses a request as a whole.
    let mut taken = BTreeSet::new();
    for _ in 0..10 {
        let (_, releases) = said(&session.request(0.0));
        if releases.contains(&3) {
            assert!(session.refused(RefusedPart::Releases, "not of this attempt"));
            continue;
        }
        taken.extend(releases);
        session.answered(&response(&[], &[]));
    }
    assert_eq!(taken, BTreeSet::from([2, 4]));
    assert!(!session.has_news(), "nothing is reported without a limit");
}

#[test]
fn a2_a_grant_for_a_cancelled_ask_is_released() {
    let mut session = wanting(1);
    beat(&mut session, &response(&[], &[]));
    session.want(A, ask(), 0);
    let (said, events) = beat(&mut session, &response(&[(2, 1)], &[]));
    assert_eq!(said, (vec![(1, 0)], vec![]));
    assert_eq!(events, [AmEvent::Excess { container: id(2), reason: Excess::Filled }]);
    assert_eq!(session.table.counts(A), Some((0, 0)), "the target is unchanged");
    assert_eq!(beat(&mut session, &response(&[], &[])).0.1, [2]);
}

#[test]
fn a_recovered_container_needs_no_token_and_a_grant_does() {
    let bare = |number| proto::ContainerProto { container_token: None, ..grant(number, 1) };
    let mut session = wanting(1);
    let (_, events) = beat(
        &mut session,
        &proto::AllocateResponseProto {
            containers_from_previous_attempts: vec![bare(2)],
            allocated_containers: vec![bare(3)],
            ..response(&[], &[])
        },
    );
    assert!(matches!(
        &events[..],
        [AmEvent::Recovered(container), AmEvent::Malformed(_)] if container.id == id(2)
    ));
}

#[test]
fn a_forgotten_ask_is_cancelled_and_then_removed() {
    let mut session = wanting(1);
    beat(&mut session, &response(&[], &[]));
    session.table.forget(A);
    assert_eq!(beat(&mut session, &response(&[], &[])).0, (vec![(1, 0)], vec![]));
    assert_eq!(session.table.counts(A), None);
    // A grant from before the arrival of the 0.
    let (_, events) = beat(&mut session, &response(&[(2, 1)], &[]));
    let reason = Excess::Unknown;
    assert_eq!(events, [AmEvent::Excess { container: id(2), reason }]);
    assert_eq!(beat(&mut session, &response(&[], &[])).0.1, [2]);
}

#[test]
fn a_forgotten_ask_keeps_its_container() {
    let mut session = wanting(1);
    beat(&mut session, &response(&[], &[]));
    beat(&mut session, &response(&[(2, 1)], &[]));
    session.table.forget(A);
    assert_eq!(held(&session), BTreeSet::from([2]));
    let (_, events) = beat(&mut session, &response(&[], &[2]));
    assert!(matches!(&events[..], [AmEvent::Completed { status, .. }] if status.id == id(2)));
    assert!(!session.has_news());
    assert_eq!(beat(&mut session, &response(&[], &[])).0, (vec![], vec![]));
}

#[test]
fn an_ask_forgotten_before_its_answer_is_cancelled() {
    let mut session = wanting(1);
    session.request(0.0);
    session.table.forget(A);
    session.answered(&response(&[], &[]));
    assert_eq!(beat(&mut session, &response(&[], &[])).0, (vec![(1, 0)], vec![]));
    assert!(!session.has_news());
}

#[test]
fn a3_a_container_granted_twice_is_held_once() {
    let mut session = wanting(2);
    beat(&mut session, &response(&[(2, 1)], &[]));
    let (_, events) = beat(&mut session, &response(&[(2, 1)], &[]));
    assert_eq!(events, [AmEvent::DuplicateGrant(id(2))]);
    assert_eq!(session.table.counts(A), Some((2, 1)));
}

#[test]
fn a4_a_second_completion_requests_no_replacement() {
    let mut session = wanting(1);
    beat(&mut session, &response(&[], &[]));
    beat(&mut session, &response(&[(2, 1)], &[]));
    let (_, events) = beat(&mut session, &response(&[], &[2]));
    assert!(matches!(&events[..], [AmEvent::Completed { ask: Some(A), .. }]));
    assert_eq!(beat(&mut session, &response(&[(3, 1)], &[])).0.0, [(1, 1)]);
    let (_, events) = beat(&mut session, &response(&[], &[2]));
    assert!(matches!(&events[..], [AmEvent::DuplicateCompletion(status)] if status.id == id(2)));
    assert_eq!(session.table.counts(A), Some((1, 1)));
}

#[test]
fn a5_an_unknown_completion_has_no_effect() {
    let mut session = wanting(1);
    let (_, events) = beat(&mut session, &response(&[], &[99]));
    assert!(matches!(&events[..], [AmEvent::UnknownCompletion(_)]));
    let (_, events) = beat(&mut session, &response(&[], &[99]));
    assert!(matches!(&events[..], [AmEvent::DuplicateCompletion(_)]));
}

#[test]
fn a6_a_grant_and_its_completion_may_share_a_response() {
    let mut session = wanting(1);
    beat(&mut session, &response(&[], &[]));
    let (_, events) = beat(&mut session, &response(&[(2, 1)], &[2]));
    assert!(matches!(&events[..], [AmEvent::Allocated { .. }, AmEvent::Completed { .. }]));
    assert_eq!(beat(&mut session, &response(&[], &[])).0.0, [(1, 1)], "asked for again, once");
    assert_eq!(beat(&mut session, &response(&[], &[])).0.0, []);
}

#[test]
fn a7_a_restarted_resourcemanager_receives_all_state_again() {
    let mut session = wanting(3);
    session.want(B, Ask { priority: Priority(2), ..ask() }, 1);
    session.exclude(["n9".to_owned()].into());
    beat(&mut session, &response(&[], &[]));
    beat(&mut session, &response(&[(2, 1), (3, 1), (4, 9)], &[]));
    session.table.release(id(3));
    beat(&mut session, &response(&[], &[]));
    session.forgotten();
    assert_eq!(session.take_events(), [AmEvent::Resynchronised]);
    let request = session.request(0.5);
    assert_eq!(request.response_id, Some(0));
    // Two more of A: three wanted, one held. Releases without a completion are sent again.
    assert_eq!(said(&request), (vec![(1, 2), (2, 1)], vec![3, 4]));
    assert_eq!(
        request.blacklist_request.map(|list| list.blacklist_additions),
        Some(vec!["n9".to_owned()])
    );
    assert_eq!(session.table.held().count(), 1, "what runs goes on");
}

#[test]
fn a8_a_lost_reply_repeats_the_same_request() {
    let mut session = wanting(1);
    let first = session.request(0.1);
    session.want(B, ask(), 2);
    assert_eq!(session.request(0.9), first, "frozen, whatever is wanted since");
    session.answered(&response(&[(2, 1)], &[]));
    assert_eq!(allocated(&session.take_events()), [2]);
    let second = session.request(0.9);
    assert_eq!((second.response_id, said(&second).0), (Some(1), vec![(2, 2)]));
}

#[test]
fn a13_grants_match_by_ask_then_by_priority_never_by_size() {
    let mut session = wanting(1);
    session.want(B, Ask { priority: Priority(5), ..ask() }, 1);
    beat(&mut session, &response(&[], &[]));
    let mut answer = response(&[(2, 1), (3, -1)], &[]);
    answer.allocated_containers[0].resource =
        Some((&Resources::new(Memory::mib(4096), VCores(1))).into());
    answer.allocated_containers[1].priority = Some(proto::PriorityProto { priority: Some(5) });
    let (_, events) = beat(&mut session, &answer);
    assert!(matches!(
        &events[..],
        [AmEvent::Allocated { ask: A, .. }, AmEvent::Allocated { ask: B, .. }]
    ));
}

#[test]
fn a_grant_that_crosses_a_new_count_resends_the_count() {
    let mut session = wanting(1);
    beat(&mut session, &response(&[], &[]));
    session.want(A, ask(), 2);
    // The scheduler granted before it read the 2, so it would grant two more, and one is wanted.
    assert_eq!(beat(&mut session, &response(&[(2, 1)], &[])).0.0, [(1, 2)]);
    assert_eq!(beat(&mut session, &response(&[], &[])).0.0, [(1, 1)]);
    assert_eq!(beat(&mut session, &response(&[], &[])).0.0, []);
}

#[test]
fn another_size_replaces_and_another_priority_cancels_an_ask() {
    let mut session = wanting(2);
    beat(&mut session, &response(&[], &[]));
    session.want(A, Ask { resources: Resources::new(Memory::mib(128), VCores(1)), ..ask() }, 2);
    assert_eq!(beat(&mut session, &response(&[], &[])).0.0, [(1, 2)], "one row, the new one");
    session.want(A, Ask { priority: Priority(3), ..ask() }, 2);
    assert_eq!(beat(&mut session, &response(&[], &[])).0.0, [(1, 0), (1, 2)]);
}

#[test]
fn node_and_rack_rows_are_resent_after_a_grant() {
    let nodes = vec![NodeName { host: "n1".into(), rack: "/r1".into() }];
    let near =
        Ask { placement: RequestedPlacement::Near { nodes, racks: vec![], relax: true }, ..ask() };
    let mut session = AmSession::default();
    session.want(A, near, 2);
    assert_eq!(session.request(0.0).ask.len(), 3);
    session.answered(&response(&[], &[]));
    beat(&mut session, &response(&[(2, 1)], &[]));
    let counts: Vec<i32> =
        session.request(0.0).ask.iter().map(|row| row.num_containers()).collect();
    assert_eq!(counts, [1, 1, 1]);
    session.answered(&response(&[(3, 1)], &[]));
    let counts: Vec<i32> =
        session.request(0.0).ask.iter().map(|row| row.num_containers()).collect();
    assert_eq!(counts[..], [0, 0][..], "the * row is used up; rack and node rows are cancelled");
}

#[test]
fn another_response_id_is_adopted_and_all_state_resent() {
    let mut session = wanting(2);
    beat(&mut session, &response(&[(2, 1)], &[]));
    session.want(B, ask(), 1);
    let _lost = session.request(0.0);
    session.response_id_is(17);
    let request = session.request(0.0);
    assert_eq!((request.response_id, said(&request).0), (Some(17), vec![(1, 1), (2, 1)]));
}

#[test]
fn the_bad_ask_of_a_refused_heartbeat_is_found() {
    let mut session = wanting(1);
    session.want(B, ask(), 1);
    session.want(AskId(3), ask(), 1);
    let mut refused = None;
    let mut accepted = Vec::new();
    for _ in 0..5 {
        let (rows, _) = said(&session.request(0.0));
        if rows.iter().any(|&(ask, count)| ask == 2 && count > 0) {
            assert!(session.refused(RefusedPart::Asks, "too big"));
        } else {
            session.answered(&response(&[], &[]));
            accepted.extend(rows);
        }
        refused = refused.or(session.take_events().into_iter().next());
    }
    assert_eq!(refused, Some(AmEvent::Refused { ask: B, message: "too big".into() }));
    assert_eq!(accepted, [(1, 1), (3, 1)]);
    assert!(!session.has_news());
    session.want(B, ask(), 1);
    assert!(session.has_news(), "wanting it again is a new try");
}

#[test]
fn a_refused_cancellation_is_not_repeated() {
    let mut session = wanting(2);
    beat(&mut session, &response(&[], &[]));
    session.want(A, ask(), 1);
    for expected in [vec![(1, 1)], vec![(1, 0)], vec![]] {
        assert_eq!(said(&session.request(0.0)).0, expected);
        assert_eq!(session.refused(RefusedPart::Asks, "no"), !expected.is_empty());
    }
}

#[test]
fn an_update_is_sent_until_it_has_a_result() {
    let mut session = wanting(1);
    beat(&mut session, &response(&[(2, 1)], &[]));
    let update = Update {
        kind: UpdateKind::Increase,
        version: 0,
        resources: Some(Resources::new(Memory::mib(128), VCores(1))),
    };
    session.update(id(2), update.clone());
    assert_eq!(session.request(0.0).update_requests.len(), 1);
    session.answered(&response(&[], &[]));
    assert_eq!(session.request(0.0).update_requests.len(), 0);
    session.answered(&response(&[], &[]));
    session.forgotten();
    assert_eq!(session.request(0.0).update_requests.len(), 1);
    let updated = proto::UpdatedContainerProto { update_type: 0, container: grant(2, 1) };
    session.answered(&proto::AllocateResponseProto {
        updated_containers: vec![updated],
        ..response(&[], &[])
    });
    assert!(matches!(
        session.take_events().last(),
        Some(AmEvent::Updated { kind: UpdateKind::Increase, .. })
    ));
    session.forgotten();
    assert_eq!(session.request(0.0).update_requests.len(), 0);
}

#[test]
fn exclusions_are_sent_as_increments() {
    let mut session = AmSession::default();
    session.exclude(["a".to_owned(), "b".to_owned()].into());
    let list = session.request(0.0).blacklist_request.unwrap();
    assert_eq!((list.blacklist_additions.len(), list.blacklist_removals.len()), (2, 0));
    session.answered(&response(&[], &[]));
    session.exclude(["b".to_owned(), "c".to_owned()].into());
    let list = session.request(0.0).blacklist_request.unwrap();
    assert_eq!(
        (list.blacklist_additions, list.blacklist_removals),
        (vec!["c".to_owned()], vec!["a".to_owned()])
    );
    session.answered(&response(&[], &[]));
    assert_eq!(session.request(0.0).blacklist_request, None);
}

#[test]
fn exclusions_of_an_earlier_attempt_are_removed_once() {
    let removals = |session: &mut AmSession| {
        let list = session.request(0.0).blacklist_request.unwrap_or_default();
        session.answered(&response(&[], &[]));
        list.blacklist_removals
    };
    let mut session = AmSession::default();
    session.may_be_excluded(["a".to_owned(), "b".to_owned()]);
    session.exclude(["b".to_owned()].into());
    assert!(session.has_news());
    assert_eq!(removals(&mut session), ["a"], "it excludes b itself");
    assert_eq!((removals(&mut session), session.has_news()), (vec![], false));
    session.exclude(BTreeSet::new());
    assert_eq!(removals(&mut session), ["b"]);
    // Its container was on the node that the first attempt could not reach.
    session.recovered(&grant(2, 1));
    assert_eq!(removals(&mut session), ["n1"]);
    assert!(removals(&mut session).is_empty());
}

#[test]
fn exclusion_whose_answer_is_in_doubt_is_removed() {
    let mut session = AmSession::default();
    session.exclude(["a".to_owned()].into());
    session.request(0.0);
    session.response_id_is(7);
    session.exclude(BTreeSet::new());
    assert_eq!(session.request(0.0).blacklist_request.unwrap().blacklist_removals, ["a"]);
}

#[test]
fn a_recovered_container_has_no_ask_until_adopted() {
    let mut session = wanting(1);
    let registered = proto::RegisterApplicationMasterResponseProto {
        containers_from_previous_attempts: vec![grant(2, 1)],
        ..Default::default()
    };
    session.registered(&registered);
    session.registered(&registered);
    assert!(matches!(
        &session.take_events()[..],
        [AmEvent::Recovered(container)] if container.id == id(2)
    ));
    assert!(session.table.adopt(id(2), A));
    assert!(!session.table.adopt(id(2), A), "once");
    assert_eq!(said(&session.request(0.0)).0, [], "it fills the ask");
}

#[test]
fn a_grant_without_id_is_reported_and_skipped() {
    let mut session = wanting(1);
    let answer = proto::AllocateResponseProto {
        allocated_containers: vec![Default::default()],
        ..response(&[(2, 1)], &[])
    };
    let (_, events) = beat(&mut session, &answer);
    assert!(matches!(&events[..], [AmEvent::Malformed(_)]));
}

/// A model of a ResourceManager: one row for each ask, grants at any time, a cache of the last response.
#[derive(Default)]
struct Sim {
    outstanding: BTreeMap<i64, i32>,
    running: BTreeSet<i64>,
    next: i64,
    response_id: i32,
    last: proto::AllocateResponseProto,
    grants: Vec<(i64, i64)>,
    ends: Vec<i64>,
}

impl Sim {
    fn schedule(&mut self, ask: i64) {
        if let Some(count) = self.outstanding.get_mut(&ask).filter(|count| **count > 0) {
            *count -= 1;
            self.grant(ask);
        }
    }

    /// Also without a request.
    fn grant(&mut self, ask: i64) {
        self.next += 1;
        self.running.insert(self.next);
        self.grants.push((self.next, ask));
    }

    fn end(&mut self, number: i64) {
        if self.running.remove(&number) {
            self.ends.push(number);
        }
    }

    /// `None` if it refuses the request as a whole, because of a row of an ask above 3.
    fn allocate(
        &mut self,
        request: &proto::AllocateRequestProto,
    ) -> Option<proto::AllocateResponseProto> {
        if request.response_id() + 1 == self.response_id {
            return Some(self.last.clone());
        }
        assert_eq!(request.response_id(), self.response_id, "ids go up one by one");
        if request.ask.iter().any(|row| row.allocation_request_id() > 3) {
            return None;
        }
        for row in &request.ask {
            self.outstanding.insert(row.allocation_request_id(), row.num_containers());
        }
        for release in &request.release {
            self.end(release.id());
        }
        self.response_id += 1;
        let mut answer =
            response(&std::mem::take(&mut self.grants), &std::mem::take(&mut self.ends));
        answer.response_id = Some(self.response_id);
        self.last = answer.clone();
        Some(answer)
    }

    /// Restarts with the launched containers and no other state.
    fn restart(&mut self, launched: BTreeSet<i64>) {
        let next = self.next;
        let running = self.running.intersection(&launched).copied().collect();
        let ends = launched.difference(&self.running).copied().collect();
        *self = Self { next, running, ends, ..Self::default() };
    }
}

#[derive(Clone, Debug)]
enum Step {
    Want { ask: i64, target: u32 },
    Release(usize),
    Schedule(i64),
    OverGrant(i64),
    Fail(usize),
    RepeatGrant(usize),
    RepeatEnd(i64),
    Beat { request_lost: bool, reply_lost: bool },
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let ask = 1_i64..4;
    prop_oneof![
        3 => (1_i64..6, 0_u32..4).prop_map(|(ask, target)| Step::Want { ask, target }),
        1 => (0_usize..8).prop_map(Step::Release),
        6 => ask.clone().prop_map(Step::Schedule),
        1 => (1_i64..6).prop_map(Step::OverGrant),
        2 => (0_usize..8).prop_map(Step::Fail),
        1 => (0_usize..8).prop_map(Step::RepeatGrant),
        1 => (1_i64..20).prop_map(Step::RepeatEnd),
        8 => any::<[bool; 2]>()
            .prop_map(|[request_lost, reply_lost]| Step::Beat { request_lost, reply_lost }),
        1 => Just(Step::Restart),
    ]
}

fn held(session: &AmSession) -> BTreeSet<i64> {
    session.table.held().map(|(id, _)| id.id).collect()
}

proptest! {
    /// Any bytes are a response or do not decode.
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0_usize..400) {
        let mut session = wanting(2);
        session.request(0.0);
        if let Ok(answer) = proto::AllocateResponseProto::decode(&bytes[..]) {
            session.answered(&answer);
        }
        // A real response with changes or a truncation.
        let mut real = response(&[(2, 1), (3, 1), (4, 7)], &[2, 9]).encode_to_vec();
        real.truncate(cut);
        for (at, byte) in bytes.iter().enumerate().take(3) {
            if let Some(place) = real.get_mut(usize::from(*byte) + at) {
                *place ^= byte;
            }
        }
        if let Ok(answer) = proto::AllocateResponseProto::decode(&real[..]) {
            session.request(0.0);
            session.answered(&answer);
            session.request(0.0);
        }
    }

    /// After any lost, repeated, late or surplus messages exactly the targets are held, and no other container runs.
    #[test]
    fn the_table_settles_at_its_targets(steps in prop::collection::vec(step(), 0..120)) {
        let mut session = AmSession::default();
        let mut sim = Sim::default();
        for step in steps {
            match step {
                Step::Want { ask: id, target } => {
                    // A smaller target does not release held containers; the application decides that.
                    let held = session.table.counts(AskId(id)).map_or(0, |(_, held)| held);
                    session.want(AskId(id), ask(), target.max(held));
                }
                Step::Release(n) => {
                    let id = session.table.held().nth(n).map(|(id, _)| id);
                    id.map(|id| session.table.release(id));
                }
                Step::Schedule(ask) => sim.schedule(ask),
                Step::OverGrant(ask) => sim.grant(ask),
                Step::Fail(n) => {
                    let number = sim.running.iter().nth(n).copied();
                    if let Some(number) = number {
                        sim.end(number);
                    }
                }
                Step::RepeatGrant(n) => {
                    let again = held(&session).into_iter().nth(n);
                    sim.grants.extend(again.map(|number| (number, 1)));
                }
                Step::RepeatEnd(number) => {
                    // The completion of a container that has ended.
                    let is_granted = sim.grants.iter().any(|grant| grant.0 == number);
                    if number <= sim.next && !sim.running.contains(&number) && !is_granted {
                        sim.ends.push(number);
                    }
                }
                Step::Beat { request_lost, reply_lost } => {
                    let request = session.request(0.0);
                    if !request_lost {
                        match sim.allocate(&request) {
                            Some(answer) if !reply_lost => { session.answered(&answer); }
                            None if !reply_lost => prop_assert!(
                                session.refused(RefusedPart::Asks, "no")
                            ),
                            _ => {}
                        }
                    }
                }
                Step::Restart => {
                    sim.restart(held(&session));
                    session.forgotten();
                }
            }
            for ask in 1..4 {
                if let Some((target, held)) = session.table.counts(AskId(ask)) {
                    prop_assert!(held <= target, "ask {ask} holds {held} of {target}");
                }
            }
        }
        for _ in 0..30 {
            let request = session.request(0.0);
            match sim.allocate(&request) {
                Some(answer) => { session.answered(&answer); }
                None => prop_assert!(session.refused(RefusedPart::Asks, "no")),
            }
            for ask in 1..6 {
                for _ in 0..3 {
                    sim.schedule(ask);
                }
            }
        }
        for ask in 1..6 {
            if let Some((target, held)) = session.table.counts(AskId(ask)) {
                // A refused ask has the target 0; its later grants are kept.
                prop_assert!(
                    held >= target && (ask > 3 || held == target),
                    "ask {ask}: {held} of {target}"
                );
            }
        }
        prop_assert_eq!(&sim.running, &held(&session), "what runs is what is held");
        prop_assert!(!session.has_news());
    }
}
