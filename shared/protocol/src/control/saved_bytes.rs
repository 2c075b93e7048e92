//! What pservers measure of the checkpoints that they write.

use serde::{Deserialize, Serialize};

/// Shard files that were written since the start of a pserver or, added up, by several. Files that failed or were given up
/// count too: they cost the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SavedBytes {
    /// Bytes of values and optimizer state, counted as they are written.
    pub bytes: u64,
    /// Time of the savers, milliseconds. Shards that are saved at the same time count each.
    pub saver_ms: u64,
    /// The part of it that they waited for `checkpoint.bandwidth`.
    pub throttled_ms: u64,
}

impl SavedBytes {
    /// Adds those of others.
    pub fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.saver_ms = self.saver_ms.saturating_add(other.saver_ms);
        self.throttled_ms = self.throttled_ms.saturating_add(other.throttled_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_saturate() {
        let mut sum = SavedBytes { bytes: u64::MAX, saver_ms: 2, throttled_ms: 1 };
        sum.add(SavedBytes { bytes: 1, saver_ms: 3, throttled_ms: 4 });
        assert_eq!(sum, SavedBytes { bytes: u64::MAX, saver_ms: 5, throttled_ms: 5 });
    }
}
