//! Memory of a replacement container after a container exceeded its memory limit.

use serde::{Deserialize, Serialize};

use super::value::Bytes;

/// How a container is requested again after YARN ended it for exceeding its memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryRetry {
    /// Factor from one request to the next, 1 to 10.
    pub factor: f64,
    /// Most repetitions for a slot, at most 10; 0: the job fails the first time.
    pub times: u32,
}

impl Default for MemoryRetry {
    /// Once, with half as much again.
    fn default() -> Self {
        Self { factor: 1.5, times: 1 }
    }
}

impl MemoryRetry {
    /// The memory of a slot after `retries` containers were ended for their memory, whole MiB, from the memory that
    /// the spec gives it; nothing when there were more than [`times`](Self::times).
    #[must_use]
    pub fn memory(self, spec: Bytes, retries: u32) -> Option<Bytes> {
        if retries > self.times {
            return None;
        }
        let mut mib = spec.0.div_ceil(1 << 20);
        for _ in 0..retries.min(10) {
            // A factor of thousandths in whole numbers, so that every machine asks for the same.
            let thousandths = (self.factor.clamp(1.0, 10.0) * 1000.0).round() as u64;
            mib = mib.saturating_mul(thousandths).div_ceil(1000);
        }
        Some(Bytes(mib.saturating_mul(1 << 20)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_grows_by_the_factor_up_to_the_limit() {
        let retry = MemoryRetry::default();
        assert_eq!(retry.memory(Bytes::mib(512), 0), Some(Bytes::mib(512)));
        assert_eq!(retry.memory(Bytes::mib(512), 1), Some(Bytes::mib(768)));
        assert_eq!(retry.memory(Bytes::mib(512), 2), None);
    }
}
