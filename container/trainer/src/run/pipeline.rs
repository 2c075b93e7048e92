//! The steps of one lane or task in progress: read, prepared, pulled, computed, pushed, in order.
//!
//! ```text
//! feed ─▶ items ─▶ prepare, pull ─▶ flying ─▶ (values arrived) compute ─▶ push ─▶ (acknowledged) reached
//! ```
//!
//! A lane has one step flying, since the next pull waits for this push. A task has [`TASK_STEPS_FLYING`], so that the next
//! values are transferred while this step is computed. A pipeline does not handle epochs: the training loop drops all
//! pipelines at a new epoch.

use std::collections::VecDeque;

use heddle_client::gradient::Gradient;
use heddle_client::machine::{PullAt, PullId, PullItem, StepPush, Unit};
use heddle_input::BadCount;
use heddle_protocol::failure::Failure;
use heddle_protocol::ids::{Step, TaskId};
use heddle_protocol::metrics::{LossSum, TaskMetrics};

use crate::algorithm::{Algorithm, StepWork};
use crate::feed::{Feed, FeedItem};

/// Steps of a task whose values are pulled ahead: this one, and the next.
const TASK_STEPS_FLYING: usize = 2;
/// Most steps of a task that are pushed and not acknowledged. A round trip takes about as long as a step; more steps only
/// raise the memory and the work that is repeated after a failure.
const TASK_STEPS_UNREACHED: u64 = 8;

/// One lane's or one task's steps.
#[derive(Debug)]
pub(super) struct Pipeline {
    pub(super) unit: Unit,
    feed: Feed,
    items: VecDeque<FeedItem>,
    flying: VecDeque<Flying>,
    /// The step that is pushed next.
    pub(super) next: Step,
    /// The first step that not every shard has acknowledged.
    pub(super) reached: Step,
    /// Nothing is pushed (evaluation).
    read_only: bool,
    /// Metrics of the task that is being computed.
    metrics: TaskMetrics,
    /// No more steps are computed.
    ended: bool,
}

#[derive(Debug)]
struct Flying {
    work: Box<StepWork>,
    end: bool,
    waits_for: Option<PullId>,
}

/// An action that a pipeline requests.
#[derive(Debug)]
pub(super) enum PipelineAction {
    /// Pull these for the step.
    Pull(PullAt, Vec<PullItem>),
    /// Push this step. Records and losses are for the heartbeat.
    Push(StepPush),
    /// A step was computed; it pushes nothing.
    Computed,
    /// A task was read and computed to its end.
    TaskEnd { task: TaskId, steps: u64, metrics: Box<TaskMetrics> },
    /// A task cannot be read.
    Failed { task: TaskId, retryable: bool, failure: Failure },
}

impl Pipeline {
    pub(super) fn new(unit: Unit, feed: Feed, start: Step, read_only: bool) -> Self {
        Self {
            unit,
            feed,
            items: VecDeque::new(),
            flying: VecDeque::new(),
            next: start,
            reached: start,
            read_only,
            metrics: TaskMetrics::default(),
            ended: false,
        }
    }

    pub(super) fn feed(&self) -> &Feed {
        &self.feed
    }

    /// Takes an item of the feed.
    pub(super) fn item(&mut self, item: FeedItem) {
        self.items.push_back(item);
    }

    /// Notes that every shard has acknowledged this step.
    pub(super) fn reached(&mut self, step: Step) {
        self.reached = self.reached.max(step.next());
    }

    /// Sets the id of the last requested pull.
    pub(super) fn pulling(&mut self, pull: PullId) {
        if let Some(last) = self.flying.back_mut() {
            last.waits_for = Some(pull);
        }
    }

    /// Takes the values of a pull. Returns whether this pipeline requested it.
    pub(super) fn pulled(&mut self, pull: PullId, items: &mut Vec<PullItem>) -> bool {
        let Some(flying) = self.flying.iter_mut().find(|flying| flying.waits_for == Some(pull))
        else {
            return false;
        };
        flying.work.pulls = std::mem::take(items);
        flying.waits_for = None;
        true
    }

    /// The next action that is possible now. The caller repeats the call until it returns `None`.
    pub(super) fn next_action(&mut self, algorithm: &mut dyn Algorithm) -> Option<PipelineAction> {
        // Prepare first, so that its values are transferred while the step before is computed.
        if let Some(want) = self.prepare(algorithm) {
            return Some(want);
        }
        if self.flying.front().is_some_and(|flying| flying.waits_for.is_none()) && self.may_push() {
            return self.compute(algorithm);
        }
        if self.flying.is_empty() && !matches!(self.items.front(), Some(FeedItem::Step { .. })) {
            return self.between_steps();
        }
        None
    }

    fn prepare(&mut self, algorithm: &mut dyn Algorithm) -> Option<PipelineAction> {
        let most = match self.unit {
            Unit::Lane(_) => 1,
            Unit::Task(_) => TASK_STEPS_FLYING,
        };
        if self.flying.len() >= most || !matches!(self.items.front(), Some(FeedItem::Step { .. })) {
            return None;
        }
        let Some(FeedItem::Step { step, mut work, end }) = self.items.pop_front() else {
            return None;
        };
        debug_assert_eq!(step, self.next.0 + self.flying.len() as u64, "feeds count steps on");
        algorithm.prepare(&mut work);
        let pulls = std::mem::take(&mut work.pulls);
        self.flying.push_back(Flying { work, end, waits_for: None });
        if pulls.is_empty() {
            return None;
        }
        let at = match self.unit {
            Unit::Lane(lane) => PullAt::Before(lane, Step(step)),
            Unit::Task(task) => PullAt::Step(task, Step(step)),
        };
        Some(PipelineAction::Pull(at, pulls))
    }

    /// Whether the next step may be pushed. A lane's pull is answered only when its step before is applied, but a step
    /// that pulls nothing has no such guard.
    fn may_push(&self) -> bool {
        match self.unit {
            Unit::Lane(_) => {
                self.reached == self.next
                    || self.flying.front().is_some_and(|f| !f.work.pulls.is_empty())
            }
            Unit::Task(_) => self.next.0 - self.reached.0 < TASK_STEPS_UNREACHED,
        }
    }

    fn compute(&mut self, algorithm: &mut dyn Algorithm) -> Option<PipelineAction> {
        let Flying { mut work, end, .. } = self.flying.pop_front()?;
        // The step's own sum, whatever steps of the task were computed here before it.
        let before = std::mem::take(&mut self.metrics.loss_sum);
        algorithm.compute(&mut work, &mut self.metrics);
        let loss = self.metrics.loss_sum;
        self.metrics.loss_sum += before;
        let rows = work.batch.rows() as u32;
        let gradient = std::mem::take(&mut work.gradient);
        self.feed.give_back(work);
        let step = self.next;
        self.next = step.next();
        if self.read_only {
            self.reached = self.next;
            return Some(PipelineAction::Computed);
        }
        self.ended |= end;
        let loss = LossSum::new(loss);
        Some(PipelineAction::Push(StepPush { step, gradient, rows, loss, end }))
    }

    fn between_steps(&mut self) -> Option<PipelineAction> {
        match self.items.pop_front()? {
            FeedItem::TaskEnd { task, steps, bad } => {
                let BadCount { records, examples, negatives } = bad;
                let mut metrics = Box::new(std::mem::take(&mut self.metrics));
                metrics.bad_records = records;
                metrics.bad_examples = examples;
                metrics.negatives = negatives;
                Some(PipelineAction::TaskEnd { task, steps, metrics })
            }
            FeedItem::TaskFailed { task, retryable, failure } => {
                self.ended = true;
                Some(PipelineAction::Failed { task, retryable, failure })
            }
            // A lane must push its end; without another step, in an empty one.
            FeedItem::Empty if matches!(self.unit, Unit::Lane(_)) && !self.ended => {
                self.ended = true;
                let step = self.next;
                self.next = step.next();
                Some(PipelineAction::Push(StepPush {
                    step,
                    gradient: Gradient::default(),
                    rows: 0,
                    loss: LossSum::default(),
                    end: true,
                }))
            }
            FeedItem::Empty => None,
            // Excluded by the caller.
            FeedItem::Step { .. } => None,
        }
    }

    /// The task of the step that the next action prepares or computes, if it does.
    pub(super) fn task_ahead(&self) -> Option<TaskId> {
        match (self.flying.front(), self.items.front()) {
            (Some(flying), _) => Some(flying.work.task),
            (None, Some(FeedItem::Step { work, .. })) => Some(work.task),
            (None, _) => None,
        }
    }

    /// Losses and records of the present task so far, for the heartbeat.
    pub(super) fn metrics(&self) -> &TaskMetrics {
        &self.metrics
    }
}
