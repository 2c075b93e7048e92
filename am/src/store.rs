//! The task that works in the checkpoint directory and the output directory, one call after the other.
//!
//! Each outcome is reported as one event; the core decides about retries. This task never blocks the driver's loop, so
//! heartbeats continue while a store hangs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use heddle_am_core::{CallId, Checkpoint, DamagedCheckpoint, Event, StoreCall, Stored};
use heddle_fail_points::fail_point;
use heddle_protocol::control::ExportedFile;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::failure::Failure;
use heddle_protocol::ids::{CutId, Generation, RunId, SaveNo};
use heddle_protocol::job_spec::{CheckpointSpec, Permissions};
use heddle_protocol::manifest::Salt;
use heddle_protocol::model::{FORMAT_VERSION, ModelFile, save_dir, staging_prefix};
use heddle_protocol::view::{self, WarningCode};
use heddle_storage::chain;
use heddle_storage::checkpoint::{
    CheckpointDir, CheckpointError, CommitError, DamagePolicy, Depth, Newest, RepairMode,
};
use heddle_storage::{Mode, Storage, StorageError, StorageUrl, StorePath, connect};
use tokio::sync::mpsc;

use crate::delay_warning::DelayWarning;
use crate::event_log::EventLog;
use crate::lease::Lease;
use crate::mirrors::{self, MirrorTarget, Mirrors};
use crate::publish::{Publication, PublishError};
use crate::storage_watch::StorageWatch;
use crate::wall_clock::wall_ms;

/// How long making a checkpoint's directory is retried before the checkpoint is aborted.
const STAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long opening the checkpoint directory is retried at the start.
const OPEN_TIMEOUT: Duration = Duration::from_secs(120);
/// Time between two attempts.
const RETRY_WAIT: Duration = Duration::from_secs(2);

/// The exit code of a run that fails because of a storage error.
#[must_use]
pub fn exit_code_of(error: &StorageError) -> ExitCode {
    error.class().exit_code()
}

/// Opens a checkpoint directory as [`CheckpointDir::open_or_create`] does. Retries while the storage is unavailable: the
/// restart of a NameNode must not cost an attempt.
///
/// # Errors
/// As `open_or_create`; what is retryable after two minutes.
pub async fn open_with_retries(
    storage: &Arc<dyn Storage>,
    root: &StorePath,
    events: &EventLog,
) -> Result<CheckpointDir, CheckpointError> {
    let begun = Instant::now();
    let mut delay = DelayWarning::new("opening the checkpoint directory");
    loop {
        match CheckpointDir::open_or_create(Arc::clone(storage), root.clone()).await {
            Err(error) if error.is_retryable() && begun.elapsed() < OPEN_TIMEOUT => {
                if let Some(text) = delay.failed(Instant::now(), &chain(&error)) {
                    events.warn(WarningCode::StorageDelayed, text);
                }
                tokio::time::sleep(RETRY_WAIT).await;
            }
            result => return result,
        }
    }
}

/// Opens the checkpoint directory of a job, with its mirrors.
///
/// # Errors
/// See [`open_with_retries`].
pub async fn open_of_job(
    spec: &CheckpointSpec,
    location: &StorageUrl,
    events: &EventLog,
) -> Result<CheckpointDir, CheckpointError> {
    let storage = connect(location)?;
    let dir = open_with_retries(&storage, location.path(), events).await?;
    Ok(dir.with_mirrors(mirrors::sources(&spec.mirrors)))
}

/// The store's parameters.
pub struct Store {
    /// The checkpoint directory.
    pub dir: CheckpointDir,
    /// Its location, to make URLs of paths in it.
    pub location: StorageUrl,
    /// Unique for this process; identifies its files after a lost reply.
    pub salt: Salt,
    /// The run.
    pub run: RunId,
    /// The job's name.
    pub job: String,
    /// The generation of its claim.
    pub generation: Generation,
    /// Whether an existing model is replaced.
    pub overwrite: bool,
    /// Permissions of the model's files; `None`: by the umask.
    pub permissions: Option<Permissions>,
    /// Checked immediately before a publication.
    pub lease: Lease,
    /// Gets each committed checkpoint.
    pub mirrors: Option<Mirrors>,
}

impl Store {
    /// Starts the mirrors. They get `base` at once: an earlier attempt may have ended before its last copy.
    pub fn start_mirrors(
        &mut self,
        spec: &CheckpointSpec,
        base: Option<CutId>,
        notices: &mpsc::UnboundedSender<view::JobEvent>,
    ) -> Mirrors {
        let mirrors = Mirrors::start(&self.dir, &spec.mirrors, notices);
        if let Some(cut) = base {
            let (keep, generation) = (spec.keep as usize, self.generation);
            mirrors.committed(MirrorTarget { cut, held: vec![cut], keep, generation });
        }
        self.mirrors = Some(mirrors.clone());
        mirrors
    }

    /// Performs calls until the driver has ended. Waits for the storage go to `notices`.
    pub async fn run(
        self,
        mut calls: mpsc::UnboundedReceiver<(CallId, Box<StoreCall>)>,
        events: mpsc::UnboundedSender<Event>,
        notices: mpsc::UnboundedSender<view::JobEvent>,
    ) {
        let watch = StorageWatch::new(self.location.to_string(), notices.clone());
        while let Some((call, what)) = calls.recv().await {
            // Some read whole checkpoints.
            let reads =
                matches!(*what, StoreCall::OlderBase { .. } | StoreCall::ReplaceCopies { .. });
            let performed = self.perform(*what, &watch, &notices);
            let outcome = if reads { performed.await } else { watch.over(performed).await };
            if events.send(Event::Stored { call, outcome }).is_err() {
                return;
            }
        }
    }

    async fn perform(
        &self,
        call: StoreCall,
        watch: &StorageWatch,
        notices: &mpsc::UnboundedSender<view::JobEvent>,
    ) -> Stored {
        match call {
            StoreCall::Stage { cut } => self.stage(cut, watch).await,
            StoreCall::Commit { manifest, .. } => {
                let cut = manifest.cut;
                fail_point!("before-manifest", cut = cut);
                // The claim is checked by the commit itself.
                let gate = || {
                    fail_point!("before-rename", cut = cut);
                    self.lease.check(Instant::now())
                };
                match self.dir.commit(*manifest, self.salt, &gate).await {
                    Ok(checkpoint) => {
                        fail_point!("after-rename", cut = cut);
                        Stored::Committed(Box::new(self.checkpoint(checkpoint)))
                    }
                    Err(CommitError::Fenced(error)) => Stored::Fenced { error },
                    Err(error @ CommitError::Unknown(_)) => {
                        Stored::Unknown { failure: Failure::new(error.class(), chain(&error)) }
                    }
                    Err(error) => {
                        Stored::NotDone { failure: Failure::new(error.class(), chain(&error)) }
                    }
                }
            }
            StoreCall::Discard { cut, .. } => done(self.dir.discard(cut, self.salt).await),
            StoreCall::Retain { keep, generation, base, best, held } => {
                fail_point!("before-delete", cut = base);
                let held: Vec<CutId> = best.into_iter().chain(held).chain([base]).collect();
                let keep = keep as usize;
                if let Some(mirrors) = &self.mirrors {
                    let held = held.clone();
                    mirrors.committed(MirrorTarget { cut: base, held, keep, generation });
                }
                done(self.dir.retain(keep, generation, &held).await)
            }
            StoreCall::OlderBase { below, error } => self.older_base(below, error).await,
            StoreCall::ReplaceCopies { cut, shard } => {
                let own = Some(self.generation);
                match self.dir.repair(cut, Some(shard), RepairMode::Replace { own }).await {
                    Ok(repair) => {
                        for text in repair.texts() {
                            let _driver_is_gone = notices
                                .send(view::JobEvent::warning(WarningCode::CopyReplaced, text));
                        }
                        Stored::Done
                    }
                    Err(error) => failed(&error),
                }
            }
            StoreCall::PublishModel { save, after, dir, model: staged, files, checkpoint } => {
                fail_point!("before-publish", save = save.0);
                match self.publish(save, after, &dir, staged, files, checkpoint).await {
                    Ok(url) => Stored::Published(url),
                    Err(PublishError::Storage(error)) => {
                        Stored::NotDone { failure: error.failure() }
                    }
                    Err(PublishError::Taken(error)) => Stored::Taken { error },
                    Err(PublishError::Fenced(error)) => Stored::Fenced { error },
                }
            }
        }
    }

    /// Makes the directory of a cut. Retries while the storage is unavailable: that delays the checkpoint and nothing
    /// else.
    async fn stage(&self, cut: CutId, watch: &StorageWatch) -> Stored {
        let begun = Instant::now();
        loop {
            match self.dir.stage(cut, self.salt).await {
                Ok(path) => return Stored::Staged(self.location.with_path(path).to_string()),
                Err(error) if error.is_retryable() && begun.elapsed() < STAGE_TIMEOUT => {
                    watch.failed(chain(&error));
                    tokio::time::sleep(RETRY_WAIT).await;
                }
                Err(error) => return failed(&error),
            }
        }
    }

    /// A checkpoint as the core names it.
    #[must_use]
    pub fn checkpoint(
        &self,
        checkpoint: heddle_storage::checkpoint::StoredCheckpoint,
    ) -> Checkpoint {
        Checkpoint {
            dir: self.location.with_path(checkpoint.dir).to_string(),
            manifest: checkpoint.manifest.into(),
        }
    }

    async fn older_base(&self, below: CutId, error: String) -> Stored {
        let mut aside = Vec::new();
        match self.dir.set_aside(below).await {
            Ok(to) => {
                aside.push(DamagedCheckpoint { cut: below, dir: self.dir.show(&to), error });
            }
            Err(error) => return failed(&error),
        }
        let lineage = match self.dir.lineage().await {
            Ok(lineage) => lineage,
            Err(error) => return failed(&error),
        };
        let found =
            self.dir.newest_below(&lineage, Some(below), Depth::Full, DamagePolicy::Previous).await;
        let Newest { checkpoint, damaged, .. } = match found {
            Ok(found) => found,
            Err(CheckpointError::NoneUsable { .. } | CheckpointError::Lost { .. }) => {
                Newest::default()
            }
            Err(error) => return failed(&error),
        };
        for found in damaged {
            match self.dir.set_aside(found.cut).await {
                Ok(to) => aside.push(DamagedCheckpoint {
                    cut: found.cut,
                    dir: self.dir.show(&to),
                    error: chain(&found.error),
                }),
                Err(error) => return failed(&error),
            }
        }
        Stored::Base {
            base: checkpoint.map(|found| Box::new(self.checkpoint(found))),
            damaged: aside,
        }
    }

    async fn publish(
        &self,
        save: SaveNo,
        after: CutId,
        dir: &str,
        staged: String,
        files: Vec<ExportedFile>,
        checkpoint: CutId,
    ) -> Result<String, PublishError> {
        let output =
            StorageUrl::parse(dir).map_err(|error| PublishError::Taken(error.to_string()))?;
        let save_dir = save_dir(save);
        let location = match &save_dir {
            Some(name) => output.with_path(output.path().join(name)?),
            None => output,
        };
        let storage = connect(&location)?;
        let lease = || self.lease.check(Instant::now());
        let publication = Publication {
            storage: &*storage,
            dir: location.path(),
            staged: &staged,
            staging_prefix: &staging_prefix(&self.location.to_string()),
            mode: match self.permissions {
                Some(permissions) => Mode(permissions.0),
                None => storage.default_mode(),
            },
            overwrite: self.overwrite,
            salt: self.salt,
            checkpoints: &self.dir,
            generation: self.generation,
            lease: &lease,
        };
        let model = ModelFile {
            format_version: FORMAT_VERSION,
            run: self.run,
            job: self.job.clone(),
            checkpoint,
            dir: if save_dir.is_some() { staged.clone() } else { String::new() },
            files,
            at_ms: wall_ms(),
        };
        match save_dir {
            Some(_) => publication.publish_save(model, after).await?,
            None => publication.publish(model).await?,
        }
        Ok(location.to_string())
    }
}

fn done<T>(result: Result<T, CheckpointError>) -> Stored {
    match result {
        Ok(_) => Stored::Done,
        Err(error) => failed(&error),
    }
}

fn failed(error: &CheckpointError) -> Stored {
    if error.is_fenced() {
        Stored::Fenced { error: chain(error) }
    } else {
        Stored::NotDone { failure: error.failure() }
    }
}
