//! How long the parts of a step take, for `heddle bench train --steps`: an event of the log for each step. Clocks are read only
//! if the filter of the log has its target.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use heddle_client::machine::{PullId, Unit};
use heddle_protocol::ids::Step;
use heddle_telemetry::STEP_TIMES;
use tracing::Level;

/// The steps of this trainer that are not acknowledged.
#[derive(Default)]
pub(super) struct StepTimes {
    is_on: bool,
    pulls: BTreeMap<PullId, (Unit, Instant)>,
    /// Times of pulls for the steps that are computed next, in their order: at most one for a lane, two for a task.
    pulled: BTreeMap<Unit, Vec<Duration>>,
    pushed: BTreeMap<(Unit, Step), UnreachedStep>,
}

struct UnreachedStep {
    pull: Duration,
    compute: Duration,
    at: Instant,
}

impl StepTimes {
    pub(super) fn new() -> Self {
        Self { is_on: tracing::enabled!(target: STEP_TIMES, Level::TRACE), ..Self::default() }
    }

    /// The values of a unit's next step are asked for.
    pub(super) fn asked(&mut self, pull: PullId, unit: Unit) {
        if self.is_on {
            self.pulls.insert(pull, (unit, Instant::now()));
        }
    }

    /// They are here.
    pub(super) fn pulled(&mut self, pull: PullId) {
        if let Some((unit, asked)) = self.pulls.remove(&pull) {
            self.pulled.entry(unit).or_default().push(asked.elapsed());
        }
    }

    /// The algorithm begins with a step, if there is one to compute.
    pub(super) fn clock(&self) -> Option<Instant> {
        self.is_on.then(Instant::now)
    }

    /// A step is computed, since `begun`, and its push begins.
    pub(super) fn pushed(&mut self, unit: Unit, step: Step, begun: Option<Instant>) {
        let Some(begun) = begun else { return };
        let pulls = self.pulled.entry(unit).or_default();
        let pull = if pulls.is_empty() { Duration::ZERO } else { pulls.remove(0) };
        let times = UnreachedStep { pull, compute: begun.elapsed(), at: Instant::now() };
        self.pushed.insert((unit, step), times);
    }

    /// All shards have acknowledged a step.
    pub(super) fn reached(&mut self, unit: Unit, step: Step) {
        if let Some(UnreachedStep { pull, compute, at }) = self.pushed.remove(&(unit, step)) {
            let push = at.elapsed();
            tracing::trace!(
                target: STEP_TIMES,
                pull_us = pull.as_micros() as u64,
                compute_us = compute.as_micros() as u64,
                push_us = push.as_micros() as u64,
                "step_timed"
            );
        }
    }
}
