//! The clusters of k-means in terms of raw feature values.
//!
//! A standardised centre c is the raw point c·s + m, with the means m and the deviations s of the columns. Distances were
//! measured in standardised columns, so that the model has the scales 1/s too.

use heddle_optimizer::{Optimizer, Rule};
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::job_spec::passes_begun;
use heddle_protocol::job_spec::table::{CENTRES, PREVIOUS_CENTRES, STATS};

use super::error::ExportError;
use super::model::Model;
use super::source::{plane, whole};
use crate::algorithm::{PassCentres, Standard, previous_rows};

/// Name of the tensor of scales.
pub(crate) const SCALES: &str = "scales";

/// Centres of raw features.
pub(super) struct RawClusters {
    pub(super) features: u64,
    pub(super) clusters: u64,
    /// `[clusters × features]`
    pub(super) centres: Vec<f32>,
    /// `[features]`, of a standardised job.
    pub(super) scales: Option<Vec<f32>>,
}

impl RawClusters {
    /// The clusters of a checkpoint; `None` for models of other algorithms.
    pub(super) async fn of(model: &Model<'_>) -> Result<Option<Self>, ExportError> {
        let tables = (model.table(CENTRES), model.table(PREVIOUS_CENTRES), model.table(STATS));
        let (Some(centres), Some(previous), Some(stats)) = tables else { return Ok(None) };
        let (spec, manifest) = (&model.origin.spec, &model.checkpoint.manifest);
        let ended = passes_begun(spec, manifest.phase, true);
        let pass = ended.checked_sub(1).ok_or(ExportError::NoPass)?;
        let cols = centres.cols as usize;
        let mut rows = whole(model, &centres).await?;
        if manifest.is_at_start_of_phase() {
            let mut sum = plane(model, &centres, "sum").await?;
            let mut low = plane(model, &centres, "low").await?;
            // Sums show that the checkpoint was taken before the shards made centres of them.
            if sum.chunks_exact(cols).any(|row| row[cols - 1] != 0.0) {
                let rule = Rule::new(&Optimizer::mean(), 0.0).of_rows(cols);
                rule.end_pass(&mut rows, [&mut sum, &mut low], cols);
            }
        }
        let previous = whole(model, &previous).await?;
        let range = previous_rows(pass, centres.rows);
        let previous = &previous[range.start as usize * cols..range.end as usize * cols];
        let after = PassCentres::after(pass, cols - 1, &rows, previous);
        let after = after.map_err(|failure| {
            ExportError::Standard(Failure::new(ErrorClass::Internal, failure.text))
        })?;
        let mut raw = Self {
            features: spec.model.features,
            clusters: centres.rows,
            centres: Vec::with_capacity(rows.len()),
            scales: None,
        };
        if !spec.model.standardise {
            raw.centres.extend(after.centres.iter().flatten().map(|x| *x as f32));
            return Ok(Some(raw));
        }
        let standard = Standard::of(&whole(model, &stats).await?).map_err(ExportError::Standard)?;
        for centre in after.centres.iter() {
            let columns = standard.mean.iter().zip(&standard.inverse);
            let place = centre.iter().zip(columns).map(|(x, (mean, inverse))| x / inverse + mean);
            raw.centres.extend(place.map(|x| x as f32));
        }
        raw.scales = Some(standard.inverse.iter().map(|inverse| *inverse as f32).collect());
        Ok(Some(raw))
    }
}
