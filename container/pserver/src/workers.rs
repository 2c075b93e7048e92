//! Threads that save and load shards, several at once, so that data threads never wait for storage.

use std::io;

use crossbeam::channel::{Receiver, Sender, bounded};
use heddle_protocol::ids::{Epoch, ShardId, ViewVersion};
use heddle_shard::{Shard, ShardConfig};
use tracing::Span;

use crate::exit_on_panic::ExitOnPanic;
use crate::load::{self, LoadJob};
use crate::message::CoordinatorInput;
use crate::save::{self, SaveFailure, SaveJob};

/// Shards that are saved or loaded at once: as many as the thread of their sums computes together in the lanes of a vector.
/// They have a low priority, so that they take no core from the data threads.
const WORKERS: usize = 8;
/// Jobs that may wait: the maximum number of shards of a job.
const JOBS_MAX: usize = 4096;

/// A shard to save or load.
pub(crate) enum WorkerJob {
    Save(Box<SaveJob>),
    Load(Box<LoadJob>),
    /// A shard of zeros for a refill: the memory for its copies is touched here, not by the data thread.
    Empty {
        epoch: Epoch,
        order: ViewVersion,
        config: Box<ShardConfig>,
    },
}

impl WorkerJob {
    fn shard(&self) -> ShardId {
        match self {
            Self::Save(job) => job.config.shard,
            Self::Load(job) => job.config.shard,
            Self::Empty { config, .. } => config.shard,
        }
    }
}

/// Sends jobs to the workers, each with the span of its log lines.
pub(crate) struct Workers {
    jobs: Sender<(Span, WorkerJob)>,
}

impl Workers {
    /// Starts the workers. Results go to `results`.
    ///
    /// # Errors
    /// The system cannot create a thread.
    pub(crate) fn start(results: &Sender<CoordinatorInput>) -> io::Result<Self> {
        let (jobs, queue) = bounded(JOBS_MAX);
        for n in 0..WORKERS {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let (queue, results) = (queue.clone(), results.clone());
            let thread = std::thread::Builder::new().name(format!("worker-{n}"));
            thread.spawn(move || {
                let _guard = ExitOnPanic;
                heddle_storage::lower_priority_of_thread();
                work(&runtime, &queue, &results);
            })?;
        }
        Ok(Self { jobs })
    }

    pub(crate) fn give(&self, job: WorkerJob) {
        if self.jobs.send((Span::current(), job)).is_err() {
            tracing::error!("workers_ended");
        }
    }
}

fn work(
    runtime: &tokio::runtime::Runtime,
    queue: &Receiver<(Span, WorkerJob)>,
    results: &Sender<CoordinatorInput>,
) {
    for (span, job) in queue {
        let _entered = tracing::info_span!(parent: &span, "shard", shard = %job.shard()).entered();
        let result = match job {
            WorkerJob::Save(job) => {
                let result = match runtime.block_on(save::save(&job)) {
                    Ok(file) => Ok(Some(file)),
                    Err(SaveFailure::Gone) => Ok(None),
                    Err(error) => {
                        let (cut, failure) = (job.moment.cut, error.failure());
                        let text = &failure.text;
                        // The ApplicationMaster removes the directory of a cut that it aborts.
                        match error.is_directory_removed() {
                            true => tracing::info!(%cut, error = text, "shard_save_abandoned"),
                            false => tracing::warn!(%cut, error = text, "shard_not_saved"),
                        }
                        Err(failure)
                    }
                };
                CoordinatorInput::Saved {
                    cut: job.moment.cut,
                    epoch: job.moment.epoch,
                    shard: job.config.shard,
                    result,
                }
            }
            WorkerJob::Empty { epoch, order, config } => {
                let shard = Box::new(Shard::new(&config));
                CoordinatorInput::MadeEmpty { epoch, order, shard }
            }
            WorkerJob::Load(job) => {
                let result = runtime.block_on(load::load(&job));
                CoordinatorInput::Loaded { epoch: job.epoch, shard: job.config.shard, result }
            }
        };
        if results.send(result).is_err() {
            return;
        }
    }
}
