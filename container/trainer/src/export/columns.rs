//! The columns of a model whose data is a table.

use heddle_input::ModelColumns;
use heddle_protocol::job_spec::table::COLUMN_STATS;

use super::error::ExportError;
use super::model::Model;
use super::source::whole;
use crate::algorithm::scales;

/// The columns as JSON, if the data has columns.
pub(super) async fn columns(model: &Model<'_>) -> Result<Option<String>, ExportError> {
    let spec = &model.origin.spec;
    let Some(schema) = &spec.schema else { return Ok(None) };
    let scales = match model.table(COLUMN_STATS).filter(|_| model.is_built_in()) {
        Some(table) => {
            let name = |place: usize| schema.columns[place].name.clone();
            let names: Vec<String> = schema.measured().map(name).collect();
            scales(&whole(model, &table).await?, &names).map_err(ExportError::Standard)?
        }
        None => Vec::new(),
    };
    let columns = ModelColumns::new(spec, scales);
    // Maps with text for keys, which have a JSON form.
    Ok(columns.and_then(|columns| serde_json::to_string(&columns).ok()))
}
