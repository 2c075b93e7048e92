//! What the control thread tells of the training loop while that is busy: shared figures behind one lock,
//! which is held for a copy at most and touched a few times per step.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heddle_protocol::control::{HeartbeatStats, TrainerState};

use crate::storage_wait::StorageWaits;

/// Figures and whereabouts of the training loop. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Status(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
pub(super) struct Inner {
    /// For the next heartbeat.
    pub(super) beat: HeartbeatStats,
    /// For the next registration; nothing before the first order.
    pub(super) busy: Option<TrainerState>,
    /// What readers wait for.
    waits: StorageWaits,
}

impl Status {
    /// The figures, locked.
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        // Plain figures cannot be left half-changed in a way that matters.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where readers note what they wait for.
    pub(super) fn waits(&self) -> StorageWaits {
        self.lock().waits.clone()
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
