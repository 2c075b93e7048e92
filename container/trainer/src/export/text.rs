//! A linear model as text: `index weight` lines without zeros, and `bias` as the last line, whose absence marks a
//! truncated file.

use std::fmt::Write;

use bytes::Bytes;
use heddle_storage::{Storage, StorePath, Summed, SummedWriter};

use super::error::ExportError;
use super::linear::Linear;
use super::model::{Model, data_format_name};
use super::source::{TableStream, sparse};

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
    let any = origin.spec.model.any_features();
    let rows = match any {
        true => Some(sparse(model, &model.weights()?).await?),
        false => None,
    };
    let base = if any { 0 } else { u64::from(origin.spec.data.index_base) };
    let features = rows.as_ref().map(|rows| rows.keys.len() as u64);
    // An estimate; a store only allocates more blocks if it is too low.
    let bytes = features.unwrap_or(origin.spec.model.features).saturating_mul(LINE_BYTES);
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
        if any { "any".to_owned() } else { origin.spec.model.features.to_string() },
    );
    writer.write(Bytes::from(head)).await?;
    let mut linear = Linear::of(model).await?;
    if let Some(rows) = rows {
        let lines = rows.keys.iter().zip(&rows.values).filter(|(_, weight)| **weight != 0.0);
        let lines: String = lines.map(|(key, weight)| format!("{key} {weight}\n")).collect();
        writer.write(Bytes::from(lines)).await?;
    } else {
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
    }
    // A model with a text form has one score.
    let bias = linear.biases()[0];
    writer.write(Bytes::from(format!("bias {bias}\n"))).await?;
    Ok(writer.finish(storage).await?)
}
