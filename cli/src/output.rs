//! Data on stdout: as text for people, or one JSON object a line. Notes for people on stderr.
//!
//! Much of the text comes from elsewhere: names and diagnostics of other users' applications, messages of other machines,
//! logs. All of it passes [`format::plain`] here, so that nothing in it steers the terminal.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

use heddle_am::report::format;
use heddle_protocol::exit_code::ExitCode;
use serde::Serialize;

use crate::failure::Failure;

/// Writes a line of data to stdout, or several; what would steer a terminal is replaced.
///
/// # Errors
/// Stdout is closed (exit 141, quietly) or cannot be written.
pub fn line(text: &str) -> Result<(), Failure> {
    raw(&format::plain(text))
}

/// Writes a note for people to stderr; what would steer a terminal is replaced.
pub fn note(text: &str) {
    eprintln!("{}", format::plain(text));
}

/// Writes an object as a line of JSON to stdout.
///
/// # Errors
/// As [`line()`].
pub fn json(object: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(object).map_err(|error| {
        Failure::caused(ExitCode::Internal, "the output has no JSON form", &error)
    })?;
    json_line(&text)
}

/// Writes a line that is JSON already to stdout.
///
/// # Errors
/// As [`line()`].
pub fn json_line(text: &str) -> Result<(), Failure> {
    raw(&ascii_controls(text))
}

/// Writes an object as a line of JSON to stderr.
pub fn json_note(object: &serde_json::Value) {
    eprintln!("{}", ascii_controls(&object.to_string()));
}

/// What of a log's bytes is written to stdout: all of it as it is, or without what would steer a terminal if stdout is one.
pub fn log_bytes(bytes: &[u8]) -> Cow<'_, [u8]> {
    shown_bytes(bytes, io::stdout().is_terminal())
}

fn shown_bytes(bytes: &[u8], terminal: bool) -> Cow<'_, [u8]> {
    match terminal {
        true => Cow::Owned(format::plain(&String::from_utf8_lossy(bytes)).into_bytes()),
        false => Cow::Borrowed(bytes),
    }
}

/// Writes a part of a log to stdout, with a line end behind it (see [`log_bytes`]).
///
/// # Errors
/// As [`line()`].
pub fn log_text(text: &str) -> Result<(), Failure> {
    match io::stdout().is_terminal() {
        true => line(text),
        false => raw(text),
    }
}

fn raw(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|error| broken(&error))
}

/// The same JSON, with the characters that [`format::plain`] replaces written as `\u…`. Such characters stand within
/// strings only (RFC 8259 §7: those below U+0020 are escaped there already).
fn ascii_controls(json: &str) -> Cow<'_, str> {
    if !json.chars().any(format::steers) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if format::steers(c) {
            // Writing to a string does not fail. All of them are in the Basic Multilingual Plane.
            let _ = write!(out, "\\u{:04x}", c as u32);
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Output that cannot be written: a reader that left, or a full disk.
pub fn broken(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => {
            Failure::new(ExitCode::PipeClosed, "the reader of the output is gone")
        }
        _ => Failure::caused(ExitCode::Denied, "the output cannot be written", error),
    }
}

/// Rows as columns two spaces apart. A line end within a cell would look like another row; it is a space here.
#[must_use]
pub fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell = |row: &Vec<String>, n: usize| {
        let cell = row.get(n).map_or("", String::as_str);
        format::plain(cell).replace(['\n', '\t'], " ")
    };
    let mut out = String::new();
    let widths: Vec<usize> = (0..count)
        .map(|n| rows.iter().map(|row| cell(row, n).chars().count()).max().unwrap_or(0))
        .collect();
    for row in rows {
        let cells: Vec<String> =
            (0..count).map(|n| format!("{:<width$}", cell(row, n), width = widths[n])).collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out
}

/// A line on stderr that is overwritten by the next one; nothing where stderr is no terminal.
#[derive(Debug)]
pub struct ProgressLine {
    terminal: bool,
    /// What is shown; nothing when the line is free.
    shown: Option<String>,
}

impl ProgressLine {
    /// One that shows itself only on a terminal.
    #[must_use]
    pub fn new() -> Self {
        Self { terminal: io::stderr().is_terminal(), shown: None }
    }

    /// Shows a text in place of the last one.
    pub fn show(&mut self, text: &str) {
        if self.terminal {
            let columns = std::env::var("COLUMNS").ok().and_then(|n| n.parse().ok());
            let fits: String = format::plain(text)
                .replace(['\n', '\t'], " ")
                .chars()
                .take(columns.unwrap_or(80usize).max(2) - 1)
                .collect();
            if self.shown.as_ref() != Some(&fits) {
                eprint!("\r\x1b[K{fits}");
                self.shown = Some(fits);
            }
        }
    }

    /// Takes the line away, for a line that stays.
    pub fn clear(&mut self) {
        if self.shown.take().is_some() {
            eprint!("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".to_owned(), "bb".to_owned()], vec!["ccc".to_owned(), "d".to_owned()]];
        assert_eq!(columns(&rows), "a    bb\nccc  d");
    }
    #[test]
    fn a_cell_makes_no_row_and_paints_over_nothing() {
        let rows = [
            vec!["evil\u{1b}[2K\nroot  finished".to_owned(), "x".to_owned()],
            vec!["b".to_owned(), "\u{9b}31m\u{202e}".to_owned()],
        ];
        let text = columns(&rows);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(!text.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{text:?}");
    }

    #[test]
    fn a_log_steers_no_terminal_and_keeps_its_bytes_in_a_pipe() {
        let log = b"\xff\x1b[2Jx\ty\n";
        assert_eq!(shown_bytes(log, false).as_ref(), log);
        let shown = shown_bytes(log, true);
        assert_eq!(String::from_utf8_lossy(&shown), "\u{fffd}\u{fffd}[2Jx\ty\n");
    }

    #[test]
    fn json_with_control_characters_stays_the_same_json() {
        let text = "a\u{1b}[2J\u{7f}\u{9b}1m\u{202e}b\n\u{e4}";
        let json = serde_json::to_string(text).expect("JSON");
        let safe = ascii_controls(&json);
        assert!(!safe.chars().any(format::steers), "{safe:?}");
        assert_eq!(serde_json::from_str::<String>(&safe).expect("JSON"), text);
        assert_eq!(ascii_controls("{\"a\":1}"), "{\"a\":1}");
    }
}
