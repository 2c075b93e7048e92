//! A takeover: what the containers of an earlier attempt report, and where the job stands by their reports.
//!
//! **Taking over.** Surviving containers register again and report their state. If the primary of every shard is there, in the
//! epoch of the last rollback record, the job goes on where the shards are. Pservers and trainers get epoch and work again; those
//! that have it ignore it. Else (a shard is missing, a pserver is behind, or in an epoch that the journal lacks) there is a
//! rollback with an epoch of this generation. The restart of an ApplicationMaster is not a sign that a container died:
//! containers have `takeover_ms` to register. But the cluster lists the containers that live. When each of them has
//! registered, or is gone too, a missing one was lost before and is not waited for. (A list that a ResourceManager made
//! right after its own restart may lack one. That costs the work since the last checkpoint, and the container is refused.)
//!
//! The journal's views say which copies count; where shards do not move, its last epoch has their slots. Copies of containers
//! that did not come back leave the sets; if the primary is among them, a backup is promoted. There is a rollback only if a shard
//! has no copy left. What a primary reports may not be at its backups yet, and would be lost with it: positions are the lowest of
//! all copies that count.
//!
//! The phase is the lowest that any shard names: only when all had ended it was the next one begun. In ASP a task restarts at
//! the lowest step that a shard names (0 if a shard names none), never after it. It is done only if every shard marks it or
//! is in a later phase. Cut numbers, incarnations and attempts of tasks start above all of earlier generations, so that no
//! stale report can be taken for one of this attempt's.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::control::{PserverState, ReplicaState, Report, ShardState, TrainerState};
use heddle_protocol::ids::{CutId, Epoch, Member, PhaseNo, ShardId, Slot, Step, TaskId, Term};
use heddle_protocol::task_set::TaskSet;

use crate::action::{ConnectionId, ContainerName};
use crate::fleet::Fleet;
use crate::record::RecordedView;
use crate::stage::replicas::ViewList;
use crate::stage::shard_map::ShardMap;
use crate::work::queue::QueueProgress;

/// What the containers of an earlier attempt have reported so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Takeover {
    pservers: BTreeMap<Slot, Option<PserverState>>,
    trainers: BTreeMap<Slot, (Member, Option<TrainerState>)>,
    /// Their reports since, in order. A container has at most as much under way as it was given.
    reports: Vec<(ConnectionId, Report)>,
    timed_out: bool,
    /// Containers that had not registered at the last check. A check tests the last one and removes it once it has
    /// registered. None is added, so all checks together cost as much as one test of each.
    unidentified: Vec<ContainerName>,
    /// None: to be computed, since a pserver has registered or is lost. Each registration of a trainer reads it.
    there: Option<ReplicasThere>,
}

/// What the copies that have registered allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplicasThere {
    /// The primary of every shard is there.
    AllPrimaries,
    /// Every shard has a copy that can be promoted.
    Promotable,
    /// A shard lacks copies, or a copy follows a view that the journal lacks.
    Missing,
}

/// A copy with all rows, as its container has registered it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WholeCopy(ReplicaState);

impl WholeCopy {
    /// Whether the journal has its view.
    fn follows(self, view: &RecordedView) -> bool {
        (self.0.term, self.0.version) <= (view.term, view.version)
    }

    /// Whether it serves in this term.
    pub(crate) fn serves(self, term: Term) -> bool {
        self.0.primary && self.0.term == term
    }
}

impl Takeover {
    /// These containers of an earlier attempt may register.
    pub(crate) fn new(unidentified: Vec<ContainerName>) -> Self {
        Self { unidentified, ..Self::default() }
    }

    /// A pserver has registered.
    pub(crate) fn pserver_registered(&mut self, slot: Slot, held: Option<PserverState>) {
        self.pservers.insert(slot, held);
        self.there = None;
    }

    /// A trainer has registered. If a stale process came first, its tasks are dispatched again.
    pub(crate) fn trainer_registered(&mut self, member: Member, busy: Option<TrainerState>) {
        self.trainers.insert(member.slot, (member, busy));
    }

    /// Keeps a report about the work until it is known where the job stands; returns a report that need not wait. A report
    /// is sent once, and a container's registration does not repeat it. Reports of cuts, first steps and withdrawals wait too:
    /// each is compared with the epoch, the cut and the hand-outs when it is taken in, and a stale one is stale then as well.
    pub(crate) fn keep(&mut self, connection: ConnectionId, report: Report) -> Option<Report> {
        match report {
            Report::Shard { .. } | Report::Trainer(_) => {
                self.reports.push((connection, report));
                None
            }
            other => Some(other),
        }
    }

    /// Takes out the reports that were kept.
    pub(crate) fn take_reports(&mut self) -> Vec<(ConnectionId, Report)> {
        std::mem::take(&mut self.reports)
    }

    /// A container is gone.
    pub(crate) fn lost(&mut self, slot: Slot) {
        self.pservers.remove(&slot);
        self.there = None;
        self.trainers.remove(&slot);
    }

    /// Containers that have not registered by now are considered lost.
    pub(crate) fn time_out(&mut self) {
        self.timed_out = true;
    }

    pub(crate) fn has_timed_out(&self) -> bool {
        self.timed_out
    }

    /// Whether a container of an earlier attempt has not registered and may still do so.
    pub(crate) fn waits_for_containers(&mut self, fleet: &Fleet) -> bool {
        while let Some(container) = self.unidentified.last() {
            if fleet.may_register(container) {
                return true;
            }
            self.unidentified.pop();
        }
        false
    }

    /// Whether every pserver that holds shards has registered.
    pub(crate) fn has_all_pservers(&self, map: &ShardMap) -> bool {
        self.pservers.len() >= map.slots().len() && self.missing(map).next().is_none()
    }

    /// Slots that hold shards and have not registered.
    pub(crate) fn missing<'a>(&'a self, map: &'a ShardMap) -> impl Iterator<Item = Slot> + 'a {
        map.slots().filter(|slot| !self.pservers.contains_key(slot))
    }

    /// Whether the earlier attempt had dispatched work: a trainer has some, a shard has taken some, or there was a rollback.
    /// `phase`, `step`: of the checkpoint that a rollback returns to.
    pub(crate) fn had_begun(&self, epoch: Epoch, phase: PhaseNo, step: Step) -> bool {
        let moved = |state: &ShardState| {
            (state.phase, state.step) > (phase, step) || state.ended || !state.tasks.is_empty()
        };
        let mut held = self.pservers.values().flatten();
        epoch.count > 0
            || self.trainers.values().any(|(_, busy)| busy.is_some())
            || held.any(|held| held.shards.iter().any(moved))
    }

    /// What the copies allow that have registered in this epoch and that the views have.
    pub(crate) fn copies_there(
        &mut self,
        views: &ViewList,
        epoch: Epoch,
        fleet: &Fleet,
    ) -> ReplicasThere {
        let there = self.there.unwrap_or_else(|| self.look_for_copies(views, epoch, fleet));
        self.there = Some(there);
        there
    }

    fn look_for_copies(&self, views: &ViewList, epoch: Epoch, fleet: &Fleet) -> ReplicasThere {
        let mut there = ReplicasThere::AllPrimaries;
        for view in views.iter() {
            let whole = |member: &Member| self.whole_copy(*member, view.shard, epoch, fleet);
            let mut copies = view.in_sync.iter().filter_map(whole).peekable();
            let is_lost = copies.peek().is_none();
            if is_lost || copies.any(|copy| !copy.follows(view)) {
                return ReplicasThere::Missing;
            }
            if whole(&view.primary).is_none() {
                there = ReplicasThere::Promotable;
            }
        }
        there
    }

    /// Shards all of whose copies that count are missing, ascending.
    pub(crate) fn without_copy(
        &self,
        views: &ViewList,
        epoch: Epoch,
        fleet: &Fleet,
    ) -> Vec<ShardId> {
        let is_lost = |view: &&RecordedView| {
            let whole = |member: &Member| self.whole_copy(*member, view.shard, epoch, fleet);
            view.in_sync.iter().filter_map(whole).next().is_none()
        };
        views.iter().filter(is_lost).map(|view| view.shard).collect()
    }

    /// The copy of a shard that a container has registered with, if it is whole and in this epoch.
    pub(crate) fn whole_copy(
        &self,
        member: Member,
        shard: ShardId,
        epoch: Epoch,
        fleet: &Fleet,
    ) -> Option<WholeCopy> {
        fleet.member(member)?;
        let replica = self.copy(member.slot, shard, epoch)?.replica;
        replica.whole.then_some(WholeCopy(replica))
    }

    /// Trainers that work in this phase of the epoch.
    pub(crate) fn busy(&self, epoch: Epoch, phase: PhaseNo) -> Vec<(Member, &TrainerState)> {
        let all = self.trainers.values();
        all.filter_map(|(member, busy)| Some((*member, busy.as_ref()?)))
            .filter(|(_, busy)| busy.epoch == epoch && busy.phase == phase)
            .collect()
    }

    /// Trainers of this epoch: they were members of the job.
    pub(crate) fn members(&self, epoch: Epoch) -> impl Iterator<Item = Member> {
        let in_epoch = move |busy: &TrainerState| busy.epoch == epoch;
        let all = self.trainers.values();
        all.filter(move |(_, busy)| busy.as_ref().is_some_and(in_epoch)).map(|(member, _)| *member)
    }

    /// The highest cut that each pserver has received.
    pub(crate) fn received_cuts(&self) -> impl Iterator<Item = (Slot, CutId)> {
        self.pservers.iter().filter_map(|(slot, held)| Some((*slot, held.as_ref()?.cut)))
    }

    /// The copy of a shard that the container in a slot has reported in this epoch.
    pub(crate) fn copy(&self, slot: Slot, shard: ShardId, epoch: Epoch) -> Option<&ShardState> {
        let held = self.pservers.get(&slot)?.as_ref().filter(|held| held.epoch == epoch)?;
        held.shards.iter().find(|state| state.shard == shard)
    }

    /// ASP: the positions of the tasks of a phase, by the copies that `counts`.
    pub(crate) fn positions(
        &self,
        phase: PhaseNo,
        counts: impl Fn(Slot, ShardId) -> bool,
    ) -> QueueProgress {
        let in_phase: Vec<PserverProgress<'_>> = self
            .pservers
            .iter()
            .filter_map(|(slot, held)| {
                let held = held.as_ref()?;
                let is_here =
                    |state: &&ShardState| state.phase == phase && counts(*slot, state.shard);
                let shards: Vec<_> = held.shards.iter().filter(is_here).collect();
                (!shards.is_empty()).then_some(PserverProgress { done: &held.done, shards })
            })
            .collect();
        positions_of(&in_phase)
    }
}

/// What a pserver reported about its shards that serve the phase.
struct PserverProgress<'a> {
    /// Tasks that all of its shards mark done.
    done: &'a TaskSet,
    shards: Vec<&'a ShardState>,
}

impl PserverProgress<'_> {
    fn done_on_all(&self) -> TaskSet {
        let mut own = self.shards.iter().map(|state| &state.done);
        let first = own.next().cloned().unwrap_or_default();
        let own = own.fold(first, |both, done| both.intersection(done));
        self.done.union(&own)
    }

    /// The lowest step of a task that a shard names, 0 where a shard names none. A shard that marks the task done has all of
    /// it and does not hold the others back.
    fn lowest(&self, task: TaskId) -> Option<Step> {
        let step = |state: &&ShardState| {
            let at = state.tasks.binary_search_by_key(&task, |mark| mark.task);
            at.map_or(Step(0), |at| state.tasks[at].step)
        };
        let is_open = |state: &&&ShardState| !state.done.contains(task);
        let open = self.shards.iter().filter(is_open);
        open.filter(|_| !self.done.contains(task)).map(step).min()
    }
}

/// Where ASP tasks restart: at the lowest step that a shard names; done if every shard marks it.
fn positions_of(pservers: &[PserverProgress<'_>]) -> QueueProgress {
    let mut done = pservers.iter().map(PserverProgress::done_on_all);
    let first = done.next().unwrap_or_default();
    let done = done.fold(first, |both, done| both.intersection(&done));
    let mut positions = QueueProgress::default();
    done.iter().for_each(|task| positions.finished(task));
    // A task that no shard has begun without ending it is at its first step wherever it is not done.
    let shards = pservers.iter().flat_map(|pserver| &pserver.shards);
    let begun: BTreeSet<TaskId> =
        shards.flat_map(|state| &state.tasks).map(|position| position.task).collect();
    for task in begun {
        let lowest = pservers.iter().filter_map(|pserver| pserver.lowest(task)).min();
        positions.reached(task, lowest.unwrap_or_default());
    }
    positions
}
