//! R4: jobs shrink while the cluster is loaded above its limit.

use std::collections::BTreeSet;

use crate::decision::ScalingReason;
use crate::round::Round;

/// Takes from the highest rank, one size at a time, until what is used and what others ask for is within the limit.
///
/// What is being released does not count as used, so that one overload is answered once.
pub(crate) fn relieve(round: &mut Round) {
    let mut lacking = round.room.limit().soon.lacking();
    if lacking == Default::default() {
        return;
    }
    let can_give = |job: &usize| round.jobs[*job].can_give();
    let mut ranks: BTreeSet<_> =
        (0..round.jobs.len()).filter(can_give).map(|job| round.rank(job)).collect();
    while lacking != Default::default() {
        let spec = |job: usize| round.jobs[job].spec;
        let has = |job: usize| spec(job).trainer.overlaps(lacking);
        let Some(rank) = ranks.iter().rev().find(|rank| has(rank.job)).copied() else { return };
        ranks.remove(&rank);
        round.shrink(rank.job, None);
        round.jobs[rank.job].reason = Some(ScalingReason::Overload { score: rank.score });
        if round.jobs[rank.job].can_give() {
            ranks.insert(round.rank(rank.job));
        }
        lacking = round.room.limit().soon.lacking();
    }
}
