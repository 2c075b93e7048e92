//! Where the submitting machine keeps a value that containers get as a secret (`yarn.secrets`).

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::location::Location;

/// The place of a secret. Written `file:<path>` or `env:<variable>`; the job file holds this, never the value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum SecretSource {
    /// The bytes of this file of the submitting machine.
    File(PathBuf),
    /// The value of this variable of the submitting process.
    Environment(String),
}

/// A text that names no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected \"file:path\" or \"env:VARIABLE\", never the secret itself")]
pub struct SecretSourceError;

impl SecretSource {
    /// Reads the text of a job file; a relative path starts from `base`.
    ///
    /// # Errors
    /// It names neither a file of this machine nor a variable. The message holds none of the text, which may be the
    /// secret.
    pub fn parse(text: &str, base: &Path) -> Result<Self, SecretSourceError> {
        match text.parse()? {
            Self::File(path) => {
                let path = Location::local(&base.join(path)).map_err(|_| SecretSourceError)?;
                Ok(Self::File(path.as_local().ok_or(SecretSourceError)?.to_owned()))
            }
            variable => Ok(variable),
        }
    }
}

impl FromStr for SecretSource {
    type Err = SecretSourceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            Some(("file", path)) if !path.is_empty() && !path.starts_with("//") => {
                Ok(Self::File(path.into()))
            }
            Some(("env", name)) if !name.is_empty() && !name.contains(['=', '\0']) => {
                Ok(Self::Environment(name.to_owned()))
            }
            _ => Err(SecretSourceError),
        }
    }
}

impl TryFrom<String> for SecretSource {
    type Error = SecretSourceError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<SecretSource> for String {
    fn from(source: SecretSource) -> Self {
        source.to_string()
    }
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Environment(name) => write!(f, "env:{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_files_and_variables() {
        let read =
            |text: &str| SecretSource::parse(text, Path::new("/jobs")).map(|it| it.to_string());
        assert_eq!(read("file:token"), Ok("file:/jobs/token".to_owned()));
        assert_eq!(read("file:/etc/token"), Ok("file:/etc/token".to_owned()));
        assert_eq!(read("env:DB_PASSWORD"), Ok("env:DB_PASSWORD".to_owned()));
        for wrong in ["", "canary", "file:", "env:", "env:A=b", "file://host/x", "hdfs:/x"] {
            let error = read(wrong).expect_err("names no place").to_string();
            assert!(!error.contains("canary"), "{error}");
        }
    }
}
