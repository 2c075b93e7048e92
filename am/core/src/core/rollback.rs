//! Rollback: all shards go to one state, at the start of the job and after the loss of a pserver.
//!
//! 1. Journal the epoch, the checkpoint and the shard map. No command carries the epoch before the record is durable: a
//!    successor must never use the same epoch for another state.
//! 2. Pservers load the state of the checkpoint and answer; those that are there get the command at once, a replacement
//!    when it registers. One that is already in the epoch only answers.
//! 3. When all shards are loaded, trainers get epoch and work, and drop what was in flight.
//!
//! A second loss meanwhile starts at 1 again, with the next epoch: repeating the old record could put a shard that has gone
//! on beside one that was just loaded. Shards of a lost pserver go to a spare at once, if there is one. If no container comes
//! in time, the survivors take its shards as far as these fit into their memory: another map, so another epoch. When the
//! replacement comes after all, its shards return to it right after the next checkpoint, or with the next rollback.
//!
//! A checkpoint that is proven damaged leads to the next older one (or ends the job, by `checkpoint.on-corrupt`), and
//! a notice reports it. One that cannot be read at the moment is tried again and then fails the attempt: nothing older is
//! used, nothing is deleted, and the job never starts from initial values silently.

use std::collections::BTreeMap;

use heddle_protocol::control::{Base, LoadShards, PserverCommand};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{Epoch, PhaseNo, Role, ShardId, Slot, Step};
use heddle_protocol::job_spec::{OnCorrupt, PserverMemory};
use heddle_protocol::view::{self, WarningCode};

use super::Core;
use crate::action::StoreCall;
use crate::checkpoint::Checkpoints;
use crate::checkpoint::cut::CutReason;
use crate::checkpoint::manifest::task_positions;
use crate::context::StoreCallPurpose;
use crate::context::deadlines::{Purpose, Retried};
use crate::event::Stored;
use crate::failure::{JobFailure, exit_after_tries};
use crate::record::Record;
use crate::stage::recovery_timing::RestoredCheckpoint;
use crate::stage::shard_map::ShardMap;
use crate::stage::{JobStage, NextStep, RestoredShards, Restoring, StageKind};

/// Least time between two looks for a replacement, where `pservers.replacement` is shorter.
const REPLACEMENT_LOOK_MS: u64 = 1_000;

impl Core {
    /// The epoch after the current one: of this generation, whatever the current one is of.
    pub(super) fn next_epoch(&self) -> Epoch {
        let (epoch, generation) = (self.ctx.epoch(), self.ctx.generation());
        if epoch.generation == generation && !self.stage.map().is_empty() {
            epoch.next()
        } else {
            Epoch::first(generation)
        }
    }

    /// A pserver is lost.
    pub(super) fn pserver_lost(&mut self, slot: Slot, cause: &str) {
        if let Some(takeover) = self.stage.takeover() {
            return takeover.lost(slot);
        }
        self.note_lost_shards(slot);
        // In the other stages the shards are not needed any more, or are about to be loaded anyway.
        let rolls_back = self.stage.is_in_phase() || self.stage.kind() == StageKind::Restoring;
        // A pserver without copies of shards has nothing to lose.
        let holds =
            !self.stage.map().copies_of(slot).is_empty() || self.stage.views().all().names(slot);
        if !rolls_back || !holds {
            if self.stage.is_in_phase() {
                self.nothing_to_promote(slot);
            }
            return;
        }
        if self.stage.is_in_phase() && self.stage.views().are_settled() {
            match self.fail_over(slot, cause) {
                Ok(()) => return,
                Err(none_left) if self.moves_shards() => {
                    return self.roll_back(format!("{slot} {cause}; {none_left}"));
                }
                // That is so with each loss.
                Err(_) => {}
            }
        }
        self.roll_back(format!("{slot} {cause}"));
    }

    /// Starts a rollback, at once or when the outcome of a commit under way is known.
    fn roll_back(&mut self, cause: String) {
        if self.checkpoints.is_outcome_open() {
            return self.stage.go(JobStage::AwaitingCommit { cause });
        }
        let ended = self.checkpoints.end_for_rollback(&self.fleet, &mut self.ctx);
        self.cut_ended_by(ended, true);
        // The end of the cut may have ended the job.
        self.lost_while_saving(&cause);
        if !self.stage.is_stopping() {
            self.restore(cause);
        }
    }

    pub(super) fn advance_awaiting_commit(&mut self) -> bool {
        let JobStage::AwaitingCommit { cause } = self.stage.now() else {
            return false;
        };
        if self.checkpoints.is_open() {
            return false;
        }
        let cause = cause.clone();
        self.restore(cause);
        true
    }

    /// Shards in turn over the pservers.
    pub(super) fn even_map(&self) -> ShardMap {
        let config = self.ctx.config();
        ShardMap::even(config.spec.shards(), self.fleet.wanted().pservers)
    }

    /// The shard map with the shards of each pserver together again, as far as pservers are registered.
    pub(super) fn returned_map(&self) -> ShardMap {
        self.stage.map().returned(&self.even_map(), &self.pservers_there())
    }

    /// Step 1: the record; and step 2 to all registered pservers, as soon as it is durable.
    pub(super) fn restore(&mut self, cause: String) {
        let alone = self.shards_to_return_alone();
        self.begin_epoch(alone, cause);
    }

    /// Begins an epoch. `alone`: the shards that go back by themselves, if the others keep their state.
    fn begin_epoch(&mut self, alone: Option<Vec<ShardId>>, cause: String) {
        let epoch = self.next_epoch();
        let before = self.stage.map().clone();
        let (even, there) = (self.even_map(), self.pservers_there());
        self.stage.set_map(match &alone {
            _ if before.is_empty() => even,
            Some(_) => before.refilled(&even, &there),
            None => before.returned(&even, &there),
        });
        self.spares_take_over(&before);
        let of_base = self.lost_in_base();
        match &alone {
            Some(_) => self.stage.losses_mut().open(of_base),
            None => self.stage.losses_mut().all_go_back(of_base),
        }
        let (phase, step) = match &alone {
            Some(_) => (self.work.phase(), Step(0)),
            None => self.checkpoints.base_position(),
        };
        self.ctx.set_epoch(epoch);
        self.stage.views_mut().begin_epoch();
        self.record_epoch(phase, step, alone.as_deref(), &cause);
        let (started, restored) = (self.stage.has_started(), self.restored_checkpoint());
        if alone.is_some() {
            self.stage.recoveries_mut().lose_updates(None);
        }
        self.stage.recoveries_mut().roll_back(restored, &self.ctx);
        let manifest = self.checkpoints.base_manifest();
        let has_base = manifest.is_some();
        match &alone {
            Some(_) => self.work.dispatch_again(&self.ctx),
            None => {
                let positions = manifest.map(|base| task_positions(&base.work));
                let positions = positions.unwrap_or_default();
                self.work.roll_back(phase, step, manifest, &positions, &self.ctx);
            }
        }
        self.checkpoints.roll_back(&mut self.ctx);
        self.ctx.set_message(cause);
        if alone.is_none() && has_base && self.work.is_over_before(phase, &self.ctx) {
            // All work is in the checkpoint; only the model is missing.
            return self.stage.go(JobStage::Idle(NextStep::End));
        }
        self.stage
            .go(JobStage::Restoring(Restoring { since: self.ctx.now(), ..Restoring::default() }));
        if started {
            self.await_replacement();
        }
        for slot in self.fleet.registered_slots(Role::Pserver) {
            self.load_shards(slot);
        }
    }

    /// The record of an epoch, and its report. `alone`: as in [`Self::begin_epoch`].
    fn record_epoch(&mut self, phase: PhaseNo, step: Step, alone: Option<&[ShardId]>, cause: &str) {
        let (epoch, base) = (self.ctx.epoch(), self.checkpoints.base());
        let cut = base.map(|base| base.manifest.cut);
        self.ctx.journal(Record::Restore {
            epoch,
            base: cut,
            dir: base.map(|base| base.dir.clone()),
            phase,
            step,
            holders: self.stage.map().holders().to_vec(),
            lost: alone.unwrap_or_default().to_vec(),
            cause: cause.to_owned(),
            at_ms: self.ctx.wall_ms(),
        });
        if self.stage.has_started() {
            let all = self.ctx.config().spec.pservers.shards;
            self.ctx.notice(view::JobEvent::RollbackStarted {
                epoch,
                base: cut,
                shards: alone.map_or(all, |alone| alone.len() as u32),
                cause: cause.to_owned(),
            });
        }
    }

    /// The checkpoint that shards go back to.
    pub(super) fn restored_checkpoint(&self) -> Option<RestoredCheckpoint> {
        let (phase, step) = self.checkpoints.base_position();
        self.checkpoints.base().map(|base| RestoredCheckpoint {
            cut: base.manifest.cut,
            at_ms: base.manifest.at_ms,
            save_ms: self.checkpoints.save_ms(base.manifest.cut),
            phase,
            step,
        })
    }

    pub(super) fn await_replacement(&mut self) {
        let replacement_ms = self.ctx.limits().replacement_ms;
        self.ctx.set_deadline(Purpose::Replacement, self.ctx.now() + replacement_ms);
    }

    /// Shards still load, or do not fit: without a wait (`pservers.replacement` = 0s) this would be asked all the time.
    fn look_again_for_replacement(&mut self) {
        let again_ms = self.ctx.limits().replacement_ms.max(REPLACEMENT_LOOK_MS);
        self.ctx.set_deadline(Purpose::Replacement, self.ctx.now() + again_ms);
    }

    /// Step 2, to one pserver.
    pub(super) fn load_shards(&mut self, slot: Slot) {
        if !self.stage.is_in_phase() && self.stage.kind() != StageKind::Restoring {
            return;
        }
        if self.moves_shards() && !self.stage.views().are_placed() {
            // The copies are placed when all pservers are there.
            return;
        }
        let shards = self.stage.map().copies_of(slot).to_vec();
        let turn = |slot, shard| self.stage.map().turn(slot, shard);
        // One without copies may have to fill some, and learns by the views that the job has replicas.
        let all = || self.stage.map().iter().map(|(shard, _)| shard).collect();
        let viewed = if shards.is_empty() { all() } else { shards.clone() };
        let sends = self.moves_shards();
        let views = sends.then(|| self.stage.views().all().wire(&viewed, turn, &self.fleet));
        let views = views.unwrap_or_default();
        let base = self.checkpoints.base().map(|base| {
            let file = |shard: &ShardId| {
                let file = base.manifest.shards.get(shard.0 as usize);
                debug_assert!(
                    file.is_some() || base.manifest.initial,
                    "a base with files has one of each shard of the job"
                );
                Some((*shard, file?.clone()))
            };
            Base {
                cut: base.manifest.cut,
                run: base.manifest.run,
                epoch: base.manifest.epoch,
                dir: base.dir.clone(),
                files: shards.iter().filter_map(file).collect(),
                initial: base.manifest.initial,
            }
        });
        // In a later stage it has answered for this epoch before: it changes nothing and only answers again.
        let (_, step) = self.checkpoints.base_position();
        let (epoch, phase, lost) = (self.ctx.epoch(), self.work.wire(), self.lost_shards());
        let load = LoadShards { epoch, shards, base, phase, step, views, lost };
        self.fleet.send(slot, PserverCommand::LoadShards(load), &mut self.ctx);
    }

    /// A pserver cannot load a file.
    pub(super) fn load_failed(&mut self, slot: Slot, epoch: Epoch, failure: &Failure) {
        if epoch != self.ctx.epoch() || self.stage.kind() != StageKind::Restoring {
            return;
        }
        let error = &failure.text;
        if failure.class == ErrorClass::Corrupt {
            return self.base_damaged(error);
        }
        let Some(tries) = self.stage.load_failed(format!("{slot} could not load: {error}")) else {
            return;
        };
        if tries > self.ctx.limits().store_tries {
            let message = format!("the checkpoint cannot be read: {error}");
            return self.fail(JobFailure::new(ExitCode::Unreachable, message));
        }
        self.ctx.retry_later(Retried::Load, tries);
        let text = format!("{slot} cannot load its shards and tries again: {error}");
        self.ctx.warn(WarningCode::LoadRetried, text);
    }

    /// The wait before another load is over.
    pub(super) fn load_again(&mut self) {
        // A pserver whose load failed answers the same order with the same failure: a new epoch is a new order.
        if let Some(cause) = self.stage.take_load_retry() {
            self.restore(cause);
        }
    }

    /// A pserver has loaded a shard from another copy of its file.
    pub(super) fn copies_passed_over(
        &mut self,
        slot: Slot,
        epoch: Epoch,
        shard: ShardId,
        passed: &[String],
    ) {
        let base = self.checkpoints.base().map(|base| base.manifest.cut);
        let Some(cut) = base.filter(|_| epoch == self.ctx.epoch()) else {
            return;
        };
        let text = format!("{slot} restored shard {shard} of checkpoint {cut} from another copy");
        self.ctx.warn(WarningCode::CopyUsed, format!("{text}: {}", passed.join("; ")));
        self.ctx.store(StoreCallPurpose::Replace(shard), StoreCall::ReplaceCopies { cut, shard });
    }

    fn base_damaged(&mut self, error: &str) {
        let Some(base) = self.checkpoints.base() else {
            // Only those of another job's checkpoint can be. Other values than at first would be another job.
            let message = format!("model.init: {error}; name another checkpoint");
            return self.fail(JobFailure::new(ExitCode::Checkpoint, message));
        };
        let below = base.manifest.cut;
        let config = self.ctx.config();
        let cause = format!("checkpoint {below} is damaged: {error}");
        match config.spec.checkpoint.on_corrupt {
            OnCorrupt::Fail => {
                let message = format!("{cause}; see `heddle checkpoint verify`");
                self.fail(JobFailure::new(ExitCode::Checkpoint, message));
            }
            OnCorrupt::Previous => {
                self.ctx.clear_deadline(Purpose::Replacement);
                self.stage.go(JobStage::FindingCheckpoint { cause });
                let error = error.to_owned();
                self.ctx.store(StoreCallPurpose::Search, StoreCall::OlderBase { below, error });
            }
        }
    }

    /// The store has looked for an older checkpoint.
    pub(super) fn base_found(&mut self, outcome: Stored) {
        let JobStage::FindingCheckpoint { cause } = self.stage.now() else {
            return;
        };
        let cause = cause.clone();
        match outcome {
            Stored::Base { base, damaged } => {
                Checkpoints::report_damaged(damaged, &mut self.ctx);
                let Some(base) = base else {
                    let none =
                        "no earlier valid checkpoint exists; rerun with `--fresh` to start over";
                    let message = format!("{cause}, and {none}");
                    return self.fail(JobFailure::new(ExitCode::Checkpoint, message));
                };
                self.checkpoints.use_older(*base);
                if !self.stage.has_started() {
                    self.report_start();
                }
                self.restore(cause);
            }
            Stored::NotDone { failure } | Stored::Unknown { failure } => {
                let message = format!("{cause}, and older checkpoints cannot be read: {failure}");
                self.fail(JobFailure::new(exit_after_tries(&failure), message));
            }
            other => self.fail(JobFailure::new(
                ExitCode::Internal,
                format!("the store replied to a search for a checkpoint with {other:?}"),
            )),
        }
    }

    /// Step 3, once all shards are loaded.
    pub(super) fn advance_restoring(&mut self) -> bool {
        let JobStage::Restoring(Restoring { since, sources, .. }) = *self.stage.now() else {
            return false;
        };
        if !self.stage.is_restored(&self.fleet) {
            return self.place_copies();
        }
        self.settle_views();
        self.shards_are_whole();
        self.stage.loads_succeeded();
        self.ctx.clear_deadline(Purpose::Replacement);
        self.ctx.clear_message();
        self.stage.recoveries_mut().loaded(&self.ctx);
        let started = self.stage.has_started();
        if self.checkpoints.base().is_none() && !started {
            let inherits = self.ctx.config().spec.model.init.is_some();
            self.checkpoints.want(if inherits { CutReason::First } else { CutReason::Initial });
        }
        self.stage.go(JobStage::Idle(NextStep::StartWork));
        if started {
            let (epoch, took_ms) = (self.ctx.epoch(), self.ctx.now().since(since));
            let RestoredShards { from_memory, from_storage } = sources;
            self.ctx.notice(view::JobEvent::RollbackFinished {
                epoch,
                took_ms,
                from_memory,
                from_storage,
            });
            self.checkpoints.plan_after_rollback(false, &self.work, &self.fleet, &mut self.ctx);
            self.save_before_departure();
            self.save_before_return();
        }
        true
    }

    /// The replacement of a lost pserver has not come in time: the survivors take its shards.
    pub(super) fn replacement_timed_out(&mut self) {
        if self.stage.kind() != StageKind::Restoring {
            return;
        }
        let registered = self.fleet.holders(Role::Pserver).map(|holder| holder.member.slot);
        let room: BTreeMap<Slot, u32> =
            registered.map(|slot| (slot, self.shards_that_fit(slot))).collect();
        let slots = self.stage.map().slots();
        let missing: Vec<String> =
            slots.filter(|slot| !room.contains_key(slot)).map(|slot| slot.to_string()).collect();
        if missing.is_empty() {
            // All are there and some still load.
            return self.look_again_for_replacement();
        }
        let missing = missing.join(", ");
        let Some(map) = self.stage.map().spread(&room) else {
            self.say_what_does_not_fit(&missing, room.values().sum());
            return self.look_again_for_replacement();
        };
        self.stage.set_map(map);
        // The request for it may step back now.
        self.fleet.look_at_slots();
        self.begin_epoch(None, format!("no replacement came for {missing}: the others take over"));
    }

    /// The survivors have room for this number of shards, fewer than there are. Warns once for each loss.
    fn say_what_does_not_fit(&mut self, missing: &str, room: u32) {
        let spec = &self.ctx.config().spec;
        let lacking = spec.pservers.shards.saturating_sub(room);
        let bytes = PserverMemory::for_one_more_shard(spec).0.saturating_mul(u64::from(lacking));
        let message = format!(
            "waiting for a container for {missing}: the other pservers have no room for {lacking} of its shards; {} MiB are missing (pservers.memory), nothing is moved",
            bytes.div_ceil(1 << 20)
        );
        if self.ctx.message() != message {
            self.ctx.warn(WarningCode::NoRoomForShards, message.clone());
            self.ctx.set_message(message);
        }
    }

    /// How many shards fit into a pserver's memory.
    fn shards_that_fit(&self, slot: Slot) -> u32 {
        let config = self.ctx.config();
        let memory = self.fleet.memory_of(slot, &self.ctx);
        PserverMemory::shards_that_fit(&config.spec, memory.unwrap_or(config.spec.pservers.memory))
    }

    /// A pserver registered whose shards survivors hold. They return right after a checkpoint, when a rollback costs no
    /// work.
    pub(super) fn save_before_return(&mut self) {
        if self.stage.has_started() && self.shards_can_return() {
            self.save_now();
        }
    }

    /// Whether survivors hold shards for which a pserver is there. With replicas a failover does not cause a rollback: they return
    /// with the next one.
    fn shards_can_return(&self) -> bool {
        !self.moves_shards() && *self.stage.map() != self.returned_map()
    }

    /// A checkpoint exists: shards return to pservers that were replaced late.
    pub(super) fn return_shards(&mut self) {
        if self.stage.is_in_phase() && self.shards_can_return() {
            self.restore("shards go back to pservers that were replaced".to_owned());
        }
    }
}
