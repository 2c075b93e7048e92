//! Counters of heartbeats over all containers of this attempt, those that are gone included.

use heddle_protocol::control::{
    GrantedPulls, HeartbeatStats, ReplicationLag, SavedBytes, SparseTableSize,
};
use heddle_protocol::ids::Role;

use super::Fleet;

/// The last counters of containers that are gone.
#[derive(Clone, Debug, Default)]
pub(super) struct CountersOfLost {
    /// Records computed in training, recomputed ones included.
    rows: u64,
    /// SSP: pulls granted.
    granted: GrantedPulls,
    /// Checkpoints written.
    saved: SavedBytes,
}

impl CountersOfLost {
    /// A container of this role is gone; `beat` are its last figures.
    pub(super) fn add(&mut self, role: Role, beat: &HeartbeatStats) {
        match role {
            Role::Trainer => self.rows = self.rows.saturating_add(beat.trained_rows()),
            Role::Pserver => {
                if let Some(pulls) = &beat.granted_pulls {
                    self.granted.add(pulls);
                }
                if let Some(saved) = &beat.saved {
                    self.saved.add(**saved);
                }
            }
        }
    }

    /// Records that trainers computed in training, with those that `present` have.
    pub(super) fn trained_rows<'a>(
        &self,
        present: impl Iterator<Item = &'a HeartbeatStats>,
    ) -> u64 {
        let now: u64 = present.map(HeartbeatStats::trained_rows).sum();
        self.rows.saturating_add(now)
    }

    /// SSP: pulls that pservers granted, with those of `present`; none before the first.
    pub(super) fn granted_pulls<'a>(
        &self,
        present: impl Iterator<Item = &'a HeartbeatStats>,
    ) -> Option<GrantedPulls> {
        let mut all = self.granted.clone();
        present.filter_map(|beat| beat.granted_pulls.as_ref()).for_each(|pulls| all.add(pulls));
        (all.pulls() > 0).then_some(all)
    }

    /// What pservers wrote of checkpoints, with `present`; none before the first.
    pub(super) fn saved_bytes<'a>(
        &self,
        present: impl Iterator<Item = &'a HeartbeatStats>,
    ) -> Option<SavedBytes> {
        let mut all = self.saved;
        present.filter_map(|beat| beat.saved.as_deref()).for_each(|saved| all.add(*saved));
        (all != SavedBytes::default()).then_some(all)
    }
}

impl Fleet {
    /// Records that trainers of this attempt have computed in training, recomputed ones included.
    pub(crate) fn trained_rows(&self) -> u64 {
        self.counters_of_lost.trained_rows(self.beats(Role::Trainer))
    }

    /// SSP: pulls that the pservers of this attempt have granted; none before the first.
    pub(crate) fn granted_pulls(&self) -> Option<GrantedPulls> {
        self.counters_of_lost.granted_pulls(self.beats(Role::Pserver))
    }

    /// What the pservers of this attempt have written of checkpoints; none before the first.
    pub(crate) fn saved_bytes(&self) -> Option<SavedBytes> {
        self.counters_of_lost.saved_bytes(self.beats(Role::Pserver))
    }

    /// Sizes of sparse tables by the last heartbeats.
    pub(crate) fn sparse_tables(&self) -> Vec<SparseTableSize> {
        let mut all = Vec::new();
        for holder in self.slots.holders(Role::Pserver) {
            SparseTableSize::add(&mut all, &holder.beat.sparse_tables);
        }
        all
    }

    /// How far the slowest backup in sync is behind, by the last heartbeats.
    pub(crate) fn replication_lag(&self) -> ReplicationLag {
        let lags =
            self.beats(Role::Pserver).filter_map(|beat| beat.replication_lag.as_deref().copied());
        lags.reduce(ReplicationLag::max).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_of_pservers_that_are_gone_count() {
        let wrote = |bytes| HeartbeatStats {
            saved: Some(Box::new(SavedBytes { bytes, saver_ms: 10, throttled_ms: 1 })),
            ..HeartbeatStats::default()
        };
        let mut lost = CountersOfLost::default();
        assert_eq!(lost.saved_bytes(std::iter::once(&HeartbeatStats::default())), None);
        lost.add(Role::Pserver, &wrote(100));
        let present = [wrote(20), HeartbeatStats::default()];
        let all = SavedBytes { bytes: 120, saver_ms: 20, throttled_ms: 2 };
        assert_eq!(lost.saved_bytes(present.iter()), Some(all));
    }
}
