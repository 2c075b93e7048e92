//! The loading of shards: a return to a checkpoint, or the first start.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use heddle_protocol::control::{Base, LoadShards, PserverReport, ShardState};
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{Epoch, ShardId};
use heddle_shard::ShardSetError;
use heddle_storage::chain;

use super::Coordinator;
use crate::load::{LoadFrom, LoadJob, LoadedShard};
use crate::load_error::{LoadError, class_of};
use crate::message::DataCommand;
use crate::workers::WorkerJob;

/// The loading of the shards for an epoch: a return to a checkpoint, or the first start.
pub(super) struct ShardLoading {
    started: Instant,
    shards: Vec<ShardId>,
    base: Option<Base>,
    /// Data threads without an answer.
    threads: BTreeSet<usize>,
    /// Shards that are not installed yet.
    missing: BTreeSet<ShardId>,
    from_storage: u32,
    /// Some shards go back alone: the states in which they were loaded.
    loaded: Option<Vec<ShardState>>,
    /// The final report, if it was sent.
    outcome: Option<PserverReport>,
}

impl Coordinator {
    pub(super) fn load_shards(&mut self, command: LoadShards) {
        let epoch = command.epoch;
        if epoch < self.epoch {
            return;
        }
        if epoch == self.epoch {
            // A repeated command. A result that is not known yet is reported later.
            if let Some(outcome) = self.loading.as_ref().and_then(|loading| loading.outcome.clone())
            {
                self.send(outcome);
            }
            return;
        }
        tracing::info!(
            %epoch,
            shards = command.shards.len(),
            base = ?command.base.as_ref().map(|base| base.cut),
            "shard_load_started"
        );
        self.epoch = epoch;
        self.status.set_epoch(epoch);
        self.cut = None;
        self.copies.clear();
        let mut shards = command.shards.clone();
        shards.sort_unstable();
        shards.dedup();
        let command = Arc::new(command);
        // Round-robin in the order of their numbers: the ApplicationMaster computes their addresses by the same rule.
        let threads = self.threads.len();
        self.owners = shards.iter().copied().zip((0..threads).cycle()).collect();
        for thread in 0..threads {
            let shards = self
                .owners
                .iter()
                .filter(|(_, owner)| **owner == thread)
                .map(|(shard, _)| *shard)
                .collect();
            let command = Arc::clone(&command);
            self.threads.send(thread, DataCommand::LoadShards { command, shards });
        }
        self.loading = Some(ShardLoading {
            started: Instant::now(),
            missing: shards.iter().copied().collect(),
            shards,
            base: command.base.clone(),
            threads: (0..threads).collect(),
            from_storage: 0,
            loaded: command.lost.is_some().then(Vec::new),
            outcome: None,
        });
    }

    pub(super) fn held(
        &mut self,
        thread: usize,
        epoch: Epoch,
        missing: Result<Vec<ShardId>, ShardSetError>,
    ) {
        let Some(loading) = self.loading.as_mut().filter(|_| epoch == self.epoch) else {
            return;
        };
        loading.threads.remove(&thread);
        let missing = match missing {
            Ok(missing) => missing,
            Err(error) => return self.load_failed(class_of(&error), &chain(&error)),
        };
        let owners = &self.owners;
        loading
            .missing
            .retain(|shard| owners.get(shard) != Some(&thread) || missing.contains(shard));
        let (here, base) = (loading.shards.len(), loading.base.clone());
        let Some(job) = &self.job else {
            return self.load_failed(
                ErrorClass::Internal,
                "the command to load shards came before the job",
            );
        };
        for shard in missing {
            let config = job.shard(shard, here);
            let from = match &base {
                None => job.initial_values(),
                Some(base) if base.initial => LoadFrom::InitialValues,
                Some(base) => match base.files.get(&shard) {
                    Some(file) => job.shard_sources(base, file),
                    None => {
                        let error = LoadError::NoFile { dir: base.dir.clone(), shard };
                        return self.load_failed(ErrorClass::Internal, &error.to_string());
                    }
                },
            };
            self.busy += 1;
            self.workers.give(WorkerJob::Load(Box::new(LoadJob { epoch, config, from })));
        }
        self.report_ready();
    }

    pub(super) fn loaded(
        &mut self,
        epoch: Epoch,
        shard: ShardId,
        result: Result<LoadedShard, LoadError>,
    ) {
        let (Some(loading), true) = (&mut self.loading, epoch == self.epoch) else {
            return;
        };
        match result {
            Ok(LoadedShard { shard: loaded, passed_over: passed }) => {
                if let Some(states) = &mut loading.loaded {
                    states.extend(loaded.loaded_state());
                }
                loading.from_storage += u32::from(loading.base.is_some());
                if !passed.is_empty() {
                    self.send(PserverReport::CopiesPassedOver { epoch, shard, passed });
                }
                if let Some(&thread) = self.owners.get(&shard) {
                    self.threads.send(thread, DataCommand::Install { epoch, shard: loaded });
                }
            }
            Err(error) => self.load_failed(error.class(), &chain(&error)),
        }
    }

    pub(super) fn installed(
        &mut self,
        epoch: Epoch,
        shard: ShardId,
        result: Result<(), ShardSetError>,
    ) {
        let Some(loading) = self.loading.as_mut().filter(|_| epoch == self.epoch) else {
            return;
        };
        match result {
            Ok(()) => {
                loading.missing.remove(&shard);
                self.report_ready();
            }
            Err(error) => self.load_failed(class_of(&error), &chain(&error)),
        }
    }

    /// Reports once all shards are installed.
    fn report_ready(&mut self) {
        let Some(loading) = &mut self.loading else { return };
        if loading.outcome.is_some() || !loading.missing.is_empty() || !loading.threads.is_empty() {
            return;
        }
        let total = u32::try_from(loading.shards.len()).unwrap_or(u32::MAX);
        let from_memory = if loading.base.is_some() { total - loading.from_storage } else { 0 };
        let load_ms = u64::try_from(loading.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let report = PserverReport::ShardsReady {
            epoch: self.epoch,
            from_memory,
            from_storage: loading.from_storage,
            loaded: loading.loaded.clone().unwrap_or_default(),
        };
        loading.outcome = Some(report.clone());
        tracing::info!(
            epoch = %self.epoch,
            shards = total,
            from_memory,
            from_storage = loading.from_storage,
            duration_ms = load_ms,
            "shards_loaded"
        );
        self.send(report);
    }

    fn load_failed(&mut self, class: ErrorClass, error: &str) {
        let Some(loading) = self.loading.as_mut().filter(|loading| loading.outcome.is_none())
        else {
            return;
        };
        let report =
            PserverReport::LoadFailed { epoch: self.epoch, failure: Failure::new(class, error) };
        loading.outcome = Some(report.clone());
        tracing::error!(epoch = %self.epoch, ?class, error, "shards_not_loaded");
        self.send(report);
    }
}
