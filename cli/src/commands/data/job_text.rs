//! The part of a job file that reads a table, by a proposal.

use std::fmt::Write;

use heddle_columns::Proposal;
use heddle_protocol::job_spec::DataFormat;
use heddle_protocol::job_spec::columns::{ColumnRule, ColumnUsage, Header, default_null};
use serde::Serialize;

use super::sample_args::SampleArgs;

/// Letters of a line of names, about.
const LINE_CHARS: usize = 90;

/// How a table of text is written.
#[derive(Clone, Copy, Serialize)]
pub struct TextForm {
    /// Whether its first line has the names of the columns.
    pub header: bool,
    /// The character between fields.
    pub delimiter: char,
}

/// The sections as text.
pub fn sections(
    args: &SampleArgs,
    format: DataFormat,
    text: Option<TextForm>,
    proposal: &Proposal,
) -> String {
    let roles = &proposal.roles;
    let mut out =
        format!("[data]\ntrain = {}\nformat = \"{}\"\n", quoted(&args.data), format.name());
    if let Some(TextForm { header, delimiter }) = text {
        if args.header() != Header::Auto {
            line(&mut out, &format!("header = {header}"));
        }
        if delimiter != format.delimiter() {
            line(&mut out, &format!("delimiter = {}", quoted(&delimiter.to_string())));
        }
    }
    let mark = if proposal.label.is_usable { "" } else { "# " };
    line(
        &mut out,
        &format!("{mark}label = {}   # {}", quoted(&roles.label), plain(&proposal.label.reason)),
    );
    if !roles.id.is_empty() {
        line(&mut out, &format!("id = {}", list(&roles.id)));
    }
    if roles.null != default_null() {
        line(&mut out, &format!("null = {}", list(&roles.null)));
    }
    for rule in &proposal.rules {
        let names = match &rule.usage {
            ColumnUsage::Ignore => ignored(&rule.names, &proposal.reasons),
            _ => list(&rule.names),
        };
        line(&mut out, &format!("\n[[data.columns]]\nnames = {names}\nas = \"{}\"", word(rule)));
    }
    out.truncate(out.trim_end().len());
    out
}

fn line(out: &mut String, text: &str) {
    writeln!(out, "{text}").expect("a string takes all text");
}

fn word(rule: &ColumnRule) -> &'static str {
    match rule.usage {
        ColumnUsage::Number(_) => "number",
        ColumnUsage::Category { .. } => "category",
        ColumnUsage::List { .. } => "list",
        ColumnUsage::Vector { .. } => "vector",
        ColumnUsage::Ignore => "ignore",
    }
}

/// A list of texts, on several lines if it is long.
fn list(texts: &[String]) -> String {
    let (mut lines, mut last) = (Vec::new(), String::new());
    for text in texts {
        let text = quoted(text);
        if !last.is_empty() && last.len() + text.len() > LINE_CHARS {
            lines.push(std::mem::take(&mut last));
        }
        let space = if last.is_empty() { "" } else { " " };
        last.push_str(&format!("{space}{text},"));
    }
    if lines.is_empty() {
        return format!("[{}]", last.trim_end_matches(','));
    }
    lines.push(last);
    format!("[\n    {}\n]", lines.join("\n    "))
}

/// The names of ignored columns, each with its reason.
fn ignored(names: &[String], reasons: &[String]) -> String {
    let mut out = "[\n".to_owned();
    for (name, reason) in names.iter().zip(reasons) {
        line(&mut out, &format!("    {},   # {}", quoted(name), plain(reason)));
    }
    out + "]"
}

/// A string of TOML: JSON's, but for one character.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// A text in a comment.
fn plain(text: &str) -> String {
    text.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_have_lines() {
        let names: Vec<String> = (0..20).map(|n| format!("column {n}")).collect();
        let text = list(&names);
        assert_eq!(text.lines().count(), 5, "{text}");
        assert!(text.lines().all(|line| line.len() < 100));
        assert_eq!(list(&names[..2]), "[\"column 0\", \"column 1\"]");
        assert_eq!(quoted("a\"\\\u{7f}\n"), "\"a\\\"\\\\\\u007f\\n\"");
    }
}
