//! The search for jobs that give room to other containers.

use std::collections::BTreeMap;

use crate::decision::ScalingReason;
use crate::free_index::Horizon;
use crate::resources::ResourceVector;
use crate::room::{Need, Shortage};
use crate::round::{ContainerPlace, Round, RoundJob, SizeStep, Wanted};
use crate::score::Rank;
use crate::sizes::ContainerCounts;

/// Sizes that a search takes on trial. It bounds the time of a round where many small containers make way for a large one.
const STEPS_MAX: usize = 1_024;

/// Places the need on what is free, on what is being released, and on what other jobs give up for this reason. Returns the node
/// of each container. The round is unchanged if it does not fit.
///
/// `floor`: the least size of a job that can give, below its size; absent if it does not give here. It is asked for the highest
/// rank first. Jobs give one size at a time, highest rank first. Then each size without which the need fits as well is spared,
/// the last taken first.
pub(crate) fn make_room(
    round: &mut Round,
    need: &Need,
    floor: impl FnMut(&RoundJob) -> Option<ContainerCounts>,
    reason: &ScalingReason,
) -> Option<Vec<usize>> {
    if let Ok(nodes) = round.room.place(need, Horizon::Soon) {
        return Some(nodes);
    }
    let steps = take(round, need, floor);
    // Placed again from the beginning, the need may not fit.
    if !round.room.fits(need, Horizon::Soon) {
        steps.iter().rev().for_each(|step| round.spare(step));
        return None;
    }
    for step in spare_unneeded(round, need, steps) {
        round.jobs[step.job].reason = Some(reason.clone());
    }
    round.room.place(need, Horizon::Soon).ok()
}

/// Takes sizes until the need is placed, or other jobs cannot help.
fn take(
    round: &mut Round,
    need: &Need,
    mut floor: impl FnMut(&RoundJob) -> Option<ContainerCounts>,
) -> Vec<SizeStep> {
    let ranks = round.ranks(RoundJob::can_give);
    let donor = |rank: Rank| Some((rank, floor(&round.jobs[rank.job])?));
    let mut donors: BTreeMap<_, _> = ranks.into_iter().rev().filter_map(donor).collect();
    let reach = reach(round, &donors);
    let (mut steps, mut nodes) = (Vec::new(), Vec::new());
    while let Err(shortage) = round.room.place_further(need, Horizon::Soon, &mut nodes) {
        let group = need.containers().nth(nodes.len()).expect("it does not fit");
        let wanted = Wanted { demand: group.demand, reach: &reach };
        let can_fit = |place: &ContainerPlace| wanted.demand.fits_in(reach[place.node]);
        let helps = |(rank, _): &(&Rank, _)| {
            let job = &round.jobs[rank.job];
            match shortage {
                Shortage::Queue => job.queue == need.queue,
                Shortage::Limit => true,
                Shortage::Nodes => job.containers.keys().any(can_fit),
            }
        };
        let donor = donors.iter().rev().find(helps).filter(|_| steps.len() < STEPS_MAX);
        let Some((&rank, &least)) = donor else { break };
        donors.remove(&rank);
        steps.push(round.shrink(rank.job, Some(wanted)));
        if least.trainers < round.jobs[rank.job].size.trainers {
            donors.insert(round.rank(rank.job), least);
        }
    }
    round.room.remove(need, Horizon::Soon, &nodes);
    steps
}

/// By node: what it has free if all donors give all that they can there. `donors`: with the least size of each.
fn reach(round: &Round, donors: &BTreeMap<Rank, ContainerCounts>) -> Vec<ResourceVector> {
    let mut reach: Vec<_> = (0..round.nodes.len()).map(|node| round.room.node(node)).collect();
    for (rank, least) in donors {
        let job = &round.jobs[rank.job];
        let most = job.size.minus(*least);
        for (place, counts) in &job.containers {
            reach[place.node] += job.spec.demand(counts.minus(counts.minus(most)));
        }
    }
    reach
}

/// Returns the steps that are left.
fn spare_unneeded(round: &mut Round, need: &Need, mut steps: Vec<SizeStep>) -> Vec<SizeStep> {
    let mut needed: Vec<SizeStep> = Vec::new();
    while let Some(step) = steps.pop() {
        let RoundJob { spec, size, .. } = round.jobs[step.job];
        // A job gives its sizes in their order, containers in its own if it has one, and withdraws requests before these.
        let is_last = needed.iter().all(|later| later.job != step.job);
        let is_size = spec.size_above(size) == Some(size + step.counts);
        if is_last || (is_size && step.is_held() && spec.release_order.is_empty()) {
            round.spare(&step);
            if round.room.fits(need, Horizon::Soon) {
                continue;
            }
            round.take(&step);
        }
        needed.push(step);
    }
    needed
}
