//! Lines in which a job's figures are told to people, the same in `run` and `status`.

use heddle_protocol::view::{CheckpointView, EvaluationView, RecoveryView};
use heddle_telemetry::recovery::{RecoveryPhases, seconds};

use crate::output;

/// The word of an enum, as in JSON.
#[must_use]
pub fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

/// A rate without digits after the point.
#[must_use]
pub fn rate(per_second: f64) -> String {
    // Rates that were smoothed down to nothing may carry a minus sign.
    format!("{:.0}", per_second.abs())
}

/// `pass 3: log-loss 0.2118  auc 0.9729  accuracy 0.925`.
#[must_use]
pub fn evaluation(scores: &EvaluationView) -> String {
    format!(
        "pass {}: log-loss {:.4}  auc {:.4}  accuracy {:.4}",
        scores.pass.saturating_add(1),
        scores.log_loss,
        scores.auc,
        scores.accuracy
    )
}

/// The one line that ends a job with test data.
#[must_use]
pub fn final_scores(scores: &EvaluationView) -> String {
    format!(
        "test  log-loss {:.4}  auc {:.4}",
        scores.log_loss, scores.auc
    )
}

/// A committed checkpoint in a line.
#[must_use]
pub fn checkpoint(taken: &CheckpointView) -> String {
    format!(
        "checkpoint {}  phase {} step {}  {} in {}",
        taken.cut,
        taken.phase,
        taken.step,
        output::size(taken.bytes),
        seconds(taken.took_ms)
    )
}

/// A recovery: a headline and five rows.
#[must_use]
pub fn recovery(recovery: &RecoveryView) -> String {
    let phases = RecoveryPhases {
        checkpoint_ms: recovery.checkpoint_ms,
        notice_ms: recovery.notice_ms,
        restart_ms: recovery.restart_ms,
        load_ms: recovery.load_ms,
        resume_ms: recovery.resume_ms,
    };
    let epoch = match recovery.epoch_before == recovery.epoch_after {
        true => format!("epoch {} stays", recovery.epoch_before),
        false => format!("epoch {} → {}", recovery.epoch_before, recovery.epoch_after),
    };
    let base = recovery
        .base
        .map_or_else(String::new, |base| format!(", back to checkpoint {base}"));
    let over = match recovery.done {
        true => format!("recovered in {}", seconds(phases.total_ms())),
        false => "recovering".to_owned(),
    };
    format!("{}: {over} ({epoch}{base})\n{phases}", recovery.cause)
}
