//! How much of the phase is done, and how many records are left to the end of the last pass. For display alone.
//!
//! A file does not have its number of records. **Rule:** a phase reads as many records as an earlier one over the same data, or
//! else as many for each task as the tasks of it that are over. BSP counts by its steps, so that a rollback is seen at
//! once; the other modes by tasks, and by the records that trainers report between two ends of tasks.

use heddle_protocol::job_spec::phases_after;

use super::JobWork;
use super::phases::PhaseWork;
use crate::context::Context;

impl JobWork {
    /// Records of the present phase, as far as they can be estimated.
    fn rows_of_phase(&self, ctx: &Context) -> Option<f64> {
        let training = self.phase.kind?.reads_training_data;
        let before = match training {
            true => self.passes.iter().map(|(_, trained)| trained.rows).max(),
            false => self.evaluations.last().map(|(_, scores)| scores.rows),
        };
        let by_tasks = || {
            let tasks = ctx.config().plan.tasks(training).len();
            Some(self.phase.metrics.rows_per_task()? * tasks as f64)
        };
        before.map(|rows| rows as f64).or_else(by_tasks).filter(|rows| *rows >= 1.0)
    }

    /// Share of the present phase that is done, 0 to 1. `rows`: that trainers report for it.
    pub(crate) fn done_share(&self, rows: u64, ctx: &Context) -> Option<f64> {
        let all = self.rows_of_phase(ctx);
        let share = match &self.phase.work {
            PhaseWork::Lanes(_) => {
                let step = ctx.config().spec.effective_batch()?;
                self.frontier().0 as f64 * step as f64 / all?
            }
            PhaseWork::Queue(queue) => {
                let (done, tasks) = queue.counts();
                let by_rows = all.map_or(0.0, |all| rows as f64 / all);
                by_rows.max(f64::from(done) / f64::from(tasks.max(1)))
            }
        };
        Some(share.clamp(0.0, 1.0))
    }

    /// Records from here to the end of the last pass. `done`: the share of the present phase.
    pub(crate) fn rows_left(&self, done: f64, ctx: &Context) -> Option<f64> {
        let (here, config) = (self.rows_of_phase(ctx)?, ctx.config());
        let rows_after = |training_data: bool| {
            let phases = f64::from(phases_after(&config.spec, self.phase.no, training_data));
            let known = match training_data {
                _ if phases == 0.0 => Some(0.0),
                _ if training_data == self.phase.reads_training_data() => Some(here),
                true => self.passes.iter().map(|(_, trained)| trained.rows as f64).reduce(f64::max),
                false => {
                    Some(self.evaluations.last().map_or(0.0, |(_, scores)| scores.rows as f64))
                }
            };
            Some(phases * known?)
        };
        let after = rows_after(true)? + rows_after(false)?;
        Some(here * (1.0 - done) + after)
    }
}
