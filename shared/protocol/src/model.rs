//! `MODEL.json`: the model in an output directory and its files.
//!
//! ```text
//! <output.model>/model.safetensors, model.txt, each with its .md5     under these names in every job
//! <output.model>/MODEL.json                                           moved there last
//! <output.model>/.model-<checkpoint directory>-<trainer>/…            an export that is not published yet
//! ```
//!
//! Saves that a trainer's program asked for during training have a directory each:
//!
//! ```text
//! <output.model>/save-<n>/<trainer>/model.safetensors, …              written by one trainer
//! <output.model>/save-<n>/MODEL.json                                  names the valid directory
//! ```
//!
//! A trainer exports into a hidden directory of its own, so that two trainers never write one file. The
//! ApplicationMaster that leads then moves the files to their names and writes `MODEL.json` last.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::control::ExportedFile;
use crate::ids::{CutId, RunId, SaveNo};

/// Its name in the output directory.
pub const MODEL_FILE: &str = "MODEL.json";
/// The only version so far.
pub const FORMAT_VERSION: u32 = 1;

/// Beginning of the names of hidden directories that hold exports of the checkpoints in `checkpoint_dir` (a URL): the
/// claim on that directory decides which process may publish or delete them.
#[must_use]
pub fn staging_prefix(checkpoint_dir: &str) -> String {
    let sum = Sha256::digest(checkpoint_dir.trim_end_matches('/'));
    format!(".model-{}-", hex::encode(&sum[..6]))
}

/// Name of the directory of a save below the output directory; `None` for the save at the end of the job, which is
/// published in the output directory itself.
#[must_use]
pub fn save_dir(save: SaveNo) -> Option<String> {
    (save.0 > 0).then(|| format!("save-{save}"))
}

/// Whether `name` is one path component that a file or directory of a model may have.
#[must_use]
pub fn is_plain_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0'])
}

/// Content of `MODEL.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFile {
    /// Version of this format.
    pub format_version: u32,
    /// The run that trained it.
    pub run: RunId,
    /// The job's name.
    pub job: String,
    /// The checkpoint it was made from.
    pub checkpoint: CutId,
    /// Directory of the files, relative to this one. Empty: they are beside this file, as in all models
    /// but saves during training and those of early versions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub dir: String,
    /// The files.
    pub files: Vec<ExportedFile>,
    /// When it was published, milliseconds since 1970.
    pub at_ms: u64,
}

/// Why a `MODEL.json` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelFileError {
    /// Not JSON of this form.
    #[error("not a model file: {0}")]
    Form(#[from] serde_json::Error),
    /// Written by a later program.
    #[error("model format version {found}, this program reads up to version {FORMAT_VERSION}")]
    Newer {
        /// The version in the file.
        found: u32,
    },
    /// A name that leads out of the directory.
    #[error("model file names {0:?}, which is not a plain name")]
    Name(String),
}

impl ModelFile {
    /// Reads the file and checks that its names stay below its directory.
    ///
    /// # Errors
    /// [`ModelFileError`].
    pub fn from_json(bytes: &[u8]) -> Result<Self, ModelFileError> {
        #[derive(Deserialize)]
        struct Version {
            format_version: u32,
        }
        let Version { format_version: found } = serde_json::from_slice(bytes)?;
        if found > FORMAT_VERSION {
            return Err(ModelFileError::Newer { found });
        }
        let file: Self = serde_json::from_slice(bytes)?;
        let dir = Some(&file.dir).filter(|dir| !dir.is_empty());
        let names = file.files.iter().map(|file| &file.name).chain(dir);
        for name in names {
            if !is_plain_name(name) {
                return Err(ModelFileError::Name(name.clone()));
            }
        }
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Generation;

    fn sample() -> ModelFile {
        ModelFile {
            format_version: FORMAT_VERSION,
            run: RunId(uuid::Uuid::from_bytes([1; 16])),
            job: "spam".into(),
            checkpoint: CutId { generation: Generation(1), number: 7 },
            dir: "trainer-0.1".into(),
            files: vec![ExportedFile {
                name: "model.safetensors".into(),
                bytes: 3,
                md5: "00".into(),
            }],
            at_ms: 5,
        }
    }

    #[test]
    fn a_model_file_reads_back() {
        let json = serde_json::to_vec(&sample()).expect("plain fields are JSON");
        assert_eq!(ModelFile::from_json(&json).expect("our own"), sample());
        let beside = ModelFile { dir: String::new(), ..sample() };
        let json = serde_json::to_string(&beside).expect("JSON");
        assert!(!json.contains("\"dir\""), "{json}");
        assert_eq!(ModelFile::from_json(json.as_bytes()).expect("our own"), beside);
    }

    #[test]
    fn staging_names_follow_the_checkpoint_directory() {
        let prefix = staging_prefix("hdfs://nn/ckpt");
        assert_eq!(prefix, staging_prefix("hdfs://nn/ckpt/"));
        assert_ne!(prefix, staging_prefix("hdfs://nn/ckpt2"));
        assert!(is_plain_name(&prefix));
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in ["../other", "/etc", "..", "."] {
            let json =
                serde_json::to_vec(&ModelFile { dir: name.into(), ..sample() }).expect("JSON");
            assert!(
                matches!(ModelFile::from_json(&json), Err(ModelFileError::Name(_))),
                "{name:?}"
            );
        }
    }

    #[test]
    fn a_later_version_is_named() {
        let json = br#"{"format_version": 9, "whatever": 1}"#;
        let error = ModelFile::from_json(json).expect_err("later");
        assert!(error.to_string().contains('9'), "{error}");
    }
}
