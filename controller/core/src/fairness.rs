//! R7: room moves from high scores to low ones.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use crate::decision::{ScalingReason, WaitingReason};
use crate::free_index::Horizon;
use crate::resources::ResourceVector;
use crate::room::Need;
use crate::round::{Preference, Round};
use crate::score::{Rank, Score};
use crate::sizes::ContainerCounts;

/// Exchanges in a round: they bound its time, and how much moves at once.
const EXCHANGES_MAX: usize = 64;
/// Donors that are tried for a job. Further ones have lower scores, and room on other nodes.
const DONORS_TRIED_MAX: usize = 32;
/// A donor gives at most this part of what it has within a minute, but always one size.
const GIVEN_PART: u32 = 4;

/// Jobs that R5 has left without room get sizes from the highest rank above its minimum, of the same or a lower class, as long as the
/// donor's score does not fall below the receiver's: the lowest rank first, one size at a time.
///
/// The sum of the squares of the scores falls with each exchange, so they end. A job does not give and receive in one round. Room
/// is released now, and R5 gives it to the lowest rank that fits when it is there: mostly the receiver.
pub(crate) fn exchange(round: &mut Round) {
    let mut receivers: BinaryHeap<Reverse<Receiver>> = (0..round.jobs.len())
        .filter(|job| round.jobs[*job].misfit.is_some())
        .map(|job| Reverse(Receiver { rank: round.rank(job), size: round.jobs[job].size }))
        .collect();
    let can_give = |job: &usize| round.jobs[*job].can_give();
    let mut donors: BTreeSet<Rank> =
        (0..round.jobs.len()).filter(can_give).map(|job| round.rank(job)).collect();
    let mut failed: Vec<Step> = Vec::new();
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
        let step = Step::of(round, rank, &need, score);
        if failed.iter().any(|failed| step.fails_with(failed)) {
            continue;
        }
        let is_coming = round.room.place(&need, Horizon::Soon).is_ok();
        if is_coming || receive(round, rank, &need, score, &mut donors) {
            exchanges += usize::from(!is_coming);
            donors.retain(|donor| donor.job != rank.job);
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

/// What a job needs for its next size.
#[derive(Debug)]
struct Step {
    class: Reverse<u32>,
    queue: Option<usize>,
    groups: Vec<(ResourceVector, u32)>,
    /// Of the job afterwards.
    score: Score,
}

impl Step {
    fn of(round: &Round, rank: Rank, need: &Need, score: Score) -> Self {
        let groups = need.groups.iter().map(|group| (group.demand, group.count)).collect();
        Self { class: rank.class, queue: round.jobs[rank.job].queue, groups, score }
    }

    /// Whether no job can give to this since none could give to `failed`: an equal need, and no lower a score.
    fn fails_with(&self, failed: &Self) -> bool {
        (self.class, self.queue, &self.groups) == (failed.class, failed.queue, &failed.groups)
            && self.score >= failed.score
    }
}

/// Finds a donor and takes from it. `score`: of the receiver afterwards.
fn receive(
    round: &mut Round,
    receiver: Rank,
    need: &Need,
    score: Score,
    donors: &mut BTreeSet<Rank>,
) -> bool {
    let has_gpus = need.groups.iter().any(|group| group.demand.gpus > 0);
    let may_give = |donor: &&Rank| {
        donor.job != receiver.job
            && donor.class >= receiver.class
            && donor.score > score
            && (has_gpus || donor.demand.gpus == 0)
    };
    let tried: Vec<Rank> =
        donors.iter().rev().filter(may_give).take(DONORS_TRIED_MAX).copied().collect();
    for donor in tried {
        if give(round, donor, receiver, need, score) {
            donors.remove(&donor);
            if round.jobs[donor.job].can_give() {
                donors.insert(round.rank(donor.job));
            }
            return true;
        }
    }
    false
}

/// Takes sizes from the donor until the need fits; none if it does not.
fn give(round: &mut Round, donor: Rank, receiver: Rank, need: &Need, score: Score) -> bool {
    let mark = round.room.mark();
    let before = round.jobs[donor.job].clone();
    let given = before.spec.given_trainers(round.now_ms);
    while let Err(misfit) = round.room.place(need, Horizon::Soon) {
        let job = &round.jobs[donor.job];
        let next = job.spec.size_below(job.size).filter(|next| {
            let gives = given + before.spec.wanted.minus(*next).trainers;
            let has = given + before.spec.wanted.trainers;
            let is_first = given == 0 && job.size == before.spec.wanted;
            (is_first || gives <= has / GIVEN_PART) && job.spec.score(*next) >= score
        });
        if next.is_none() || !round.can_help(donor.job, misfit, need.queue) {
            round.room.roll_back(mark);
            round.jobs[donor.job] = before;
            return false;
        }
        round.shrink(donor.job, Some(Preference { demand: misfit.demand, node: None }));
    }
    let of = round.jobs[receiver.job].spec.id.clone();
    let reason = ScalingReason::Fairness { score: donor.score, of, lower: receiver.score };
    round.jobs[donor.job].reason = Some(reason);
    true
}
