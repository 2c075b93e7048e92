//! The tasks of a lane and their order: a pure function of seed, phase, tasks and lanes.
//!
//! All trainers, the ApplicationMaster and all attempts must agree on it without a message, so it is drawn with ChaCha8, whose
//! stream is fixed by its definition (D. J. Bernstein, 2008), and shuffled by the steps written here
//! rather than by a library whose choices may change.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::ids::{Lane, PhaseNo, TaskId};
use crate::job_spec::JobSpec;

/// The phase whose lot deals tasks to lanes for all phases. It is beyond the last phase of a job.
const DEAL: PhaseNo = PhaseNo(u32::MAX);

/// The order of all tasks of a phase: lanes take them in turn. If the job shuffles, it is drawn from (seed, phase) within each
/// lane, whose tasks are the same in each phase: the trainer that has the lane may have kept their records. Runs that began
/// before this was so draw all tasks again.
#[must_use]
pub fn task_order(spec: &JobSpec, phase: PhaseNo, tasks: u32) -> Vec<TaskId> {
    let (seed, plan) = (spec.training.seed, (0..tasks).map(TaskId).collect());
    if !spec.data.shuffle {
        return plan;
    }
    if !spec.lanes_keep_tasks {
        return shuffled(plan, &mut lots(seed, phase));
    }
    let (dealt, mut lots) = (shuffled(plan, &mut lots(seed, DEAL)), lots(seed, phase));
    let mut order = dealt.clone();
    let lanes = spec.training.lanes;
    for lane in (0..lanes.min(tasks)).map(Lane) {
        let own = shuffled(lane_tasks(&dealt, lane, lanes).collect(), &mut lots);
        let places = order.iter_mut().skip(lane.0 as usize).step_by(lanes.max(1) as usize);
        places.zip(own).for_each(|(place, task)| *place = task);
    }
    order
}

fn lots(seed: u64, phase: PhaseNo) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..12].copy_from_slice(&phase.0.to_le_bytes());
    ChaCha8Rng::from_seed(key)
}

/// Fisher and Yates, from the end.
fn shuffled(mut tasks: Vec<TaskId>, lots: &mut impl Rng) -> Vec<TaskId> {
    for last in (1..tasks.len()).rev() {
        tasks.swap(last, below(lots, last as u64 + 1) as usize);
    }
    tasks
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
    use std::collections::BTreeSet;

    use super::*;
    use crate::job_spec::job::sample;

    fn order_of(keeps: bool, seed: u64, phase: u32, tasks: u32) -> Vec<TaskId> {
        let mut spec = sample();
        (spec.training.seed, spec.training.lanes, spec.lanes_keep_tasks) = (seed, 8, keeps);
        task_order(&spec, PhaseNo(phase), tasks)
    }

    #[test]
    fn lanes_share_out_all_tasks_once() {
        for order in [order_of(false, 42, 3, 29), order_of(true, 42, 3, 29)] {
            let mut dealt: Vec<TaskId> =
                (0..8).flat_map(|lane| lane_tasks(&order, Lane(lane), 8)).collect();
            dealt.sort();
            assert_eq!(dealt, (0..29).map(TaskId).collect::<Vec<_>>());
            assert_eq!(lane_tasks(&order, Lane(7), 8).count(), 3);
            assert_eq!(lane_tasks(&order[..2], Lane(7), 8).count(), 0);
        }
    }

    #[test]
    fn a_lane_has_its_tasks_in_each_phase_in_another_order() {
        let of = |phase| lane_tasks(&order_of(true, 42, phase, 800), Lane(5), 8).collect();
        let (one, other): (Vec<TaskId>, Vec<TaskId>) = (of(0), of(1));
        assert_ne!(one, other);
        assert_eq!(BTreeSet::from_iter(&one), BTreeSet::from_iter(&other));
        assert!(one.iter().any(|task| task.0 % 8 != 5), "dealt by lot");
        assert_eq!(order_of(true, 42, 0, 3).len(), 3);
    }

    #[test]
    fn the_order_of_a_seed_never_changes() {
        let order = |keeps, seed, phase| -> Vec<u32> {
            order_of(keeps, seed, phase, 10).iter().map(|task| task.0).collect()
        };
        // Running jobs and their resumed parts depend on these.
        assert_eq!(order(false, 42, 0), [2, 1, 4, 3, 7, 0, 5, 8, 6, 9]);
        assert_eq!(order(true, 42, 0), [9, 7, 6, 2, 5, 8, 1, 3, 4, 0]);
        for keeps in [false, true] {
            assert_ne!(order(keeps, 42, 1), order(keeps, 42, 0));
            assert_ne!(order(keeps, 43, 0), order(keeps, 42, 0));
        }
    }
}
