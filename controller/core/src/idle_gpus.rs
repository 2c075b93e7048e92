//! R6: GPUs that idle because trainers without GPUs use the CPU or memory of their node.

use crate::decision::{ScalingReason, WaitingReason};
use crate::room::Shortage;
use crate::round::{Round, RoundJob};
use crate::score::Rank;
use crate::victims;

/// Jobs that this rule serves in a round.
const JOBS_MAX: usize = 16;

/// Trainers without GPUs give way where a job of any class could use a GPU but for the CPU or memory that they have: as few as
/// possible, and not below their minimum. R5 grows the other job once the room is there.
///
/// A class does not protect them: a GPU is worth more than the CPU beside it, and trainers without GPUs can go elsewhere.
pub(crate) fn free(round: &mut Round) {
    let no_room = WaitingReason::NoRoom { shortage: Shortage::Nodes };
    let ranks =
        round.ranks(|job| job.spec.trainer.gpus > 0 && job.waiting.as_ref() == Some(&no_room));
    for Rank { job, .. } in ranks.into_iter().take(JOBS_MAX) {
        let RoundJob { spec, size, .. } = round.jobs[job];
        let gpus = spec.trainer.gpus;
        let has_idle_gpus = (0..round.nodes.len()).any(|node| round.room.node(node).gpus >= gpus);
        let Some((_, need)) = round.next_step(job, size).filter(|_| has_idle_gpus) else {
            continue;
        };
        let reason = ScalingReason::ForIdleGpu { of: spec.id.clone() };
        let floor = |donor: &RoundJob| (donor.spec.trainer.gpus == 0).then(|| donor.spec.min());
        if victims::make_room(round, &need, floor, &reason).is_some() {
            round.jobs[job].waiting = Some(WaitingReason::RoomComing);
        }
    }
}
