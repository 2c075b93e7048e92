//! R7: room moves from high scores to low ones.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::decision::{ScalingReason, WaitingReason};
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
    let receivers: Vec<Rank> =
        round.ranks(|job| matches!(job.waiting, Some(WaitingReason::NoRoom { .. })));
    let receiver = |rank: Rank| Reverse(Receiver { rank, size: round.jobs[rank.job].size });
    let mut receivers: BinaryHeap<_> = receivers.into_iter().map(receiver).collect();
    let mut failed: Vec<FailedStep> = Vec::new();
    let mut exchanges = 0;
    while let Some(Reverse(Receiver { rank, size })) = receivers.pop() {
        let spec = round.jobs[rank.job].spec;
        let Some(next) = spec.size_above(size).filter(|_| exchanges < EXCHANGES_MAX) else {
            continue;
        };
        let need = round.need(rank.job, next.minus(size), true);
        let score = spec.score(next);
        let step = FailedStep { class: spec.class, need, score };
        if round.jobs[rank.job].has_shrunk() || failed.iter().any(|failed| step.fails_with(failed))
        {
            continue;
        }
        if receive(round, rank, &step) {
            exchanges += 1;
            round.jobs[rank.job].waiting = Some(WaitingReason::RoomComing);
            receivers.push(Reverse(Receiver { rank: Rank { score, ..rank }, size: next }));
        } else {
            failed.push(step);
        }
    }
}

/// A job in the order of service, at the size that it has been promised.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Receiver {
    rank: Rank,
    size: ContainerCounts,
}

/// A size that a job could not receive.
#[derive(Debug)]
struct FailedStep {
    class: u32,
    need: Need,
    /// Of the job afterwards.
    score: Score,
}

impl FailedStep {
    /// Whether a further step must fail as `failed` did: it has an equal need, and donors must have at least that score.
    fn fails_with(&self, failed: &Self) -> bool {
        (self.class, &self.need) == (failed.class, &failed.need) && self.score >= failed.score
    }
}

/// Takes room for a step from donors, unless it is coming.
fn receive(round: &mut Round, receiver: Rank, step: &FailedStep) -> bool {
    let RoundJob { spec, .. } = round.jobs[receiver.job];
    let donors = |round: &Round| {
        let mut ranks: Vec<Rank> = round.ranks(|donor| {
            donor.can_give()
                && donor.spec.class <= spec.class
                && donor.score() > step.score
                && donor.waiting != Some(WaitingReason::RoomComing)
                && (spec.trainer.gpus > 0 || donor.spec.trainer.gpus == 0)
        });
        ranks.sort_unstable_by_key(|rank| Reverse(*rank));
        let floor = |rank: &Rank| {
            let donor = &round.jobs[rank.job];
            let least = least_size(donor, round.now_ms, step.score)?;
            (least.trainers < donor.size.trainers).then_some((rank.job, least))
        };
        ranks.iter().filter_map(floor).take(DONORS_MAX).collect()
    };
    let reason = |score| {
        let (of, lower) = (spec.id.clone(), receiver.score);
        ScalingReason::Fairness { score, of, lower }
    };
    victims::make_room(round, &step.need, donors, reason).is_some()
}

/// The least size of a donor that has at least this score, and by which it has given little.
fn least_size(donor: &RoundJob, now_ms: u64, score: Score) -> Option<ContainerCounts> {
    let RoundJob { spec, .. } = donor;
    let given = spec.given_trainers(now_ms);
    let may_have = |size: &&ContainerCounts| {
        let gives = given + spec.wanted.minus(**size).trainers;
        let is_first = given == 0 && spec.size_below(spec.wanted) == Some(**size);
        let is_little = gives <= (given + spec.wanted.trainers) / GIVEN_DIVISOR;
        (is_first || is_little) && spec.score(**size) >= score
    };
    spec.sizes.iter().find(may_have).copied()
}
