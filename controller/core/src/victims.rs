//! The search for jobs that give room to a minimum.

use std::collections::{BTreeMap, BTreeSet};

use crate::decision::ScalingReason;
use crate::free_index::Horizon;
use crate::placement::{self, Need, NodeShare, PartialPlacement};
use crate::room::Misfit;
use crate::round::{ReleasedContainer, Round, RoundJob};
use crate::score::{Rank, Score};
use crate::sizes::ContainerCounts;

/// Sizes that a search takes on trial. It bounds the time of a round where many small containers make way for a large one.
const STEPS_MAX: usize = 1_024;

/// A size that a job gives.
#[derive(Debug)]
struct VictimStep {
    job: usize,
    /// By how much the job becomes smaller.
    counts: ContainerCounts,
    /// What this frees; empty for a request without room.
    released: Vec<ReleasedContainer>,
}

/// Places the need on room that jobs of this or a lower class give up, by `reason` of the score that they had. `with_gpus`: jobs
/// whose trainers have GPUs give as well. The round is unchanged if it does not fit.
pub(crate) fn make_room(
    round: &mut Round,
    need: &Need,
    class: u32,
    with_gpus: bool,
    reason: impl Fn(Score) -> ScalingReason,
) -> Option<Vec<NodeShare>> {
    let steps = find(round, class, need, with_gpus)?;
    for step in &steps {
        let RoundJob { spec, size, .. } = round.jobs[step.job];
        for released in &step.released {
            round.release(step.job, *released);
        }
        round.jobs[step.job].reason = Some(reason(spec.score(size)));
        // Steps that are left release as many containers as the same number of sizes, from the present one down.
        round.settle(step.job, spec.size_below(size).expect("it has given this step"));
    }
    let placed = placement::place(&mut round.room, need, Horizon::Soon).ok();
    debug_assert!(placed.is_some(), "the search has placed it");
    placed
}

/// The sizes to take from jobs of this or a lower class so that the need fits, each of them needed. The round stays as it is.
fn find(round: &mut Round, class: u32, need: &Need, with_gpus: bool) -> Option<Vec<VictimStep>> {
    let mark = round.room.mark();
    let mut before = BTreeMap::new();
    let candidates = round.ranks(|job| {
        job.can_give() && job.spec.class <= class && (with_gpus || job.spec.trainer.gpus == 0)
    });
    let mut steps = take_until_fit(round, candidates, need, &mut before);
    if let Some(steps) = &mut steps {
        spare_unused(round, steps);
    }
    for (job, state) in before {
        round.jobs[job] = state;
    }
    round.room.roll_back(mark);
    // Placed in another order than on trial, they may not fit.
    let mut steps = steps.filter(|steps| fits(round, need, steps, None))?;
    spare_unneeded(round, need, &mut steps);
    Some(steps)
}

/// Takes one size at a time, highest rank first, until the need is placed.
fn take_until_fit<'a>(
    round: &mut Round<'a>,
    mut ranks: BTreeSet<Rank>,
    need: &Need,
    before: &mut BTreeMap<usize, RoundJob<'a>>,
) -> Option<Vec<VictimStep>> {
    let mut steps: Vec<VictimStep> = Vec::new();
    let mut placement = PartialPlacement::new(need, Horizon::Soon);
    let mut released = Vec::new();
    while let Err(misfit) = placement.advance(&mut round.room, &released) {
        let helps = |job: usize| round.can_help(job, misfit, need.queue);
        let rank = ranks.iter().rev().find(|rank| helps(rank.job)).copied();
        let rank = rank.filter(|_| steps.len() < STEPS_MAX)?;
        ranks.remove(&rank);
        before.entry(rank.job).or_insert_with(|| round.jobs[rank.job].clone());
        let step = take(round, rank.job, misfit);
        released = step.released.iter().map(|released| released.node).collect();
        steps.push(step);
        if round.jobs[rank.job].can_give() {
            ranks.insert(round.rank(rank.job));
        }
    }
    Some(steps)
}

fn take(round: &mut Round, job: usize, misfit: Misfit) -> VictimStep {
    let size = round.jobs[job].size;
    let released = round.shrink(job, Some(misfit.demand));
    VictimStep { job, counts: size.minus(round.jobs[job].size), released }
}

/// Spares what has become free beside the placed containers. It is quick, and leaves few steps to the exact test.
fn spare_unused(round: &mut Round, steps: &mut Vec<VictimStep>) {
    for at in (0..steps.len()).rev() {
        let mark = round.room.mark();
        let mut released = steps[at].released.iter();
        let is_unused = released.all(|released| round.take_again(steps[at].job, *released));
        if is_unused && may_be_spared(steps, at) {
            spare(steps, at);
        } else {
            round.room.roll_back(mark);
        }
    }
}

/// Spares each size without which the containers, placed again, fit as well.
fn spare_unneeded(round: &mut Round, need: &Need, steps: &mut Vec<VictimStep>) {
    for at in (0..steps.len()).rev() {
        if may_be_spared(steps, at) && fits(round, need, steps, Some(at)) {
            spare(steps, at);
        }
    }
}

/// Whether the need fits onto what the steps release, except the step `without`.
fn fits(round: &mut Round, need: &Need, steps: &[VictimStep], without: Option<usize>) -> bool {
    let mark = round.room.mark();
    for (_, step) in steps.iter().enumerate().filter(|(at, _)| Some(*at) != without) {
        for released in &step.released {
            round.release_room(step.job, *released);
        }
    }
    let fits = placement::place(&mut round.room, need, Horizon::Soon).is_ok();
    round.room.roll_back(mark);
    fits
}

/// The last step of the job from `at` on.
fn last_of_job(steps: &[VictimStep], at: usize) -> usize {
    let same = |other: &VictimStep| other.job == steps[at].job;
    steps.iter().rposition(same).expect("the step itself")
}

/// A job gives up its sizes in their order. An earlier step is as good as its last one if both release as many containers: not if
/// a step withdraws requests, which a job does first.
fn may_be_spared(steps: &[VictimStep], at: usize) -> bool {
    let last = last_of_job(steps, at);
    let releases_all = |step: &VictimStep| {
        let count = (step.counts.trainers + step.counts.pservers) as usize;
        step.released.iter().filter(|released| !released.was_expected).count() == count
    };
    last == at
        || (steps[last].counts == steps[at].counts
            && releases_all(&steps[at])
            && releases_all(&steps[last]))
}

/// The job keeps what the step releases, and gives a size less.
fn spare(steps: &mut Vec<VictimStep>, at: usize) {
    let last = steps.remove(last_of_job(steps, at));
    if let Some(step) = steps.get_mut(at).filter(|step| step.job == last.job) {
        step.released = last.released;
    }
}
