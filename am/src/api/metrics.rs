//! The job's metrics as OpenMetrics text 1.0, which Prometheus reads since version 2.5.
//!
//! The process counts nothing for them: each answer is written from the [`JobView`] that the page and JSON show too. So a
//! metric costs nothing between requests and cannot differ from other displays of the same figure.
//!
//! Labels are bounded: slots, phases of a recovery, states; of texts from outside only the names of job and application.

mod page;
mod redundancy;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use heddle_protocol::control::{GAP_BOUNDS, GrantedPulls};
use heddle_protocol::figure::Figure;
use heddle_protocol::ids::Role;
use heddle_protocol::view::{JobState, JobView, MirrorView, SlotView, SparseTableView};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::registry::Registry;

use page::{Metric, Page};
use redundancy::redundancy;

use crate::report::format::{phases, word};
use crate::wall_clock::wall_ms;

const JOB: Metric = Metric::gauge("heddle_job_info", "Names of the job; always 1.");
const BUILD: Metric = Metric::gauge("heddle_build_info", "Version of the program; always 1.");
const STATE: Metric =
    Metric::gauge("heddle_job_state", "1 for the state the job is in, 0 for the others.");
const STARTED: Metric =
    Metric::gauge("heddle_job_start_time_seconds", "When the run was started, seconds since 1970.");
const ATTEMPT: Metric =
    Metric::gauge("heddle_am_attempt", "The attempt of the ApplicationMaster that answers.");
const ROWS: Metric =
    Metric::counter("heddle_rows_total", "Records computed, recomputed ones included.");
const ROWS_PER_SECOND: Metric =
    Metric::gauge("heddle_rows_per_second", "Records per second at present.");
const TASKS_SET_ASIDE: Metric = Metric::gauge(
    "heddle_tasks_set_aside",
    "Tasks that passes went on without after errors, the newest 1,000 at the most.",
);
const STRAGGLER_TASKS_STOPPED: Metric = Metric::counter(
    "heddle_straggler_tasks_stopped_total",
    "Tasks that a trainer stopped computing because another one had finished them.",
);
const STRAGGLER_STOP: Metric = Metric::gauge(
    "heddle_straggler_stop_seconds",
    "The longest time from the order to stop a late task until its trainer had stopped.",
);
const BAD_RECORDS: Metric = Metric::counter("heddle_bad_records_total", "Records left out as bad.");
const INPUT_WAIT: Metric = Metric::gauge(
    "heddle_input_wait_seconds",
    "How long trainers have been waiting for the storage of their input; 0 while all of them read.",
);
const INPUT_WAITED: Metric = Metric::counter(
    "heddle_input_waited_seconds_total",
    "Time in which trainers waited for the storage of their input, waits that are over.",
);
const CREDENTIALS_EXPIRE: Metric = Metric::gauge(
    "heddle_credentials_expire_seconds",
    "Time until the job's HDFS tokens end; a job with a keytab gets others before.",
);
const CREDENTIALS_FAILURES: Metric = Metric::counter(
    "heddle_credentials_failures_total",
    "Fetches of HDFS tokens by the job's keytab that failed in this attempt.",
);
const CREDENTIALS_PENDING: Metric = Metric::gauge(
    "heddle_credentials_pending_containers",
    "Containers that have not confirmed the newest HDFS tokens.",
);
const TABLE_ROWS: Metric = Metric::gauge("heddle_table_rows", "Rows of a sparse table.");
const TABLE_BYTES: Metric = Metric::gauge(
    "heddle_table_bytes",
    "Bytes of values, optimizer state, positions and index of a sparse table.",
);
const TABLE_DROPPED: Metric = Metric::gauge(
    "heddle_table_dropped_rows",
    "Pushed rows of a sparse table that found no room since the pservers loaded their shards.",
);
const PULL_GAP: Metric = Metric::histogram(
    "heddle_pull_gap_steps",
    "SSP: number of a granted pull minus the lowest clock, in this attempt.",
);
const PULL_GAP_MAX: Metric =
    Metric::gauge("heddle_pull_gap_max_steps", "SSP: the largest gap of a granted pull.");
const PULLS_WAITED: Metric =
    Metric::counter("heddle_pulls_waited_total", "SSP: pulls that waited for clocks.");
const PULL_WAIT: Metric = Metric::counter(
    "heddle_pull_wait_seconds_total",
    "SSP: how long pulls waited for clocks, all of them together.",
);
const TRAINING_LOSS: Metric =
    Metric::gauge("heddle_training_loss", "Mean training loss of the present pass so far.");
const PASS_LOSS: Metric =
    Metric::gauge("heddle_training_pass_loss", "Mean training loss of the last pass that is over.");
const PASSES: Metric = Metric::gauge("heddle_training_passes", "Passes that are over.");
const PHASE_DONE: Metric =
    Metric::gauge("heddle_phase_done_ratio", "Share of the phase that is done.");
const LEFT: Metric = Metric::gauge(
    "heddle_job_left_seconds",
    "Time to the end of the last pass at the present speed.",
);
const TEST_LOG_LOSS: Metric =
    Metric::gauge("heddle_test_log_loss", "Mean log-loss of the last evaluation.");
const TEST_HINGE: Metric =
    Metric::gauge("heddle_test_hinge", "Mean hinge loss of the last evaluation.");
const TEST_SQUARED_HINGE: Metric =
    Metric::gauge("heddle_test_squared_hinge", "Mean squared hinge loss of the last evaluation.");
const TEST_RMSE: Metric =
    Metric::gauge("heddle_test_rmse", "Root of the mean squared residual of the last evaluation.");
const TEST_MAE: Metric =
    Metric::gauge("heddle_test_mae", "Mean absolute residual of the last evaluation.");
const TEST_R2: Metric = Metric::gauge(
    "heddle_test_r2",
    "Share of the labels' variance that the last evaluation's scores explain.",
);
const TEST_AUC: Metric = Metric::gauge("heddle_test_auc", "AUC of the last evaluation.");
const TEST_INERTIA: Metric = Metric::gauge(
    "heddle_test_inertia",
    "Sum of squared distances from the nearest centre in the last evaluation.",
);
const TEST_MOVED: Metric = Metric::gauge(
    "heddle_test_moved",
    "Squared movement of the centres before the last evaluation, as a share of the variance.",
);
const TEST_EMPTY: Metric = Metric::gauge(
    "heddle_test_empty",
    "Clusters without a record in the pass before the last evaluation.",
);
const TEST_ACCURACY: Metric = Metric::gauge(
    "heddle_test_accuracy",
    "Share of the last evaluation's records whose class the model names.",
);
const PHASE: Metric = Metric::gauge("heddle_phase", "Ordinal of the phase.");
const TASKS: Metric = Metric::gauge("heddle_phase_tasks", "Tasks of the phase.");
const TASKS_DONE: Metric =
    Metric::gauge("heddle_phase_tasks_done", "Tasks of the phase that are done.");
const CHECKPOINTS: Metric =
    Metric::counter("heddle_checkpoints_total", "Checkpoints committed in this run.");
const CHECKPOINTS_GIVEN_UP: Metric = Metric::counter(
    "heddle_checkpoints_given_up_total",
    "Cuts that became no checkpoint in this attempt.",
);
const MIRROR_BEHIND: Metric = Metric::gauge(
    "heddle_mirror_behind_checkpoints",
    "Checkpoints that were committed and are not in this mirror.",
);
const MIRROR_LATE: Metric = Metric::gauge(
    "heddle_mirror_late_seconds",
    "Time since the first of them was committed, seconds; 0 if there is none.",
);
const MIRROR_FAILURES: Metric = Metric::counter(
    "heddle_mirror_failures_total",
    "Copies to this mirror that failed in this attempt.",
);
const CHECKPOINT_TIME: Metric = Metric::gauge(
    "heddle_checkpoint_last_time_seconds",
    "When the newest checkpoint was committed, seconds since 1970.",
);
const CHECKPOINT_DURATION: Metric = Metric::gauge(
    "heddle_checkpoint_last_duration_seconds",
    "From the order to the commit of the newest checkpoint, seconds.",
);
const CHECKPOINT_BYTES: Metric =
    Metric::gauge("heddle_checkpoint_last_bytes", "Bytes of the newest checkpoint's shard files.");
const WRITTEN_BYTES: Metric = Metric::counter(
    "heddle_checkpoint_written_bytes_total",
    "Bytes of shard files that the parameter servers of this attempt have written, also of checkpoints that were given up.",
);
const SAVER_SECONDS: Metric = Metric::counter(
    "heddle_checkpoint_saver_seconds_total",
    "Time of the savers of all shards, also of those that save at the same time, seconds.",
);
const THROTTLED_SECONDS: Metric = Metric::counter(
    "heddle_checkpoint_throttled_seconds_total",
    "Part of the savers' time that they waited for checkpoint.bandwidth, seconds.",
);
const TASKS_DISPATCHED: Metric = Metric::counter(
    "heddle_tasks_dispatched_total",
    "Tasks dispatched in this attempt whose input is stored on known hosts, by locality.",
);
const RECOVERIES: Metric = Metric::counter("heddle_recoveries_total", "Recoveries in this run.");
const RECOVERY_SECONDS: Metric = Metric::gauge(
    "heddle_recovery_seconds",
    "Duration of each phase of the last recovery in seconds.",
);
const SLOTS: Metric = Metric::gauge("heddle_slots", "Slots by role and state.");
const ENDED: Metric = Metric::counter(
    "heddle_containers_ended_total",
    "Containers that ended before the job did, in this attempt.",
);
const WARNINGS: Metric = Metric::counter("heddle_warnings_total", "Warnings in this attempt.");
const INCARNATION: Metric =
    Metric::gauge("heddle_container_incarnation", "Incarnation of the container in its slot.");
const MEMORY: Metric =
    Metric::gauge("heddle_container_resident_bytes", "Resident memory of a container, bytes.");
const HEARTBEAT_AGE: Metric = Metric::gauge(
    "heddle_container_heartbeat_age_seconds",
    "Time since the last heartbeat of a container, seconds.",
);
const PUSHES: Metric =
    Metric::counter("heddle_pushes_total", "Push frames taken by a parameter server.");
const FRAMES_REFUSED: Metric = Metric::counter(
    "heddle_frames_refused_total",
    "Frames that a parameter server refused: of another epoch or term, or of a container that was replaced.",
);
const TRAINER_ROWS: Metric =
    Metric::counter("heddle_trainer_rows_total", "Records computed by a trainer's container.");
const PER_SECOND: Metric = Metric::gauge(
    "heddle_container_per_second",
    "Records (trainer) or push frames (parameter server) per second at present.",
);

/// All states, so that a series exists before its state does.
const STATES: [JobState; 7] = [
    JobState::Starting,
    JobState::Running,
    JobState::Recovering,
    JobState::Finishing,
    JobState::Finished,
    JobState::Failed,
    JobState::Stopped,
];

/// Content type of [`render`]'s text.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics of a job.
pub(super) fn render(view: &Arc<JobView>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(ViewCollector(Arc::clone(view))));
    let mut out = String::new();
    text::encode(&mut out, &registry).expect("writing to a string cannot fail");
    out
}

/// Writes all metrics of a view.
#[derive(Debug)]
struct ViewCollector(Arc<JobView>);

impl Collector for ViewCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        job(&mut page, &self.0)?;
        progress(&mut page, &self.0)?;
        recoveries(&mut page, &self.0)?;
        slots(&mut page, &self.0)
    }
}

fn job(page: &mut Page<'_>, view: &JobView) -> fmt::Result {
    let run = view.run.to_string();
    let application = view.application.as_ref().map_or("", |application| application.id.as_str());
    let names = [("job", view.name.as_str()), ("run", run.as_str()), ("application", application)];
    page.values(JOB, [(names, 1_u32)])?;
    page.values(BUILD, [([("version", env!("CARGO_PKG_VERSION"))], 1_u32)])?;
    let states = STATES.map(|state| (word(&state), u32::from(state == view.state)));
    page.values(STATE, states.iter().map(|(state, value)| ([("state", state.as_str())], *value)))?;
    page.value(STARTED, view.started_ms as f64 / 1000.0)?;
    page.value(ATTEMPT, view.attempt.0)
}

/// The gauge of a printed figure.
fn metric_of(figure: Figure) -> Metric {
    match figure {
        Figure::LogLoss => TEST_LOG_LOSS,
        Figure::Hinge => TEST_HINGE,
        Figure::SquaredHinge => TEST_SQUARED_HINGE,
        Figure::Rmse => TEST_RMSE,
        Figure::Mae => TEST_MAE,
        Figure::R2 => TEST_R2,
        // The bound of its error is not printed.
        Figure::Auc | Figure::AucError => TEST_AUC,
        Figure::Accuracy => TEST_ACCURACY,
        Figure::Inertia => TEST_INERTIA,
        Figure::Moved => TEST_MOVED,
        Figure::Empty => TEST_EMPTY,
    }
}

fn progress(page: &mut Page<'_>, view: &JobView) -> fmt::Result {
    page.value(ROWS, view.rows)?;
    page.value(ROWS_PER_SECOND, view.rows_per_second)?;
    page.value(BAD_RECORDS, view.bad_records)?;
    page.value(TASKS_SET_ASIDE, view.set_aside.len())?;
    if let Some(late) = view.stragglers {
        page.value(STRAGGLER_TASKS_STOPPED, late.stopped)?;
        page.value(STRAGGLER_STOP, late.slowest_stop_ms as f64 / 1000.0)?;
    }
    if let Some(locality) = view.data_locality {
        let by = [
            ("node_local", locality.node_local),
            ("rack_local", locality.rack_local),
            ("other", locality.other),
        ];
        page.values(TASKS_DISPATCHED, by.map(|(name, tasks)| ([("locality", name)], tasks)))?;
    }
    if let Some(pulls) = &view.granted_pulls {
        granted_pulls(page, pulls)?;
    }
    redundancy(page, view)?;
    let tables = &view.sparse_tables;
    let by = |value: fn(&SparseTableView) -> u64| {
        tables.iter().map(move |table| ([("table", table.name.as_str())], value(table)))
    };
    if !tables.is_empty() {
        page.values(TABLE_ROWS, by(|table| table.rows))?;
        page.values(TABLE_BYTES, by(|table| table.bytes))?;
        page.values(TABLE_DROPPED, by(|table| table.dropped))?;
    }
    if let Some(tokens) = &view.credentials {
        let left_ms = tokens.until_ms.saturating_sub(wall_ms());
        page.value(CREDENTIALS_EXPIRE, left_ms as f64 / 1000.0)?;
        page.value(CREDENTIALS_FAILURES, tokens.failures)?;
        page.value(CREDENTIALS_PENDING, tokens.pending_containers)?;
    }
    let wait = view.storage_wait.as_ref().filter(|wait| wait.trainers > 0);
    let waiting_ms = wait.map_or(0, |wait| wall_ms().saturating_sub(wait.since_ms));
    page.value(INPUT_WAIT, waiting_ms as f64 / 1000.0)?;
    page.value(INPUT_WAITED, view.history.storage_waited_ms as f64 / 1000.0)?;
    if let Some(loss) = view.training_loss {
        page.value(TRAINING_LOSS, loss)?;
    }
    page.value(PASSES, view.passes.len() as u64)?;
    if let Some(loss) = view.passes.last().and_then(|trained| trained.loss) {
        page.value(PASS_LOSS, loss)?;
    }
    if let Some(done) = view.phase_done {
        page.value(PHASE_DONE, done)?;
    }
    if let Some(left_ms) = view.left_ms {
        page.value(LEFT, left_ms as f64 / 1000.0)?;
    }
    if let Some(scores) = view.evaluations.last() {
        for (figure, value) in scores.figures.printed() {
            page.value(metric_of(figure), value)?;
        }
    }
    page.value(PHASE, view.phase.0)?;
    page.value(TASKS, view.tasks)?;
    page.value(TASKS_DONE, view.tasks_done)?;
    checkpoints(page, view)?;
    mirrors(page, &view.mirrors)
}

fn checkpoints(page: &mut Page<'_>, view: &JobView) -> fmt::Result {
    page.value(CHECKPOINTS, view.checkpoints_taken)?;
    page.value(CHECKPOINTS_GIVEN_UP, view.history.checkpoints_given_up_total)?;
    if let Some(newest) = view.checkpoints.last() {
        page.value(CHECKPOINT_TIME, newest.at_ms as f64 / 1000.0)?;
        page.value(CHECKPOINT_DURATION, newest.took_ms as f64 / 1000.0)?;
        page.value(CHECKPOINT_BYTES, newest.bytes)?;
    }
    if let Some(saved) = view.saved {
        page.value(WRITTEN_BYTES, saved.bytes)?;
        page.value(SAVER_SECONDS, saved.saver_ms as f64 / 1000.0)?;
        page.value(THROTTLED_SECONDS, saved.throttled_ms as f64 / 1000.0)?;
    }
    Ok(())
}

fn mirrors(page: &mut Page<'_>, mirrors: &[MirrorView]) -> fmt::Result {
    if mirrors.is_empty() {
        return Ok(());
    }
    let each = || mirrors.iter().map(|mirror| ([("mirror", mirror.dir.clone())], mirror));
    page.values(MIRROR_BEHIND, each().map(|(label, mirror)| (label, mirror.behind)))?;
    let late = each().map(|(label, mirror)| (label, mirror.late_ms as f64 / 1000.0));
    page.values(MIRROR_LATE, late)?;
    page.values(MIRROR_FAILURES, each().map(|(label, mirror)| (label, mirror.failures)))
}

fn granted_pulls(page: &mut Page<'_>, pulls: &GrantedPulls) -> fmt::Result {
    let bounds = GAP_BOUNDS.iter().map(|bound| *bound as f64).chain([f64::INFINITY]);
    let classes: Vec<_> = bounds.zip(pulls.by_gap).collect();
    let (sum, count) = (pulls.gap_sum as f64, pulls.pulls());
    page.begin(PULL_GAP)?.encode_histogram::<NoLabelSet>(sum, count, &classes, None)?;
    page.value(PULL_GAP_MAX, pulls.gap_max)?;
    page.value(PULLS_WAITED, pulls.waited)?;
    page.value(PULL_WAIT, pulls.waited_us as f64 / 1e6)
}

fn recoveries(page: &mut Page<'_>, view: &JobView) -> fmt::Result {
    page.value(RECOVERIES, view.recoveries_total)?;
    if let Some(last) = view.recoveries.last() {
        let known = phases(last)
            .rows()
            .into_iter()
            .filter_map(|row| row.ms.map(|ms| ([("stretch", row.name)], ms as f64 / 1000.0)));
        page.values(RECOVERY_SECONDS, known)?;
    }
    Ok(())
}

fn slots(page: &mut Page<'_>, view: &JobView) -> fmt::Result {
    let mut counts: BTreeMap<(String, String), u32> = BTreeMap::new();
    for slot in &view.slots {
        let key = (slot.slot.role.to_string(), word(&slot.state));
        *counts.entry(key).or_default() += 1;
    }
    page.values(
        SLOTS,
        counts.iter().map(|((role, state), count)| {
            let labels = [("role", role.as_str()), ("state", state.as_str())];
            (labels, *count)
        }),
    )?;
    page.value(ENDED, view.history.ended_total)?;
    page.value(WARNINGS, view.history.warnings_total)?;
    let names: Vec<_> = view.slots.iter().map(|slot| slot.slot.to_string()).collect();
    let slots =
        || names.iter().zip(&view.slots).map(|(name, slot)| ([("slot", name.as_str())], slot));
    let of = |role| slots().filter(move |(_, slot)| slot.slot.role == role);
    page.values(INCARNATION, slots().map(|(name, slot)| (name, slot.incarnation.0)))?;
    page.values(MEMORY, slots().map(|(name, slot)| (name, slot.rss_bytes)))?;
    page.values(PER_SECOND, slots().map(|(name, slot)| (name, slot.per_second)))?;
    let age = |slot: &SlotView| Some(slot.heartbeat_age_ms? as f64 / 1000.0);
    page.values(HEARTBEAT_AGE, slots().filter_map(|(name, slot)| Some((name, age(slot)?))))?;
    page.values(PUSHES, of(Role::Pserver).map(|(name, slot)| (name, slot.total)))?;
    let refused = |slot: &SlotView| slot.frames_refused;
    page.values(FRAMES_REFUSED, slots().filter_map(|(name, slot)| Some((name, refused(slot)?))))?;
    page.values(TRAINER_ROWS, of(Role::Trainer).map(|(name, slot)| (name, slot.total)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::report::samples::view;
    use heddle_protocol::control::SavedBytes;
    use heddle_protocol::view::{StorageWaitView, StragglersView};

    #[test]
    fn figures_are_those_of_the_view() {
        let text = render(&Arc::new(view()));
        for expected in [
            "heddle_job_info{job=\"quickstart\",run=\"00000000-0000-0000-0000-000000000007\",application=\"application_1700000000000_0005\"} 1\n",
            "heddle_rows_total 10000\n",
            "heddle_job_state{state=\"finished\"} 1\n",
            "heddle_job_state{state=\"running\"} 0\n",
            "heddle_input_wait_seconds 0.0\n",
            "heddle_checkpoint_last_duration_seconds 0.12\n",
            "heddle_checkpoint_last_bytes 4096\n",
            "heddle_checkpoints_given_up_total 1\n",
            "heddle_warnings_total 1\n",
            "heddle_recovery_seconds{stretch=\"restart\"} 0.7\n",
            "heddle_slots{role=\"trainer\",state=\"running\"} 1\n",
            "heddle_container_incarnation{slot=\"pserver-0\"} 2\n",
            "heddle_container_heartbeat_age_seconds{slot=\"pserver-0\"} 0.7\n",
            "heddle_pushes_total{slot=\"pserver-0\"} 1000\n",
            "heddle_frames_refused_total{slot=\"pserver-0\"} ",
            "# HELP heddle_rows Records computed, recomputed ones included.\n# TYPE heddle_rows counter\nheddle_rows_total ",
            "# TYPE heddle_phase gauge\nheddle_phase ",
        ] {
            assert!(text.contains(expected), "{expected:?} is missing in\n{text}");
        }
        assert!(text.ends_with("\n# EOF\n"), "{text}");
    }

    #[test]
    fn each_mirror_has_its_lag_and_failures() {
        let dir = "/backup".to_owned();
        let mirror =
            MirrorView { dir, behind: 2, late_ms: 1_500, failures: 3, ..MirrorView::default() };
        let text = render(&Arc::new(JobView { mirrors: vec![mirror], ..view() }));
        for expected in [
            "heddle_mirror_behind_checkpoints{mirror=\"/backup\"} 2\n",
            "heddle_mirror_late_seconds{mirror=\"/backup\"} 1.5\n",
            "heddle_mirror_failures_total{mirror=\"/backup\"} 3\n",
        ] {
            assert!(text.contains(expected), "{expected:?} is missing in\n{text}");
        }
    }

    #[test]
    fn stragglers_have_a_number_and_the_slowest_stop() {
        let late = StragglersView { stopped: 3, slowest_stop_ms: 412 };
        let text = render(&Arc::new(JobView { stragglers: Some(late), ..view() }));
        for expected in
            ["heddle_straggler_tasks_stopped_total 3\n", "heddle_straggler_stop_seconds 0.412\n"]
        {
            assert!(text.contains(expected), "{expected:?} is missing in\n{text}");
        }
    }

    #[test]
    fn metric_without_values_is_left_out() {
        let mut view = view();
        view.slots.clear();
        let text = render(&Arc::new(view));
        assert!(!text.contains("heddle_container_incarnation"), "{text}");
    }

    #[test]
    fn a_wait_for_storage_is_a_figure() {
        let mut view = view();
        view.storage_wait = Some(StorageWaitView {
            trainers: 1,
            since_ms: wall_ms().saturating_sub(60_000),
            ..StorageWaitView::default()
        });
        view.history.storage_waited_ms = 2_500;
        let text = render(&Arc::new(view));
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix("heddle_input_wait_seconds "))
            .expect("a line");
        let seconds: f64 = value.parse().expect("a number");
        assert!((60.0..600.0).contains(&seconds), "{seconds}");
        assert!(text.contains("heddle_input_waited_seconds_total 2.5\n"), "{text}");
    }

    #[test]
    fn gaps_of_ssp_are_a_histogram() {
        let mut view = view();
        let mut pulls = GrantedPulls::default();
        for (gap, waited) in [(0, None), (2, Some(1_500_000)), (100, Some(500_000))] {
            pulls.grant(gap, waited);
        }
        view.granted_pulls = Some(pulls);
        let text = render(&Arc::new(view));
        for expected in [
            "# TYPE heddle_pull_gap_steps histogram\n",
            "heddle_pull_gap_steps_sum 102.0\n",
            "heddle_pull_gap_steps_count 3\n",
            "heddle_pull_gap_steps_bucket{le=\"0.0\"} 1\n",
            "heddle_pull_gap_steps_bucket{le=\"2.0\"} 2\n",
            "heddle_pull_gap_steps_bucket{le=\"+Inf\"} 3\n",
            "heddle_pull_gap_max_steps 100\n",
            "heddle_pulls_waited_total 2\n",
            "heddle_pull_wait_seconds_total 2.0\n",
        ] {
            assert!(text.contains(expected), "{expected:?} is missing in\n{text}");
        }
    }

    #[test]
    fn written_checkpoints_are_figures() {
        let mut view = view();
        view.saved = Some(SavedBytes { bytes: 4096, saver_ms: 1_500, throttled_ms: 250 });
        let text = render(&Arc::new(view));
        for expected in [
            "heddle_checkpoint_written_bytes_total 4096\n",
            "heddle_checkpoint_saver_seconds_total 1.5\n",
            "heddle_checkpoint_throttled_seconds_total 0.25\n",
        ] {
            assert!(text.contains(expected), "{expected:?} is missing in\n{text}");
        }
    }

    /// The label values of a line, or nothing if it is not of the format.
    fn labels(line: &str) -> Option<Vec<String>> {
        let (_, mut rest) = line.split_once('{')?;
        let mut values = Vec::new();
        loop {
            let (_, value) = rest.split_once("=\"")?;
            let mut characters = value.char_indices();
            let mut read = String::new();
            let end = loop {
                match characters.next()? {
                    (at, '"') => break at,
                    (_, '\\') => read.push(match characters.next()?.1 {
                        'n' => '\n',
                        other => other,
                    }),
                    (_, other) => read.push(other),
                }
            };
            values.push(read);
            rest = value.get(end + 1..)?;
            if rest.starts_with('}') {
                return Some(values);
            }
        }
    }

    proptest! {
        #[test]
        fn no_name_breaks_out_of_its_label(
            name in any::<String>(),
            tail in "[\"\\\\\n{}a ]{0,40}",
        ) {
            let name = name + &tail;
            let (mut named, harmless) = (view(), view());
            named.name.clone_from(&name);
            let (named, harmless) = (render(&Arc::new(named)), render(&Arc::new(harmless)));
            prop_assert_eq!(named.split('\n').count(), harmless.split('\n').count());
            let line = named.split('\n').find(|line| line.starts_with("heddle_job_info{"));
            let read = line.and_then(labels).unwrap_or_default();
            prop_assert_eq!(read.first(), Some(&name));
            prop_assert_eq!(read.len(), 3);
        }
    }
}
