//! R5: free room goes to the lowest scores.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::decision::{ScalingReason, WaitingReason};
use crate::free_index::Horizon;
use crate::placement::{self, ContainerKind, add_share};
use crate::resources::ResourceVector;
use crate::room::Shortage;
use crate::round::Round;
use crate::score::Rank;

/// Grows jobs, lowest rank first, one size at a time, onto nodes with room now, within queue and limit.
///
/// Room that is being released does not count: its node may be lost before, and YARN would let the request wait. A job's rank
/// is taken again after each size, so that scores rise together.
pub(crate) fn grow(round: &mut Round) {
    let mut open = BinaryHeap::new();
    for job in 0..round.jobs.len() {
        let waits = match wait_before_growth(round, job) {
            Growth::Possible => None,
            Growth::Waits(reason) => Some(reason),
            Growth::Ended => continue,
        };
        if waits.is_none() {
            open.push(Reverse(round.rank(job)));
        }
        round.jobs[job].waiting = waits;
    }
    let mut kept = std::mem::take(&mut round.kept);
    kept.sort_by_key(|kept| Reverse(kept.class));
    let mut kept = kept.into_iter().peekable();
    let mut first_fits = FirstFits::new();
    while let Some(Reverse(rank)) = open.pop() {
        while let Some(kept) = kept.next_if(|kept| Reverse(kept.class) <= rank.class) {
            kept.nodes.into_iter().for_each(|node| round.room.close(node));
        }
        if grow_once(round, rank, &mut first_fits) {
            open.push(Reverse(round.rank(rank.job)));
        }
    }
    // Rules after this one serve all classes.
    kept.flat_map(|kept| kept.nodes).for_each(|node| round.room.close(node));
}

/// Room only falls while jobs grow: the search for a node goes on where the last one for an equal container ended.
type FirstFits = BTreeMap<ResourceVector, usize>;

/// Whether the job has grown. Without room for the next size it notes what lacks.
fn grow_once(round: &mut Round, rank: Rank, first_fits: &mut FirstFits) -> bool {
    let Some((next, mut need)) = round.next_step(rank.job) else { return false };
    for group in &mut need.groups {
        group.from = first_fits.get(&group.demand).copied().unwrap_or(0);
    }
    let placed = placement::place(&mut round.room, &need, Horizon::Now);
    let job = &mut round.jobs[rank.job];
    let shares = match placed {
        Ok(shares) => shares,
        Err(misfit) => {
            job.misfit = Some(misfit);
            job.waiting = Some(WaitingReason::NoRoom { shortage: misfit.shortage });
            if misfit.shortage == Shortage::Nodes && need.containers() == 1 {
                first_fits.insert(misfit.demand, usize::MAX);
            }
            return false;
        }
    };
    let last = |kind: ContainerKind| {
        shares.iter().rev().find(|share| kind.one().is_within(share.counts)).map(|share| share.node)
    };
    for group in &need.groups {
        first_fits.extend(last(group.kind).map(|node| (group.demand, node)));
    }
    let node = last(ContainerKind::Trainer);
    let node = node.map_or(String::new(), |node| round.nodes[node].name.clone());
    job.reason = Some(ScalingReason::FreeRoom { score: rank.score, node });
    job.size = next;
    for share in shares {
        add_share(&mut job.expected, share.node, share.counts);
        add_share(&mut job.grown, share.node, share.counts);
    }
    true
}

enum Growth {
    Possible,
    Waits(WaitingReason),
    /// The job is at its top, shrinks in this round, or has a reason already.
    Ended,
}

fn wait_before_growth(round: &Round, at: usize) -> Growth {
    let job = &round.jobs[at];
    let is_at_top = job.spec.size_above(job.size).is_none();
    if is_at_top || job.waiting.is_some() || job.has_shrunk() || !job.has_minimum {
        return Growth::Ended;
    }
    let until_ms = job.spec.pause_until_ms();
    let backoff_ms = job.spec.backoff_until_ms();
    if job.spec.is_preempted {
        Growth::Waits(WaitingReason::Preempted)
    } else if !job.unplaced.is_empty() || !job.expected.is_empty() {
        Growth::Waits(WaitingReason::Asked)
    } else if backoff_ms > round.now_ms {
        Growth::Waits(WaitingReason::Backoff { until_ms: backoff_ms })
    } else if until_ms > round.now_ms {
        Growth::Waits(WaitingReason::Pause { until_ms })
    } else {
        Growth::Possible
    }
}
