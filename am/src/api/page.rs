//! The web page: the job, its containers, checkpoints and recoveries as plain HTML that needs no script.
//!
//! All text from outside is escaped. Links into the job are relative, because YARN's proxy serves the page under another
//! path. Links to logs lead to the NodeManagers' own pages.

use std::fmt::{Display, Write as _};

use heddle_protocol::view::{JobState, JobView, Placement, SlotView};
use heddle_telemetry::recovery::seconds;

use super::escape::escape;
use crate::report::format::{
    data_locality, phases, rate, size, storage_wait, thousands, time, word,
};

/// Most rows of a table: a longer page is slow and unreadable. JSON has all.
const ROWS_MAX: usize = 2000;

const STYLE: &str = "body{font:14px/1.4 sans-serif;margin:2em;max-width:80em;color:#222;background:#fff}\
table{border-collapse:collapse;margin:0 0 1.5em}th,td{border-bottom:1px solid #ccc;padding:.2em .8em;text-align:right;\
vertical-align:top}th:first-child,td:first-child,td.t,th.t{text-align:left}h1{font-size:1.4em}h2{font-size:1.1em}\
p.m{white-space:pre-wrap;background:#f4f4f4;padding:.5em}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}a{color:#8bf}p.m{background:#282828}}";

/// A cell of a table.
enum Cell {
    /// A text from anywhere.
    Text(String),
    /// A figure, to the right.
    Figure(String),
    /// A link, where there is one.
    Link(Option<String>, &'static str),
}

fn text(value: impl Display) -> Cell {
    Cell::Text(value.to_string())
}

fn figure(value: impl Display) -> Cell {
    Cell::Figure(value.to_string())
}

fn ms(value: Option<u64>) -> Cell {
    Cell::Figure(value.map_or_else(|| "–".to_owned(), seconds))
}

/// The page.
pub(super) fn render(view: &JobView) -> String {
    let name = escape(&view.name);
    let is_over = matches!(view.state, JobState::Finished | JobState::Failed | JobState::Stopped);
    // A job that is over changes no more, and soon answers no more.
    let refresh = match is_over {
        true => "",
        false => "<meta http-equiv=\"refresh\" content=\"5\">",
    };
    let mut out = format!(
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{name}</title>{refresh}\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head><body><h1>{name}</h1>"
    );
    headline(&mut out, view);
    containers(&mut out, view);
    masters(&mut out, view);
    ended(&mut out, view);
    recoveries(&mut out, view);
    checkpoints(&mut out, view);
    evaluations(&mut out, view);
    warnings(&mut out, view);
    out.push_str(
        "<p><a href=\"api/v1/job\">job as JSON</a> · <a href=\"metrics\">metrics</a></p></body></html>\n",
    );
    out
}

fn paragraph(out: &mut String, class: &str, content: &str) {
    // Writing to a string does not fail.
    let _ = write!(out, "<p{class}>{}</p>", escape(content));
}

fn headline(out: &mut String, view: &JobView) {
    let mut line = word(&view.state);
    if !view.phase_text.is_empty() {
        let _ = write!(line, " · {}, step {}", view.phase_text, view.step);
    }
    if view.tasks > 0 {
        let _ = write!(line, " · task {} of {}", view.tasks_done, view.tasks);
    }
    let _ = write!(line, " · {} rows, {} rows/s", thousands(view.rows), rate(view.rows_per_second));
    if let Some(loss) = view.training_loss {
        let _ = write!(line, " · training loss {loss:.4}");
    }
    paragraph(out, "", &line);
    let mut line = match &view.application {
        Some(application) => {
            let queue = match application.queue.as_str() {
                "" => String::new(),
                queue => format!(", queue {queue}"),
            };
            format!("{}, user {}{queue} · ", application.id, application.user)
        }
        None => String::new(),
    };
    let _ = write!(
        line,
        "attempt {} · epoch {} · run {} · since {}",
        view.attempt,
        view.epoch,
        view.run,
        time(view.started_ms)
    );
    paragraph(out, "", &line);
    if view.bad_records > 0 {
        let line = format!("{} bad records left out", thousands(view.bad_records));
        paragraph(out, "", &line);
    }
    if let Some(locality) = view.data_locality {
        paragraph(out, "", &data_locality(locality));
    }
    if let Some(wait) = &view.storage_wait {
        paragraph(out, " class=\"m\"", &storage_wait(wait));
    }
    if !view.message.is_empty() {
        paragraph(out, " class=\"m\"", &view.message);
    }
}

fn logs(view: &JobView, placement: Option<&Placement>) -> Cell {
    let user = view.application.as_ref().map_or("", |application| application.user.as_str());
    Cell::Link(placement.and_then(|placement| placement.log_url(user)), "logs")
}

fn container(placement: Option<&Placement>) -> Cell {
    text(placement.map_or("", |placement| placement.container.as_str()))
}

fn containers(out: &mut String, view: &JobView) {
    let head = [
        "slot",
        "incarnation",
        "state",
        "node",
        "per second",
        "total",
        "memory",
        "process",
        "container",
        "logs",
    ];
    let node = |slot: &SlotView| match (&slot.placement, slot.host.as_str()) {
        (Some(placement), "") => placement.node.clone(),
        (_, host) => host.to_owned(),
    };
    table(
        out,
        "Containers",
        &head,
        view.slots.len(),
        view.slots.iter().map(|slot| {
            vec![
                text(slot.slot),
                figure(slot.incarnation),
                text(word(&slot.state)),
                text(node(slot)),
                figure(rate(slot.per_second)),
                figure(thousands(slot.total)),
                figure(size(slot.rss_bytes)),
                figure(slot.pid),
                container(slot.placement.as_ref()),
                logs(view, slot.placement.as_ref()),
            ]
        }),
    );
}

fn masters(out: &mut String, view: &JobView) {
    let masters = &view.history.masters;
    table(
        out,
        "ApplicationMasters, newest first",
        &["attempt", "node", "container", "logs"],
        masters.len(),
        masters.iter().rev().map(|master| {
            let placement = Some(&master.placement);
            vec![
                figure(master.attempt),
                text(&master.placement.node),
                container(placement),
                logs(view, placement),
            ]
        }),
    );
}

fn ended(out: &mut String, view: &JobView) {
    let head = ["slot", "incarnation", "when", "how it ended", "node", "container", "logs"];
    let ended = &view.history.ended;
    table(
        out,
        "Containers that ended, newest first",
        &head,
        ended.len(),
        ended.iter().rev().map(|ended| {
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
        }),
    );
}

/// The five rows of each recovery stand in five columns here, so that recoveries are compared at a glance.
fn recoveries(out: &mut String, view: &JobView) {
    let head = [
        "recovery",
        "when",
        "epoch",
        "back to",
        "checkpoint",
        "notice",
        "restart",
        "load",
        "resume",
        "in all",
    ];
    let title = match view.recoveries_total > view.recoveries.len() as u64 {
        true => format!("Recoveries, newest first, of {}", view.recoveries_total),
        false => "Recoveries, newest first".to_owned(),
    };
    table(
        out,
        &title,
        &head,
        view.recoveries.len(),
        view.recoveries.iter().rev().map(|recovery| {
            let five = phases(recovery);
            let mut cells = vec![
                text(&recovery.cause),
                text(time(recovery.at_ms)),
                text(match recovery.epoch_before == recovery.epoch_after {
                    true => format!("{} stays", recovery.epoch_before),
                    false => format!("{} → {}", recovery.epoch_before, recovery.epoch_after),
                }),
                text(recovery.base.map_or_else(|| "–".to_owned(), |base| base.to_string())),
            ];
            cells.extend(five.rows().into_iter().map(|(_, value, _)| ms(value)));
            cells.push(match recovery.done {
                true => ms(Some(five.total_ms())),
                false => text("under way"),
            });
            cells
        }),
    );
}

fn checkpoints(out: &mut String, view: &JobView) {
    let head = ["checkpoint", "when", "phase", "step", "took", "size", "directory"];
    let taken = &view.checkpoints;
    let title = format!("Checkpoints, newest first ({} taken)", view.checkpoints_taken);
    table(
        out,
        &title,
        &head,
        taken.len(),
        taken.iter().rev().map(|taken| {
            vec![
                text(taken.cut),
                text(time(taken.at_ms)),
                figure(taken.phase),
                figure(taken.step),
                ms(Some(taken.took_ms)),
                figure(size(taken.bytes)),
                text(&taken.dir),
            ]
        }),
    );
    let late = &view.history.checkpoints_late;
    let title =
        format!("Checkpoints given up, newest first ({})", view.history.checkpoints_late_total);
    table(
        out,
        &title,
        &["checkpoint", "when", "why"],
        late.len(),
        late.iter()
            .rev()
            .map(|late| vec![text(late.cut), text(time(late.at_ms)), text(&late.reason)]),
    );
    let damaged = &view.history.checkpoints_damaged;
    if !damaged.is_empty() {
        let title = format!(
            "Checkpoints damaged and set aside, newest first ({})",
            view.history.checkpoints_damaged_total
        );
        table(
            out,
            &title,
            &["checkpoint", "when", "now in", "what is wrong"],
            damaged.len(),
            damaged.iter().rev().map(|damaged| {
                vec![
                    text(damaged.cut),
                    text(time(damaged.at_ms)),
                    text(&damaged.dir),
                    text(&damaged.error),
                ]
            }),
        );
    }
}

fn warnings(out: &mut String, view: &JobView) {
    let all = &view.history.warnings;
    if all.is_empty() {
        return;
    }
    let title = format!("Warnings, newest first ({})", view.history.warnings_total);
    let rows = all.iter().rev().map(|warning| vec![text(time(warning.at_ms)), text(&warning.text)]);
    table(out, &title, &["when", "warning"], all.len(), rows);
}

fn evaluations(out: &mut String, view: &JobView) {
    let head = ["pass", "rows", "log-loss", "auc", "accuracy"];
    let all = &view.evaluations;
    table(
        out,
        "Evaluations",
        &head,
        all.len(),
        all.iter().map(|scores| {
            vec![
                figure(scores.pass.saturating_add(1)),
                figure(thousands(scores.rows)),
                figure(format_args!("{:.4}", scores.log_loss)),
                figure(format_args!("{:.4}", scores.auc)),
                figure(format_args!("{:.4}", scores.accuracy)),
            ]
        }),
    );
}

/// A table, unless it is empty.
fn table(
    out: &mut String,
    title: &str,
    head: &[&str],
    count: usize,
    rows: impl Iterator<Item = Vec<Cell>>,
) {
    if count == 0 {
        return;
    }
    // Writing to a string does not fail, here and below.
    let _ = write!(out, "<h2>{}</h2><table><tr>", escape(title));
    for cell in head {
        let _ = write!(out, "<th>{}</th>", escape(cell));
    }
    out.push_str("</tr>");
    for row in rows.take(ROWS_MAX) {
        out.push_str("<tr>");
        for cell in row {
            let _ = match cell {
                Cell::Text(content) => write!(out, "<td class=\"t\">{}</td>", escape(&content)),
                Cell::Figure(content) => write!(out, "<td>{}</td>", escape(&content)),
                Cell::Link(Some(url), label) => write!(
                    out,
                    "<td><a rel=\"noreferrer\" href=\"{}\">{}</a></td>",
                    escape(&url),
                    escape(label)
                ),
                Cell::Link(None, _) => write!(out, "<td></td>"),
            };
        }
        out.push_str("</tr>");
    }
    out.push_str("</table>");
    if count > ROWS_MAX {
        let more = format!("and {} more, see the JSON", count - ROWS_MAX);
        paragraph(out, "", &more);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::report::samples::view;

    /// The tags of a page, in order, without their content.
    fn tags(html: &str) -> Vec<&str> {
        let after = html.split('<').skip(1);
        after.map(|tag| tag.split('>').next().unwrap_or_default()).collect()
    }

    /// Everything that comes from outside says `text`.
    fn told(text: &str) -> JobView {
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
        for late in &mut view.history.checkpoints_late {
            late.reason = text.into();
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

    #[test]
    fn the_page_shows_what_an_operator_asks() {
        let page = render(&view());
        for expected in [
            "<h1>quickstart</h1>",
            "application_1700000000000_0005, user alice, queue default",
            "href=\"http://n1:8042/node/containerlogs/container_1700000000000_0005_01_000003/alice\"",
            "was killed by signal 9 (by an operator or by the kernel)",
            "<td>1.200 s</td><td>0.009 s</td><td>0.700 s</td><td>0.040 s</td><td>0.011 s</td><td>0.760 s</td>",
            "pserver-0 was lost before its shards were saved",
            "<td>0.2118</td><td>0.9729</td>",
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

    proptest! {
        #[test]
        fn no_text_from_outside_adds_a_tag(text in any::<String>(), tail in "[<>\"'&/a-z= ]{0,60}") {
            let hostile = told(&(text + &tail));
            let (hostile, harmless) = (render(&hostile), render(&told("x")));
            prop_assert_eq!(tags(&hostile), tags(&harmless));
        }
    }
}
