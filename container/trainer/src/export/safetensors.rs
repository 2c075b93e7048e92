//! The format safetensors (<https://github.com/huggingface/safetensors>, "Format"): a little-endian u64 length, a
//! JSON header of names, types, shapes and offsets, then the raw values.
//!
//! A linear model is two tensors, `weights` `[features]` and `bias` `[1]`, softmax regression `weights`
//! `[features, classes]` and `bias` `[classes]`, a factorization machine also `factors` `[features, rank]`, k-means
//! `centres` `[clusters, features]` and, if it is standardised, `scales` `[features]`; a custom algorithm's tables are `[rows, cols]` each. Metadata has the
//! algorithm and the record format.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use heddle_protocol::job_spec::table::CENTRES;
use heddle_protocol::job_spec::{TableKind, TableSpec};
use heddle_storage::{Storage, StorePath, Summed, SummedWriter};
use serde::{Deserialize, Serialize};

use super::clusters::{RawClusters, SCALES};
use super::error::ExportError;
use super::model::Model;
use super::source::SparseTable;

/// Name of the model in the format `safetensors`.
pub const SAFETENSORS_FILE: &str = "model.safetensors";

/// Longest header that is read, as in the reference implementation.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// The header of a file: its tensors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorHeader {
    /// Metadata of the whole file.
    #[serde(rename = "__metadata__", default)]
    pub metadata: BTreeMap<String, String>,
    /// Tensors by name.
    #[serde(flatten)]
    pub tensors: BTreeMap<String, Tensor>,
}

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// `F32`, or `U64` of the keys of a sparse table.
    pub dtype: String,
    /// Row-major.
    pub shape: Vec<u64>,
    /// First byte, and one past the last, counted from the end of the header.
    pub data_offsets: [u64; 2],
}

/// Why bytes are not a header.
#[derive(Debug, thiserror::Error)]
pub enum TensorHeaderError {
    /// The length exceeds the limit.
    #[error("not a safetensors file (header of {0} bytes)")]
    Length(u64),
    /// Not the JSON of a header.
    #[error("not a safetensors header")]
    Json(#[from] serde_json::Error),
    /// Offsets that do not fit type, shape or file.
    #[error("tensor {0}: offsets do not fit its type and shape")]
    Offsets(String),
}

impl TensorHeader {
    /// Appends a tensor of f32.
    fn push(&mut self, name: &str, shape: Vec<u64>) {
        self.append(name, shape, "F32", 4);
    }

    /// Appends the keys of a sparse table.
    fn push_keys(&mut self, name: &str, rows: u64) {
        self.append(&keys_of(name), vec![rows], "U64", 8);
    }

    fn append(&mut self, name: &str, shape: Vec<u64>, dtype: &str, size: u64) {
        let start = self.tensors.values().map(|tensor| tensor.data_offsets[1]).max().unwrap_or(0);
        let bytes = shape.iter().product::<u64>() * size;
        let data_offsets = [start, start + bytes];
        self.tensors
            .insert(name.to_owned(), Tensor { dtype: dtype.to_owned(), shape, data_offsets });
    }

    /// Length and header as bytes, padded with blanks to a multiple of eight, as the reference implementation does.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec(self).expect("maps of strings and numbers are JSON");
        json.resize(json.len().next_multiple_of(8), b' ');
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.append(&mut json);
        bytes
    }

    /// Length of the header that starts with these eight bytes.
    ///
    /// # Errors
    /// [`TensorHeaderError::Length`].
    pub fn length(start: [u8; 8]) -> Result<usize, TensorHeaderError> {
        let length = u64::from_le_bytes(start);
        if length > HEADER_BYTES_MAX {
            Err(TensorHeaderError::Length(length))
        } else {
            Ok(length as usize)
        }
    }

    /// Parses the JSON after the length, of a file with `data_bytes` bytes after it. Offsets of f32 tensors match their
    /// shapes and the file.
    ///
    /// # Errors
    /// [`TensorHeaderError`].
    pub fn decode(json: &[u8], data_bytes: u64) -> Result<Self, TensorHeaderError> {
        let header: Self = serde_json::from_slice(json)?;
        for (name, tensor) in &header.tensors {
            let [start, end] = tensor.data_offsets;
            let values =
                tensor.shape.iter().try_fold(1u64, |product, size| product.checked_mul(*size));
            let size = match &*tensor.dtype {
                "F32" => Some(4),
                "U64" => Some(8),
                _ => None,
            };
            let bytes = |size| values.and_then(|values: u64| values.checked_mul(size));
            let fits = start <= end && end <= data_bytes;
            if !fits || size.is_some_and(|size| bytes(size) != Some(end - start)) {
                return Err(TensorHeaderError::Offsets(name.clone()));
            }
        }
        Ok(header)
    }
}

/// The file of a model, table after table.
pub(super) struct SafetensorsFile {
    writer: SummedWriter,
}

impl SafetensorsFile {
    /// Creates the file of these tables. `sparse_tables`: the rows of each sparse one, in order.
    pub(super) async fn create(
        model: &Model<'_>,
        columns: Option<&str>,
        tables: &[TableSpec],
        sparse_tables: &[Arc<SparseTable>],
        storage: &dyn Storage,
        dir: &StorePath,
    ) -> Result<Self, ExportError> {
        let metadata = metadata(model, columns);
        let mut header = TensorHeader { metadata, ..TensorHeader::default() };
        let mut sparse_tables = sparse_tables.iter();
        for table in tables {
            if table.kind == TableKind::Dense {
                header.push(&table.name, model.shape(table));
            } else if let Some(rows) = sparse_tables.next() {
                let count = rows.keys.len() as u64;
                header.push_keys(&table.name, count);
                let shape = model.shape(&TableSpec { rows: count, ..table.clone() });
                header.push(&table.name, shape);
            }
        }
        Self::begin(header, model, storage, dir).await
    }

    async fn begin(
        header: TensorHeader,
        model: &Model<'_>,
        storage: &dyn Storage,
        dir: &StorePath,
    ) -> Result<Self, ExportError> {
        let head = header.encode();
        let data = header.tensors.values().map(|tensor| tensor.data_offsets[1]).max().unwrap_or(0);
        let bytes = data.saturating_add(head.len() as u64);
        let path = dir.join(SAFETENSORS_FILE)?;
        let mut writer = SummedWriter::create_sized(storage, &path, model.mode, bytes).await?;
        writer.write(Bytes::from(head)).await?;
        Ok(Self { writer })
    }

    /// Appends values, each little-endian f32.
    pub(super) async fn values(&mut self, values: Bytes) -> Result<(), ExportError> {
        Ok(self.writer.write(values).await?)
    }

    /// Appends the keys of a sparse table, then its values.
    pub(super) async fn sparse(&mut self, rows: &SparseTable) -> Result<(), ExportError> {
        for keys in rows.keys.chunks(1 << 16) {
            self.writer.write(keys.iter().flat_map(|key| key.to_le_bytes()).collect()).await?;
        }
        for values in rows.values.chunks(1 << 17) {
            self.writer.write(bytes_of(values)).await?;
        }
        Ok(())
    }

    pub(super) async fn finish(self, storage: &dyn Storage) -> Result<Summed, ExportError> {
        Ok(self.writer.finish(storage).await?)
    }
}

/// Metadata without run and checkpoint: the same training gives the same bytes. `MODEL.json` names both.
fn metadata(model: &Model<'_>, columns: Option<&str>) -> BTreeMap<String, String> {
    let origin = model.origin;
    let spec = &origin.spec;
    let mut metadata = BTreeMap::new();
    let mut say = |name: &str, value: String| metadata.insert(name.to_owned(), value);
    say("heddle.job", origin.job.clone());
    if model.is_built_in() {
        say("heddle.model", model.algorithm().to_owned());
        if let Some(loss) = model.loss() {
            say("heddle.loss", loss.to_owned());
        }
        say("heddle.data-format", spec.data.format.name().to_owned());
        say("heddle.index-base", spec.data.index_base.to_string());
        if let Some(columns) = columns {
            say("heddle.columns", columns.to_owned());
        }
    }
    metadata
}

/// Writes the file of a k-means model.
pub(super) async fn write_clusters(
    clusters: &RawClusters,
    model: &Model<'_>,
    columns: Option<&str>,
    storage: &dyn Storage,
    dir: &StorePath,
) -> Result<Summed, ExportError> {
    let metadata = metadata(model, columns);
    let mut header = TensorHeader { metadata, ..TensorHeader::default() };
    header.push(CENTRES, vec![clusters.clusters, clusters.features]);
    if clusters.scales.is_some() {
        header.push(SCALES, vec![clusters.features]);
    }
    let mut file = SafetensorsFile::begin(header, model, storage, dir).await?;
    file.values(bytes_of(&clusters.centres)).await?;
    file.values(bytes_of(clusters.scales.as_deref().unwrap_or_default())).await?;
    file.finish(storage).await
}

/// The tensor of a sparse table's keys.
pub(crate) fn keys_of(table: &str) -> String {
    format!("{table}.keys")
}

/// Values as little-endian bytes.
pub(super) fn bytes_of(values: &[f32]) -> Bytes {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
