//! R7: room moves from high scores to low ones.

use std::collections::{BTreeMap, BTreeSet};

use crate::decision::{ScalingReason, WaitingReason};
use crate::job::ElasticJob;
use crate::room::Need;
use crate::round::{Round, RoundJob};
use crate::score::{Rank, Score};
use crate::sizes::ContainerCounts;
use crate::victims;

/// Sizes that jobs are promised in a round: they bound its time, and how much moves at once.
const EXCHANGES_MAX: usize = 64;
/// Donors of an exchange. Further ones have lower scores.
const DONORS_MAX: usize = 16;
/// A donor gives at most a quarter of what it has within a minute, but always one size.
const GIVEN_DIVISOR: u32 = 4;

/// Jobs that R5 has left without room get sizes from the highest ranks above their minimum, of the same or a lower class, as long
/// as a donor's score does not fall below the receiver's: the lowest rank first, one size at a time.
///
/// The lowest of their scores rises with each exchange, so they end. A job does not give and receive in one round. Room is
/// released now, and R5 gives it to the lowest rank that fits when it is there: mostly the receiver.
pub(crate) fn exchange(round: &mut Round) {
    let ranks = round.ranks(|job| matches!(job.waiting, Some(WaitingReason::NoRoom { .. })));
    // With the size that each has been promised.
    let mut receivers: BTreeMap<Rank, ContainerCounts> =
        ranks.into_iter().map(|rank| (rank, round.jobs[rank.job].size)).collect();
    // An equal need of a later job would fail as well: its score is higher, and so must be the scores of its donors.
    let mut failed = BTreeSet::new();
    let mut exchanges = 0;
    while exchanges < EXCHANGES_MAX
        && let Some((rank, size)) = receivers.pop_first()
    {
        let spec = round.jobs[rank.job].spec;
        let Some((next, need)) = round.next_step(rank.job, size) else { continue };
        let step = (spec.class, need);
        if round.jobs[rank.job].has_shrunk() || failed.contains(&step) {
            continue;
        }
        let score = spec.score(next);
        if !receive(round, rank, &step.1, score) {
            failed.insert(step);
            continue;
        }
        round.jobs[rank.job].waiting = Some(WaitingReason::RoomComing);
        receivers.insert(Rank { score, ..rank }, next);
        exchanges += 1;
    }
}

/// Takes room for a step from donors, unless it is coming. `least`: the receiver's score afterwards.
fn receive(round: &mut Round, receiver: Rank, need: &Need, least: Score) -> bool {
    let RoundJob { spec, .. } = round.jobs[receiver.job];
    let (now_ms, mut donors) = (round.now_ms, 0);
    let floor = |donor: &RoundJob| {
        let gives = donors < DONORS_MAX
            && donor.spec.class <= spec.class
            && donor.score() > least
            && donor.waiting != Some(WaitingReason::RoomComing)
            && (spec.trainer.gpus > 0 || donor.spec.trainer.gpus == 0);
        let floor = gives.then(|| least_size(donor.spec, now_ms, least)).flatten();
        let floor = floor.filter(|floor| floor.trainers < donor.size.trainers);
        donors += usize::from(floor.is_some());
        floor
    };
    let reason = ScalingReason::Fairness { of: spec.id.clone(), lower: receiver.score };
    victims::make_room(round, need, floor, &reason).is_some()
}

/// The least size of a donor that has at least this score, and by which it has given little.
fn least_size(donor: &ElasticJob, now_ms: u64, score: Score) -> Option<ContainerCounts> {
    let given = donor.given_trainers(now_ms);
    let may_have = |size: &ContainerCounts| {
        let gives = given + donor.wanted.minus(*size).trainers;
        let is_first = given == 0 && donor.size_below(donor.wanted) == Some(*size);
        let is_little = gives <= (given + donor.wanted.trainers) / GIVEN_DIVISOR;
        (is_first || is_little) && donor.score(*size) >= score
    };
    // It may have each larger size as well.
    let at = donor.sizes.partition_point(|size| !may_have(size));
    donor.sizes.get(at).copied()
}
