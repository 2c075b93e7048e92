//! The job's metrics as OpenMetrics text 1.0, which Prometheus reads since version 2.5.
//!
//! The process counts nothing for them: each answer is written from the [`JobView`] that the page and JSON show too. So a
//! metric costs nothing between requests and cannot differ from other displays of the same figure.
//!
//! Labels are bounded: slots, phases of a recovery, states; of texts from outside only the names of job and application.

mod open_metrics;
mod table;

use heddle_protocol::figure::Figure;
use heddle_protocol::process_figures::{FigureKind, FigureScope, FigureUnit, ProcessFigure};
use heddle_protocol::view::JobView;

use open_metrics::{MetricHead, MetricSamples, write_metric};
use table::METRICS;

/// Content type of [`render`]'s text.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics of a job.
pub(super) fn render(view: &JobView) -> String {
    let mut out = String::new();
    for metric in METRICS {
        write_metric(&mut out, metric.head, |samples| (metric.fill)(view, samples));
    }
    for figure in counted() {
        write_metric(&mut out, head_of_counted(figure), |samples| count(figure, view, samples));
    }
    let scores = view.evaluations.last().map(|scores| &scores.figures);
    for figure in Figure::all().filter(|figure| figure.is_printed()) {
        let value = scores.and_then(|scores| scores.get(figure));
        let fill =
            |samples: &mut MetricSamples| value.into_iter().for_each(|score| samples.value(score));
        write_metric(&mut out, head_of_score(figure), fill);
    }
    out + "# EOF\n"
}

/// A row of docs/metrics.md for each metric, ascending by name.
#[must_use]
pub fn metrics_reference() -> String {
    let counted = counted().map(head_of_counted);
    let scores = Figure::all().filter(|figure| figure.is_printed()).map(head_of_score);
    let all = METRICS.iter().map(|metric| metric.head).chain(counted).chain(scores);
    let mut heads: Vec<MetricHead> = all.collect();
    heads.sort_by_key(|head| head.name);
    let row =
        |head: &MetricHead| format!("| `{}` | {} | {} |\n", head.name, head.kind_word(), head.help);
    heads.iter().map(row).collect()
}

/// The figures of processes that have a metric.
fn counted() -> impl Iterator<Item = ProcessFigure> {
    ProcessFigure::ALL.iter().copied().filter(|figure| !figure.row().metric.is_empty())
}

fn head_of_counted(figure: ProcessFigure) -> MetricHead {
    let row = figure.row();
    MetricHead { name: row.metric, kind: row.kind, help: row.help }
}

fn head_of_score(figure: Figure) -> MetricHead {
    MetricHead { name: figure.metric(), kind: FigureKind::Gauge, help: figure.help() }
}

/// The samples of a figure that processes count.
fn count(figure: ProcessFigure, view: &JobView, samples: &mut MetricSamples) {
    let row = figure.row();
    let mut add = |labels: &[(&str, &str)], value: u64| match row.unit {
        FigureUnit::Number | FigureUnit::Bytes => samples.labelled(labels, value),
        FigureUnit::Ms => samples.labelled(labels, value as f64 / 1e3),
        FigureUnit::Us => samples.labelled(labels, value as f64 / 1e6),
    };
    match (row.scope, row.kind) {
        (FigureScope::Job, FigureKind::Histogram(bounds)) => {
            if let Some(sum) = view.figures.histogram_sum(figure) {
                samples.histogram(bounds, view.figures.classes(figure), sum);
            }
        }
        (FigureScope::Job, _) => {
            view.figures.known(figure).into_iter().for_each(|value| add(&[], value));
        }
        (FigureScope::Slot, _) => {
            for slot in &view.slots {
                if let Some(value) = slot.figures.known(figure) {
                    add(&[("slot", &slot.slot.to_string())], value);
                }
            }
        }
        (FigureScope::Process, _) => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::report::lines::lines;
    use crate::report::samples::{finished, view};
    use crate::wall_clock::wall_ms;
    use heddle_protocol::ids::Slot;
    use heddle_protocol::process_figures::ProcessFigure::*;
    use heddle_protocol::view::{
        MirrorView, PserversView, ReplicationView, StorageWaitView, StragglersView,
    };

    #[test]
    fn figures_are_those_of_the_view() {
        let text = render(&view());
        for expected in [
            "heddle_job_info{job=\"quickstart\",run=\"00000000-0000-0000-0000-000000000007\",application=\"application_1700000000000_0005\"} 1\n",
            "heddle_rows_total 10000\n",
            "heddle_job_state{state=\"finished\"} 1\n",
            "heddle_job_state{state=\"running\"} 0\n",
            "heddle_input_wait_seconds 0.0\n",
            "heddle_checkpoint_last_duration_seconds 0.12\n",
            "heddle_checkpoint_last_bytes 4096\n",
            "heddle_checkpoints_given_up_total 1\n",
            "heddle_warnings_total{code=\"journal_delayed\"} 1\n",
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
        let text = render(&JobView { mirrors: vec![mirror], ..view() });
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
        let text = render(&JobView { stragglers: Some(late), ..view() });
        for expected in
            ["heddle_straggler_tasks_stopped_total 3\n", "heddle_straggler_stop_seconds 0.412\n"]
        {
            assert!(text.contains(expected), "{expected:?} is missing in\n{text}");
        }
    }

    #[test]
    fn pserver_has_the_number_of_its_shards() {
        let served = [(Slot::pserver(0), 5), (Slot::pserver(2), 1)].into_iter().collect();
        let copies = ReplicationView { served, ..ReplicationView::default() };
        let pservers = PserversView { wanted: 1, present: 2, ..PserversView::default() };
        let text =
            render(&JobView { replication: Some(copies), pservers: Some(pservers), ..view() });
        for expected in [
            "heddle_shards_served{slot=\"pserver-0\"} 5\n",
            "heddle_shards_served{slot=\"pserver-2\"} 1\n",
            "heddle_pservers_wanted 1\n",
            "heddle_pservers_present 2\n",
        ] {
            assert!(text.contains(expected), "{expected:?} is missing in\n{text}");
        }
    }

    #[test]
    fn metric_without_values_is_left_out() {
        let mut view = view();
        view.slots.clear();
        let text = render(&view);
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
        let text = render(&view);
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix("heddle_input_wait_seconds "))
            .expect("a line");
        let seconds: f64 = value.parse().expect("a number");
        assert!((60.0..600.0).contains(&seconds), "{seconds}");
        assert!(text.contains("heddle_input_waited_seconds_total 2.5\n"), "{text}");
    }

    #[test]
    fn each_counted_figure_of_the_job_is_shown_everywhere() {
        let of_job = |field: &&[ProcessFigure]| field[0].row().scope == FigureScope::Job;
        for field in ProcessFigure::fields().filter(of_job) {
            let mut report = finished();
            field.iter().for_each(|figure| report.view.figures.set(*figure, 4_321));
            let lines = lines(&report.view);
            assert_eq!(lines.len(), 1, "the status has a line of its own: {lines:?}");
            let page = crate::api::page::render(&report.view);
            assert!(page.contains(&lines[0].to_string()), "{lines:?} in {page}");
            assert!(report.to_string().contains(&lines[0].text), "{lines:?} in {report}");
            let json = serde_json::to_value(&report.view).expect("JSON");
            let metrics = render(&report.view);
            for row in field.iter().map(|figure| figure.row()) {
                assert!(!json[row.field].is_null(), "{json}");
                assert!(metrics.contains(row.metric), "{} in {metrics}", row.metric);
            }
        }
    }

    #[test]
    fn gaps_of_ssp_are_a_histogram() {
        let mut view = view();
        for gap in [0, 2, 100] {
            view.figures.observe(PullGaps, gap);
            view.figures.raise(PullGapMax, gap);
        }
        view.figures.set(PullsWaited, 2);
        view.figures.set(PullWait, 2_000_000);
        let text = render(&view);
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
        view.figures =
            [(SavedBytes, 4096), (SaverTime, 1_500), (SaverThrottled, 250)].into_iter().collect();
        let text = render(&view);
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
            let (named, harmless) = (render(&named), render(&harmless));
            prop_assert_eq!(named.split('\n').count(), harmless.split('\n').count());
            let line = named.split('\n').find(|line| line.starts_with("heddle_job_info{"));
            let read = line.and_then(labels).unwrap_or_default();
            prop_assert_eq!(read.first(), Some(&name));
            prop_assert_eq!(read.len(), 3);
        }
    }
}
