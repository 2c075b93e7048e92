//! R4: jobs shrink while the cluster is loaded above its limit.

use crate::decision::ScalingReason;
use crate::free_index::Horizon;
use crate::resources::ResourceVector;
use crate::room::{ContainerGroup, Need};
use crate::round::{Round, RoundJob};
use crate::score::Rank;
use crate::sizes::ContainerCounts;
use crate::victims;

/// Containers of others that jobs make room for in a round. It bounds the time of a round.
const CONTAINERS_MAX: u32 = 256;

/// Makes room on nodes for the containers that others ask for, as many as can fit. Then takes from the highest rank, one size at
/// a time, until what is used and what others ask for is within the limit.
///
/// What is being released does not count as used, so that one overload is answered once. The sum alone would be met by pieces of
/// free room that are too small for any container. YARN reports the sum and the number of containers, so each counts as their
/// mean. Others may wait for another reason, such as their queue: then the room is made once, and stays free.
pub(crate) fn relieve(round: &mut Round) {
    let asked = round.cluster.asked_by_others;
    let count = round.cluster.containers_asked_by_others;
    round.room.limit = round.room.limit.plus(ResourceVector::default() - asked, Horizon::Now);
    let demand = asked.part(count);
    let container = ContainerGroup { one: ContainerCounts::default(), demand, count: 1 };
    let need =
        Need { groups: vec![container], queue: round.cluster.queues.len(), is_growth: false };
    for _ in 0..count.min(CONTAINERS_MAX) {
        let floor = |donor: &RoundJob| Some(donor.spec.min());
        if victims::make_room(round, &need, floor, &ScalingReason::Overload).is_none() {
            break;
        }
        // It counts as load already.
        round.room.limit = round.room.limit.plus(demand, Horizon::Soon);
    }
    shrink_to_limit(round);
}

fn shrink_to_limit(round: &mut Round) {
    let mut ranks = round.ranks(RoundJob::can_give);
    loop {
        let room = round.room.limit.at(Horizon::Soon);
        // It asks for a resource of which there is less than 0.
        let helps = |rank: &&Rank| !rank.demand.fits_in(room + rank.demand);
        let Some(rank) = ranks.iter().rev().find(helps).copied() else { return };
        ranks.remove(&rank);
        round.shrink(rank.job, None);
        round.jobs[rank.job].reason = Some(ScalingReason::Overload);
        if round.jobs[rank.job].can_give() {
            ranks.insert(round.rank(rank.job));
        }
    }
}
