//! The run directory of a local run: files that the command line and the ApplicationMaster exchange.
//!
//! | file | by | content |
//! | --- | --- | --- |
//! | `run.json` | command line | [`RunFile`] |
//! | `spec.json` | command line | the job spec, resolved |
//! | `secret` | command line | 64 hexadecimal digits, mode 0600 |
//! | `plan-<digest>.json` | ApplicationMaster | the input plan, read by trainers, see `heddle_protocol::plan_file` |
//! | `am.json` | ApplicationMaster | [`AmAddress`](heddle_protocol::environment::AmAddress), rewritten by each attempt |
//! | `outcome.json` | ApplicationMaster | the outcome, see `heddle_am_core::Outcome` |
//! | `view.json` | ApplicationMaster | the last view of the job, `heddle_protocol::view::JobView` |
//! | `logs/<slot>-<incarnation>/` | containers | their logs; `logs/am/` the ApplicationMaster's |
//! | `containers/<slot>-<incarnation>/` | containers | their work directories |

use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::handshake::{HandshakeError, Secret};
use heddle_protocol::ids::RunId;
use heddle_protocol::job_spec::JobSpec;
use heddle_storage::Reason;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::known_parts::KnownParts;

/// Name of [`RunFile`].
pub const RUN_FILE: &str = "run.json";
/// Name of the resolved job spec.
pub const SPEC_FILE: &str = "spec.json";

/// The command line's decisions about a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFile {
    /// The run.
    pub run: RunId,
    /// The job's name.
    pub name: String,
    /// When it was started, milliseconds since 1970.
    pub started_ms: u64,
    /// Directory of the job file: what a relative `trainers.command` is relative to.
    pub job_dir: PathBuf,
    /// How to handle an earlier run in the same checkpoint directory.
    pub earlier: ResumeMode,
    /// Whether an existing output is replaced when the model is published.
    pub overwrite: bool,
    /// Whether a checkpoint directory owned by another living run is taken over.
    pub take_over: bool,
    /// A mirror (URL) whose newest checkpoint the run continues in its new checkpoint directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Whether `output.model` was left to its default, which carries the run's id.
    #[serde(default)]
    pub default_output: bool,
    /// Warnings of the command line, with which the job's events begin.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The parts of the input files, as the command line read them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<KnownParts>,
}

/// How to handle an earlier run in the same checkpoint directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResumeMode {
    /// Continue it if the spec is the same, otherwise refuse.
    #[default]
    ContinueSame,
    /// Continue it also when keys differ that resuming allows.
    Resume,
    /// Start over from initial values.
    Fresh,
}

impl ResumeMode {
    /// The mode of a command line's `--fresh` and `--resume`.
    #[must_use]
    pub fn of(fresh: bool, resume: bool) -> Self {
        match (fresh, resume) {
            (true, _) => Self::Fresh,
            (false, true) => Self::Resume,
            (false, false) => Self::ContinueSame,
        }
    }
}

/// A run directory that is missing something or cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// A file cannot be read or written.
    #[error("{path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file has other content than expected.
    #[error("cannot parse {path}")]
    Form {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// The secret's file has other content.
    #[error("{path}")]
    Secret {
        /// The file.
        path: PathBuf,
        /// Why.
        source: HandshakeError,
    },
}

impl RunDirError {
    /// The exit code of a command that this ends.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Io { source, .. } => Reason::of_io(source).class().exit_code(),
            Self::Form { .. } | Self::Secret { .. } => ExitCode::Input,
        }
    }
}

/// A run directory.
#[derive(Clone, Debug)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// An existing directory.
    #[must_use]
    pub fn open(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Makes a new one with mode 0700 and writes what the ApplicationMaster needs.
    ///
    /// # Errors
    /// When it exists already or cannot be written.
    pub fn create(
        path: impl Into<PathBuf>,
        file: &RunFile,
        spec: &JobSpec,
        secret: &Secret,
    ) -> Result<Self, RunDirError> {
        let dir = Self::open(path);
        let mut builder = std::fs::DirBuilder::new();
        builder.mode(0o700);
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| RunDirError::Io { path, source }
        };
        if let Some(parent) = dir.path.parent() {
            builder.recursive(true).create(parent).map_err(io(parent))?;
        }
        builder.recursive(false).create(&dir.path).map_err(io(&dir.path))?;
        builder.create(dir.logs()).map_err(io(&dir.logs()))?;
        dir.write(RUN_FILE, file)?;
        dir.write(SPEC_FILE, spec)?;
        dir.write_bytes("secret", secret.to_hex().as_bytes())?;
        Ok(dir)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where it is, as a URL for containers, whose work directories are others.
    ///
    /// # Errors
    /// When it is not there or its path is not UTF-8.
    pub fn url(&self) -> Result<String, RunDirError> {
        let io = |source| RunDirError::Io { path: self.path.clone(), source };
        let path = self.path.canonicalize().map_err(io)?;
        let text = path.to_str().ok_or_else(|| {
            let kind = std::io::ErrorKind::InvalidInput;
            io(std::io::Error::new(kind, "the path is not valid UTF-8"))
        })?;
        Ok(format!("file://{text}"))
    }

    /// Where logs are.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.path.join("logs")
    }

    /// The file that names the ApplicationMaster's address.
    #[must_use]
    pub fn am_file(&self) -> PathBuf {
        self.path.join("am.json")
    }

    /// The file with the secret.
    #[must_use]
    pub fn secret_file(&self) -> PathBuf {
        self.path.join("secret")
    }

    /// What the command line decided.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn run_file(&self) -> Result<RunFile, RunDirError> {
        self.read(RUN_FILE)
    }

    /// The job.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn spec(&self) -> Result<JobSpec, RunDirError> {
        self.read(SPEC_FILE)
    }

    /// The secret.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn secret(&self) -> Result<Secret, RunDirError> {
        let path = self.secret_file();
        let text = std::fs::read_to_string(&path)
            .map_err(|source| RunDirError::Io { path: path.clone(), source })?;
        let text = Zeroizing::new(text);
        Secret::from_hex(&text).map_err(|source| RunDirError::Secret { path, source })
    }

    /// Reads a JSON file.
    ///
    /// # Errors
    /// When it cannot be read or has another form.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Result<T, RunDirError> {
        let path = self.path.join(name);
        let text = std::fs::read(&path)
            .map_err(|source| RunDirError::Io { path: path.clone(), source })?;
        serde_json::from_slice(&text).map_err(|source| RunDirError::Form { path, source })
    }

    /// Writes a JSON file, whole or not at all.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write<T: Serialize>(&self, name: &str, content: &T) -> Result<(), RunDirError> {
        let bytes = serde_json::to_vec_pretty(content)
            .map_err(|source| RunDirError::Form { path: self.path.join(name), source })?;
        self.write_bytes(name, &bytes)
    }

    fn write_bytes(&self, name: &str, bytes: &[u8]) -> Result<(), RunDirError> {
        let path = self.path.join(name);
        let new = self.path.join(format!(".{name}.new"));
        let write = || {
            // Left by a process that died while it wrote. Never opened as it is: it may have another mode or owner.
            match std::fs::remove_file(&new) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file =
                std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
            std::io::Write::write_all(&mut file, bytes)?;
            file.sync_all()?;
            std::fs::rename(&new, &path)
        };
        write().map_err(|source| RunDirError::Io { path: path.clone(), source })
    }
}
