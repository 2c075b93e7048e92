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
//! **JoinBatching** wait from the order until all shards have snapped: who is in one shard's snapshot must be in all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use heddle_protocol::control::{Command, CutAt, Sharing};
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{CutId, Epoch, Member, PhaseNo, Role, ShardId, Slot, Step};
use heddle_protocol::manifest::ShardFile;
use heddle_protocol::view::{self, EvaluationView};

use crate::action::{CallId, OperationId, StoreCall};
use crate::context::deadlines::Purpose;
use crate::core::{Core, JobStage, StoreCallPurpose};
use crate::event::Stored;
use crate::time::{MonotonicMs, Now};
use crate::work::phases::{NextStep, Work};
use crate::work::queue::QueueProgress;

/// How long work waits at the end of a phase for a periodic cut whose directory is being made. Made in milliseconds
/// as a rule; where the store does not answer, the cut is taken later and training goes on.
const STAGING_HOLDS_MS: u64 = 5_000;

/// BSP: tries in a row that name a step too late, each four times further ahead, before it waits for the next time.
pub(crate) const TRIES_MAX: u32 = 6;

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
    pub queue_progress: QueueProgress,
    pub snapped: BTreeMap<ShardId, Step>,
    pub saved: BTreeMap<ShardId, ShardFile>,
    /// Scores known when it was ordered.
    pub evaluations: Vec<EvaluationView>,
    /// Shards of the job.
    pub shards: usize,
    pub commit_tries: u32,
    /// The next try of the commit waits for its deadline.
    pub commit_waits: bool,
    /// People know that its commit waits for the ResourceManager.
    pub late_is_told: bool,
    /// A commit's outcome could not be found out: nothing of it may be removed.
    pub commit_unknown: bool,
}

/// The open cut and what is remembered between cuts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cuts {
    pub open: Option<Cut>,
    /// Numbers used in this generation.
    pub last_number: u32,
    pub wanted: Option<Reason>,
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
    pub next_steps: u64,
    /// A rollback took away a periodic one that was due or under way.
    pub overdue: bool,
    /// The last phase that ended, with BSP's number of steps.
    pub ended: Option<(Epoch, PhaseNo, Option<Step>)>,
}

impl Cuts {
    pub(crate) fn want(&mut self, reason: Reason) {
        self.wanted = self.wanted.max(Some(reason));
    }

    pub(crate) fn unwant(&mut self) {
        self.wanted = None;
    }

    /// Whether a periodic one is wanted or under way.
    pub(crate) fn is_due(&self) -> bool {
        let open = self.open.as_ref().map(|cut| cut.reason);
        open == Some(Reason::Due) || self.wanted == Some(Reason::Due)
    }

    /// Whether work may not go on to the next phase: some shard still has to snap, or a cut is wanted that
    /// belongs here. (A periodic one that comes while another is being saved is taken later.)
    pub(crate) fn holds_up(&self, now: MonotonicMs) -> bool {
        match &self.open {
            Some(cut)
                if cut.reason == Reason::Due
                    && !cut.is_ordered()
                    && now.since(cut.ordered.mono) >= STAGING_HOLDS_MS =>
            {
                false
            }
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
        if matches!(self.wanted, Some(Reason::Final | Reason::Due)) {
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

    pub(crate) fn all_saved(&self) -> bool {
        self.saved.len() == self.shards
    }

    /// Whether pservers have been told of it.
    pub(crate) fn is_ordered(&self) -> bool {
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
    pub(crate) fn command(&self) -> Command {
        let (cut, epoch, phase) = (self.id, self.epoch, self.phase);
        Command::Cut { cut, epoch, phase, at: self.at.clone(), staging: self.staging.clone() }
    }
}

impl Core {
    /// Whether a cut can be taken now or soon.
    pub(crate) fn can_cut(&self) -> bool {
        self.started
            && matches!(
                self.stage,
                JobStage::Idle(_) | JobStage::Beginning { .. } | JobStage::Working
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
                let all = self.map.is_covered_by(armed);
                if all {
                    self.cut_armed_everywhere();
                }
                all
            }
            Progress::Snapping => self.complete_cut(),
            Progress::Committing(None) => self.try_commit(),
        }
    }

    pub(crate) fn open_cut(&mut self) -> bool {
        let possible = matches!(
            self.stage,
            JobStage::Idle(_) | JobStage::Beginning { .. } | JobStage::Working
        );
        let Some(reason) = self.cuts.wanted.filter(|_| possible) else {
            return false;
        };
        if reason == Reason::Stop && self.stop_cut_waits() {
            return false;
        }
        self.cuts.wanted = None;
        self.cuts.last_number += 1;
        let id = CutId { generation: self.generation, number: self.cuts.last_number };
        let call = self.store(StoreCallPurpose::Stage(id), StoreCall::Stage { cut: id });
        self.deadlines.clear(Purpose::CutDue);
        let timeout = self.now.mono + self.config.spec.checkpoint.timeout.0;
        let timeout = match reason {
            Reason::Stop => self.stop_cut_begins(timeout),
            Reason::Due | Reason::Ordered | Reason::First | Reason::Final => timeout,
        };
        self.deadlines.set(Purpose::CutTimeout, timeout);
        self.deadlines.set(Purpose::CutStaging, self.now.mono + STAGING_HOLDS_MS);
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
            queue_progress: QueueProgress::default(),
            snapped: BTreeMap::new(),
            saved: BTreeMap::new(),
            evaluations: Vec::new(),
            shards: self.map.len(),
            commit_tries: 0,
            commit_waits: false,
            late_is_told: false,
            commit_unknown: false,
        });
        true
    }

    pub(crate) fn staged(&mut self, call: CallId, cut: CutId, outcome: Stored) {
        let wanted =
            self.cuts.open.as_mut().filter(|open| open.progress == Progress::Staging(call));
        match (outcome, wanted) {
            (Stored::Staged(dir), Some(open)) => {
                open.staging = dir;
                open.progress = Progress::Staged;
            }
            (Stored::Staged(staging), None) => {
                self.store(StoreCallPurpose::Housekeeping, StoreCall::Discard { cut, staging });
            }
            (Stored::NotDone { failure } | Stored::Unknown { failure }, Some(_)) => {
                self.cut_failed(failure.preventing("its directory could not be made"));
            }
            _ => {}
        }
    }

    /// Tells the pservers, if the job is in a stage that can be cut.
    pub(crate) fn order_cut(&mut self) -> bool {
        let between = match self.stage {
            JobStage::Idle(NextStep::Resume) => return false,
            JobStage::Idle(then) => Some(then),
            JobStage::Working => None,
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
        let evaluations = self.evaluations.iter().map(|(_, scores)| scores.clone()).collect();
        let Some(cut) = &mut self.cuts.open else {
            return false;
        };
        cut.phase = self.phase.no;
        cut.sharing = self.phase.sharing;
        cut.phase_is_over = matches!(between, Some(NextStep::Begin(_) | NextStep::End));
        cut.set = match &at {
            CutAt::Barriers(set) => set.iter().map(|member| (*member, false)).collect(),
            CutAt::Steps(_) => BTreeMap::new(),
        };
        cut.at = at;
        if let (Work::Queue(queue), Sharing::Queue) = (&self.phase.work, self.phase.sharing) {
            cut.queue_progress = queue.positions();
        }
        cut.evaluations = evaluations;
        cut.progress = Progress::Arming(BTreeSet::new());
        let command = Arc::new(cut.command());
        let slots: Vec<Slot> = self.map.slots().collect();
        for slot in slots {
            self.send(slot, Arc::clone(&command));
        }
        true
    }

    pub(crate) fn cut_timeout(&mut self) {
        let timeout = self.config.spec.checkpoint.timeout;
        self.end_cut(&format!("it took longer than checkpoint.timeout ({timeout})"));
    }

    /// Gives the open cut up for a reason that is not the storage's.
    pub(crate) fn end_cut(&mut self, reason: &str) {
        self.cut_failed(Failure::new(ErrorClass::Unreachable, reason));
    }

    /// Gives the open cut up. Its files are swept, joins are free, the job goes on.
    pub(crate) fn cut_failed(&mut self, failure: Failure) {
        let reason = &failure.text;
        let Some(cut) = self.sweep_cut() else {
            return;
        };
        self.cuts.late_tries = 0;
        for id in cut.asked_by {
            self.answer(id, Err(format!("checkpoint {} was given up: {reason}", cut.id)));
        }
        self.notice(view::Event::CheckpointGivenUp { cut: cut.id, reason: reason.clone() });
        match cut.reason {
            Reason::Due | Reason::Ordered | Reason::First => self.plan_next_cut(true),
            Reason::Stop => self.stop_cut_failed(reason),
            Reason::Final => self.final_cut_failed(&failure),
        }
    }

    /// BSP: takes the open cut again at once, with a step further ahead. Only the last of such tries is reported.
    pub(crate) fn name_later_step(&mut self) {
        let Some(cut) = self.sweep_cut() else {
            return;
        };
        self.cuts.late_tries += 1;
        self.cuts.asked_by.extend(cut.asked_by);
        self.cuts.want(cut.reason);
    }

    /// Ends the open cut on the pservers and removes what they have written of it.
    fn sweep_cut(&mut self) -> Option<Cut> {
        let mut cut = self.cuts.open.take()?;
        self.deadlines.clear(Purpose::CutTimeout);
        if cut.is_ordered() {
            for slot in self.registered_slots(Role::Pserver) {
                self.send(slot, Command::CutEnd { cut: cut.id, committed: false });
            }
        }
        // What may have become a checkpoint after all is left for the next attempt to judge.
        if !cut.staging.is_empty() && !cut.commit_unknown {
            self.store(
                StoreCallPurpose::Housekeeping,
                StoreCall::Discard { cut: cut.id, staging: std::mem::take(&mut cut.staging) },
            );
        }
        Some(cut)
    }

    pub(crate) fn end_of(&self, epoch: Epoch, phase: PhaseNo) -> Option<Option<Step>> {
        self.cuts.ended.filter(|(e, p, _)| *e == epoch && *p == phase).map(|(.., step)| step)
    }
}
