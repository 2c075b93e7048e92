//! The pserver's status for heartbeats: written by the coordinator, read by the control thread.

use std::sync::atomic::{AtomicU64, Ordering};

use heddle_protocol::ids::{Epoch, Generation};

/// Values for heartbeats.
#[derive(Default)]
pub(crate) struct PserverStatus {
    epoch: AtomicU64,
    /// Memory of the spec, bytes; 0 before the spec is known.
    memory_bytes: AtomicU64,
}

impl PserverStatus {
    pub(crate) fn set_epoch(&self, epoch: Epoch) {
        let packed = (u64::from(epoch.generation.0) << 32) | u64::from(epoch.count);
        self.epoch.store(packed, Ordering::Relaxed);
    }

    pub(crate) fn epoch(&self) -> Epoch {
        let packed = self.epoch.load(Ordering::Relaxed);
        Epoch { generation: Generation((packed >> 32) as u32), count: packed as u32 }
    }

    pub(crate) fn set_memory_bytes(&self, bytes: u64) {
        self.memory_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes.load(Ordering::Relaxed)
    }
}
