//! The web page: the job, its containers, checkpoints and recoveries as plain HTML that needs no script.
//!
//! `maud` escapes every text, and all attributes are in double quotes. [`plain`] replaces control characters in texts
//! from outside. Such a text must not be used in a script or a style. Links into the job are relative, because YARN's
//! proxy serves the page under another path. Links to logs lead to the NodeManagers' own pages.

use std::fmt::Display;

use heddle_protocol::figure::decimal;
use heddle_protocol::view::{JobState, JobView, Placement, SlotView};
use heddle_telemetry::recovery::{RecoveryRow, seconds};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::curve;
use crate::report::format::{
    self, checkpoint_size, heartbeat_age, phases, plain, rate, slot_state, thousands, time, word,
};
use crate::report::lines::{lines, slot_cells, slot_heads};

/// Most rows of a table: a longer page is slow and unreadable. JSON has all.
const ROWS_MAX: usize = 2000;
/// Most passes that are not folded.
const PASSES_OPEN: usize = 20;

const STYLE: &str = "body{font:14px/1.4 sans-serif;margin:2em;max-width:80em;color:#222;\
background:#fff}\
table{border-collapse:collapse;margin:0 0 1.5em}th,td{border-bottom:1px solid #ccc;padding:.2em .8em;text-align:right;\
vertical-align:top}th:first-child,td:first-child,td.t,th.t{text-align:left}h1{font-size:1.4em}h2{font-size:1.1em}\
p.m{white-space:pre-wrap;background:#f4f4f4;padding:.5em}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}a{color:#8bf}p.m{background:#282828}}";

/// The page.
pub(super) fn render(view: &JobView) -> String {
    let name = plain(&view.name);
    let is_over = matches!(view.state, JobState::Finished | JobState::Failed | JobState::Stopped);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { (word(&view.state)) " · " (name) }
                // A job that is over changes no more, and soon answers no more.
                @if !is_over { meta http-equiv="refresh" content="5"; }
                meta name="viewport" content="width=device-width";
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (name) }
                (headline(view))
                (containers(view))
                (attempts(view))
                (ended(view))
                (recoveries(view))
                (checkpoints(view))
                (mirrors(view))
                (tables(view))
                (checkpoints_given_up(view))
                (checkpoints_damaged(view))
                (curve::losses(view))
                (passes(view))
                (evaluations(view))
                (warnings(view))
                p { a href="api/v1/job" { "job as JSON" } " · " a href="metrics" { "metrics" } }
            }
        }
        "\n"
    };
    page.into_string()
}

fn headline(view: &JobView) -> Markup {
    html! {
        p {
            (word(&view.state))
            @if !view.phase_text.is_empty() {
                " · " (plain(&view.phase_text)) ", step " (view.step)
            }
            @if let Some(done) = view.phase_done { " · " (format!("{:.0} %", 100.0 * done)) }
            @if view.tasks > 0 { " · task " (view.tasks_done) " of " (view.tasks) }
            " · " (thousands(view.rows)) " rows, " (rate(view.rows_per_second)) " rows/s"
            @if let Some(loss) = view.training_loss { " · training loss " (decimal(loss, 4)) }
            @if let Some(left_ms) = view.left_ms { " · " (format::span(left_ms)) " left" }
        }
        p {
            @if let Some(application) = &view.application {
                (plain(&application.id)) ", user " (plain(&application.user))
                @if !application.queue.is_empty() { ", queue " (plain(&application.queue)) }
                " · "
            }
            "attempt " (view.attempt) " · epoch " (view.epoch) " · run " (view.run)
            " · since " (time(view.started_ms))
        }
        @for line in lines(view) {
            @if line.is_problem { p.m { (plain(&line.to_string())) } }
            @else { p { (plain(&line.to_string())) } }
        }
        @if !view.message.is_empty() { p.m { (plain(&view.message)) } }
    }
}

/// A cell with a text from anywhere, to the left.
fn text(value: impl Display) -> Markup {
    html! { td.t { (plain(&value.to_string())) } }
}

/// A cell with a figure, to the right.
fn figure(value: impl Display) -> Markup {
    html! { td { (plain(&value.to_string())) } }
}

/// A cell with a duration.
fn ms(value: Option<u64>) -> Markup {
    figure(value.map_or_else(|| "–".to_owned(), seconds))
}

/// A cell with a link to a container's logs, where there is one.
fn logs(view: &JobView, placement: Option<&Placement>) -> Markup {
    let user = view.application.as_ref().map_or("", |application| application.user.as_str());
    html! {
        td {
            @if let Some(url) = placement.and_then(|placement| placement.log_url(user)) {
                a rel="noreferrer" href=(plain(&url)) { "logs" }
            }
        }
    }
}

fn container(placement: Option<&Placement>) -> Markup {
    text(placement.map_or("", |placement| placement.container.as_str()))
}

/// A table, unless it is empty, without columns that no row has anything in.
fn table(title: &str, head: &[&str], rows: impl ExactSizeIterator<Item = Vec<Markup>>) -> Markup {
    folded(title, head, rows, ROWS_MAX)
}

/// A [`table`] whose rows after the first `open` are folded.
fn folded(
    title: &str,
    head: &[&str],
    rows: impl ExactSizeIterator<Item = Vec<Markup>>,
    open: usize,
) -> Markup {
    let count = rows.len();
    let rows: Vec<Vec<Markup>> = rows.take(ROWS_MAX).collect();
    let has_text = |cell: &Markup| !matches!(&*cell.0, "<td></td>" | "<td class=\"t\"></td>");
    let columns: Vec<usize> = (0..head.len())
        .filter(|at| rows.iter().any(|row| row.get(*at).is_some_and(has_text)))
        .collect();
    let part = |rows: &[Vec<Markup>]| {
        html! {
            table {
                tr { @for at in &columns { th { (head[*at]) } } }
                @for row in rows {
                    tr { @for cell in columns.iter().filter_map(|at| row.get(*at)) { (cell) } }
                }
            }
        }
    };
    let (first, rest) = rows.split_at(rows.len().min(open));
    html! {
        @if count > 0 { h2 { (title) } (part(first)) }
        @if !rest.is_empty() { details { summary { (rest.len()) " more" } (part(rest)) } }
        @if count > ROWS_MAX { p { "and " (count - ROWS_MAX) " more, see the JSON" } }
    }
}

fn containers(view: &JobView) -> Markup {
    let first = ["slot", "incarnation", "state", "node", "per second", "total"];
    let last = ["last heartbeat", "process", "container", "logs"];
    let head: Vec<&str> = first.into_iter().chain(slot_heads()).chain(last).collect();
    let node = |slot: &SlotView| match (&slot.placement, slot.host.as_str()) {
        (Some(placement), "") => placement.node.clone(),
        (_, host) => host.to_owned(),
    };
    let rows = view.slots.iter().map(|slot| {
        let mut cells = vec![
            text(slot.slot),
            figure(slot.incarnation),
            text(slot_state(slot)),
            text(node(slot)),
            figure(rate(slot.per_second)),
            figure(thousands(slot.total)),
        ];
        cells.extend(slot_cells(&slot.figures).map(figure));
        cells.extend([
            figure(heartbeat_age(slot.heartbeat_age_ms)),
            figure(slot.pid),
            container(slot.placement.as_ref()),
            logs(view, slot.placement.as_ref()),
        ]);
        cells
    });
    table("Containers", &head, rows)
}

fn attempts(view: &JobView) -> Markup {
    let rows = view.history.attempts.iter().rev().map(|attempt| {
        let placement = Some(&attempt.placement);
        vec![
            figure(attempt.attempt),
            text(&attempt.placement.node),
            container(placement),
            logs(view, placement),
        ]
    });
    table("ApplicationMasters, newest first", &["attempt", "node", "container", "logs"], rows)
}

fn ended(view: &JobView) -> Markup {
    let head = ["slot", "incarnation", "when", "how it ended", "node", "container", "logs"];
    let rows = view.history.ended.iter().rev().map(|ended| {
        let placement = ended.placement.as_ref();
        vec![
            text(ended.slot),
            figure(ended.incarnation),
            text(time(ended.at_ms)),
            text(&ended.cause),
            text(placement.map_or("", |placement| placement.node.as_str())),
            container(placement),
            logs(view, placement),
        ]
    });
    table("Containers that ended, newest first", &head, rows)
}

/// The five rows of each recovery stand in five columns here, so that recoveries are compared at a glance.
fn recoveries(view: &JobView) -> Markup {
    let head = [
        "recovery",
        "kind",
        "when",
        "epoch",
        "back to",
        "checkpoint",
        "notice",
        "restart",
        "load",
        "resume",
        "outage",
        "age of the checkpoint",
        "steps again",
    ];
    let title = match view.recoveries_total > view.recoveries.len() as u64 {
        true => format!("Recoveries, newest first, of {}", view.recoveries_total),
        false => "Recoveries, newest first".to_owned(),
    };
    let rows = view.recoveries.iter().rev().map(|recovery| {
        let five = phases(recovery);
        let mut cells = vec![
            text(&recovery.cause),
            text(word(&recovery.kind)),
            text(time(recovery.at_ms)),
            match recovery.epoch_before == recovery.epoch_after {
                true => text(format_args!("{} stays", recovery.epoch_before)),
                false => text(format_args!("{} → {}", recovery.epoch_before, recovery.epoch_after)),
            },
            text(recovery.base.map_or_else(|| "–".to_owned(), |base| base.to_string())),
        ];
        cells.extend(five.rows().into_iter().map(share));
        cells.push(if recovery.done { ms(Some(five.total_ms())) } else { text("under way") });
        cells.push(ms(recovery.checkpoint_ms));
        cells.push(recovery.steps_again.map_or_else(|| text("–"), figure));
        cells
    });
    table(&title, &head, rows)
}

/// A row of a recovery: its duration, and its part of the sum of all five.
fn share(row: RecoveryRow) -> Markup {
    match (row.ms, row.percent) {
        (Some(took), Some(percent)) => figure(format_args!("{} ({percent} %)", seconds(took))),
        (took, _) => ms(took),
    }
}

fn checkpoints(view: &JobView) -> Markup {
    let head = ["checkpoint", "when", "phase", "step", "took", "size", "directory"];
    let title = format!("Checkpoints, newest first ({} taken)", view.checkpoints_taken);
    let rows = view.checkpoints.iter().rev().map(|taken| {
        vec![
            text(taken.cut),
            text(time(taken.at_ms)),
            figure(taken.phase),
            figure(taken.step),
            ms(Some(taken.took_ms)),
            figure(checkpoint_size(taken.bytes)),
            text(&taken.dir),
        ]
    });
    table(&title, &head, rows)
}

fn mirrors(view: &JobView) -> Markup {
    let head = ["mirror", "newest", "behind", "late", "failures", "last error"];
    let rows = view.mirrors.iter().map(|mirror| {
        vec![
            text(&mirror.dir),
            text(mirror.checkpoint.map_or_else(|| "–".to_owned(), |cut| cut.to_string())),
            figure(mirror.behind),
            ms(Some(mirror.late_ms)),
            figure(thousands(mirror.failures)),
            text(mirror.error.as_deref().unwrap_or_default()),
        ]
    });
    table("Mirrors of the checkpoints", &head, rows)
}

fn tables(view: &JobView) -> Markup {
    let Some(newest) = view.checkpoints.last() else { return html! {} };
    let head = ["table", "rows", "non-zero", "norm"];
    let title = format!("Tables at checkpoint {}", newest.cut);
    let rows = newest.tables.iter().map(|of| {
        let norm = of.norm.map_or_else(|| "not finite".to_owned(), |norm| decimal(norm, 4));
        vec![
            text(&of.name),
            figure(thousands(of.rows)),
            figure(thousands(of.nonzero)),
            figure(norm),
        ]
    });
    table(&title, &head, rows)
}

fn checkpoints_given_up(view: &JobView) -> Markup {
    let title =
        format!("Checkpoints given up, newest first ({})", view.history.checkpoints_given_up_total);
    let rows =
        view.history.checkpoints_given_up.iter().rev().map(|aborted| {
            vec![text(aborted.cut), text(time(aborted.at_ms)), text(&aborted.reason)]
        });
    table(&title, &["checkpoint", "when", "why"], rows)
}

fn checkpoints_damaged(view: &JobView) -> Markup {
    let total = view.history.checkpoints_damaged_total;
    let title = format!("Checkpoints damaged and set aside, newest first ({total})");
    let rows = view.history.checkpoints_damaged.iter().rev().map(|damaged| {
        vec![text(damaged.cut), text(time(damaged.at_ms)), text(&damaged.dir), text(&damaged.error)]
    });
    table(&title, &["checkpoint", "when", "now in", "what is wrong"], rows)
}

fn passes(view: &JobView) -> Markup {
    let rows = view.passes.iter().rev().map(|trained| {
        vec![
            figure(trained.pass.saturating_add(1)),
            figure(thousands(trained.rows)),
            figure(trained.loss.map_or_else(|| "–".to_owned(), |loss| decimal(loss, 4))),
        ]
    });
    folded("Passes, newest first", &["pass", "rows", "training loss"], rows, PASSES_OPEN)
}

fn evaluations(view: &JobView) -> Markup {
    // All evaluations of a job have the same figures.
    let first = view.evaluations.first().map(|scores| scores.figures.printed());
    let names = first.into_iter().flatten().map(|(figure, _)| figure.name());
    let heads: Vec<&str> = ["pass", "rows"].into_iter().chain(names).collect();
    let rows = view.evaluations.iter().rev().map(|scores| {
        let figures = scores.figures.printed().map(|(_, value)| decimal(value, 4));
        let pass = [scores.pass.saturating_add(1).to_string(), thousands(scores.rows)];
        pass.into_iter().chain(figures).map(figure).collect()
    });
    let kept = view.kept_pass.map(|pass| pass.saturating_add(1));
    html! {
        (folded("Evaluations, newest first", &heads, rows, PASSES_OPEN))
        @if let Some(pass) = kept { p { "best pass so far, whose model is kept: " (pass) } }
    }
}

fn warnings(view: &JobView) -> Markup {
    let title = format!("Warnings, newest first ({})", view.history.warnings_total);
    let rows = view
        .history
        .warnings
        .iter()
        .rev()
        .map(|warning| vec![text(time(warning.at_ms)), text(&warning.text)]);
    table(&title, &["when", "warning"], rows)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use heddle_protocol::view::TrainingPassView;

    use super::*;
    use crate::report::samples::view;

    /// The tags of a page, in order, without their content.
    fn tags(html: &str) -> Vec<&str> {
        let after = html.split('<').skip(1);
        after.map(|tag| tag.split('>').next().unwrap_or_default()).collect()
    }

    /// A view with `text` in every field that comes from outside.
    fn with_texts(text: &str) -> JobView {
        let mut view = view();
        view.name = text.into();
        view.phase_text = format!("p{text}");
        view.message = format!("m{text}");
        for slot in &mut view.slots {
            slot.host = text.into();
            slot.placement = Some(Placement {
                container: text.into(),
                node: text.into(),
                node_http: format!("h{text}\""),
            });
        }
        for ended in &mut view.history.ended {
            ended.cause = text.into();
            ended.placement = None;
        }
        for aborted in &mut view.history.checkpoints_given_up {
            aborted.reason = text.into();
        }
        for warning in &mut view.history.warnings {
            warning.text = text.into();
        }
        for damaged in &mut view.history.checkpoints_damaged {
            (damaged.dir, damaged.error) = (text.into(), text.into());
        }
        for taken in &mut view.checkpoints {
            taken.dir = text.into();
        }
        for recovery in &mut view.recoveries {
            recovery.cause = text.into();
        }
        view
    }

    /// What a browser reads out of escaped text.
    fn shown(html: &str) -> String {
        html.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
    }

    /// The content of the cell of a text, and the value of an attribute with the same text.
    fn escaped(value: &str) -> [String; 2] {
        let (cell, link) =
            (text(value).into_string(), html! { a href=(plain(value)); }.into_string());
        let cell =
            cell.strip_prefix("<td class=\"t\">").and_then(|cell| cell.strip_suffix("</td>"));
        let link = link.strip_prefix("<a href=\"").and_then(|link| link.strip_suffix("\">"));
        [cell.unwrap_or("no cell <").to_owned(), link.unwrap_or("no link <").to_owned()]
    }

    #[test]
    fn names_from_outside_cannot_become_markup() {
        for (outside, html) in [
            ("<script>'\"&", "&lt;script&gt;'&quot;&amp;"),
            ("\0\u{1b}[31m", "\u{fffd}\u{fffd}[31m"),
            ("&lt;", "&amp;lt;"),
        ] {
            assert_eq!(escaped(outside), [html, html]);
        }
    }

    #[test]
    fn the_page_shows_what_an_operator_asks() {
        let page = render(&view());
        for expected in [
            "<h1>quickstart</h1>",
            "application_1700000000000_0005, user alice, queue default",
            "href=\"http://n1:8042/node/containerlogs/container_1700000000000_0005_01_000003/alice\"",
            "was killed by signal 9 (by an operator or by the kernel)",
            "<td>0.040 s (5 %)</td><td>0.009 s (1 %)</td><td>0.700 s (88 %)</td><td>0.040 s (5 %)</td><td>0.011 s (1 %)</td><td>0.760 s</td><td>1.200 s</td><td>2</td>",
            "pserver-0 was lost before its shards were saved",
            "<td>0.2118</td><td>0.9729</td>",
            "<td>2</td><td>5,000</td><td>0.2304</td>",
            "<polyline points=",
            "Warnings, newest first (1)",
            "the journal is 7 s late and tried again: safe mode",
        ] {
            assert!(page.contains(expected), "{expected:?} is missing in\n{page}");
        }
        assert!(!page.contains("http-equiv"), "it is over");
        assert!(!page.contains("<script"), "no script is needed");
    }

    #[test]
    fn links_into_the_job_are_relative() {
        let page = render(&view());
        for link in page.split("href=\"").skip(1) {
            assert!(
                link.starts_with("http://n1:8042/node/") || !link.starts_with(['/', 'h']),
                "{link}"
            );
        }
        assert!(page.contains("href=\"api/v1/job\"") && page.contains("href=\"metrics\""));
    }

    #[test]
    fn ten_thousand_slots_make_a_page_that_is_still_read() {
        let mut view = view();
        let slot = view.slots[0].clone();
        view.slots = vec![slot; 10_000];
        let page = render(&view);
        assert!(page.contains("and 8000 more, see the JSON"));
        assert!(page.len() < 2 << 20, "{} bytes", page.len());
    }

    #[test]
    fn newest_passes_are_open_and_empty_columns_left_out() {
        let mut view = view();
        let pass = view.passes[0].clone();
        view.passes = (0..25).map(|n| TrainingPassView { pass: n, ..pass.clone() }).collect();
        for slot in &mut view.slots {
            slot.placement = None;
        }
        view.history.attempts.clear();
        view.history.ended.clear();
        let page = render(&view);
        assert!(page.contains("<title>finished · quickstart</title>"), "{page}");
        let passes = page.split("<h2>Passes, newest first</h2>").nth(1).unwrap_or_default();
        let (open, folded) = passes.split_once("<summary>5 more</summary>").unwrap_or_default();
        assert!(open.contains("<td>25</td>") && open.contains("<td>6</td>"), "{open}");
        assert!(!open.contains("<td>5</td>") && folded.contains("<td>5</td>"), "{folded}");
        let heads = page.split("<h2>Containers</h2>").nth(1).unwrap_or_default();
        let heads = heads.split("</tr>").next().unwrap_or_default();
        assert!(heads.contains("<th>process</th>") && !heads.contains("<th>logs</th>"), "{heads}");
    }

    proptest! {
        #[test]
        fn a_text_is_shown_as_it_is_and_has_no_markup(
            text in any::<String>(),
            tail in "[<>&\"'a;#]{0,40}",
        ) {
            let text = text + &tail;
            for html in escaped(&text) {
                prop_assert!(!html.contains(['<', '>', '"', '\0']));
                prop_assert_eq!(shown(&html), plain(&text));
            }
        }

        #[test]
        fn no_text_from_outside_adds_a_tag(
            text in any::<String>(),
            tail in "[<>\"'&/a-z= ]{0,60}",
        ) {
            // An empty text leaves its column out.
            let hostile = with_texts(&format!("x{text}{tail}"));
            let (hostile, harmless) = (render(&hostile), render(&with_texts("x")));
            prop_assert_eq!(tags(&hostile), tags(&harmless));
        }
    }
}
