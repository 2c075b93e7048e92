//! What a chaos session found out, as text and as JSON.

use heddle_am::report::format;
use heddle_protocol::control::{FaultTarget, OrderedFault};
use heddle_protocol::view::RecoveryView;
use serde::Serialize;

use super::plan::PlannedFault;

/// A fault and what followed.
#[derive(Clone, Debug, Serialize)]
pub struct FaultReport {
    /// From 1.
    pub number: u64,
    /// Since the session began, ms.
    pub at_ms: u64,
    pub targets: Vec<FaultTarget>,
    #[serde(flatten)]
    pub fault: OrderedFault,
    /// From the order until all processes trained again, or until the fault had passed without an incident, ms; none if that
    /// was not seen.
    pub settled_ms: Option<u64>,
    pub recoveries: Vec<RecoveryView>,
}

/// The session as a whole.
#[derive(Debug, Serialize)]
pub struct ChaosReport {
    pub seed: u64,
    /// Faults that were ordered.
    pub faults: u64,
    /// Those after which all processes were seen to train again.
    pub settled: u64,
    pub ran_ms: u64,
    /// Whether the job kept its promises.
    pub held: bool,
    /// What it did not keep; empty if it kept all.
    pub broken: String,
    pub recoveries: u64,
    pub notice_median_ms: Option<u64>,
    pub outage_median_ms: Option<u64>,
    pub outage_longest_ms: Option<u64>,
    /// BSP: steps that were done again after rollbacks.
    pub steps_again: u64,
    /// Local recovery: updates that lost shards did not get again.
    pub updates_lost: u64,
    /// Whether the model has the bytes of `--reference`; none without it, or if the job has no model.
    pub equals_reference: Option<bool>,
}

/// `kill of pserver-1`, `drop of trainer-0 and trainer-2`.
pub fn fault_text(planned: &PlannedFault) -> String {
    let targets: Vec<String> = planned.targets.iter().map(ToString::to_string).collect();
    format!("{} of {}", planned.fault, targets.join(" and "))
}

impl FaultReport {
    /// One line, and one for each recovery.
    pub fn lines(&self) -> Vec<String> {
        let planned = PlannedFault { targets: self.targets.clone(), fault: self.fault };
        let settled = match self.settled_ms {
            Some(ms) => format!("all trained again after {}", seconds(ms)),
            None => "not settled".to_owned(),
        };
        let head = format!(
            "fault {} at {}: {}: {settled}",
            self.number,
            seconds(self.at_ms),
            fault_text(&planned)
        );
        let recoveries = self.recoveries.iter().map(|it| format!("  {}", format::recovery(it)));
        std::iter::once(head).chain(recoveries).collect()
    }
}

impl ChaosReport {
    /// The report of a session of these faults.
    pub fn new(seed: u64, ran_ms: u64, faults: &[FaultReport], broken: Option<String>) -> Self {
        let recoveries = || faults.iter().flat_map(|fault| &fault.recoveries);
        let mut notices: Vec<u64> = recoveries().filter_map(|it| it.notice_ms).collect();
        let mut outages: Vec<u64> = recoveries().filter_map(outage_ms).collect();
        Self {
            seed,
            faults: faults.len() as u64,
            settled: faults.iter().filter(|fault| fault.settled_ms.is_some()).count() as u64,
            ran_ms,
            held: broken.is_none(),
            broken: broken.unwrap_or_default(),
            recoveries: recoveries().count() as u64,
            notice_median_ms: median(&mut notices),
            outage_median_ms: median(&mut outages),
            outage_longest_ms: outages.last().copied(),
            steps_again: recoveries().filter_map(|it| it.steps_again).sum(),
            updates_lost: recoveries().filter_map(|it| it.updates_lost).sum(),
            equals_reference: None,
        }
    }

    /// A few lines.
    pub fn lines(&self) -> Vec<String> {
        let of = |ms: Option<u64>| ms.map_or_else(|| "-".to_owned(), seconds);
        let mut lines = vec![
            format!("seed {}: {} faults in {}", self.seed, self.faults, format::span(self.ran_ms)),
            format!(
                "{} recoveries: noticed after {} (median), outage {} (median), {} (longest), {} steps done again, {} updates lost",
                self.recoveries,
                of(self.notice_median_ms),
                of(self.outage_median_ms),
                of(self.outage_longest_ms),
                self.steps_again,
                self.updates_lost
            ),
        ];
        match self.equals_reference {
            Some(true) => lines.push("the model has the bytes of the reference".to_owned()),
            Some(false) => lines.push("the model differs from the reference".to_owned()),
            None => {}
        }
        lines.push(match self.held {
            true if self.faults == 0 => "no fault was ordered".to_owned(),
            true if self.settled == self.faults => {
                "held: the job trained on after each fault".to_owned()
            }
            true => format!(
                "held: the job trained on after {} of {} faults; the session ended before that was seen of the others",
                self.settled, self.faults
            ),
            false => format!("broken: {}", self.broken),
        });
        lines
    }
}

/// From the last sign of life of what failed until every trainer has taken a step.
fn outage_ms(recovery: &RecoveryView) -> Option<u64> {
    let phases = [recovery.notice_ms, recovery.restart_ms, recovery.load_ms, recovery.resume_ms];
    recovery.done.then(|| phases.into_iter().flatten().sum())
}

fn median(values: &mut [u64]) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

fn seconds(ms: u64) -> String {
    format!("{:.1} s", ms as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_without_recoveries_has_no_figures_of_them() {
        let fault = FaultReport {
            number: 1,
            at_ms: 30_000,
            targets: vec![FaultTarget::Am],
            fault: OrderedFault::Pause { ms: 2_000 },
            settled_ms: Some(2_100),
            recoveries: Vec::new(),
        };
        assert_eq!(
            fault.lines(),
            ["fault 1 at 30.0 s: pause of 2 s of am: all trained again after 2.1 s"]
        );
        let unsettled = FaultReport { settled_ms: None, ..fault.clone() };
        let report = ChaosReport::new(7, 60_000, std::slice::from_ref(&fault), None);
        assert_eq!((report.faults, report.outage_median_ms, report.held), (1, None, true));
        let last = |report: ChaosReport| report.lines().pop().expect("a line");
        assert_eq!(last(report), "held: the job trained on after each fault");
        let of_two = last(ChaosReport::new(7, 60_000, &[fault, unsettled], None));
        assert!(of_two.starts_with("held: the job trained on after 1 of 2 faults; "), "{of_two}");
        let broken = ChaosReport::new(7, 1, &[], Some("the job failed".to_owned()));
        assert_eq!(broken.lines().last().map(String::as_str), Some("broken: the job failed"));
    }
}
