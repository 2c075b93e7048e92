//! The figures of a job as lines. The status, the page and the report are loops over them.

use std::fmt;

use heddle_protocol::process_figures::{
    FigureKind, FigureScope, FigureUnit, ProcessFigure, ProcessFigures,
};
use heddle_protocol::view::JobView;
use heddle_telemetry::recovery::seconds;

use super::format::{self, size, thousands};

/// A figure of the job in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FigureLine {
    /// The name of its row in the report; empty: it is about the moment, and the report leaves it out.
    pub name: &'static str,
    /// What stands before the text outside of a table.
    before: String,
    /// The figure. It may contain text from outside.
    pub text: String,
    /// Whether an operator may have to do something.
    pub is_problem: bool,
}

/// The line outside of a table: `late tasks: 3 finished by another trainer first`.
impl fmt::Display for FigureLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.before, self.text)
    }
}

impl FigureLine {
    fn new(name: &'static str, text: String) -> Self {
        Self { name, before: format!("{name}: "), text, is_problem: false }
    }
}

/// The lines of all figures that are known.
#[must_use]
pub fn lines(view: &JobView) -> Vec<FigureLine> {
    let line = FigureLine::new;
    let bare = |name, text| FigureLine { before: String::new(), ..line(name, text) };
    let problem = |line| FigureLine { is_problem: true, ..line };
    let table = |text| FigureLine { before: "table ".to_owned(), ..line("table", text) };
    let mut lines = Vec::new();
    let bad_records = Some(view.bad_records).filter(|records| *records > 0);
    lines.extend(bad_records.map(|records| line("bad records", thousands(records))));
    let set_aside = view.set_aside.iter().map(|task| line("set aside", task.to_string()));
    lines.extend(set_aside.map(problem));
    lines.extend(view.stragglers.map(|late| line("late tasks", late.text())));
    lines.extend(
        view.data_locality.map(|tasks| bare("data locality", format::data_locality(tasks))),
    );
    lines.extend(ProcessFigure::fields().filter_map(|field| counted(&view.figures, field)));
    lines.extend(view.sparse_tables.iter().map(|size| table(format::sparse_table(size))));
    lines.extend(view.elastic.map(|elastic| line("trainers", elastic.text())));
    lines.extend(view.pservers.as_ref().map(|pservers| line("pservers", pservers.text())));
    let replication = view.replication.as_ref();
    lines.extend(replication.map(|copies| line("replication", format::replication(copies))));
    lines.extend(view.updates_lost.map(|updates| line("updates lost", thousands(updates))));
    lines.extend(view.spares.map(|spares| line("spares", spares.text())));
    lines.extend(view.model_saves.as_ref().map(|saves| line("saves", saves.text())));
    lines.extend(view.credentials.as_ref().map(|tokens| bare("", format::credentials(tokens))));
    let wait = view.storage_wait.as_ref().map(|wait| bare("", format::storage_wait(wait)));
    lines.extend(wait.map(problem));
    lines
}

/// The line of a field of figures that processes count, if any is known.
fn counted(figures: &ProcessFigures, field: &[ProcessFigure]) -> Option<FigureLine> {
    if field.iter().all(|figure| figures.known(*figure).is_none()) {
        return None;
    }
    let is_histogram =
        |figure: &&ProcessFigure| matches!(figure.row().kind, FigureKind::Histogram(_));
    let count = field.iter().find(is_histogram).map_or(0, |histogram| figures.get(*histogram));
    let mut text = String::new();
    for figure in field.iter().filter(|figure| figure.row().scope == FigureScope::Job) {
        let (row, value) = (figure.row(), figures.get(*figure));
        let part = row.text.trim_start_matches('?');
        if part.len() == row.text.len() || value > 0 {
            let mean = format!("{:.1}", value as f64 / count.max(1) as f64);
            let part = part.replace("{}", &amount(row.unit, value)).replace("{mean}", &mean);
            text += &part.replace("{count}", &thousands(count));
        }
    }
    let name = field[0].row().text.split_once(": ")?.0;
    Some(FigureLine::new(name, text.split_off(name.len() + 2)))
}

/// A value with its unit.
fn amount(unit: FigureUnit, value: u64) -> String {
    match unit {
        FigureUnit::Number => thousands(value),
        FigureUnit::Bytes => size(value),
        FigureUnit::Ms => seconds(value),
        FigureUnit::Us => seconds(value / 1000),
    }
}

/// Heads of the columns that a table of slots has for figures of their processes.
pub fn slot_heads() -> impl Iterator<Item = &'static str> {
    slot_figures().map(|figure| figure.row().text)
}

/// The cells of these columns.
pub fn slot_cells(figures: &ProcessFigures) -> impl Iterator<Item = String> {
    slot_figures().map(|figure| amount(figure.row().unit, figures.get(figure)))
}

fn slot_figures() -> impl Iterator<Item = ProcessFigure> {
    let has_column = |figure: &ProcessFigure| {
        figure.row().scope == FigureScope::Slot && !figure.row().text.is_empty()
    };
    ProcessFigure::ALL.iter().copied().filter(has_column)
}

#[cfg(test)]
mod tests {
    use heddle_protocol::process_figures::ProcessFigure::*;

    use super::*;
    use crate::report::samples::view;

    #[test]
    fn counted_figures_are_sentences() {
        let mut view = view();
        assert_eq!(lines(&view), []);
        for gap in [0, 0, 2] {
            view.figures.observe(PullGaps, gap);
            view.figures.raise(PullGapMax, gap);
        }
        for (figure, value) in
            [(PullsWaited, 1), (PullWait, 1_500_000), (SavedBytes, 2 << 30), (SaverTime, 3_100)]
        {
            view.figures.set(figure, value);
        }
        let text = |view: &JobView| lines(view).iter().map(ToString::to_string).collect::<Vec<_>>();
        let staleness =
            "staleness: largest gap 2 steps, mean 0.7; 1 of 3 pulls waited, 1.500 s in all";
        assert_eq!(text(&view), [staleness, "saving: 2.0 GiB written, 3.100 s of savers"]);
        view.figures.set(SaverThrottled, 2_000);
        assert!(text(&view)[1].ends_with(", 2.000 s of it for checkpoint.bandwidth"));
    }

    #[test]
    fn each_field_of_the_job_has_a_line_with_a_name() {
        for field in ProcessFigure::fields() {
            let row = field[0].row();
            assert_eq!(row.scope == FigureScope::Job, row.text.contains(": "), "{}", row.field);
            assert_eq!(row.scope == FigureScope::Process, row.metric.is_empty(), "{}", row.field);
        }
    }
}
