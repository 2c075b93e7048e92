//! One cluster for all tests of a file: to start one takes longer than most tests.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use anyhow::{Result, anyhow};

use super::{Cluster, Options};

/// The cluster of a file of tests, in a `static`. The first test that needs it starts it; where it does not start, all
/// of them fail for the same cause.
#[derive(Default)]
pub struct Shared {
    started: OnceLock<Result<Cluster, String>>,
    turn: Mutex<()>,
}

impl Shared {
    /// A cluster that no test has used yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { started: OnceLock::new(), turn: Mutex::new(()) }
    }

    /// The cluster, started with `options` by the first call.
    ///
    /// # Errors
    /// It does not start.
    pub fn get(&self, options: impl FnOnce() -> Options) -> Result<&Cluster> {
        let start = || Cluster::start(options()).map_err(|error| format!("{error:#}"));
        let started = self.started.get_or_init(start);
        started.as_ref().map_err(|error| anyhow!(error.clone()))
    }

    /// As [`Shared::get`], for one test at a time: those that need all of the cluster, or disturb it.
    ///
    /// # Errors
    /// It does not start.
    pub fn alone(
        &self,
        options: impl FnOnce() -> Options,
    ) -> Result<(&Cluster, MutexGuard<'_, ()>)> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((self.get(options)?, turn))
    }
}
