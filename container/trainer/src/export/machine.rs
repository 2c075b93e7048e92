//! A standardised factorization machine in terms of raw feature values.
//!
//! With slopes a = v/s and S₀ = −Σ a·m, the products ½ Σ_f [(Σ v·(x − m)/s)² − Σ v²·((x − m)/s)²] are those of a machine with
//! the factors a, the weights w/s + Σ_f a·(S₀ + a·m), and the bias b − Σ m·w/s + ½ Σ_f (S₀² − Σ a²·m²). If labels are scaled,
//! scores are multiplied by their deviation, and so are weights and bias; factors, two of which make a product, by its root.

use heddle_protocol::job_spec::LabelScale;
use heddle_protocol::job_spec::table::{BIAS, FACTORS, STATS, WEIGHTS};

use super::error::ExportError;
use super::model::Model;
use super::source::whole;
use crate::algorithm::Standard;

/// Values of raw features, by table.
pub(super) struct RawMachine {
    weights: Vec<f32>,
    factors: Vec<f32>,
    bias: f32,
}

impl RawMachine {
    /// Of a standardised machine; `None` for other models.
    pub(super) async fn of(
        model: &Model<'_>,
        labels: LabelScale,
    ) -> Result<Option<Self>, ExportError> {
        let (Some(factors), Some(stats)) = (model.table(FACTORS), model.table(STATS)) else {
            return Ok(None);
        };
        let standard = Standard::of(&whole(model, &stats).await?).map_err(ExportError::Standard)?;
        let rank = factors.cols as usize;
        let mut raw = Self {
            weights: whole(model, &model.weights()?).await?,
            factors: whole(model, &factors).await?,
            bias: 0.0,
        };
        let bias = match model.table(BIAS) {
            Some(table) => whole(model, &table).await?.first().copied().unwrap_or_default(),
            None => 0.0,
        };
        raw.shift(&standard, labels, rank, f64::from(bias));
        Ok(Some(raw))
    }

    fn shift(&mut self, standard: &Standard, labels: LabelScale, rank: usize, bias: f64) {
        let (deviation, root) = (labels.deviation, labels.deviation.sqrt());
        let mut bias = bias * deviation + labels.mean;
        let (mut products, mut squares) = (vec![0.0; rank], 0.0);
        let columns = || standard.mean.iter().zip(&standard.inverse);
        for (own, (mean, inverse)) in self.factors.chunks_exact(rank).zip(columns()) {
            for (factor, product) in own.iter().zip(&mut products) {
                let shift = f64::from(*factor) * root * inverse * mean;
                *product -= shift;
                squares += shift * shift;
            }
        }
        let rows = self.weights.iter_mut().zip(self.factors.chunks_exact_mut(rank)).zip(columns());
        for ((weight, own), (mean, inverse)) in rows {
            let mut slope = f64::from(*weight) * deviation * inverse;
            bias -= slope * mean;
            for (factor, product) in own.iter_mut().zip(&products) {
                let raw = f64::from(*factor) * root * inverse;
                slope += raw * (product + raw * mean);
                *factor = raw as f32;
            }
            *weight = slope as f32;
        }
        let products: f64 = products.iter().map(|product| product * product).sum();
        self.bias = (bias + 0.5 * (products - squares)) as f32;
    }

    /// The values of a table of the model file.
    pub(super) fn table(&self, name: &str) -> &[f32] {
        match name {
            WEIGHTS => &self.weights,
            FACTORS => &self.factors,
            _ => std::slice::from_ref(&self.bias),
        }
    }
}
