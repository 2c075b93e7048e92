//! `[yarn]` and `[submit]`: what a cluster is asked for. A run on one machine ignores both.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::file::section::section;
use super::file::take::Take;
use super::file::{paths, values};
use super::limits::{ATTEMPTS_MAX, PRIORITY_MAX};
use super::location::Location;
use super::memory_retry::MemoryRetry;
use super::secret_source::SecretSource;
use super::shipped_file::FileSpec;
use super::value::{Bytes, DurationMs, Share};

/// Most tags of an application (`yarn.resourcemanager.application.max-tags` of an untouched cluster).
pub const TAGS_MAX: usize = 10;
/// Longest tag in bytes (`yarn.resourcemanager.application.max-tag.length`).
pub const TAG_BYTES_MAX: usize = 100;

section! {
    (take, key)
    #[serde(default)]
    pub struct SubmitSpec = ["submit"] "Submission to a cluster." {
        /// Most local data that submit uploads for the job; more belongs on HDFS before.
        key upload_limit: Bytes = "submit.upload-limit",
            Value("\"64MiB\""), Freely + site, read(take.parse(key));
        /// The program that containers run, such as the released one, which old systems can load.
        /// Empty: the one that submits.
        key binary: Option<PathBuf> = "submit.binary",
            Value("\"\""), Freely + site, read(paths::local_path(take, key));
        /// Directory on HDFS with programs that all users may run, which heddle install fills: a
        /// job uses its program from there instead of a copy of its own. Empty: none.
        key binary_dir: Option<Location> = "submit.binary-dir",
            Value("\"\""), Freely + site, read(paths::on_hdfs(take, key));
        /// Directory on HDFS for the files of a user's jobs, such as "hdfs://ns1/user/{user}";
        /// {user} is the user's name. Empty: the home directory on fs.defaultFS if that is HDFS or
        /// viewfs, else on the only name service.
        #[serde(skip_serializing_if = "Option::is_none")]
        key staging: Option<String> = "submit.staging",
            Value("\"\""), Freely + site, read(paths::home(take, key));
        /// How long commands wait for a ResourceManager that does not respond, as during a
        /// failover; the flag --rm-wait goes first. A duration, or "auto":
        /// yarn.resourcemanager.connect.max-wait.ms if yarn-site.xml sets it, else 60s.
        #[serde(skip_serializing_if = "Option::is_none")]
        key rm_wait: Option<DurationMs> = "submit.rm-wait",
            Value("\"auto\""), Freely + site, read(take.optional(key, "auto"));
    }
}

section! {
    (take, key)
    #[serde(default)]
    pub struct YarnSpec = ["yarn"] "What YARN is asked for; a run on this machine ignores it." {
        /// Queue, by its name or its path.
        #[note = "Never empty."]
        key queue: String = "yarn.queue", Value("\"default\""), Freely + site, read(take.text(key));
        /// Priority within the queue; higher is earlier.
        key priority: u32 = "yarn.priority", Value("0"), Freely + site, range(0, PRIORITY_MAX);
        /// Tags of the application, at most 10, each at most 100 ASCII characters; YARN keeps them
        /// in lower case.
        #[note = "At most [`TAGS_MAX`], in lower case, ASCII, 1 to [`TAG_BYTES_MAX`] bytes each."]
        key tags: Vec<String> = "yarn.tags",
            Value("[]"), Freely + site, read(take.with(key, values::tags));
        /// Only on nodes of this label. Empty: the queue's default.
        key node_label: Option<String> = "yarn.node-label",
            Value("\"\""), Freely + site, read(values::node_label(take, key));
        /// How often the ApplicationMaster may be started; the cluster may allow fewer. Training
        /// continues during a restart.
        key max_attempts: u32 = "yarn.max-attempts",
            Value("2"), Freely + site, range(1, ATTEMPTS_MAX);
        /// How long to wait for all pservers and trainers.min trainers; then the job releases its
        /// containers and ends with exit code 75.
        key allocation_timeout: DurationMs = "yarn.allocation-timeout",
            Value("\"10min\""), Freely + site, read(take.parse(key));
        /// Memory asked for beyond what a process may use: a percentage of that, or a size.
        #[note = "See [`JobSpec::container_memory`](super::JobSpec::container_memory)."]
        key memory_overhead: Share = "yarn.memory-overhead",
            Value("\"10%\""), Freely + site, read(take.parse(key));
        /// After YARN ended a container for its memory, request it again with factor (1 to 10)
        /// times the memory, at most this number of times (0 to 10; 0: never).
        key memory_retry: MemoryRetry = "yarn.memory-retry",
            Value("{ factor = 1.5, times = 1 }"), Freely + site,
            read(take.with(key, values::memory_retry));
        /// Users and groups that may view the application besides you: "user,user group,group" or
        /// "*".
        key view_acl: String = "yarn.view-acl", Value("\"\""), Freely + site, read(take.text(key));
        /// Users and groups that may kill the application besides you, in the same form.
        key modify_acl: String = "yarn.modify-acl",
            Value("\"\""), Freely + site, read(take.text(key));
        /// Files that containers find in their work directory: "path", or "path#name" for another
        /// name there. Local ones are uploaded.
        key files: Vec<FileSpec> = "yarn.files",
            Value("[]"), Freely + site, read(paths::files(take, key));
        /// Archives (.zip, .tar, .tar.gz, .tgz, .jar) that containers find unpacked in a folder of
        /// that name: "path" or "path#name".
        key archives: Vec<FileSpec> = "yarn.archives",
            Value("[]"), Freely + site, read(paths::files(take, key));
        /// Keytab for a job that runs longer than its HDFS tokens: the ApplicationMaster logs in by
        /// it and fetches others. It is uploaded, for the ApplicationMaster alone. The command line
        /// logs in by it too, unless --keytab names another.
        key keytab: Option<PathBuf> = "yarn.keytab",
            Value("\"\""), Freely + site, read(paths::local_path(take, key));
        /// Principal of yarn.keytab. Empty: the keytab's first one.
        key principal: Option<String> = "yarn.principal",
            Value("\"\""), Freely + site, read(values::principal(take, key));
        /// Environment variables of containers. Not for secrets, which yarn.secrets takes: others
        /// on the cluster can read them.
        key env: BTreeMap<String, String> = "yarn.env",
            Value("{}"), Freely + site, read(take.with(key, values::env));
        /// Secrets for the program of trainers.command, such as { DB_PASSWORD =
        /// "file:password.txt", API_KEY = "env:API_KEY" }: submit reads them, and they travel in
        /// the containers' credentials. The program finds each in the file that the variable
        /// NAME_FILE names.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        key secrets: BTreeMap<String, SecretSource> = "yarn.secrets",
            Value("{}"), Freely + site, read(paths::secrets(take, key));
    }
}

impl Default for SubmitSpec {
    fn default() -> Self {
        Take::defaults(Self::read)
    }
}

impl Default for YarnSpec {
    fn default() -> Self {
        Take::defaults(Self::read)
    }
}
