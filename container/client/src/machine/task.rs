//! ASP: the tasks that this client holds and how far each is acknowledged.
//!
//! A task's steps are pushed one after the other without waiting, up to [`UNREACHED_STEPS_MAX`]. A step counts
//! when every shard has acknowledged all of it; the task is finished when, after its last step, every shard has
//! marked it done. Only that may be reported: whoever starts where a report ends leaves nothing out.

use std::collections::VecDeque;
use std::sync::Arc;

use heddle_protocol::control::{TaskGrant, TaskPosition};
use heddle_protocol::frame::Kind;
use heddle_protocol::ids::{Step, TaskAttempt, TaskId};
use heddle_protocol::mutation::Mutation;

use super::in_flight::Purpose;
use super::{Era, Event, Machine, StepPush, Unit};
use crate::error::RequestError;
use crate::gradient::Gradient;

/// Steps of one task or lane that may be under way. With more than two or three a step's time no longer hides behind the
/// round trip; the bound keeps a loop that never listens from filling memory.
pub const UNREACHED_STEPS_MAX: usize = 64;

/// A task that is held.
#[derive(Debug)]
pub(crate) struct HeldTask {
    attempt: TaskAttempt,
    /// The step that is pushed next.
    next: Step,
    /// Pushed and not acknowledged everywhere, oldest first.
    under_way: VecDeque<UnderWay>,
    end: TaskEnd,
}

#[derive(Debug)]
struct UnderWay {
    step: Step,
    missing: usize,
    gradient: Arc<Gradient>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskEnd {
    /// More steps may come.
    Open,
    /// No more steps; `TaskDone` goes when all are acknowledged.
    Wanted,
    /// `TaskDone` is out.
    Sent { missing: usize },
}

impl HeldTask {
    pub(crate) fn position(&self, task: TaskId) -> TaskPosition {
        let oldest = self.under_way.front();
        let step = oldest
            .filter(|_| !Mutation::SentIsReached.is_on())
            .map_or(self.next, |oldest| oldest.step);
        TaskPosition { task, attempt: self.attempt, step }
    }
}

impl Machine {
    /// Takes a task on, so that positions name it from now on. One that is held already with this attempt
    /// stays as it is; with another attempt it starts anew.
    pub fn hold_task(&mut self, era: Era, grant: TaskGrant) {
        if !self.is_now(era)
            || self.tasks.get(&grant.task).is_some_and(|held| held.attempt == grant.attempt)
        {
            return;
        }
        self.requests.forget(Unit::Task(grant.task));
        let state = HeldTask {
            attempt: grant.attempt,
            next: grant.start,
            under_way: VecDeque::new(),
            end: TaskEnd::Open,
        };
        self.tasks.insert(grant.task, state);
    }

    /// Gives a task back, wherever it stands.
    pub fn drop_task(&mut self, era: Era, task: TaskId) {
        if self.is_now(era) && self.tasks.remove(&task).is_some() {
            self.requests.forget(Unit::Task(task));
        }
    }

    /// No more steps of this task come; answered by [`Event::Finished`]. A task without any step is fine.
    pub fn task_done(&mut self, era: Era, task: TaskId) {
        if !self.is_now(era) {
            return;
        }
        if let Some(state) = self.tasks.get_mut(&task)
            && state.end == TaskEnd::Open
        {
            state.end = TaskEnd::Wanted;
            self.end_task(era, task);
        }
    }

    pub(crate) fn push_task(&mut self, era: Era, task: TaskId, push: StepPush) {
        let Some(state) = self.tasks.get(&task).filter(|state| state.end == TaskEnd::Open) else {
            return;
        };
        let error = if push.step != state.next {
            RequestError::Step { task, got: push.step, expected: state.next }
        } else if state.under_way.len() >= UNREACHED_STEPS_MAX {
            RequestError::TooManySteps(Unit::Task(task))
        } else {
            let gradient = Arc::new(push.gradient);
            let missing = self.send_parts(era, Unit::Task(task), push.step, &gradient, push.rows);
            if let Some(state) = self.tasks.get_mut(&task) {
                state.next = push.step.next();
                state.under_way.push_back(UnderWay { step: push.step, missing, gradient });
            }
            return;
        };
        self.fault(error.into());
    }

    pub(crate) fn part_acknowledged(&mut self, task: TaskId, step: Step) {
        let Some(state) = self.tasks.get_mut(&task) else {
            return;
        };
        if let Some(pushed) = state.under_way.iter_mut().find(|pushed| pushed.step == step) {
            pushed.missing -= 1;
        }
        // In order: a step counts once all before it do.
        while state.under_way.front().is_some_and(|oldest| oldest.missing == 0)
            && let Some(reached) = state.under_way.pop_front()
        {
            self.events.push_back(Event::Reached {
                unit: Unit::Task(task),
                step: reached.step,
                cut: self.cut,
                gradient: Arc::try_unwrap(reached.gradient).unwrap_or_default(),
            });
        }
        if let Some(era) = self.era {
            self.end_task(era, task);
        }
    }

    fn end_task(&mut self, era: Era, task: TaskId) {
        let Some(state) = self.tasks.get_mut(&task) else {
            return;
        };
        if state.end != TaskEnd::Wanted || !state.under_way.is_empty() {
            return;
        }
        state.end = TaskEnd::Sent { missing: self.layout.shards() as usize };
        let step = state.next;
        let mut header = self.header(era, Kind::TaskDone);
        header.unit = task.0;
        header.step = step;
        for shard in self.shards() {
            header.shard = shard;
            self.requests.ask(
                header,
                crate::gradient::Payload::none(),
                Purpose::TaskDone,
                Some(Unit::Task(task)),
            );
        }
    }

    pub(crate) fn task_done_acknowledged(&mut self, task: TaskId) {
        let Some(state) = self.tasks.get_mut(&task) else {
            return;
        };
        if let TaskEnd::Sent { missing } = &mut state.end {
            *missing -= 1;
            if *missing == 0 {
                let attempt = state.attempt;
                self.tasks.remove(&task);
                self.events.push_back(Event::Finished { task, attempt, cut: self.cut });
            }
        }
    }
}
