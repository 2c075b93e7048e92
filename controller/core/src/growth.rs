//! R5: free room goes to the lowest scores.

use std::collections::BTreeSet;

use crate::decision::{ScalingReason, WaitingReason};
use crate::free_index::Horizon;
use crate::round::{Round, RoundJob};
use crate::score::Rank;

/// Grows jobs, lowest rank first, one size at a time, onto nodes with room now, within queue and limit.
///
/// Room that is being released does not count: its node may be lost before, and YARN would let the request wait. A job's rank
/// is taken again after each size, so that scores rise together.
pub(crate) fn grow(round: &mut Round) {
    let mut open = BTreeSet::new();
    for at in 0..round.jobs.len() {
        let job = &round.jobs[at];
        let is_below_top = job.spec.size_above(job.size).is_some();
        if is_below_top && job.waiting.is_none() && !job.has_shrunk() && job.has_minimum {
            let waiting = wait_before_growth(job, round.now_ms);
            if waiting.is_none() {
                open.insert(round.rank(at));
            }
            round.jobs[at].waiting = waiting;
        }
    }
    round.kept.sort_unstable();
    while let Some(rank) = open.pop_first() {
        close_kept(round, rank.class.0);
        if grow_once(round, rank) {
            open.insert(round.rank(rank.job));
        }
    }
    // Rules after this one serve all classes.
    close_kept(round, 0);
}

/// Closes the nodes that are kept from jobs of this class. The highest classes are last.
fn close_kept(round: &mut Round, class: u32) {
    while let Some((_, node)) = round.kept.pop_if(|(of, _)| *of >= class) {
        round.room.close(node);
    }
}

/// Whether the job has grown. Without room for the next size it notes what lacks.
fn grow_once(round: &mut Round, rank: Rank) -> bool {
    let size = round.jobs[rank.job].size;
    let Some((next, need)) = round.next_step(rank.job, size) else { return false };
    let nodes = match round.room.place(&need, Horizon::Now) {
        Ok(nodes) => nodes,
        Err(shortage) => {
            round.jobs[rank.job].waiting = Some(WaitingReason::NoRoom { shortage });
            return false;
        }
    };
    round.expect(rank.job, &need, &nodes);
    let job = &mut round.jobs[rank.job];
    job.reason = Some(ScalingReason::FreeRoom { score: rank.score });
    job.size = next;
    true
}

fn wait_before_growth(job: &RoundJob, now_ms: u64) -> Option<WaitingReason> {
    let until_ms = job.spec.pause_until_ms();
    if job.spec.is_preempted {
        Some(WaitingReason::Preempted)
    } else if !job.size.is_within(job.held()) {
        Some(WaitingReason::Asked)
    } else {
        (until_ms > now_ms).then_some(WaitingReason::Pause { until_ms })
    }
}
