//! Figures of the training loop that the control thread reports while the loop is busy. They are behind one lock, which is
//! taken a few times per step and held for a copy at most.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use heddle_protocol::control::{HeartbeatStats, TrainerState};
use heddle_protocol::ids::Step;

use crate::storage_wait::StorageWaits;

/// Figures and position of the training loop. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedStatus(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
pub(super) struct Inner {
    /// For the next heartbeat.
    pub(super) beat: HeartbeatStats,
    /// For the next registration; `None` before the first order.
    pub(super) trainer_state: Option<TrainerState>,
    /// Waits of readers.
    waits: StorageWaits,
}

impl SharedStatus {
    /// The figures, locked.
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic cannot leave plain figures in an invalid state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Record of the waits of readers.
    pub(super) fn waits(&self) -> StorageWaits {
        self.lock().waits.clone()
    }

    /// Counts a computed step: its records, their summed loss, and the computing time since the start.
    pub(super) fn computed(&self, rows: u64, loss: f64, evaluated: bool, computing: Duration) {
        let beat = &mut self.lock().beat;
        beat.rows += rows;
        if evaluated {
            beat.evaluated_rows += rows;
        }
        beat.loss_rows += rows;
        beat.loss_sum += loss;
        beat.compute_ms = computing.as_millis() as u64;
    }

    /// Sets the loss of the phase to zero.
    pub(super) fn reset_loss(&self) {
        let beat = &mut self.lock().beat;
        (beat.loss_sum, beat.loss_rows) = (0.0, 0);
    }

    /// Replaces the position that heartbeats and registrations report.
    pub(super) fn publish(&self, step: Step, trainer_state: TrainerState) {
        let mut inner = self.lock();
        (inner.beat.epoch, inner.beat.phase, inner.beat.step) =
            (trainer_state.epoch, trainer_state.phase, step);
        inner.trainer_state = Some(trainer_state);
    }

    /// A heartbeat's figures.
    pub(super) fn beat(&self) -> HeartbeatStats {
        let (mut beat, waits) = {
            let inner = self.lock();
            (inner.beat.clone(), inner.waits.clone())
        };
        beat.input_wait = waits.longest();
        beat.rss_bytes = resident_bytes().unwrap_or(0);
        beat
    }
}

/// Resident memory of this process (proc(5), statm: pages, the second number).
fn resident_bytes() -> Option<u64> {
    const PAGE_BYTES: u64 = 4096;
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * PAGE_BYTES)
}
