//! What a container is given when it is started: who it is, where the ApplicationMaster is found, and
//! the secret. All of it in environment variables and files, none of it on the command line.
//!
//! A child of `heddle run` finds everything in files. A container of YARN gets the first address in a variable
//! and later ones from a directory of the cluster's file system; what only NodeManagers know (container, host) is
//! believed there alone, because `heddle run` may itself have been started in a container.

use std::path::PathBuf;

use heddle_protocol::environment::{
    AM, AM_DIR, AM_FILE, AmAddress, BIND_HOST, INCARNATION, LOG_DIR, RUN, SECRET_FILE, SLOT,
};
use heddle_protocol::handshake::{HandshakeError, Secret};
use heddle_protocol::ids::{Incarnation, Member, RunId, Slot};

/// Set by NodeManagers: the container's id. (ApplicationConstants.Environment.CONTAINER_ID)
const CONTAINER_ID: &str = "CONTAINER_ID";
/// Set by NodeManagers: the node's host name. (ApplicationConstants.Environment.NM_HOST)
const NM_HOST: &str = "NM_HOST";
/// Set by NodeManagers: the container's log folders, one a disk, with commas between.
/// (ApplicationConstants.Environment.LOG_DIRS)
const LOG_DIRS: &str = "LOG_DIRS";

/// A container's place in the world.
#[derive(Clone, Debug)]
pub struct Environment {
    /// The run.
    pub run: RunId,
    /// Who this is.
    pub member: Member,
    /// Where the ApplicationMaster's address is written.
    pub am: AmPlace,
    /// The job's secret.
    pub secret: Secret,
    /// Name or address of this node: to bind, and for people.
    pub host: String,
    /// YARN's id of this container.
    pub container: Option<String>,
}

/// Where the ApplicationMaster's address is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AmPlace {
    /// In this file, rewritten by each attempt.
    File(PathBuf),
    /// In a file per attempt in this directory.
    Directory {
        /// Who started this container; needs no look-up.
        first: Option<AmAddress>,
        /// URL of the directory.
        url: String,
    },
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
        let lookup = |name: &'static str| std::env::var(name).ok();
        let secret = secret_of_file(&lookup)?;
        Self::from_lookup(lookup, secret)
    }

    /// Reads the variables; the secret came another way.
    ///
    /// # Errors
    /// Names the variable, its value, and what was expected.
    pub fn with_secret(secret: Secret) -> Result<Self, EnvironmentError> {
        Self::from_lookup(|name| std::env::var(name).ok(), secret)
    }

    fn from_lookup(
        lookup: impl Fn(&'static str) -> Option<String>,
        secret: Secret,
    ) -> Result<Self, EnvironmentError> {
        let lookup = |name| lookup(name).filter(|value| !value.is_empty());
        let value = |name| lookup(name).ok_or(EnvironmentError::Missing(name));
        let run = RunId(parsed(RUN, value(RUN)?, "a uuid")?);
        let slot: Slot = parsed(SLOT, value(SLOT)?, "a slot like pserver-0")?;
        let incarnation = Incarnation(parsed(INCARNATION, value(INCARNATION)?, "a number from 1")?);
        let am = match lookup(AM_DIR) {
            Some(url) => AmPlace::Directory {
                first: lookup(AM)
                    .map(|text| parsed(AM, text, "<address>:<port>/<attempt>/<pid>"))
                    .transpose()?,
                url,
            },
            None => AmPlace::File(PathBuf::from(value(AM_FILE)?)),
        };
        let in_yarn = matches!(am, AmPlace::Directory { .. });
        let of_node = |name| lookup(name).filter(|_| in_yarn);
        Ok(Self {
            run,
            member: Member { slot, incarnation },
            am,
            secret,
            host: lookup(BIND_HOST)
                .or_else(|| of_node(NM_HOST))
                .unwrap_or_else(|| "localhost".to_owned()),
            container: of_node(CONTAINER_ID),
        })
    }
}

/// The folder for this process's log files: what `heddle run` says, else the first of those that the NodeManager
/// gave this container, from where YARN collects them.
#[must_use]
pub fn log_dir() -> Option<PathBuf> {
    log_dir_of(|name| std::env::var(name).ok())
}

fn log_dir_of(lookup: impl Fn(&'static str) -> Option<String>) -> Option<PathBuf> {
    let said = lookup(LOG_DIR).filter(|dir| !dir.is_empty());
    let first = || {
        let dirs = lookup(LOG_DIRS)?;
        let first = dirs.split(',').map(str::trim).find(|dir| !dir.is_empty());
        first.map(str::to_owned)
    };
    said.or_else(first).map(PathBuf::from)
}

fn parsed<T: std::str::FromStr>(
    name: &'static str,
    value: String,
    expected: &'static str,
) -> Result<T, EnvironmentError> {
    value.parse().map_err(|_| EnvironmentError::Invalid { name, value, expected })
}

fn secret_of_file(
    lookup: &impl Fn(&'static str) -> Option<String>,
) -> Result<Secret, EnvironmentError> {
    let path = lookup(SECRET_FILE).ok_or(EnvironmentError::Missing(SECRET_FILE))?;
    let path = PathBuf::from(path);
    let text = std::fs::read_to_string(&path)
        .map_err(|source| EnvironmentError::Secret { path: path.clone(), source })?;
    Secret::from_hex(&text).map_err(|source| EnvironmentError::SecretForm { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_protocol::ids::Attempt;

    fn secret() -> Secret {
        Secret::from_hex(&"07".repeat(32)).expect("64 digits")
    }

    fn of_run(name: &str) -> Option<String> {
        let value = match name {
            RUN => "00000000-0000-0000-0000-000000000001",
            SLOT => "trainer-2",
            INCARNATION => "3",
            AM_FILE => "/nowhere/am.json",
            SECRET_FILE => "/nowhere/secret",
            // `heddle run` in a container of somebody else's.
            CONTAINER_ID => "container_1_0001_01_000009",
            NM_HOST => "node-9",
            _ => return None,
        };
        Some(value.to_owned())
    }

    fn of_yarn(name: &str) -> Option<String> {
        match name {
            AM_DIR => Some("hdfs:///user/alice/.heddle/staging/a/am".to_owned()),
            AM => Some("10.0.0.1:4000/2/77".to_owned()),
            AM_FILE | SECRET_FILE => None,
            name => of_run(name),
        }
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let error = secret_of_file(&|name| of_run(name)).expect_err("the secret cannot be read");
        assert!(error.to_string().contains("/nowhere/secret"), "{error}");
        let error = secret_of_file(&|_| None).expect_err("no variable");
        assert!(error.to_string().contains(SECRET_FILE), "{error}");
        for name in [RUN, SLOT, INCARNATION, AM_FILE] {
            let without = |asked| if asked == name { None } else { of_run(asked) };
            let error = Environment::from_lookup(without, secret()).expect_err("one is missing");
            assert!(error.to_string().contains(name), "{error}");
        }
        for (wrong, value) in [(SLOT, "cook-1"), (AM, "10.0.0.1")] {
            let other = |asked| {
                if asked == wrong { Some(value.to_owned()) } else { of_yarn(asked) }
            };
            let error = Environment::from_lookup(other, secret()).expect_err("no such form");
            assert!(error.to_string().contains(value), "{error}");
        }
    }

    #[test]
    fn logs_go_where_heddle_says_or_to_the_first_disk_of_the_container() {
        let of = |dir: Option<&'static str>, dirs: Option<&'static str>| {
            log_dir_of(move |name| {
                let value = if name == LOG_DIR { dir } else { dirs };
                value.map(str::to_owned)
            })
        };
        assert_eq!(of(Some("/a"), Some("/b,/c")), Some(PathBuf::from("/a")));
        assert_eq!(of(None, Some("/b,/c")), Some(PathBuf::from("/b")));
        assert_eq!(of(Some(""), Some("")), None);
        assert_eq!(of(None, None), None);
    }

    #[test]
    fn what_a_node_manager_says_counts_on_yarn_alone() {
        let run = Environment::from_lookup(of_run, secret()).expect("whole");
        assert_eq!((run.host.as_str(), run.container), ("localhost", None));
        assert_eq!(run.am, AmPlace::File(PathBuf::from("/nowhere/am.json")));
        let yarn = Environment::from_lookup(of_yarn, secret()).expect("whole");
        assert_eq!(yarn.host, "node-9");
        assert_eq!(yarn.container, of_run(CONTAINER_ID));
        let AmPlace::Directory { first: Some(first), .. } = yarn.am else {
            panic!("{:?}", yarn.am)
        };
        assert_eq!(first.attempt, Attempt(2));
    }
}
