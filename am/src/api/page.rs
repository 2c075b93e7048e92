//! The web page: the job, its slots, checkpoints and recoveries as plain HTML that needs no script.
//!
//! Everything that comes from outside is escaped; links are relative, because people see the page
//! through YARN's proxy under another path.

use std::fmt::Write as _;

use heddle_protocol::view::{JobView, RecoveryView};

const STYLE: &str = "body{font:14px/1.4 sans-serif;margin:2em;max-width:70em}table{border-collapse:collapse;margin:0 0 1.5em}\
th,td{border-bottom:1px solid #ccc;padding:.2em .8em;text-align:right}th:first-child,td:first-child{text-align:left}\
h1{font-size:1.4em}h2{font-size:1.1em}";

/// A text as HTML shows it.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

fn word<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

fn table(out: &mut String, title: &str, head: &[&str], rows: &[Vec<String>]) {
    // Writing to a string does not fail.
    let _ = write!(out, "<h2>{}</h2><table><tr>", escape(title));
    for cell in head {
        let _ = write!(out, "<th>{}</th>", escape(cell));
    }
    out.push_str("</tr>");
    for row in rows {
        out.push_str("<tr>");
        for cell in row {
            let _ = write!(out, "<td>{}</td>", escape(cell));
        }
        out.push_str("</tr>");
    }
    out.push_str("</table>");
}

fn milliseconds(value: Option<u64>) -> String {
    value.map_or_else(|| "–".to_owned(), |ms| format!("{ms} ms"))
}

fn recovery_row(recovery: &RecoveryView) -> Vec<String> {
    vec![
        recovery.cause.clone(),
        format!("{} → {}", recovery.epoch_before, recovery.epoch_after),
        recovery
            .base
            .map_or_else(|| "–".to_owned(), |base| base.to_string()),
        milliseconds(recovery.checkpoint_ms),
        milliseconds(recovery.notice_ms),
        milliseconds(recovery.restart_ms),
        milliseconds(recovery.load_ms),
        milliseconds(recovery.resume_ms),
    ]
}

pub(super) fn render(view: &JobView) -> String {
    let name = escape(&view.name);
    let mut out = format!(
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{name}</title>\
         <meta http-equiv=\"refresh\" content=\"5\"><style>{STYLE}</style></head><body><h1>{name}</h1>"
    );
    let _ = write!(
        out,
        "<p>{} · {} · epoch {} · attempt {} · {} rows, {:.0} rows/s</p>",
        escape(&word(&view.state)),
        escape(&view.phase_text),
        view.epoch,
        view.attempt,
        view.rows,
        view.rows_per_second,
    );
    if !view.message.is_empty() {
        let _ = write!(out, "<p>{}</p>", escape(&view.message));
    }
    let slots: Vec<_> = view
        .slots
        .iter()
        .map(|slot| {
            vec![
                slot.slot.to_string(),
                slot.incarnation.to_string(),
                word(&slot.state),
                slot.host.clone(),
                slot.pid.to_string(),
                format!("{:.0}", slot.per_second),
                format!("{} MiB", slot.rss_bytes >> 20),
            ]
        })
        .collect();
    let head = [
        "slot",
        "incarnation",
        "state",
        "node",
        "process",
        "per second",
        "memory",
    ];
    table(&mut out, "Containers", &head, &slots);
    let checkpoints: Vec<_> = view
        .checkpoints
        .iter()
        .map(|checkpoint| {
            vec![
                checkpoint.cut.to_string(),
                checkpoint.phase.to_string(),
                checkpoint.step.to_string(),
                format!("{} ms", checkpoint.took_ms),
                checkpoint.bytes.to_string(),
            ]
        })
        .collect();
    table(
        &mut out,
        "Checkpoints",
        &["cut", "phase", "step", "took", "bytes"],
        &checkpoints,
    );
    let evaluations: Vec<_> = view
        .evaluations
        .iter()
        .map(|scores| {
            vec![
                scores.pass.to_string(),
                scores.rows.to_string(),
                format!("{:.4}", scores.log_loss),
                format!("{:.4}", scores.auc),
            ]
        })
        .collect();
    table(
        &mut out,
        "Evaluations",
        &["pass", "rows", "log-loss", "auc"],
        &evaluations,
    );
    let recoveries: Vec<_> = view.recoveries.iter().map(recovery_row).collect();
    let head = [
        "cause",
        "epoch",
        "base",
        "checkpoint",
        "notice",
        "restart",
        "load",
        "resume",
    ];
    table(&mut out, "Recoveries", &head, &recoveries);
    out.push_str(
        "<p><a href=\"api/v1/status\">JSON</a> · <a href=\"metrics\">metrics</a></p></body></html>",
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_outside_cannot_become_markup() {
        assert_eq!(escape("<script>'\"&"), "&lt;script&gt;&#39;&quot;&amp;");
    }
}
