//! Progress: processes that send heartbeats and do not work.
//!
//! The control thread of a process beats whatever its other threads do, so that each heartbeat names what stands still.
//!
//! | sign | rule |
//! | --- | --- |
//! | a data thread, or the training loop outside of its algorithm, took no turn for `dead_ms` | given up |
//! | the process received no line of this ApplicationMaster for `dead_ms`, though it answers each heartbeat | its control path is cut one way: given up |
//! | a trainer's algorithm computes one step for `stuck_ms` | replaced, and the task of the step gets an error |
//!
//! A step of an algorithm may take minutes, so that only the last rule applies to it. A trainer that waits for pservers or
//! storage neither computes nor owes a turn: it is never stuck.
//!
//! **Two heartbeats must agree.** After a machine stood still, its control thread may beat before the others have run.

use heddle_protocol::control::{HeartbeatStats, LongStep};
use heddle_protocol::ids::{Member, Slot};
use heddle_protocol::mutation::Mutation;

use super::restart_policy::FailureClass;
use super::slots::{RegisteredContainer, SlotEntry, SlotStatus, Standstill};
use super::{Fleet, Loss};
use crate::config::Limits;
use crate::context::Context;
use crate::context::deadlines::Purpose;
use crate::time::MonotonicMs;

impl Fleet {
    /// Judges a heartbeat beside the one before, which the holder still has.
    pub(super) fn check_progress(&mut self, slot: Slot, beat: &HeartbeatStats, ctx: &mut Context) {
        let (now, stood_still) = (ctx.now(), self.stood_still);
        let Some(holder) = self.slots.holder_mut(slot) else {
            return;
        };
        let limits = ctx.limits();
        let standstill = standstill(&holder.heartbeat, beat, limits).or_else(|| {
            let listens_since = [Some(holder.connected), stood_still].into_iter().flatten().max();
            let answered = listens_since.is_some_and(|at| now.since(at) >= limits.dead_ms);
            unheard(&holder.heartbeat, beat, limits).filter(|_| answered)
        });
        if standstill.is_some() {
            ctx.set_deadline_at_latest(Purpose::Liveness, now);
        }
        holder.standstill = standstill;
    }

    /// The steps that are computed without end, each with its trainer.
    pub(crate) fn stuck_steps(&self) -> Vec<(Member, LongStep)> {
        let stuck = |(_, entry): (_, &SlotEntry)| match &entry.status {
            SlotStatus::Held(holder) => match holder.standstill {
                Some(Standstill::Stuck(step)) => Some((holder.member, step)),
                Some(Standstill::Hangs(_)) | None => None,
            },
            _ => None,
        };
        self.slots().filter_map(stuck).collect()
    }

    /// The driver stood still until now: what containers did not receive meanwhile proves nothing.
    pub(super) fn note_standstill(&mut self, now: MonotonicMs) {
        self.stood_still = Some(now);
    }
}

fn standstill(
    before: &HeartbeatStats,
    beat: &HeartbeatStats,
    limits: &Limits,
) -> Option<Standstill> {
    if let (Some(before), Some(turn)) = (&before.slow_thread, &beat.slow_thread)
        && before.thread == turn.thread
        && turn.turn_ms >= limits.dead_ms
        && !Mutation::HungThreadIsKept.is_on()
    {
        return Some(Standstill::Hangs(format!(
            "hangs: {} took no turn for {} s, though its heartbeats come",
            turn.thread,
            turn.turn_ms / 1000
        )));
    }
    match (&before.long_step, &beat.long_step) {
        (Some(before), Some(step))
            if before.task == step.task && step.for_ms >= limits.stuck_ms =>
        {
            Some(Standstill::Stuck(*step))
        }
        _ => None,
    }
}

/// Whether lines to a container do not arrive although its own do.
fn unheard(before: &HeartbeatStats, beat: &HeartbeatStats, limits: &Limits) -> Option<Standstill> {
    let waits = before.unheard_ms >= limits.suspect_ms && beat.unheard_ms >= limits.dead_ms;
    waits.then(|| {
        Standstill::Hangs(format!(
            "has received nothing for {} s, though its heartbeats come: the path from the ApplicationMaster is cut",
            beat.unheard_ms / 1000
        ))
    })
}

/// The loss of a container that stands still, if it does.
pub(super) fn loss_of(holder: &RegisteredContainer) -> Option<Loss> {
    let cause = match holder.standstill.as_ref()? {
        Standstill::Hangs(cause) => cause.clone(),
        Standstill::Stuck(step) => format!(
            "is stuck: it has computed a step of task {} for {} s and waits for no other process",
            step.task,
            step.for_ms / 1000
        ),
    };
    Some(Loss::new(holder.member.slot, &cause, FailureClass::Killed, &holder.host))
}

#[cfg(test)]
mod tests {
    use heddle_protocol::control::ThreadTurn;
    use heddle_protocol::ids::{TaskAttempt, TaskId};

    use super::*;

    fn turned(thread: &str, turn_ms: u64) -> HeartbeatStats {
        let slow_thread = Some(ThreadTurn { thread: thread.to_owned(), turn_ms });
        HeartbeatStats { slow_thread, ..HeartbeatStats::default() }
    }

    #[test]
    fn s40_thread_hangs_when_two_heartbeats_name_it() {
        let (limits, none) = (Limits::default(), HeartbeatStats::default());
        let late = turned("data-1", 10_000);
        assert_eq!(standstill(&none, &late, &limits), None, "the machine may have stood still");
        assert_eq!(standstill(&turned("data-0", 9_000), &late, &limits), None);
        assert_eq!(standstill(&turned("data-1", 8_900), &turned("data-1", 9_900), &limits), None);
        let judged = standstill(&turned("data-1", 9_000), &late, &limits);
        let Some(Standstill::Hangs(cause)) = judged else { panic!("{judged:?}") };
        assert_eq!(cause, "hangs: data-1 took no turn for 10 s, though its heartbeats come");
    }

    #[test]
    fn step_is_stuck_only_after_its_own_limit() {
        let computes = |for_ms| {
            let step = LongStep { task: TaskId(3), attempt: TaskAttempt(1), for_ms };
            HeartbeatStats { long_step: Some(step), ..HeartbeatStats::default() }
        };
        let limits = Limits::default();
        assert_eq!(standstill(&computes(598_000), &computes(599_000), &limits), None);
        let judged = standstill(&computes(599_000), &computes(600_000), &limits);
        assert!(matches!(judged, Some(Standstill::Stuck(step)) if step.task == TaskId(3)));
    }

    #[test]
    fn s38_lines_that_arrive_one_way_are_noticed() {
        let waits = |unheard_ms| HeartbeatStats { unheard_ms, ..HeartbeatStats::default() };
        let limits = Limits::default();
        assert_eq!(unheard(&waits(0), &waits(12_000), &limits), None);
        assert_eq!(unheard(&waits(8_000), &waits(9_000), &limits), None);
        assert!(unheard(&waits(9_000), &waits(10_000), &limits).is_some());
    }
}
