//! The lines of a batch's rows, for messages: consecutive, but for lines without a record.

/// Finds the line of a row.
#[derive(Debug, Default)]
pub struct RowLines {
    /// Lines before the batch.
    before: u64,
    /// Number of lines without a record before a row.
    without: Vec<(usize, u64)>,
}

impl RowLines {
    /// Begins a batch, after this number of lines.
    pub fn begin(&mut self, before: u64) {
        self.before = before;
        self.without.clear();
    }

    /// Notes a line without a record. `row`: the rows of the batch so far.
    pub fn skip(&mut self, row: usize) {
        match self.without.last_mut() {
            Some((last, lines)) if *last == row => *lines += 1,
            _ => self.without.push((row, 1)),
        }
    }

    /// The line of a row, from 1.
    #[must_use]
    pub fn of(&self, row: usize) -> u64 {
        let before = self.without.iter().take_while(|(next, _)| *next <= row);
        self.before + 1 + row as u64 + before.map(|(_, lines)| lines).sum::<u64>()
    }
}
