//! Returning to a checkpoint, or starting from initial values: in memory where possible, else from storage.

use std::time::Instant;

use heddle_protocol::control::{Base, Phase, Report};
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{Epoch, ShardId, Step};
use heddle_shard::{Shard, ShardSetError};

use super::{Coordinator, Hold};
use crate::command::ToData;
use crate::load::{LoadError, LoadJob};
use heddle_storage::chain;

use crate::workers;

impl Coordinator {
    pub(super) fn hold(
        &mut self,
        epoch: Epoch,
        mut shards: Vec<ShardId>,
        base: Option<Base>,
        phase: Phase,
        step: Step,
    ) {
        if epoch < self.epoch {
            return;
        }
        if epoch == self.epoch {
            // Being in it already is all that is asked for; an answer that is not ready comes by itself.
            if let Some(outcome) = self.hold.as_ref().and_then(|hold| hold.outcome.clone()) {
                (self.tell)(outcome);
            }
            return;
        }
        tracing::info!(%epoch, shards = shards.len(), base = ?base.as_ref().map(|base| base.cut), "holding");
        self.epoch = epoch;
        self.shown.set_epoch(epoch);
        self.cut = None;
        shards.sort_unstable();
        shards.dedup();
        // In turn, in the order of their numbers: the ApplicationMaster places them by the same rule.
        let threads = self.threads.len();
        self.owners = shards.iter().copied().zip((0..threads).cycle()).collect();
        for thread in 0..threads {
            let shards = self
                .owners
                .iter()
                .filter(|(_, owner)| **owner == thread)
                .map(|(shard, _)| *shard)
                .collect();
            let base = base.as_ref().map(|base| base.cut);
            self.send(thread, ToData::Hold { epoch, phase, step, shards, base });
        }
        self.hold = Some(Hold {
            started: Instant::now(),
            missing: shards.iter().copied().collect(),
            shards,
            base,
            threads: (0..threads).collect(),
            from_storage: 0,
            outcome: None,
        });
    }

    pub(super) fn held(
        &mut self,
        thread: usize,
        epoch: Epoch,
        missing: Result<Vec<ShardId>, ShardSetError>,
    ) {
        let Some(hold) = self.hold.as_mut().filter(|_| epoch == self.epoch) else {
            return;
        };
        hold.threads.remove(&thread);
        let missing = match missing {
            Ok(missing) => missing,
            Err(error) => return self.hold_failed(class_of_set(&error), &chain(&error)),
        };
        let owners = &self.owners;
        hold.missing.retain(|shard| owners.get(shard) != Some(&thread) || missing.contains(shard));
        let (here, base) = (hold.shards.len(), hold.base.clone());
        let Some(job) = &self.job else {
            return self
                .hold_failed(ErrorClass::Internal, "told to hold shards before the job was known");
        };
        for shard in missing {
            let config = job.shard(shard, here);
            let from = match &base {
                None => None,
                Some(base) => match base.files.get(&shard) {
                    Some(file) => Some((base.dir.clone(), file.clone())),
                    None => {
                        let error = LoadError::NoFile { dir: base.dir.clone(), shard };
                        return self.hold_failed(ErrorClass::Internal, &error.to_string());
                    }
                },
            };
            self.busy += 1;
            self.workers.give(workers::Job::Load(Box::new(LoadJob { epoch, config, from })));
        }
        self.holding();
    }

    pub(super) fn loaded(
        &mut self,
        epoch: Epoch,
        shard: ShardId,
        result: Result<Box<Shard>, LoadError>,
    ) {
        let (Some(hold), true) = (&mut self.hold, epoch == self.epoch) else {
            return;
        };
        match result {
            Ok(loaded) => {
                hold.from_storage += u32::from(hold.base.is_some());
                if let Some(&thread) = self.owners.get(&shard) {
                    self.send(thread, ToData::Install { epoch, shard: loaded });
                }
            }
            Err(error) => self.hold_failed(error.class(), &chain(&error)),
        }
    }

    pub(super) fn installed(
        &mut self,
        epoch: Epoch,
        shard: ShardId,
        result: Result<(), ShardSetError>,
    ) {
        let Some(hold) = self.hold.as_mut().filter(|_| epoch == self.epoch) else {
            return;
        };
        match result {
            Ok(()) => {
                hold.missing.remove(&shard);
                self.holding();
            }
            Err(error) => self.hold_failed(class_of_set(&error), &chain(&error)),
        }
    }

    /// Reports once everything is here.
    fn holding(&mut self) {
        let Some(hold) = &mut self.hold else { return };
        if hold.outcome.is_some() || !hold.missing.is_empty() || !hold.threads.is_empty() {
            return;
        }
        let total = u32::try_from(hold.shards.len()).unwrap_or(u32::MAX);
        let from_memory = if hold.base.is_some() { total - hold.from_storage } else { 0 };
        let load_ms = u64::try_from(hold.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let report = Report::ShardsReady {
            epoch: self.epoch,
            from_memory,
            from_storage: hold.from_storage,
            load_ms,
        };
        hold.outcome = Some(report.clone());
        tracing::info!(epoch = %self.epoch, from_memory, hold.from_storage, load_ms, "held");
        (self.tell)(report);
    }

    fn hold_failed(&mut self, class: ErrorClass, error: &str) {
        let Some(hold) = self.hold.as_mut().filter(|hold| hold.outcome.is_none()) else {
            return;
        };
        let report = Report::LoadFailed { epoch: self.epoch, failure: Failure::new(class, error) };
        hold.outcome = Some(report.clone());
        tracing::error!(epoch = %self.epoch, ?class, error, "not held");
        (self.tell)(report);
    }
}

/// Content that does not fit proves that the checkpoint's file is wrong; another epoch only that the command is stale.
fn class_of_set(error: &ShardSetError) -> ErrorClass {
    match error {
        ShardSetError::Content(_) => ErrorClass::Corrupt,
        ShardSetError::Epoch { .. } => ErrorClass::Internal,
    }
}
