//! Figures of heartbeats over all containers of this attempt, those that are gone included.

use heddle_protocol::control::{ReplicationLag, SparseTableSize};
use heddle_protocol::ids::Role;
use heddle_protocol::process_figures::{ProcessFigure, ProcessFigures};

use super::Fleet;

/// The figure by which the speed of a container of this role is measured.
pub(crate) fn work_figure(role: Role) -> ProcessFigure {
    match role {
        Role::Pserver => ProcessFigure::Pushes,
        Role::Trainer => ProcessFigure::Rows,
    }
}

impl Fleet {
    /// Figures of all containers of this attempt, merged.
    pub(crate) fn figures(&self) -> ProcessFigures {
        let mut all = self.figures_of_lost;
        for role in [Role::Pserver, Role::Trainer] {
            self.beats(role).for_each(|beat| all.merge(&beat.figures));
        }
        all
    }

    /// Records that trainers of this attempt have computed in training, recomputed ones included.
    pub(crate) fn trained_rows(&self) -> u64 {
        let trained = |figures: &ProcessFigures| {
            figures
                .get(ProcessFigure::Rows)
                .saturating_sub(figures.get(ProcessFigure::EvaluatedRows))
        };
        let now: u64 = self.beats(Role::Trainer).map(|beat| trained(&beat.figures)).sum();
        trained(&self.figures_of_lost).saturating_add(now)
    }

    /// Sizes of sparse tables by the last heartbeats.
    pub(crate) fn sparse_tables(&self) -> Vec<SparseTableSize> {
        let mut all = Vec::new();
        for holder in self.slots.holders(Role::Pserver) {
            SparseTableSize::add(&mut all, &holder.heartbeat.sparse_tables);
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
