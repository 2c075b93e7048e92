//! Reads a model from its file: safetensors or text, distinguished by the first bytes.

use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use heddle_input::{Batch, Labels, ModelColumns, RecordFormat};
use heddle_protocol::job_spec::limits::ANY_FEATURES;
use heddle_protocol::job_spec::position::key_of_position;
use heddle_protocol::job_spec::table::{BIAS, CENTRES, FACTORS, WEIGHTS};
use heddle_protocol::job_spec::{AlgorithmKind, DataFormat, LossFunction};
use heddle_protocol::model::{MODEL_FILE, ModelFile, ModelFileError};
use heddle_storage::{
    EntryKind, PathError, Storage, StorageError, StorageUrl, StorePath, connect, read_small,
};

use crate::algorithm::{ClusterScorer, MachineValues, PassValues, RecordScorer};
use crate::export::{
    SAFETENSORS_FILE, SCALES, TEXT_FILE, TensorHeader, TensorHeaderError, keys_of,
};

/// Longest `MODEL.json` that is read.
const MODEL_JSON_BYTES_MAX: usize = 1 << 20;
/// Longest model that is read: 2³² weights.
const MODEL_BYTES_MAX: usize = 1 << 34;

/// Features that a text model may have at any length: 256 MiB of weights.
const FEATURES_FREE: usize = 1 << 26;
/// Beyond that, features per byte of the text.
const FEATURES_PER_BYTE: usize = 64;

/// Why a file is not a model that can score records.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Cannot be read.
    #[error("cannot read it")]
    Storage(#[from] StorageError),
    /// A name that is too long.
    #[error("not a path")]
    Path(#[from] PathError),
    /// `MODEL.json` cannot be used.
    #[error("{MODEL_FILE} cannot be used")]
    ModelFile(#[from] ModelFileError),
    /// The header of a safetensors file.
    #[error(transparent)]
    Header(#[from] TensorHeaderError),
    /// A directory without a model.
    #[error("{0} holds no {MODEL_FILE}, {SAFETENSORS_FILE} or {TEXT_FILE}")]
    NoModel(String),
    /// The file has another content.
    #[error("not a model that scores records: {0}")]
    Form(String),
    /// A line of the text format.
    #[error("line {line}: {what}")]
    Line {
        /// From 1.
        line: usize,
        /// The error.
        what: String,
    },
}

/// Values for raw features, and what the scores mean.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoringModel {
    loss: LossFunction,
    /// Of a model whose features are any u64: the features that have rows, ascending.
    keys: Option<Vec<u64>>,
    /// Features that its records may have.
    features: u64,
    values: ModelValues,
    format: DataFormat,
    index_base: u32,
    /// Of records with columns.
    columns: Option<ModelColumns>,
}

#[derive(Clone, Debug, PartialEq)]
enum ModelValues {
    /// `weights`: `[features × offsets.len()]`, row-major; `offsets`: one for each score.
    Linear {
        weights: Vec<f32>,
        offsets: Vec<f64>,
    },
    Machine(MachineValues<f32>),
    Clusters(ClusterScorer),
}

/// The clusters of a file, and the features of their centres.
fn clusters<'a>(
    header: &TensorHeader,
    tensor: impl Fn(&str) -> Result<(&'a [u64], Vec<f32>), ModelError>,
) -> Result<(ClusterScorer, u64), ModelError> {
    let (shape, centres) = tensor(CENTRES)?;
    let &[(1..), features @ (1..)] = shape else {
        return Err(ModelError::Form(format!("shape {shape:?} of {CENTRES}")));
    };
    let scales = match header.tensors.contains_key(SCALES) {
        true => tensor(SCALES)?.1,
        false => Vec::new(),
    };
    if !scales.is_empty() && scales.len() as u64 != features {
        let what = format!("{} {SCALES} of {features} features", scales.len());
        return Err(ModelError::Form(what));
    }
    Ok((ClusterScorer::of_model(features as usize, &centres, &scales), features))
}

impl ScoringModel {
    /// Reads a model: a directory with `MODEL.json` or a model's files, or one file.
    ///
    /// # Errors
    /// See [`ModelError`].
    pub fn open(location: &StorageUrl) -> Result<Self, ModelError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| ModelError::Form(error.to_string()))?;
        runtime.block_on(async {
            let storage = connect(location)?;
            let path = find(&*storage, location.path()).await?;
            Self::from_bytes(&read_small(&*storage, &path, MODEL_BYTES_MAX).await?)
        })
    }

    /// Reads the content of a model's file.
    ///
    /// # Errors
    /// See [`ModelError`].
    pub fn from_bytes(bytes: &Bytes) -> Result<Self, ModelError> {
        if bytes.first() == Some(&b'#') {
            Self::from_text(bytes)
        } else {
            Self::from_safetensors(bytes)
        }
    }

    fn from_safetensors(bytes: &[u8]) -> Result<Self, ModelError> {
        let short = || ModelError::Form("the file is too short".to_owned());
        let (start, rest) = bytes.split_first_chunk::<8>().ok_or_else(short)?;
        let length = TensorHeader::length(*start)?;
        let (json, data) = rest.split_at_checked(length).ok_or_else(short)?;
        let header = TensorHeader::decode(json, data.len() as u64)?;
        let tensor = |name: &str| {
            let tensor = header.tensors.get(name).filter(|tensor| tensor.dtype == "F32");
            let tensor = tensor
                .ok_or_else(|| ModelError::Form(format!("it has no tensor {name} of F32")))?;
            let [start, end] = tensor.data_offsets.map(|at| at as usize);
            let values = data[start..end].chunks_exact(4);
            let values: Vec<f32> =
                values.map(|v| f32::from_le_bytes([v[0], v[1], v[2], v[3]])).collect();
            Ok::<_, ModelError>((tensor.shape.as_slice(), values))
        };
        let word = |name: &str| {
            let word = header.metadata.get(name).map(String::as_str);
            word.ok_or_else(|| ModelError::Form(format!("its metadata lacks {name}")))
        };
        let algorithm = algorithm(word("heddle.model")?)?;
        let loss = match header.metadata.get("heddle.loss") {
            Some(name) => loss(name, algorithm)?,
            None => algorithm.losses()[0],
        };
        let format = data_format(word("heddle.data-format")?)?;
        let index_base = index_base(word("heddle.index-base")?)?;
        let columns =
            columns_of(format, header.metadata.get("heddle.columns").map(String::as_str))?;
        if algorithm == AlgorithmKind::Kmeans {
            let (clusters, features) = clusters(&header, tensor)?;
            let values = ModelValues::Clusters(clusters);
            return Ok(Self { loss, keys: None, features, values, format, index_base, columns });
        }
        let (bias_shape, bias) = tensor(BIAS)?;
        let (shape, weights) = tensor(WEIGHTS)?;
        let keys = keys(&header, data, shape.first().copied().unwrap_or(0), algorithm)?;
        let classes = bias.len() as u64;
        let fits = match (loss, shape) {
            (LossFunction::Softmax, [_, cols]) => *cols == classes && classes > 1,
            (LossFunction::Softmax, _) => false,
            (_, [_]) => classes == 1,
            _ => false,
        };
        if !fits || bias_shape.len() != 1 {
            let what = format!("shapes {shape:?} of {WEIGHTS} and {bias_shape:?} of {BIAS}");
            return Err(ModelError::Form(format!("{what} are not those of {}", algorithm.name())));
        }
        let features = if keys.is_some() { ANY_FEATURES } else { shape[0] };
        let offsets: Vec<f64> = bias.into_iter().map(f64::from).collect();
        let values = if algorithm == AlgorithmKind::FactorizationMachine {
            let (shape, factors) = tensor(FACTORS)?;
            let rows = weights.len() as u64;
            if !matches!(shape, [of, rank] if *of == rows && *rank > 0) {
                return Err(ModelError::Form(format!(
                    "shape {shape:?} of {FACTORS} has not {rows} rows"
                )));
            }
            ModelValues::Machine(MachineValues::raw(weights, factors, offsets[0]))
        } else {
            ModelValues::Linear { weights, offsets }
        };
        Ok(Self { loss, keys, features, values, format, index_base, columns })
    }

    fn from_text(bytes: &[u8]) -> Result<Self, ModelError> {
        if !bytes.starts_with(crate::export::TEXT_FIRST_WORDS.as_bytes()) {
            return Err(ModelError::Form("the first line is another one".to_owned()));
        }
        let text =
            std::str::from_utf8(bytes).map_err(|error| ModelError::Form(error.to_string()))?;
        let (mut format, mut base, mut bias, mut columns) = (None, None, None, None);
        let mut weights: Vec<f32> = Vec::new();
        let mut keys: Option<Vec<u64>> = None;
        let mut algorithm_of = AlgorithmKind::LogisticRegression;
        let mut loss_of = None;
        for (at, line) in text.lines().enumerate() {
            let wrong = |what: &str| ModelError::Line { line: at + 1, what: what.to_owned() };
            if line.starts_with('#') {
                continue;
            }
            let (key, value) =
                line.split_once(' ').ok_or_else(|| wrong("expected a word and a value"))?;
            match key {
                "model" => {
                    algorithm_of = algorithm(value)?;
                    if !algorithm_of.is_linear() {
                        return Err(wrong("the algorithm has no text form"));
                    }
                }
                "loss" => loss_of = Some(loss(value, algorithm_of)?),
                "format" => format = Some(data_format(value)?),
                "columns" => columns = Some(value),
                "index-base" => base = Some(index_base(value)?),
                "features" if value == "any" => keys = Some(Vec::new()),
                "features" => {
                    let features = feature_count(value, text.len()).map_err(wrong)?;
                    weights.resize(features, 0.0);
                }
                "bias" => bias = Some(number(value).ok_or_else(|| wrong("expected a number"))?),
                key if keys.is_some() => {
                    let keys = keys.get_or_insert_default();
                    let key = number(key).filter(|key| keys.last().is_none_or(|last| last < key));
                    keys.push(key.ok_or_else(|| wrong("expected a feature above the last one"))?);
                    weights.push(number(value).ok_or_else(|| wrong("expected a weight"))?);
                }
                index => {
                    let index: Option<u32> = number(index);
                    let base = base.ok_or_else(|| wrong("a weight before index-base"))?;
                    let place =
                        index.and_then(|index| weights.get_mut(index.checked_sub(base)? as usize));
                    let place =
                        place.ok_or_else(|| wrong("the index is not one of the features"))?;
                    *place = number(value).ok_or_else(|| wrong("expected a weight"))?;
                }
            }
        }
        let lacks =
            |what: &str| ModelError::Form(format!("{what} is missing: the file was cut short"));
        let bias: f32 =
            bias.filter(|_| text.ends_with('\n')).ok_or_else(|| lacks("the last line, bias,"))?;
        let format = format.ok_or_else(|| lacks("format"))?;
        Ok(Self {
            loss: loss_of.unwrap_or(algorithm_of.losses()[0]),
            features: if keys.is_some() { ANY_FEATURES } else { weights.len() as u64 },
            keys,
            values: ModelValues::Linear { weights, offsets: vec![f64::from(bias)] },
            format,
            columns: columns_of(format, columns)?,
            index_base: base.ok_or_else(|| lacks("index-base"))?,
        })
    }

    /// The loss that the model minimises. It determines what a score means.
    #[must_use]
    pub fn loss(&self) -> LossFunction {
        self.loss
    }

    /// Number of classes; 1 if a record has one score.
    #[must_use]
    pub fn classes(&self) -> u32 {
        match &self.values {
            ModelValues::Linear { offsets, .. } => offsets.len() as u32,
            ModelValues::Machine(_) | ModelValues::Clusters(_) => 1,
        }
    }

    /// The format of its records.
    #[must_use]
    pub fn format(&self, labels: Labels) -> RecordFormat {
        RecordFormat {
            format: self.format,
            index_base: self.index_base,
            features: self.features,
            labels,
            // Checked when the model was read.
            table: self
                .columns
                .as_ref()
                .and_then(|columns| columns.format(self.features))
                .map(Arc::new),
        }
    }

    /// Replaces `scores` by the scores of a record of a batch in this model's format; see [`Self::score`]. Of a model whose
    /// features are any u64, a feature that was never trained adds nothing.
    ///
    /// # Panics
    /// If the record does not exist.
    pub fn score_record(&self, batch: &Batch, record: usize, scores: &mut Vec<f64>) {
        let Some(keys) = &self.keys else {
            let (indices, values) = batch.row(record);
            return self.score(indices, values, scores);
        };
        let (positions, x) = batch.entries(&batch.positions, record);
        let features = positions.iter().zip(x);
        let known = features.filter_map(|(position, value)| {
            let row = keys.binary_search(&key_of_position(*position)).ok()?;
            Some((row as u32, *value))
        });
        let (indices, values): (Vec<u32>, Vec<f32>) = known.unzip();
        self.score(&indices, &values, scores);
    }

    /// Replaces `scores` by the scores of a record with these features (0-based, below the number of features): the
    /// log-odds of label 1, the value, the margin, or a score for each class; of k-means the cluster and the squared distance.
    ///
    /// # Panics
    /// If an index is beyond the features.
    pub fn score(&self, indices: &[u32], values: &[f32], scores: &mut Vec<f64>) {
        match &self.values {
            ModelValues::Linear { weights, offsets } => {
                PassValues { weights, offsets }.score(indices, values, scores);
            }
            ModelValues::Machine(machine) => machine.score(indices, values, scores),
            ModelValues::Clusters(clusters) => clusters.score(indices, values, scores),
        }
    }
}

/// The features of a model with sparse tables, ascending; `None` if it has a row for each index.
fn keys(
    header: &TensorHeader,
    data: &[u8],
    rows: u64,
    algorithm: AlgorithmKind,
) -> Result<Option<Vec<u64>>, ModelError> {
    let of = |table: &str| {
        let name = keys_of(table);
        let Some(tensor) = header.tensors.get(&name) else { return Ok(None) };
        let [start, end] = tensor.data_offsets.map(|at| at as usize);
        let keys = data[start..end].as_chunks::<8>().0;
        let keys: Vec<u64> = keys.iter().map(|key| u64::from_le_bytes(*key)).collect();
        let fits = tensor.dtype == "U64" && keys.len() as u64 == rows;
        if !fits || !keys.is_sorted_by(|a, b| a < b) {
            return Err(ModelError::Form(format!("{name} are not {rows} ascending keys")));
        }
        Ok(Some(keys))
    };
    let keys = of(WEIGHTS)?;
    if algorithm == AlgorithmKind::FactorizationMachine && of(FACTORS)? != keys {
        return Err(ModelError::Form(format!("{WEIGHTS} and {FACTORS} have different keys")));
    }
    Ok(keys)
}

/// The file of the model at `path`.
async fn find(storage: &dyn Storage, path: &StorePath) -> Result<StorePath, ModelError> {
    if storage.stat(path).await?.kind != EntryKind::Dir {
        return Ok(path.clone());
    }
    let mut dir = path.clone();
    match read_small(storage, &path.join(MODEL_FILE)?, MODEL_JSON_BYTES_MAX).await {
        Ok(json) => {
            let model = ModelFile::from_json(&json)?;
            if !model.dir.is_empty() {
                dir = path.join(&model.dir)?;
            }
        }
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error.into()),
    }
    for name in [SAFETENSORS_FILE, TEXT_FILE] {
        let file = dir.join(name)?;
        match storage.stat(&file).await {
            Ok(_) => return Ok(file),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(ModelError::NoModel(storage.show(path)))
}

fn data_format(word: &str) -> Result<DataFormat, ModelError> {
    let unknown = || ModelError::Form(format!("unknown format of records {word:?}"));
    DataFormat::of_name(word).ok_or_else(unknown)
}

/// The columns of a model whose records have them.
fn columns_of(format: DataFormat, json: Option<&str>) -> Result<Option<ModelColumns>, ModelError> {
    if !format.has_columns() {
        return Ok(None);
    }
    let json = json.ok_or_else(|| ModelError::Form("it lacks its columns".to_owned()))?;
    let columns: ModelColumns = serde_json::from_str(json)
        .map_err(|error| ModelError::Form(format!("its columns: {error}")))?;
    match columns.format(u64::MAX) {
        Some(_) => Ok(Some(columns)),
        None => Err(ModelError::Form("its columns lack their scales".to_owned())),
    }
}

fn algorithm(word: &str) -> Result<AlgorithmKind, ModelError> {
    let known = AlgorithmKind::of_name(word).filter(|kind| *kind != AlgorithmKind::Custom);
    known.ok_or_else(|| ModelError::Form(format!("unknown algorithm {word:?}")))
}

fn loss(word: &str, algorithm: AlgorithmKind) -> Result<LossFunction, ModelError> {
    let known = LossFunction::of_name(word).filter(|loss| algorithm.losses().contains(loss));
    known.ok_or_else(|| ModelError::Form(format!("unknown loss {word:?} of {}", algorithm.name())))
}

fn index_base(word: &str) -> Result<u32, ModelError> {
    match word {
        "0" => Ok(0),
        "1" => Ok(1),
        other => Err(ModelError::Form(format!("unknown index base {other:?}"))),
    }
}

/// The number of features of a text with `bytes` bytes: a short text with a large index must not fill the memory.
fn feature_count(value: &str, bytes: usize) -> Result<usize, &'static str> {
    let features = number::<u32>(value).ok_or("expected a number of features")? as usize;
    if features > FEATURES_FREE.max(FEATURES_PER_BYTE * bytes) {
        return Err("too many features for so few weights; use safetensors");
    }
    Ok(features)
}

fn number<T: FromStr>(text: &str) -> Option<T> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "# heddle linear model, version 1: score = …\nmodel logistic-regression\n\
        format libsvm\n\
        index-base 1\nfeatures 3\n1 0.5\n3 -1e-3\nbias 0.25\n";

    fn read(bytes: &[u8]) -> Result<ScoringModel, ModelError> {
        ScoringModel::from_bytes(&Bytes::copy_from_slice(bytes))
    }

    #[test]
    fn errors_of_text_models_name_the_line() {
        let expected = ModelValues::Linear { weights: vec![0.5, 0.0, -1e-3], offsets: vec![0.25] };
        assert_eq!(read(TEXT.as_bytes()).expect("sound").values, expected);
        for (from, to, error) in [
            ("3 -1e-3", "4 -1e-3", "line 7: the index is not one of the features"),
            ("1 0.5", "0 0.5", "line 6: the index is not one of the features"),
            ("1 0.5", "1 x", "line 6: expected a weight"),
            (
                "features 3",
                "features 4000000000",
                "line 5: too many features for so few weights; use safetensors",
            ),
            (
                "bias 0.25\n",
                "",
                "not a model that scores records: the last line, bias, is missing: the file was cut short",
            ),
            (
                "model logistic-regression",
                "model tree",
                "not a model that scores records: unknown algorithm \"tree\"",
            ),
            (
                "model logistic-regression",
                "model softmax-regression",
                "line 2: the algorithm has no text form",
            ),
            (
                "format libsvm",
                "loss hinge",
                "not a model that scores records: unknown loss \"hinge\" of logistic-regression",
            ),
            (
                "format libsvm",
                "format orc",
                "not a model that scores records: unknown format of records \"orc\"",
            ),
            (
                "format libsvm",
                "format csv",
                "not a model that scores records: it lacks its columns",
            ),
        ] {
            let text = TEXT.replace(from, to);
            assert_eq!(read(text.as_bytes()).expect_err(to).to_string(), error);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_model_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = read(&bytes);
        }

        #[test]
        fn any_damage_is_a_model_or_an_error(at in 0..TEXT.len(), byte: u8, end in 0..TEXT.len()) {
            let mut bytes = TEXT.as_bytes().to_vec();
            bytes[at] = byte;
            let _ = read(&bytes);
            let _ = read(&bytes[..end]);
        }

        #[test]
        fn any_header_is_a_model_or_an_error(
            json in "\\{\"(bias|weights)\":\\{\"dtype\":\"F32\",\"shape\":\\[[0-9]{0,20}\\],\
                \"data_offsets\":\\[[0-9]{1,20},[0-9]{1,20}\\]\\}\\}",
            data in 0usize..64,
        ) {
            let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
            bytes.extend_from_slice(json.as_bytes());
            bytes.resize(bytes.len() + data, 0);
            prop_assert!(read(&bytes).is_err());
        }
    }
}
