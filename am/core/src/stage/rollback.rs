//! Bringing all shards to one state: at the start of the job and after the loss of a pserver.
//!
//! 1. Journal the epoch, the checkpoint and the shard map. Nobody hears of it before it is durable: a successor
//!    must never use the same epoch for another state.
//! 2. Pservers go to the checkpoint's state and answer; those that are there tell at once, a replacement as soon as it
//!    registers. One that is already in the epoch only answers.
//! 3. When all shards are held, trainers get epoch and work, and drop what was in flight.
//!
//! A second loss meanwhile starts at 1 again, with the next epoch: driving the old record again could put a shard
//! that has gone on beside one that was just loaded. If the replacement does not come in time, the survivors take its
//! shards as far as these fit into their memory: another map, so another epoch. When the replacement comes after all,
//! its shards go back to it right after the next checkpoint, or with the next rollback.
//!
//! A checkpoint that is proven damaged leads to the next older one (or ends the job, as `checkpoint.on-corrupt` says),
//! and people are told. One that cannot be read just now is tried again and then fails the attempt: nothing older is
//! used, nothing is deleted, nothing ever starts from initial values silently.

use std::collections::{BTreeMap, BTreeSet};

use heddle_metrics::PhaseMetrics;
use heddle_protocol::control::{Base, Command};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{CutId, Epoch, PhaseNo, Role, Slot, Step};
use heddle_protocol::mutation::Mutation;
use heddle_protocol::spec::OnCorrupt;
use heddle_protocol::view;

use crate::action::StoreCall;
use crate::checkpoint::cut::{Progress, Reason};
use crate::checkpoint::manifest::queue_progress;
use crate::context::deadlines::Purpose;
use crate::core::{Core, JobStage, StoreCallPurpose};
use crate::event::Stored;
use crate::record::Record;
use crate::stage::shard_map::ShardMap;
use crate::work::phases::{NextStep, PhaseState, Work};

/// Shards on their way to a common state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Restoring {
    /// Slots that have answered for this epoch.
    pub answered: BTreeSet<Slot>,
    /// Why a load failed that is to be tried again.
    again: Option<String>,
}

impl Core {
    /// The epoch after the current one: of this generation, whatever the current one is of.
    fn next_epoch(&self) -> Epoch {
        if self.epoch.generation == self.generation && !self.map.is_empty() {
            self.epoch.next()
        } else {
            Epoch::first(self.generation)
        }
    }

    /// Where the base stands: phase, and in BSP the job steps applied.
    pub(crate) fn base_position(&self) -> (PhaseNo, Step) {
        self.base
            .as_ref()
            .map_or((PhaseNo(0), Step(0)), |base| (base.manifest.phase, base.manifest.step()))
    }

    /// A pserver is lost.
    pub(crate) fn pserver_lost(&mut self, slot: Slot, cause: &str) {
        match &mut self.stage {
            JobStage::Takeover(takeover) => return takeover.gone(slot),
            // The shards are not needed any more, or are about to be sent somewhere anyway.
            JobStage::New | JobStage::Exporting(_) | JobStage::Stopping(_) | JobStage::Over => {
                return;
            }
            JobStage::AwaitingCommit { .. } | JobStage::FindingCheckpoint { .. } => return,
            JobStage::Restoring(_)
            | JobStage::Idle(_)
            | JobStage::Beginning { .. }
            | JobStage::Working => {}
        }
        // One without shards has nothing to lose.
        if !self.map.of(slot).is_empty() {
            self.roll_back(format!("{slot} {cause}"));
        }
    }

    /// Starts a rollback, at once or when the outcome of a commit under way is known.
    pub(crate) fn roll_back(&mut self, cause: String) {
        // One that only waits for the ResourceManager has not been tried: there is no outcome to wait for.
        let committing = self.cuts.open.as_ref().is_some_and(|cut| {
            let untried = cut.progress == Progress::Committing(None) && cut.commit_tries == 0;
            matches!(cut.progress, Progress::Committing(_)) && !untried
        });
        if committing {
            self.stage = JobStage::AwaitingCommit { cause };
            return;
        }
        self.stage = JobStage::AwaitingCommit { cause: String::new() };
        self.cuts.overdue |= self.cuts.is_due();
        self.end_cut("a pserver was lost");
        // Giving a cut up may end the job.
        if matches!(self.stage, JobStage::AwaitingCommit { .. }) {
            self.restore(cause);
        }
    }

    pub(crate) fn settle_deciding(&mut self) -> bool {
        let JobStage::AwaitingCommit { cause } = &self.stage else {
            return false;
        };
        if self.cuts.open.is_some() {
            return false;
        }
        let cause = cause.clone();
        self.restore(cause);
        true
    }

    /// Step 1: the record; and step 2 to everybody who is there, as soon as it is durable.
    pub(crate) fn restore(&mut self, cause: String) {
        let epoch = self.next_epoch();
        self.map = match self.map.is_empty() {
            true => self.first_map(),
            false => self.map_of_returned(),
        };
        let (phase, step) = self.base_position();
        self.epoch = epoch;
        self.out.journal(Record::Restore {
            epoch,
            base: self.base.as_ref().map(|base| base.manifest.cut),
            dir: self.base.as_ref().map(|base| base.dir.clone()),
            phase,
            step,
            holders: self.map.holders().to_vec(),
            cause: cause.clone(),
            at_ms: self.now.wall_ms,
        });
        let base =
            self.base.as_ref().map(|base| (base.manifest.cut, base.manifest.at_ms, phase, step));
        self.recoveries_roll_back(epoch, base);
        self.forget_what_came_after(phase, step);
        self.message = cause;
        if self.is_over_before(phase) && self.base.is_some() {
            // All work is in the checkpoint; what is missing is the model.
            self.stage = JobStage::Idle(NextStep::End);
            return;
        }
        self.stage = JobStage::Restoring(Restoring::default());
        if self.started {
            self.deadlines
                .set(Purpose::Replacement, self.now.mono + self.config.limits.replacement_ms);
        }
        for slot in self.registered_slots(Role::Pserver) {
            self.hold(slot);
        }
    }

    /// Shards in turn over the pservers.
    pub(crate) fn first_map(&self) -> ShardMap {
        let spec = &self.config.spec.pservers;
        let holder = |shard| Slot::pserver(shard % spec.count);
        ShardMap::new((0..spec.shards).map(holder).collect())
    }

    /// A rollback makes everything false that was done after the checkpoint.
    fn forget_what_came_after(&mut self, phase: PhaseNo, step: Step) {
        let base = self.base.as_ref().map(|base| &base.manifest);
        let queue_progress = base.map(|base| queue_progress(&base.work)).unwrap_or_default();
        if phase == self.phase.no {
            self.phase.begin_again(self.generation, &queue_progress);
        } else {
            let step_rate = self.phase.step_rate;
            self.phase = PhaseState::new(&self.config, phase, self.generation);
            self.phase.step_rate = step_rate;
            if let Work::Queue(queue) = &mut self.phase.work {
                queue.restore(&queue_progress);
            }
        }
        if let (Work::Queue(_), Some(base)) = (&self.phase.work, base)
            && base.phase == phase
        {
            self.phase.metrics = PhaseMetrics::after(base.progress.bad_records_in_phase);
        }
        self.phase.step_rate.starts(step, self.now.mono);
        self.evaluations.retain(|(of, _)| *of < phase);
        self.cuts.roll_back();
    }

    /// Step 2, to one pserver.
    pub(crate) fn hold(&mut self, slot: Slot) {
        if !matches!(
            self.stage,
            JobStage::Restoring(_)
                | JobStage::Idle(_)
                | JobStage::Beginning { .. }
                | JobStage::Working
        ) {
            return;
        }
        let shards = self.map.of(slot).to_vec();
        let base = self.base.as_ref().map(|base| Base {
            cut: base.manifest.cut,
            dir: base.dir.clone(),
            files: shards
                .iter()
                .filter_map(|shard| {
                    Some((*shard, base.manifest.shards.get(shard.0 as usize)?.clone()))
                })
                .collect(),
        });
        // In a later stage it has answered for this epoch before: it goes nowhere and only answers again.
        let (phase, step) = (self.phase.wire(), self.base_position().1);
        self.send(slot, Command::LoadShards { epoch: self.epoch, shards, base, phase, step });
    }

    /// A pserver holds its shards.
    pub(crate) fn holding(&mut self, slot: Slot, epoch: Epoch) {
        if epoch == self.epoch
            && let JobStage::Restoring(restoring) = &mut self.stage
        {
            restoring.answered.insert(slot);
        }
    }

    /// A pserver cannot load a file.
    pub(crate) fn hold_failed(&mut self, slot: Slot, epoch: Epoch, failure: &Failure) {
        let JobStage::Restoring(restoring) = &mut self.stage else {
            return;
        };
        if epoch != self.epoch {
            return;
        }
        let error = &failure.text;
        if failure.class != ErrorClass::Corrupt {
            // One outage of the storage fails the loads of all pservers: that is one try.
            let cause = format!("{slot} could not load: {error}");
            if restoring.again.replace(cause).is_some() {
                return;
            }
            self.load_tries += 1;
            if self.load_tries > self.config.limits.store_tries {
                return self.fail(
                    ExitCode::Unreachable,
                    format!("the checkpoint cannot be read: {error}"),
                );
            }
            let wait_ms = self.config.limits.retry_ms << self.load_tries.min(6);
            self.deadlines.at_latest(Purpose::Retry, self.now.mono + wait_ms);
            return self.warn(format!("{slot} could not load, it will try again: {error}"));
        }
        let Some(base) = &self.base else {
            return self.fail(
                ExitCode::Internal,
                format!("{slot} found initial values to be corrupt: {error}"),
            );
        };
        let (below, dir) = (base.manifest.cut, base.dir.clone());
        match self.config.spec.checkpoint.on_corrupt {
            OnCorrupt::Fail => self.fail(
                ExitCode::Checkpoint,
                format!("checkpoint {below} is damaged: {error}; see `heddle checkpoint verify`"),
            ),
            OnCorrupt::Previous => {
                let root = self.config.spec.checkpoint.dir.url();
                let aside = format!("{}/damaged", root.trim_end_matches('/'));
                self.checkpoint_damaged(below, aside, error.clone());
                self.deadlines.clear(Purpose::Replacement);
                self.stage = JobStage::FindingCheckpoint {
                    cause: format!("checkpoint {below} is damaged: {error}"),
                };
                self.store(StoreCallPurpose::Search, StoreCall::OlderBase { below, dir });
            }
        }
    }

    /// The next older checkpoint, or that there is none.
    pub(crate) fn base_found(&mut self, outcome: Stored) {
        let JobStage::FindingCheckpoint { cause } = &self.stage else {
            return;
        };
        let cause = cause.clone();
        match outcome {
            Stored::Base { base: Some(base), damaged } => {
                for damaged in damaged {
                    self.checkpoint_damaged(damaged.cut, damaged.dir, damaged.error);
                }
                self.checkpoints.retain(|checkpoint| checkpoint.cut <= base.manifest.cut);
                self.base = Some(*base);
                self.restore(cause);
            }
            Stored::Base { base: None, .. } => self.fail(
                ExitCode::Checkpoint,
                format!("{cause}, and no older checkpoint is whole; `--fresh` trains anew"),
            ),
            Stored::NotDone { failure } | Stored::Unknown { failure } => {
                self.fail(
                    ExitCode::Unreachable,
                    format!("{cause}, and older checkpoints cannot be read: {failure}"),
                );
            }
            other => {
                self.fail(ExitCode::Internal, format!("an answer to another question: {other:?}"))
            }
        }
    }

    /// A wait is over: loads, commits and the end are tried again.
    pub(crate) fn retry(&mut self) {
        if let JobStage::Restoring(restoring) = &mut self.stage
            && let Some(cause) = restoring.again.take()
        {
            // A pserver whose load failed answers the same order with the same failure: a new epoch is a new order.
            self.restore(cause);
        }
        self.retry_commit();
        self.retry_end();
    }

    /// Step 3, once all shards are held.
    pub(crate) fn settle_restoring(&mut self) -> bool {
        let JobStage::Restoring(restoring) = &self.stage else {
            return false;
        };
        let stand = self.map.is_covered_by(&restoring.answered);
        if !(stand && self.map.slots().all(|slot| self.slots.holder(slot).is_some())) {
            return false;
        }
        self.load_tries = 0;
        self.deadlines.clear(Purpose::Replacement);
        self.message.clear();
        self.recoveries_held();
        if self.base.is_none() && !self.started {
            self.cuts.want(Reason::First);
        }
        self.stage = JobStage::Idle(NextStep::StartWork);
        if self.started {
            self.plan_cut_after_rollback();
            self.save_what_leaves();
            self.save_what_returns();
        }
        true
    }

    /// The replacement of a lost pserver has not come in time: the survivors take its shards.
    pub(crate) fn replacement_late(&mut self) {
        if !matches!(self.stage, JobStage::Restoring(_)) {
            return;
        }
        let survivors: BTreeSet<Slot> = self.registered_slots(Role::Pserver).into_iter().collect();
        let missing: Vec<Slot> =
            self.map.slots().filter(|slot| !survivors.contains(slot)).collect();
        let missing_text: Vec<String> = missing.iter().map(Slot::to_string).collect();
        let missing_text = missing_text.join(", ");
        let spread = (!missing.is_empty()).then(|| self.spread(&survivors));
        let Some(Some(map)) = spread else {
            // All are there and some still load, or the survivors cannot take what is missing.
            if spread.is_some() {
                self.message = format!(
                    "waiting for a container for {missing_text}: the other pservers have no room for its shards (pservers.memory)"
                );
            }
            self.deadlines
                .set(Purpose::Replacement, self.now.mono + self.config.limits.replacement_ms);
            return;
        };
        self.map = map;
        self.restore(format!("no replacement came for {missing_text}: the others take over"));
    }

    /// The shard map with each shard of a missing pserver at the survivor that holds fewest; none if they do not fit
    /// into the survivors' memory: a pserver that YARN ends for its memory costs another rollback and comes to
    /// the same end again.
    fn spread(&self, survivors: &BTreeSet<Slot>) -> Option<ShardMap> {
        let mut room: BTreeMap<Slot, (u32, u32)> = BTreeMap::new();
        for slot in survivors {
            let held = self.map.of(*slot).len() as u32;
            let memory = self.memory_of(*slot).unwrap_or(self.config.spec.pservers.memory);
            room.insert(*slot, (held, self.config.spec.shards_that_fit(memory)));
        }
        let mut map = self.map.holders().to_vec();
        for slot in map.iter_mut().filter(|slot| !survivors.contains(slot)) {
            let open = room.iter_mut().filter(|(_, (held, fit))| held < fit);
            let (taker, (held, _)) = open.min_by_key(|(slot, (held, _))| (*held, **slot))?;
            *slot = *taker;
            *held += 1;
        }
        Some(ShardMap::new(map))
    }

    /// The shard map with each shard of a survivor at its own pserver again, where that is registered.
    fn map_of_returned(&self) -> ShardMap {
        let own = |(held_by, home): (&Slot, Slot)| match self.slots.holder(home) {
            Some(_) => home,
            None => *held_by,
        };
        let homes = self.first_map();
        let homes = homes.holders().iter().copied();
        ShardMap::new(self.map.holders().iter().zip(homes).map(own).collect())
    }

    /// A pserver registered whose shards survivors hold. They go back right after a checkpoint, when a rollback costs
    /// no work.
    pub(crate) fn save_what_returns(&mut self) {
        if self.started && self.map != self.map_of_returned() {
            self.save_now();
        }
    }

    /// A checkpoint exists: shards go back to pservers that were replaced late.
    pub(crate) fn return_shards(&mut self) {
        let map = self.map_of_returned();
        let stays = matches!(
            self.stage,
            JobStage::Idle(_) | JobStage::Beginning { .. } | JobStage::Working
        );
        if stays && self.map != map {
            self.restore("shards go back to pservers that were replaced".to_owned());
        }
    }

    /// Sets the allocation timeout while containers are missing that the job cannot begin without, and clears it
    /// when they are there: loading, cuts and exports that follow have limits of their own.
    pub(crate) fn watch_allocation(&mut self) {
        let waits = match &self.stage {
            JobStage::New | JobStage::Takeover(_) | JobStage::Stopping(_) | JobStage::Over => {
                return;
            }
            _ if self.started || self.config.limits.allocation_ms == 0 => false,
            // The job is trained: one trainer writes the model.
            JobStage::Exporting(_) => {
                self.config.output.is_some() && self.slots.held(Role::Trainer) == 0
            }
            JobStage::AwaitingCommit { .. }
            | JobStage::FindingCheckpoint { .. }
            | JobStage::Restoring(_)
            | JobStage::Idle(_)
            | JobStage::Beginning { .. }
            | JobStage::Working => {
                let pservers = self.slots.held(Role::Pserver);
                let trainers = self.slots.held(Role::Trainer);
                pservers < self.config.spec.pservers.count as usize
                    || trainers < self.trainers_to_start() as usize
            }
        };
        match (waits, self.deadlines.at(Purpose::Allocation)) {
            (true, None) => self
                .deadlines
                .set(Purpose::Allocation, self.now.mono + self.config.limits.allocation_ms),
            (false, Some(_)) if !self.started && Mutation::AllocationTimeoutRunsOn.is_on() => {}
            (false, Some(_)) => self.deadlines.clear(Purpose::Allocation),
            (true, Some(_)) | (false, None) => {}
        }
    }

    /// Containers that the job cannot begin without have not come in time.
    pub(crate) fn allocation_timeout(&mut self) {
        let (pservers, trainers) = (self.slots.held(Role::Pserver), self.slots.held(Role::Trainer));
        let spec = &self.config.spec;
        let mut message = format!(
            "not enough containers came in {} s: {pservers} of {} pservers, {trainers} of at least {} trainers",
            self.config.limits.allocation_ms / 1000,
            spec.pservers.count,
            spec.trainers.min
        );
        if !self.cluster_says.is_empty() {
            message.push_str("; ");
            message.push_str(&self.cluster_says);
        }
        message.push_str("; all were given back: ask for fewer or smaller ones, another yarn.queue, or a longer yarn.allocation-timeout");
        self.fail(ExitCode::Refused, message);
    }

    /// Tells people of a checkpoint that is not used.
    pub(crate) fn checkpoint_damaged(&mut self, cut: CutId, dir: String, error: String) {
        self.notice(view::Event::CheckpointDamaged { cut, dir, error });
    }

    /// What people hear first.
    pub(crate) fn say_started(&mut self) {
        let event = view::Event::Started {
            run: self.config.run,
            name: self.config.spec.name.clone(),
            attempt: self.attempt,
            address: self.config.address.clone(),
            resumed_from: self.base.as_ref().map(|base| base.manifest.cut),
        };
        self.notice(event);
    }
}
