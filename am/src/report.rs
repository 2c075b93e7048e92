//! The report of a job on YARN. It outlives the application and its logs.
//!
//! ```text
//! <home>/.heddle/reports/<application id>/
//!   report.json                   JobReport, for programs
//!   report.txt                    the same as text; YARN's tracking URL leads here after the end
//!   report-<attempt>.json .txt    when an earlier attempt reported another outcome
//!   logs/<slot>-<incarnation>/    last bytes of the logs of containers that failed or were killed
//! ```
//!
//! [`JobReport::new`] is a pure function of the job's view, its outcome and the facts of the cluster. [`paths`] writes the
//! report, and [`diagnostics()`] makes the ResourceManager's text of it. [`tracking`] determines its URL for browsers,
//! [`logs`] fetches logs from NodeManagers. The process of the ApplicationMaster decides when each of these runs.

mod diagnostics;
pub mod event;
mod fetch;
pub mod format;
pub mod lines;
pub mod logs;
pub mod paths;
mod text;
pub mod tracking;

pub use diagnostics::diagnostics;

use std::collections::BTreeMap;

use heddle_am_core::Outcome;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{Attempt, Incarnation, RunId, Slot};
use heddle_protocol::view::{
    ApplicationView, JobState, JobView, NumberedEvent, Placement, SlotState, readable_events,
};
use serde::{Deserialize, Serialize};

/// Version of [`JobReport`]'s JSON. Within a version fields are only added.
pub const VERSION: u32 = 2;

/// A job on YARN that is over. Times of day are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobReport {
    /// [`VERSION`].
    pub version: u32,
    /// Finished, failed or stopped.
    pub state: JobState,
    /// Exit code of the command line.
    pub exit_code: ExitCode,
    /// Fact, cause, next step; empty when all is well.
    pub message: String,
    /// The job's name.
    pub name: String,
    /// The run.
    pub run: RunId,
    /// The application; `None` if it is unknown.
    pub application: Option<ApplicationView>,
    /// The attempt in which the job ended.
    pub attempt: Attempt,
    /// When the run was submitted.
    pub started_ms: u64,
    /// When it ended.
    pub ended_ms: u64,
    /// URL of the model's directory, when published.
    pub model: Option<String>,
    /// URL of the checkpoint directory.
    pub checkpoint_dir: String,
    /// Records per second from the first figures of this attempt to the end, waits and recoveries included; `None` if no
    /// record was computed.
    pub rows_per_second: Option<f64>,
    /// The evaluation of the model in the one line that ends a local run too: `test  log-loss 0.2118  auc
    /// 0.9729  accuracy 0.9250`.
    pub test: Option<String>,
    /// The containers requested from the cluster.
    pub requested: Vec<RequestedContainers>,
    /// Every container of this attempt, by slot and incarnation.
    pub containers: Vec<ContainerSummary>,
    /// The newest events, oldest first: a reader that has followed the job prints what it has not seen.
    #[serde(default, deserialize_with = "readable_events")]
    pub events: Vec<NumberedEvent>,
    /// The last view of the job: rows, evaluations, checkpoints, recoveries with their five rows.
    pub view: JobView,
}

/// The requested containers of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedContainers {
    /// `am`, `pserver` or `trainer`.
    pub kind: String,
    /// How many.
    pub containers: u32,
    /// Memory of each, MiB, as the ResourceManager counts it.
    pub memory_mib: u64,
    /// Virtual cores of each.
    pub vcores: u32,
    /// Other resources of each, by name, with their unit: `yarn.io/gpu` → `1`.
    #[serde(default)]
    pub other: BTreeMap<String, String>,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSummary {
    /// Its slot.
    pub slot: Slot,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Its container on the cluster, if known.
    pub placement: Option<Placement>,
    /// In words: `ran to the end`, `was killed by signal 9 …`.
    pub end: String,
    /// Whether it ended before the job did, and not by the job's order.
    pub failed: bool,
    /// When it ended; `None` if at the job's end.
    pub at_ms: Option<u64>,
}

/// Facts that neither the job's view nor its outcome has.
#[derive(Clone, Debug, Default)]
pub struct ReportFacts {
    /// Now, milliseconds since 1970.
    pub ended_ms: u64,
    /// URL of the checkpoint directory.
    pub checkpoint_dir: String,
    /// The containers requested from the cluster.
    pub requested: Vec<RequestedContainers>,
    /// The newest events.
    pub events: Vec<NumberedEvent>,
}

impl JobReport {
    /// Makes a report from the job's last view (with the cluster's additions), its outcome and the other facts.
    #[must_use]
    pub fn new(view: &JobView, outcome: &Outcome, facts: ReportFacts) -> Self {
        Self {
            version: VERSION,
            state: outcome.state,
            exit_code: outcome.exit_code,
            message: outcome.message.clone(),
            name: view.name.clone(),
            run: view.run,
            application: view.application.clone(),
            attempt: view.attempt,
            started_ms: view.started_ms,
            ended_ms: facts.ended_ms,
            model: outcome.model.clone(),
            checkpoint_dir: facts.checkpoint_dir,
            rows_per_second: speed(view, facts.ended_ms),
            test: format::model_scores(view).map(format::final_scores),
            requested: facts.requested,
            events: facts.events,
            containers: containers(view, outcome.state),
            view: view.clone(),
        }
    }

    /// Containers that failed or were killed and whose logs can be requested, newest first.
    pub fn failed(&self) -> impl Iterator<Item = (&ContainerSummary, &Placement)> {
        let known = self.containers.iter().filter(|end| end.failed);
        let mut known: Vec<_> =
            known.filter_map(|end| Some((end, end.placement.as_ref()?))).collect();
        known.sort_by_key(|(end, _)| std::cmp::Reverse(end.at_ms));
        known.into_iter()
    }

    /// Whether both report the same outcome of the same run. An attempt that died between its report and its
    /// unregistration leaves such a report to the next attempt.
    #[must_use]
    pub fn has_same_outcome(&self, other: &Self) -> bool {
        self.run == other.run
            && self.state == other.state
            && self.exit_code == other.exit_code
            && self.model == other.model
    }
}

/// Records per second since the first figures of this attempt.
fn speed(view: &JobView, ended_ms: u64) -> Option<f64> {
    let first = view.history.first_figures?;
    let rows = view.rows.checked_sub(first.rows).filter(|rows| *rows > 0)?;
    let ms = ended_ms.checked_sub(first.at_ms).filter(|ms| *ms > 0)?;
    Some(rows as f64 * 1000.0 / ms as f64)
}

fn containers(view: &JobView, state: JobState) -> Vec<ContainerSummary> {
    let ended = view.history.ended.iter().map(|ended| ContainerSummary {
        slot: ended.slot,
        incarnation: ended.incarnation,
        placement: ended.placement.clone(),
        end: ended.cause.clone(),
        failed: true,
        at_ms: Some(ended.at_ms),
    });
    let reported: std::collections::BTreeSet<_> =
        view.history.ended.iter().map(|ended| (ended.slot, ended.incarnation)).collect();
    let last = view.slots.iter().filter_map(|slot| {
        let end = match slot.state {
            // A container that ended just before the job was still the last one of its slot.
            SlotState::Empty | SlotState::Running | SlotState::Suspect => match state {
                JobState::Finished => "ran to the end",
                _ => "ran when the job ended",
            },
            SlotState::Asked => "was requested and not allocated",
            SlotState::Starting => "was being started",
            SlotState::Draining => "was draining",
        };
        let unfilled = slot.incarnation == Incarnation::default();
        let again = reported.contains(&(slot.slot, slot.incarnation));
        (!unfilled && !again).then(|| ContainerSummary {
            slot: slot.slot,
            incarnation: slot.incarnation,
            placement: slot.placement.clone(),
            end: end.to_owned(),
            failed: false,
            at_ms: None,
        })
    });
    let mut all: Vec<_> = ended.chain(last).collect();
    all.sort_by_key(|end| (end.slot, end.incarnation));
    all
}

#[cfg(test)]
pub(crate) mod samples;

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::samples::{finished, lost_pserver};
    use super::*;

    #[test]
    fn ended_containers_are_listed_before_their_successors() {
        let report = finished();
        let ends: Vec<_> = report
            .containers
            .iter()
            .map(|end| (end.slot.to_string(), end.incarnation.0, end.failed))
            .collect();
        let slot = |name: &str, n, failed| (name.to_owned(), n, failed);
        assert_eq!(
            ends,
            [slot("pserver-0", 1, true), slot("pserver-0", 2, false), slot("trainer-0", 1, false)]
        );
        let failed: Vec<_> = report.failed().map(|(_, at)| &at.container).collect();
        assert_eq!(failed, [&lost_pserver().placement.unwrap().container], "only what failed");
    }

    #[test]
    fn speed_counts_from_the_first_figures_of_the_attempt() {
        let report = finished();
        assert_eq!(report.rows_per_second, Some(500.0));
        let mut idle = report.view.clone();
        idle.rows = 0;
        assert_eq!(speed(&idle, report.ended_ms), None);
        let mut backwards = report.view;
        backwards.history.first_figures.as_mut().unwrap().at_ms = u64::MAX;
        assert_eq!(speed(&backwards, report.ended_ms), None, "a clock set back");
    }

    #[test]
    fn json_round_trips() {
        let report = finished();
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<JobReport>(&json).unwrap(), report);
    }
}
