//! Data on stdout: as text for people, or one JSON object a line.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::exit::Exit;
use crate::failure::Failure;

/// Writes a line of data to stdout.
///
/// # Errors
/// Stdout is closed (exit 141, quietly) or cannot be written.
pub fn line(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(|error| broken(&error))
}

/// Writes an object as a line of JSON to stdout.
///
/// # Errors
/// As [`line()`].
pub fn json(object: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(object)
        .map_err(|error| Failure::caused(Exit::Internal, "the output has no JSON form", &error))?;
    line(&text)
}

/// Output that cannot be written: a reader that left, or a full disk.
pub fn broken(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => {
            Failure::new(Exit::PipeClosed, "the reader of the output is gone")
        }
        _ => Failure::caused(Exit::Denied, "the output cannot be written", error),
    }
}

/// Rows as columns two spaces apart.
#[must_use]
pub fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell = |row: &Vec<String>, n: usize| row.get(n).cloned().unwrap_or_default();
    let mut out = String::new();
    let widths: Vec<usize> = (0..count)
        .map(|n| {
            rows.iter()
                .map(|row| cell(row, n).chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    for row in rows {
        let cells: Vec<String> = (0..count)
            .map(|n| format!("{:<width$}", cell(row, n), width = widths[n]))
            .collect();
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
    shown: bool,
}

impl ProgressLine {
    /// One that shows itself only on a terminal.
    #[must_use]
    pub fn new() -> Self {
        Self {
            terminal: io::stderr().is_terminal(),
            shown: false,
        }
    }

    /// Shows a text in place of the last one.
    pub fn show(&mut self, text: &str) {
        if self.terminal {
            let columns = std::env::var("COLUMNS").ok().and_then(|n| n.parse().ok());
            let fits: String = text
                .chars()
                .take(columns.unwrap_or(80usize).max(2) - 1)
                .collect();
            eprint!("\r\x1b[K{fits}");
            self.shown = true;
        }
    }

    /// Takes the line away, for a line that stays.
    pub fn clear(&mut self) {
        if self.shown {
            eprint!("\r\x1b[K");
            self.shown = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [
            vec!["a".to_owned(), "bb".to_owned()],
            vec!["ccc".to_owned(), "d".to_owned()],
        ];
        assert_eq!(columns(&rows), "a    bb\nccc  d");
    }
}
