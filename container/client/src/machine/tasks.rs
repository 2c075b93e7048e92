//! ASP: the tasks that this client holds, and how far shards have acknowledged each.
//!
//! A task's steps are sent one after the other without waiting, up to [`UNREACHED_STEPS_MAX`]. A step counts when every
//! shard has acknowledged all of it. The task is finished when, after its last step, every shard has marked it as done.
//! Only acknowledged steps are reported, so a successor that starts where a report ends omits nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use heddle_protocol::control::{TaskGrant, TaskPosition};
use heddle_protocol::frame::Kind;
use heddle_protocol::ids::{Step, TaskAttempt, TaskId};
use heddle_protocol::mutation::Mutation;

use super::clock::TrainerClock;
use super::context::MachineContext;
use super::event::ClientEvent;
use super::in_flight::RequestPurpose;
use super::request::StepPush;
use super::unit::Unit;
use crate::error::RequestError;
use crate::gradient::Gradient;

/// Steps of one task or lane that may be in flight. Two or three hide a step's time behind the round trip; the limit keeps
/// a loop that ignores acknowledgements from filling the memory.
pub const UNREACHED_STEPS_MAX: usize = 64;

/// All tasks that this client holds.
#[derive(Debug, Default)]
pub(super) struct Tasks(BTreeMap<TaskId, HeldTask>);

#[derive(Debug)]
struct HeldTask {
    attempt: TaskAttempt,
    /// The step that is pushed next.
    next: Step,
    /// Steps that some shard has not acknowledged, oldest first.
    in_flight: VecDeque<StepInFlight>,
    end: TaskEnd,
}

#[derive(Debug)]
struct StepInFlight {
    step: Step,
    missing: usize,
    gradient: Arc<Gradient>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskEnd {
    /// More steps may come.
    Open,
    /// No more steps; `TaskDone` is sent when all are acknowledged.
    Wanted,
    /// `TaskDone` is in flight.
    Sent { missing: usize },
}

impl HeldTask {
    fn position(&self, task: TaskId) -> TaskPosition {
        let oldest = self.in_flight.front();
        let step = oldest
            .filter(|_| !Mutation::SentIsReached.is_on())
            .map_or(self.next, |oldest| oldest.step);
        TaskPosition { task, attempt: self.attempt, step }
    }

    /// Sends `TaskDone` once it is wanted and all steps are acknowledged.
    fn send_end(&mut self, task: TaskId, context: &mut MachineContext) {
        if self.end != TaskEnd::Wanted || !self.in_flight.is_empty() {
            return;
        }
        self.end = TaskEnd::Sent { missing: context.shard_count() };
        let mut header = context.header(Kind::TaskDone);
        header.unit = task.0;
        header.step = self.next;
        context.send_to_all(header, &RequestPurpose::TaskDone, Unit::Task(task));
    }
}

impl Tasks {
    /// Unfinished tasks with the first step that some shard has not acknowledged, by task.
    pub(super) fn positions(&self) -> Vec<TaskPosition> {
        self.0.iter().map(|(&task, held)| held.position(task)).collect()
    }

    /// Whether this attempt of a task is held.
    pub(super) fn has_attempt(&self, grant: TaskGrant) -> bool {
        self.0.get(&grant.task).is_some_and(|held| held.attempt == grant.attempt)
    }

    /// Whether a task is held.
    pub(super) fn holds(&self, task: TaskId) -> bool {
        self.0.contains_key(&task)
    }

    /// Whether a task is held that has steps to come or in flight.
    pub(super) fn have_steps(&self) -> bool {
        self.0.values().any(|held| held.end == TaskEnd::Open || !held.in_flight.is_empty())
    }

    /// See [`super::DataRequest::HoldTask`]. The caller has released another attempt of the task.
    pub(super) fn hold(&mut self, grant: TaskGrant) {
        let held = HeldTask {
            attempt: grant.attempt,
            next: grant.start,
            in_flight: VecDeque::new(),
            end: TaskEnd::Open,
        };
        self.0.insert(grant.task, held);
    }

    /// See [`super::DataRequest::ReleaseTask`].
    pub(super) fn release(&mut self, task: TaskId, context: &mut MachineContext) {
        if self.0.remove(&task).is_some() {
            context.requests.drop_unit(Unit::Task(task));
        }
    }

    /// See [`super::DataRequest::EndTask`].
    pub(super) fn end(&mut self, task: TaskId, context: &mut MachineContext) {
        if let Some(held) = self.0.get_mut(&task).filter(|held| held.end == TaskEnd::Open) {
            held.end = TaskEnd::Wanted;
            held.send_end(task, context);
        }
    }

    /// Takes a checked gradient.
    pub(super) fn push(
        &mut self,
        task: TaskId,
        push: StepPush,
        clock: &mut TrainerClock,
        context: &mut MachineContext,
    ) {
        let Some(held) = self.0.get_mut(&task).filter(|held| held.end == TaskEnd::Open) else {
            return;
        };
        if push.step != held.next {
            let error = RequestError::Step { task, got: push.step, expected: held.next };
            return context.fault(error.into());
        }
        if held.in_flight.len() >= UNREACHED_STEPS_MAX {
            return context.fault(RequestError::TooManySteps(Unit::Task(task)).into());
        }
        let gradient = Arc::new(push.gradient);
        let mut header = context.header(Kind::Push);
        header.unit = task.0;
        header.step = push.step;
        header.rows = push.rows;
        clock.pushed(task, push.step);
        let missing = context.send_parts(header, Unit::Task(task), &gradient);
        held.next = push.step.next();
        held.in_flight.push_back(StepInFlight { step: push.step, missing, gradient });
    }

    /// A shard has acknowledged a part of a step.
    pub(super) fn part_acknowledged(
        &mut self,
        task: TaskId,
        step: Step,
        clock: &mut TrainerClock,
        context: &mut MachineContext,
    ) {
        let Some(held) = self.0.get_mut(&task) else {
            debug_assert!(false, "a task is dropped together with its frames");
            return;
        };
        let pushed = held.in_flight.iter_mut().find(|pushed| pushed.step == step);
        debug_assert!(pushed.is_some(), "a step is in flight until all its parts are acknowledged");
        if let Some(pushed) = pushed {
            pushed.missing -= 1;
        }
        // In order: a step counts once all before it do.
        while held.in_flight.front().is_some_and(|oldest| oldest.missing == 0)
            && let Some(reached) = held.in_flight.pop_front()
        {
            clock.reached(task, reached.step);
            context.events.push_back(ClientEvent::Reached {
                unit: Unit::Task(task),
                step: reached.step,
                cut: context.cut,
                gradient: Arc::try_unwrap(reached.gradient).unwrap_or_default(),
            });
        }
        held.send_end(task, context);
    }

    /// A shard has marked the task as done.
    pub(super) fn end_acknowledged(&mut self, task: TaskId, context: &mut MachineContext) {
        let Some(HeldTask { attempt, next, end: TaskEnd::Sent { missing }, .. }) =
            self.0.get_mut(&task)
        else {
            debug_assert!(false, "`TaskDone` was sent");
            return;
        };
        *missing -= 1;
        if *missing == 0 {
            let (attempt, steps) = (*attempt, next.0);
            self.0.remove(&task);
            let cut = context.cut;
            context.events.push_back(ClientEvent::Finished { task, attempt, steps, cut });
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
