//! The report of a job on YARN: it stays when the application and its logs are gone.
//!
//! ```text
//! <home>/.heddle/reports/<application id>/
//!   report.json                   JobReport, for programs
//!   report.txt                    the same as text; YARN's tracking URL leads here after the end
//!   report-<attempt>.json .txt    when an earlier attempt reported another outcome
//!   logs/<slot>-<incarnation>/    last bytes of the logs of containers that failed or were killed
//! ```
//!
//! [`JobReport::new`] is a pure function of the job's view, its outcome and what the cluster knows; [`paths`]
//! writes it, [`diagnostics()`] is what the ResourceManager gets of it, [`tracking`] where a
//! browser finds it, [`logs`] fetches logs from NodeManagers. When to do what is the ApplicationMaster's.

mod diagnostics;
mod fetch;
pub mod format;
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

/// Version of [`JobReport`]'s form. Fields are only ever added under one version.
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
    /// The application; none when it is not known.
    pub application: Option<ApplicationView>,
    /// The attempt of the ApplicationMaster that saw the end.
    pub attempt: Attempt,
    /// When the run was submitted.
    pub started_ms: u64,
    /// When it was over.
    pub ended_ms: u64,
    /// URL of the model's directory, when published.
    pub model: Option<String>,
    /// URL of the checkpoint directory.
    pub checkpoint_dir: String,
    /// Records per second from the first figures of this attempt to the end, waiting and recoveries included; none
    /// when nothing was computed.
    pub rows_per_second: Option<f64>,
    /// The last evaluation in the one line that ends a local run too: `test  log-loss 0.2118  auc 0.9729`.
    pub test: Option<String>,
    /// What was asked of the cluster.
    pub asked: Vec<RequestedContainers>,
    /// Every container that this attempt knew, by slot and filling.
    pub containers: Vec<ContainerSummary>,
    /// The newest events, oldest first: a reader that has followed the job prints what it has not seen.
    #[serde(default, deserialize_with = "readable_events")]
    pub events: Vec<NumberedEvent>,
    /// The job as it stood: rows, evaluations, checkpoints, recoveries with their five rows.
    pub view: JobView,
}

/// Containers of one kind, as asked for.
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
    /// Its place.
    pub slot: Slot,
    /// Which filling.
    pub incarnation: Incarnation,
    /// Which container of the cluster, where it is known.
    pub placement: Option<Placement>,
    /// In words: `ran to the end`, `was killed by signal 9 …`.
    pub end: String,
    /// Whether it ended before the job did and not by the job's order.
    pub failed: bool,
    /// When; none if at the job's end.
    pub at_ms: Option<u64>,
}

/// What is not in the job's view or its outcome.
#[derive(Clone, Debug, Default)]
pub struct ReportFacts {
    /// Now, milliseconds since 1970.
    pub ended_ms: u64,
    /// URL of the checkpoint directory.
    pub checkpoint_dir: String,
    /// What was asked of the cluster.
    pub asked: Vec<RequestedContainers>,
    /// The newest events.
    pub events: Vec<NumberedEvent>,
}

impl JobReport {
    /// A report, from the job's last view (with what the cluster adds), its outcome and the facts besides.
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
            test: view.evaluations.last().map(format::final_scores),
            asked: facts.asked,
            events: facts.events,
            containers: containers(view, outcome.state),
            view: view.clone(),
        }
    }

    /// Containers that failed or were killed and whose log can be asked for, newest first.
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
    let told: std::collections::BTreeSet<_> =
        view.history.ended.iter().map(|ended| (ended.slot, ended.incarnation)).collect();
    let last = view.slots.iter().filter_map(|slot| {
        let end = match slot.state {
            // A container that is gone already at the end still filled the slot last.
            SlotState::Empty | SlotState::Running | SlotState::Suspect => match state {
                JobState::Finished => "ran to the end",
                _ => "ran when the job ended",
            },
            SlotState::Asked => "was asked for and not given",
            SlotState::Starting => "was being started",
            SlotState::Draining => "was handing back its work",
        };
        let unfilled = slot.incarnation == Incarnation::default();
        let again = told.contains(&(slot.slot, slot.incarnation));
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
    fn containers_that_ended_stand_before_their_successors() {
        let report = finished();
        let told: Vec<_> = report
            .containers
            .iter()
            .map(|end| (end.slot.to_string(), end.incarnation.0, end.failed))
            .collect();
        let slot = |name: &str, n, failed| (name.to_owned(), n, failed);
        assert_eq!(
            told,
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
    fn the_json_form_is_read_back() {
        let report = finished();
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<JobReport>(&json).unwrap(), report);
    }
}
