//! A linear model as text: `index weight` lines without zeros, and `bias` as the last line, whose absence marks a
//! truncated file.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::Arc;

use bytes::Bytes;
use heddle_storage::{Storage, StorePath, Summed, SummedWriter};
use tokio::task::JoinHandle;

use super::error::ExportError;
use super::model::Model;
use super::source::SparseTable;

/// Name of the model in the format `text`.
pub const TEXT_FILE: &str = "model.txt";

/// The first line of the file.
pub(crate) const FIRST_WORDS: &str = "# heddle linear model, version 1";

/// Approximate length of a line: index, weight, newline.
const LINE_BYTES: u64 = 20;
/// Pieces whose lines are formatted at once, each on a thread: digits take longer than all else of an export.
const FORMATTED_AT_ONCE: usize = 4;
/// Rows of a sparse table that are formatted at once.
const SPARSE_ROWS: usize = 1 << 17;

/// The file of a linear model.
pub(super) struct TextFile {
    writer: SummedWriter,
    /// Index of the next weight.
    next: u64,
    /// Lines that are being formatted, in the order of the file.
    lines: VecDeque<JoinHandle<String>>,
}

impl TextFile {
    /// Creates the file. `keys`: how many rows the weights have, if they are a sparse table.
    pub(super) async fn create(
        model: &Model<'_>,
        columns: Option<&str>,
        keys: Option<usize>,
        storage: &dyn Storage,
        dir: &StorePath,
    ) -> Result<Self, ExportError> {
        let origin = model.origin;
        let any = origin.spec.model.any_features();
        let base = if any { 0 } else { u64::from(origin.spec.data.index_base) };
        let weights = keys.map_or(origin.spec.model.features, |keys| keys as u64);
        // An estimate; a store only allocates more blocks if it is too low.
        let bytes = weights.saturating_mul(LINE_BYTES);
        let path = dir.join(TEXT_FILE)?;
        let mut writer = SummedWriter::create_sized(storage, &path, model.mode, bytes).await?;
        let columns = columns.map_or_else(String::new, |columns| format!("columns {columns}\n"));
        let loss = model.loss().map_or_else(String::new, |loss| format!("loss {loss}\n"));
        let head = format!(
            "{FIRST_WORDS}: score = bias + sum of weight * value{}\n\
             # job {}\n\
             model {}\n{loss}format {}\n{columns}index-base {base}\nfeatures {}\n",
            model.meaning(),
            origin.job,
            model.algorithm(),
            origin.spec.data.format.name(),
            if any { "any".to_owned() } else { origin.spec.model.features.to_string() },
        );
        writer.write(Bytes::from(head)).await?;
        Ok(Self { writer, next: base, lines: VecDeque::new() })
    }

    /// Appends the next weights, little-endian f32.
    pub(super) async fn weights(&mut self, weights: Bytes) -> Result<(), ExportError> {
        let first = self.next;
        self.next += weights.len() as u64 / 4;
        self.format(move || {
            let weights = weights.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            lines((first..).zip(weights))
        })
        .await
    }

    /// Appends the weights of a sparse table.
    pub(super) async fn sparse(&mut self, rows: &Arc<SparseTable>) -> Result<(), ExportError> {
        for start in (0..rows.keys.len()).step_by(SPARSE_ROWS) {
            let (rows, end) = (Arc::clone(rows), rows.keys.len().min(start + SPARSE_ROWS));
            self.format(move || {
                let keys = rows.keys[start..end].iter().copied();
                lines(keys.zip(rows.values[start..end].iter().copied()))
            })
            .await?;
        }
        Ok(())
    }

    async fn format(
        &mut self,
        lines: impl FnOnce() -> String + Send + 'static,
    ) -> Result<(), ExportError> {
        if self.lines.len() == FORMATTED_AT_ONCE {
            self.write_first().await?;
        }
        self.lines.push_back(tokio::task::spawn_blocking(lines));
        Ok(())
    }

    /// Writes the first lines that are being formatted. Returns whether there were any.
    async fn write_first(&mut self) -> Result<bool, ExportError> {
        let Some(lines) = self.lines.pop_front() else { return Ok(false) };
        let lines = lines.await.map_err(|error| ExportError::Runtime(error.into()))?;
        self.writer.write(Bytes::from(lines)).await?;
        Ok(true)
    }

    pub(super) async fn finish(
        mut self,
        bias: f32,
        storage: &dyn Storage,
    ) -> Result<Summed, ExportError> {
        while self.write_first().await? {}
        self.writer.write(Bytes::from(format!("bias {bias}\n"))).await?;
        Ok(self.writer.finish(storage).await?)
    }
}

/// A line for each weight that is not 0. Floats print with the digits that read back the same.
fn lines(weights: impl Iterator<Item = (u64, f32)>) -> String {
    let mut lines = String::new();
    for (index, weight) in weights.filter(|(_, weight)| *weight != 0.0) {
        // Writing to a string cannot fail.
        let _ = writeln!(lines, "{index} {weight}");
    }
    lines
}
