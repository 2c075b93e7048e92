//! Figures of the training loop that the control thread reports while the loop is busy. They are behind one lock, which is
//! taken a few times per step and held for a copy at most.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heddle_agent::TurnCounter;
use heddle_input::StorageWaits;
use heddle_protocol::control::{HeartbeatStats, LongStep, TrainerState};
use heddle_protocol::ids::{Member, Step, TaskAttempt, TaskId};
use heddle_protocol::process_figures::ProcessFigure;
use heddle_self_faults::Slowness;

use super::record_time::RecordTime;

/// A shorter step is not worth a word in a heartbeat.
const LONG_STEP_MS: u64 = 1_000;
/// The name of the training loop in messages to users.
const TRAINING_LOOP: &str = "the training loop";

/// Figures and position of the training loop. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedStatus {
    inner: Arc<Mutex<Inner>>,
    /// How slow an operator has ordered computations to be.
    pub(super) slowness: Slowness,
}

#[derive(Debug, Default)]
pub(super) struct Inner {
    /// For the next heartbeat.
    pub(super) stats: HeartbeatStats,
    /// For the next registration; `None` before the first order.
    pub(super) trainer_state: Option<TrainerState>,
    /// Waits of readers.
    waits: StorageWaits,
    /// Pservers out of reach, and since when.
    outages: Vec<(Member, Instant)>,
    /// Turns of the training loop.
    turn: Arc<TurnCounter>,
    /// The task of the step that is being computed, its hand-out, and since when.
    computes: Option<(TaskId, TaskAttempt, Instant)>,
    /// Computing times of the last steps.
    record_time: RecordTime,
}

impl SharedStatus {
    /// The figures, locked.
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic cannot leave plain figures in an invalid state.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Record of the waits of readers.
    pub(super) fn waits(&self) -> StorageWaits {
        self.lock().waits.clone()
    }

    /// Replaces the pservers that are out of reach, each with the time for which it has been, ms.
    pub(super) fn outages(&self, members: &[(Member, u64)]) {
        let inner = &mut *self.lock();
        let now = Instant::now();
        let since = |(member, for_ms): &(Member, u64)| {
            let known = inner.outages.iter().find(|(known, _)| known == member);
            let begun = || now.checked_sub(Duration::from_millis(*for_ms)).unwrap_or(now);
            (*member, known.map_or_else(begun, |(_, since)| *since))
        };
        inner.outages = members.iter().map(since).collect();
    }

    /// Turns of the training loop.
    pub(super) fn turn(&self) -> Arc<TurnCounter> {
        Arc::clone(&self.lock().turn)
    }

    /// The algorithm begins with a step, which may take as long as it needs.
    pub(super) fn computes(&self, task: TaskId, attempt: TaskAttempt) {
        let inner = &mut *self.lock();
        inner.turn.wait();
        inner.computes = Some((task, attempt, Instant::now()));
    }

    /// The algorithm has returned.
    pub(super) fn computes_no_more(&self) {
        let inner = &mut *self.lock();
        inner.turn.turn();
        inner.computes = None;
    }

    /// Counts a computed step: its records, their summed loss, its computing time without waiting.
    pub(super) fn computed(&self, rows: u64, loss: f64, evaluated: bool, took: Duration) {
        let inner = &mut *self.lock();
        inner.record_time.add(rows, took);
        let stats = &mut inner.stats;
        stats.figures.add(ProcessFigure::Rows, rows);
        if evaluated {
            stats.figures.add(ProcessFigure::EvaluatedRows, rows);
        }
        stats.loss_rows += rows;
        stats.loss_sum += loss;
    }

    /// A phase begins: its loss is zero, and no step of it is measured.
    pub(super) fn begin_phase(&self) {
        let inner = &mut *self.lock();
        inner.record_time = RecordTime::default();
        (inner.stats.loss_sum, inner.stats.loss_rows) = (0.0, 0);
    }

    /// Replaces the position that heartbeats and registrations report.
    pub(super) fn publish(&self, step: Step, trainer_state: TrainerState) {
        let mut inner = self.lock();
        (inner.stats.epoch, inner.stats.phase, inner.stats.step) =
            (trainer_state.epoch, trainer_state.phase, step);
        inner.trainer_state = Some(trainer_state);
    }

    /// A heartbeat's figures.
    pub(super) fn heartbeat(&self) -> HeartbeatStats {
        let (mut stats, waits, turn_ms, computes) = {
            let inner = self.lock();
            let mut stats = inner.stats.clone();
            stats.unreachable = inner.outages.iter().map(|(member, _)| *member).collect();
            stats.unreachable_ms = inner.outages.iter().map(|(_, since)| millis(*since)).collect();
            stats.record_ns =
                inner.record_time.record_ns(inner.computes.map(|(_, _, since)| since.elapsed()));
            (stats, inner.waits.clone(), inner.turn.age_ms(), inner.computes)
        };
        stats.slow_thread = heddle_agent::slowest([(TRAINING_LOOP.to_owned(), turn_ms)]);
        stats.long_step = computes.and_then(|(task, attempt, since)| {
            let for_ms = millis(since);
            (for_ms >= LONG_STEP_MS).then_some(LongStep { task, attempt, for_ms })
        });
        stats.input_wait = waits.longest();
        stats
    }
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
