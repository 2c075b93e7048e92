//! The checkpoint schedule: when the next periodic cut is due, and at which step of a BSP phase.

use heddle_protocol::ids::Step;
use heddle_protocol::job_spec::{DurationMs, Every, job_phase};
use heddle_protocol::view::{JobEvent, WarningCode};

use super::cut::{Cut, CutReason};
use super::{Checkpoints, TRIES_MAX};
use crate::context::Context;
use crate::context::deadlines::Purpose;
use crate::fleet::Fleet;
use crate::work::{JobWork, PhaseEnded};

/// BSP: a named step is at least this many steps ahead of the probable frontier.
const AHEAD_MIN: u64 = 2;
/// BSP: a named step is ahead by the steps of this time: the command has to reach every shard first.
const AHEAD_MS: f64 = 100.0;
/// A periodic cut that was given up is tried again after this, if its period is not shorter.
const AGAIN_MS: u64 = 30_000;
/// The rate of training is taken over at least this many heartbeats.
const RATE_BEATS: u64 = 2;
/// Training that is this much slower during a checkpoint is worth a warning.
const SLOWED_MAX: f64 = 0.2;
/// One that a rollback ended is tried again after its period divided by this.
const OVERDUE_SHARE: u64 = 4;

/// Steps taken: BSP, job steps; ASP, steps of all trainers together.
pub(crate) fn total_steps(
    checkpoints: &Checkpoints,
    work: &JobWork,
    fleet: &Fleet,
    ctx: &Context,
) -> u64 {
    match ctx.is_bsp() {
        // An evaluation has no job steps; its frontier stays at 0.
        true => checkpoints.steps_before.saturating_add(work.frontier().0),
        false => fleet.steps(),
    }
}

/// Least time over which the rate of training is taken, ms.
fn rate_ms(ctx: &Context) -> u64 {
    RATE_BEATS * ctx.limits().heartbeat_ms
}

impl Checkpoints {
    /// BSP: a step that no shard has applied yet when the order arrives.
    pub(super) fn step_ahead(&self, work: &JobWork, missed_step_tries: u32, ctx: &Context) -> Step {
        let probable = work.probable_frontier(ctx).0;
        let rate = work.steps_per_second().unwrap_or(0.0);
        let ahead = AHEAD_MIN.max((rate * AHEAD_MS / 1000.0) as u64)
            << (2 * missed_step_tries.min(TRIES_MAX));
        let soonest = probable.saturating_add(ahead);
        let is_due = self.open.as_ref().is_some_and(|cut: &Cut| cut.reason == CutReason::Due);
        match ctx.config().spec.checkpoint.every {
            // The step it is due at, unless that has passed.
            Every::Steps(_) if missed_step_tries == 0 && is_due => {
                Step(soonest.max(self.next_steps.saturating_sub(self.steps_before)))
            }
            _ => Step(soonest),
        }
    }

    /// Sets when the next periodic cut is due. `working`: trainers work on the phase.
    pub(crate) fn plan_next(
        &mut self,
        gave_up: bool,
        working: bool,
        work: &JobWork,
        fleet: &Fleet,
        ctx: &mut Context,
    ) {
        self.count_cost(work, fleet, ctx);
        match self.every(ctx) {
            Every::Auto => {}
            Every::Time(period) => {
                let wait_ms = if gave_up { period.0.min(AGAIN_MS) } else { period.0 };
                ctx.set_deadline(Purpose::CutDue, ctx.now() + wait_ms);
            }
            Every::Passes(_) if gave_up => ctx.set_deadline(Purpose::CutDue, ctx.now() + AGAIN_MS),
            Every::Passes(_) => {}
            Every::Steps(steps) => {
                self.next_steps = total_steps(self, work, fleet, ctx).saturating_add(steps);
                self.check_steps(working, work, fleet, ctx);
            }
        }
    }

    /// Sets when the next periodic cut is due after a rollback.
    ///
    /// A rollback does not push it back: where pservers are lost more often than cuts are due, no cut would ever be taken and
    /// nothing be saved. But a cut at once would save again what is already saved, so one that was due or under way waits for a
    /// part of its period.
    pub(crate) fn plan_after_rollback(
        &mut self,
        working: bool,
        work: &JobWork,
        fleet: &Fleet,
        ctx: &mut Context,
    ) {
        self.auto.rolled_back(ctx.now());
        let every = self.every(ctx);
        let mut overdue = std::mem::take(&mut self.overdue);
        if self.wanted == Some(CutReason::Due) && !matches!(every, Every::Passes(_)) {
            // It came while shards were loading.
            self.unwant();
            overdue = true;
        }
        match every {
            Every::Auto | Every::Passes(_) => {}
            Every::Time(period) => {
                let soonest = ctx.now() + (period.0 / OVERDUE_SHARE).min(AGAIN_MS);
                let due = match ctx.deadline(Purpose::CutDue) {
                    _ if overdue => soonest,
                    Some(at) => at.max(soonest),
                    None => ctx.now() + period.0,
                };
                ctx.set_deadline(Purpose::CutDue, due);
            }
            Every::Steps(steps) => {
                let total = total_steps(self, work, fleet, ctx);
                let soonest = total.saturating_add((steps / OVERDUE_SHARE).max(1));
                self.next_steps = if overdue {
                    soonest
                } else {
                    let due = self.next_steps.max(soonest);
                    due.min(total.saturating_add(steps))
                };
                self.check_steps(working, work, fleet, ctx);
            }
        }
    }

    /// `checkpoint.every` in steps: wants a cut when the step is near (BSP: named ahead) or reached (ASP).
    pub(crate) fn check_steps(
        &mut self,
        working: bool,
        work: &JobWork,
        fleet: &Fleet,
        ctx: &Context,
    ) {
        let by_steps = matches!(ctx.config().spec.checkpoint.every, Every::Steps(_));
        if !by_steps || self.open.is_some() || !working {
            return;
        }
        let near = match (work.has_lanes(), work.steps_per_second()) {
            // Two heartbeats ahead, so that the step has not passed when the next one comes.
            (true, Some(rate)) => (rate * 2.0 * ctx.limits().heartbeat_ms as f64 / 1000.0) as u64,
            // An unknown rate: a step that is named now may be hours away. It is named when it has passed.
            (true, None) | (false, _) => 0,
        };
        if total_steps(self, work, fleet, ctx).saturating_add(near) >= self.next_steps {
            self.want(CutReason::Due);
        }
    }

    /// A phase has ended: a cut may be due. `training_is_over`: no phase of training follows.
    pub(crate) fn phase_ended(
        &mut self,
        ended: &PhaseEnded,
        training_is_over: bool,
        ctx: &Context,
    ) {
        let config = ctx.config();
        let spec = &config.spec;
        if job_phase(spec, ended.phase.next()).is_some_and(|next| next.trains == Some(0)) {
            // It was a measurement.
            self.want(CutReason::First);
        }
        let trained = ended.kind.and_then(|phase| phase.trains).filter(|_| !training_is_over);
        let Some(pass) = trained else { return };
        // After the last pass at most an evaluation follows, and then the final cut.
        let is_due = match spec.checkpoint.every {
            // A phase may be over before a heartbeat reports that the step is near.
            Every::Steps(_) => ctx.is_bsp() && self.steps_before >= self.next_steps,
            Every::Passes(n) => pass + 1 < spec.data.passes && (pass + 1).is_multiple_of(n),
            Every::Auto | Every::Time(_) => false,
        };
        if is_due {
            self.want(CutReason::Due);
        }
    }

    /// `checkpoint.every`, with the period of the moment for `"auto"`. Reports a new one.
    fn every(&mut self, ctx: &mut Context) -> Every {
        let every = ctx.config().spec.checkpoint.every;
        if every != Every::Auto {
            return every;
        }
        let (period, is_new) = self.auto.at(ctx.now());
        let every = Every::Time(DurationMs(period.period_ms));
        if is_new {
            ctx.notice(JobEvent::CheckpointPeriod(period));
        }
        every
    }

    /// A checkpoint begins: what it costs is measured by the rate of training.
    pub(crate) fn save_begins(&mut self, work: &JobWork, fleet: &Fleet, ctx: &Context) {
        let steps = total_steps(self, work, fleet, ctx);
        self.save_loss.save_begins(ctx.now(), steps, rate_ms(ctx));
    }

    /// Counts the cost of a checkpoint that was committed since the last call.
    fn count_cost(&mut self, work: &JobWork, fleet: &Fleet, ctx: &mut Context) {
        let Some(took_ms) = self.saved_ms.take() else { return };
        let steps = total_steps(self, work, fleet, ctx);
        let lost = self.save_loss.save_ended(ctx.now(), steps, rate_ms(ctx));
        if self.base_manifest().is_some_and(|base| base.initial) {
            // Later ones are saved with values.
            return;
        }
        // Where the rate is not known, the whole time counts.
        self.auto.saved(took_ms as f64 * lost.unwrap_or(1.0), took_ms);
        let is_limited = ctx.config().spec.checkpoint.bandwidth.is_some();
        if let Some(lost) = lost.filter(|lost| *lost > SLOWED_MAX)
            && !is_limited
            && !std::mem::replace(&mut self.slowness_reported, true)
        {
            let percent = (lost * 100.0).round();
            ctx.warn(WarningCode::SaveSlowsTraining, format!(
                "training was {percent} % slower while a checkpoint was saved for {:.1} s; checkpoint.bandwidth limits how fast savers write, checkpoint.every how often",
                took_ms as f64 / 1000.0
            ));
        }
    }

    /// Counts the steps of a phase that has ended.
    pub(crate) fn count_phase(&mut self, ended: &PhaseEnded, ctx: &Context) {
        self.save_loss.interrupted();
        self.steps_before = self.steps_before.saturating_add(ended.steps.unwrap_or_default().0);
        self.ended = Some((ctx.epoch(), ended.phase, ended.steps));
    }
}
