//! What a container is given when it is started: who it is, where the ApplicationMaster is found, and
//! the secret. All of it in environment variables and files, none of it on the command line.

use std::path::PathBuf;

use heddle_protocol::environment::{AM_FILE, INCARNATION, RUN, SECRET_FILE, SLOT};
use heddle_protocol::handshake::{HandshakeError, Secret};
use heddle_protocol::ids::{Incarnation, Member, RunId, Slot};

/// A container's place in the world.
#[derive(Clone, Debug)]
pub struct Environment {
    /// The run.
    pub run: RunId,
    /// Who this is.
    pub member: Member,
    /// Where the ApplicationMaster's address is written.
    pub am_file: PathBuf,
    /// The job's secret.
    pub secret: Secret,
}

/// A container that was started without what it needs.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    /// A variable is not there or not text.
    #[error(
        "environment variable {0} is not set: this command is started by a Heddle job, not by hand"
    )]
    Missing(&'static str),
    /// A variable has a value of another form.
    #[error("environment variable {name} is {value:?}, expected {expected}")]
    Invalid {
        /// Which.
        name: &'static str,
        /// What it holds.
        value: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// The secret's file cannot be read.
    #[error("cannot read the job's secret from {path}")]
    Secret {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The secret's file has other content.
    #[error("{path}: {source}")]
    SecretForm {
        /// The file.
        path: PathBuf,
        /// Why.
        source: HandshakeError,
    },
}

impl Environment {
    /// Reads the variables and the secret's file.
    ///
    /// # Errors
    /// Names the variable or file, its value, and what was expected.
    pub fn from_process() -> Result<Self, EnvironmentError> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    fn from_lookup(
        lookup: impl Fn(&'static str) -> Option<String>,
    ) -> Result<Self, EnvironmentError> {
        fn parsed<T: std::str::FromStr>(
            name: &'static str,
            value: String,
            expected: &'static str,
        ) -> Result<T, EnvironmentError> {
            value.parse().map_err(|_| EnvironmentError::Invalid {
                name,
                value,
                expected,
            })
        }
        let value = |name| lookup(name).ok_or(EnvironmentError::Missing(name));
        let run = RunId(parsed(RUN, value(RUN)?, "a uuid")?);
        let slot: Slot = parsed(SLOT, value(SLOT)?, "a slot like pserver-0")?;
        let incarnation = Incarnation(parsed(INCARNATION, value(INCARNATION)?, "a number from 1")?);
        let am_file = PathBuf::from(value(AM_FILE)?);
        let path = PathBuf::from(value(SECRET_FILE)?);
        let text = std::fs::read_to_string(&path).map_err(|source| EnvironmentError::Secret {
            path: path.clone(),
            source,
        })?;
        let secret = Secret::from_hex(&text)
            .map_err(|source| EnvironmentError::SecretForm { path, source })?;
        Ok(Self {
            run,
            member: Member { slot, incarnation },
            am_file,
            secret,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let full = |name: &str| match name {
            RUN => Some("00000000-0000-0000-0000-000000000001".to_owned()),
            SLOT => Some("trainer-2".to_owned()),
            INCARNATION => Some("3".to_owned()),
            AM_FILE => Some("/nowhere/am.json".to_owned()),
            SECRET_FILE => Some("/nowhere/secret".to_owned()),
            _ => None,
        };
        let error = Environment::from_lookup(full).expect_err("the secret cannot be read");
        assert!(error.to_string().contains("/nowhere/secret"), "{error}");
        for name in [RUN, SLOT, INCARNATION, AM_FILE, SECRET_FILE] {
            let error =
                Environment::from_lookup(|asked| if asked == name { None } else { full(asked) })
                    .expect_err("one is missing");
            assert!(error.to_string().contains(name), "{error}");
        }
        let error = Environment::from_lookup(|name| {
            if name == SLOT {
                Some("cook-1".into())
            } else {
                full(name)
            }
        })
        .expect_err("no such slot");
        assert!(error.to_string().contains("cook-1"), "{error}");
    }
}
