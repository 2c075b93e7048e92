//! Files of an application on the cluster's file system: what `heddle submit` writes for the ApplicationMaster, and what
//! stays after the end.
//!
//! ```text
//! <home>/.heddle/                     0700, <home> follows from submit.staging, else it is the user's home on HDFS
//!   bin/heddle-<hash>[.json]          the binary, named by its content, with its record, shared by all jobs of the user
//!   tokens/<hash of a submit token>   the application that was submitted with it
//!   data/<hash>/                      small local data of a submission, named by its content: a job that is
//!                                     continued has to find its input under the same name
//!   staging/<application id>/         deleted at the end
//!     run.json spec.json yarn.json    also localised into the ApplicationMaster's work directory
//!     secret                          0600; by it the same user commands the job from another shell
//!     heddle.keytab                   0600; for the ApplicationMaster alone, where the job has one
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
//! Where the program is the site's and the job has a keytab, the files of the ApplicationMaster travel in its credentials
//! (`carried_files`), and the keytab is not staged. In a container's work directory the resources have the names that
//! [`YarnFile::resources`] gives them; the job's secret is in the container's credentials under [`SECRET_ALIAS`].

use std::collections::BTreeMap;

use heddle_yarn::Visibility;
use serde::{Deserialize, Serialize};

/// Directory below the user's home.
pub const HOME_DIR: &str = ".heddle";
/// Name of the file with the job's secret (64 hexadecimal digits) in the staging directory. With it the same user
/// controls the job from another shell.
pub const STAGED_SECRET: &str = "secret";
/// Alias of the job's secret (its 64 hexadecimal digits) in a container's credentials.
pub const SECRET_ALIAS: &str = "heddle.job.secret";
/// Begins the alias of a secret of `yarn.secrets` in a container's credentials; its name follows.
pub const USER_SECRET_PREFIX: &str = "heddle.secret.";
/// Name of the binary in a work directory.
pub const PROGRAM: &str = "heddle";
/// Name of the job's keytab in the ApplicationMaster's work directory. No other container has it.
pub const KEYTAB: &str = "heddle.keytab";
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
    /// The principal of the job's keytab (`yarn.keytab`), which is [`KEYTAB`] in the ApplicationMaster's work directory
    /// alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keytab_principal: Option<String>,
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
    /// Which applications use one copy per node.
    pub visibility: StagedVisibility,
}

/// Which applications use one copy of a file per node, and by whose permission a NodeManager reads it
/// (`LocalResourceVisibility`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StagedVisibility {
    /// The application, by its tokens.
    Application,
    /// All of the user, by the tokens of the application.
    Private,
    /// All of all users. The NodeManager reads it by its own login, so no token is needed.
    Public,
}

impl From<StagedVisibility> for Visibility {
    fn from(visibility: StagedVisibility) -> Self {
        match visibility {
            StagedVisibility::Application => Self::Application,
            StagedVisibility::Private => Self::Private,
            StagedVisibility::Public => Self::Public,
        }
    }
}
