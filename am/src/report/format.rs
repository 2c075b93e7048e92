//! Formats a job's figures, the same way in the report, in `run` and in `status`.

use heddle_protocol::control::ReplicationLag;
use heddle_protocol::figure::decimal;
use heddle_protocol::ids::{CutId, ShardId};
use heddle_protocol::table_statistics::TableStatistics;
use heddle_protocol::view::{
    CheckpointView, CredentialsView, DataLocality, EvaluationView, JobView, RecoveryKind,
    RecoveryView, RefillView, ReplicationView, SlotState, SlotView, SparseTableView,
    StorageWaitView, TrainingPassView,
};
use heddle_telemetry::recovery::{RecoveryPhases, seconds};
use serde::Serialize;

/// The name of an enum's value, as in JSON.
#[must_use]
pub fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

/// A rate without digits after the point.
#[must_use]
pub fn rate(per_second: f64) -> String {
    // A smoothed rate may be a small negative number.
    format!("{:.0}", per_second.abs())
}

/// `1234567` as `1,234,567`.
#[must_use]
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// How long ago the last heartbeat of a process came, to a tenth of a second: `0.7 s ago`; a dash without a process.
#[must_use]
pub fn heartbeat_age(age_ms: Option<u64>) -> String {
    age_ms.map_or_else(|| "–".to_owned(), |ms| format!("{:.1} s ago", ms as f64 / 1000.0))
}

/// `1536` as `1.5 KiB`.
#[must_use]
pub fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{value:.1} {}", units[unit]),
    }
}

/// Milliseconds since 1970 as `2026-01-31 13:05:00Z`; empty when no calendar has that day.
#[must_use]
pub fn time(ms: u64) -> String {
    let at = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map_or_else(String::new, |at| at.strftime("%Y-%m-%d %H:%M:%SZ").to_string())
}

/// `pass 3: training loss 0.2304`; of a program that computes no loss: `pass 3: 3,601 rows`.
#[must_use]
pub fn trained(trained: &TrainingPassView) -> String {
    let pass = trained.pass.saturating_add(1);
    match trained.loss {
        Some(loss) => format!("pass {pass}: training loss {}", decimal(loss, 4)),
        None => format!("pass {pass}: {} rows", thousands(trained.rows)),
    }
}

/// What a line of progress shows.
#[derive(Clone, Copy, Debug)]
pub struct ProgressFigures<'a> {
    /// The phase in words.
    pub text: &'a str,
    /// Share of the phase that is done.
    pub done: Option<f64>,
    /// Records so far.
    pub rows: u64,
    /// Records per second.
    pub rows_per_second: f64,
    /// Training loss of the pass so far.
    pub loss: Option<f64>,
    /// Time to the end of the last pass, ms.
    pub left_ms: Option<u64>,
}

/// `pass 2 of 10  45 %  1,234,567 rows  234000 rows/s  loss 0.4123  1 min 20 s left`; figures that are not known are left
/// out.
#[must_use]
pub fn progress(figures: ProgressFigures<'_>) -> String {
    let ProgressFigures { text, done, rows, rows_per_second, loss, left_ms } = figures;
    let mut line = text.to_owned();
    if let Some(done) = done {
        line.push_str(&format!("  {:.0} %", 100.0 * done));
    }
    line.push_str(&format!("  {} rows  {} rows/s", thousands(rows), rate(rows_per_second)));
    if let Some(loss) = loss {
        line.push_str(&format!("  loss {}", decimal(loss, 4)));
    }
    if let Some(left_ms) = left_ms {
        line.push_str(&format!("  {} left", span(left_ms)));
    }
    line
}

/// A duration in its two largest units: `1 min 20 s`.
#[must_use]
pub fn span(ms: u64) -> String {
    let seconds = ms.div_ceil(1000);
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// `pass 3: log-loss 0.2118  auc 0.9729  accuracy 0.9250`.
#[must_use]
pub fn evaluation(scores: &EvaluationView) -> String {
    format!("pass {}: {}", scores.pass.saturating_add(1), scores.figures)
}

/// The scores of the pass whose model is exported.
#[must_use]
pub fn model_scores(view: &JobView) -> Option<&EvaluationView> {
    let kept = |scores: &&EvaluationView| Some(scores.pass) == view.kept_pass;
    view.evaluations.iter().find(kept).or(view.evaluations.last())
}

/// The last line of a job with test data: `test  log-loss 0.2118  auc 0.9729  accuracy 0.9250`.
#[must_use]
pub fn final_scores(scores: &EvaluationView) -> String {
    format!("test  {}", scores.figures)
}

/// A committed checkpoint in a line.
#[must_use]
pub fn checkpoint(taken: &CheckpointView) -> String {
    format!(
        "checkpoint {}  phase {} step {}  {} in {}",
        taken.cut,
        taken.phase,
        taken.step,
        checkpoint_size(taken.bytes),
        seconds(taken.took_ms)
    )
}

/// The size of a checkpoint's files, or what it has without any.
#[must_use]
pub fn checkpoint_size(bytes: u64) -> String {
    if bytes == 0 { "initial values".to_owned() } else { size(bytes) }
}

/// The figures of a table in a line: `table weights  1,000 rows  990 non-zero  norm 2.5000`.
#[must_use]
pub fn table(table: &TableStatistics) -> String {
    let norm = table.norm.map_or_else(|| "not finite".to_owned(), |norm| decimal(norm, 4));
    let (rows, nonzero) = (thousands(table.rows), thousands(table.nonzero));
    format!("table {}  {rows} rows  {nonzero} non-zero  norm {norm}", table.name)
}

/// `weights: 1,234,567 rows, 43.2 MB, 12 dropped`.
#[must_use]
pub fn sparse_table(table: &SparseTableView) -> String {
    let dropped = match table.dropped {
        0 => String::new(),
        dropped => format!(", {} dropped", thousands(dropped)),
    };
    format!("{}: {} rows, {}{dropped}", table.name, thousands(table.rows), size(table.bytes))
}

/// `75 of 100 tasks node-local`, with several racks `75 of 100 tasks node-local, 20 rack-local`.
#[must_use]
pub fn data_locality(locality: DataLocality) -> String {
    let rack = match locality.rack_local {
        0 => String::new(),
        tasks => format!(", {} rack-local", thousands(tasks)),
    };
    let (node, all) = (thousands(locality.node_local), thousands(locality.tasks()));
    format!("{node} of {all} tasks node-local{rack}")
}

/// `HDFS tokens until 2026-01-31 13:05:00Z`; with a keytab also what is late or failed.
#[must_use]
pub fn credentials(credentials: &CredentialsView) -> String {
    let mut text = format!("HDFS tokens until {}", time(credentials.until_ms));
    if credentials.is_refreshed {
        text.push_str(", others come before");
    }
    match credentials.pending_containers {
        0 => {}
        1 => text.push_str("; 1 container has not confirmed them"),
        more => text.push_str(&format!("; {more} containers have not confirmed them")),
    }
    if !credentials.error.is_empty() {
        text.push_str(&format!("; the last fetch failed: {}", credentials.error));
    }
    text
}

/// `waiting for HDFS since 2026-01-31 13:05:00Z: 2 trainers cannot read hdfs://nn/a: connection refused`; of a wait
/// that is over: `waited for HDFS for 40.200 s, since …`.
#[must_use]
pub fn storage_wait(wait: &StorageWaitView) -> String {
    let (storage, since) = (wait.storage(), time(wait.since_ms));
    let mut text = match (wait.ended_ms, wait.trainers) {
        (Some(ended_ms), _) => {
            let waited = seconds(ended_ms.saturating_sub(wait.since_ms));
            format!("waited for {storage} for {waited}, since {since}: {}", wait.file)
        }
        (None, 0) => format!("waiting for {storage} since {since}: no answer for {}", wait.file),
        (None, 1) => {
            format!("waiting for {storage} since {since}: a trainer cannot read {}", wait.file)
        }
        (None, trainers) => format!(
            "waiting for {storage} since {since}: {trainers} trainers cannot read {}",
            wait.file
        ),
    };
    if !wait.error.is_empty() {
        text.push_str(": ");
        text.push_str(&wait.error);
    }
    text
}

/// A checkpoint that is not used because it is damaged.
#[must_use]
pub fn checkpoint_damaged(cut: CutId, dir: &str, error: &str) -> String {
    format!(
        "checkpoint {cut} is DAMAGED and set aside in {dir}; an older one is used, and the work since then is done \
         again: {error}"
    )
}

/// The five rows of a recovery.
#[must_use]
pub fn phases(recovery: &RecoveryView) -> RecoveryPhases {
    RecoveryPhases {
        save_ms: recovery.save_ms,
        notice_ms: recovery.notice_ms,
        restart_ms: recovery.restart_ms,
        load_ms: recovery.load_ms,
        resume_ms: recovery.resume_ms,
    }
}

/// A recovery: a headline, five rows, and what they cost.
#[must_use]
pub fn recovery(recovery: &RecoveryView) -> String {
    let phases = phases(recovery);
    let epoch = match recovery.epoch_before == recovery.epoch_after {
        true => format!("epoch {} stays", recovery.epoch_before),
        false => format!("epoch {} → {}", recovery.epoch_before, recovery.epoch_after),
    };
    let base =
        recovery.base.map_or_else(String::new, |base| format!(", back to checkpoint {base}"));
    let over = match recovery.done {
        true => format!("recovered in {}", seconds(phases.total_ms())),
        false => "recovering".to_owned(),
    };
    let kind = match recovery.kind {
        RecoveryKind::Rollback => "rollback",
        RecoveryKind::Trainer => "trainer replaced",
        RecoveryKind::ApplicationMaster => "takeover",
        RecoveryKind::Failover => "failover",
        RecoveryKind::Spare => "spare",
        RecoveryKind::Local => "local recovery",
    };
    let cost = recovery_cost(recovery);
    format!("{}: {over} ({kind}, {epoch}{base})\n{phases}\n  {cost}", recovery.cause)
}

/// The state of a slot in a word: `spare` for an idle one.
#[must_use]
pub fn slot_state(slot: &SlotView) -> String {
    match slot.spare && slot.state == SlotState::Running {
        true => "spare".to_owned(),
        false => word(&slot.state),
    }
}

/// `3 of 8 shards have fewer than 1 backup in sync (1, 4, 6); 2 promoted; shard 4 is copied to pserver-1: 40 %`.
pub fn replication(replication: &ReplicationView) -> String {
    /// Refills that are listed.
    const LISTED: usize = 3;
    /// Shards without all of their backups that are named.
    const NAMED: usize = 20;
    let ReplicationView {
        replicas,
        in_sync,
        under_replicated,
        lacking,
        promotions,
        hand_overs,
        copies_differed,
        lag,
        refills,
        served: _,
    } = replication;
    let backups = if *replicas == 1 { "backup" } else { "backups" };
    let shards = in_sync + under_replicated;
    let mut text = match under_replicated {
        0 if *replicas == 0 => format!("{shards} shards with one copy each"),
        0 => format!("all {shards} shards have {replicas} {backups} in sync"),
        few => format!("{few} of {shards} shards have fewer than {replicas} {backups} in sync"),
    };
    if *in_sync > 0 && !lacking.is_empty() {
        let names: Vec<String> = lacking.iter().take(NAMED).map(ShardId::to_string).collect();
        let others = if lacking.len() > NAMED { ", …" } else { "" };
        text.push_str(&format!(" ({}{others})", names.join(", ")));
    }
    if *promotions > 0 {
        text.push_str(&format!("; {promotions} promoted"));
    }
    if *hand_overs > 0 {
        text.push_str(&format!("; {hand_overs} handed over"));
    }
    if *copies_differed > 0 {
        let times =
            if *copies_differed == 1 { "once" } else { &format!("{copies_differed} times") };
        text.push_str(&format!("; copies of a shard differed {times}"));
    }
    if lag.entries > 0 {
        let ReplicationLag { entries, bytes, ms } = lag;
        let bytes = size(*bytes);
        text.push_str(&format!("; at most {entries} changes ({bytes}, {ms} ms) behind"));
    }
    for refill in refills.iter().take(LISTED) {
        let RefillView { shard, to, bytes, of_bytes, from: _ } = refill;
        let percent = bytes.saturating_mul(100).checked_div(*of_bytes).unwrap_or(0).min(100);
        text.push_str(&format!("; shard {shard} is copied to {to}: {percent} %"));
    }
    if refills.len() > LISTED {
        text.push_str(&format!("; {} more", refills.len() - LISTED));
    }
    text
}

/// Below the five rows: the outage, the age of the checkpoint and the work that is done again.
fn recovery_cost(recovery: &RecoveryView) -> String {
    let mut cost = format!("outage {}", seconds(phases(recovery).total_ms()));
    if let Some(age) = recovery.checkpoint_ms {
        cost.push_str(&format!("; the checkpoint was {} old", seconds(age)));
    }
    if let Some(steps) = recovery.steps_again {
        cost.push_str(&format!("; {steps} steps are done again"));
    }
    if let Some(updates) = recovery.updates_lost {
        cost.push_str(&format!("; {} updates are lost", thousands(updates)));
    }
    cost
}

/// A text from outside for a terminal or a log. Control characters other than line ends and tabs are replaced, so that
/// it cannot overwrite earlier output.
#[must_use]
pub fn plain(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\n' | '\t' => c,
            c if steers(c) => '\u{fffd}',
            c => c,
        })
        .collect()
}

/// Whether a character changes how a terminal shows others: control characters of C0 and C1 (ECMA-48), and Unicode marks
/// that change the direction of writing, which can disguise a text (UAX #9).
#[must_use]
pub fn steers(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use heddle_protocol::ids::Slot;

    use super::*;

    #[test]
    fn figures_are_formatted_readably() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(size(17), "17 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(u64::MAX), "16.0 EiB");
        assert_eq!(time(0), "1970-01-01 00:00:00Z");
        assert_eq!(time(951_782_399_000), "2000-02-28 23:59:59Z");
        assert_eq!(time(951_782_400_000), "2000-02-29 00:00:00Z");
        assert_eq!(time(1_700_000_000_000), "2023-11-14 22:13:20Z");
        assert_eq!(time(u64::MAX), "");
        assert_eq!(rate(-0.001), "0");
    }

    #[test]
    fn progress_shows_what_is_known() {
        let mut figures = ProgressFigures {
            text: "pass 2 of 10",
            done: Some(0.447),
            rows: 1_234_567,
            rows_per_second: 234_000.4,
            loss: Some(0.41234),
            left_ms: Some(79_001),
        };
        assert_eq!(
            progress(figures),
            "pass 2 of 10  45 %  1,234,567 rows  234000 rows/s  loss 0.4123  1 min 20 s left"
        );
        (figures.done, figures.loss, figures.left_ms) = (None, None, None);
        assert_eq!(progress(figures), "pass 2 of 10  1,234,567 rows  234000 rows/s");
        assert_eq!([span(0), span(59_001)], ["0 s", "1 min 0 s"]);
        assert_eq!([span(3_660_000), span(90_000_000)], ["1 h 1 min", "1 d 1 h"]);
    }

    #[test]
    fn replication_names_what_is_behind() {
        let mut view = ReplicationView {
            replicas: 1,
            in_sync: 8,
            under_replicated: 0,
            lacking: Vec::new(),
            promotions: 0,
            hand_overs: 0,
            copies_differed: 0,
            served: std::collections::BTreeMap::new(),
            lag: ReplicationLag::default(),
            refills: Vec::new(),
        };
        assert_eq!(replication(&view), "all 8 shards have 1 backup in sync");
        view.copies_differed = 1;
        let once = "all 8 shards have 1 backup in sync; copies of a shard differed once";
        assert_eq!(replication(&view), once);
        view.copies_differed = 2;
        assert_eq!(replication(&view), once.replace("once", "2 times"));
        view.copies_differed = 0;
        (view.in_sync, view.under_replicated, view.promotions) = (5, 3, 2);
        view.lacking = [1, 4, 6].map(ShardId).to_vec();
        view.lag = ReplicationLag { entries: 4, bytes: 4096, ms: 12 };
        let (from, to) = (Slot::pserver(0), Slot::pserver(1));
        view.refills = vec![RefillView { shard: ShardId(4), from, to, bytes: 40, of_bytes: 100 }];
        assert_eq!(
            replication(&view),
            "3 of 8 shards have fewer than 1 backup in sync (1, 4, 6); 2 promoted; at most 4 changes (4.0 KiB, 12 ms) behind; \
             shard 4 is copied to pserver-1: 40 %"
        );
    }

    #[test]
    fn passes_are_counted_from_one() {
        let pass = |loss| TrainingPassView { pass: 2, rows: 3_601, loss };
        assert_eq!(trained(&pass(Some(0.23044))), "pass 3: training loss 0.2304");
        assert_eq!(trained(&pass(None)), "pass 3: 3,601 rows");
    }

    #[test]
    fn credentials_name_their_end_and_what_is_late() {
        let mut view = CredentialsView {
            until_ms: 1_769_864_700_000,
            is_refreshed: false,
            failures: 0,
            error: String::new(),
            pending_containers: 0,
        };
        assert_eq!(credentials(&view), "HDFS tokens until 2026-01-31 13:05:00Z");
        view.is_refreshed = true;
        view.pending_containers = 2;
        view.error = "no KDC".to_owned();
        assert_eq!(
            credentials(&view),
            "HDFS tokens until 2026-01-31 13:05:00Z, others come before; 2 containers have not confirmed them; the last fetch failed: no KDC"
        );
    }

    #[test]
    fn storage_wait_names_storage_time_file_and_cause() {
        let mut wait = StorageWaitView {
            since_ms: 1_700_000_000_000,
            ended_ms: None,
            trainers: 2,
            file: "hdfs://nn:8020/in/part-0".into(),
            error: "connection refused".into(),
        };
        assert_eq!(
            storage_wait(&wait),
            "waiting for HDFS since 2023-11-14 22:13:20Z: 2 trainers cannot read hdfs://nn:8020/in/part-0: connection refused"
        );
        wait.ended_ms = Some(1_700_000_040_200);
        wait.error = String::new();
        assert_eq!(
            storage_wait(&wait),
            "waited for HDFS for 40.200 s, since 2023-11-14 22:13:20Z: hdfs://nn:8020/in/part-0"
        );
        wait.file = "file:///in/part-0".into();
        assert!(storage_wait(&wait).starts_with("waited for storage for 40.200 s"));
    }

    #[test]
    fn text_from_outside_does_not_control_a_terminal() {
        assert_eq!(plain("a\u{1b}[2Jb\r\n\tc\u{202e}"), "a\u{fffd}[2Jb\u{fffd}\n\tc\u{fffd}");
    }
}
