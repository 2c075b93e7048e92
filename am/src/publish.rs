//! Publication of a model: from the hidden directory of the trainer that wrote it to `output.model`.
//!
//! ```text
//! check claim and lease ─▶ move each file and its sidecar to its name ─▶ MODEL.json ─▶ remove what it replaced
//! ```
//!
//! **Intuition.** Consumers read `output.model/model.safetensors`, always under this name. A directory that holds files
//! cannot be replaced in one step, neither by POSIX nor by HDFS, and its parent may be another user's. A file can: so each
//! name changes from one whole file to another whole file, and `MODEL.json`, moved last, names the sums of all of them.
//!
//! **Rules.**
//! - Without `--overwrite` every move refuses a name that is taken, so that the second of two jobs with one output
//!   fails. A file with the same bytes as the one to publish is accepted: an earlier attempt was interrupted.
//! - With `--overwrite` every move replaces one file atomically. Files that the new model does not have are deleted at
//!   the end.
//! - Before each move the claim on the checkpoint directory must still be the highest and the lease must hold: a stale
//!   ApplicationMaster replaces nothing. A `MODEL.json` of the same run from a later checkpoint is never replaced.
//! - Every step can be repeated. After any interruption the same call, also by a later attempt, ends with one model.

use std::collections::BTreeSet;

use bytes::Bytes;
use heddle_fail_points::fail_point;
use heddle_protocol::control::ExportedFile;
use heddle_protocol::ids::{CutId, Generation};
use heddle_protocol::manifest::{Md5, Salt};
use heddle_protocol::model::{MODEL_FILE, ModelFile, is_plain_name};
use heddle_storage::checkpoint::{CheckpointDir, CheckpointError};
use heddle_storage::{
    EntryKind, Mode, Op, Reason, Storage, StorageError, StorePath, WriteError, chain, make_dirs,
    md5_of, read_small, sidecar_line, sidecar_name, write_whole,
};

use crate::own_model::MODEL_BYTES_MAX;

/// Beginning of the names of drafts of `MODEL.json`.
const DRAFT_PREFIX: &str = ".MODEL.json.";
/// Files that models of any format consist of.
const KNOWN_FILES: [&str; 2] = ["model.safetensors", "model.txt"];

/// Why a model was not published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The storage failed; a retry may succeed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Another model exists and must not be replaced.
    #[error("{0}")]
    Taken(String),
    /// Another ApplicationMaster leads the job.
    #[error("{0}")]
    Fenced(String),
}

impl From<WriteError> for PublishError {
    fn from(error: WriteError) -> Self {
        Self::Storage(error.into())
    }
}

impl From<heddle_storage::PathError> for PublishError {
    fn from(error: heddle_storage::PathError) -> Self {
        Self::Storage(error.into())
    }
}

impl From<CheckpointError> for PublishError {
    fn from(error: CheckpointError) -> Self {
        match error {
            CheckpointError::Storage(error) => Self::Storage(error),
            error if error.is_fenced() => Self::Fenced(chain(&error)),
            error => Self::Storage(
                StorageError::new(Op::List, "checkpoint.dir", Reason::Other).because(chain(&error)),
            ),
        }
    }
}

/// What is published, where and under which claim.
pub struct Publication<'a> {
    /// The storage of the output.
    pub storage: &'a dyn Storage,
    /// `output.model`.
    pub dir: &'a StorePath,
    /// The directory below it that a trainer has exported to.
    pub staged: &'a str,
    /// Beginning of the names of directories that exports of this checkpoint directory lie in.
    pub staging_prefix: &'a str,
    /// Of `MODEL.json`; those of the other files are set already.
    pub mode: Mode,
    /// Whether a model that is there is replaced.
    pub overwrite: bool,
    /// Unique for this process; part of the names of drafts.
    pub salt: Salt,
    /// The checkpoint directory, whose highest claim decides which ApplicationMaster leads.
    pub checkpoints: &'a CheckpointDir,
    /// The generation of this process's claim.
    pub generation: Generation,
    /// Checks the lease; the error is the reason.
    pub lease: &'a (dyn Fn() -> Result<(), String> + Sync),
}

/// What lies at `MODEL.json`.
enum Before {
    Nothing,
    Model(Box<ModelFile>),
    Foreign,
}

impl Publication<'_> {
    /// Publishes `model`, whose files lie in the staged directory.
    ///
    /// # Errors
    /// See [`PublishError`]. After `Storage` the same call may be repeated.
    pub async fn publish(&self, model: ModelFile) -> Result<(), PublishError> {
        self.check_names(&model)?;
        self.gate().await?;
        make_dirs(self.storage, self.dir, self.mode.of_dir()).await?;
        let before = self.before().await?;
        match &before {
            Before::Model(other)
                if (other.run, other.checkpoint, &other.files)
                    == (model.run, model.checkpoint, &model.files)
                    && other.dir.is_empty() =>
            {
                // An earlier attempt has finished the publication.
                if self.overwrite {
                    self.remove_replaced(&model, Before::Nothing).await;
                }
                self.remove_staged().await;
                return Ok(());
            }
            Before::Model(other)
                if other.run == model.run && other.checkpoint > model.checkpoint =>
            {
                return Err(PublishError::Fenced(format!(
                    "{} holds the model of checkpoint {}, which is later than {}",
                    self.storage.show(self.dir),
                    other.checkpoint,
                    model.checkpoint
                )));
            }
            Before::Model(other) if !self.overwrite && self.is_repeated(other, &model).await? => {
                self.remove_staged().await;
                return Ok(());
            }
            Before::Model(_) | Before::Foreign if !self.overwrite => {
                return self.taken(MODEL_FILE, &before).await;
            }
            _ => {}
        }
        let draft = self.draft(&model).await?;
        if !self.overwrite {
            for file in &model.files {
                if !self.is_free(file).await? {
                    let _leaks = self.storage.delete_file(&draft).await;
                    return self.taken(&file.name, &before).await;
                }
            }
        }
        for file in &model.files {
            self.move_to_its_name(file).await?;
        }
        self.gate().await?;
        let path = self.at(MODEL_FILE)?;
        if self.overwrite {
            self.storage.replace(&draft, &path).await?;
        } else {
            self.storage.rename(&draft, &path).await?;
        }
        fail_point!("after-published");
        if self.overwrite {
            self.remove_replaced(&model, before).await;
        }
        self.remove_staged().await;
        Ok(())
    }

    /// Publishes a save: `MODEL.json` names the staged directory, whose files stay where they are. It replaces nothing but,
    /// with `--overwrite`, that of another job. One of this job is kept: an earlier attempt has published the save from the
    /// directory of another trainer. Directories that it does not name are removed. `after`: a cut before those that the
    /// save may be made from.
    ///
    /// # Errors
    /// See [`PublishError`]. After `Storage` the same call may be repeated.
    pub async fn publish_save(&self, model: ModelFile, after: CutId) -> Result<(), PublishError> {
        self.check_names(&model)?;
        self.gate().await?;
        let before = self.before().await?;
        let replaces = match &before {
            Before::Model(other) if self.is_of_save(other, &model, after).await? => {
                self.remove_dirs(|name| is_of_trainer(name) && name != other.dir).await;
                return Ok(());
            }
            Before::Nothing => false,
            Before::Model(_) | Before::Foreign if self.overwrite => true,
            Before::Model(_) | Before::Foreign => {
                self.remove_dirs(|name| name == self.staged).await;
                return Err(PublishError::Taken(format!(
                    "{} exists already and is not of this job; rerun with --overwrite, or with another output.model",
                    self.storage.show(&self.at(MODEL_FILE)?),
                )));
            }
        };
        let draft = self.draft(&model).await?;
        self.gate().await?;
        let path = self.at(MODEL_FILE)?;
        if replaces {
            self.storage.replace(&draft, &path).await?;
        } else if let Err(error) = self.storage.rename(&draft, &path).await {
            // A lost reply, or another attempt of this job.
            match self.before().await? {
                Before::Model(other) if self.is_of_save(&other, &model, after).await? => {}
                Before::Model(_) | Before::Foreign | Before::Nothing => return Err(error.into()),
            }
        }
        fail_point!("after-save-published");
        self.remove_dirs(|name| is_of_trainer(name) && name != model.dir).await;
        Ok(())
    }

    /// Whether a published model is of this save: of this run, or of an earlier one that the job continues, which made it
    /// from this checkpoint directory.
    async fn is_of_save(
        &self,
        other: &ModelFile,
        model: &ModelFile,
        after: CutId,
    ) -> Result<bool, PublishError> {
        if other.run == model.run {
            return Ok(true);
        }
        if other.checkpoint <= after || other.checkpoint.generation > self.generation {
            return Ok(false);
        }
        let claim = self.checkpoints.claim(other.checkpoint.generation).await?;
        Ok(claim.run == other.run)
    }

    /// Whether an earlier run of this job has published the model of the same checkpoint, and ended before that was recorded.
    async fn is_repeated(
        &self,
        other: &ModelFile,
        model: &ModelFile,
    ) -> Result<bool, PublishError> {
        let names = |model: &ModelFile| {
            model.files.iter().map(|file| file.name.clone()).collect::<BTreeSet<_>>()
        };
        Ok(other.checkpoint == model.checkpoint
            && other.dir.is_empty()
            && names(other) == names(model)
            && self.checkpoints.has_run(other.run).await?)
    }

    fn check_names(&self, model: &ModelFile) -> Result<(), PublishError> {
        let names = model.files.iter().map(|file| file.name.as_str());
        match names.chain([self.staged]).find(|name| !is_plain_name(name) || *name == MODEL_FILE) {
            Some(name) => {
                Err(PublishError::Taken(format!("{name:?} is not a valid name of a model file")))
            }
            None => Ok(()),
        }
    }

    /// Whether this process still leads the job.
    async fn gate(&self) -> Result<(), PublishError> {
        self.checkpoints.check_highest(self.generation).await?;
        (self.lease)().map_err(|why| {
            let place = self.storage.show(self.dir);
            PublishError::Storage(
                StorageError::new(Op::Rename, place, Reason::Unavailable).because(why),
            )
        })
    }

    fn at(&self, name: &str) -> Result<StorePath, StorageError> {
        Ok(self.dir.join(name)?)
    }

    async fn before(&self) -> Result<Before, StorageError> {
        match read_small(self.storage, &self.at(MODEL_FILE)?, MODEL_BYTES_MAX).await {
            Ok(json) => Ok(match ModelFile::from_json(&json) {
                Ok(model) => Before::Model(Box::new(model)),
                Err(_) => Before::Foreign,
            }),
            Err(error) if error.is_not_found() => Ok(Before::Nothing),
            Err(error) if error.is_retryable() => Err(error),
            Err(_) => Ok(Before::Foreign),
        }
    }

    async fn taken(&self, name: &str, before: &Before) -> Result<(), PublishError> {
        // No name leads to the exported files.
        self.remove_staged().await;
        let holder = match before {
            Before::Model(other) => format!("published by run {}", other.run),
            Before::Foreign => "not a model of Heddle, or being written at the moment".to_owned(),
            Before::Nothing => format!("without a {MODEL_FILE}"),
        };
        Err(PublishError::Taken(format!(
            "{} exists already ({holder}); rerun with --overwrite, or with another output.model: the job continues from its \
             last checkpoint",
            self.storage.show(&self.at(name)?),
        )))
    }

    /// Writes `MODEL.json` under another name. It comes before the moves, so that a full disk or a quota stops them.
    async fn draft(&self, model: &ModelFile) -> Result<StorePath, PublishError> {
        let draft = self.at(&format!("{DRAFT_PREFIX}{}", self.salt))?;
        // A draft of an earlier attempt of this call may exist.
        let _absent = self.storage.delete_file(&draft).await;
        let json = serde_json::to_vec_pretty(model).expect("plain fields are JSON");
        write_whole(self.storage, &draft, self.mode, Bytes::from(json)).await?;
        Ok(draft)
    }

    /// Whether nothing but these very bytes stands where the file is to be.
    async fn is_free(&self, file: &ExportedFile) -> Result<bool, StorageError> {
        match self.storage.stat(&self.at(&file.name)?).await {
            Err(error) if error.is_not_found() => Ok(true),
            Err(error) => Err(error),
            Ok(_) => self.is_in_place(file).await,
        }
    }

    /// Whether the file lies under its name with the bytes that were exported.
    async fn is_in_place(&self, file: &ExportedFile) -> Result<bool, StorageError> {
        let path = self.at(&file.name)?;
        match self.storage.stat(&path).await {
            Ok(entry) if entry.kind == EntryKind::File && entry.bytes == file.bytes => {}
            Ok(_) => return Ok(false),
            Err(error) if error.is_not_found() => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(md5_of(self.storage, &path).await?.to_string() == file.md5)
    }

    async fn move_to_its_name(&self, file: &ExportedFile) -> Result<(), PublishError> {
        let staged = self.at(self.staged)?;
        let (from, to) = (staged.join(&file.name)?, self.at(&file.name)?);
        self.gate().await?;
        if let Err(error) = self.rename(&from, &to).await {
            // An earlier try may have moved it; a lost reply is resolved in the same way.
            if !self.is_in_place(file).await? {
                return Err(error.into());
            }
            let _moved = self.storage.delete_file(&from).await;
        }
        let sidecar = sidecar_name(&file.name);
        let (from, to) = (staged.join(&sidecar)?, self.at(&sidecar)?);
        self.gate().await?;
        if let Err(error) = self.rename(&from, &to).await {
            let Ok(md5) = file.md5.parse::<Md5>() else {
                return Err(error.into());
            };
            let line = sidecar_line(md5, &file.name);
            match read_small(self.storage, &to, line.len()).await {
                Ok(found) if found == line => {}
                _ if self.overwrite => return Err(error.into()),
                // A sidecar without a file: the file beside it has its name only since now.
                _ => self.storage.replace(&from, &to).await?,
            }
            let _moved = self.storage.delete_file(&from).await;
        }
        Ok(())
    }

    async fn rename(&self, from: &StorePath, to: &StorePath) -> Result<(), WriteError> {
        match self.overwrite {
            true => self.storage.replace(from, to).await,
            false => self.storage.rename(from, to).await,
        }
    }

    /// Removes what the model that was there before consists of besides. What cannot be removed now stays: the next
    /// publication removes it.
    async fn remove_replaced(&self, model: &ModelFile, before: Before) {
        let is_new = |name: &str| model.files.iter().any(|file| file.name == name);
        let mut names: Vec<String> = KNOWN_FILES.map(str::to_owned).into();
        if let Before::Model(other) = before {
            names.extend(other.files.into_iter().map(|file| file.name));
        }
        for name in names.iter().filter(|name| !is_new(name)) {
            for name in [name.clone(), sidecar_name(name)] {
                if let Ok(path) = self.at(&name) {
                    let _absent = self.storage.delete_file(&path).await;
                }
            }
        }
        self.remove_dirs(is_of_trainer).await;
    }

    /// Removes all exports of this checkpoint directory: the claim on it makes them this process's.
    async fn remove_staged(&self) {
        if let Ok(path) = self.at(self.staged) {
            let _absent = self.storage.delete_dir(&path).await;
        }
        self.remove_dirs(|name| name.starts_with(self.staging_prefix)).await;
        // Drafts of processes that died; another that is publishing at the moment writes its own again.
        let entries = self.storage.list(self.dir).await.unwrap_or_default();
        for entry in entries {
            if entry.kind == EntryKind::File && entry.name().starts_with(DRAFT_PREFIX) {
                let _absent = self.storage.delete_file(&entry.path).await;
            }
        }
    }

    async fn remove_dirs(&self, is_wanted: impl Fn(&str) -> bool) {
        let entries = self.storage.list(self.dir).await.unwrap_or_default();
        for entry in entries {
            if entry.kind == EntryKind::Dir
                && is_wanted(entry.name())
                && let Err(error) = self.storage.delete_dir(&entry.path).await
            {
                tracing::warn!(error = chain(error.error()), "replaced_model_not_deleted");
            }
        }
    }
}

/// `trainer-<index>.<incarnation>`, or that and `-<try>`: a trainer writes a save under such a name, and early versions
/// left their exports so.
fn is_of_trainer(name: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some((index, rest)) = name.strip_prefix("trainer-").and_then(|rest| rest.split_once('.'))
    else {
        return false;
    };
    let (incarnation, again) = rest.split_once('-').unwrap_or((rest, "0"));
    number(index) && number(incarnation) && number(again)
}
