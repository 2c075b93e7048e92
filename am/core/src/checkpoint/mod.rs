//! Checkpoints: schedule, cuts, snapshots, commit, manifest.

pub(crate) mod commit;
pub(crate) mod cut;
pub(crate) mod manifest;
pub(crate) mod schedule;
pub(crate) mod snapshots;
