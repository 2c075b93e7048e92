//! Prints data to stdout, as text or as one JSON object per line, and notes to stderr.
//!
//! Much of the text comes from other machines and users: names, diagnostics, messages, logs. [`format::plain`] removes
//! control characters from all of it, so that no text controls the terminal.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use heddle_am::report::format;
use heddle_protocol::exit_code::ExitCode;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::failure::{CommandFailure, CommandResult, OrFail};

/// Whether stdout is reserved for properties.
static RESERVED: AtomicBool = AtomicBool::new(false);

/// Reserves stdout for [`property`]: other data goes to stderr from now on.
pub fn reserve_stdout() {
    RESERVED.store(true, Ordering::Relaxed);
}

/// Writes a line `name=value` to stdout; control characters are replaced, so that a value is one line.
///
/// # Errors
/// As [`line()`].
pub fn property(name: &str, value: &str) -> Result<(), CommandFailure> {
    let value = format::plain(value).replace(['\n', '\t'], " ");
    to_stdout(&format!("{name}={value}"))
}

/// Writes lines of data to stdout; control characters are replaced.
///
/// # Errors
/// Stdout is closed (exit 141, quietly) or cannot be written.
pub fn line(text: &str) -> Result<(), CommandFailure> {
    raw(&format::plain(text))
}

/// Writes a note to stderr; control characters are replaced.
pub fn note(text: &str) {
    eprintln!("{}", format::plain(text));
}

/// Writes notes on a job that begins to stderr, as objects if JSON was requested.
pub fn notes(notes: &[String], json: bool) {
    for text in notes {
        match json {
            true => json_note(&serde_json::json!({ "note": text })),
            false => note(text),
        }
    }
}

/// Writes an object as a line of JSON to stdout.
///
/// # Errors
/// As [`line()`].
pub fn json(object: &impl Serialize) -> Result<(), CommandFailure> {
    let text = serde_json::to_string(object);
    json_line(&text.or_fail(ExitCode::Internal, "cannot write the output as JSON")?)
}

/// Writes a line that is JSON already to stdout.
///
/// # Errors
/// As [`line()`].
pub fn json_line(text: &str) -> Result<(), CommandFailure> {
    raw(&ascii_controls(text))
}

/// Writes what a command has done: a note, or an object if JSON was requested.
///
/// # Errors
/// As [`line()`].
pub fn done(object: &impl Serialize, text: &str, as_json: bool) -> CommandResult {
    if as_json {
        json(object)?;
    } else {
        note(text);
    }
    Ok(ExitCode::Ok)
}

/// Writes an object as a line of JSON to stderr.
fn json_note(object: &serde_json::Value) {
    eprintln!("{}", ascii_controls(&object.to_string()));
}

/// The bytes of a log that are written to stdout: unchanged, or without control characters if stdout is a terminal.
pub fn log_bytes(bytes: &[u8]) -> Cow<'_, [u8]> {
    shown_bytes(bytes, io::stdout().is_terminal())
}

fn shown_bytes(bytes: &[u8], terminal: bool) -> Cow<'_, [u8]> {
    match terminal {
        true => Cow::Owned(format::plain(&String::from_utf8_lossy(bytes)).into_bytes()),
        false => Cow::Borrowed(bytes),
    }
}

/// Writes a part of a log and a line end to stdout (see [`log_bytes`]).
///
/// # Errors
/// As [`line()`].
pub fn log_text(text: &str) -> Result<(), CommandFailure> {
    match io::stdout().is_terminal() {
        true => line(text),
        false => raw(text),
    }
}

fn raw(text: &str) -> Result<(), CommandFailure> {
    if RESERVED.load(Ordering::Relaxed) {
        eprintln!("{text}");
        return Ok(());
    }
    to_stdout(text)
}

fn to_stdout(text: &str) -> Result<(), CommandFailure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|error| broken(&error))
}

/// The same JSON, with the characters that [`format::plain`] replaces written as `\u…`. Such characters occur only
/// within strings (RFC 8259 §7: those below U+0020 are escaped there already).
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

/// The failure of a write to the output: a closed pipe, or a full disk.
pub fn broken(error: &io::Error) -> CommandFailure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => {
            CommandFailure::new(ExitCode::PipeClosed, "cannot write the output: its reader is gone")
        }
        _ => CommandFailure::caused(ExitCode::Denied, "cannot write the output", error),
    }
}

/// Prints a failure on stderr, as one JSON object if JSON was requested.
pub fn failure(failure: &CommandFailure, json: bool) {
    if failure.exit == ExitCode::PipeClosed {
        // The reader of the output is gone.
        return;
    }
    if json {
        json_note(&serde_json::json!({
            "error": failure.fact,
            "causes": failure.causes,
            "next": failure.next,
            "exit_code": failure.exit,
        }));
        return;
    }
    for line in failure.fact.lines() {
        note(&format!("error: {line}"));
    }
    for cause in &failure.causes {
        note(&format!("  cause: {cause}"));
    }
    if !failure.next.is_empty() {
        note(&format!("  next: {}", failure.next));
    }
}

/// Rows as columns two spaces apart. A line end within a cell becomes a space, so that it does not look like a row.
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

/// A line on stderr that the next one overwrites; nothing if stderr is not a terminal.
#[derive(Debug)]
pub struct ProgressLine {
    is_terminal: bool,
    /// The line, while it is shown.
    shown: Option<ProgressBar>,
}

/// Steps of a full bar.
const BAR_STEPS: f64 = 1000.0;

impl ProgressLine {
    /// A line that appears only on a terminal.
    #[must_use]
    pub fn new() -> Self {
        Self { is_terminal: !new_bar().is_hidden(), shown: None }
    }

    /// Whether the line appears.
    #[must_use]
    pub fn is_drawn(&self) -> bool {
        self.is_terminal
    }

    /// Replaces the shown text.
    pub fn show(&mut self, text: &str) {
        self.show_bar(text, None);
    }

    /// Replaces the shown text, with a bar before it if the share is known. A text that is wider than the terminal is cut.
    pub fn show_bar(&mut self, text: &str, done: Option<f64>) {
        if !self.is_terminal {
            return;
        }
        let template = if done.is_some() { "[{bar:20}] {wide_msg}" } else { "{wide_msg}" };
        let Ok(style) = ProgressStyle::with_template(template) else {
            return;
        };
        let style = style.progress_chars("=> ");
        let text = format::plain(text).replace(['\n', '\t'], " ");
        let at = (done.unwrap_or(0.0) * BAR_STEPS) as u64;
        match &self.shown {
            Some(bar) => {
                bar.set_style(style);
                bar.set_position(at);
                bar.set_message(text);
            }
            None => {
                let bar = new_bar().with_style(style).with_position(at).with_message(text);
                bar.tick();
                self.shown = Some(bar);
            }
        }
    }

    /// Removes the line, before a line that stays.
    pub fn clear(&mut self) {
        if let Some(bar) = self.shown.take() {
            bar.finish_and_clear();
        }
    }
}

fn new_bar() -> ProgressBar {
    ProgressBar::with_draw_target(Some(BAR_STEPS as u64), ProgressDrawTarget::stderr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["a".to_owned(), "bb".to_owned()], vec!["ccc".to_owned(), "d".to_owned()]];
        assert_eq!(columns(&rows), "a    bb\nccc  d");
    }
    #[test]
    fn control_characters_in_a_cell_are_replaced() {
        let rows = [
            vec!["evil\u{1b}[2K\nroot  finished".to_owned(), "x".to_owned()],
            vec!["b".to_owned(), "\u{9b}31m\u{202e}".to_owned()],
        ];
        let text = columns(&rows);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(!text.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{text:?}");
    }

    #[test]
    fn log_keeps_its_bytes_in_a_pipe_but_not_on_a_terminal() {
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
