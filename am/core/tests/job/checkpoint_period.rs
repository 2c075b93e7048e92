//! `checkpoint.every = "auto"` on a job whose pservers are lost: the period is Young's, at each change.

use heddle_am_core::{Exit, StoreCall};
use heddle_protocol::job_spec::{Consistency, Every};
use heddle_protocol::view::{CheckpointPeriodView, JobEvent};

use crate::harness::{Job, spec};

const MINUTE: u64 = 60_000;
const HOUR: f64 = 60.0 * MINUTE as f64;

/// The formula on its own, for checkpoints of this cost: time and rollbacks are forgotten with 24 h, and a tenth of a rollback in 2.4 h is assumed before.
fn young(cost_ms: u64, now_ms: u64, rollbacks: &[u64]) -> f64 {
    let kept = |since: u64| (-((now_ms - since) as f64) / (24.0 * HOUR)).exp();
    let running = 24.0 * HOUR * (1.0 - kept(0));
    let seen: f64 = rollbacks.iter().map(|at| kept(*at)).sum();
    let between = (running + 2.4 * HOUR) / (seen + 0.1);
    (2.0 * cost_ms as f64 * between).sqrt().clamp(30_000.0, 1_800_000.0)
}

fn is_near(one: f64, other: f64) -> bool {
    (one - other).abs() <= 0.05 * other
}

/// The periods that were reported since the last call, with the moment.
fn take_reports(job: &mut Job) -> Vec<(u64, CheckpointPeriodView)> {
    let at = job.now;
    let notices = std::mem::take(&mut job.notices);
    let periods = notices.into_iter().filter_map(|notice| match notice {
        JobEvent::CheckpointPeriod(period) => Some((at, period)),
        _ => None,
    });
    periods.collect()
}

#[test]
fn auto_period_is_youngs_at_each_change() {
    let mut spec = spec(Consistency::Asp);
    spec.checkpoint.every = Every::Auto;
    let mut job = Job::started(spec, 4_000, 0);
    let begun = job.now;
    // Minutes between the losses: a calm day's half, a bad hour, calm again.
    let waits = [400, 3, 5, 2, 7, 1, 4, 300, 90, 200];
    let (mut rollbacks, mut reports, mut cuts) = (Vec::new(), Vec::new(), Vec::new());
    for wait in waits {
        for _ in 0..wait * 60 {
            job.pass(1_000);
            reports.extend(take_reports(&mut job));
            let calls = std::mem::take(&mut job.calls);
            if calls.iter().any(|(_, call)| matches!(call, StoreCall::Stage { .. })) {
                cuts.push(job.now);
                let cut = job.cut();
                job.snap_all(cut, 0);
                job.save_all(cut);
                reports.extend(take_reports(&mut job));
            }
            job.sent.clear();
        }
        let pserver = job.pserver(0);
        job.exit(pserver, Exit::NodeLost);
        rollbacks.push(job.now - begun);
        reports.extend(take_reports(&mut job));
    }
    assert!(reports.len() > 20, "{reports:?}");
    let (mut least, mut most) = (u64::MAX, 0);
    for (at, period) in &reports {
        let now = at - begun;
        let before: Vec<u64> = rollbacks.iter().copied().filter(|lost| *lost <= now).collect();
        let (period, cost) = (period.period_ms, period.cost_ms);
        let formula = young(cost, now, &before);
        // A report right before a loss, in the same second.
        let without = young(cost, now, &before[..before.len().saturating_sub(1)]);
        let is_right = is_near(period as f64, formula)
            || (before.last() == Some(&now) && is_near(period as f64, without));
        assert!(is_right, "after {now} ms: {period}, not {formula:.0}");
        (least, most) = (least.min(period), most.max(period));
    }
    assert!(least < 40_000, "{least} in the bad hour");
    assert!(most > 90_000, "{most}");
    // The checkpoints follow it: those of the first calm stretch, by a clock of whole seconds.
    let first: Vec<u64> = cuts.iter().copied().filter(|at| *at - begun < 400 * MINUTE).collect();
    for pair in first.windows(2) {
        let reported = reports.iter().rfind(|(at, _)| *at <= pair[0]).expect("one at the start");
        let wanted = reported.1.period_ms as f64;
        let apart = (pair[1] - pair[0]) as f64;
        assert!((apart - wanted).abs() <= 0.05 * wanted + 1_000.0, "{apart}, not {wanted:.0}");
    }
    assert!(first.len() > 50, "{}", first.len());
}
