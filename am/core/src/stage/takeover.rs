//! Starting: from nothing, from a checkpoint, or beside containers that an earlier attempt left running.
//!
//! **Taking over.** Surviving containers register again and say where they are. If every shard is held, all in the epoch of the
//! last rollback record, the job goes on where they are; they are told epoch and work again, and who has them ignores
//! it. Else (a shard is missing, a pserver is behind, or in an epoch that the journal lacks) there is a rollback with an
//! epoch of this generation. An AM's restart says nothing about anybody's death: containers have `takeover_ms` to come.
//! But the cluster lists those that live: once each of them has said who it is, or is gone too, who is missing was
//! lost before and is not waited for. (A list that a ResourceManager made right after its own restart may lack one.
//! That costs the work since the last checkpoint, and whoever it lacked is refused when it comes.)
//!
//! The phase is the lowest that any shard names: only when all had ended it was the next one begun. In ASP a task restarts at
//! the lowest step that a shard names (0 if one knows none), never after it, and is done only if every shard marks
//! it or is in a later phase. Cut numbers, incarnations and attempts of tasks start above all of earlier
//! generations, so that no late report can be taken for one of this attempt's.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::control::{Command, PserverState, Report, ShardState, TrainerState};
use heddle_protocol::ids::{CutId, Member, PhaseNo, Role, Slot, Step, TaskId};
use heddle_protocol::spec::{PhaseKind, phase_kind};
use heddle_protocol::task_set::TaskSet;
use heddle_protocol::view::{CheckpointView, EvaluationView, JobState};

use crate::action::{Action, Checkpoint, ConnectionId, ContainerId, Outcome};
use crate::context::deadlines::Purpose;
use crate::core::{Core, JobStage};
use crate::event::{StartupState, SurvivingContainer};
use crate::fleet::slots::{ContainerInfo, Slots};
use crate::record::Record;
use crate::stage::shard_map::ShardMap;
use crate::work::phases::{NextStep, PhaseState, Work};
use crate::work::queue::QueueProgress;

/// Once all shards are there, how long to wait for trainers: several heartbeats.
const TRAINERS_MS: u64 = 10_000;

/// What the containers of an earlier attempt have said so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Takeover {
    pservers: BTreeMap<Slot, Option<PserverState>>,
    trainers: BTreeMap<Slot, (Member, Option<TrainerState>)>,
    /// What they reported since, in order. A container has at most as much under way as it was given.
    kept: Vec<(ConnectionId, Report)>,
    patience_is_over: bool,
    /// Containers that had not said who they are when last looked at. Only the last is looked at, and none comes back
    /// that has been taken off, so all looks together cost as much as one at each.
    unidentified: Vec<ContainerId>,
    /// Every shard is held; none: to be looked up, since a pserver has come or gone. It is asked with each trainer's
    /// registration.
    has_all_shards: Option<bool>,
}

impl Takeover {
    /// A pserver registered.
    pub(crate) fn heard(&mut self, slot: Slot, held: Option<PserverState>) {
        self.pservers.insert(slot, held);
        self.has_all_shards = None;
    }

    /// A trainer registered.
    pub(crate) fn met(&mut self, member: Member, busy: Option<TrainerState>) {
        // A stale process may have come first: its tasks are handed out anew.
        self.trainers.insert(member.slot, (member, busy));
    }

    /// Keeps a report about the work until it is known where the job stands; gives back what need not wait. It is
    /// said once, and what a container said when it registered does not have it.
    pub(crate) fn keep(&mut self, connection: ConnectionId, report: Report) -> Option<Report> {
        match report {
            Report::PhaseEnded { .. }
            | Report::Progress { .. }
            | Report::TaskFinished { .. }
            | Report::TaskSteps { .. }
            | Report::TaskFailed { .. }
            | Report::LaneFenced { .. }
            | Report::Drained { .. } => {
                self.kept.push((connection, report));
                None
            }
            other => Some(other),
        }
    }

    /// A container is gone.
    pub(crate) fn gone(&mut self, slot: Slot) {
        self.pservers.remove(&slot);
        self.has_all_shards = None;
        self.trainers.remove(&slot);
    }
}

pub(crate) fn checkpoint_view(checkpoint: &Checkpoint, took_ms: u64) -> CheckpointView {
    let manifest = &checkpoint.manifest;
    CheckpointView {
        cut: manifest.cut,
        phase: manifest.phase,
        step: manifest.step(),
        at_ms: manifest.at_ms,
        took_ms,
        bytes: manifest.bytes(),
        dir: checkpoint.dir.clone(),
    }
}

impl Core {
    pub(crate) fn recovered(&mut self, recovered: StartupState) {
        if !matches!(self.stage, JobStage::New) {
            return;
        }
        let StartupState { attempt, generation, journal, base, damaged, checkpoints, kept } =
            recovered;
        (self.attempt, self.generation) = (attempt, generation);
        self.cluster_heard = self.now.mono;
        let finished = journal.iter().rev().find_map(|record| match record {
            Record::Outcome(outcome) if outcome.state == JobState::Finished => {
                Some(outcome.clone())
            }
            _ => None,
        });
        if let Some(outcome) = finished {
            // The work is done; only the goodbye was lost.
            self.release_all(kept);
            if let Some(base) = &base {
                self.figures_before = base.manifest.progress;
                self.statistics.go_on(base.manifest.progress.bad_records);
            }
            self.base = base;
            self.evaluations = self.known_evaluations(&journal);
            return self.finished_before(outcome);
        }
        let spec = self.config.spec.clone();
        self.slots = Slots::new(spec.pservers.count, spec.trainers.max, generation);
        if let Some(trainers) = self.scaled_before(&journal) {
            self.trainers_wanted = trainers;
        }
        self.set_wanted();
        self.checkpoints =
            checkpoints.iter().map(|checkpoint| checkpoint_view(checkpoint, 0)).collect();
        if let Some(base) = &base {
            self.figures_before = base.manifest.progress;
            self.statistics.go_on(base.manifest.progress.bad_records);
            self.task_steps = base.manifest.task_steps.clone();
        }
        self.base = base;
        self.evaluations = self.known_evaluations(&journal);
        self.out.journal(Record::Claim {
            attempt,
            generation,
            base: self.base.as_ref().map(|base| base.manifest.cut),
            at_ms: self.now.wall_ms,
        });
        self.say_started();
        if attempt.0 > 1 {
            self.open_am_recovery();
        }
        for damaged in damaged {
            self.checkpoint_damaged(damaged.cut, damaged.dir, damaged.error);
        }
        let last = journal.iter().rev().find_map(|record| match record {
            Record::Restore { epoch, holders, .. } => Some((*epoch, holders.clone())),
            _ => None,
        });
        match last {
            Some((epoch, holders))
                if !kept.is_empty()
                    && holders.len() == spec.pservers.shards as usize
                    && holders.iter().all(|slot| self.slots.entries.contains_key(slot)) =>
            {
                (self.epoch, self.map) = (epoch, ShardMap::new(holders));
                self.adopting = true;
                let unidentified = kept.iter().map(|kept| kept.container.clone()).collect();
                for SurvivingContainer { container, node } in kept {
                    let life = ContainerInfo {
                        member: None,
                        node,
                        ours: false,
                        given_up: false,
                        memory_retries: 0,
                        leaving: false,
                    };
                    self.slots.containers.insert(container, life);
                }
                self.deadlines
                    .set(Purpose::Takeover, self.now.mono + self.config.limits.takeover_ms);
                self.stage = JobStage::Takeover(Takeover { unidentified, ..Takeover::default() });
            }
            _ => {
                // What they hold is of no state that this attempt knows.
                self.release_all(kept);
                let cause =
                    if self.base.is_some() { "continued from a checkpoint" } else { "started" };
                self.restore(cause.to_owned());
            }
        }
    }

    fn release_all(&mut self, kept: Vec<SurvivingContainer>) {
        for SurvivingContainer { container, node: _ } in kept {
            self.out.push(Action::Release { container });
        }
    }

    /// A container of an earlier attempt was refused: it is not one that may still come.
    pub(crate) fn release_unknown(&mut self, container: &ContainerId, member: Member) {
        if let Some(life) =
            self.slots.containers.get_mut(container).filter(|life| life.member.is_none())
        {
            (life.member, life.given_up) = (Some(member), true);
            self.stop_container(container, 0);
        }
    }

    fn finished_before(&mut self, outcome: Outcome) {
        self.stage = JobStage::Stopping(outcome);
    }

    /// Scores before the base, from its manifest, and those journaled since, unless a rollback made them false.
    fn known_evaluations(&self, journal: &[Record]) -> Vec<(PhaseNo, EvaluationView)> {
        let mut known: BTreeMap<PhaseNo, EvaluationView> = BTreeMap::new();
        if let Some(base) = &self.base {
            // Scores name their pass, so that one that is missing shifts no other.
            let scores = |no: PhaseNo| match phase_kind(&self.config.spec, no) {
                Some(PhaseKind::Evaluate { pass }) => {
                    let mut all = base.manifest.evaluations.iter();
                    Some((no, all.find(|scores| scores.pass == pass)?.clone()))
                }
                _ => None,
            };
            known.extend((0..base.manifest.phase.0).map(PhaseNo).filter_map(scores));
        }
        for record in journal {
            match record {
                Record::Evaluated { phase, scores, .. } => {
                    known.entry(*phase).or_insert_with(|| scores.clone());
                }
                Record::Restore { phase, .. } => known.retain(|of, _| of < phase),
                Record::Claim { .. }
                | Record::Commit { .. }
                | Record::Scaled { .. }
                | Record::Outcome(_) => {}
            }
        }
        known.into_iter().collect()
    }

    /// As soon as every shard is there nothing needs to be waited for.
    pub(crate) fn settle_takeover(&mut self) -> bool {
        let has_all_shards = self.has_all_shards();
        let some_are_unidentified = self.some_are_unidentified();
        let JobStage::Takeover(takeover) = &self.stage else {
            return false;
        };
        if !has_all_shards {
            let came = |slot| takeover.pservers.contains_key(&slot);
            let all_came =
                takeover.pservers.len() >= self.map.slots().len() && self.map.slots().all(came);
            // All pservers are there and do not stand together, or one was gone before this attempt began: waiting
            // longer cannot help.
            let hopeless = all_came || !some_are_unidentified;
            if hopeless {
                // Trainers that live come within a moment and are as welcome as in a takeover.
                self.deadlines.at_latest(Purpose::Takeover, self.now.mono + TRAINERS_MS);
                self.restore_after_takeover();
            }
            return hopeless;
        }
        if some_are_unidentified && !takeover.patience_is_over {
            // Trainers work on by themselves; those that live come within a moment, with the tasks they are at.
            self.deadlines.at_latest(Purpose::Takeover, self.now.mono + TRAINERS_MS);
            return false;
        }
        if let JobStage::Takeover(takeover) = std::mem::replace(&mut self.stage, JobStage::New) {
            self.go_on(&takeover);
        }
        true
    }

    /// Whether a container of an earlier attempt has not said who it is and may still do so.
    fn some_are_unidentified(&mut self) -> bool {
        let JobStage::Takeover(takeover) = &mut self.stage else {
            return false;
        };
        while let Some(container) = takeover.unidentified.last() {
            let life = self.slots.containers.get(container);
            if life.is_some_and(|life| life.member.is_none() && !life.given_up) {
                return true;
            }
            takeover.unidentified.pop();
        }
        false
    }

    /// Those who have not come by now are considered lost.
    pub(crate) fn takeover_over(&mut self) {
        if let JobStage::Takeover(takeover) = &mut self.stage {
            takeover.patience_is_over = true;
        }
        if self.has_all_shards() {
            // `settle` goes on. Whoever comes later may still be taken in.
            self.deadlines.set(Purpose::Takeover, self.now.mono + self.config.limits.takeover_ms);
            return;
        }
        self.adopting = false;
        // Containers that nobody spoke up from are of no use.
        let unknown: Vec<_> = self
            .slots
            .containers
            .iter()
            .filter(|(_, life)| life.member.is_none())
            .map(|(id, _)| id.clone())
            .collect();
        for container in unknown {
            self.stop_container(&container, 0);
        }
        self.restore_after_takeover();
    }

    /// Shards are lost that the earlier attempt's containers held: a rollback.
    fn restore_after_takeover(&mut self) {
        let JobStage::Takeover(takeover) = &self.stage else {
            return;
        };
        // A job that had begun goes on with whoever is there, as it does after every other loss.
        self.started = self.had_begun(takeover);
        let missing: Vec<String> = self
            .map
            .slots()
            .filter(|slot| !takeover.pservers.contains_key(slot))
            .map(|slot| slot.to_string())
            .collect();
        let cause = if missing.is_empty() {
            "the pservers that an earlier attempt left are in different epochs".to_owned()
        } else {
            format!(
                "{} did not come back after the ApplicationMaster's restart",
                missing.join(", ")
            )
        };
        self.restore(cause);
    }

    /// Whether the earlier attempt had handed out work: a trainer has some, a shard has taken some, or there was a
    /// rollback.
    fn had_begun(&self, takeover: &Takeover) -> bool {
        let base = self.base_position();
        let moved = |state: &ShardState| {
            (state.phase, state.step) > base || state.ended || !state.tasks.is_empty()
        };
        let mut held = takeover.pservers.values().flatten();
        self.epoch.count > 0
            || takeover.trainers.values().any(|(_, busy)| busy.is_some())
            || held.any(|held| held.shards.iter().any(moved))
    }

    /// By shard: its state, if it is held where the journal says, in the journal's epoch.
    fn shard_states<'a>(
        &self,
        takeover: &'a Takeover,
    ) -> impl Iterator<Item = Option<&'a ShardState>> {
        self.map.iter().map(|(shard, slot)| {
            let held = takeover.pservers.get(&slot)?.as_ref()?;
            let mut shards = held.shards.iter();
            shards.find(|state| held.epoch == self.epoch && state.shard == shard)
        })
    }

    /// Taking over: whether each shard is held.
    fn has_all_shards(&mut self) -> bool {
        let JobStage::Takeover(takeover) = &self.stage else {
            return false;
        };
        let look = || {
            takeover.pservers.len() >= self.map.slots().len()
                && self.shard_states(takeover).all(|state| state.is_some())
        };
        let has = takeover.has_all_shards.unwrap_or_else(look);
        if let JobStage::Takeover(takeover) = &mut self.stage {
            takeover.has_all_shards = Some(has);
        }
        has
    }

    /// The job goes on where the shards are.
    fn go_on(&mut self, takeover: &Takeover) {
        let states: Vec<&ShardState> = self.shard_states(takeover).flatten().collect();
        let phase = states.iter().map(|state| state.phase).min().unwrap_or_default();
        self.phase = PhaseState::new(&self.config, phase, self.generation);
        self.evaluations.retain(|(of, _)| *of < phase);
        self.started = true;
        let here = || states.iter().filter(|state| state.phase == phase);
        let furthest = here().map(|state| state.step).max().unwrap_or(Step(0));
        self.phase.step_rate.starts(furthest, self.now.mono);
        self.survivors_stay(takeover);
        self.end_cuts_of_before(takeover);
        let now = self.now.mono;
        let busy_here: Vec<(Member, &TrainerState)> = takeover
            .trainers
            .values()
            .filter_map(|(member, busy)| Some((*member, busy.as_ref()?)))
            .filter(|(_, busy)| busy.epoch == self.epoch && busy.phase == phase)
            .collect();
        match &mut self.phase.work {
            Work::Lanes(lanes) => {
                for (member, busy) in busy_here {
                    lanes.adopt(member, &busy.lanes);
                }
                for state in here().filter(|state| state.ended) {
                    self.phase.ended.insert(state.shard, state.step);
                }
            }
            Work::Queue(queue) => {
                let marks: Vec<PserverProgress<'_>> = takeover
                    .pservers
                    .iter()
                    .filter_map(|(slot, held)| {
                        let held = held.as_ref()?;
                        let is_here = |state: &&ShardState| {
                            state.phase == phase && self.map.holds(*slot, state.shard)
                        };
                        let shards: Vec<_> = held.shards.iter().filter(is_here).collect();
                        (!shards.is_empty()).then_some(PserverProgress { done: &held.done, shards })
                    })
                    .collect();
                queue.restore(&queue_progress(&marks));
                for (member, busy) in busy_here {
                    for position in &busy.tasks {
                        queue.adopt(member, position, now);
                    }
                }
            }
        }
        self.plan_next_cut(false);
        // A shard in a later phase says that the one before was over everywhere.
        let begun_elsewhere = states.iter().any(|state| state.phase > phase);
        self.stage = JobStage::Idle(if begun_elsewhere {
            NextStep::Begin(phase.next())
        } else {
            NextStep::Resume
        });
        for slot in self.registered_slots(Role::Pserver) {
            // They are in the epoch and only answer; one without shards learns that it has none.
            self.hold(slot);
        }
        self.send_members();
        self.am_recovery_taken_over();
        for (connection, report) in &takeover.kept {
            // One of a connection that was replaced is dropped: the new registration has it.
            self.report(*connection, report.clone());
        }
    }
}

impl Core {
    /// Trainers of this epoch were members before and stay so: telling pservers first that there are none would
    /// break every data connection for nothing.
    fn survivors_stay(&mut self, takeover: &Takeover) {
        for (member, busy) in takeover.trainers.values() {
            let same_epoch = busy.as_ref().is_some_and(|busy| busy.epoch == self.epoch);
            if let Some(holder) = self
                .slots
                .holder_mut(member.slot)
                .filter(|holder| same_epoch && holder.member == *member)
            {
                holder.joined = true;
            }
        }
    }

    /// A cut that the earlier attempt left open lapses; shards that still wait for its barriers need not wait
    /// until they let go by themselves.
    fn end_cuts_of_before(&mut self, takeover: &Takeover) {
        let committed = self.base.as_ref().map(|base| base.manifest.cut);
        for (slot, held) in &takeover.pservers {
            let Some(held) = held.as_ref().filter(|held| held.cut != CutId::default()) else {
                continue;
            };
            let command = Command::CutEnd { cut: held.cut, committed: committed == Some(held.cut) };
            self.send(*slot, command);
        }
    }
}

/// What a pserver said of its shards that serve the phase.
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

    /// The lowest step of a task that a shard names, 0 where it knows none. A shard that marks the task done has all of it and
    /// does not hold the others back.
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
fn queue_progress(pservers: &[PserverProgress<'_>]) -> QueueProgress {
    let mut done = pservers.iter().map(PserverProgress::done_on_all);
    let first = done.next().unwrap_or_default();
    let done = done.fold(first, |both, done| both.intersection(&done));
    let mut queue_progress = QueueProgress::default();
    done.iter().for_each(|task| queue_progress.finished(task));
    // A task that no shard has begun without ending it stands at its first step wherever it is not done.
    let shards = pservers.iter().flat_map(|marks| &marks.shards);
    let begun: BTreeSet<TaskId> =
        shards.flat_map(|state| &state.tasks).map(|position| position.task).collect();
    for task in begun {
        let lowest = pservers.iter().filter_map(|marks| marks.lowest(task)).min();
        queue_progress.reached(task, lowest.unwrap_or_default());
    }
    queue_progress
}
