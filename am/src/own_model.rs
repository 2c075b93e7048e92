//! A model at `output.model` that an earlier run of the same job has published.
//!
//! The same command again must find it without an error: the job is finished, or its ApplicationMaster ended between the
//! publication and its record. A model of another job, or of this one before it was
//! trained further, is not replaced without `--overwrite`.

use heddle_protocol::job_spec::identity;
use heddle_protocol::job_spec::{JobSpec, Location};
use heddle_protocol::model::{MODEL_FILE, ModelFile};
use heddle_storage::checkpoint::{CheckpointDir, Depth};
use heddle_storage::{StorageUrl, connect, read_small};

/// A model file has some hundred bytes a file.
pub(crate) const MODEL_BYTES_MAX: usize = 4 << 20;

/// Whether the run that published the model at `output.model` is in the lineage of `checkpoint.dir`. False where one of both
/// cannot be read.
pub async fn is_own(spec: &JobSpec) -> bool {
    let own = async {
        let model = published(&spec.output.model).await?;
        let location = StorageUrl::parse(&spec.checkpoint.dir.url()).ok()?;
        let dir = CheckpointDir::existing(connect(&location).ok()?, location.path().clone());
        dir.has_run(model.run).await.ok()
    };
    own.await.unwrap_or(false)
}

/// The own model of a job that is trained further than that model: the job's end could not replace it.
pub(crate) async fn outgrown(spec: &JobSpec, dir: &CheckpointDir) -> Option<ModelFile> {
    let model = published(&spec.output.model).await?;
    if !dir.has_run(model.run).await.ok()? {
        return None;
    }
    let before = async {
        let found = dir.load(model.checkpoint, Depth::Shallow).await.ok()?;
        serde_json::from_value::<JobSpec>(found.manifest.spec).ok()
    };
    let is_same = |before: &JobSpec| identity::differences(spec, before).is_empty();
    (!before.await.as_ref().is_some_and(is_same)).then_some(model)
}

async fn published(output: &Location) -> Option<ModelFile> {
    let location = StorageUrl::parse(&output.url()).ok()?;
    let path = location.path().join(MODEL_FILE).ok()?;
    let json = read_small(&*connect(&location).ok()?, &path, MODEL_BYTES_MAX).await.ok()?;
    ModelFile::from_json(&json).ok()
}
