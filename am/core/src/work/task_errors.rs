//! Tasks that fail: tried again, then set aside within `data.failed-share`, or the end of the job.

use std::collections::BTreeMap;

use heddle_protocol::control::LongStep;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::failure::Failure;
use heddle_protocol::ids::{Member, PhaseNo, TaskAttempt, TaskId};
use heddle_protocol::job_spec::TaskShare;
use heddle_protocol::manifest::Manifest;
use heddle_protocol::mutation::Mutation;
use heddle_protocol::set_aside::{SET_ASIDE_MAX, SetAsideTask};
use heddle_protocol::view::WarningCode;

use super::JobWork;
use super::phases::PhaseWork;
use super::queue::TaskErrors;
use crate::context::Context;
use crate::failure::{JobFailure, exit_after_tries};
use crate::record::Record;

/// Tasks that phases before the present one went on without: those of the base, and those journaled since, unless a rollback
/// made them false.
pub(crate) fn known_set_aside(base: Option<&Manifest>, journal: &[Record]) -> Vec<SetAsideTask> {
    let mut known: BTreeMap<PhaseNo, Vec<SetAsideTask>> = BTreeMap::new();
    for record in journal {
        match record {
            Record::TasksSetAside { phase, tasks } => {
                known.insert(*phase, tasks.clone());
            }
            Record::Restore { phase, .. } => known.retain(|of, _| of < phase),
            _ => {}
        }
    }
    if let Some(base) = base {
        // It has all of the phases before its own.
        known.retain(|of, _| *of >= base.phase);
        for entry in base.progress.set_aside.iter().filter(|entry| entry.phase < base.phase) {
            known.entry(entry.phase).or_default().push(entry.clone());
        }
    }
    let all: Vec<SetAsideTask> = known.into_values().flatten().collect();
    let excess = all.len().saturating_sub(SET_ASIDE_MAX);
    all.into_iter().skip(excess).collect()
}

impl JobWork {
    /// Tasks that phases went on without, oldest first.
    pub(crate) fn set_aside(&self) -> &[SetAsideTask] {
        &self.set_aside
    }

    /// The phase is over: a successor needs to know what it lacks.
    pub(crate) fn record_set_aside(&self, ctx: &mut Context) {
        let may_lack = ctx.config().spec.data.failed_share != TaskShare(0) && !self.has_lanes();
        if !may_lack || Mutation::SetAsideForgotten.is_on() {
            return;
        }
        let tasks = self.set_aside_in_phase().cloned().collect();
        ctx.journal(Record::TasksSetAside { phase: self.phase.no, tasks });
    }

    /// Tasks that the present phase goes on without.
    fn set_aside_in_phase(&self) -> impl Iterator<Item = &SetAsideTask> {
        self.set_aside.iter().filter(|entry| entry.phase == self.phase.no)
    }

    /// A trainer could not compute a task. `retryable`: another try may help, as its storage failed. Returns whether the
    /// task can be dispatched again.
    ///
    /// # Errors
    /// The job ends with it.
    pub(crate) fn task_failed(
        &mut self,
        member: Member,
        task: TaskId,
        attempt: TaskAttempt,
        retryable: bool,
        failure: &Failure,
        ctx: &mut Context,
    ) -> Result<bool, JobFailure> {
        let error = &*failure.text;
        let code = match retryable {
            true => exit_after_tries(failure),
            false => failure.class.exit_code(),
        };
        if !retryable && ctx.config().spec.data.failed_share == TaskShare(0) {
            return Err(JobFailure::new(code, error));
        }
        let errors = match &mut self.phase.work {
            PhaseWork::Queue(queue) => queue.failed(member, task, attempt),
            // Its trainer has tried for minutes, and a lane's tasks cannot go to another: without this one every lane
            // would wait without end.
            PhaseWork::Lanes(_) => {
                let message = format!("task {task} cannot be read: {error}");
                return Err(JobFailure::new(code, message));
            }
        };
        let Some(errors) = errors else {
            return Ok(false);
        };
        if !retryable {
            self.leave_out(task, error, code, error.to_owned(), ctx)?;
        } else if is_at_fault(errors, ctx) {
            let message = format!("task {task} failed {} times, last: {error}", errors.errors);
            self.leave_out(task, error, code, message, ctx)?;
        } else {
            ctx.warn(
                WarningCode::TaskFailed,
                format!("task {task} failed on {}: {error}", member.slot),
            );
        }
        Ok(true)
    }

    /// A trainer's algorithm does not return from a step of this task.
    ///
    /// # Errors
    /// The job ends with it.
    pub(crate) fn task_stuck(
        &mut self,
        member: Member,
        step: LongStep,
        ctx: &mut Context,
    ) -> Result<(), JobFailure> {
        let LongStep { task, attempt, for_ms } = step;
        let errors = match &mut self.phase.work {
            PhaseWork::Queue(queue) => queue.failed(member, task, attempt),
            PhaseWork::Lanes(_) => {
                let errors = self.stuck_tasks.entry(task).or_default();
                *errors += 1;
                // A lane's tasks are its trainer's alone.
                Some(TaskErrors { errors: *errors, trainers: usize::MAX })
            }
        };
        let Some(errors) = errors else {
            return Ok(());
        };
        let seconds = for_ms / 1000;
        let error =
            format!("{} computed one step of it for {seconds} s (liveness.stuck)", member.slot);
        if is_at_fault(errors, ctx) {
            let message = format!("task {task} failed {} times, last: {error}", errors.errors);
            return self.leave_out(task, &error, ExitCode::JobFailed, message, ctx);
        }
        ctx.warn(
            WarningCode::TaskFailed,
            format!("task {task} failed on {}: {error}", member.slot),
        );
        Ok(())
    }

    /// A trainer's process has failed on this node, before its tasks are given to others. Returns the trainers, this one
    /// included, for whose deaths a task was to blame; it is set aside. Where `data.failed-share` allows none, no task is.
    ///
    /// # Errors
    /// The job ends with it.
    pub(crate) fn trainer_died(
        &mut self,
        member: Member,
        node: &str,
        ctx: &mut Context,
    ) -> Result<Vec<Member>, JobFailure> {
        let PhaseWork::Queue(queue) = &mut self.phase.work else {
            return Ok(Vec::new());
        };
        if ctx.config().spec.data.failed_share == TaskShare(0) {
            return Ok(Vec::new());
        }
        let Some((task, died)) = queue.died(member, node) else {
            return Ok(Vec::new());
        };
        queue.release(member);
        let error = format!("{} trainers in a row died at the same step of it", died.len());
        let message = format!("task {task}: {error}");
        self.leave_out(task, &error, ExitCode::JobFailed, message, ctx)?;
        Ok(died)
    }

    /// Sets a task aside, or ends the job with the message if the pass may lack no further one.
    fn leave_out(
        &mut self,
        task: TaskId,
        error: &str,
        code: ExitCode,
        message: String,
        ctx: &mut Context,
    ) -> Result<(), JobFailure> {
        let config = ctx.config();
        let share = config.spec.data.failed_share;
        let training = self.phase.reads_training_data();
        let PhaseWork::Queue(queue) = &mut self.phase.work else {
            return Err(JobFailure::new(code, message));
        };
        if queue.is_held(task) {
            // Another trainer computes it too, and may succeed.
            ctx.warn(WarningCode::TaskFailed, message);
            return Ok(());
        }
        let (before, all) = queue.left_out();
        if !share.allows(before + 1, all) {
            return Err(JobFailure::new(code, self.with_those_before(message, share, all)));
        }
        if !queue.set_aside(task) {
            return Ok(());
        }
        let range = config.plan.tasks(training).get(task.0 as usize);
        let file = range.and_then(|range| config.plan.files.get(range.file as usize));
        let entry = SetAsideTask {
            phase: self.phase.no,
            task,
            file: file.map(|file| file.url.clone()).unwrap_or_default(),
            start: range.map_or(0, |range| range.start),
            end: range.map_or(0, |range| range.end),
            error: error.to_owned(),
        };
        ctx.warn(
            WarningCode::TaskSetAside,
            format!("set aside, and tried again in the next pass: {entry}"),
        );
        if self.set_aside.len() == SET_ASIDE_MAX {
            self.set_aside.remove(0);
        }
        self.set_aside.push(entry);
        Ok(())
    }

    /// The message of the last failure, with the tasks of the phase that were set aside before it.
    fn with_those_before(&self, mut message: String, share: TaskShare, all: usize) -> String {
        let earlier: Vec<String> = self.set_aside_in_phase().map(ToString::to_string).collect();
        if share != TaskShare(0) {
            message.push_str(&format!(
                "; {} of {all} tasks of the pass failed, more than data.failed-share = {share}",
                earlier.len() + 1
            ));
        }
        if !earlier.is_empty() {
            message.push_str("; set aside before: ");
            message.push_str(&earlier.join("; "));
        }
        message
    }
}

/// Whether a task has had too many errors: `data.task-errors` on two trainers, on the only one, or twice as many.
fn is_at_fault(errors: TaskErrors, ctx: &Context) -> bool {
    let config = ctx.config();
    let limit = config.spec.data.task_errors;
    let by_several = errors.trainers > 1 || config.spec.trainers.max == 1;
    errors.errors >= limit && (by_several || errors.errors >= limit.saturating_mul(2))
}
