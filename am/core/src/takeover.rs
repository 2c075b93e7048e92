//! Starting: from nothing, from a checkpoint, or beside containers that an earlier attempt left running.
//!
//! **Taking over.** Kept containers register again and say where they are. If every shard is held, all in the epoch of the
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

use heddle_protocol::control::{Busy, Command, Held, ShardState, Up};
use heddle_protocol::ids::{CutId, Member, PhaseNo, Role, ShardId, Slot, Step, TaskId};
use heddle_protocol::spec::{PhaseKind, phase_kind};
use heddle_protocol::view::{CheckpointView, EvaluationView, JobState};

use crate::action::{Action, Checkpoint, ConnectionId, ContainerId, Outcome};
use crate::core::{Core, Stage};
use crate::deadlines::Purpose;
use crate::event::{Kept, Recovered};
use crate::phases::{PhaseState, Then, Work};
use crate::queue::Standing;
use crate::record::Record;
use crate::slots::{Life, Slots};

/// Once all shards are there, how long to wait for trainers: several heartbeats.
const TRAINERS_MS: u64 = 10_000;

/// What the containers of an earlier attempt have said so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Takeover {
    pservers: BTreeMap<Slot, Option<Held>>,
    trainers: BTreeMap<Member, Option<Busy>>,
    /// What they reported since, in order. A container has at most as much under way as it was given.
    kept: Vec<(ConnectionId, Up)>,
    patience_is_over: bool,
}

impl Takeover {
    /// A pserver registered.
    pub(crate) fn heard(&mut self, slot: Slot, held: Option<Held>) {
        self.pservers.insert(slot, held);
    }

    /// A trainer registered.
    pub(crate) fn met(&mut self, member: Member, busy: Option<Busy>) {
        // A zombie may have come first: who fills its slot now has its tasks to be handed out anew.
        self.trainers.retain(|other, _| other.slot != member.slot);
        self.trainers.insert(member, busy);
    }

    /// Keeps a report about the work until it is known where the job stands; gives back what need not wait. It is
    /// said once, and what a container said when it registered does not have it.
    pub(crate) fn keep(&mut self, connection: ConnectionId, report: Up) -> Option<Up> {
        match report {
            Up::PhaseEnded { .. }
            | Up::Progress { .. }
            | Up::TaskFinished { .. }
            | Up::TaskSteps { .. }
            | Up::TaskFailed { .. }
            | Up::Drained { .. } => {
                self.kept.push((connection, report));
                None
            }
            other => Some(other),
        }
    }

    /// A container is gone.
    pub(crate) fn gone(&mut self, slot: Slot) {
        self.pservers.remove(&slot);
        self.trainers.retain(|member, _| member.slot != slot);
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
    pub(crate) fn recovered(&mut self, recovered: Recovered) {
        if !matches!(self.stage, Stage::Fresh) {
            return;
        }
        let Recovered {
            attempt,
            generation,
            journal,
            base,
            checkpoints,
            kept,
        } = recovered;
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
            return self.finished_before(outcome);
        }
        let spec = self.config.spec.clone();
        self.slots = Slots::new(spec.pservers.count, spec.trainers.max, generation);
        if let Some(trainers) = self.scaled_before(&journal) {
            self.trainers_wanted = trainers;
        }
        self.set_wanted();
        self.checkpoints = checkpoints
            .iter()
            .map(|checkpoint| checkpoint_view(checkpoint, 0))
            .collect();
        if let Some(base) = &base {
            self.figures_before = base.manifest.progress;
            self.bad_records = base.manifest.progress.bad_records;
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
        if self.config.limits.allocation_ms > 0 {
            self.deadlines.set(
                Purpose::Allocation,
                self.now.mono + self.config.limits.allocation_ms,
            );
        }
        let last = journal.iter().rev().find_map(|record| match record {
            Record::Restore { epoch, holders, .. } => Some((*epoch, holders.clone())),
            _ => None,
        });
        match last {
            Some((epoch, holders))
                if !kept.is_empty()
                    && holders.len() == spec.pservers.shards as usize
                    && holders
                        .iter()
                        .all(|slot| self.slots.entries.contains_key(slot)) =>
            {
                (self.epoch, self.map) = (epoch, holders);
                self.adopting = true;
                for Kept { container, node } in kept {
                    let life = Life {
                        member: None,
                        node,
                        ours: false,
                        given_up: false,
                        leaving: false,
                    };
                    self.slots.containers.insert(container, life);
                }
                self.deadlines.set(
                    Purpose::Takeover,
                    self.now.mono + self.config.limits.takeover_ms,
                );
                self.stage = Stage::Takeover(Takeover::default());
            }
            _ => {
                // What they hold is of no state that this attempt knows.
                self.release_all(kept);
                let cause = if self.base.is_some() {
                    "continued from a checkpoint"
                } else {
                    "started"
                };
                self.restore(cause.to_owned());
            }
        }
    }

    fn release_all(&mut self, kept: Vec<Kept>) {
        for Kept { container, node: _ } in kept {
            self.out.push(Action::Release { container });
        }
    }

    /// A container of an earlier attempt was refused: it is not one that may still come.
    pub(crate) fn release_unknown(&mut self, container: &ContainerId, member: Member) {
        if let Some(life) = self
            .slots
            .containers
            .get_mut(container)
            .filter(|life| life.member.is_none())
        {
            (life.member, life.given_up) = (Some(member), true);
            self.stop_container(container, 0);
        }
    }

    fn finished_before(&mut self, outcome: Outcome) {
        self.stage = Stage::Stopping(outcome);
    }

    /// Scores before the base, from its manifest, and those journaled since, unless a rollback made them false.
    fn known_evaluations(&self, journal: &[Record]) -> Vec<(PhaseNo, EvaluationView)> {
        let mut known: BTreeMap<PhaseNo, EvaluationView> = BTreeMap::new();
        if let Some(base) = &self.base {
            let spec = &self.config.spec;
            let evaluates =
                |no: &PhaseNo| matches!(phase_kind(spec, *no), Some(PhaseKind::Evaluate { .. }));
            let evaluations = (0..base.manifest.phase.0).map(PhaseNo).filter(evaluates);
            known.extend(evaluations.zip(base.manifest.evaluations.iter().cloned()));
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
        let Stage::Takeover(takeover) = &self.stage else {
            return false;
        };
        let Some(states) = self.all_shards(takeover) else {
            let all_came = self
                .shard_slots()
                .iter()
                .all(|slot| takeover.pservers.contains_key(slot));
            // All pservers are there and do not stand together, or one was gone before this attempt began: waiting
            // longer cannot help.
            let hopeless = all_came || !self.some_are_unidentified();
            if hopeless {
                self.takeover_over();
            }
            return hopeless;
        };
        let takeover = takeover.clone();
        if self.some_are_unidentified() && !takeover.patience_is_over {
            // Trainers work on by themselves; those that live come within a moment, with the tasks they are at.
            self.deadlines
                .at_latest(Purpose::Takeover, self.now.mono + TRAINERS_MS);
            return false;
        }
        self.go_on(&takeover, &states);
        true
    }

    /// Whether a container of an earlier attempt has not said who it is and may still do so.
    fn some_are_unidentified(&self) -> bool {
        let mut containers = self.slots.containers.values();
        containers.any(|life| life.member.is_none() && !life.given_up)
    }

    /// Those who have not come by now are considered lost.
    pub(crate) fn takeover_over(&mut self) {
        if let Stage::Takeover(takeover) = &mut self.stage {
            takeover.patience_is_over = true;
        }
        if let Stage::Takeover(takeover) = &self.stage
            && self.all_shards(takeover).is_some()
        {
            // `settle` goes on. Whoever comes later may still be taken in.
            self.deadlines.set(
                Purpose::Takeover,
                self.now.mono + self.config.limits.takeover_ms,
            );
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
        let Stage::Takeover(takeover) = &self.stage else {
            return;
        };
        let missing: Vec<String> = self
            .shard_slots()
            .iter()
            .filter(|slot| !takeover.pservers.contains_key(slot))
            .map(Slot::to_string)
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

    /// Every shard's state, if each is held where the journal says, in the journal's epoch.
    /// and it cannot be so, the deadline is brought forward.
    fn all_shards(&self, takeover: &Takeover) -> Option<BTreeMap<ShardId, ShardState>> {
        let mut states = BTreeMap::new();
        for (shard, slot) in (0..).map(ShardId).zip(&self.map) {
            let held = takeover.pservers.get(slot)?.as_ref()?;
            if held.epoch != self.epoch {
                return None;
            }
            states.insert(
                shard,
                held.shards
                    .iter()
                    .find(|state| state.shard == shard)?
                    .clone(),
            );
        }
        Some(states)
    }

    /// The job goes on where the shards are.
    fn go_on(&mut self, takeover: &Takeover, states: &BTreeMap<ShardId, ShardState>) {
        let phase = states
            .values()
            .map(|state| state.phase)
            .min()
            .unwrap_or_default();
        self.phase = PhaseState::new(&self.config, phase, self.generation);
        self.evaluations.retain(|(of, _)| *of < phase);
        self.started = true;
        self.deadlines.clear(Purpose::Allocation);
        let here = |state: &&ShardState| state.phase == phase;
        let furthest = states
            .values()
            .filter(here)
            .map(|state| state.step)
            .max()
            .unwrap_or(Step(0));
        self.phase.starts(furthest, self.now.mono);
        self.survivors_stay(takeover);
        self.end_cuts_of_before(takeover);
        let now = self.now.mono;
        let busy_here: Vec<(Member, &Busy)> = takeover
            .trainers
            .iter()
            .filter_map(|(member, busy)| Some((*member, busy.as_ref()?)))
            .filter(|(_, busy)| busy.epoch == self.epoch && busy.phase == phase)
            .collect();
        match &mut self.phase.work {
            Work::Lanes(lanes) => {
                for (member, busy) in busy_here {
                    lanes.adopt(member, &busy.lanes);
                }
                for (shard, state) in states
                    .iter()
                    .filter(|(_, state)| state.phase == phase && state.ended)
                {
                    self.phase.ended.insert(*shard, state.step);
                }
            }
            Work::Queue(queue) => {
                queue.restore(&standing(phase, states));
                for (member, busy) in busy_here {
                    for position in &busy.tasks {
                        queue.adopt(member, position, now);
                    }
                }
            }
        }
        self.plan_next_cut(false);
        // A shard in a later phase says that the one before was over everywhere.
        let begun_elsewhere = states.values().any(|state| state.phase > phase);
        self.stage = Stage::Between(if begun_elsewhere {
            Then::Begin(phase.next())
        } else {
            Then::Resume
        });
        for slot in self.registered_slots(Role::Pserver) {
            // They are in the epoch and only answer; one without shards learns that it has none.
            self.hold(slot);
        }
        self.send_members();
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
        for (member, busy) in &takeover.trainers {
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
            let command = Command::CutEnd {
                cut: held.cut,
                committed: committed == Some(held.cut),
            };
            self.send(*slot, command);
        }
    }
}

/// Where ASP tasks restart: at the lowest step that a shard names; done if every shard marks it.
fn standing(phase: PhaseNo, states: &BTreeMap<ShardId, ShardState>) -> Standing {
    let shards: Vec<&ShardState> = states
        .values()
        .filter(|state| state.phase == phase)
        .collect();
    let tasks: BTreeSet<TaskId> = shards
        .iter()
        .flat_map(|state| &state.tasks)
        .map(|position| position.task)
        .collect();
    let mut standing = Standing::default();
    for task in tasks {
        let of = |state: &&ShardState| {
            state
                .tasks
                .iter()
                .find(|position| position.task == task)
                .copied()
        };
        let positions: Vec<_> = shards.iter().map(of).collect();
        if positions
            .iter()
            .all(|position| position.is_some_and(|position| position.done))
        {
            standing.finished(task);
        } else {
            // A shard that marks it done has all of it and does not hold the others back.
            let lowest = positions
                .iter()
                .map(|position| {
                    position.map_or(Step(0), |position| {
                        if position.done {
                            Step(u64::MAX)
                        } else {
                            position.step
                        }
                    })
                })
                .min();
            standing.reached(task, lowest.unwrap_or(Step(0)));
        }
    }
    standing
}
