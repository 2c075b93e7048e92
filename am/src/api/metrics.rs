//! The job's figures as Prometheus text, from the same view as everything else.

use heddle_protocol::ids::Role;
use heddle_protocol::view::JobView;
use heddle_telemetry::metrics::{Metric, Page};

const ROWS: Metric = Metric::counter(
    "heddle_rows_total",
    "Records computed, recomputed ones included.",
);
const ROWS_PER_SECOND: Metric =
    Metric::gauge("heddle_rows_per_second", "Records per second lately.");
const PHASE: Metric = Metric::gauge("heddle_phase", "Ordinal of the phase.");
const CHECKPOINTS: Metric = Metric::counter(
    "heddle_checkpoints_total",
    "Checkpoints committed in this run.",
);
const RECOVERIES: Metric = Metric::counter("heddle_recoveries_total", "Recoveries in this run.");
const RECOVERY_SECONDS: Metric = Metric::gauge(
    "heddle_recovery_seconds",
    "Stretches of the last recovery, seconds.",
);
const MEMORY: Metric = Metric::gauge(
    "heddle_container_resident_bytes",
    "Resident memory of a container, bytes.",
);
const PUSHES: Metric = Metric::counter(
    "heddle_pushes_total",
    "Push frames taken by a parameter server.",
);

pub(super) fn render(view: &JobView) -> String {
    let mut page = Page::new();
    page.value(ROWS, view.rows as f64);
    page.value(ROWS_PER_SECOND, view.rows_per_second);
    page.value(PHASE, f64::from(view.phase.0));
    page.value(CHECKPOINTS, f64::from(view.checkpoints_taken));
    page.value(RECOVERIES, view.recoveries.len() as f64);
    if let Some(last) = view.recoveries.last() {
        let stretches = [
            ("checkpoint", last.checkpoint_ms),
            ("notice", last.notice_ms),
            ("restart", last.restart_ms),
            ("load", last.load_ms),
            ("resume", last.resume_ms),
        ];
        let known = stretches
            .into_iter()
            .filter_map(|(name, ms)| ms.map(|ms| ([("stretch", name)], ms as f64 / 1000.0)));
        page.values(RECOVERY_SECONDS, known);
    }
    let names: Vec<_> = view
        .slots
        .iter()
        .map(|slot| slot.slot.to_string())
        .collect();
    let slots = || names.iter().zip(&view.slots);
    page.values(
        MEMORY,
        slots().map(|(name, slot)| ([("slot", name.as_str())], slot.rss_bytes as f64)),
    );
    let pservers = slots().filter(|(_, slot)| slot.slot.role == Role::Pserver);
    page.values(
        PUSHES,
        pservers.map(|(name, slot)| ([("slot", name.as_str())], slot.total as f64)),
    );
    page.finish()
}
