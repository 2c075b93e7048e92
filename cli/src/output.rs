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

/// `1234567` as `1,234,567`.
#[must_use]
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1536` as `1.5 KiB`.
#[must_use]
pub fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{value:.1} {}", units[unit]),
    }
}

/// Milliseconds since 1970 as `2026-01-31 13:05:00Z`.
#[must_use]
pub fn time(ms: u64) -> String {
    let at = i64::try_from(ms)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map_or_else(String::new, |at| {
        at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
    })
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
    fn numbers_read_well() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(time(0), "1970-01-01 00:00:00Z");
        assert_eq!(time(951_782_399_000), "2000-02-28 23:59:59Z");
        assert_eq!(time(951_782_400_000), "2000-02-29 00:00:00Z");
        assert_eq!(time(u64::MAX), "");
        assert_eq!(size(17), "17 B");
        assert_eq!(size(1536), "1.5 KiB");
    }

    #[test]
    fn columns_line_up() {
        let rows = [
            vec!["a".to_owned(), "bb".to_owned()],
            vec!["ccc".to_owned(), "d".to_owned()],
        ];
        assert_eq!(columns(&rows), "a    bb\nccc  d");
    }
}
