//! Where values come from, and what is said about them to people.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::locate::ConfigDirectory;
use super::values::ValueProblem;

/// A value and where it was stated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropertySetting {
    /// As written, variables unexpanded.
    pub raw: String,
    /// Where.
    pub origin: PropertyOrigin,
}

/// Where a value was stated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropertyOrigin {
    /// Built in; the name of Hadoop's file.
    Default(&'static str),
    /// A file.
    File {
        /// The file, which may be an included one.
        path: Arc<Path>,
        /// Line of the property, counted from 1.
        line: u32,
    },
    /// Set by the program; who.
    Override(Arc<str>),
}

impl fmt::Display for PropertyOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default(file) => write!(f, "{file} (built in)"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Override(who) => f.write_str(who),
        }
    }
}

/// Something that a person who wonders about a value may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A file was read.
    Read(PathBuf),
    /// No such file in any directory.
    Missing {
        /// Its name.
        file: &'static str,
        /// The directories that were looked in.
        looked_in: Vec<ConfigDirectory>,
    },
    /// A second file of the same name differs from the first, which counts.
    Differs {
        /// The file that counts.
        used: PathBuf,
        /// The one that does not.
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

/// A value that cannot be used for what it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} = \"{value}\" ({origin}) {problem}")]
pub struct PropertyError {
    /// The key.
    pub key: String,
    /// The value, expanded as far as possible.
    pub value: String,
    /// Where it was stated.
    pub origin: PropertyOrigin,
    /// What is wrong.
    pub problem: ValueProblem,
}

/// All that is known of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The key's present name.
    pub key: String,
    /// The value, expanded.
    pub value: Result<String, PropertyError>,
    /// The value as written, and where.
    pub setting: PropertySetting,
    /// What it replaced, the latest first.
    pub hidden: Vec<PropertySetting>,
    /// Where the key was made final.
    pub sealed: Option<PropertyOrigin>,
    /// What was refused because the key was final.
    pub refused: Vec<PropertySetting>,
}
