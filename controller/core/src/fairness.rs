//! R7: room moves from high scores to low ones.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use crate::decision::{ScalingReason, WaitingReason};
use crate::free_index::Horizon;
use crate::placement::{Need, NodeShare, PartialPlacement};
use crate::resources::ResourceVector;
use crate::room::{Misfit, Shortage};
use crate::round::{Round, RoundJob};
use crate::score::{Rank, Score};
use crate::sizes::ContainerCounts;

/// Exchanges in a round: they bound its time, and how much moves at once.
const EXCHANGES_MAX: usize = 64;
/// Donors that are tried for a job. Further ones have lower scores, and room on other nodes.
const DONORS_TRIED_MAX: usize = 32;
/// A donor gives at most a quarter of what it has within a minute, but always one size.
const GIVEN_DIVISOR: u32 = 4;

/// Jobs that R5 has left without room get sizes from the highest rank above its minimum, of the same or a lower class, as long
/// as the donor's score does not fall below the receiver's: the lowest rank first, one size at a time.
///
/// The sum of the squares of the scores falls with each exchange, so they end. A job does not give and receive in one round. Room
/// is released now, and R5 gives it to the lowest rank that fits when it is there: mostly the receiver.
pub(crate) fn exchange(round: &mut Round) {
    let receivers: Vec<Rank> = round.ranks(|job| job.misfit.is_some());
    let receiver = |rank: Rank| Reverse(Receiver { rank, size: round.jobs[rank.job].size });
    let mut receivers: BinaryHeap<_> = receivers.into_iter().map(receiver).collect();
    let mut donors: BTreeSet<Rank> = round.ranks(RoundJob::can_give);
    let mut failed: Vec<GrowthStep> = Vec::new();
    let mut exchanges = 0;
    while let Some(Reverse(Receiver { rank, size })) = receivers.pop() {
        let spec = round.jobs[rank.job].spec;
        let Some(next) = spec.size_above(size).filter(|_| exchanges < EXCHANGES_MAX) else {
            continue;
        };
        if round.jobs[rank.job].has_shrunk() {
            continue;
        }
        let need = round.need(rank.job, next.minus(size), true);
        let score = spec.score(next);
        let step = GrowthStep::new(round, rank, &need, score);
        if failed.iter().any(|failed| step.fails_with(failed)) {
            continue;
        }
        let mark = round.room.mark();
        let mut placement = PartialPlacement::new(&need, Horizon::Soon);
        let placed = placement.advance(&mut round.room, &[]);
        let is_coming = placed.is_ok();
        let exchange =
            placed.err().map(|misfit| ScoreExchange { receiver: rank, score, misfit, placement });
        if exchange.is_none_or(|exchange| exchange.receive(round, &mut donors)) {
            exchanges += usize::from(!is_coming);
            donors.retain(|donor| donor.job != rank.job);
            round.jobs[rank.job].waiting = Some(WaitingReason::RoomComing);
            receivers.push(Reverse(Receiver { rank: Rank { score, ..rank }, size: next }));
        } else {
            round.room.roll_back(mark);
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

/// What a job needs for its next size.
#[derive(Debug)]
struct GrowthStep {
    class: Reverse<u32>,
    queue: Option<usize>,
    groups: Vec<(ResourceVector, u32)>,
    /// Of the job afterwards.
    score: Score,
}

impl GrowthStep {
    fn new(round: &Round, rank: Rank, need: &Need, score: Score) -> Self {
        let groups = need.groups.iter().map(|group| (group.demand, group.count)).collect();
        Self { class: rank.class, queue: round.jobs[rank.job].queue, groups, score }
    }

    /// Whether this must fail as `failed` did: it has an equal need, and donors must have at least that score.
    fn fails_with(&self, failed: &Self) -> bool {
        (self.class, self.queue, &self.groups) == (failed.class, failed.queue, &failed.groups)
            && self.score >= failed.score
    }
}

/// A size that a job could receive.
struct ScoreExchange<'n> {
    receiver: Rank,
    /// Of the receiver afterwards.
    score: Score,
    /// The first container that does not fit.
    misfit: Misfit,
    /// What fits without a donor.
    placement: PartialPlacement<'n>,
}

impl ScoreExchange<'_> {
    /// Finds a donor and takes from it.
    fn receive(&self, round: &mut Round, donors: &mut BTreeSet<Rank>) -> bool {
        let receiver = self.receiver;
        let has_gpus = round.jobs[receiver.job].spec.trainer.gpus > 0;
        let may_give = |donor: &&Rank| {
            donor.job != receiver.job
                && donor.class >= receiver.class
                && donor.score > self.score
                && (has_gpus || donor.demand.gpus == 0)
        };
        let tried: Vec<Rank> =
            donors.iter().rev().filter(may_give).take(DONORS_TRIED_MAX).copied().collect();
        let Some(donor) = tried.into_iter().find(|donor| self.give(round, *donor)) else {
            return false;
        };
        donors.remove(&donor);
        if round.jobs[donor.job].can_give() {
            donors.insert(round.rank(donor.job));
        }
        true
    }

    /// Takes sizes from the donor until the need fits. The round is unchanged if it does not.
    fn give(&self, round: &mut Round, donor: Rank) -> bool {
        let spec = round.jobs[donor.job].spec;
        let given = spec.given_trainers(round.now_ms);
        let may_have = |size: &ContainerCounts| {
            let gives = given + spec.wanted.minus(*size).trainers;
            let is_first = given == 0 && spec.size_below(spec.wanted) == Some(*size);
            let is_little = gives <= (given + spec.wanted.trainers) / GIVEN_DIVISOR;
            (is_first || is_little) && spec.score(*size) >= self.score
        };
        let size = round.jobs[donor.job].size;
        let mut sizes = spec.sizes.iter().filter(|of| of.trainers < size.trainers);
        let Some(least) = sizes.find(|of| may_have(of)) else { return false };
        let mark = round.room.mark();
        let before = round.jobs[donor.job].clone();
        let (mut placement, mut misfit) = (self.placement.clone(), self.misfit);
        while self.is_possible(round, donor.job, *least, misfit) {
            let released = round.shrink(donor.job, Some(misfit.demand));
            let nodes: Vec<usize> = released.iter().map(|released| released.node).collect();
            match placement.advance(&mut round.room, &nodes) {
                Ok(()) => {
                    let of = round.jobs[self.receiver.job].spec.id.clone();
                    let lower = self.receiver.score;
                    let reason = ScalingReason::Fairness { score: donor.score, of, lower };
                    round.jobs[donor.job].reason = Some(reason);
                    return true;
                }
                Err(next) => misfit = next,
            }
        }
        round.room.roll_back(mark);
        round.jobs[donor.job] = before;
        false
    }

    /// Whether the container can fit if the donor shrinks, at most to `least`. Most donors are rejected here.
    fn is_possible(
        &self,
        round: &Round,
        donor: usize,
        least: ContainerCounts,
        misfit: Misfit,
    ) -> bool {
        let job = &round.jobs[donor];
        let most = job.size.minus(least);
        let fits = |share: &NodeShare| {
            let trainers = job.spec.trainer.times(share.counts.trainers.min(most.trainers));
            let pservers = job.spec.pserver.times(share.counts.pservers.min(most.pservers));
            misfit.demand.fits_in(round.room.node(share.node).soon + trainers + pservers)
        };
        most.trainers > 0
            && match misfit.shortage {
                Shortage::Queue => job.queue == round.jobs[self.receiver.job].queue,
                Shortage::Limit => true,
                Shortage::Nodes => job.held.iter().chain(&job.expected).any(fits),
            }
    }
}
