//! Files of an application on the cluster's file system: what `heddle submit` writes for the ApplicationMaster, and what
//! stays after the end.
//!
//! ```text
//! <home>/.heddle/                     0700, <home> is the user's home on fs.defaultFS
//!   bin/heddle-<hash>                 the binary, named by its content, shared by all jobs of the user
//!   tokens/<hash of a submit token>   the application that was submitted with it
//!   data/<hash>/                      small local data of a submission, named by its content: a job that is
//!                                     continued has to find its input under the same name
//!   staging/<application id>/         deleted at the end
//!     run.json spec.json yarn.json    also localised into the ApplicationMaster's work directory
//!     secret                          0600; by it the same user commands the job from another shell
//!     conf/ files/                    configuration and files of the submission
//!     past/<attempt>-<n>.json         the attempts' history, for the next one; the newest
//!     plan-<digest>.json              the input plan, written by the first attempt and read by trainers
//!     am/<attempt>.json               address of that attempt of the ApplicationMaster, written once
//!   reports/<application id>/         stays
//!     spec.json                       the resolved job file
//!     report.json report.txt
//!     logs/<slot>-<incarnation>/…     last bytes of the logs of containers that failed
//! ```
//!
//! In a container's work directory the resources have the names that [`YarnFile::resources`] gives them;
//! the job's secret is in the container's credentials under [`SECRET_ALIAS`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Directory below the user's home.
pub const HOME_DIR: &str = ".heddle";
/// Alias of the job's secret (its 64 hexadecimal digits) in a container's credentials.
pub const SECRET_ALIAS: &str = "heddle.job.secret";
/// Name of the binary in a work directory.
pub const PROGRAM: &str = "heddle";
/// Directory of Hadoop's configuration in a work directory; `HADOOP_CONF_DIR` points there.
pub const CONF_DIR: &str = "conf";
/// Name of [`YarnFile`] in the ApplicationMaster's work directory.
pub const YARN_FILE: &str = "yarn.json";

/// The variable that limits the arenas of the C library's allocator, and how many there may be. Each reserves 64 MiB of
/// address space, and by default there may be eight for each core: a small container would be ended for virtual memory
/// that it never touches (`yarn.nodemanager.vmem-check-enabled`).
const ARENAS: (&str, &str) = ("MALLOC_ARENA_MAX", "4");

/// The command of a container: this program, as `arguments` say, with the limit of arenas that `env` (`yarn.env`) names,
/// or else ours.
///
/// The limit is set by `env`, not in the launch context: NodeManagers append the context's value to itself
/// (`yarn.nodemanager.admin-env`), and glibc from 2.39 on takes `4:4` for no number.
#[must_use]
pub fn command(arguments: &[&str], env: &BTreeMap<String, String>) -> Vec<String> {
    let (name, default) = ARENAS;
    let arenas = env.get(name).map_or(default, String::as_str);
    let first = ["env".to_owned(), format!("{name}={arenas}"), format!("./{PROGRAM}")];
    let arguments = arguments.iter().map(|argument| (*argument).to_owned());
    first.into_iter().chain(arguments).collect()
}

/// `yarn.json`: what an ApplicationMaster on YARN has to know besides run and spec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct YarnFile {
    /// The application's id, as YARN writes it.
    pub application: String,
    /// The submitting user: `HADOOP_USER_NAME` of every container.
    pub user: String,
    /// The staging directory, as a URL.
    pub staging: String,
    /// The directory of the report, as a URL.
    pub reports: String,
    /// How many attempts were asked for; the ResourceManager may allow fewer and need not count all.
    pub max_attempts: u32,
    /// What every container gets in its work directory, by name there.
    pub resources: BTreeMap<String, StagedFile>,
    /// Variables that every container gets (`yarn.env`).
    pub env: BTreeMap<String, String>,
}

/// A file on the cluster's file system that NodeManagers copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedFile {
    /// Where it is.
    pub url: String,
    /// Its length.
    pub bytes: u64,
    /// Its modification time, ms since 1970, as its file system reports it; another one fails localisation.
    pub modified_ms: u64,
    /// Whether it is unpacked.
    pub archive: bool,
    /// Whether one copy per node serves all of the user's applications (else one per application).
    pub shared: bool,
}
