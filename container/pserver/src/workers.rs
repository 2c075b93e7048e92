//! Threads that save and load shards, several at once, so that data threads never wait for storage.

use heddle_protocol::failure::Failure;
use heddle_storage::chain;
use std::io;

use crossbeam::channel::{Receiver, Sender, bounded};

use crate::command::Input;
use crate::load::{self, LoadJob};
use crate::process::Whole;
use crate::save::{self, Failed, SaveJob};

/// Shards that are saved or loaded at once. Each saver has a thread for its sum besides; more would
/// take cores from the data threads, fewer would leave the disk waiting for the sum.
const WORKERS: usize = 3;
/// Jobs that may wait: as many as a job may have shards.
const JOBS_MAX: usize = 4096;

pub(crate) enum Job {
    Save(Box<SaveJob>),
    Load(Box<LoadJob>),
}

/// The way to the workers.
pub(crate) struct Workers {
    jobs: Sender<Job>,
}

impl Workers {
    /// Starts them; results go to `results`.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub(crate) fn start(results: &Sender<Input>) -> io::Result<Self> {
        let (jobs, queue) = bounded(JOBS_MAX);
        for n in 0..WORKERS {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let (queue, results) = (queue.clone(), results.clone());
            let thread = std::thread::Builder::new().name(format!("worker-{n}"));
            thread.spawn(move || {
                let _whole = Whole;
                work(&runtime, &queue, &results);
            })?;
        }
        Ok(Self { jobs })
    }

    pub(crate) fn give(&self, job: Job) {
        if self.jobs.send(job).is_err() {
            tracing::error!("the workers have ended");
        }
    }
}

fn work(runtime: &tokio::runtime::Runtime, queue: &Receiver<Job>, results: &Sender<Input>) {
    for job in queue {
        let result = match job {
            Job::Save(job) => {
                let result = match runtime.block_on(save::save(&job)) {
                    Ok(file) => Ok(Some(file)),
                    Err(Failed::Gone) => Ok(None),
                    Err(error) => Err(Failure::new(error.class(), chain(&error))),
                };
                Input::Saved {
                    cut: job.moment.cut,
                    epoch: job.moment.epoch,
                    shard: job.config.shard,
                    result,
                }
            }
            Job::Load(job) => {
                let result = runtime.block_on(load::load(&job));
                Input::Loaded { epoch: job.epoch, shard: job.config.shard, result }
            }
        };
        if results.send(result).is_err() {
            return;
        }
    }
}
