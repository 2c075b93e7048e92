//! SSP: the clock of this trainer, and the numbers of its pulls.
//!
//! ```text
//!          a task has steps to come        every shard has answered
//! NoTask ──────────────────────────▶ Asking ──────────────────────▶ Counted
//!    ▲                                 │                               │
//!    └─────────────────────────────────┴───────────────────────────────┘ no task has
//! ```
//!
//! Steps are numbered from 0 in each epoch and phase, in the order of their pulls (a step that pulls nothing: of its push).
//! The *clock* is the number up to which all steps are over: acknowledged by every shard, or given up with their task.
//! So every shard has applied all that the clock counts before it receives the clock.
//!
//! A trainer that begins or gets a task again asks every shard for the lowest clock. It starts at the largest answer, or at
//! its own clock if that is higher: from a lower one all others would have to wait for it. Its pulls wait for the start.
//! A trainer whose tasks have no step to come sends that it is not counted any more.
//!
//! A clock is sent on every open connection and has no reply. It is not kept: a connection that opens gets the present clock
//! before anything else.
//!
//! Where shards have backups, a promoted copy waits for a clock of each trainer, also of those that are not counted. So every
//! connection that opens gets one, and all open ones with each new map.

use std::collections::VecDeque;

use heddle_protocol::frame::{Header, Kind};
use heddle_protocol::ids::{Step, TaskId};

use super::context::MachineContext;
use super::in_flight::RequestPurpose;
use super::request::{PullId, PullItem};
use crate::gradient::Payload;

/// The clock of this trainer. It does nothing in phases without clocks.
#[derive(Debug, Default)]
pub(super) struct TrainerClock {
    is_on: bool,
    shards_move: bool,
    /// Steps before this number are over.
    clock: u64,
    /// Steps from number `clock` on, each over or not. The first is not over.
    steps: VecDeque<NumberedStep>,
    state: ClockState,
    /// Pulls that wait for the start.
    waiting: Vec<StepPull>,
    /// Number of the last question to the shards.
    asked: u64,
    /// The last clock that was sent.
    sent: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ClockState {
    /// Not counted.
    #[default]
    NoTask,
    /// Shards were asked for the lowest clock.
    Asking { missing: usize, start: u64 },
    /// Shards count this trainer.
    Counted,
}

#[derive(Debug)]
struct NumberedStep {
    task: TaskId,
    step: Step,
    is_over: bool,
}

/// A pull of a task's step.
#[derive(Debug)]
pub(super) struct StepPull {
    pub(super) task: TaskId,
    pub(super) step: Step,
    pub(super) pull: PullId,
    pub(super) items: Vec<PullItem>,
}

impl TrainerClock {
    /// A clock before the first phase. `shards_move`: whether shards can get other primaries during an epoch.
    pub(super) fn new(shards_move: bool) -> Self {
        Self { shards_move, ..Self::default() }
    }

    /// A new epoch or phase begins.
    pub(super) fn begin(&mut self, is_on: bool) {
        let Self { asked, shards_move, .. } = *self;
        *self = Self { is_on, asked, shards_move, ..Self::default() };
    }

    /// Shards may have other places.
    pub(super) fn placed(&mut self, context: &mut MachineContext) {
        if self.is_on && self.shards_move {
            self.send(context);
        }
    }

    /// Whether pulls of tasks have numbers.
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// The number of a pull. None: it is kept until the start is known.
    pub(super) fn number(&mut self, pull: StepPull) -> Option<(u64, StepPull)> {
        if self.state != ClockState::Counted {
            self.waiting.push(pull);
            return None;
        }
        let number = self.clock + self.steps.len() as u64;
        self.add(pull.task, pull.step);
        Some((number, pull))
    }

    fn add(&mut self, task: TaskId, step: Step) {
        self.steps.push_back(NumberedStep { task, step, is_over: false });
    }

    /// A step is pushed. It gets a number if it has pulled nothing.
    pub(super) fn pushed(&mut self, task: TaskId, step: Step) {
        let known = self.steps.iter().any(|known| (known.task, known.step) == (task, step));
        if self.is_on && !known {
            self.add(task, step);
        }
    }

    /// Every shard has acknowledged a step.
    pub(super) fn reached(&mut self, task: TaskId, step: Step) {
        self.over(|known| (known.task, known.step) == (task, step));
    }

    /// A task is not held any more: nothing of its steps is sent from now on.
    pub(super) fn released(&mut self, task: TaskId) {
        self.waiting.retain(|pull| pull.task != task);
        self.over(|known| known.task == task);
    }

    fn over(&mut self, which: impl Fn(&NumberedStep) -> bool) {
        for step in self.steps.iter_mut().filter(|step| which(step)) {
            step.is_over = true;
        }
        while self.steps.front().is_some_and(|step| step.is_over) {
            self.steps.pop_front();
            self.clock += 1;
        }
    }

    /// Sends what has changed. `has_steps`: whether a task is held that has steps to come.
    pub(super) fn settle(&mut self, has_steps: bool, context: &mut MachineContext) {
        match (self.state, has_steps) {
            (ClockState::NoTask, true) if self.is_on => self.ask(context),
            (ClockState::Counted, false) => {
                self.state = ClockState::NoTask;
                self.send(context);
            }
            (ClockState::Counted, true) if self.clock > self.sent => self.send(context),
            // The answers to come are of no use.
            (ClockState::Asking { .. }, false) => self.state = ClockState::NoTask,
            (ClockState::NoTask | ClockState::Asking { .. } | ClockState::Counted, _) => {}
        }
    }

    fn ask(&mut self, context: &mut MachineContext) {
        self.asked += 1;
        self.state = ClockState::Asking { missing: context.shard_count(), start: self.clock };
        let mut header = context.header(Kind::ClockQuery);
        for shard in context.shards() {
            header.shard = shard;
            let purpose = RequestPurpose::ClockQuery { asked: self.asked };
            context.requests.send(header, Payload::none(), purpose, None);
        }
    }

    /// A shard has answered a question. Returns the pulls that waited, after the last answer.
    pub(super) fn answered(
        &mut self,
        asked: u64,
        lowest: u64,
        context: &mut MachineContext,
    ) -> Vec<StepPull> {
        let ClockState::Asking { missing, start } = &mut self.state else {
            return Vec::new();
        };
        if asked != self.asked {
            return Vec::new();
        }
        *missing -= 1;
        *start = (*start).max(lowest);
        if *missing > 0 {
            return Vec::new();
        }
        self.clock = self.clock.max(*start);
        self.state = ClockState::Counted;
        self.send(context);
        std::mem::take(&mut self.waiting)
    }

    fn send(&mut self, context: &mut MachineContext) {
        self.sent = self.clock;
        if let Some(header) = self.header(context) {
            context.requests.send_clock(header);
        }
    }

    /// The frame with the present clock, once the start is known or if shards have backups.
    fn header(&self, context: &MachineContext) -> Option<Header> {
        let era = context.era.filter(|_| self.is_on)?;
        let has_task = match self.state {
            ClockState::NoTask => false,
            ClockState::Asking { .. } if self.shards_move => false,
            ClockState::Asking { .. } => return None,
            ClockState::Counted => true,
        };
        Some(Header::clock(era.epoch, era.phase, self.clock, has_task))
    }

    /// The frame that a connection gets when it opens.
    pub(super) fn repeated(&self, context: &MachineContext) -> Option<Header> {
        self.header(context).filter(|_| self.shards_move || self.state == ClockState::Counted)
    }
}
