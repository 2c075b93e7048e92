//! ASP and evaluation: which trainer works on which task.
//!
//! ```text
//!            grant                     finished by the first holder
//!   todo ───────────▶ pending ───────────────────────────▶ done
//!    ▲                   │ every holder gone, or it reported an error
//!    └───────────────────┘  at the first step that not every shard acknowledged
//! ```
//!
//! A task that is todo can be **set aside** after its errors: the phase goes on without it.
//!
//! **Leases.** A trainer holds tasks ahead that last for `lease_ms` at its own rate: it works on
//! while no ApplicationMaster answers. Towards the end of a phase it gets fewer, so that no trainer holds work
//! that others could do.
//!
//! **Speculative attempts.** A trainer without a task gets one that another trainer holds and that is late; when nothing is
//! todo, else one that waits in the longest queue. Shards take the first copy of each part, so nothing counts
//! twice; the first trainer that finishes ends the task. A task has two holders at the most. The other holder is ordered
//! to stop ([`super::losers`]).
//!
//! When a task is late: see [`speculation`].
//!
//! **Failures.** A task is blamed for errors that a trainer reports on it. Random kills that hit one task three times say
//! nothing about it: see [`task_failures`].

mod paces;
mod progress;
mod speculation;
mod task_failures;

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::control::{TaskGrant, TaskHandOut, TaskPosition};
use heddle_protocol::ids::{Generation, Member, Step, TaskAttempt, TaskId};

use super::locality::TaskLocality;
use crate::config::Limits;
use crate::time::MonotonicMs;
use task_failures::TaskFailures;

use paces::FinishedPaces;
pub(crate) use progress::QueueProgress;
pub(crate) use task_failures::TaskErrors;

/// Attempts of a generation start above this multiple: a new ApplicationMaster cannot know how often an earlier
/// one handed a task out, and a delayed report must not be taken for one of its own.
const ATTEMPTS_PER_GENERATION: u32 = 10_000;
/// Tasks that a trainer holds at the most, however short they are.
const HELD_MAX: usize = 64;
/// Tasks held while the rate is unknown: one in work and one ahead.
const HELD_FIRST: usize = 2;

/// One hand-out that is not over.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Grant {
    member: Member,
    attempt: TaskAttempt,
}

#[derive(Clone, Debug, Default)]
struct Task {
    /// The first step that is not known to be acknowledged by every shard.
    step: Step,
    done: bool,
    set_aside: bool,
    grants: Vec<Grant>,
    attempts: u32,
    /// Absent for nearly all tasks.
    failures: Option<Box<TaskFailures>>,
}

/// What a trainer has done in this phase.
#[derive(Clone, Debug, Default)]
struct TrainerRecord {
    first_grant: MonotonicMs,
    finished: u64,
    /// Its own computing time for a record, ns; 0: not measured.
    record_ns: u64,
    /// Since when it has been slow; its key in [`Queue::slow`] is there as long.
    slow_since: Option<MonotonicMs>,
}

/// The tasks of one phase.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    tasks: Vec<Task>,
    /// The order in which tasks are handed out, and each task's place in it.
    order: Vec<u32>,
    places: Vec<u32>,
    /// Places of the tasks that no trainer holds and that are not done.
    todo: BTreeSet<u32>,
    /// By trainer, in the order of handing out.
    held: BTreeMap<Member, Vec<TaskId>>,
    /// By trainer: how many of the tasks near it were looked at.
    looked: BTreeMap<Member, usize>,
    attempts_floor: u32,
    done: u32,
    set_aside: u32,
    records: BTreeMap<Member, TrainerRecord>,
    /// Trainers by the number of tasks that they hold, those without any left out.
    by_load: BTreeSet<(usize, Member)>,
    /// Trainers that are slow, by their computing time for a record.
    slow: BTreeSet<(u64, Member)>,
    /// Late tasks that have a speculative attempt.
    speculative: BTreeSet<TaskId>,
    /// A task of the phase was late.
    had_overdue_task: bool,
    /// Computing times for a record of the trainers that finished tasks.
    paces: FinishedPaces,
}

impl Queue {
    /// All `count` tasks todo, to be handed out in `order`.
    pub(crate) fn new(count: u32, order: Vec<u32>, generation: Generation) -> Self {
        let order = if order.len() == count as usize { order } else { (0..count).collect() };
        let mut places = vec![0; count as usize];
        for (place, task) in (0..).zip(&order) {
            if let Some(entry) = places.get_mut(*task as usize) {
                *entry = place;
            }
        }
        Self {
            tasks: vec![Task::default(); count as usize],
            todo: (0..count).collect(),
            order,
            places,
            held: BTreeMap::new(),
            looked: BTreeMap::new(),
            attempts_floor: attempts_floor(generation),
            done: 0,
            set_aside: 0,
            records: BTreeMap::new(),
            by_load: BTreeSet::new(),
            slow: BTreeSet::new(),
            speculative: BTreeSet::new(),
            had_overdue_task: false,
            paces: FinishedPaces::default(),
        }
    }

    /// As a new queue of the same tasks in the same order, restored.
    pub(crate) fn begin_again(&mut self, generation: Generation, queue_progress: &QueueProgress) {
        self.attempts_floor = attempts_floor(generation);
        self.records.clear();
        self.paces = FinishedPaces::default();
        for task in &mut self.tasks {
            (task.attempts, task.failures) = (0, None);
        }
        self.restore(queue_progress);
    }

    /// Takes over where tasks stand. No trainer holds any afterwards.
    pub(crate) fn restore(&mut self, queue_progress: &QueueProgress) {
        self.held.clear();
        self.looked.clear();
        self.by_load.clear();
        self.slow.clear();
        self.speculative.clear();
        for record in self.records.values_mut() {
            record.slow_since = None;
        }
        for (id, task) in (0..).map(TaskId).zip(&mut self.tasks) {
            task.grants = Vec::new();
            task.done = queue_progress.done.contains(&id);
            task.set_aside = queue_progress.set_aside.contains(&id);
            task.step = queue_progress.at.get(&id).copied().unwrap_or_default();
        }
        self.done = self.tasks.iter().map(|task| u32::from(task.done)).sum();
        self.set_aside = self.tasks.iter().map(|task| u32::from(task.set_aside)).sum();
        let is_todo = |task: &u32| self.tasks.get(*task as usize).is_some_and(Task::is_left);
        self.todo = (0..)
            .zip(&self.order)
            .filter(|(_, task)| is_todo(task))
            .map(|(place, _)| place)
            .collect();
    }

    /// Where every task stands.
    pub(crate) fn positions(&self) -> QueueProgress {
        let mut queue_progress = QueueProgress::default();
        for (id, task) in (0..).map(TaskId).zip(&self.tasks) {
            if task.done {
                queue_progress.finished(id);
            } else if task.set_aside {
                queue_progress.set_aside.insert(id);
            } else {
                queue_progress.reached(id, task.step);
            }
        }
        queue_progress
    }

    pub(crate) fn is_done(&self) -> bool {
        (self.done + self.set_aside) as usize == self.tasks.len()
    }

    /// The order in which tasks are handed out.
    pub(crate) fn order(&self) -> &[u32] {
        &self.order
    }

    /// Tasks done, and all.
    pub(crate) fn counts(&self) -> (u32, u32) {
        (self.done, self.tasks.len() as u32)
    }

    fn task(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(id.0 as usize)
    }

    fn held(&self, member: Member) -> &[TaskId] {
        self.held.get(&member).map_or(&[], Vec::as_slice)
    }

    fn grant_of(&self, member: Member, id: TaskId) -> Option<&Grant> {
        self.task(id)?.grants.iter().find(|grant| grant.member == member)
    }

    /// Whether a trainer has this hand-out of a task.
    pub(crate) fn is_granted(&self, member: Member, hand_out: TaskHandOut) -> bool {
        let grant = self.grant_of(member, hand_out.task);
        grant.is_some_and(|grant| grant.attempt == hand_out.attempt)
    }

    /// Whether a trainer holds a task.
    pub(crate) fn holds(&self, member: Member) -> bool {
        !self.held(member).is_empty()
    }

    /// Tasks that a trainer holds, in the order in which they were handed out.
    pub(crate) fn held_by(&self, member: Member) -> Vec<TaskGrant> {
        let grant = |id: &TaskId| {
            let attempt = self.grant_of(member, *id)?.attempt;
            let start = self.task(*id)?.step;
            Some(TaskGrant { task: *id, attempt, start })
        };
        self.held(member).iter().filter_map(grant).collect()
    }

    /// Hands tasks to a trainer up to its lease, those `near` it first. `trainers` share what is left.
    pub(crate) fn grant(
        &mut self,
        member: Member,
        trainers: usize,
        near: TaskLocality<'_>,
        now: MonotonicMs,
        limits: &Limits,
    ) -> Vec<TaskGrant> {
        let (todo, held) = (self.todo.len(), self.held(member).len());
        let share = todo.div_ceil(2 * trainers.max(1)).max(1);
        // With few tasks no trainer gets a second one before every trainer has one.
        let first = if todo > trainers { HELD_FIRST } else { 1 };
        let room =
            self.lease(member, now, limits).min(held + share).max(first).saturating_sub(held);
        let late = if held == 0 { self.share_overdue_task(member, now, limits) } else { None };
        let room = room.saturating_sub(usize::from(late.is_some()));
        let next = self.next_for(member, room, near, trainers);
        let next = next.iter().filter_map(|place| self.order.get(*place as usize));
        let mut tasks: Vec<TaskId> =
            late.into_iter().chain(next.map(|task| TaskId(*task))).collect();
        if held == 0 && todo == 0 && late.is_none() {
            tasks.extend(self.longest_queue_task());
        }
        tasks.into_iter().filter_map(|task| self.hand(task, member, None, now)).collect()
    }

    /// Whether several trainers compute a task.
    pub(crate) fn is_speculative(&self, task: TaskId) -> bool {
        let task = self.tasks.get(task.0 as usize);
        task.is_some_and(|task| task.grants.len() > 1)
    }

    /// Places of the next tasks to be handed to a trainer: those on its host in their own order, then of its rack, then others.
    /// A task with an error on this trainer is left to the others while one of them has not tried it.
    fn next_for(
        &mut self,
        member: Member,
        room: usize,
        near: TaskLocality<'_>,
        trainers: usize,
    ) -> Vec<u32> {
        let mut next = Vec::new();
        if room > 0 && !near.host.is_empty() {
            // Where it stopped looking: what was handed out before that seldom comes back, and is found below if so.
            let from = self.looked.entry(member).or_default();
            while next.len() < room
                && let Some(task) = near.host.get(*from)
            {
                *from += 1;
                if let Some(place) = self.places.get(task.0 as usize)
                    && self.todo.contains(place)
                    && !failed_here(&self.tasks, *task, member, trainers)
                {
                    next.push(*place);
                }
            }
        }
        let task = |place: u32| self.order.get(place as usize).map(|task| TaskId(*task));
        let failed = |place: u32| {
            task(place).is_some_and(|task| failed_here(&self.tasks, task, member, trainers))
        };
        let others = self.todo.iter().copied();
        let others = others.filter(|place| !next.contains(place) && !failed(*place));
        let others = near.rack_first(others, room - next.len(), task);
        next.extend(others);
        next
    }

    /// Makes a trainer a holder of a task; `attempt`: of an earlier ApplicationMaster's numbering.
    fn hand(
        &mut self,
        id: TaskId,
        member: Member,
        attempt: Option<TaskAttempt>,
        now: MonotonicMs,
    ) -> Option<TaskGrant> {
        let floor = self.attempts_floor;
        let place = *self.places.get(id.0 as usize)?;
        let task = self.tasks.get_mut(id.0 as usize)?;
        task.attempts = match attempt {
            Some(attempt) => task.attempts.max(attempt.0),
            None => task.attempts.max(floor) + 1,
        };
        let attempt = attempt.unwrap_or(TaskAttempt(task.attempts));
        task.grants.push(Grant { member, attempt });
        let start = task.step;
        self.todo.remove(&place);
        let held = self.held.entry(member).or_default();
        held.push(id);
        let load = held.len();
        self.reload(member, load - 1, load);
        self.records
            .entry(member)
            .or_insert(TrainerRecord { first_grant: now, ..TrainerRecord::default() });
        Some(TaskGrant { task: id, attempt, start })
    }

    /// Takes a task from a holder; the last one leaves it todo, unless it is done.
    fn drop_grant(&mut self, id: TaskId, member: Member) {
        if let Some(held) = self.held.get_mut(&member) {
            let before = held.len();
            held.retain(|task| *task != id);
            let after = held.len();
            self.reload(member, before, after);
        }
        let place = self.places.get(id.0 as usize).copied();
        debug_assert!(place.is_some(), "a task that is held is a task of the phase");
        if let (Some(task), Some(place)) = (self.tasks.get_mut(id.0 as usize), place) {
            task.grants.retain(|grant| grant.member != member);
            if task.grants.len() < 2 {
                self.speculative.remove(&id);
            }
            if task.grants.is_empty() {
                // Its room goes too: a million tasks that are done would keep 160 MB.
                task.grants = Vec::new();
                if task.is_left() {
                    self.todo.insert(place);
                }
            }
        }
    }

    /// A trainer holds another number of tasks.
    fn reload(&mut self, member: Member, before: usize, after: usize) {
        if before != after {
            self.by_load.remove(&(before, member));
            if after > 0 {
                self.by_load.insert((after, member));
            }
        }
    }

    /// How many tasks last a trainer for `lease_ms`.
    fn lease(&self, member: Member, now: MonotonicMs, limits: &Limits) -> usize {
        match self.records.get(&member) {
            Some(record) if record.finished > 0 => {
                let each_ms = (now.since(record.first_grant) / record.finished).max(1);
                ((limits.lease_ms / each_ms) as usize).clamp(HELD_FIRST, HELD_MAX)
            }
            _ => HELD_FIRST,
        }
    }

    /// Steps that every shard has acknowledged, as a trainer reports. Reports about a hand-out that is over are ignored.
    pub(crate) fn progress(&mut self, member: Member, positions: &[TaskPosition]) {
        for position in positions {
            let current = self
                .grant_of(member, position.task)
                .is_some_and(|grant| grant.attempt == position.attempt);
            if let (true, Some(task)) = (current, self.tasks.get_mut(position.task.0 as usize)) {
                task.step = task.step.max(position.step);
            }
        }
    }

    /// Every shard has acknowledged the last step of a task. Returns its hand-outs, whose trainers have one task less now;
    /// `None` if this one is over already.
    pub(crate) fn finished(
        &mut self,
        member: Member,
        id: TaskId,
        attempt: TaskAttempt,
    ) -> Option<Vec<(Member, TaskAttempt)>> {
        self.grant_of(member, id).filter(|grant| grant.attempt == attempt)?;
        let task = self.tasks.get_mut(id.0 as usize)?;
        task.done = true;
        self.done += 1;
        let hand_outs: Vec<(Member, TaskAttempt)> =
            task.grants.iter().map(|grant| (grant.member, grant.attempt)).collect();
        for (holder, _) in &hand_outs {
            self.drop_grant(id, *holder);
        }
        if let Some(record) = self.records.get_mut(&member) {
            record.finished += 1;
            if record.record_ns > 0 {
                self.paces.add(record.record_ns);
            }
        }
        Some(hand_outs)
    }

    /// Ends a hand-out without result: todo again, unless another trainer holds it too. False: it was over already.
    pub(crate) fn take_back(&mut self, member: Member, id: TaskId, attempt: TaskAttempt) -> bool {
        let current = self.grant_of(member, id).is_some_and(|grant| grant.attempt == attempt);
        if current {
            self.drop_grant(id, member);
        }
        current
    }

    /// A trainer is gone or has handed back its tasks: they are todo again, at the first step that not every shard
    /// acknowledged.
    pub(crate) fn release(&mut self, member: Member) {
        for id in self.held(member).to_vec() {
            self.drop_grant(id, member);
        }
        self.held.remove(&member);
        self.looked.remove(&member);
        if let Some(record) = self.records.remove(&member)
            && record.slow_since.is_some()
        {
            self.slow.remove(&(record.record_ns, member));
        }
    }

    /// A trainer that an earlier attempt gave this task goes on with it.
    pub(crate) fn adopt(&mut self, member: Member, position: &TaskPosition, now: MonotonicMs) {
        let free =
            self.task(position.task).is_some_and(|task| task.is_left() && task.grants.len() < 2);
        if free && self.grant_of(member, position.task).is_none() {
            self.hand(position.task, member, Some(position.attempt), now);
        }
    }
}

/// Whether a task had an error on this trainer and not on each of the others.
fn failed_here(tasks: &[Task], task: TaskId, member: Member, trainers: usize) -> bool {
    let failures = tasks.get(task.0 as usize).and_then(|task| task.failures.as_deref());
    failures.is_some_and(|failures| failures.failed_on(member.slot, trainers))
}

/// Attempts of a generation are above this number.
fn attempts_floor(generation: Generation) -> u32 {
    generation.0.saturating_sub(1).saturating_mul(ATTEMPTS_PER_GENERATION)
}

#[cfg(test)]
mod tests;
