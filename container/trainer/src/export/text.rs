//! A linear model as text: `index weight` lines without zeros, and `bias` as the last line, whose absence marks a
//! truncated file.

use std::fmt::Write;

use bytes::Bytes;
use heddle_storage::{Storage, StorePath, Summed, SummedWriter};

use super::error::ExportError;
use super::linear::Linear;
use super::model::{Model, data_format_name};
use super::source::TableStream;

/// Name of the model in the format `text`.
pub const TEXT_FILE: &str = "model.txt";

/// The first line of the file.
pub(crate) const FIRST_WORDS: &str = "# heddle linear model, version 1";

/// Approximate length of a line: index, weight, newline.
const LINE_BYTES: u64 = 20;

pub(super) async fn write(
    model: &Model<'_>,
    storage: &dyn Storage,
    dir: &StorePath,
) -> Result<Summed, ExportError> {
    let origin = model.origin;
    if !origin.spec.model.algorithm.is_linear() {
        return Err(ExportError::Text);
    }
    let base = u64::from(origin.spec.data.index_base);
    // An estimate; a store only allocates more blocks if it is too low.
    let bytes = origin.spec.model.features.saturating_mul(LINE_BYTES);
    let path = dir.join(TEXT_FILE)?;
    let mut writer = SummedWriter::create_sized(storage, &path, model.mode, bytes).await?;
    let loss = model.loss().map_or_else(String::new, |loss| format!("loss {loss}\n"));
    let head = format!(
        "{FIRST_WORDS}: score = bias + sum of weight * value{}\n\
         # job {}\n\
         model {}\n{loss}format {}\nindex-base {base}\nfeatures {}\n",
        model.meaning(),
        origin.job,
        model.algorithm(),
        data_format_name(origin.spec.data.format),
        origin.spec.model.features,
    );
    writer.write(Bytes::from(head)).await?;
    let mut linear = Linear::of(model).await?;
    let mut stream = TableStream::new(model, &model.weights()?);
    let mut feature = 0;
    while let Some(piece) = stream.next().await? {
        let mut lines = String::new();
        for weight in piece {
            let slope = linear.slope(feature, weight);
            if slope != 0.0 {
                // Writing to a string cannot fail. Floats print with the digits that read back the same.
                let _ = writeln!(lines, "{} {slope}", feature + base);
            }
            feature += 1;
        }
        writer.write(Bytes::from(lines)).await?;
    }
    // A model with a text form has one score.
    let bias = linear.biases()[0];
    writer.write(Bytes::from(format!("bias {bias}\n"))).await?;
    Ok(writer.finish(storage).await?)
}
