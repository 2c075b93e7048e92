//! R3: jobs below their minimum get it.
//!
//! The minimum of a job is placed whole or not at all, first come first served in a class: from what is free, else also from
//! what is being released, else from jobs of the same or a lower class that have more than their minimum. These give one size
//! at a time, highest rank first, and keep it if the minimum does not fit in the end. Then each size that is not needed is
//! spared, the last taken first.
//!
//! YARN does not wait for this rule: it grants the requests of a starting job wherever there is room. The rule makes the
//! room, and keeps growth away from it.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::decision::{ScalingReason, WaitingReason};
use crate::free_index::Horizon;
use crate::job::FixedSize;
use crate::resources::ResourceVector;
use crate::room::{ClusterRoom, Need};
use crate::round::{Round, RoundJob};
use crate::victims;

/// A wait of this length lifts a job by one class, so that a low class is served at last.
const LIFT_MS: u64 = 30 * 60_000;
/// After a wait of this length nodes are kept from growth.
const KEEP_NODES_MS: u64 = 10 * 60_000;
/// Searches for jobs that give room, in a round; the next round continues. They bound the time of a round.
const SEARCHES_MAX: usize = 16;

/// Serves all jobs below their minimum.
pub(crate) fn serve(round: &mut Round) {
    let mut searches = 0;
    let mut empty = None;
    for (Reverse(class), _, job) in waiters(round) {
        let (need, whole) = needs(round, job);
        let reason = if place(round, job, &need, Horizon::Now) {
            WaitingReason::MinimumAsked
        } else if place(round, job, &need, Horizon::Soon) {
            WaitingReason::MinimumComing
        } else if !empty.get_or_insert_with(|| empty_room(round)).fits(&whole, Horizon::Now) {
            WaitingReason::NeverFits
        } else {
            searches += 1;
            if searches <= SEARCHES_MAX && search(round, job, class, &need) {
                WaitingReason::MinimumComing
            } else {
                let waited_ms = round.jobs[job].spec.waited_ms(round.now_ms);
                let keeps = waited_ms >= KEEP_NODES_MS && searches <= SEARCHES_MAX;
                let nodes_kept = if keeps { keep_nodes(round, class, &whole) } else { 0 };
                WaitingReason::MinimumHasNoRoom { waited_ms, nodes_kept }
            }
        };
        round.jobs[job].waiting = Some(reason);
    }
}

/// Jobs below their minimum, in the order of service: class, lifted by the wait, time of submission, index.
fn waiters(round: &Round) -> BTreeSet<(Reverse<u32>, u64, usize)> {
    let waiter = |job: usize| {
        let RoundJob { spec, has_minimum, .. } = round.jobs[job];
        // The numbers of other fixed jobs are not known to be right.
        let is_served = !has_minimum && matches!(spec.fixed, None | Some(FixedSize::Pinned));
        let lift = u32::try_from(spec.waited_ms(round.now_ms) / LIFT_MS).unwrap_or(u32::MAX);
        let class = Reverse(spec.class.saturating_add(lift));
        is_served.then_some((class, spec.submitted_ms, job))
    };
    (0..round.jobs.len()).filter_map(waiter).collect()
}

/// What the job lacks, and all that it would have at its minimum. A size below the minimum is raised.
fn needs(round: &mut Round, at: usize) -> (Need, Need) {
    let job = &mut round.jobs[at];
    let min = job.spec.min();
    if !min.is_within(job.size) {
        job.size = job.size + min.minus(job.size);
        job.reason = Some(ScalingReason::BelowMinimum);
    }
    let lacks = min.minus(job.held());
    (round.need(at, lacks, false), round.need(at, min, false))
}

fn place(round: &mut Round, job: usize, need: &Need, horizon: Horizon) -> bool {
    let placed = round.room.place(need, horizon);
    placed.map(|nodes| round.expect(job, need, &nodes)).is_ok()
}

/// Makes room from other jobs. Trainers with GPUs make room only if others do not suffice.
fn search(round: &mut Round, job: usize, class: u32, need: &Need) -> bool {
    let reason = ScalingReason::ForMinimum { of: round.jobs[job].spec.id.clone() };
    let placed = [false, true].into_iter().find_map(|with_gpus| {
        let floor = |donor: &RoundJob| {
            let gives = with_gpus || donor.spec.trainer.gpus == 0;
            (donor.spec.class <= class && gives).then(|| donor.spec.min())
        };
        victims::make_room(round, need, floor, &reason)
    });
    placed.map(|nodes| round.expect(job, need, &nodes)).is_some()
}

/// The cluster and its queues without any container.
fn empty_room(round: &Round) -> ClusterRoom {
    let mut cluster = round.cluster.clone();
    cluster.nodes.iter_mut().for_each(|node| node.free = node.total);
    for queue in &mut cluster.queues {
        (queue.used, queue.parents_free) = (ResourceVector::default(), None);
    }
    Round::new(&cluster, &[], round.now_ms).room
}

/// Keeps the nodes where the minimum would fit from the growth of its class and lower ones: those with most room, as many as it
/// needs. Returns their number.
///
/// What others release there comes to this job. It would fit nowhere if growth took each piece as it becomes free.
fn keep_nodes(round: &mut Round, class: u32, whole: &Need) -> usize {
    let demands = whole.containers().map(|group| group.demand);
    let demand = demands.fold(ResourceVector::default(), ResourceVector::max);
    let mut missing = whole.groups.iter().map(|group| i64::from(group.count)).sum::<i64>();
    let fitting = |node: &usize| demand.fits_in(round.nodes[*node].total);
    let mut nodes: Vec<usize> = (0..round.nodes.len()).filter(fitting).collect();
    nodes.sort_by_key(|node| Reverse(round.room.node(*node).ratio(demand)));
    nodes.retain(|node| {
        let is_needed = missing > 0;
        missing -= (round.nodes[*node].total.ratio(demand) / 1024).max(1);
        is_needed
    });
    round.kept.extend(nodes.iter().map(|node| (class, *node)));
    nodes.len()
}
