//! When the next periodic cut is due, and at which step of a BSP phase.

use heddle_protocol::ids::Step;
use heddle_protocol::spec::Every;

use crate::checkpoint::cut::{Reason, TRIES_MAX};
use crate::context::deadlines::Purpose;
use crate::core::{Core, JobStage};
use crate::work::phases::Work;

/// BSP: steps that a named step is ahead of the guess at the least.
const AHEAD_MIN: u64 = 2;
/// BSP: so much time's worth of steps a named step is ahead: the command has to reach every shard first.
const AHEAD_MS: f64 = 100.0;
/// A periodic cut that was given up is tried again after this, if its period is not shorter.
const AGAIN_MS: u64 = 30_000;
/// One that a rollback took away is tried again after its period divided by this.
const OVERDUE_SHARE: u64 = 4;

impl Core {
    /// BSP: a step that no shard has applied yet when it hears of it.
    pub(crate) fn step_ahead(&self) -> Step {
        let step_rate = &self.phase.step_rate;
        let guess = step_rate.guess(self.now.mono, self.config.limits.heartbeat_ms).0;
        let ahead = AHEAD_MIN.max((step_rate.rate().unwrap_or(0.0) * AHEAD_MS / 1000.0) as u64)
            << (2 * self.cuts.late_tries.min(TRIES_MAX));
        let soonest = guess.saturating_add(ahead);
        match self.config.spec.checkpoint.every {
            // The step it is due at, unless that has gone by.
            Every::Steps(_)
                if self.cuts.late_tries == 0
                    && self.cuts.open.as_ref().is_some_and(|cut| cut.reason == Reason::Due) =>
            {
                Step(soonest.max(self.cuts.next_steps.saturating_sub(self.cuts.steps_before)))
            }
            _ => Step(soonest),
        }
    }

    /// Sets when the next periodic cut is due.
    pub(crate) fn plan_next_cut(&mut self, gave_up: bool) {
        match self.config.spec.checkpoint.every {
            Every::Time(period) => {
                let wait_ms = if gave_up { period.0.min(AGAIN_MS) } else { period.0 };
                self.deadlines.set(Purpose::CutDue, self.now.mono + wait_ms);
            }
            Every::Passes(_) if gave_up => {
                self.deadlines.set(Purpose::CutDue, self.now.mono + AGAIN_MS)
            }
            Every::Passes(_) => {}
            Every::Steps(steps) => {
                self.cuts.next_steps = self.total_steps().saturating_add(steps);
                self.check_steps();
            }
        }
    }

    /// Sets when the next periodic cut is due, now that shards have gone back to a checkpoint.
    ///
    /// A rollback does not push it back: where pservers are lost more often than cuts are due, none would ever be taken
    /// and nothing ever be kept. But a cut at once would save what is saved already, so one that was due or under way
    /// waits for a part of its period.
    pub(crate) fn plan_cut_after_rollback(&mut self) {
        let every = self.config.spec.checkpoint.every;
        let mut overdue = std::mem::take(&mut self.cuts.overdue);
        if self.cuts.wanted == Some(Reason::Due) && !matches!(every, Every::Passes(_)) {
            // It came while shards were loading.
            self.cuts.unwant();
            overdue = true;
        }
        match every {
            Every::Passes(_) => {}
            Every::Time(period) => {
                let soonest = self.now.mono + (period.0 / OVERDUE_SHARE).min(AGAIN_MS);
                let due = match self.deadlines.at(Purpose::CutDue) {
                    _ if overdue => soonest,
                    Some(at) => at.max(soonest),
                    None => self.now.mono + period.0,
                };
                self.deadlines.set(Purpose::CutDue, due);
            }
            Every::Steps(steps) => {
                let total = self.total_steps();
                let soonest = total.saturating_add((steps / OVERDUE_SHARE).max(1));
                self.cuts.next_steps = if overdue {
                    soonest
                } else {
                    let due = self.cuts.next_steps.max(soonest);
                    due.min(total.saturating_add(steps))
                };
                self.check_steps();
            }
        }
    }

    /// Steps taken: BSP, job steps; ASP, steps of all trainers together.
    pub(crate) fn total_steps(&self) -> u64 {
        if self.is_bsp() {
            // An evaluation has no job steps; its frontier stays at 0.
            return self.cuts.steps_before.saturating_add(self.phase.frontier().0);
        }
        self.steps
    }

    /// `checkpoint.every` in steps: wants a cut when the step is near (BSP: named ahead) or reached (ASP).
    pub(crate) fn check_steps(&mut self) {
        if !matches!(self.config.spec.checkpoint.every, Every::Steps(_))
            || self.cuts.open.is_some()
            || !matches!(self.stage, JobStage::Working)
        {
            return;
        }
        let near = match (&self.phase.work, self.phase.step_rate.rate()) {
            // Two heartbeats ahead, so that the step is not past when the next one comes.
            (Work::Lanes(_), Some(rate)) => {
                (rate * 2.0 * self.config.limits.heartbeat_ms as f64 / 1000.0) as u64
            }
            // An unknown rate: a step that is named now may be hours away. It is named when it has gone by.
            (Work::Lanes(_), None) | (Work::Queue(_), _) => 0,
        };
        if self.total_steps().saturating_add(near) >= self.cuts.next_steps {
            self.cuts.want(Reason::Due);
        }
    }
}
