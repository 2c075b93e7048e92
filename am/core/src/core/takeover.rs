//! Start of an attempt: from nothing, from a checkpoint, or beside containers that an earlier attempt left running.
//!
//! How the reports of surviving containers are judged is in `stage::takeover`.

use std::collections::BTreeMap;

use heddle_protocol::control::ShardState;
use heddle_protocol::ids::{Epoch, PhaseNo, RECORD_COUNTER, Role, Slot};
use heddle_protocol::job_spec::{JobSpec, KeptPass, TableUse, table_use};
use heddle_protocol::mutation::Mutation;
use heddle_protocol::view::{self, EvaluationView, JobState, RecoveryView, WarningCode};

use super::Core;
use super::takeover_replicas::last_views;
use crate::action::{ContainerName, ContainerOrder};
use crate::checkpoint::Checkpoints;
use crate::checkpoint::manifest::task_positions;
use crate::context::deadlines::Purpose;
use crate::event::{DamagedCheckpoint, StartupState, SurvivingContainer};
use crate::outcome::Outcome;
use crate::record::Record;
use crate::stage::shard_map::ShardMap;
use crate::stage::takeover::{ReplicasThere, Takeover};
use crate::stage::{JobStage, NextStep, StageKind};
use crate::work::evaluation::{known_evaluations, scores_may_end};
use crate::work::task_errors::known_set_aside;
use crate::work::training_loss::known_passes;

/// Once all shards are there, how long to wait for trainers: several heartbeats.
const TRAINERS_MS: u64 = 10_000;

/// The outcome of a job that has finished.
fn finished_outcome(journal: &[Record]) -> Option<Outcome> {
    journal.iter().rev().find_map(|record| match record {
        Record::Outcome(outcome) if outcome.state == JobState::Finished => Some(outcome.clone()),
        _ => None,
    })
}

/// The last epoch, and by shard the slot that held it.
fn last_epoch(journal: &[Record]) -> Option<(Epoch, Vec<Slot>)> {
    journal.iter().rev().find_map(|record| match record {
        Record::Restore { epoch, holders, .. } => Some((*epoch, holders.clone())),
        _ => None,
    })
}

/// Scores that the base has and the journal lacks, if the end of training or the kept model follows from them. With a base that
/// is damaged later its manifest is set aside, while the containers may still have what was trained since.
fn unrecorded_scores(
    spec: &JobSpec,
    known: &[(PhaseNo, EvaluationView)],
    journal: &[Record],
) -> Vec<(PhaseNo, EvaluationView)> {
    if !scores_may_end(spec) && spec.training.keep != KeptPass::Best {
        return Vec::new();
    }
    let is_recorded = |of: PhaseNo| {
        let same =
            |record: &Record| matches!(record, Record::Evaluated { phase, .. } if *phase == of);
        journal.iter().any(same)
    };
    known.iter().filter(|(phase, _)| !is_recorded(*phase)).cloned().collect()
}

impl Core {
    /// The attempt starts.
    pub(super) fn start(&mut self, startup: StartupState) {
        if self.stage.kind() != StageKind::New {
            return;
        }
        let StartupState {
            attempt,
            generation,
            journal,
            base,
            damaged,
            checkpoints,
            kept,
            unfinished,
        } = startup;
        self.ctx.set_identity(attempt, generation);
        self.ctx.cluster_answered();
        let config = self.ctx.config();
        let has_state = table_use(&config.spec) == TableUse::Push;
        self.checkpoints.begin(base, &checkpoints, has_state);
        let manifest = self.checkpoints.base_manifest();
        let evaluations = known_evaluations(&config.spec, manifest, &journal);
        let passes = known_passes(&config.spec, manifest, &journal);
        let unrecorded = unrecorded_scores(&config.spec, &evaluations, &journal);
        let set_aside = known_set_aside(manifest, &journal);
        self.work.begin(manifest, evaluations, passes, set_aside);
        self.saves.begin(&journal, self.ctx.time());
        if let Some(outcome) = finished_outcome(&journal) {
            // The work is done; only the end of the application is missing.
            self.release_all(kept);
            return self.stage.go(JobStage::Stopping(outcome));
        }
        self.fleet.begin(&journal, &self.ctx);
        self.await_controller();
        self.take_over_losses(&journal);
        self.claim(damaged, unfinished);
        for (phase, scores) in unrecorded {
            let epoch = Epoch::first(generation);
            self.ctx.journal(Record::Evaluated { epoch, phase, scores });
        }
        match last_epoch(&journal).filter(|(_, holders)| self.can_adopt(holders, &kept)) {
            Some((epoch, holders)) => {
                self.ctx.set_epoch(epoch);
                self.stage.set_map(ShardMap::new(holders));
                match last_views(&journal, epoch, self.stage.map().len()) {
                    Some((views, placed)) => {
                        self.stage.views_mut().take_over(views, placed);
                        self.stage.set_map(ShardMap::new(self.stage.views().all().holders()));
                    }
                    None if self.moves_shards() => {}
                    None => self.stage.take_over_places(),
                }
                self.adopt(kept);
            }
            None => {
                // The containers hold no state that this attempt can use.
                self.release_all(kept);
                let has_base = self.checkpoints.base().is_some();
                let cause = if has_base { "continued from a checkpoint" } else { "started" };
                self.restore(cause.to_owned());
            }
        }
    }

    /// Records the claim and reports the start.
    fn claim(&mut self, damaged: Vec<DamagedCheckpoint>, unfinished: Vec<RecoveryView>) {
        let attempt = self.ctx.attempt();
        let base = self.checkpoints.base_manifest().map(|base| base.cut);
        self.ctx.journal(Record::Claim {
            attempt,
            generation: self.ctx.generation(),
            base,
            at_ms: self.ctx.wall_ms(),
        });
        self.report_start();
        if attempt.0 > 1 {
            let position = self.position();
            self.stage.recoveries_mut().open_for_am(unfinished, position, &self.ctx);
        }
        let any_damaged = !damaged.is_empty();
        Checkpoints::report_damaged(damaged, &mut self.ctx);
        let best = self.work.lowest_loss().map(|best| best.pass);
        if any_damaged
            && self.ctx.config().spec.training.keep == KeptPass::Best
            && let Some(best) = best.filter(|best| Some(*best) != self.checkpoints.kept_pass())
        {
            self.ctx.warn(WarningCode::BestPassLost, format!(
                "no whole checkpoint has pass {}, the best one so far: the model may be that of another pass",
                best + 1
            ));
        }
    }

    /// Reports the start, and from which checkpoint: again if pservers find that one damaged before work begins.
    pub(super) fn report_start(&mut self) {
        let config = self.ctx.config();
        self.ctx.notice(view::JobEvent::Started {
            run: config.run,
            name: config.spec.name.clone(),
            attempt: self.ctx.attempt(),
            address: config.address.clone(),
            resumed_from: self.checkpoints.base_manifest().map(|base| base.cut),
        });
    }

    /// Whether the surviving containers may hold the shards of the last epoch. The shards have its phase.
    fn can_adopt(&self, holders: &[Slot], kept: &[SurvivingContainer]) -> bool {
        let shards = self.ctx.config().spec.shards() as usize;
        !kept.is_empty()
            && shards > 0
            && holders.len() == shards
            && holders.iter().all(|slot| self.fleet.has_slot(*slot))
    }

    fn adopt(&mut self, kept: Vec<SurvivingContainer>) {
        let containers: Vec<ContainerName> =
            kept.iter().map(|kept| kept.container.clone()).collect();
        self.fleet.adopt(kept.into_iter().map(|kept| (kept.container, kept.node)));
        let takeover_ms = self.ctx.limits().takeover_ms;
        self.ctx.set_deadline(Purpose::Takeover, self.ctx.now() + takeover_ms);
        self.stage.recoveries_mut().await_notice();
        self.stage.go(JobStage::Takeover(Takeover::new(containers)));
    }

    fn release_all(&mut self, kept: Vec<SurvivingContainer>) {
        for SurvivingContainer { container, node: _ } in kept {
            self.ctx.order(ContainerOrder::Release(container));
        }
    }

    /// When every shard is held, nothing needs to be waited for.
    pub(super) fn advance_takeover(&mut self) -> bool {
        let there = self.copies_there();
        // Asked with the registration of each trainer: where all primaries are there, the map is not looked through again.
        let has_all_pservers =
            there != ReplicasThere::AllPrimaries && self.stage.has_all_pservers();
        let Some(takeover) = self.stage.takeover() else {
            return false;
        };
        let waits = takeover.waits_for_containers(&self.fleet);
        let timed_out = takeover.has_timed_out();
        // All pservers are there and do not stand together, or one was gone before this attempt began: waiting longer
        // cannot help.
        let hopeless = has_all_pservers || !waits;
        match there {
            ReplicasThere::AllPrimaries if waits && !timed_out => {
                // Trainers work on by themselves; those that live register within a moment, with their tasks.
                self.await_trainers();
                false
            }
            ReplicasThere::AllPrimaries => self.take_over_copies(),
            ReplicasThere::Promotable => {
                // A primary that comes later finds a backup in its place.
                self.await_trainers();
                (hopeless || timed_out) && self.take_over_copies()
            }
            ReplicasThere::Missing => {
                if hopeless {
                    // Trainers that live register within a moment and are accepted as in a takeover.
                    self.await_trainers();
                    self.restore_after_takeover();
                }
                hopeless
            }
        }
    }

    fn await_trainers(&mut self) {
        self.ctx.set_deadline_at_latest(Purpose::Takeover, self.ctx.now() + TRAINERS_MS);
    }

    /// Containers that have not registered by now are considered lost.
    pub(super) fn takeover_timed_out(&mut self) {
        if let Some(takeover) = self.stage.takeover() {
            takeover.time_out();
        }
        if self.copies_there() != ReplicasThere::Missing {
            // `advance` goes on. A container that registers later may still be taken in.
            let takeover_ms = self.ctx.limits().takeover_ms;
            return self.ctx.set_deadline(Purpose::Takeover, self.ctx.now() + takeover_ms);
        }
        self.fleet.stop_adopting(&mut self.ctx);
        self.restore_after_takeover();
    }

    /// The slots of pservers that held shards and are not here, and whether each was a primary.
    pub(super) fn pservers_gone(&mut self) -> BTreeMap<Slot, bool> {
        let (map, views) = (self.stage.map().clone(), self.stage.views().all().clone());
        let fleet = &self.fleet;
        let missing = self.stage.takeover().map(|takeover| takeover.missing(&map));
        let mut gone: BTreeMap<Slot, bool> =
            missing.into_iter().flatten().map(|slot| (slot, true)).collect();
        for view in views.iter() {
            for member in view.in_sync.iter().filter(|member| fleet.member(**member).is_none()) {
                *gone.entry(member.slot).or_default() |= view.primary == *member;
            }
        }
        gone
    }

    /// Shards are lost that the earlier attempt's containers held: a rollback.
    fn restore_after_takeover(&mut self) {
        let epoch = self.ctx.epoch();
        let (phase, step) = self.checkpoints.base_position();
        let gone = self.pservers_gone();
        let Some(takeover) = self.stage.takeover() else {
            return;
        };
        // A job that had begun goes on with the containers that are there, as after every other loss.
        let started = takeover.had_begun(epoch, phase, step);
        self.stage.set_started(started);
        if started {
            let position = self.position();
            for slot in gone.into_keys() {
                self.stage.recoveries_mut().open_at_takeover(slot, position, &self.ctx);
            }
        }
        let cause = self.cause_without_copies();
        self.restore(cause);
    }

    /// The job goes on where the shards are.
    pub(super) fn take_over(&mut self, mut takeover: Takeover) {
        let epoch = self.ctx.epoch();
        let (states, phase) = self.states_taken_over(&takeover);
        // A shard in a later phase shows that the one before was over everywhere.
        let is_over = states.iter().any(|state| state.phase > phase);
        let over_before = if is_over { phase.next() } else { phase };
        let counter = states.iter().find(|state| state.shard == RECORD_COUNTER);
        let counted = counter.and_then(|state| state.counted);
        let here: Vec<&ShardState> =
            states.into_iter().filter(|state| state.phase == phase).collect();
        let views = self.stage.views();
        let positions = takeover.positions(phase, |slot, shard| {
            let all = !Mutation::TakeoverTrustsPrimaries.is_on();
            views.all().counts(slot, shard) && (all || self.stage.holds(slot, shard))
        });
        let busy = takeover.busy(epoch, phase);
        self.work.take_over(phase, &here, &positions, &busy, &self.ctx);
        let base = self.checkpoints.base_manifest();
        let held = base.map(|base| task_positions(&base.work)).unwrap_or_default();
        self.work.add_earlier(base, &held, &self.ctx);
        // The score of an evaluation that is over is final: it is not evaluated again.
        self.work.keep_results_before(over_before);
        if let Some(counted) = counted {
            self.work.take_over_counted(counted, over_before, &mut self.ctx);
        }
        self.stage.set_started(true);
        // They stay members: a list without them would break every data connection for nothing.
        for member in takeover.members(epoch) {
            self.fleet.stays_member(member);
        }
        // A cut that the earlier attempt left open ends; shards that wait for its barriers need not wait any longer.
        for (slot, cut) in takeover.received_cuts() {
            self.checkpoints.end_again(slot, cut, &self.fleet, &mut self.ctx);
        }
        self.shards_are_whole();
        self.plan_next_cut(false, false);
        let next = if is_over { NextStep::Begin(phase.next()) } else { NextStep::Resume };
        self.stage.go(JobStage::Idle(next));
        if self.recovers_locally() {
            // The steps of the tasks that are done since the last checkpoint are not known.
            self.save_now();
        }
        for slot in self.fleet.registered_slots(Role::Pserver) {
            // They are in the epoch and only answer; one without shards learns that it has none.
            self.load_shards(slot);
            if !is_over && self.moves_shards() {
                // The order of the earlier attempt may be lost: streams moved its copies into the phase, and it serves none yet.
                self.begin_on(slot);
            }
        }
        self.fleet.send_members(&mut self.ctx);
        self.stage.recoveries_mut().taken_over(&mut self.ctx);
        for (connection, report) in takeover.take_reports() {
            // One of a connection that was replaced is dropped: the new registration has it.
            self.report(connection, report);
        }
    }
}
