//! The search for jobs that give room to other containers.

use std::collections::{BTreeMap, BTreeSet};

use crate::decision::ScalingReason;
use crate::free_index::Horizon;
use crate::resources::ResourceVector;
use crate::room::{Need, Shortage};
use crate::round::{Round, RoundJob, SizeStep, Wanted};
use crate::score::{Rank, Score};
use crate::sizes::ContainerCounts;

/// Sizes that a search takes on trial. It bounds the time of a round where many small containers make way for a large one.
const STEPS_MAX: usize = 1_024;

/// Places the need on what is free, on what is being released, and on what other jobs give up, by `reason` of the score that they
/// had. Returns the node of each container. The round is unchanged if it does not fit.
///
/// `floors`: the least size of each job that gives, by job; asked for if others have to give. Jobs give one size at a time,
/// highest rank first. Then each size without which the need fits as well is spared, the last taken first.
pub(crate) fn make_room(
    round: &mut Round,
    need: &Need,
    floors: impl FnOnce(&Round) -> BTreeMap<usize, ContainerCounts>,
    reason: impl Fn(Score) -> ScalingReason,
) -> Option<Vec<usize>> {
    if let Ok(nodes) = round.room.place(need, Horizon::Soon) {
        return Some(nodes);
    }
    let floors = floors(round);
    let steps = Donors::new(round, floors).take(round, need);
    // Placed again from the beginning, the need may not fit.
    if !round.room.fits(need, Horizon::Soon) {
        steps.iter().rev().for_each(|step| round.spare(step));
        return None;
    }
    for step in spare_unneeded(round, need, steps) {
        let RoundJob { spec, size, .. } = round.jobs[step.job];
        let before = spec.size_above(size).expect("it has given this step");
        round.jobs[step.job].reason = Some(reason(spec.score(before)));
    }
    round.room.place(need, Horizon::Soon).ok()
}

/// The jobs that can give and that this is true of, with their minimum.
pub(crate) fn donors(
    round: &Round,
    gives: impl Fn(&RoundJob) -> bool,
) -> BTreeMap<usize, ContainerCounts> {
    let jobs = round.jobs.iter().enumerate().filter(|(_, job)| job.can_give() && gives(job));
    jobs.map(|(at, job)| (at, job.spec.min())).collect()
}

/// Jobs that can give.
struct Donors {
    ranks: BTreeSet<Rank>,
    /// The least size of each, by job.
    floors: BTreeMap<usize, ContainerCounts>,
    /// By node: what it has free if all of them give all that they can there.
    reach: Vec<ResourceVector>,
}

impl Donors {
    fn new(round: &Round, floors: BTreeMap<usize, ContainerCounts>) -> Self {
        let mut reach: Vec<_> = (0..round.nodes.len()).map(|node| round.room.node(node)).collect();
        for (at, least) in &floors {
            let job = &round.jobs[*at];
            let most = job.size.minus(*least);
            for (node, counts) in job.held.iter().chain(&job.expected) {
                reach[*node] += job.spec.demand(counts.minus(counts.minus(most)));
            }
        }
        Self { ranks: floors.keys().map(|job| round.rank(*job)).collect(), floors, reach }
    }

    /// Takes sizes until the need is placed, or the donors cannot help.
    fn take(mut self, round: &mut Round, need: &Need) -> Vec<SizeStep> {
        let (mut steps, mut nodes) = (Vec::new(), Vec::new());
        while let Err(shortage) = round.room.place_further(need, Horizon::Soon, &mut nodes) {
            let group = need.containers().nth(nodes.len()).expect("it does not fit");
            let wanted = Wanted { demand: group.demand, reach: &self.reach };
            let helps = |rank: &&Rank| {
                let job = &round.jobs[rank.job];
                match shortage {
                    Shortage::Queue => job.queue == need.queue,
                    Shortage::Limit => true,
                    Shortage::Nodes => {
                        let mut nodes = job.held.keys().chain(job.expected.keys());
                        nodes.any(|node| wanted.demand.fits_in(wanted.reach[*node]))
                    }
                }
            };
            let donor = self.ranks.iter().rev().find(helps).copied();
            let Some(rank) = donor.filter(|_| steps.len() < STEPS_MAX) else { break };
            self.ranks.remove(&rank);
            steps.push(round.shrink(rank.job, Some(wanted)));
            if self.floors[&rank.job].trainers < round.jobs[rank.job].size.trainers {
                self.ranks.insert(round.rank(rank.job));
            }
        }
        round.room.remove(need, Horizon::Soon, &nodes);
        steps
    }
}

/// Returns the steps that are left.
fn spare_unneeded(round: &mut Round, need: &Need, mut steps: Vec<SizeStep>) -> Vec<SizeStep> {
    for at in (0..steps.len()).rev() {
        let step = &steps[at];
        let RoundJob { spec, size, .. } = round.jobs[step.job];
        // A job gives its sizes in their order, and withdraws requests before it releases containers.
        let is_last = steps[at + 1..].iter().all(|later| later.job != step.job);
        let is_size = spec.size_above(size) == Some(size + step.counts);
        let may_be_spared = is_last || (is_size && step.is_held());
        if !may_be_spared {
            continue;
        }
        round.spare(step);
        if round.room.fits(need, Horizon::Soon) {
            steps.remove(at);
        } else {
            round.take(&steps[at]);
        }
    }
    steps
}
