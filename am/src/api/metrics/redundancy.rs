//! Metrics of backups, spares and local recoveries.

use std::fmt;

use heddle_protocol::view::{JobView, SparesView};

use super::page::{Metric, Page};

const SHARDS_IN_SYNC: Metric =
    Metric::gauge("heddle_shards_in_sync", "Shards with all of their backups in sync.");
const SHARDS_UNDER_REPLICATED: Metric =
    Metric::gauge("heddle_shards_under_replicated", "Shards with fewer backups than wanted.");
const PROMOTIONS: Metric = Metric::counter("heddle_promotions_total", "Backups made primary.");
const HAND_OVERS: Metric = Metric::counter("heddle_hand_overs_total", "Shards handed over.");
const COPIES_DIFFERED: Metric = Metric::counter(
    "heddle_copies_differed_total",
    "Checkpoints given up because two copies of a shard had other bytes.",
);
const REPLICATION_LAG_ENTRIES: Metric = Metric::gauge(
    "heddle_replication_lag_entries",
    "Changes that the slowest backup in sync has not acknowledged.",
);
const REPLICATION_LAG_BYTES: Metric = Metric::gauge(
    "heddle_replication_lag_bytes",
    "Most bytes of changes that a primary keeps until its backups acknowledge them.",
);
const REPLICATION_LAG: Metric = Metric::gauge(
    "heddle_replication_lag_seconds",
    "For how long the slowest backup in sync has owed an acknowledgement.",
);
const REFILLS: Metric =
    Metric::gauge("heddle_refills", "Backups of shards that are being brought up to date.");
const REFILL_BYTES: Metric =
    Metric::gauge("heddle_refill_bytes", "Bytes that running refills have sent.");
const REFILL_LEFT_BYTES: Metric =
    Metric::gauge("heddle_refill_left_bytes", "Bytes that running refills have to send.");
const UPDATES_LOST: Metric = Metric::counter(
    "heddle_updates_lost_total",
    "Updates of lost shards that local recoveries did not do again.",
);
const SPARES: Metric = Metric::gauge(
    "heddle_spares",
    "Containers that are registered and idle, to take the place of lost ones, by role.",
);
const SPARES_WANTED: Metric =
    Metric::gauge("heddle_spares_wanted", "Spares that the job file asks for, by role.");

pub(super) fn redundancy(page: &mut Page<'_>, view: &JobView) -> fmt::Result {
    if let Some(replication) = &view.replication {
        page.value(SHARDS_IN_SYNC, replication.in_sync)?;
        page.value(SHARDS_UNDER_REPLICATED, replication.under_replicated)?;
        page.value(PROMOTIONS, replication.promotions)?;
        page.value(HAND_OVERS, replication.hand_overs)?;
        page.value(COPIES_DIFFERED, replication.copies_differed)?;
        page.value(REPLICATION_LAG_ENTRIES, replication.lag.entries)?;
        page.value(REPLICATION_LAG_BYTES, replication.lag.bytes)?;
        page.value(REPLICATION_LAG, replication.lag.ms as f64 / 1000.0)?;
        let refills = &replication.refills;
        page.value(REFILLS, refills.len() as u64)?;
        page.value(REFILL_BYTES, refills.iter().map(|it| it.bytes).sum::<u64>())?;
        let left = refills.iter().map(|it| it.of_bytes.saturating_sub(it.bytes));
        page.value(REFILL_LEFT_BYTES, left.sum::<u64>())?;
    }
    if let Some(updates) = view.updates_lost {
        page.value(UPDATES_LOST, updates)?;
    }
    if let Some(SparesView { pservers, trainers }) = view.spares {
        let by = [("pserver", pservers), ("trainer", trainers)];
        page.values(SPARES, by.map(|(role, it)| ([("role", role)], it.ready)))?;
        page.values(SPARES_WANTED, by.map(|(role, it)| ([("role", role)], it.wanted)))?;
    }
    Ok(())
}
