//! What a run is held against, and what it comes to.

use std::collections::BTreeMap;
use std::sync::Arc;

use heddle_am_core::{Action, Checkpoint, OperationId, Outcome, Record};
use heddle_protocol::control::{
    BeginPhase, Command, LoadShards, PserverCommand, ShardCommand, ShardState, TrainerCommand,
};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{PhaseNo, Role, Slot, Step};
use heddle_protocol::job_spec::position::POSITIONS;
use heddle_protocol::job_spec::{Consistency, JobPhase, job_phase};
use heddle_protocol::manifest::{ShardFile, Work};
use heddle_protocol::set_aside::SetAsideTask;
use heddle_protocol::view::{self, JobState, WarningCode};
use heddle_shard::ShardSection;

use super::super::coverage::Coverage;
use super::super::fault::{Fault, Schedule};
use super::super::job::{COUNTS, WEIGHTS};
use super::super::store::Durable;
use super::log::Brief;
use super::trouble::Trouble;
use super::{Bits, Body, World};

/// How a run ended that broke no promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The job is done.
    Finished,
    /// All its checkpoints were damaged: it may not start over by itself.
    NoCheckpointIsWhole,
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// How.
    pub ended: Ended,
    /// Whether it failed once, for a good reason, and was submitted again.
    pub resubmitted: bool,
    /// Events that it took.
    pub events: u64,
    /// Simulated milliseconds.
    pub now_ms: u64,
    /// Values of the last checkpoint.
    pub bits: Bits,
    /// Steps that trainers computed.
    pub computed: u64,
    /// Checkpoints committed, each with what is needed to continue from it.
    pub checkpoints: Vec<Durable>,
    /// Rollbacks ordered, the start of the job included.
    pub restores: usize,
    /// Failovers without a rollback.
    pub failovers: u64,
    /// It failed and had saved its state before; see [`Report::resubmitted`].
    pub saved_last: bool,
    /// How many times a pserver handed shards over.
    pub hand_overs: u64,
    /// Recoveries by a spare that are over.
    pub spares: u64,
    /// Updates that local recoveries lost.
    pub lost: u64,
    /// Divisions of lanes by speed.
    pub divisions: u64,
    /// Trainers replaced for their speed.
    pub replaced_slow: u64,
    /// Extra trainers that were started for late tasks.
    pub extra_trainers: u64,
    /// Tasks that a trainer stopped to compute, because another one had finished them.
    pub withdrawn: u64,
    /// Saves of the model that were published.
    pub saves: u64,
    /// Copies that refills have brought up to date.
    pub refills: usize,
    /// Hash of the event log, if it was written to the end: [`World::end_log`].
    pub log_hash: u64,
    /// What its faults did.
    pub coverage: Coverage,
    /// Its faults.
    pub faults: Schedule,
}

impl World {
    /// Runs the job to its end, with faults right before these events. A job that storage or failing containers ended is
    /// submitted again, without further faults.
    ///
    /// # Errors
    /// A promise that was broken, in words.
    pub fn run(
        &mut self,
        faults: &[(u64, Fault)],
        mut watch: impl FnMut(&Self),
    ) -> Result<Report, String> {
        self.faults = faults.to_vec().into();
        let (mut resubmitted, mut saved_last) = (false, false);
        let ended = loop {
            let outcome = self.run_once(&mut watch)?;
            if outcome.state == JobState::Finished && outcome.exit_code == ExitCode::Ok {
                break Ended::Finished;
            }
            self.check_failure(&outcome, resubmitted)?;
            if outcome.exit_code == ExitCode::Checkpoint {
                break Ended::NoCheckpointIsWhole;
            }
            self.faults.clear();
            self.bursts = None;
            resubmitted = true;
            // Nothing else of an outcome shows it.
            saved_last = outcome.message.contains("saved checkpoint");
            self.submit_again()?;
        };
        let bits = match ended {
            Ended::NoCheckpointIsWhole => Bits::new(),
            Ended::Finished if !self.job.has_state() => {
                if let Some(last) = self.last_checkpoint() {
                    return Err(format!("{} saves nothing", last.manifest.cut));
                }
                if self.evaluations == 0 {
                    return Err("no figures at the end".to_owned());
                }
                Bits::new()
            }
            Ended::Finished => {
                let last = self.last_checkpoint().ok_or("no checkpoint at the end")?;
                self.check_published(last)?;
                self.check_saves()?;
                self.bits_of(last)?
            }
        };
        let restores = |record: &&Record| matches!(record, Record::Restore { .. });
        Ok(Report {
            ended,
            resubmitted,
            saved_last,
            events: self.events,
            now_ms: self.now_ms,
            bits,
            computed: self.computed,
            checkpoints: self.committed(),
            restores: self.durable.journal.iter().filter(restores).count(),
            failovers: self.failovers,
            hand_overs: self.hand_overs,
            spares: self.spares,
            lost: self.updates_lost(),
            divisions: self.divisions,
            replaced_slow: self.replaced_slow,
            extra_trainers: self.extra_trainers,
            withdrawn: self.withdrawn,
            saves: self.saves,
            refills: self.refills(),
            log_hash: self.log_hash(),
            coverage: self.coverage.clone(),
            faults: self.injected(),
        })
    }

    fn run_once(&mut self, watch: &mut impl FnMut(&Self)) -> Result<Outcome, String> {
        // Far above what any run takes: a job of a thousand events that is not over by now never will be.
        const EVENTS_MAX: u64 = 100_000;
        const TIME_MAX_MS: u64 = 8 * 3_600_000;
        loop {
            while let Some(&(at, fault)) = self.faults.front()
                && at <= self.events
            {
                self.faults.pop_front();
                self.injected.push((at, fault));
                self.moves.begin_again();
                self.inject(at, fault)?;
            }
            if let Some(outcome) = self.outcome.take() {
                return Ok(outcome);
            }
            self.step()?;
            self.check_copies()?;
            watch(self);
            if let Some(broken) = self.broken.take() {
                return Err(broken);
            }
            if self.events > EVENTS_MAX || self.now_ms > TIME_MAX_MS {
                return Err(format!(
                    "no end after {} events and {} ms: {}",
                    self.events,
                    self.now_ms,
                    self.describe()
                ));
            }
        }
    }

    /// A job may fail for what happened to it, and for nothing else.
    fn check_failure(&mut self, outcome: &Outcome, resubmitted: bool) -> Result<(), String> {
        let wrong = || Err(format!("the job ended with {outcome:?}"));
        if outcome.state != JobState::Failed {
            return wrong();
        }
        let right = match outcome.exit_code {
            ExitCode::Checkpoint => self.durable.newest_whole(None).0.is_none(),
            _ if resubmitted => false,
            ExitCode::JobFailed => self.trouble.containers_failed_often(),
            code => self.trouble.excused.contains(&code),
        };
        match right {
            true => Ok(()),
            false => wrong(),
        }
    }

    /// An attempt has decided how the job ends: whether containers are missing shows now, before it stops all.
    pub(super) fn decides(&mut self, attempt: u32, outcome: &Outcome) {
        self.tell(format_args!("attempt {attempt} decides: {outcome:?}"));
        self.trouble.is_decided = true;
        if outcome.state == JobState::Finished {
            self.ended_at = self.durable.checkpoints.last().cloned();
        }
        if outcome.exit_code == ExitCode::Busy && !self.all_are_there(attempt) {
            self.trouble.excused.insert(ExitCode::Busy);
        }
    }

    /// Whether every container that the job cannot begin without has a connection.
    fn all_are_there(&self, attempt: u32) -> bool {
        let Some(am) = self.ams.get(&attempt) else {
            return false;
        };
        let of = |role| am.connected(|member| member.slot.role == role);
        of(Role::Pserver) >= self.job.pservers as usize && of(Role::Trainer) >= 1
    }

    /// The job is submitted again: nothing is left but what is durable, and nothing more goes wrong.
    fn submit_again(&mut self) -> Result<(), String> {
        self.tell(format_args!("submitted again"));
        self.trouble = Trouble::default();
        self.ended_at = None;
        self.durable.troubles.clear();
        self.wires.clear();
        self.ams.clear();
        self.containers.clear();
        self.lost.clear();
        self.controls.clear();
        self.data.clear();
        self.peers.clear();
        self.asked.clear();
        self.start_am();
        Ok(())
    }

    /// Records an event of the job; returns whether a run without faults has it too.
    pub(super) fn note(&mut self, event: &view::JobEvent) {
        self.tell(format_args!("AM: {}", Brief(event)));
        self.check_rollback(event);
        self.check_moves(event);
        if let view::JobEvent::PassTrained(trained) = event {
            self.check_figures(trained);
        }
        if let view::JobEvent::Evaluated(scores) = event {
            self.evaluations += 1;
            // Each task has a record.
            if scores.rows != u64::from(self.job.test_tasks) {
                self.broken = Some(format!("figures {scores:?}"));
            }
        }
        if let view::JobEvent::Recovered(recovery) = event {
            self.spares += u64::from(recovery.kind == view::RecoveryKind::Spare);
        }
        match event {
            view::JobEvent::Lost { .. }
            | view::JobEvent::CheckpointGivenUp { .. }
            | view::JobEvent::CheckpointDamaged { .. }
            | view::JobEvent::StorageWait(_)
            | view::JobEvent::RollbackStarted { .. }
            | view::JobEvent::RollbackFinished { .. }
            | view::JobEvent::FailedOver { .. }
            | view::JobEvent::Moved { .. }
            | view::JobEvent::TrainersReleased { .. }
            | view::JobEvent::Recovered(_) => self.coverage.changed(),
            view::JobEvent::Warning { code, .. } => {
                self.divisions += u64::from(*code == WarningCode::TrainerSlow);
                let replaced = [WarningCode::SlowTrainerReplaced, WarningCode::TrainerNotStopping];
                self.replaced_slow += u64::from(replaced.contains(code));
                self.coverage.changed();
            }
            view::JobEvent::Started { .. }
            | view::JobEvent::Registered { .. }
            | view::JobEvent::PhaseBegun { .. }
            | view::JobEvent::Progress { .. }
            | view::JobEvent::PassTrained(_)
            | view::JobEvent::Evaluated(_)
            | view::JobEvent::CheckpointCommitted(_)
            | view::JobEvent::CheckpointPeriod(_)
            | view::JobEvent::SaveGranted { .. }
            | view::JobEvent::ModelSaved { .. }
            | view::JobEvent::StoppedEarly { .. }
            | view::JobEvent::Ended { .. } => {}
        }
    }

    /// BSP: records and losses of a pass are those of a run without faults, to the last bit.
    fn check_figures(&mut self, trained: &view::TrainingPassView) {
        let sums = self.job.pass_sums();
        let expected = view::TrainingPassView::new(trained.pass, sums.rows, Some(sums.loss.get()));
        if self.job.consistency == Consistency::Bsp && *trained != expected {
            self.broken = Some(format!("figures {trained:?}, not {expected:?}"));
        }
    }

    /// With replicas: a lost pserver causes a rollback only if a shard has no copy left, or while copies are being loaded.
    fn check_rollback(&mut self, event: &view::JobEvent) {
        // Notices of two attempts at a time are mixed.
        if self.job.replicas == 0 || self.ams.len() > 1 {
            self.restoring |= self.ams.len() > 1;
            return;
        }
        match event {
            view::JobEvent::Started { .. } | view::JobEvent::RollbackFinished { .. } => {
                self.restoring = false;
            }
            view::JobEvent::RollbackStarted { cause, .. } => {
                let excused =
                    self.restoring || cause.contains("no copy") || !cause.starts_with("pserver-");
                if !excused {
                    self.broken = Some(format!("a rollback though copies were left: {cause}"));
                }
                self.restoring = true;
            }
            view::JobEvent::FailedOver { .. } => self.failovers += 1,
            view::JobEvent::Moved { .. } => self.hand_overs += 1,
            _ => {}
        }
    }

    /// Whether the right model is published: of the checkpoint at which the job ended, or of the best pass.
    fn check_published(&self, last: &Checkpoint) -> Result<(), String> {
        let Some(published) = self.durable.published.filter(|_| self.job.output) else {
            return if self.job.output { Err("no model".to_owned()) } else { Ok(()) };
        };
        if !self.job.keep_best {
            let right = published == last.manifest.cut;
            let wrong = || format!("the model of {published}, not of {}", last.manifest.cut);
            return if right { Ok(()) } else { Err(wrong()) };
        }
        let is_published = |checkpoint: &&Checkpoint| checkpoint.manifest.cut == published;
        let of = self.durable.checkpoints.iter().find(is_published);
        let manifest = &of.ok_or("the checkpoint of the model is removed")?.manifest;
        let pass = self.job.model_pass();
        // The end of a pass: its evaluation is the last score, and no step of the next pass is in it.
        let is_of = |pass| {
            manifest.best_pass == Some(pass)
                && manifest.evaluations.last().is_some_and(|scores| scores.pass == pass)
                && manifest.step() == Step(0)
                && job_phase(self.job.spec(), PhaseNo(manifest.phase.0.saturating_sub(1)))
                    == Some(JobPhase::evaluation(pass))
        };
        let mut of_best =
            self.all_committed().filter(|one| one.manifest.best_pass == Some(pass)).peekable();
        let was_taken = of_best.peek().is_some();
        let has_whole = of_best.any(|one| self.durable.is_whole(one));
        // Training may have gone on when the only checkpoint of the best pass was damaged: then the model is the last one, or
        // that of the pass that was the best before.
        let is_last = published == last.manifest.cut;
        let was_best_before = was_taken && manifest.best_pass.is_some_and(is_of);
        match is_of(pass) || (!has_whole && (is_last || was_best_before)) {
            true => Ok(()),
            false => Err(format!("the model of {published}, not of the best pass {pass}")),
        }
    }

    /// Every checkpoint that was committed, those of earlier runs included.
    fn all_committed(&self) -> impl DoubleEndedIterator<Item = &Checkpoint> {
        self.earlier.iter().chain(&self.committed)
    }

    /// The checkpoint with which the job ended, or the newest.
    pub(super) fn last_checkpoint(&self) -> Option<&Checkpoint> {
        self.ended_at.as_ref().or_else(|| self.durable.checkpoints.last())
    }

    /// Updates that the last checkpoint reports as lost.
    #[must_use]
    pub fn updates_lost(&self) -> u64 {
        self.last_checkpoint().map_or(0, |last| last.manifest.progress.updates_lost.values().sum())
    }

    /// Tasks that the last checkpoint lists as set aside.
    #[must_use]
    pub fn set_aside(&self) -> &[SetAsideTask] {
        self.last_checkpoint().map_or(&[], |last| &last.manifest.progress.set_aside)
    }

    /// Values of a table in the last checkpoint.
    #[must_use]
    pub fn final_counts(&self) -> Vec<f32> {
        let bits =
            self.last_checkpoint().and_then(|last| self.bits_of(last).ok()).unwrap_or_default();
        let weights = self.job.weight_values();
        bits[weights.min(bits.len())..].iter().map(|bits| f32::from_bits(*bits)).collect()
    }

    /// BSP: the state of all shards if they stand at one step of one phase.
    #[must_use]
    pub fn common_state(&self) -> Option<((PhaseNo, Step), Bits)> {
        let pservers = self.containers.values().filter_map(|c| match &c.body {
            Body::Pserver(pserver) => Some(pserver),
            Body::Trainer(_) => None,
        });
        let hosts = pservers.flat_map(|pserver| &pserver.hosts);
        let mut shards = BTreeMap::new();
        let mut host_of = BTreeMap::new();
        for host in hosts {
            let serves = |state: &ShardState| state.replica.primary;
            for state in host.states().into_iter().filter(serves) {
                shards.insert(state.shard, ((state.phase, state.step), host.shard(state.shard)?));
                host_of.insert(state.shard, host);
            }
        }
        let (at, _) = *shards.values().next()?;
        if shards.len() != self.job.shards as usize
            || shards.values().any(|(other, _)| *other != at)
        {
            return None;
        }
        if self.job.sparse {
            let bits = self.job.bits_by_key(|shard| host_of.get(&shard).copied())?;
            return Some((at, bits));
        }
        let mut bits = Vec::new();
        for table in [WEIGHTS, COUNTS] {
            for (_, shard) in shards.values() {
                bits.extend(shard.table_values(table)?.iter().map(|value| value.to_bits()));
            }
        }
        Some((at, bits))
    }

    pub(super) fn bits_of(&self, checkpoint: &Checkpoint) -> Result<Bits, String> {
        let files = &checkpoint.manifest.shards;
        let mut bits = Vec::new();
        let mut rows = [BTreeMap::new(), BTreeMap::new()];
        for (table, rows) in [WEIGHTS, COUNTS].into_iter().zip(&mut rows) {
            for file in files {
                let saved = self
                    .durable
                    .files
                    .get(&file.uuid)
                    .ok_or_else(|| format!("no file {}", file.uuid))?;
                let sections = self.job.shard(file.shard).sections(&saved.head.sparse_rows);
                let section = |plane: &str| {
                    let is =
                        |section: &ShardSection| section.table == table && section.plane == plane;
                    let index = sections.iter().position(is).ok_or("no section of the table")?;
                    let bits = saved.sections[index].iter().map(|value| value.to_bits());
                    Ok::<Vec<u32>, &str>(bits.collect())
                };
                let values = section("values")?;
                if self.job.sparse {
                    let words = section(POSITIONS)?;
                    let (positions, _) = words.as_chunks::<2>();
                    let cols = values.len() / positions.len().max(1);
                    for ([low, high], row) in positions.iter().zip(values.chunks(cols.max(1))) {
                        let position = u64::from(*low) | u64::from(*high) << 32;
                        if rows.insert(position, row.to_vec()).is_some() {
                            return Err(format!("position {position:#x} is in two rows"));
                        }
                    }
                }
                bits.extend(values);
            }
        }
        let by_key = self.job.sparse || checkpoint.manifest.initial;
        Ok(if by_key { self.job.saved_bits_by_key(&rows) } else { bits })
    }

    /// Every checkpoint that was committed, and what is needed to continue from it.
    fn committed(&self) -> Vec<Durable> {
        let of = |checkpoint: &Checkpoint| {
            // Retention keeps the best pass beside it.
            let is_best = |one: &&Checkpoint| {
                one.manifest.best_pass.is_some() && one.manifest.cut < checkpoint.manifest.cut
            };
            let best = self.all_committed().rev().find(is_best).filter(|_| self.job.keep_best);
            let checkpoints: Vec<_> = best.into_iter().chain([checkpoint]).cloned().collect();
            let files = checkpoints.iter().flat_map(|one| one.manifest.shards.iter());
            let files = files.flat_map(ShardFile::files).filter_map(|file| {
                let saved = self.durable.files.get(&file.uuid)?;
                Some((file.uuid, Arc::clone(saved)))
            });
            Durable {
                files: files.collect(),
                checkpoints,
                generation: self.durable.generation,
                ..Durable::default()
            }
        };
        self.committed.iter().map(of).collect()
    }

    /// Checks the newest checkpoint, if there are more than `before`.
    pub(super) fn check_commit(&mut self, before: usize) -> Result<(), String> {
        let newest = self.durable.checkpoints.get(before..).and_then(<[_]>::last);
        let Some(checkpoint) = newest.cloned() else { return Ok(()) };
        let manifest = &checkpoint.manifest;
        if !self.cuts_seen.insert(manifest.cut) {
            return Err(format!("cut {} is committed twice", manifest.cut));
        }
        if manifest.initial && manifest.parent.is_some() {
            return Err(format!("{} has initial values and is not the first", manifest.cut));
        }
        if manifest.initial && self.durable.changed_before.contains(&manifest.cut) {
            return Err(format!("{} is not initial", manifest.cut));
        }
        for file in manifest.shards.iter().flat_map(ShardFile::files) {
            let saved = self
                .durable
                .files
                .get(&file.uuid)
                .ok_or_else(|| format!("{} names a file that is not there", manifest.cut))?;
            if saved.cut != manifest.cut || saved.shard != file.shard {
                return Err(format!(
                    "{} names a file of {} shard {}",
                    manifest.cut, saved.cut, saved.shard
                ));
            }
        }
        for shard in &manifest.shards {
            if shard.files().iter().any(|file| file.md5 != shard.md5) {
                return Err(format!("copies of shard {} in {} differ", shard.shard, manifest.cut));
            }
        }
        self.tell(format_args!(
            "checkpoint {} of phase {} is committed: {:?}",
            manifest.cut, manifest.phase, manifest.work
        ));
        let bits = self.bits_of(&checkpoint)?;
        self.committed.push(checkpoint.clone());
        if let (Work::Lanes { step }, Some(reference)) = (&manifest.work, &self.reference) {
            // A phase that training ended before begins with what the phase before it ended with.
            let at = (manifest.phase, *step);
            let before = || reference.range(..at).next_back().filter(|_| step.0 == 0);
            let known = reference.get(&at).or_else(|| Some(before()?.1));
            match known {
                Some(expected) if *expected == bits => {}
                Some(_) => {
                    return Err(format!(
                        "{} is not the state of phase {} step {step}",
                        manifest.cut, manifest.phase
                    ));
                }
                None => {
                    return Err(format!(
                        "{} is of phase {} step {step}, which no undisturbed run has",
                        manifest.cut, manifest.phase
                    ));
                }
            }
        }
        Ok(())
    }

    /// No process receives an epoch before the journal has it: a successor could not restore it.
    pub(super) fn check_command(&self, command: &Command) -> Result<(), String> {
        let epoch = match command {
            Command::Pserver(PserverCommand::LoadShards(LoadShards { epoch, .. }))
            | Command::Trainer(TrainerCommand::Work { epoch, .. })
            | Command::Pserver(PserverCommand::Begin(BeginPhase { epoch, .. })) => *epoch,
            _ => return Ok(()),
        };
        let known = |record: &Record| match record {
            Record::Restore { epoch: known, .. } => *known == epoch,
            _ => false,
        };
        if self.durable.journal.iter().any(known) {
            Ok(())
        } else {
            Err(format!("epoch {epoch} is sent before it is durable"))
        }
    }

    /// An order of a controller is not followed after a durable one of a later controller.
    pub(super) fn check_scaled(&self, generation: u64) -> Result<(), String> {
        let mut highest = 0;
        for record in &self.durable.journal {
            match record {
                Record::Claim { attempt, .. } if attempt.0 <= 1 => highest = 0,
                Record::Scaled { generation, .. } => highest = highest.max(*generation),
                _ => {}
            }
        }
        if generation >= highest {
            return Ok(());
        }
        Err(format!("controller {generation} orders after controller {highest}"))
    }

    /// An order was carried out or refused. Once a controller is obeyed, earlier controllers are not, also by later
    /// attempts.
    pub(super) fn answered(
        &mut self,
        id: OperationId,
        result: &Result<String, String>,
    ) -> Result<(), String> {
        self.coverage.changed();
        let Some(generation) = self.trouble.orders.remove(&id).filter(|_| result.is_ok()) else {
            return Ok(());
        };
        let accepted = self.trouble.accepted;
        if generation < accepted {
            return Err(format!("controller {generation} is obeyed after controller {accepted}"));
        }
        self.trouble.accepted = generation;
        Ok(())
    }

    /// Spares wait without work, and take the shards of a lost pserver at once.
    pub(super) fn check_spares(&self, attempt: u32, actions: &[Action]) -> Result<(), String> {
        // A later attempt may take in trainers that the one before had given up.
        let Some(am) = self.ams.get(&attempt).filter(|_| self.job.spares != [0, 0]) else {
            return Ok(());
        };
        let sent = || {
            actions.iter().filter_map(|action| match action {
                Action::Send { command, .. } => Some(&**command),
                _ => None,
            })
        };
        // A trainer that hands back its work is still a member, also if the order to do so has not reached it: its
        // connection may be broken. One event may cause several lists, and the present state is that of the last.
        let mut members = sent().filter_map(|command| match command {
            Command::Shards(ShardCommand::Members { trainers }) if attempt == 1 => Some(trainers),
            _ => None,
        });
        if let Some(trainers) = members.next_back() {
            let draining = am.draining();
            let works = trainers.iter().filter(|member| !draining.contains(&member.slot)).count();
            if works > self.job.trainers as usize {
                return Err(format!("{trainers:?} are more members than wanted"));
            }
        }
        // One event may cause several, and the present state is that of the last.
        let map = actions.iter().rev().find_map(|action| match action {
            Action::Journal { record, .. } => match &**record {
                Record::Restore { holders, .. } => Some(holders),
                _ => None,
            },
            _ => None,
        });
        let there = am.pservers_there();
        let waits = |holders: &&Vec<Slot>| {
            let idle = there.iter().any(|slot| !holders.contains(slot));
            idle && holders.iter().any(|slot| !there.contains(slot))
        };
        match map.filter(waits) {
            None => Ok(()),
            Some(map) => {
                Err(format!("shards of {map:?} wait for a container, with a spare in {there:?}"))
            }
        }
    }

    /// The state of all processes, for a run that does not end.
    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        for container in self.containers.values() {
            let body = match &container.body {
                Body::Pserver(p) => format!("{:?}", p.held()),
                Body::Trainer(t) => format!("{:?}", t.busy()),
            };
            text += &format!("\n  {}: {body}", container.member);
        }
        for (wire, items) in self.wires.iter().filter(|(_, items)| !items.is_empty()) {
            text += &format!("\n  {wire:?}: {} items", items.len());
        }
        for am in self.ams.values() {
            let (generation, deadline) = (am.generation, am.deadline());
            text += &format!("\n  AM {generation} next deadline {deadline:?}");
        }
        text
    }
}
