//! Writes the model of a checkpoint in formats that other programs read. It needs the files of the job, not a running job.
//!
//! Values are streamed from the checkpoint's shard files to the files of the model, one table after the other, each read once. The MD5 of each
//! shard file is checked on the way; a model from a damaged file is not published. A standardised model is written in terms
//! of raw values, with slope w/s and bias b − Σ w·m/s: its users need neither means nor scales.

mod clusters;
mod columns;
mod error;
mod exported_bytes;
mod files;
mod labels;
mod linear;
mod machine;
mod model;
mod safetensors;
mod source;
mod text;

use std::sync::Arc;

use bytes::Bytes;
use heddle_protocol::control::{ExportOrder, ExportedFile};
use heddle_protocol::ids::{Member, SaveNo};
use heddle_protocol::job_spec::{self, JobSpec, LabelScale, ModelFormat};
use heddle_protocol::model::{FORMAT_VERSION, MODEL_FILE, ModelFile, save_dir, staging_prefix};
use heddle_storage::checkpoint::{StoredCheckpoint, or_removed};
use heddle_storage::{
    Mode, Storage, StorageError, StorageUrl, StorePath, Summed, connect, make_dirs, sidecar_name,
    write_whole,
};

pub(crate) use clusters::SCALES;
pub use error::ExportError;
pub use exported_bytes::ExportedBytes;
pub(crate) use safetensors::keys_of;
pub use safetensors::{SAFETENSORS_FILE, Tensor, TensorHeader, TensorHeaderError};
pub(crate) use text::FIRST_WORDS as TEXT_FIRST_WORDS;
pub use text::TEXT_FILE;

use model::{Model, ModelOrigin};

/// Directories tried for one export: a trainer that is chosen again finds the directory of its first attempt.
const DIRS_MAX: u32 = 1000;

/// The written model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Name of the hidden directory with the files, below the given one; empty if it is the given one.
    pub dir: String,
    /// The files, each with a sidecar.
    pub files: Vec<ExportedFile>,
}

/// Exports the model of a checkpoint in the job's formats, into a new directory of this trainer. At the end of the job that is
/// a hidden one in the output directory, named after the checkpoint directory and the trainer; of a save during
/// training it is named after the trainer, below that of the save. The ApplicationMaster publishes it from there.
///
/// # Errors
/// See [`ExportError`].
pub fn export_for(
    spec: &JobSpec,
    member: Member,
    order: &ExportOrder,
    bytes: &ExportedBytes,
) -> Result<Exported, ExportError> {
    let (checkpoint, output) =
        (StorageUrl::parse(&order.checkpoint)?, StorageUrl::parse(&order.dir)?);
    wait(async {
        let dir = match save_dir(order.save) {
            Some(name) => output.with_path(output.path().join(&name)?),
            None => output,
        };
        let storage = connect(&dir)?;
        let mode = file_mode(spec, &*storage);
        make_dirs(&*storage, dir.path(), mode.of_dir()).await?;
        let checkpoints = match checkpoint.path().parent() {
            Some(parent) => checkpoint.with_path(parent),
            None => checkpoint.clone(),
        };
        let (prefix, dir_mode) = match order.save {
            SaveNo(0) => (staging_prefix(&checkpoints.to_string()), Mode::DIR),
            // It is not moved when it is published.
            _ => (String::new(), mode.of_dir()),
        };
        let (from, checkpoint) = StoredCheckpoint::readable(&checkpoint).await?;
        let name = format!("{prefix}{member}");
        let (name, path) = new_dir(&*storage, dir.path(), &name, dir_mode).await?;
        let formats = &spec.output.formats;
        let written = export_into(from, checkpoint, formats, bytes, &*storage, mode, &path).await;
        let files = or_remove(written, &*storage, &path).await?;
        Ok(Exported { dir: name, files })
    })
}

/// By what the labels of a checkpoint's job are scaled.
///
/// # Errors
/// See [`ExportError`].
pub async fn label_scale_of(checkpoint: &StorageUrl) -> Result<LabelScale, ExportError> {
    let (from, checkpoint) = StoredCheckpoint::readable(checkpoint).await?;
    let bytes = ExportedBytes::default();
    let origin = origin(&checkpoint)?;
    let (mode, bytes) = (Mode::DIR, &bytes);
    let model = Model { from: &*from, checkpoint: &checkpoint, origin: &origin, mode, bytes };
    labels::labels(&model).await
}

/// The mode of the model's files.
#[must_use]
pub fn file_mode(spec: &JobSpec, storage: &dyn Storage) -> Mode {
    match spec.output.permissions {
        Some(permissions) => Mode(permissions.0),
        None => storage.default_mode(),
    }
}

/// The written model, or no files at all: a partial model of this process is deleted.
async fn or_remove<T>(
    written: Result<T, ExportError>,
    storage: &dyn Storage,
    dir: &StorePath,
) -> Result<T, ExportError> {
    if written.is_err() {
        let _leaks = storage.delete_dir(dir).await;
    }
    written
}

/// The same of a directory that was there, and stays.
async fn or_empty<T>(
    written: Result<T, ExportError>,
    storage: &dyn Storage,
    dir: &StorePath,
) -> Result<T, ExportError> {
    if written.is_err() {
        for file in [SAFETENSORS_FILE, TEXT_FILE] {
            for name in [file.to_owned(), sidecar_name(file)] {
                let _leaks = storage.delete_file(&dir.join(&name)?).await;
            }
        }
    }
    written
}

/// Exports the model of `checkpoint` into `dir`, which must be empty or not exist, in `formats`; `None`: the formats of the
/// checkpoint's job. The directory has the layout of a published model, `MODEL.json` is written last. `at_ms`: the
/// present time, milliseconds since 1970.
///
/// # Errors
/// See [`ExportError`].
pub fn export(
    checkpoint: &StorageUrl,
    formats: &[ModelFormat],
    dir: &StorageUrl,
    at_ms: u64,
) -> Result<Exported, ExportError> {
    wait(async {
        let storage = connect(dir)?;
        // The source is opened first: a typing error in it creates no directory.
        let (from, checkpoint) = StoredCheckpoint::readable(checkpoint).await?;
        let is_new = match storage.list(dir.path()).await {
            Ok(found) if found.is_empty() => false,
            Ok(_) => return Err(ExportError::Exists(storage.show(dir.path()))),
            Err(error) if error.is_not_found() => true,
            Err(error) => return Err(error.into()),
        };
        let mode = storage.default_mode();
        make_dirs(&*storage, dir.path(), mode.of_dir()).await?;
        let manifest = &checkpoint.manifest;
        let (run, job, cut) = (manifest.run, manifest.job.clone(), manifest.cut);
        let written = async {
            let bytes = ExportedBytes::default();
            let dir_path = dir.path();
            let files =
                export_into(from, checkpoint, formats, &bytes, &*storage, mode, dir_path).await?;
            let model = ModelFile {
                format_version: FORMAT_VERSION,
                run,
                job,
                checkpoint: cut,
                dir: String::new(),
                files,
                at_ms,
            };
            let json = serde_json::to_vec_pretty(&model).expect("plain fields are JSON");
            let path = dir.path().join(MODEL_FILE)?;
            write_whole(&*storage, &path, mode, Bytes::from(json))
                .await
                .map_err(StorageError::from)?;
            Ok(model.files)
        };
        let written = written.await;
        let files = if is_new {
            or_remove(written, &*storage, dir.path()).await?
        } else {
            or_empty(written, &*storage, dir.path()).await?
        };
        Ok(Exported { dir: String::new(), files })
    })
}

fn wait<T>(future: impl Future<Output = Result<T, ExportError>>) -> Result<T, ExportError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(ExportError::Runtime)?.block_on(future)
}

async fn new_dir(
    storage: &dyn Storage,
    dir: &StorePath,
    name: &str,
    mode: Mode,
) -> Result<(String, StorePath), ExportError> {
    let mut tried = name.to_owned();
    for number in 2..DIRS_MAX {
        let path = dir.join(&tried)?;
        match storage.mkdir(&path, mode).await {
            Ok(()) => return Ok((tried, path)),
            Err(error) if error.error().is_exists() => tried = format!("{name}-{number}"),
            Err(error) => return Err(StorageError::from(error).into()),
        }
    }
    Err(ExportError::Exists(storage.show(&dir.join(name)?)))
}

fn origin(checkpoint: &StoredCheckpoint) -> Result<ModelOrigin, ExportError> {
    let manifest = &checkpoint.manifest;
    let spec = job_spec::from_json(manifest.spec.to_string().as_bytes());
    let spec = spec.map_err(|error| ExportError::Spec(error.to_string()))?;
    Ok(ModelOrigin { job: manifest.job.clone(), spec })
}

async fn export_into(
    from: Arc<dyn Storage>,
    // The MD5 is checked while files are read; here names and lengths suffice.
    checkpoint: StoredCheckpoint,
    formats: &[ModelFormat],
    bytes: &ExportedBytes,
    storage: &dyn Storage,
    mode: Mode,
    dir: &StorePath,
) -> Result<Vec<ExportedFile>, ExportError> {
    let origin = origin(&checkpoint)?;
    let of_job = &origin.spec.output.formats;
    let formats = if formats.is_empty() { of_job.clone() } else { formats.to_vec() };
    let model = Model { from: &*from, checkpoint: &checkpoint, origin: &origin, mode, bytes };
    let written = files::write(&model, &formats, storage, dir);
    let written = or_removed(&*from, &checkpoint.dir, written).await?;
    let exported = |file: Summed| {
        let Summed { name, bytes, md5, .. } = file;
        ExportedFile { name, bytes, md5: md5.to_string() }
    };
    Ok(written.into_iter().map(exported).collect())
}

#[cfg(test)]
mod tests;
