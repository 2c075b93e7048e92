//! What the reading of a job file depends on, and what it shows of each key.

use std::path::PathBuf;

use super::super::location::Location;
use super::origin::{KeyOverride, Origin};

/// What the reading of a job file depends on besides its text.
#[derive(Clone, Debug, Default)]
pub struct ReadContext {
    /// The file as it is named in messages.
    pub file: String,
    /// Folder of the job file, absolute: what its paths are relative to.
    pub job_dir: PathBuf,
    /// The working directory, absolute: what paths in `--set` and default outputs are relative to.
    pub working_dir: PathBuf,
    /// Overrides, the later winning.
    pub sets: Vec<KeyOverride>,
    /// The site's defaults.
    pub site: Option<SiteFile>,
    /// Where default output folders lie: `<here>/<name>-<label>/…`; nothing: `out` in the working directory.
    pub outputs: Option<Location>,
    /// What default output folders carry after the job's name: the first 8 digits of the run's uuid.
    pub run_label: String,
}

/// A file of site defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteFile {
    /// Its path, as messages show it.
    pub file: String,
    /// Its folder, absolute: what its paths are relative to.
    pub dir: PathBuf,
    /// Its content.
    pub text: String,
}

/// The value of a key, as `config show` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Dotted.
    pub key: &'static str,
    /// As TOML.
    pub value: String,
    /// Where it comes from.
    pub origin: Origin,
    /// The resolved value where it differs: absolute paths, `auto`.
    pub resolved: Option<String>,
}
