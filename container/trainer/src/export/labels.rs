//! The scale of the labels that a model was trained on.

use heddle_protocol::job_spec::table::LABEL;
use heddle_protocol::job_spec::{LabelScale, LabelScaling};

use super::error::ExportError;
use super::model::Model;
use super::source::whole;
use crate::algorithm::label_scale;

/// The scale of a model's labels: none of a custom algorithm, and where they are not scaled.
pub(super) async fn labels(model: &Model<'_>) -> Result<LabelScale, ExportError> {
    match (model.origin.spec.model.scale_labels, model.table(LABEL)) {
        (LabelScaling::By(scale), _) => Ok(scale),
        (LabelScaling::Measured, Some(table)) => {
            label_scale(&whole(model, &table).await?).map_err(ExportError::Standard)
        }
        (LabelScaling::Measured | LabelScaling::Off, _) => Ok(LabelScale::NONE),
    }
}
