//! The job's figures as Prometheus text (exposition format 0.0.4), from the same view as everything else.

use std::fmt::Write as _;

use heddle_protocol::ids::Role;
use heddle_protocol::view::JobView;

/// Records computed by trainers since the start, recomputed ones included.
const ROWS: &str = "heddle_rows_total";
/// Records per second lately.
const ROWS_PER_SECOND: &str = "heddle_rows_per_second";
/// Checkpoints committed in this run.
const CHECKPOINTS: &str = "heddle_checkpoints_total";
/// Recoveries in this run.
const RECOVERIES: &str = "heddle_recoveries_total";
/// Seconds of the last recovery, by stretch.
const RECOVERY_SECONDS: &str = "heddle_recovery_seconds";
/// Resident memory of a container, bytes.
const MEMORY: &str = "heddle_container_resident_bytes";
/// Push frames taken by a pserver.
const PUSHES: &str = "heddle_pushes_total";
/// The phase's number.
const PHASE: &str = "heddle_phase";

pub(super) fn render(view: &JobView) -> String {
    let mut out = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, samples: &[(String, f64)]| {
        // Writing to a string does not fail.
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(out, "{name}{labels} {value}");
        }
    };
    let one = |value: f64| vec![(String::new(), value)];
    metric(
        ROWS,
        "counter",
        "Records computed, recomputed ones included.",
        &one(view.rows as f64),
    );
    metric(
        ROWS_PER_SECOND,
        "gauge",
        "Records per second lately.",
        &one(view.rows_per_second),
    );
    metric(
        PHASE,
        "gauge",
        "Ordinal of the phase.",
        &one(f64::from(view.phase.0)),
    );
    metric(
        CHECKPOINTS,
        "counter",
        "Checkpoints committed in this run.",
        &one(f64::from(view.checkpoints_taken)),
    );
    metric(
        RECOVERIES,
        "counter",
        "Recoveries in this run.",
        &one(view.recoveries.len() as f64),
    );
    if let Some(last) = view.recoveries.last() {
        let row = |name: &str, ms: Option<u64>| {
            ms.map(|ms| (format!("{{stretch=\"{name}\"}}"), ms as f64 / 1000.0))
        };
        let rows = [
            row("checkpoint", last.checkpoint_ms),
            row("notice", last.notice_ms),
            row("restart", last.restart_ms),
            row("load", last.load_ms),
            row("resume", last.resume_ms),
        ];
        let rows: Vec<_> = rows.into_iter().flatten().collect();
        metric(
            RECOVERY_SECONDS,
            "gauge",
            "Stretches of the last recovery.",
            &rows,
        );
    }
    let by_slot = |pserver_only: bool, value: fn(&heddle_protocol::view::SlotView) -> f64| {
        view.slots
            .iter()
            .filter(|slot| !pserver_only || slot.slot.role == Role::Pserver)
            .map(|slot| (format!("{{slot=\"{}\"}}", slot.slot), value(slot)))
            .collect::<Vec<_>>()
    };
    metric(
        MEMORY,
        "gauge",
        "Resident memory of a container.",
        &by_slot(false, |slot| slot.rss_bytes as f64),
    );
    metric(
        PUSHES,
        "counter",
        "Push frames taken by a pserver.",
        &by_slot(true, |slot| slot.total as f64),
    );
    out
}
