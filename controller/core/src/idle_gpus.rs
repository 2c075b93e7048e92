//! R6: no GPU idles because trainers without GPUs use the CPU or memory of its node.

use std::cmp::Reverse;

use crate::decision::{ScalingReason, WaitingReason};
use crate::free_index::Horizon;
use crate::placement::{self, NodeShare};
use crate::resources::ResourceVector;
use crate::room::Shortage;
use crate::round::{Preference, Round};
use crate::score::Rank;

/// Jobs that this rule serves in a round.
const JOBS_MAX: usize = 16;

/// A job without GPUs, with trainers on a node.
#[derive(Clone, Copy)]
struct Occupant {
    rank: Rank,
    trainers: u32,
}

/// Trainers without GPUs give way where a job of any class could use a GPU but for the CPU or memory that they have: on the node
/// where the fewest have to, and not below their minimum. R5 grows the other job once the room is there.
pub(crate) fn free(round: &mut Round) {
    let mut ranks: Vec<Rank> = (0..round.jobs.len())
        .filter(|job| {
            let job = &round.jobs[*job];
            let shortage = job.misfit.map(|misfit| misfit.shortage);
            job.spec.trainer.gpus > 0 && shortage == Some(Shortage::Nodes)
        })
        .map(|job| round.rank(job))
        .collect();
    if ranks.is_empty() {
        return;
    }
    ranks.sort_unstable();
    let mut occupants = occupants(round);
    for rank in ranks.into_iter().take(JOBS_MAX) {
        free_for(round, rank.job, &mut occupants);
    }
}

/// By node: jobs without GPUs that can give trainers there.
fn occupants(round: &Round) -> Vec<Vec<Occupant>> {
    let mut occupants = vec![Vec::new(); round.nodes.len()];
    for at in 0..round.jobs.len() {
        let job = &round.jobs[at];
        if job.spec.trainer.gpus > 0 || !job.can_give() {
            continue;
        }
        for NodeShare { node, counts } in job.held.iter().filter(|share| share.counts.trainers > 0)
        {
            if round.nodes[*node].total.gpus > 0 {
                occupants[*node].push(Occupant { rank: round.rank(at), trainers: counts.trainers });
            }
        }
    }
    occupants
}

fn free_for(round: &mut Round, job: usize, occupants: &mut [Vec<Occupant>]) {
    let Some((_, need)) = round.next_step(job) else { return };
    let mark = round.room.mark();
    if placement::place(&mut round.room, &need, Horizon::Soon).is_ok() {
        round.jobs[job].waiting = Some(WaitingReason::RoomComing);
        round.jobs[job].misfit = None;
        return;
    }
    let demand = round.jobs[job].spec.trainer;
    let fewest = (0..round.nodes.len()).filter_map(|node| {
        let count = trainers_to_move(round, node, demand, &occupants[node])?;
        Some((count, node))
    });
    let Some((_, node)) = fewest.min() else { return };
    let victims = std::mem::take(&mut occupants[node]);
    let before: Vec<_> = victims.iter().map(|victim| round.jobs[victim.rank.job].clone()).collect();
    let preference = Preference { demand, node: Some(node) };
    for victim in by_use(round, &victims) {
        while !demand.fits_in(round.room.node(node).soon)
            && round.jobs[victim.rank.job].can_give()
            && has_trainer_on(round, victim.rank.job, node)
        {
            round.shrink(victim.rank.job, Some(preference));
            let of = round.jobs[job].spec.id.clone();
            let node = round.nodes[node].name.clone();
            round.jobs[victim.rank.job].reason = Some(ScalingReason::ForIdleGpu { node, of });
        }
    }
    if placement::place(&mut round.room, &need, Horizon::Soon).is_ok() {
        round.jobs[job].waiting = Some(WaitingReason::RoomComing);
        round.jobs[job].misfit = None;
    } else {
        // Pservers of the size do not fit, or queue or limit have no room for it.
        round.room.roll_back(mark);
        for (victim, job) in victims.iter().zip(before) {
            round.jobs[victim.rank.job] = job;
        }
    }
}

/// Those with larger trainers first, since fewer of them have to move; among equal ones the highest rank.
fn by_use(round: &Round, occupants: &[Occupant]) -> Vec<Occupant> {
    let mut sorted = occupants.to_vec();
    sorted.sort_by_key(|occupant| {
        let spec = round.jobs[occupant.rank.job].spec;
        Reverse((spec.trainer, occupant.rank))
    });
    sorted
}

fn has_trainer_on(round: &Round, job: usize, node: usize) -> bool {
    let mut shares = round.jobs[job].held.iter();
    shares.any(|share| share.node == node && share.counts.trainers > 0)
}

/// How many trainers have to leave the node so that one with GPUs fits; absent if it has none idle, or they do not suffice.
fn trainers_to_move(
    round: &Round,
    node: usize,
    demand: ResourceVector,
    occupants: &[Occupant],
) -> Option<u32> {
    let mut free = round.room.node(node).soon;
    if free.gpus < demand.gpus {
        return None;
    }
    let mut count = 0;
    for occupant in by_use(round, occupants) {
        let job = &round.jobs[occupant.rank.job];
        let above_min = job.size.minus(job.spec.min()).trainers;
        for _ in 0..occupant.trainers.min(above_min) {
            if demand.fits_in(free) {
                return Some(count);
            }
            free += job.spec.trainer;
            count += 1;
        }
    }
    demand.fits_in(free).then_some(count).filter(|count| *count > 0)
}
