//! Rules for a table without a job file, by the values at its beginning. They are a proposal: values do not show what a column
//! means.

use std::collections::BTreeSet;

use heddle_protocol::job_spec::columns::{
    ColumnRule, ColumnUsage, MissingCategory, NumberUsage, default_null,
};

use crate::cell::Cell;
use crate::cell_text::number_in;
use crate::resolve::{FileColumn, Roles, ValueKind};

/// Names of columns that are the label, the likeliest first.
const LABEL_NAMES: [&str; 4] = ["label", "target", "y", "class"];
/// Texts, beside `data.null`, that stand for a missing value.
const NULL_WORDS: &[&str] =
    &["null", "NULL", "Null", "None", "NaN", "nan", "na", "N/A", "n/a", "#N/A", "<NA>", "?"];
/// Texts that do so among numbers.
const NULL_MARKS: &[&str] = &["-", "--", "."];
/// Texts of a column that all differ, from which on they name the record.
const DIFFERENT_MIN: usize = 20;
/// Values that are shown of a column, and the letters of each.
const EXAMPLES: usize = 3;
const EXAMPLE_CHARS: usize = 24;

/// A column and its values in the first records.
#[derive(Clone, Debug)]
pub struct SampledColumn<'c> {
    /// The column.
    pub column: FileColumn,
    /// A cell for each record; not read for lists and vectors.
    pub values: Vec<Cell<'c>>,
}

/// What a column seems to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuessedKind {
    /// Each value is a finite number of 32 bits.
    Number,
    /// Texts.
    Category,
    /// A list of texts or whole numbers, by its type.
    List,
    /// A vector, by its type.
    Vector,
    /// Each value is missing.
    Empty,
    /// Its type cannot be a feature.
    Unusable,
}

impl GuessedKind {
    /// In words.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Number => "number",
            Self::Category => "category",
            Self::List => "list",
            Self::Vector => "vector",
            Self::Empty => "empty",
            Self::Unusable => "unusable",
        }
    }
}

/// What the first records show of a column.
#[derive(Clone, Debug)]
pub struct ColumnSummary {
    /// Its name.
    pub name: String,
    /// What it seems to be.
    pub kind: GuessedKind,
    /// A few of its values, different ones.
    pub examples: Vec<String>,
    /// Share of records without a value, 0 to 1.
    pub missing: f64,
    /// Of the file.
    type_name: &'static str,
    /// Records with a value.
    present: usize,
    /// Each value occurs once.
    is_unique: bool,
    /// Values are texts or whole numbers.
    is_discrete: bool,
}

/// Why a column is the label, or why it cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelChoice {
    /// In words.
    pub reason: String,
    /// Each value can be read as a label.
    pub is_usable: bool,
}

/// Rules for a table. [`resolve`](crate::resolve()) accepts them if a column has features.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// What was seen, in the order of the file.
    pub columns: Vec<ColumnSummary>,
    /// The columns with a role; the label's name is empty where a label was not found.
    pub roles: Roles,
    /// About the label.
    pub label: LabelChoice,
    /// The rules; ignored columns have the last.
    pub rules: Vec<ColumnRule>,
    /// Why columns are ignored, in the order of that rule's names.
    pub reasons: Vec<String>,
}

/// Proposes rules. `label`: the column that the user states.
#[must_use]
pub fn propose(columns: &[SampledColumn<'_>], label: Option<&str>) -> Proposal {
    let mut roles = Roles { null: default_null(), ..Roles::default() };
    let label = choose_label(columns, label, &mut roles.label);
    let is_label = |name: &str| !name.is_empty() && name == roles.label;
    for column in columns.iter().filter(|column| !is_label(&column.column.name)) {
        add_null_texts(column, &mut roles.null);
    }
    let columns: Vec<_> = columns.iter().map(|column| summary(column, &roles.null)).collect();
    let (mut ignored, mut reasons, mut rules) = (Vec::new(), Vec::new(), Vec::new());
    let missing = MissingCategory::None;
    for (kind, usage) in [
        (GuessedKind::Number, ColumnUsage::Number(NumberUsage::default())),
        (GuessedKind::Category, ColumnUsage::Category { missing }),
        (GuessedKind::List, ColumnUsage::List { separator: None }),
        (GuessedKind::Vector, ColumnUsage::Vector { values: None }),
        (GuessedKind::Empty, ColumnUsage::Ignore),
        (GuessedKind::Unusable, ColumnUsage::Ignore),
    ] {
        let mut names = Vec::new();
        let others = columns.iter().filter(|column| !is_label(&column.name));
        for column in others.filter(|column| column.kind == kind) {
            if column.is_id() {
                roles.id.push(column.name.clone());
            } else if let Some(reason) = column.reason_to_ignore() {
                ignored.push(name_in_rule(&column.name));
                reasons.push(reason);
            } else {
                names.push(name_in_rule(&column.name));
            }
        }
        if !names.is_empty() {
            rules.push(ColumnRule { names, usage });
        }
    }
    if !ignored.is_empty() {
        rules.push(ColumnRule { names: ignored, usage: ColumnUsage::Ignore });
    }
    Proposal { columns, roles, label, rules, reasons }
}

impl ColumnSummary {
    /// Whether it names the record, by its own name and its values.
    fn is_id(&self) -> bool {
        let name = self.name.to_ascii_lowercase();
        let is_named = name == "id" || name.ends_with("_id");
        is_named && self.is_discrete && self.is_unique && self.present > 1
    }

    fn reason_to_ignore(&self) -> Option<String> {
        match self.kind {
            GuessedKind::Empty => Some("it has no value".to_owned()),
            GuessedKind::Unusable => {
                Some(format!("it is {}, which cannot be a feature", self.type_name))
            }
            _ if self.name.is_empty() => Some("a column without a name".to_owned()),
            GuessedKind::Category if self.is_unique && self.present >= DIFFERENT_MIN => {
                Some(format!("its {} texts all differ", self.present))
            }
            _ => None,
        }
    }
}

/// A name as a rule states it, which may hold globs. An empty name is matched by `*`.
fn name_in_rule(name: &str) -> String {
    match name {
        "" => "*".to_owned(),
        name if name.contains(['*', '?', '[', '{']) => globset::escape(&name.replace('\\', "\\\\")),
        name => name.to_owned(),
    }
}

/// Chooses the label and puts its name into `name`.
fn choose_label(
    columns: &[SampledColumn<'_>],
    stated: Option<&str>,
    name: &mut String,
) -> LabelChoice {
    let by_name = || {
        let named = |word: &str| {
            columns.iter().find(|column| column.column.name.eq_ignore_ascii_case(word))
        };
        LABEL_NAMES.iter().find_map(|word| named(word))
    };
    let has_two_values = |column: &&SampledColumn<'_>| {
        let texts: BTreeSet<_> = column.values.iter().map(Cell::to_string).collect();
        let is_named = !column.column.name.is_empty();
        is_named && texts.len() == 2 && column.values.iter().all(|cell| is_label(*cell))
    };
    let (column, why) = match stated {
        Some(stated) => {
            stated.clone_into(name);
            let column = columns.iter().find(|column| column.column.name == stated);
            (column, "stated")
        }
        None if let Some(column) = by_name() => (Some(column), "guessed by its name"),
        None => {
            let last = columns.iter().rfind(has_two_values);
            (last, "guessed: the last column with two values")
        }
    };
    let Some(column) = column else {
        let names = LABEL_NAMES.join(", ");
        let reason = format!("state it: no column is named {names}, or has two numbers as values");
        return LabelChoice { reason, is_usable: false };
    };
    name.clone_from(&column.column.name);
    match column.values.iter().find(|cell| !is_label(**cell)) {
        None => LabelChoice { reason: why.to_owned(), is_usable: true },
        Some(cell) => {
            let text = cell.to_string();
            let reason =
                format!("{why}, but a label must be a number, true or false, not {text:?}");
            LabelChoice { reason, is_usable: false }
        }
    }
}

/// Whether a cell can be a label: a number, or a truth value.
#[must_use]
pub fn is_label(cell: Cell<'_>) -> bool {
    match cell {
        Cell::Text(text) if matches!(text.trim_ascii(), b"true" | b"false") => true,
        cell => is_number(cell),
    }
}

fn is_number(cell: Cell<'_>) -> bool {
    let is_finite = |number: f64| (number as f32).is_finite();
    match cell {
        Cell::Missing | Cell::Key(_) => false,
        Cell::Number(number) => is_finite(number),
        Cell::Text(text) => number_in(text).is_some_and(is_finite),
    }
}

/// Adds the texts of a column that stand for a missing value, as they are written.
fn add_null_texts(column: &SampledColumn<'_>, null: &mut Vec<String>) {
    let default = default_null();
    let mut texts = BTreeSet::new();
    for cell in &column.values {
        if let Cell::Text(text) = cell {
            texts.extend(std::str::from_utf8(text).ok());
        }
    }
    let is_null = |text: &str| {
        NULL_WORDS.contains(&text.trim()) || default.iter().any(|word| word == text.trim())
    };
    let is_mark = |text: &str| NULL_MARKS.contains(&text.trim());
    let mut others = texts.iter().filter(|text| !is_null(text) && !is_mark(text)).peekable();
    let has_others = others.peek().is_some();
    let has_numbers = has_others && others.all(|text| is_number(Cell::Text(text.as_bytes())));
    for text in texts {
        let stands = is_null(text) || has_numbers && is_mark(text);
        if stands && !null.iter().any(|known| known == text) {
            null.push(text.to_owned());
        }
    }
}

fn summary(column: &SampledColumn<'_>, null: &[String]) -> ColumnSummary {
    let is_present = |cell: &&Cell<'_>| match cell {
        Cell::Missing => false,
        Cell::Text(text) => !null.iter().any(|word| word.as_bytes() == *text),
        Cell::Number(_) | Cell::Key(_) => true,
    };
    let present: Vec<Cell<'_>> = column.values.iter().filter(is_present).copied().collect();
    let (mut different, mut examples) = (BTreeSet::new(), Vec::new());
    for cell in &present {
        let text = cell.to_string();
        if different.insert(text.clone()) && examples.len() < EXAMPLES {
            examples.push(shortened(&text));
        }
    }
    let kind = kind_of(column.column.kind, &present);
    let is_whole = |text: &String| text.trim().parse::<i128>().is_ok();
    let records = column.values.len().max(1);
    ColumnSummary {
        name: column.column.name.clone(),
        kind,
        type_name: column.column.kind.name(),
        examples,
        missing: (column.values.len() - present.len()) as f64 / records as f64,
        present: present.len(),
        is_unique: different.len() == present.len(),
        is_discrete: kind == GuessedKind::Category
            || kind == GuessedKind::Number && different.iter().all(is_whole),
    }
}

fn kind_of(kind: ValueKind, present: &[Cell<'_>]) -> GuessedKind {
    let (can_be_number, can_be_category) = match kind {
        ValueKind::Typed { is_vector: true, is_list: false, .. } => return GuessedKind::Vector,
        ValueKind::Typed { is_list: true, .. } => return GuessedKind::List,
        ValueKind::Typed { is_number: false, is_category: false, .. } => {
            return GuessedKind::Unusable;
        }
        ValueKind::Typed { is_number, is_category, .. } => (is_number, is_category),
        ValueKind::AnyText => (true, true),
    };
    if present.is_empty() {
        GuessedKind::Empty
    } else if can_be_number && (!can_be_category || present.iter().all(|cell| is_number(*cell))) {
        GuessedKind::Number
    } else {
        GuessedKind::Category
    }
}

/// The beginning of a text.
fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(EXAMPLE_CHARS).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::resolve;

    /// A column of texts.
    fn texts<'c>(name: &str, values: &[&'c str]) -> SampledColumn<'c> {
        let column = FileColumn { name: name.to_owned(), kind: ValueKind::AnyText };
        let values = values.iter().map(|text| Cell::Text(text.as_bytes())).collect();
        SampledColumn { column, values }
    }

    fn files(columns: &[SampledColumn<'_>]) -> Vec<FileColumn> {
        columns.iter().map(|column| column.column.clone()).collect()
    }

    fn names(proposal: &Proposal, usage: &ColumnUsage) -> String {
        let rule = proposal.rules.iter().find(|rule| rule.usage == *usage);
        rule.map_or_else(String::new, |rule| rule.names.join(" "))
    }

    #[test]
    fn kinds_follow_from_values() {
        let columns = [
            texts("age", &["31", " 40.5", "-", "NA"]),
            texts("site", &["a", "b", "?", "-"]),
            texts("user_id", &["7", "8", "9", "10"]),
            texts("fraction_id", &["7.5", "8", "9", "10"]),
            texts("gone", &["", "", "NaN", ""]),
            texts("huge", &["1e300", "1", "2", "3"]),
            texts("odd[1]", &["1", "2", "3", "1"]),
            texts("clicked", &["0", "1", "1", "0"]),
            texts("", &["0", "1", "1", "0"]),
        ];
        let found = propose(&columns, None);
        let number = ColumnUsage::Number(NumberUsage::default());
        let category = ColumnUsage::Category { missing: MissingCategory::None };
        assert_eq!(names(&found, &number), "age fraction_id odd[[]1[]]");
        assert_eq!(names(&found, &category), "site huge");
        assert_eq!(names(&found, &ColumnUsage::Ignore), "* gone");
        assert_eq!(found.roles.id, ["user_id"]);
        assert_eq!(found.roles.null, ["", "NA", "\\N", "-", "?", "NaN"]);
        assert_eq!(found.roles.label, "clicked");
        assert_eq!(found.label.reason, "guessed: the last column with two values");
        assert_eq!(found.columns[0].missing, 0.5);
        let schema = resolve(&files(&columns), &found.roles, &found.rules, &[]).expect("it fits");
        let named: Vec<_> = schema.columns.iter().map(|column| column.name.as_str()).collect();
        assert_eq!(named, ["age", "fraction_id", "huge", "odd[1]", "site"]);
    }

    #[test]
    fn texts_that_all_differ_are_left_out() {
        let comments: Vec<String> = (0..20).map(|n| format!("comment {n}")).collect();
        let comments: Vec<&str> = comments.iter().map(String::as_str).collect();
        let found = propose(&[texts("comment", &comments)], None);
        assert_eq!(names(&found, &ColumnUsage::Ignore), "comment");
        assert_eq!(found.reasons, ["its 20 texts all differ"]);
        assert!(propose(&[texts("comment", &comments[1..])], None).reasons.is_empty());
    }

    #[test]
    fn label_is_stated_or_named_or_has_two_values() {
        let columns = [
            texts("Class", &["1", "2", "3"]),
            texts("two", &["1", "0", "1"]),
            texts("Target", &["4", "5", "6"]),
        ];
        let label = |columns: &[SampledColumn<'_>], stated| {
            let found = propose(columns, stated);
            (found.roles.label, found.label.is_usable)
        };
        assert_eq!(label(&columns, Some("two")), ("two".to_owned(), true));
        assert_eq!(label(&columns, None), ("Target".to_owned(), true));
        assert_eq!(label(&columns[..2], None), ("Class".to_owned(), true));
        assert_eq!(label(&columns[1..2], None), ("two".to_owned(), true));
        assert_eq!(label(&[texts("a", &["x", "y"])], None), (String::new(), false));
        let found = propose(&[texts("label", &["1", "no", "1"]), columns[1].clone()], None);
        assert_eq!((found.roles.label.as_str(), found.label.is_usable), ("label", false));
        assert!(found.label.reason.ends_with("not \"no\""), "{}", found.label.reason);
    }

    #[test]
    fn types_of_files_decide() {
        let of = |is_number, is_category, is_list, is_vector, values: &[Cell<'_>]| {
            let name = "TYPE";
            let kind = ValueKind::Typed { name, is_number, is_category, is_list, is_vector };
            kind_of(kind, values)
        };
        let whole = [Cell::Number(3.0)];
        assert_eq!(of(true, true, false, false, &whole), GuessedKind::Number);
        assert_eq!(of(false, true, false, false, &[Cell::Text(b"3")]), GuessedKind::Category);
        assert_eq!(of(true, false, false, false, &[Cell::Number(0.5)]), GuessedKind::Number);
        assert_eq!(of(false, false, true, true, &[]), GuessedKind::List);
        assert_eq!(of(false, false, false, true, &[]), GuessedKind::Vector);
        assert_eq!(of(false, false, false, false, &whole), GuessedKind::Unusable);
        assert_eq!(of(true, true, false, false, &[]), GuessedKind::Empty);
    }
}
