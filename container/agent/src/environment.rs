//! Settings of a container process: its slot, the address of the ApplicationMaster, and the job's secret. They come in
//! environment variables and files, never on the command line.
//!
//! A child of `heddle run` reads all of them from files. A container on YARN reads the first address from a variable and
//! later ones from a directory of the cluster's file system. Variables of the NodeManager (container, host) are used only
//! on YARN, since `heddle run` may itself run in a container.

#![expect(clippy::disallowed_methods, reason = "reads variables and files")]

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use heddle_channel::PeerTimeout;
use heddle_protocol::environment::{
    AM, AM_DIR, AM_FILE, AmAddress, BIND_HOST, DEAD_MS, INCARNATION, LOG_DIR, PROTECTION, RUN,
    SECRET_FILE, SLOT,
};
use heddle_protocol::handshake::{HandshakeError, Mechanism, Secret};
use heddle_protocol::ids::{Incarnation, Member, RunId, Slot};
use zeroize::Zeroizing;

/// Set by NodeManagers: the container's id. (ApplicationConstants.Environment.CONTAINER_ID)
const CONTAINER_ID: &str = "CONTAINER_ID";
/// Set by NodeManagers: the node's host name. (ApplicationConstants.Environment.NM_HOST)
const NM_HOST: &str = "NM_HOST";
/// Set by NodeManagers: the container's log folders, one a disk, with commas between.
/// (ApplicationConstants.Environment.LOG_DIRS)
const LOG_DIRS: &str = "LOG_DIRS";

/// Settings of a container process.
#[derive(Clone, Debug)]
pub struct ContainerEnvironment {
    /// The run.
    pub run: RunId,
    /// Slot and incarnation of this process.
    pub member: Member,
    /// Where the ApplicationMaster's address is written.
    pub am: AmPlace,
    /// The job's secret.
    pub secret: Secret,
    /// How its connections are secured.
    pub mechanism: Mechanism,
    /// When its connections to peers out of reach close.
    pub timeout: PeerTimeout,
    /// Secrets of the job's own program, on YARN.
    pub user_secrets: UserSecrets,
    /// Name or address of this node, to bind to and to show.
    pub host: String,
    /// YARN's id of this container.
    pub container: Option<String>,
}

/// The values of `yarn.secrets` by name: wiped from memory when they are dropped, and never printed.
#[derive(Clone, Default)]
pub struct UserSecrets(pub BTreeMap<String, Zeroizing<Vec<u8>>>);

impl fmt::Debug for UserSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Where the ApplicationMaster's address is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AmPlace {
    /// In this file, which each attempt replaces.
    File(PathBuf),
    /// In one file per attempt in this directory.
    Directory {
        /// The ApplicationMaster that started this container; needs no look-up.
        first: Option<AmAddress>,
        /// URL of the directory.
        url: String,
    },
}

/// A variable or file that a container needs is missing or malformed.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    /// A variable is missing or not text.
    #[error("environment variable {0} is not set: a Heddle job starts this command, users do not")]
    Missing(&'static str),
    /// A variable has a malformed value.
    #[error("environment variable {name} must be {expected} (got {value:?})")]
    Invalid {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// The form that it must have.
        expected: &'static str,
    },
    /// The secret's file cannot be read.
    #[error("cannot read the job's secret from {path}")]
    Secret {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The secret's file is malformed.
    #[error("{path} does not hold the job's secret: {source}")]
    SecretForm {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: HandshakeError,
    },
}

impl ContainerEnvironment {
    /// Reads the variables and the secret's file.
    ///
    /// # Errors
    /// Names the variable or file, its value, and what was expected.
    pub fn from_process() -> Result<Self, EnvironmentError> {
        let lookup = |name: &'static str| std::env::var(name).ok();
        let secret = secret_of_file(&lookup)?;
        Self::from_lookup(lookup, secret)
    }

    /// Reads the variables; the caller provides what the container's credentials hold.
    ///
    /// # Errors
    /// Names the variable, its value, and what was expected.
    pub fn with_secrets(
        secret: Secret,
        user_secrets: UserSecrets,
    ) -> Result<Self, EnvironmentError> {
        let environment = Self::from_lookup(|name| std::env::var(name).ok(), secret)?;
        Ok(Self { user_secrets, ..environment })
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
        // A malformed word must not mean plain bytes.
        let mechanism = match lookup(PROTECTION).as_deref() {
            None | Some("off") => Mechanism::Hmac,
            Some("on") => Mechanism::Noise,
            Some(other) => {
                let (name, value) = (PROTECTION, other.to_owned());
                return Err(EnvironmentError::Invalid { name, value, expected: "on or off" });
            }
        };
        let timeout = match lookup(DEAD_MS) {
            None => PeerTimeout::default(),
            Some(text) => {
                PeerTimeout(Duration::from_millis(parsed(DEAD_MS, text, "a number of ms")?))
            }
        };
        let in_yarn = matches!(am, AmPlace::Directory { .. });
        let of_node = |name| lookup(name).filter(|_| in_yarn);
        Ok(Self {
            run,
            member: Member { slot, incarnation },
            am,
            secret,
            mechanism,
            timeout,
            user_secrets: UserSecrets::default(),
            host: lookup(BIND_HOST)
                .or_else(|| of_node(NM_HOST))
                .unwrap_or_else(|| "localhost".to_owned()),
            container: of_node(CONTAINER_ID),
        })
    }
}

/// Folder of this process's log files: the one that `heddle run` sets, else the first one of the container on YARN, from
/// which YARN collects logs.
#[must_use]
pub fn log_dir() -> Option<PathBuf> {
    log_dir_of(|name| std::env::var(name).ok())
}

fn log_dir_of(lookup: impl Fn(&'static str) -> Option<String>) -> Option<PathBuf> {
    let named = lookup(LOG_DIR).filter(|dir| !dir.is_empty());
    let first = || {
        let dirs = lookup(LOG_DIRS)?;
        let first = dirs.split(',').map(str::trim).find(|dir| !dir.is_empty());
        first.map(str::to_owned)
    };
    named.or_else(first).map(PathBuf::from)
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
    let text = Zeroizing::new(text);
    Secret::from_hex(&text).map_err(|source| EnvironmentError::SecretForm { path, source })
}

/// Resident memory of this process, bytes; 0 if it is not known (proc(5), `VmRSS` of status).
#[must_use]
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
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
            // `heddle run` inside a container of another application.
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
    fn errors_name_the_missing_or_malformed_setting() {
        let error = secret_of_file(&|name| of_run(name)).expect_err("the secret cannot be read");
        assert!(error.to_string().contains("/nowhere/secret"), "{error}");
        let error = secret_of_file(&|_| None).expect_err("no variable");
        assert!(error.to_string().contains(SECRET_FILE), "{error}");
        for name in [RUN, SLOT, INCARNATION, AM_FILE] {
            let without = |asked| if asked == name { None } else { of_run(asked) };
            let error =
                ContainerEnvironment::from_lookup(without, secret()).expect_err("one is missing");
            assert!(error.to_string().contains(name), "{error}");
        }
        for (wrong, value) in
            [(SLOT, "cook-1"), (AM, "10.0.0.1"), (PROTECTION, "yes"), (DEAD_MS, "soon")]
        {
            let other = |asked| {
                if asked == wrong { Some(value.to_owned()) } else { of_yarn(asked) }
            };
            let error =
                ContainerEnvironment::from_lookup(other, secret()).expect_err("no such form");
            assert!(error.to_string().contains(value), "{error}");
        }
    }

    #[test]
    fn log_folder_is_that_of_heddle_or_the_first_of_the_container() {
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
    fn variables_of_node_managers_are_used_only_on_yarn() {
        let run = ContainerEnvironment::from_lookup(of_run, secret()).expect("whole");
        assert_eq!((run.host.as_str(), run.container), ("localhost", None));
        assert_eq!(run.am, AmPlace::File(PathBuf::from("/nowhere/am.json")));
        let yarn = ContainerEnvironment::from_lookup(of_yarn, secret()).expect("whole");
        assert_eq!(yarn.host, "node-9");
        assert_eq!(yarn.container, of_run(CONTAINER_ID));
        let AmPlace::Directory { first: Some(first), .. } = yarn.am else {
            panic!("{:?}", yarn.am)
        };
        assert_eq!(first.attempt, Attempt(2));
    }

    #[test]
    fn resident_memory_is_known() {
        assert!(resident_bytes() > 100_000);
    }
}
