//! Features of a minibatch after which it is closed early, by the memory of the trainer that reads it.
//!
//! A step is named by its number in its task, so all trainers of a run close batches after the same records. A run keeps the
//! limit that it began with: the ApplicationMaster takes it from the checkpoint ([`BatchFeatures::recorded`]).
//!
//! **Rule.** A fortieth of `trainers.memory` in bytes, at most 2²⁷. A feature takes 12 to 16 bytes. Two batches of a lane exist
//! at the least, one that is read and the one before, which waits for what follows it: together nine tenths of the memory,
//! with a record of the most features ([`BatchFeatures::record`]) beyond the limit in each. In 512 MiB, 16,384 records of 784
//! columns stay one batch.

use serde::{Deserialize, Serialize};

use super::value::Bytes;

/// Bytes of `trainers.memory` for each feature of a batch.
const BYTES: u64 = 40;
/// Part of the features of a batch that one record may have.
const RECORD: u64 = 8;

/// Features after which a batch is closed. Runs that began before the limit followed from the memory have the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BatchFeatures(u64);

impl Default for BatchFeatures {
    fn default() -> Self {
        Self(1 << 27)
    }
}

impl BatchFeatures {
    /// By the memory of a trainer.
    #[must_use]
    pub fn of(memory: Bytes) -> Self {
        Self((memory.0 / BYTES).min(Self::default().0))
    }

    /// Of the run in whose manifest this spec is.
    #[must_use]
    pub fn recorded(spec: &serde_json::Value) -> Self {
        let field = spec.get("batch-features").cloned();
        field.and_then(|field| serde_json::from_value(field).ok()).unwrap_or_default()
    }

    /// A batch with more features takes no further record.
    #[must_use]
    pub fn batch(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// A record with more features is malformed. At most 10 MiB of text are 5.2 million features, fewer than the default allows.
    #[must_use]
    pub fn record(self) -> usize {
        usize::try_from(self.0 / RECORD).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_spec::job::{JobSpec, sample};

    #[test]
    fn a_manifest_has_the_limit_of_its_run() {
        let mut spec = sample();
        let recorded = |spec: &JobSpec| {
            let json = String::from_utf8(spec.to_json()).expect("UTF-8");
            let value = serde_json::from_str(&json).expect("JSON");
            (json.contains("batch-features"), BatchFeatures::recorded(&value))
        };
        // As of a program that had no such limit.
        assert_eq!(recorded(&spec), (false, BatchFeatures::default()));
        spec.batch_features = BatchFeatures::of(Bytes::mib(64));
        assert_eq!(recorded(&spec), (true, spec.batch_features));
    }

    #[test]
    fn two_batches_fit_into_the_memory_that_they_follow_from() {
        for mib in [64, 512, 2048] {
            let (memory, limit) = (Bytes::mib(mib), BatchFeatures::of(Bytes::mib(mib)));
            let most = 2 * 16 * (limit.batch() + limit.record()) as u64;
            assert!(most <= memory.0 / 100 * 91, "{mib} MiB: {most}");
        }
        assert!(BatchFeatures::of(Bytes::mib(512)).batch() > 16_383 * 784);
        assert!(BatchFeatures::of(Bytes::mib(512)).record() > 1_600_000);
        assert_eq!(BatchFeatures::of(Bytes(u64::MAX)), BatchFeatures::default());
        assert!(BatchFeatures::default().record() > 10 << 19, "every line that is read");
    }
}
