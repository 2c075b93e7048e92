//! The files of a model, written side by side from one reading of the checkpoint.

use std::sync::Arc;

use heddle_protocol::job_spec::table::{BIAS, CENTRES, FACTORS, WEIGHTS};
use heddle_protocol::job_spec::{LabelScale, ModelFormat, TableKind, TableSpec};
use heddle_storage::shard_file::VALUES;
use heddle_storage::{Storage, StorePath, Summed};

use super::clusters::RawClusters;
use super::columns::columns;
use super::error::ExportError;
use super::labels::labels;
use super::linear::Linear;
use super::machine::RawMachine;
use super::model::Model;
use super::safetensors::{SafetensorsFile, bytes_of, write_clusters};
use super::source::{SparseTable, TableStream, sparse};
use super::text::TextFile;

/// Writes the model in `formats` into `dir`. Returns a file for each, in their order.
pub(super) async fn write(
    model: &Model<'_>,
    formats: &[ModelFormat],
    storage: &dyn Storage,
    dir: &StorePath,
) -> Result<Vec<Summed>, ExportError> {
    let has = |format| formats.contains(&format);
    if has(ModelFormat::Text) && !model.origin.spec.model.algorithm.is_linear() {
        return Err(ExportError::Text);
    }
    let columns = columns(model).await?;
    let columns = columns.as_deref();
    if let Some(clusters) = RawClusters::of(model).await? {
        finite(CENTRES, &clusters.centres, |place| place as u64 / clusters.features)?;
        return Ok(vec![write_clusters(&clusters, model, columns, storage, dir).await?]);
    }
    let tables = model.exported();
    let labels = labels(model).await?;
    let mut sparse_tables = Vec::new();
    for table in tables.iter().filter(|table| table.kind == TableKind::Sparse) {
        let mut rows = sparse(model, table).await?;
        scale(&mut rows.values, factor(table, labels));
        finite(&table.name, &rows.values, |place| rows.keys[place / table.cols as usize])?;
        sparse_tables.push(Arc::new(rows));
    }
    let mut files = ModelFiles { safetensors: None, text: None };
    if has(ModelFormat::Safetensors) {
        let rows = &sparse_tables;
        let file = SafetensorsFile::create(model, columns, &tables, rows, storage, dir).await?;
        files.safetensors = Some(file);
    }
    if has(ModelFormat::Text) {
        let keys = sparse_tables.first().map(|rows| rows.keys.len());
        files.text = Some(TextFile::create(model, columns, keys, storage, dir).await?);
    }
    let biases = files.tables(model, labels, &tables, sparse_tables).await?;
    let mut text = None;
    if let Some(file) = files.text {
        // A model with a text form has one score.
        text = Some(file.finish(biases[0], storage).await?);
    }
    let mut safetensors = None;
    if let Some(file) = files.safetensors {
        safetensors = Some(file.finish(storage).await?);
    }
    let written = formats.iter().map(|format| match format {
        ModelFormat::Safetensors => safetensors.clone(),
        ModelFormat::Text => text.clone(),
    });
    Ok(written.flatten().collect())
}

/// What the values of a table are multiplied by, so that scores are in units of the labels.
fn factor(table: &TableSpec, labels: LabelScale) -> f64 {
    match &*table.name {
        WEIGHTS => labels.deviation,
        // A score has products of two.
        FACTORS => labels.deviation.sqrt(),
        _ => 1.0,
    }
}

fn scale(values: &mut [f32], factor: f64) {
    if factor != 1.0 {
        values.iter_mut().for_each(|value| *value = (f64::from(*value) * factor) as f32);
    }
}

/// Refuses values that are not finite. `key`: the key of a value, by its place.
fn finite(table: &str, values: &[f32], key: impl FnOnce(usize) -> u64) -> Result<(), ExportError> {
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(place) => Err(ExportError::NotFinite {
            table: table.to_owned(),
            row: key(place),
            value: values[place],
        }),
    }
}

struct ModelFiles {
    safetensors: Option<SafetensorsFile>,
    text: Option<TextFile>,
}

impl ModelFiles {
    /// Appends all tables. Returns the biases.
    async fn tables(
        &mut self,
        model: &Model<'_>,
        labels: LabelScale,
        tables: &[TableSpec],
        sparse_tables: Vec<Arc<SparseTable>>,
    ) -> Result<Vec<f32>, ExportError> {
        // A custom algorithm's tables are written as they are, whatever their names.
        let (mut machine, mut linear) = (None, None);
        if model.is_built_in() {
            machine = RawMachine::of(model, labels).await?;
            linear = Some(Linear::of(model, labels).await?);
        }
        let mut sparse_tables = sparse_tables.into_iter();
        for table in tables {
            match (&machine, &mut linear) {
                _ if table.kind == TableKind::Sparse => {
                    let rows = sparse_tables.next();
                    self.sparse(&rows.expect("one was read for each sparse table")).await?;
                }
                (Some(machine), _) => self.whole(table, machine.table(&table.name)).await?,
                (None, Some(linear)) if table.name == BIAS => {
                    self.whole(table, &linear.biases()).await?;
                }
                (None, linear) => {
                    let linear = linear.as_mut().filter(|_| table.name == WEIGHTS);
                    let factor = if linear.is_some() { 1.0 } else { factor(table, labels) };
                    self.dense(model, table, factor, linear).await?;
                }
            }
        }
        Ok(linear.map(|linear| linear.biases()).unwrap_or_default())
    }

    /// Appends a dense table, times this factor. `linear`: its weights become slopes of raw values.
    async fn dense(
        &mut self,
        model: &Model<'_>,
        table: &TableSpec,
        factor: f64,
        mut linear: Option<&mut Linear>,
    ) -> Result<(), ExportError> {
        let mut stream = TableStream::new(model, table, &[VALUES]);
        let mut first = 0;
        while let Some(mut piece) = stream.next().await? {
            if let Some(linear) = &mut linear {
                for (place, weight) in (first..).zip(&mut piece) {
                    *weight = linear.slope(place, *weight);
                }
            }
            scale(&mut piece, factor);
            let cols = u64::from(table.cols);
            finite(&table.name, &piece, |place| (first + place as u64) / cols)?;
            first += piece.len() as u64;
            let piece = bytes_of(&piece);
            if let Some(text) = self.text.as_mut().filter(|_| linear.is_some()) {
                text.weights(piece.clone()).await?;
            }
            self.values(piece).await?;
        }
        Ok(())
    }

    /// Appends a table of the safetensors file alone.
    async fn whole(&mut self, table: &TableSpec, values: &[f32]) -> Result<(), ExportError> {
        finite(&table.name, values, |place| place as u64 / u64::from(table.cols))?;
        self.values(bytes_of(values)).await
    }

    async fn sparse(&mut self, rows: &Arc<SparseTable>) -> Result<(), ExportError> {
        if let Some(text) = &mut self.text {
            text.sparse(rows).await?;
        }
        match &mut self.safetensors {
            Some(file) => file.sparse(rows).await,
            None => Ok(()),
        }
    }

    /// Appends values that the text form does not have, or has already.
    async fn values(&mut self, values: bytes::Bytes) -> Result<(), ExportError> {
        match &mut self.safetensors {
            Some(file) => file.values(values).await,
            None => Ok(()),
        }
    }
}
