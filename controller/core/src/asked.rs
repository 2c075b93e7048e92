//! R2: what has been asked for counts as used.

use crate::free_index::Horizon;
use crate::room::Need;
use crate::round::Round;
use crate::score::Rank;

/// Places what jobs ask for beside their minimum, by rank. Minimums are the next rule's part, which places them whole.
///
/// YARN may place them elsewhere. The amount is what counts: two jobs are not promised the same room, in this round or the next.
pub(crate) fn place(round: &mut Round) {
    for Rank { job, .. } in round.ranks(|job| job.has_minimum && !job.unplaced().is_empty()) {
        let need = round.need(job, round.jobs[job].unplaced(), false);
        for group in &need.groups {
            let need = Need { groups: vec![*group], ..need };
            let mut nodes = Vec::new();
            for horizon in [Horizon::Now, Horizon::Soon] {
                // The rest stays unplaced.
                let _ = round.room.place_further(&need, horizon, &mut nodes);
            }
            round.expect(job, &need, &nodes);
        }
    }
}
