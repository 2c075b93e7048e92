//! How far an export is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the bytes of a checkpoint that are turned into a model: it grows as long as storage reads and writes.
#[derive(Clone, Debug, Default)]
pub struct ExportedBytes(Arc<AtomicU64>);

impl ExportedBytes {
    /// Adds bytes.
    pub(crate) fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Their number so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
