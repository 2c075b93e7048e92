//! ASP and evaluation: who works on which task.
//!
//! ```text
//!            grant                     finished by whoever is first
//!   todo ───────────▶ pending ───────────────────────────▶ done
//!    ▲                   │ every holder gone, or it reported an error
//!    └───────────────────┘  at the first step that not every shard acknowledged
//! ```
//!
//! **Leases.** A trainer holds so many tasks ahead that they last for `lease_ms` at its own pace: it works on
//! while no ApplicationMaster answers. Towards the end of a phase it gets fewer, so that nobody sits on work
//! that others could do.
//!
//! **Twins.** When nothing is todo, an idle trainer is handed a task that somebody else holds: first one that
//! waits in the longest queue, then one that is late. Shards take each part from whoever is first, so nothing counts
//! twice; the first who finishes ends the task. A task has two holders at the most.
//!
//! **Late** means: computing for longer than three times what nine of ten tasks took, and than `late_ms`. Only the
//! trainer's own computing time counts: waiting for others would make the fast ones look slow.
//!
//! **Blame.** A task is blamed only for errors that a trainer reports on it, never for a trainer's death:
//! random kills that hit one task three times say nothing about it.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::control::{TaskGrant, TaskPosition};
use heddle_protocol::ids::{Generation, Member, Step, TaskAttempt, TaskId};

use crate::config::Limits;
use crate::time::Mono;

/// Attempts of a generation start above this multiple: a new ApplicationMaster cannot know how often an earlier
/// one handed a task out, and a delayed report must not be taken for one of its own.
const ATTEMPTS_PER_GENERATION: u32 = 10_000;
/// Tasks that a trainer holds at the most, however short they are.
const HELD_MAX: usize = 64;
/// Tasks held while the pace is unknown: one in work and one ahead.
const HELD_FIRST: usize = 2;
/// Task durations kept for the quantile.
const SAMPLES: usize = 128;

/// One hand-out that is not over.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Grant {
    member: Member,
    attempt: TaskAttempt,
    /// The member's own computing time when it was first seen to be at this task.
    begun_compute_ms: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct Task {
    /// The first step that is not known to be acknowledged by every shard.
    step: Step,
    done: bool,
    grants: Vec<Grant>,
    attempts: u32,
    errors: u32,
}

/// What a trainer has done in this phase.
#[derive(Clone, Debug, Default)]
struct Pace {
    first_grant: Mono,
    finished: u64,
    compute_ms: u64,
}

/// The tasks of one phase.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    tasks: Vec<Task>,
    /// The order in which todo tasks are handed out.
    order: Vec<u32>,
    attempts_floor: u32,
    done: u32,
    paces: BTreeMap<Member, Pace>,
    /// Own computing times of finished tasks, the latest last.
    samples: Vec<u64>,
}

/// Where every task stands: what a manifest says and what a restored queue starts from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Tasks that are done.
    pub done: BTreeSet<TaskId>,
    /// First unacknowledged steps above 0 of those that are not.
    pub at: BTreeMap<TaskId, Step>,
}

impl Standing {
    /// Every step of the task below this one is acknowledged by every shard.
    pub(crate) fn reached(&mut self, task: TaskId, step: Step) {
        if step > Step(0) && !self.done.contains(&task) {
            let at = self.at.entry(task).or_default();
            *at = step.max(*at);
        }
    }

    /// Every step of the task is.
    pub(crate) fn finished(&mut self, task: TaskId) {
        self.at.remove(&task);
        self.done.insert(task);
    }
}

impl Queue {
    /// All `count` tasks todo, to be handed out in `order`.
    pub(crate) fn new(count: u32, order: Vec<u32>, generation: Generation) -> Self {
        let order = if order.len() == count as usize {
            order
        } else {
            (0..count).collect()
        };
        Self {
            tasks: vec![Task::default(); count as usize],
            order,
            attempts_floor: generation
                .0
                .saturating_sub(1)
                .saturating_mul(ATTEMPTS_PER_GENERATION),
            done: 0,
            paces: BTreeMap::new(),
            samples: Vec::new(),
        }
    }

    /// Takes over where tasks stand. Nobody holds any afterwards.
    pub(crate) fn restore(&mut self, standing: &Standing) {
        for task in &mut self.tasks {
            task.grants.clear();
            task.done = false;
            task.step = Step(0);
        }
        for (task, step) in &standing.at {
            if let Some(task) = self.tasks.get_mut(task.0 as usize) {
                task.step = *step;
            }
        }
        for task in &standing.done {
            if let Some(task) = self.tasks.get_mut(task.0 as usize) {
                task.done = true;
            }
        }
        self.count_done();
    }

    fn count_done(&mut self) {
        self.done = self.tasks.iter().map(|task| u32::from(task.done)).sum();
    }

    pub(crate) fn standing(&self) -> Standing {
        let mut standing = Standing::default();
        for (id, task) in (0..).map(TaskId).zip(&self.tasks) {
            if task.done {
                standing.done.insert(id);
            } else if task.step > Step(0) {
                standing.at.insert(id, task.step);
            }
        }
        standing
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done as usize == self.tasks.len()
    }

    /// Tasks done, and all.
    pub(crate) fn counts(&self) -> (u32, u32) {
        (self.done, self.tasks.len() as u32)
    }

    /// Tasks that a trainer holds, in no order that matters.
    pub(crate) fn held_by(&self, member: Member) -> Vec<TaskGrant> {
        let grants = (0..).map(TaskId).zip(&self.tasks).flat_map(|(id, task)| {
            task.grants
                .iter()
                .filter(move |grant| grant.member == member)
                .map(move |grant| TaskGrant {
                    task: id,
                    attempt: grant.attempt,
                    start: task.step,
                })
        });
        grants.collect()
    }

    fn held(&self, member: Member) -> usize {
        self.tasks
            .iter()
            .filter(|task| task.grants.iter().any(|grant| grant.member == member))
            .count()
    }

    fn todo(&self) -> usize {
        self.tasks
            .iter()
            .filter(|task| !task.done && task.grants.is_empty())
            .count()
    }

    /// Hands tasks to a trainer up to its lease. `trainers` share what is left.
    pub(crate) fn grant(
        &mut self,
        member: Member,
        trainers: usize,
        now: Mono,
        limits: &Limits,
    ) -> Vec<TaskGrant> {
        let mut grants = Vec::new();
        let todo = self.todo();
        let held = self.held(member);
        let share = todo.div_ceil(2 * trainers.max(1)).max(1);
        // With few tasks nobody gets a second one before everybody has one.
        let first = if todo > trainers { HELD_FIRST } else { 1 };
        let room = self
            .lease(member, now, limits)
            .min(held + share)
            .max(first)
            .saturating_sub(held);
        for id in self.order.clone() {
            if grants.len() >= room {
                break;
            }
            let task = &self.tasks[id as usize];
            if !task.done && task.grants.is_empty() {
                grants.push(self.hand(TaskId(id), member, now));
            }
        }
        if grants.is_empty() && held == 0 && todo == 0 {
            grants.extend(
                self.twin(member, limits)
                    .map(|task| self.hand(task, member, now)),
            );
        }
        grants
    }

    fn hand(&mut self, id: TaskId, member: Member, now: Mono) -> TaskGrant {
        let floor = self.attempts_floor;
        let task = &mut self.tasks[id.0 as usize];
        task.attempts = task.attempts.max(floor) + 1;
        let attempt = TaskAttempt(task.attempts);
        task.grants.push(Grant {
            member,
            attempt,
            begun_compute_ms: None,
        });
        self.paces.entry(member).or_insert(Pace {
            first_grant: now,
            ..Pace::default()
        });
        TaskGrant {
            task: id,
            attempt,
            start: task.step,
        }
    }

    /// How many tasks last a trainer for `lease_ms`.
    fn lease(&self, member: Member, now: Mono, limits: &Limits) -> usize {
        match self.paces.get(&member) {
            Some(pace) if pace.finished > 0 => {
                let each_ms = (now.since(pace.first_grant) / pace.finished).max(1);
                ((limits.lease_ms / each_ms) as usize).clamp(HELD_FIRST, HELD_MAX)
            }
            _ => HELD_FIRST,
        }
    }

    /// A task of somebody else that an idle trainer had better work on as well.
    fn twin(&self, idle: Member, limits: &Limits) -> Option<TaskId> {
        let single =
            |task: &&Task| !task.done && task.grants.len() == 1 && task.grants[0].member != idle;
        let mut queues: BTreeMap<Member, usize> = BTreeMap::new();
        for task in self.tasks.iter().filter(single) {
            *queues.entry(task.grants[0].member).or_default() += 1;
        }
        let (&member, &length) = queues.iter().max_by_key(|(_, length)| **length)?;
        let of = |member: Member| {
            let tasks = self
                .order
                .iter()
                .map(|id| (TaskId(*id), &self.tasks[*id as usize]));
            tasks.filter(move |(_, task)| single(task) && task.grants[0].member == member)
        };
        if length > 1 {
            // The one handed out last: it is worked on last.
            return of(member)
                .max_by_key(|(_, task)| {
                    (
                        task.step == Step(0),
                        task.grants[0].begun_compute_ms.is_none(),
                    )
                })
                .map(|(id, _)| id);
        }
        queues
            .keys()
            .flat_map(|member| of(*member))
            .find(|(_, task)| self.is_late(&task.grants[0], limits))
            .map(|(id, _)| id)
    }

    fn is_late(&self, grant: &Grant, limits: &Limits) -> bool {
        let compute_ms = self
            .paces
            .get(&grant.member)
            .map_or(0, |pace| pace.compute_ms);
        let Some(begun) = grant.begun_compute_ms else {
            return false;
        };
        let mut sorted = self.samples.clone();
        sorted.sort_unstable();
        let usual_ms = sorted.get(sorted.len() * 9 / 10).copied().unwrap_or(0);
        compute_ms.saturating_sub(begun) > limits.late_ms.max(usual_ms.saturating_mul(3))
    }

    /// A trainer's own computing time so far, from its heartbeat.
    pub(crate) fn computed(&mut self, member: Member, compute_ms: u64) {
        if let Some(pace) = self.paces.get_mut(&member) {
            pace.compute_ms = compute_ms;
        }
        // What it is at is what it has held longest; it began that no later than now.
        let mut oldest: Option<&mut Grant> = None;
        for grant in self
            .tasks
            .iter_mut()
            .flat_map(|task| &mut task.grants)
            .filter(|grant| grant.member == member)
        {
            if grant.begun_compute_ms.is_some() {
                return;
            }
            oldest.get_or_insert(grant);
        }
        if let Some(grant) = oldest {
            grant.begun_compute_ms = Some(compute_ms);
        }
    }

    /// Steps that every shard has acknowledged, as a trainer reports. Those of a hand-out that is over say
    /// nothing and are ignored.
    pub(crate) fn progress(&mut self, member: Member, positions: &[TaskPosition]) {
        for position in positions {
            let Some(task) = self.tasks.get_mut(position.task.0 as usize) else {
                continue;
            };
            let mut grants = task.grants.iter();
            if grants.any(|grant| grant.member == member && grant.attempt == position.attempt) {
                task.step = task.step.max(position.step);
            }
        }
    }

    /// A task's last step is acknowledged by every shard. False: the hand-out is over already, nothing is finished by it.
    pub(crate) fn finished(&mut self, member: Member, task: TaskId, attempt: TaskAttempt) -> bool {
        let Some(entry) = self.tasks.get_mut(task.0 as usize) else {
            return false;
        };
        let of = |grant: &&Grant| grant.member == member && grant.attempt == attempt;
        let Some(grant) = entry.grants.iter().find(of).cloned() else {
            return false;
        };
        entry.done = true;
        entry.grants.clear();
        self.done += 1;
        if let Some(pace) = self.paces.get_mut(&member) {
            pace.finished += 1;
            if let Some(begun) = grant.begun_compute_ms {
                if self.samples.len() == SAMPLES {
                    self.samples.remove(0);
                }
                self.samples.push(pace.compute_ms.saturating_sub(begun));
            }
        }
        true
    }

    /// Ends a hand-out without result: todo again, unless somebody else holds it too. False: it was over already.
    pub(crate) fn take_back(&mut self, member: Member, task: TaskId, attempt: TaskAttempt) -> bool {
        let Some(task) = self.tasks.get_mut(task.0 as usize) else {
            return false;
        };
        let before = task.grants.len();
        task.grants
            .retain(|grant| grant.member != member || grant.attempt != attempt);
        task.grants.len() < before
    }

    /// A trainer could not work on a task: back to todo. Returns how many errors the task has had; none if the
    /// hand-out is over.
    pub(crate) fn failed(
        &mut self,
        member: Member,
        task: TaskId,
        attempt: TaskAttempt,
    ) -> Option<u32> {
        if !self.take_back(member, task, attempt) {
            return None;
        }
        let task = self.tasks.get_mut(task.0 as usize)?;
        task.errors += 1;
        Some(task.errors)
    }

    /// A trainer is gone or has handed everything back: what it held is todo again, at the first step that not
    /// every shard acknowledged.
    pub(crate) fn release(&mut self, member: Member) {
        for task in &mut self.tasks {
            task.grants.retain(|grant| grant.member != member);
        }
        self.paces.remove(&member);
    }

    /// A trainer that an earlier attempt gave this task goes on with it.
    pub(crate) fn adopt(&mut self, member: Member, position: &TaskPosition, now: Mono) {
        let Some(task) = self.tasks.get_mut(position.task.0 as usize) else {
            return;
        };
        if task.done
            || task.grants.len() > 1
            || task.grants.iter().any(|grant| grant.member == member)
        {
            return;
        }
        task.attempts = task.attempts.max(position.attempt.0);
        task.grants.push(Grant {
            member,
            attempt: position.attempt,
            begun_compute_ms: None,
        });
        self.paces.entry(member).or_insert(Pace {
            first_grant: now,
            ..Pace::default()
        });
    }

    /// Whether a trainer's tasks are worth a look now and then because one may be late.
    pub(crate) fn may_be_late(&self) -> bool {
        !self.is_done() && self.todo() == 0
    }
}

#[cfg(test)]
mod tests;
