//! Cuts: ordering one, following it over all shards, and making a checkpoint of it.
//!
//! ```text
//!  wanted ─▶ Staging ─▶ Staged ─▶ Arming ─▶ Snapping ─▶ Committing ─▶ a checkpoint
//!            directory  until the  Cut to    Barrier to   manifest,
//!            is made    job may be pservers, trainers;    rename
//!                       cut        answered  snapped,
//!                                            saved
//!     └─────────┴──────────┴─────────┴──────────┴──▶ given up: let go, timeout, a pserver lost, replaced
//! ```
//!
//! **Where.** Between phases nothing is under way: every shard cuts where it stands. In an evaluation nothing
//! changes: likewise, and the evaluation starts anew after a rollback. In ASP trainers send barriers. In BSP a step is
//! named that nobody has reached yet: where the furthest probably is, and a bit; a shard that is beyond it lets go,
//! and the next try names one further ahead. A phase that ends before the step is cut at its end.
//!
//! **The queue of the cut** (ASP) stands as it was when the pservers were told. From then on only what trainers of the
//! cut's set report with an older cut number moves it: what they say with this cut's number was done after the barrier.
//! It may stand below the snapshots, never above: shards refuse what they have.
//!
//! **Joins** wait from the order until all shards have snapped: who is in one shard's snapshot must be in all.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::control::{Command, CutAt, Sharing, TaskPosition};
use heddle_protocol::ids::{CutId, Epoch, Member, PhaseNo, Role, ShardId, Slot, Step, TaskId};
use heddle_protocol::manifest::ShardFile;
use heddle_protocol::spec::Every;
use heddle_protocol::view::{self, EvaluationView};

use crate::action::{CallId, Checkpoint, OperationId, StoreCall};
use crate::core::{CallFor, Core, Stage};
use crate::deadlines::Purpose;
use crate::event::Stored;
use crate::phases::{Then, Work};
use crate::queue::Standing;
use crate::record::Record;
use crate::takeover::checkpoint_view;
use crate::time::Now;

/// BSP: steps that a named step is ahead of the guess at the least.
const AHEAD_MIN: u64 = 2;
/// BSP: so much time's worth of steps a named step is ahead: the command has to reach every shard first.
const AHEAD_MS: f64 = 100.0;
/// BSP: tries in a row that name a step too late, each four times further ahead, before it waits for the next time.
const TRIES_MAX: u32 = 6;
/// A periodic cut that was given up is tried again after this, if its period is not shorter.
const AGAIN_MS: u64 = 30_000;

/// Why a cut is wanted, the weightiest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// `checkpoint.every`.
    Due,
    /// An operator's order.
    Ordered,
    /// Before the first step of training: what measuring found is safe, and there is something to return to.
    First,
    /// An operator wants the job to end.
    Stop,
    /// Training has ended.
    Final,
}

/// How far a cut is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Its directory is being made.
    Staging(CallId),
    /// It can be ordered as soon as the job is in a stage that can be cut.
    Staged,
    /// Pservers are told; these have answered.
    Arming(BTreeSet<Slot>),
    /// Trainers are told (ASP). Shards snap and save.
    Snapping,
    /// All is saved; the manifest is being written. None: it waits for the next try or for the ResourceManager.
    Committing(Option<CallId>),
}

/// An open cut.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    pub id: CutId,
    pub reason: Reason,
    pub asked_by: Vec<OperationId>,
    pub epoch: Epoch,
    pub ordered: Now,
    pub progress: Progress,
    pub staging: String,
    /// The phase whose values it holds.
    pub phase: PhaseNo,
    pub sharing: Sharing,
    pub at: CutAt,
    /// The phase is over in it: a restart begins with the next one.
    pub phase_is_over: bool,
    /// ASP: trainers of the set, and whether their barrier is sent.
    pub set: BTreeMap<Member, bool>,
    pub standing: Standing,
    pub snapped: BTreeMap<ShardId, Step>,
    pub saved: BTreeMap<ShardId, ShardFile>,
    /// Scores known when it was ordered.
    pub evaluations: Vec<EvaluationView>,
    /// Shards of the job.
    shards: usize,
    pub commit_tries: u32,
    /// The next try of the commit waits for its deadline.
    commit_waits: bool,
    /// A commit's outcome could not be found out: nothing of it may be removed.
    pub commit_unknown: bool,
}

/// The open cut and what is remembered between cuts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cuts {
    pub open: Option<Cut>,
    /// Numbers used in this generation.
    last_number: u32,
    wanted: Option<Reason>,
    /// Operators who wait for the next one.
    pub asked_by: Vec<OperationId>,
    /// BSP: tries in a row that named a step too late.
    pub late_tries: u32,
    /// The next try of the final one waits for its deadline.
    pub final_waits: bool,
    /// The final one: tries that failed.
    pub failures: u32,
    /// Checkpoints committed in this run.
    pub committed: u32,
    /// BSP: job steps of phases that are over.
    pub steps_before: u64,
    /// `checkpoint.every` in steps: where the next one is due.
    next_steps: u64,
    /// The last phase that ended, with BSP's number of steps.
    ended: Option<(Epoch, PhaseNo, Option<Step>)>,
}

impl Cuts {
    pub(crate) fn want(&mut self, reason: Reason) {
        self.wanted = self.wanted.max(Some(reason));
    }

    pub(crate) fn unwant(&mut self) {
        self.wanted = None;
    }

    /// Whether work may not go on to the next phase: some shard still has to snap, or a cut is wanted that
    /// belongs here. (A periodic one that comes while another is being saved is taken later.)
    pub(crate) fn holds_up(&self) -> bool {
        match &self.open {
            Some(cut) => !cut.all_snapped() || self.wanted >= Some(Reason::First),
            None => self.wanted.is_some(),
        }
    }

    /// Whether nobody may join now.
    pub(crate) fn bars_joins(&self) -> bool {
        self.open
            .as_ref()
            .is_some_and(|cut| cut.has_set() && cut.is_ordered() && !cut.all_snapped())
    }

    pub(crate) fn phase_over(&mut self, epoch: Epoch, phase: PhaseNo, step: Option<Step>) {
        self.ended = Some((epoch, phase, step));
    }

    /// A rollback: what ended did not, and training is not over.
    pub(crate) fn roll_back(&mut self) {
        self.ended = None;
        self.late_tries = 0;
        self.failures = 0;
        self.final_waits = false;
        if self.wanted == Some(Reason::Final) {
            self.wanted = None;
        }
    }
}

impl Cut {
    pub(crate) fn all_snapped(&self) -> bool {
        self.snapped.len() == self.shards
    }

    /// A manifest may or may not be under its final name already.
    pub(crate) fn commit_is_under_way(&self) -> bool {
        matches!(self.progress, Progress::Committing(_))
    }

    fn all_saved(&self) -> bool {
        self.saved.len() == self.shards
    }

    /// Whether pservers have been told of it.
    fn is_ordered(&self) -> bool {
        match self.progress {
            Progress::Staging(_) | Progress::Staged => false,
            Progress::Arming(_) | Progress::Snapping | Progress::Committing(_) => true,
        }
    }

    /// Whether trainers send barriers for it.
    pub(crate) fn has_set(&self) -> bool {
        matches!(&self.at, CutAt::Barriers(set) if !set.is_empty())
    }

    /// The command that orders it.
    fn command(&self) -> Command {
        let (cut, epoch, phase) = (self.id, self.epoch, self.phase);
        Command::Cut {
            cut,
            epoch,
            phase,
            at: self.at.clone(),
            staging: self.staging.clone(),
        }
    }
}

impl Core {
    /// Whether a cut can be taken now or soon.
    pub(crate) fn can_cut(&self) -> bool {
        self.started
            && matches!(
                self.stage,
                Stage::Between(_) | Stage::Beginning { .. } | Stage::Working
            )
    }

    pub(crate) fn settle_cut(&mut self) -> bool {
        let Some(cut) = &self.cuts.open else {
            return self.open_cut();
        };
        match &cut.progress {
            Progress::Staging(_) | Progress::Committing(Some(_)) => false,
            Progress::Staged => self.order_cut(),
            Progress::Arming(armed) => {
                let all = self.shard_slots().is_subset(armed);
                if all {
                    self.cut_armed_everywhere();
                }
                all
            }
            Progress::Snapping => self.complete_cut(),
            Progress::Committing(None) => self.try_commit(),
        }
    }

    fn open_cut(&mut self) -> bool {
        let possible = matches!(
            self.stage,
            Stage::Between(_) | Stage::Beginning { .. } | Stage::Working
        );
        let Some(reason) = self.cuts.wanted.filter(|_| possible) else {
            return false;
        };
        self.cuts.wanted = None;
        self.cuts.last_number += 1;
        let id = CutId {
            generation: self.generation,
            number: self.cuts.last_number,
        };
        let call = self.store(CallFor::Stage(id), StoreCall::Stage { cut: id });
        self.deadlines.clear(Purpose::CutDue);
        self.deadlines.set(
            Purpose::CutTimeout,
            self.now.mono + self.config.spec.checkpoint.timeout.0,
        );
        self.cuts.open = Some(Cut {
            id,
            reason,
            asked_by: std::mem::take(&mut self.cuts.asked_by),
            epoch: self.epoch,
            ordered: self.now,
            progress: Progress::Staging(call),
            staging: String::new(),
            phase: self.phase.no,
            sharing: self.phase.sharing,
            at: CutAt::Barriers(Vec::new()),
            phase_is_over: false,
            set: BTreeMap::new(),
            standing: Standing::default(),
            snapped: BTreeMap::new(),
            saved: BTreeMap::new(),
            evaluations: Vec::new(),
            shards: self.map.len(),
            commit_tries: 0,
            commit_waits: false,
            commit_unknown: false,
        });
        true
    }

    pub(crate) fn staged(&mut self, call: CallId, cut: CutId, outcome: Stored) {
        let wanted = self
            .cuts
            .open
            .as_mut()
            .filter(|open| open.progress == Progress::Staging(call));
        match (outcome, wanted) {
            (Stored::Staged(dir), Some(open)) => {
                open.staging = dir;
                open.progress = Progress::Staged;
            }
            (Stored::Staged(staging), None) => {
                self.store(CallFor::Housekeeping, StoreCall::Discard { cut, staging });
            }
            (Stored::NotDone { error } | Stored::Unknown { error }, Some(_)) => {
                self.end_cut(&format!("its directory could not be made: {error}"));
            }
            _ => {}
        }
    }

    /// Tells the pservers, if the job is in a stage that can be cut.
    fn order_cut(&mut self) -> bool {
        let between = match self.stage {
            Stage::Between(Then::Resume) => return false,
            Stage::Between(then) => Some(then),
            Stage::Working => None,
            _ => return false,
        };
        let joined = self.joined();
        let at = match (&self.phase.work, self.phase.sharing, between) {
            (Work::Lanes(_), _, Some(_)) => CutAt::Steps(self.phase.frontier()),
            (Work::Lanes(_), _, None) => CutAt::Steps(self.step_ahead()),
            (Work::Queue(_), Sharing::Queue, None) => {
                CutAt::Barriers(joined.iter().copied().collect())
            }
            (Work::Queue(_), _, _) => CutAt::Barriers(Vec::new()),
        };
        let evaluations = self
            .evaluations
            .iter()
            .map(|(_, scores)| scores.clone())
            .collect();
        let Some(cut) = &mut self.cuts.open else {
            return false;
        };
        cut.phase = self.phase.no;
        cut.sharing = self.phase.sharing;
        cut.phase_is_over = matches!(between, Some(Then::Begin(_) | Then::End));
        cut.set = match &at {
            CutAt::Barriers(set) => set.iter().map(|member| (*member, false)).collect(),
            CutAt::Steps(_) => BTreeMap::new(),
        };
        cut.at = at;
        if let (Work::Queue(queue), Sharing::Queue) = (&self.phase.work, self.phase.sharing) {
            cut.standing = queue.standing();
        }
        cut.evaluations = evaluations;
        cut.progress = Progress::Arming(BTreeSet::new());
        let command = cut.command();
        for slot in self.shard_slots() {
            self.send(slot, command.clone());
        }
        true
    }

    /// BSP: a step that no shard has applied yet when it hears of it.
    fn step_ahead(&self) -> Step {
        let guess = self.phase.guess(self.now.mono).0;
        let ahead = AHEAD_MIN.max((self.phase.rate * AHEAD_MS / 1000.0) as u64)
            << (2 * self.cuts.late_tries.min(TRIES_MAX));
        let soonest = guess.saturating_add(ahead);
        match self.config.spec.checkpoint.every {
            // The step it is due at, unless that has gone by.
            Every::Steps(_)
                if self.cuts.late_tries == 0
                    && self
                        .cuts
                        .open
                        .as_ref()
                        .is_some_and(|cut| cut.reason == Reason::Due) =>
            {
                Step(soonest.max(self.cuts.next_steps.saturating_sub(self.cuts.steps_before)))
            }
            _ => Step(soonest),
        }
    }

    fn matching_cut(&mut self, id: CutId, epoch: Epoch) -> Option<&mut Cut> {
        let current = self.epoch;
        self.cuts.open.as_mut().filter(|cut| {
            cut.id == id && cut.epoch == epoch && epoch == current && cut.is_ordered()
        })
    }

    fn holds(&self, slot: Slot, shard: ShardId) -> bool {
        self.map.get(shard.0 as usize) == Some(&slot)
    }

    /// A pserver has heard of the cut.
    pub(crate) fn cut_armed(&mut self, slot: Slot, id: CutId, epoch: Epoch) {
        if let Some(Cut {
            progress: Progress::Arming(armed),
            ..
        }) = self.matching_cut(id, epoch)
        {
            armed.insert(slot);
        }
    }

    fn cut_armed_everywhere(&mut self) {
        let Some(cut) = &mut self.cuts.open else {
            return;
        };
        cut.progress = Progress::Snapping;
        let barrier = Command::Barrier {
            cut: cut.id,
            epoch: cut.epoch,
        };
        let set: Vec<Member> = cut.set.keys().copied().collect();
        for member in set {
            self.send(member.slot, barrier.clone());
        }
    }

    /// A shard's state of the cut is fixed.
    pub(crate) fn snapped(
        &mut self,
        slot: Slot,
        id: CutId,
        epoch: Epoch,
        shard: ShardId,
        step: Step,
    ) {
        if !self.holds(slot, shard) {
            return;
        }
        let Some(cut) = self.matching_cut(id, epoch) else {
            return;
        };
        cut.snapped.insert(shard, step);
        let steps: BTreeSet<Step> = cut.snapped.values().copied().collect();
        if cut.sharing != Sharing::Queue && cut.sharing != Sharing::ReadOnly && steps.len() > 1 {
            self.end_cut(&format!("shards cut at different steps: {steps:?}"));
        }
    }

    /// A shard's file is durable.
    pub(crate) fn saved(&mut self, slot: Slot, id: CutId, epoch: Epoch, file: ShardFile) {
        if !self.holds(slot, file.shard) {
            return;
        }
        if let Some(cut) = self.matching_cut(id, epoch) {
            cut.saved.insert(file.shard, file);
        }
    }

    /// A shard has given the cut up.
    pub(crate) fn let_go(
        &mut self,
        slot: Slot,
        id: CutId,
        epoch: Epoch,
        shard: ShardId,
        reason: &str,
    ) {
        if !self.holds(slot, shard) {
            return;
        }
        let Some(cut) = self.matching_cut(id, epoch) else {
            return;
        };
        if cut.progress != Progress::Snapping && !matches!(cut.progress, Progress::Arming(_)) {
            return;
        }
        let (lanes, why) = (matches!(cut.at, CutAt::Steps(_)), cut.reason);
        let asked_by = std::mem::take(&mut cut.asked_by);
        let again =
            lanes && matches!(self.stage, Stage::Working) && self.cuts.late_tries < TRIES_MAX;
        if again {
            self.cuts.asked_by.extend(asked_by);
        } else if let Some(cut) = &mut self.cuts.open {
            cut.asked_by = asked_by;
        }
        self.end_cut(&format!("shard {shard} let go: {reason}"));
        if again {
            self.cuts.late_tries += 1;
            self.cuts.want(why);
        }
    }

    /// A shard could not be written.
    pub(crate) fn save_failed(
        &mut self,
        slot: Slot,
        id: CutId,
        epoch: Epoch,
        shard: ShardId,
        error: &str,
    ) {
        if self.holds(slot, shard) && self.matching_cut(id, epoch).is_some() {
            self.end_cut(&format!("shard {shard} could not be saved: {error}"));
        }
    }

    /// A trainer has sent its barrier; where its tasks stood there.
    pub(crate) fn at_barrier(
        &mut self,
        member: Member,
        id: CutId,
        epoch: Epoch,
        tasks: &[TaskPosition],
    ) {
        let Some(cut) = self.matching_cut(id, epoch) else {
            return;
        };
        if let Some(reached) = cut.set.get_mut(&member) {
            *reached = true;
            for position in tasks {
                cut.standing.reached(position.task, position.step);
            }
        }
    }

    /// A report of a trainer that counts for the open cut's queue: the trainer is of its set and had not sent its barrier.
    pub(crate) fn cut_progress(&mut self, member: Member, carried: CutId, tasks: &[TaskPosition]) {
        if let Some(cut) = self.counting_cut(member, carried) {
            for position in tasks {
                cut.standing.reached(position.task, position.step);
            }
        }
    }

    /// As `cut_progress`, of a finished task.
    pub(crate) fn cut_finished(&mut self, member: Member, carried: CutId, task: TaskId) {
        if let Some(cut) = self.counting_cut(member, carried) {
            cut.standing.finished(task);
        }
    }

    fn counting_cut(&mut self, member: Member, carried: CutId) -> Option<&mut Cut> {
        self.cuts
            .open
            .as_mut()
            .filter(|cut| carried < cut.id && cut.is_ordered() && cut.set.contains_key(&member))
    }

    /// A trainer is out of the job: it counts with what it had reached.
    pub(crate) fn leave_cut(&mut self, member: Member) {
        if let Some(cut) = &mut self.cuts.open {
            cut.set.remove(&member);
        }
    }

    fn complete_cut(&mut self) -> bool {
        let Some(cut) = &mut self.cuts.open else {
            return false;
        };
        if !(cut.all_snapped() && cut.all_saved() && cut.set.values().all(|reached| *reached)) {
            return false;
        }
        cut.progress = Progress::Committing(None);
        self.deadlines.clear(Purpose::CutTimeout);
        true
    }

    /// Whether the ResourceManager has been heard lately enough to be sure that this attempt still leads.
    fn leads(&self) -> bool {
        self.config
            .cluster_lease_ms
            .is_none_or(|lease_ms| self.now.mono.since(self.cluster_heard) <= lease_ms)
    }

    fn try_commit(&mut self) -> bool {
        if !self.leads() || self.cuts.open.as_ref().is_none_or(|cut| cut.commit_waits) {
            return false;
        }
        let Some((staging, manifest)) = self.manifest() else {
            return false;
        };
        let call = self.store(
            CallFor::Commit,
            StoreCall::Commit {
                staging,
                manifest: Box::new(manifest),
            },
        );
        if let Some(cut) = &mut self.cuts.open {
            cut.progress = Progress::Committing(Some(call));
        }
        true
    }

    pub(crate) fn commit_answered(&mut self, call: CallId, outcome: Stored) {
        let tries = self.config.limits.store_tries;
        let Some(cut) = self
            .cuts
            .open
            .as_mut()
            .filter(|cut| cut.progress == Progress::Committing(Some(call)))
        else {
            return;
        };
        let error = match outcome {
            Stored::Committed(checkpoint) => return self.committed(*checkpoint),
            Stored::Unknown { error } => {
                cut.commit_unknown = true;
                error
            }
            Stored::NotDone { error } => error,
            other => format!("an answer to another question: {other:?}"),
        };
        cut.commit_tries += 1;
        cut.progress = Progress::Committing(None);
        if cut.commit_tries >= tries {
            return self.end_cut(&format!("its manifest could not be committed: {error}"));
        }
        cut.commit_waits = true;
        let wait_ms = self.config.limits.retry_ms << cut.commit_tries.min(6);
        self.deadlines
            .at_latest(Purpose::Retry, self.now.mono + wait_ms);
        self.warn(format!("a checkpoint's commit is tried again: {error}"));
    }

    /// The cut is a checkpoint.
    fn committed(&mut self, checkpoint: Checkpoint) {
        let Some(cut) = self.cuts.open.take() else {
            return;
        };
        let manifest = &checkpoint.manifest;
        let took_ms = self.now.mono.since(cut.ordered.mono);
        let view = checkpoint_view(&checkpoint, took_ms);
        self.out.journal(Record::Commit {
            cut: cut.id,
            dir: checkpoint.dir.clone(),
            phase: manifest.phase,
            step: manifest.step(),
            at_ms: self.now.wall_ms,
        });
        self.base = Some(checkpoint);
        self.progress += 1;
        self.cuts.committed += 1;
        self.cuts.late_tries = 0;
        self.cuts.failures = 0;
        for slot in self.registered_slots(Role::Pserver) {
            self.send(
                slot,
                Command::CutEnd {
                    cut: cut.id,
                    committed: true,
                },
            );
        }
        let keep = self.config.spec.checkpoint.keep.max(2);
        let retain = StoreCall::Retain {
            keep,
            generation: self.generation,
            base: cut.id,
        };
        self.store(CallFor::Housekeeping, retain);
        self.checkpoints.push(view.clone());
        let surplus = self.checkpoints.len().saturating_sub(keep as usize);
        self.checkpoints.drain(..surplus);
        for id in cut.asked_by {
            self.answer(
                id,
                Ok(format!("checkpoint {} committed in {}", cut.id, view.dir)),
            );
        }
        self.notice(view::Event::CheckpointCommitted(view));
        match cut.reason {
            Reason::Due | Reason::Ordered | Reason::First => self.plan_next_cut(false),
            Reason::Stop => self.stop_with_checkpoint(),
            Reason::Final => {}
        }
    }

    /// A pserver's connection broke: what was said of the cut may be lost in both directions.
    pub(crate) fn order_cut_again(&mut self, slot: Slot) {
        let Some(cut) = self
            .cuts
            .open
            .as_ref()
            .filter(|cut| cut.is_ordered() && cut.epoch == self.epoch)
        else {
            return;
        };
        let waits = (0..)
            .map(ShardId)
            .zip(&self.map)
            .any(|(shard, of)| *of == slot && !cut.saved.contains_key(&shard));
        if waits {
            let command = cut.command();
            self.send(slot, command);
        }
    }

    /// A trainer's connection broke: likewise.
    pub(crate) fn send_barrier_again(&mut self, member: Member) {
        if let Some(cut) = &self.cuts.open
            && cut.progress == Progress::Snapping
            && cut.set.get(&member) == Some(&false)
        {
            let (cut, epoch) = (cut.id, cut.epoch);
            self.send(member.slot, Command::Barrier { cut, epoch });
        }
    }

    pub(crate) fn retry_commit(&mut self) {
        if let Some(cut) = &mut self.cuts.open {
            cut.commit_waits = false;
        }
    }

    pub(crate) fn cut_timeout(&mut self) {
        let timeout = self.config.spec.checkpoint.timeout;
        self.end_cut(&format!(
            "it took longer than checkpoint.timeout ({timeout})"
        ));
    }

    /// Gives the open cut up. Its files are swept, joins are free, the job goes on.
    pub(crate) fn end_cut(&mut self, reason: &str) {
        let Some(cut) = self.cuts.open.take() else {
            return;
        };
        self.deadlines.clear(Purpose::CutTimeout);
        if cut.is_ordered() {
            for slot in self.registered_slots(Role::Pserver) {
                self.send(
                    slot,
                    Command::CutEnd {
                        cut: cut.id,
                        committed: false,
                    },
                );
            }
        }
        // What may have become a checkpoint after all is left for the next attempt to judge.
        if !cut.staging.is_empty() && !cut.commit_unknown {
            self.store(
                CallFor::Housekeeping,
                StoreCall::Discard {
                    cut: cut.id,
                    staging: cut.staging,
                },
            );
        }
        for id in cut.asked_by {
            self.answer(
                id,
                Err(format!("checkpoint {} was given up: {reason}", cut.id)),
            );
        }
        self.notice(view::Event::CheckpointGivenUp {
            cut: cut.id,
            reason: reason.to_owned(),
        });
        match cut.reason {
            Reason::Due | Reason::Ordered | Reason::First => self.plan_next_cut(true),
            Reason::Stop => self.stop_without_checkpoint(reason),
            Reason::Final => self.final_cut_failed(reason),
        }
    }

    /// Sets when the next periodic cut is due.
    pub(crate) fn plan_next_cut(&mut self, gave_up: bool) {
        match self.config.spec.checkpoint.every {
            Every::Time(period) => {
                let wait_ms = if gave_up {
                    period.0.min(AGAIN_MS)
                } else {
                    period.0
                };
                self.deadlines.set(Purpose::CutDue, self.now.mono + wait_ms);
            }
            Every::Passes(_) if gave_up => self
                .deadlines
                .set(Purpose::CutDue, self.now.mono + AGAIN_MS),
            Every::Passes(_) => {}
            Every::Steps(steps) => {
                self.cuts.next_steps = self.total_steps().saturating_add(steps);
                self.check_steps();
            }
        }
    }

    /// Steps taken: BSP, job steps; ASP, steps of all trainers together.
    pub(crate) fn total_steps(&self) -> u64 {
        match self.phase.work {
            Work::Lanes(_) => self
                .cuts
                .steps_before
                .saturating_add(self.phase.frontier().0),
            Work::Queue(_) => self
                .slots
                .holders(Role::Trainer)
                .map(|holder| holder.beat.steps)
                .sum(),
        }
    }

    /// `checkpoint.every` in steps: wants a cut when the step is near (BSP: named ahead) or reached (ASP).
    pub(crate) fn check_steps(&mut self) {
        if !matches!(self.config.spec.checkpoint.every, Every::Steps(_))
            || self.cuts.open.is_some()
            || !matches!(self.stage, Stage::Working)
        {
            return;
        }
        let near = match self.phase.work {
            // Two heartbeats ahead, so that the step is not past when the next one comes. With an unknown
            // rate at once: a phase that ends before the step is cut at its end.
            Work::Lanes(_) if self.phase.rate == 0.0 => u64::MAX,
            Work::Lanes(_) => {
                (self.phase.rate * 2.0 * self.config.limits.heartbeat_ms as f64 / 1000.0) as u64
            }
            Work::Queue(_) => 0,
        };
        if self.total_steps().saturating_add(near) >= self.cuts.next_steps {
            self.cuts.want(Reason::Due);
        }
    }

    pub(crate) fn end_of(&self, epoch: Epoch, phase: PhaseNo) -> Option<Option<Step>> {
        self.cuts
            .ended
            .filter(|(e, p, _)| *e == epoch && *p == phase)
            .map(|(.., step)| step)
    }
}
