//! A linear model in terms of raw feature values.

use heddle_protocol::spec::table::{BIAS, STATS};

use super::error::ExportError;
use super::model::Model;
use super::source::whole;
use crate::algorithm::Standard;

/// A linear model in terms of raw values, computed as a stream.
pub(super) struct Linear {
    pub(super) standard: Option<Standard>,
    /// In f64; each weight subtracts its share of the mean.
    pub(super) bias: f64,
}

impl Linear {
    pub(super) async fn of(model: &Model<'_>) -> Result<Self, ExportError> {
        let standard = match model.table(STATS) {
            None => None,
            Some(table) => {
                let stats = whole(model, &table).await?;
                Some(Standard::of(&stats).map_err(ExportError::Standard)?)
            }
        };
        let bias = match model.table(BIAS) {
            None => 0.0,
            Some(table) => whole(model, &table).await?.first().map_or(0.0, |bias| f64::from(*bias)),
        };
        Ok(Self { standard, bias })
    }

    /// The slope of raw values of `feature`; moves the bias.
    pub(super) fn slope(&mut self, feature: u64, weight: f32) -> f32 {
        let Some(standard) = &self.standard else {
            return weight;
        };
        // Files have exactly the table's rows, one per mean.
        let feature = feature as usize;
        let slope = f64::from(weight) * standard.inverse[feature];
        self.bias -= slope * standard.mean[feature];
        slope as f32
    }
}
