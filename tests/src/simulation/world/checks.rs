//! What a run is held against, and what it comes to.

use std::collections::{BTreeMap, VecDeque};

use heddle_am_core::{Checkpoint, Record};
use heddle_protocol::control::Command;
use heddle_protocol::ids::{PhaseNo, Step, TableId};
use heddle_protocol::manifest::{Manifest, Work};
use heddle_protocol::view::{self, JobState};

use super::super::coverage::Coverage;
use super::super::fault::Fault;
use super::super::job::{COUNTS, WEIGHTS};
use super::log::Brief;
use super::{Bits, Body, World};

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// Events that it took.
    pub events: u64,
    /// Simulated milliseconds.
    pub now_ms: u64,
    /// Values of the last checkpoint.
    pub bits: Bits,
    /// Steps that trainers computed.
    pub computed: u64,
    /// Checkpoints committed.
    pub commits: usize,
    /// Rollbacks ordered, the start of the job included.
    pub restores: usize,
    /// Hash of the event log.
    pub log_hash: u64,
    /// What its faults did.
    pub coverage: Coverage,
}

impl World {
    /// Runs the job to its end, with faults right before these events.
    ///
    /// # Errors
    /// A promise that was broken, in words.
    pub fn run(
        &mut self,
        faults: &[(u64, Fault)],
        mut watch: impl FnMut(&Self),
    ) -> Result<Report, String> {
        // Far above what any run takes: a job of a thousand events that is not over by now never will be.
        const EVENTS_MAX: u64 = 400_000;
        const TIME_MAX_MS: u64 = 4 * 3_600_000;
        let mut faults: VecDeque<_> = faults.to_vec().into();
        while self.outcome.is_none() {
            while faults.front().is_some_and(|(at, _)| *at <= self.events) {
                if let Some((at, fault)) = faults.pop_front() {
                    self.inject(at, fault)?;
                }
            }
            self.step()?;
            watch(self);
            if self.events > EVENTS_MAX || self.now_ms > TIME_MAX_MS {
                return Err(format!(
                    "no end after {} events and {} ms: {}",
                    self.events,
                    self.now_ms,
                    self.describe()
                ));
            }
        }
        let outcome = self.outcome.clone().ok_or("no outcome")?;
        if outcome.state != JobState::Finished || outcome.exit_code != 0 {
            return Err(format!("the job ended with {outcome:?}"));
        }
        let last = self
            .durable
            .checkpoints
            .last()
            .ok_or("no checkpoint at the end")?;
        let bits = self.bits_of(last)?;
        Ok(Report {
            events: self.events,
            now_ms: self.now_ms,
            bits,
            computed: self.computed,
            commits: self.commits,
            restores: self
                .durable
                .journal
                .iter()
                .filter(|record| matches!(record, Record::Restore { .. }))
                .count(),
            log_hash: self.log_hash(),
            coverage: self.coverage.clone(),
        })
    }

    /// Takes in what people are told; says whether a run without faults has that too.
    pub(super) fn note(&mut self, event: &view::Event) {
        self.tell(format_args!("AM: {}", Brief(event)));
        match event {
            view::Event::Lost { .. }
            | view::Event::CheckpointGivenUp { .. }
            | view::Event::CheckpointDamaged { .. }
            | view::Event::StorageWait(_)
            | view::Event::Recovered(_)
            | view::Event::Warning { .. } => self.coverage.changed(),
            view::Event::Started { .. }
            | view::Event::Registered { .. }
            | view::Event::PhaseBegun { .. }
            | view::Event::Progress { .. }
            | view::Event::Evaluated(_)
            | view::Event::CheckpointCommitted(_)
            | view::Event::Ended { .. } => {}
        }
    }

    /// Values of a table in the last checkpoint.
    #[must_use]
    pub fn final_counts(&self) -> Vec<f32> {
        let bits = self
            .durable
            .checkpoints
            .last()
            .and_then(|last| self.bits_of(last).ok())
            .unwrap_or_default();
        let weights = self.job.tables()[usize::from(WEIGHTS.0)].values() as usize;
        bits[weights.min(bits.len())..]
            .iter()
            .map(|bits| f32::from_bits(*bits))
            .collect()
    }

    /// BSP: the state of all shards if they stand at one step of one phase.
    #[must_use]
    pub fn common_state(&self) -> Option<((PhaseNo, Step), Bits)> {
        let hosts: Vec<_> = self
            .containers
            .values()
            .filter_map(|c| match &c.body {
                Body::Pserver(pserver) => Some(&pserver.host),
                Body::Trainer(_) => None,
            })
            .collect();
        let mut shards = BTreeMap::new();
        for host in &hosts {
            for state in host.states() {
                shards.insert(
                    state.shard,
                    ((state.phase, state.step), host.shard(state.shard)?),
                );
            }
        }
        let (at, _) = *shards.values().next()?;
        if shards.len() != self.job.shards as usize
            || shards.values().any(|(other, _)| *other != at)
        {
            return None;
        }
        let mut bits = Vec::new();
        for table in [WEIGHTS, COUNTS] {
            for (_, shard) in shards.values() {
                bits.extend(
                    shard
                        .table_values(table)?
                        .iter()
                        .map(|value| value.to_bits()),
                );
            }
        }
        Some((at, bits))
    }

    pub(super) fn bits_of(&self, checkpoint: &Checkpoint) -> Result<Bits, String> {
        let files = &checkpoint.manifest.shards;
        let mut bits = Vec::new();
        for table in [WEIGHTS, COUNTS] {
            for file in files {
                let saved = self
                    .durable
                    .files
                    .get(&file.uuid)
                    .ok_or_else(|| format!("no file {}", file.uuid))?;
                let sections = self.job.shard(file.shard).sections();
                let index = sections.iter().position(|section| {
                    section.table == TableId(table.0) && section.plane == "values"
                });
                let index = index.ok_or("no section of the table")?;
                bits.extend(saved.sections[index].iter().map(|value| value.to_bits()));
            }
        }
        Ok(bits)
    }

    pub(super) fn check_commit(&mut self, manifest: &Manifest) -> Result<(), String> {
        if !self.cuts_seen.insert(manifest.cut) {
            return Err(format!("cut {} is committed twice", manifest.cut));
        }
        self.commits += 1;
        for file in &manifest.shards {
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
        self.tell(format_args!(
            "checkpoint {} of phase {} is committed: {:?}",
            manifest.cut, manifest.phase, manifest.work
        ));
        let checkpoint = Checkpoint {
            dir: String::new(),
            manifest: std::sync::Arc::new(manifest.clone()),
        };
        let bits = self.bits_of(&checkpoint)?;
        if let (Work::Lanes { step }, Some(reference)) = (&manifest.work, &self.reference) {
            match reference.get(&(manifest.phase, *step)) {
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

    /// Nobody hears of an epoch before the journal has it: a successor would not know it.
    pub(super) fn check_command(&self, command: &Command) -> Result<(), String> {
        let epoch = match command {
            Command::Hold { epoch, .. }
            | Command::Work { epoch, .. }
            | Command::Begin { epoch, .. } => *epoch,
            _ => return Ok(()),
        };
        let known = |record: &Record| matches!(record, Record::Restore { epoch: known, .. } if *known == epoch);
        if self.durable.journal.iter().any(known) {
            Ok(())
        } else {
            Err(format!("epoch {epoch} is told before it is durable"))
        }
    }

    /// Where everybody stands, for a run that does not end.
    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        for container in self.containers.values() {
            let body = match &container.body {
                Body::Pserver(p) => format!("{:?} {:?}", p.host.epoch(), p.host.states()),
                Body::Trainer(t) => format!("{:?}", t.busy()),
            };
            text += &format!("\n  {}: {body}", container.member);
        }
        for (wire, items) in self.wires.iter().filter(|(_, items)| !items.is_empty()) {
            text += &format!("\n  {wire:?}: {} items", items.len());
        }
        if let Some(am) = &self.am {
            text += &format!(
                "\n  AM {} next deadline {:?}",
                am.generation,
                am.core.next_deadline()
            );
        }
        text
    }
}
