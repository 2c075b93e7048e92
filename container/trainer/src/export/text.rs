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
    if !model.is_linear() {
        return Err(ExportError::Text);
    }
    let origin = model.origin;
    let base = u64::from(origin.spec.data.index_base);
    // An estimate; a store only allocates more blocks if it is too low.
    let bytes = origin.spec.model.features.saturating_mul(LINE_BYTES);
    let path = dir.join(TEXT_FILE)?;
    let mut writer = SummedWriter::create_sized(storage, &path, model.mode, bytes).await?;
    let head = format!(
        "{FIRST_WORDS}: score = bias + sum of weight * value; probability of label 1 = 1 / (1 + exp(-score))\n\
         # job {}\n\
         model logistic-regression\nformat {}\nindex-base {base}\nfeatures {}\n",
        origin.job,
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
    writer.write(Bytes::from(format!("bias {}\n", linear.bias as f32))).await?;
    Ok(writer.finish(storage).await?)
}
