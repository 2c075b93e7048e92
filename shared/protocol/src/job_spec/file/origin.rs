//! Where the value of a key comes from.

use std::fmt;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Not given.
    Default,
    /// A line of the job file.
    File {
        /// As the file was named on the command line.
        file: String,
        /// From 1.
        line: usize,
    },
    /// A line of the site's defaults.
    Site {
        /// Path of the file.
        file: String,
        /// From 1.
        line: usize,
    },
    /// The command line.
    Set {
        /// `key=value`.
        text: String,
        /// As it was given: `--set key=value`, `--queue ml`, `job.conf:3`.
        from: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { file, line } | Self::Site { file, line } => write!(f, "{file}:{line}"),
            Self::Set { from, .. } => f.write_str(from),
        }
    }
}

/// A value of the command line, which overrides the job file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyOverride {
    /// `key=value`.
    pub text: String,
    /// As it was given, for messages.
    pub from: String,
}

impl KeyOverride {
    /// An override by `--set`.
    #[must_use]
    pub fn set(text: &str) -> Self {
        Self { text: text.to_owned(), from: format!("--set {text}") }
    }
}
