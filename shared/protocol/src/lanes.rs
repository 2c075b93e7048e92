//! The tasks of a lane and their order: a pure function of seed, phase, tasks and lanes.
//!
//! All trainers, the ApplicationMaster and all attempts must agree on it without a message, so it is drawn with ChaCha8, whose
//! stream is fixed by its definition (D. J. Bernstein, 2008), and shuffled by the steps written here
//! rather than by a library whose choices may change.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::ids::{Lane, PhaseNo, TaskId};

/// The order of all tasks of a phase. Drawn from (seed, phase) if `shuffle`, else that of the plan.
#[must_use]
pub fn task_order(seed: u64, phase: PhaseNo, tasks: u32, shuffle: bool) -> Vec<TaskId> {
    let mut order: Vec<TaskId> = (0..tasks).map(TaskId).collect();
    if shuffle {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..12].copy_from_slice(&phase.0.to_le_bytes());
        let mut lots = ChaCha8Rng::from_seed(key);
        // Fisher and Yates, from the end.
        for last in (1..order.len()).rev() {
            order.swap(last, below(&mut lots, last as u64 + 1) as usize);
        }
    }
    order
}

/// The tasks of one lane in its order: lanes take tasks in turn.
pub fn lane_tasks(order: &[TaskId], lane: Lane, lanes: u32) -> impl Iterator<Item = TaskId> {
    let own = order.get(lane.0 as usize..).unwrap_or_default();
    own.iter().copied().step_by(lanes.max(1) as usize)
}

/// A number below `bound` (at least 1), each with the same probability: draws above the highest multiple are rejected.
fn below(lots: &mut impl Rng, bound: u64) -> u64 {
    let reject_from = u64::MAX - (u64::MAX % bound);
    loop {
        let draw = lots.next_u64();
        if draw < reject_from {
            return draw % bound;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_share_out_all_tasks_once() {
        let order = task_order(42, PhaseNo(3), 29, true);
        let mut dealt: Vec<TaskId> =
            (0..8).flat_map(|lane| lane_tasks(&order, Lane(lane), 8)).collect();
        dealt.sort();
        assert_eq!(dealt, task_order(42, PhaseNo(3), 29, false));
        assert_eq!(lane_tasks(&order, Lane(7), 8).count(), 3);
        assert_eq!(lane_tasks(&order[..2], Lane(7), 8).count(), 0);
    }

    #[test]
    fn the_order_of_a_seed_never_changes() {
        let order = |seed, phase| -> Vec<u32> {
            task_order(seed, PhaseNo(phase), 10, true).iter().map(|task| task.0).collect()
        };
        // Running jobs and their resumed parts depend on these.
        assert_eq!(order(42, 0), GOLDEN);
        assert_ne!(order(42, 1), order(42, 0));
        assert_ne!(order(43, 0), order(42, 0));
    }

    const GOLDEN: [u32; 10] = [2, 1, 4, 3, 7, 0, 5, 8, 6, 9];
}
