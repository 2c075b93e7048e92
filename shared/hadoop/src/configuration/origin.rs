//! Origins of values, notes about files, and errors of values.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::locate::ConfigDirectory;
use super::values::ValueProblem;

/// A value and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PropertySetting {
    /// As written, variables unexpanded.
    pub raw: String,
    /// File and line, default or override.
    pub origin: PropertyOrigin,
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PropertyOrigin {
    /// The built-in default; the name of Hadoop's file.
    Default(&'static str),
    /// A file.
    File {
        /// The file, which may be an included one.
        path: Arc<Path>,
        /// Line of the property, counted from 1.
        line: u32,
    },
    /// Set by the program; the text names the setter.
    Override(Arc<str>),
}

impl fmt::Display for PropertyOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default(file) => write!(f, "{file} (built in)"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Override(source) => f.write_str(source),
        }
    }
}

/// A fact about the files of a configuration that explains its values.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// A file was read.
    Read(PathBuf),
    /// No directory has the file.
    Missing {
        /// Its name.
        file: &'static str,
        /// The directories that were searched.
        looked_in: Vec<ConfigDirectory>,
    },
    /// A second file of the same name differs from the first, which is used.
    Differs {
        /// The file that is used.
        used: PathBuf,
        /// The file that is ignored.
        ignored: PathBuf,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(path) => write!(f, "read {}", path.display()),
            Self::Missing { file, looked_in } => {
                write!(f, "no {file} in")?;
                for (index, candidate) in looked_in.iter().enumerate() {
                    let comma = if index == 0 { "" } else { "," };
                    write!(f, "{comma} {} ({})", candidate.directory.display(), candidate.reason)?;
                }
                Ok(())
            }
            Self::Differs { used, ignored } => {
                write!(
                    f,
                    "{} is used; {} differs and is ignored",
                    used.display(),
                    ignored.display()
                )
            }
        }
    }
}

/// A value that does not parse as the type that the caller needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} {problem} (got \"{value}\" from {origin})")]
pub struct PropertyError {
    /// The key.
    pub key: String,
    /// The value, expanded as far as possible.
    pub value: String,
    /// Where it comes from.
    pub origin: PropertyOrigin,
    /// What is wrong.
    pub problem: ValueProblem,
}

/// The value of a key with its history.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The key's present name.
    pub key: String,
    /// The value, expanded.
    pub value: Result<String, PropertyError>,
    /// The value as written, and where.
    pub setting: PropertySetting,
    /// The values that it replaced, the latest first.
    pub hidden: Vec<PropertySetting>,
    /// Where the key was made final.
    pub sealed: Option<PropertyOrigin>,
    /// The values that were rejected because the key was final.
    pub refused: Vec<PropertySetting>,
}
