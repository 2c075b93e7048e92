//! R4: jobs shrink while the cluster is loaded above its limit.

use std::collections::BTreeSet;

use crate::decision::ScalingReason;
use crate::free_index::Horizon;
use crate::placement::{self, ContainerGroup, ContainerKind, Need};
use crate::resources::ResourceVector;
use crate::round::{Round, RoundJob};
use crate::score::Rank;
use crate::victims;

/// Containers of others that jobs make room for in a round. It bounds the time of a round.
const CONTAINERS_MAX: u32 = 256;

/// Takes from the highest rank, one size at a time, until what is used and what others ask for is within the limit. Then makes
/// room on nodes for the containers that others ask for, as many as can fit.
///
/// What is being released does not count as used, so that one overload is answered once. The sum alone would be met by pieces of
/// free room that are too small for any container. YARN reports the sum and the number of containers, so each counts as their
/// mean. Others may wait for another reason, such as their queue: then the room is made once, and stays free.
pub(crate) fn relieve(round: &mut Round) {
    let asked = round.cluster.asked_by_others;
    let count = round.cluster.containers_asked_by_others.min(CONTAINERS_MAX);
    let demand = asked.part(round.cluster.containers_asked_by_others);
    round.room.load(asked);
    shrink_to_limit(round, demand);
    let free = round.room.limit().now;
    let (mut open, mut batch, mut loaded) = (count, count, asked);
    while open > 0 && batch > 0 {
        let group = ContainerGroup { kind: ContainerKind::Master, demand, count: batch, from: 0 };
        let need = Need { groups: vec![group], queue: None, is_growth: false };
        let reason = |score| ScalingReason::Overload { score };
        if placement::place(&mut round.room, &need, Horizon::Soon).is_ok()
            || victims::make_room(round, &need, u32::MAX, true, reason).is_some()
        {
            // The mean is rounded up.
            let placed = demand.times(batch).min(loaded);
            round.room.unload(placed, free);
            loaded -= placed;
            open -= batch;
            batch = batch.min(open);
        } else {
            batch /= 2;
        }
    }
}

fn shrink_to_limit(round: &mut Round, container: ResourceVector) {
    let mut lacking = round.room.limit().soon.lacking();
    if lacking == ResourceVector::default() {
        return;
    }
    let mut ranks: BTreeSet<Rank> = round.ranks(RoundJob::can_give);
    while lacking != ResourceVector::default() {
        let has = |job: usize| round.jobs[job].spec.trainer.overlaps(lacking);
        let Some(rank) = ranks.iter().rev().find(|rank| has(rank.job)).copied() else { return };
        ranks.remove(&rank);
        round.shrink(rank.job, Some(container));
        round.jobs[rank.job].reason = Some(ScalingReason::Overload { score: rank.score });
        if round.jobs[rank.job].can_give() {
            ranks.insert(round.rank(rank.job));
        }
        lacking = round.room.limit().soon.lacking();
    }
}
