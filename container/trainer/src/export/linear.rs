//! A linear model in terms of raw feature values.

use heddle_protocol::job_spec::LabelScale;
use heddle_protocol::job_spec::table::{BIAS, STATS};

use super::error::ExportError;
use super::model::Model;
use super::source::whole;
use crate::algorithm::Standard;

/// A linear model in terms of raw values, computed as a stream.
pub(super) struct Linear {
    pub(super) standard: Option<Standard>,
    /// Of the labels.
    deviation: f64,
    /// One for each score, in f64; each weight subtracts its share of the mean.
    pub(super) bias: Vec<f64>,
}

impl Linear {
    pub(super) async fn of(model: &Model<'_>, labels: LabelScale) -> Result<Self, ExportError> {
        let standard = match model.table(STATS) {
            None => None,
            Some(table) => {
                let stats = whole(model, &table).await?;
                Some(Standard::of(&stats).map_err(ExportError::Standard)?)
            }
        };
        let bias = match model.table(BIAS) {
            None => vec![0.0],
            Some(table) => {
                let scaled = whole(model, &table).await?.into_iter();
                scaled.map(|bias| f64::from(bias) * labels.deviation + labels.mean).collect()
            }
        };
        Ok(Self { standard, deviation: labels.deviation, bias })
    }

    /// The slope of raw values for the weight at `place` of the table, row-major; moves the bias.
    pub(super) fn slope(&mut self, place: u64, weight: f32) -> f32 {
        let weight = f64::from(weight) * self.deviation;
        let Some(standard) = &self.standard else {
            return weight as f32;
        };
        // Files have exactly the table's rows, one per mean, and a column per bias.
        let (place, cols) = (place as usize, self.bias.len());
        let (feature, col) = (place / cols, place % cols);
        let slope = weight * standard.inverse[feature];
        self.bias[col] -= slope * standard.mean[feature];
        slope as f32
    }

    /// The biases as they are written, after all slopes.
    pub(super) fn biases(&self) -> Vec<f32> {
        self.bias.iter().map(|bias| *bias as f32).collect()
    }
}
