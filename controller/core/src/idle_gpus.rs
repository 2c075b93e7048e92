//! R6: GPUs that idle because trainers without GPUs use the CPU or memory of their node.

use crate::decision::{ScalingReason, WaitingReason};
use crate::free_index::Horizon;
use crate::placement;
use crate::room::Shortage;
use crate::round::Round;
use crate::score::Rank;
use crate::victims;

/// Jobs that this rule serves in a round.
const JOBS_MAX: usize = 16;

/// Trainers without GPUs give way where a job of any class could use a GPU but for the CPU or memory that they have: as few as
/// possible, and not below their minimum. R5 grows the other job once the room is there.
///
/// A class does not protect them: a GPU is worth more than the CPU beside it, and trainers without GPUs can go elsewhere.
pub(crate) fn free(round: &mut Round) {
    let mut ranks: Vec<Rank> = round.ranks(|job| {
        let shortage = job.misfit.map(|misfit| misfit.shortage);
        job.spec.trainer.gpus > 0 && shortage == Some(Shortage::Nodes)
    });
    ranks.sort_unstable();
    for Rank { job, .. } in ranks.into_iter().take(JOBS_MAX) {
        let Some((_, need)) = round.next_step(job) else { continue };
        let of = &round.jobs[job].spec.id;
        let reason = |score| ScalingReason::ForIdleGpu { score, of: of.clone() };
        if placement::place(&mut round.room, &need, Horizon::Soon).is_ok()
            || victims::make_room(round, &need, u32::MAX, false, reason).is_some()
        {
            round.jobs[job].waiting = Some(WaitingReason::RoomComing);
            round.jobs[job].misfit = None;
        }
    }
}
