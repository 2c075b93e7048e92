//! `[yarn]` and `[submit]`: what a cluster is asked for. A run on one machine ignores both.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::check::SpecError;
use super::job::JobSpec;
use super::location::Location;
use super::value::{Bytes, DurationMs, Share};

/// Most tags of an application (`yarn.resourcemanager.application.max-tags` of an untouched cluster).
pub const TAGS_MAX: usize = 10;
/// Longest tag in bytes (`yarn.resourcemanager.application.max-tag.length`).
pub const TAG_BYTES_MAX: usize = 100;
/// Most files and archives together: each is a copy on each node.
pub const FILES_MAX: usize = 1000;

/// Names in a container's work directory that are taken: ours, and those of the NodeManager.
const TAKEN: [&str; 9] = [
    "heddle",
    "conf",
    "run.json",
    "spec.json",
    "yarn.json",
    "tmp",
    "container_tokens",
    "launch_container.sh",
    "default_container_executor.sh",
];

/// `[yarn]`: what YARN is asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct YarnSpec {
    /// The queue, by its name or its path; never empty.
    pub queue: String,
    /// Priority within the queue; higher is earlier.
    pub priority: u32,
    /// Tags of the application, at most [`TAGS_MAX`], in lower case, ASCII, 1 to [`TAG_BYTES_MAX`] bytes each.
    pub tags: Vec<String>,
    /// Containers are asked for on nodes of this label alone; nothing: the queue's default.
    pub node_label: Option<String>,
    /// How often the ApplicationMaster may be started, 1 to 100. The cluster may allow fewer.
    pub max_attempts: u32,
    /// The job ends (exit code 4) when all pservers and `trainers.min` trainers are not there so long after
    /// they were asked for.
    pub allocation_timeout: DurationMs,
    /// How long a rollback waits for the container that replaces a lost pserver's. Then the other pservers take
    /// over its shards, as far as these fit into their memory, until it comes.
    pub replacement_timeout: DurationMs,
    /// Memory asked for beyond what a process may use, a share of that; see [`JobSpec::container_memory`].
    pub memory_overhead: Share,
    /// Who may look, as YARN writes it: `user,user group,group`, or `*`; empty: the submitter and administrators.
    pub view_acl: String,
    /// Who may kill, likewise.
    pub modify_acl: String,
    /// Files that every container finds in its work directory.
    pub files: Vec<FileSpec>,
    /// Archives that every container finds unpacked.
    pub archives: Vec<FileSpec>,
    /// Environment variables of every container.
    pub env: BTreeMap<String, String>,
    /// What happens to a slot whose container was ended for its memory.
    pub memory_retry: MemoryRetry,
}

impl Default for YarnSpec {
    fn default() -> Self {
        Self {
            queue: "default".to_owned(),
            priority: 0,
            tags: Vec::new(),
            node_label: None,
            max_attempts: 2,
            allocation_timeout: DurationMs::secs(600),
            replacement_timeout: replacement_timeout(),
            memory_overhead: Share::Percent(10),
            view_acl: String::new(),
            modify_acl: String::new(),
            files: Vec::new(),
            archives: Vec::new(),
            env: BTreeMap::new(),
            memory_retry: MemoryRetry::default(),
        }
    }
}

fn replacement_timeout() -> DurationMs {
    DurationMs::secs(30)
}

/// `[submit]`: what a submission ships.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct SubmitSpec {
    /// Most bytes of local data that are uploaded for the job.
    pub upload_limit: Bytes,
    /// The program that containers run; nothing: the one that submits.
    pub binary: Option<PathBuf>,
}

impl Default for SubmitSpec {
    fn default() -> Self {
        Self { upload_limit: Bytes::mib(64), binary: None }
    }
}

/// How a slot is asked for again after its container was ended for using more memory than it had.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryRetry {
    /// Each time so many times the memory before, 1 to 10.
    pub factor: f64,
    /// How often for a slot, at most 10; 0: the job fails the first time.
    pub times: u32,
}

impl Default for MemoryRetry {
    /// Once, with half as much again.
    fn default() -> Self {
        Self { factor: 1.5, times: 1 }
    }
}

impl MemoryRetry {
    /// The memory of a slot after `retries` containers were ended for their memory, whole MiB, from the memory that
    /// the spec gives it; nothing when there were more than [`times`](Self::times).
    #[must_use]
    pub fn memory(self, spec: Bytes, retries: u32) -> Option<Bytes> {
        if retries > self.times {
            return None;
        }
        let mut mib = spec.0.div_ceil(1 << 20);
        for _ in 0..retries.min(10) {
            // A factor of thousandths in whole numbers, so that every machine asks for the same.
            let thousandths = (self.factor.clamp(1.0, 10.0) * 1000.0).round() as u64;
            mib = mib.saturating_mul(thousandths).div_ceil(1000);
        }
        Some(Bytes(mib.saturating_mul(1 << 20)))
    }
}

/// A file and its name in a work directory. Written `path#name`, or `path`, whose last part is then the name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileSpec {
    /// Where it is.
    pub from: Location,
    /// One plain name.
    pub name: String,
}

impl FileSpec {
    /// Reads `path#name`; a path without scheme is local and relative to `base`.
    ///
    /// # Errors
    /// What was expected instead.
    pub fn parse(text: &str, base: &Path) -> Result<Self, String> {
        let (from, name) = match text.rsplit_once('#') {
            Some((from, name)) => (from, Some(name)),
            None => (text, None),
        };
        let from = Location::resolve(from, base).map_err(|error| error.to_string())?;
        let name = match name {
            Some(name) => name,
            None => from.path().rsplit('/').next().unwrap_or_default(),
        };
        let plain = !name.is_empty()
            && name.len() <= 255
            && !name.starts_with('.')
            && !name.contains(['/', '\n', '\\', '"', '\'', '$', '`'])
            && !name.chars().any(char::is_control);
        if !plain {
            return Err(format!(
                "{text:?}: expected a path, or path#name where name is one plain file name"
            ));
        }
        if TAKEN.contains(&name) {
            return Err(format!(
                "{text:?}: the name {name:?} is taken in a work directory; choose another, such as {text}#my-{name}"
            ));
        }
        Ok(Self { name: name.to_owned(), from })
    }
}

impl fmt::Display for FileSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.from, self.name)
    }
}

impl JobSpec {
    /// The memory that a container is asked for with, when its process may use `memory`:
    /// `yarn.memory-overhead` on top. (YARN counts all of a container's processes and their pages.)
    #[must_use]
    pub fn container_memory(&self, memory: Bytes) -> Bytes {
        Bytes(memory.0.saturating_add(self.yarn.memory_overhead.of(memory).0))
    }

    /// The rules of `[yarn]`, `[submit]` and `trainers.resources`.
    pub(super) fn check_yarn(&self) -> Result<(), SpecError> {
        let yarn = &self.yarn;
        let rule = |holds: bool, key: &'static str, rule: String| match holds {
            true => Ok(()),
            false => Err(SpecError::Rule { key, rule }),
        };
        let line = |text: &str| text.len() <= 1000 && !text.chars().any(char::is_control);
        rule(
            !yarn.queue.is_empty() && line(&yarn.queue),
            "yarn.queue",
            "must be the name of a queue".to_owned(),
        )?;
        rule(
            yarn.tags.len() <= TAGS_MAX,
            "yarn.tags",
            format!("{} tags, at most {TAGS_MAX}", yarn.tags.len()),
        )?;
        for tag in &yarn.tags {
            let fits = (1..=TAG_BYTES_MAX).contains(&tag.len())
                && tag.bytes().all(|b| b.is_ascii_graphic() && b != b',');
            let what = format!(
                "{tag:?} must be 1 to {TAG_BYTES_MAX} ASCII characters without space or comma"
            );
            rule(fits, "yarn.tags", what)?;
        }
        rule(
            (1..=100).contains(&yarn.max_attempts),
            "yarn.max-attempts",
            format!("is {}, must be from 1 to 100", yarn.max_attempts),
        )?;
        rule(
            yarn.allocation_timeout >= DurationMs::secs(1),
            "yarn.allocation-timeout",
            format!("is {}, must be at least 1s", yarn.allocation_timeout),
        )?;
        rule(
            yarn.replacement_timeout >= DurationMs::secs(1),
            "yarn.replacement-timeout",
            format!("is {}, must be at least 1s", yarn.replacement_timeout),
        )?;
        let retry = yarn.memory_retry;
        rule(
            (1.0..=10.0).contains(&retry.factor) && retry.times <= 10,
            "yarn.memory-retry",
            format!(
                "factor is {}, must be from 1 to 10; times is {}, must be at most 10",
                retry.factor, retry.times
            ),
        )?;
        for (key, acl) in [("yarn.view-acl", &yarn.view_acl), ("yarn.modify-acl", &yarn.modify_acl)]
        {
            rule(line(acl), key, "must be one line".to_owned())?;
        }
        self.check_files()?;
        self.check_env()?;
        for (name, amount) in &self.trainers.resources {
            let plain = !name.is_empty()
                && name.len() <= 200
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./".contains(&b));
            rule(
                plain && *amount <= i64::MAX as u64,
                "trainers.resources",
                format!(
                    "{name:?} = {amount}: expected a resource of the cluster, such as \"yarn.io/gpu\", and how many"
                ),
            )?;
            rule(
                !["memory", "memory-mb", "vcores"].contains(&name.as_str()),
                "trainers.resources",
                format!("{name:?} has keys of its own: trainers.memory and trainers.vcores"),
            )?;
        }
        Ok(())
    }

    fn check_files(&self) -> Result<(), SpecError> {
        let yarn = &self.yarn;
        let mut names = std::collections::BTreeSet::new();
        let all = yarn.files.iter().map(|file| ("yarn.files", file));
        let all = all.chain(yarn.archives.iter().map(|file| ("yarn.archives", file)));
        for (key, file) in all {
            if !names.insert(&file.name) || names.len() > FILES_MAX {
                let rule = format!(
                    "{:?} is the name of two files in the work directory, or there are more than {FILES_MAX}; name one of them otherwise by path#name",
                    file.name
                );
                return Err(SpecError::Rule { key, rule });
            }
        }
        Ok(())
    }

    fn check_env(&self) -> Result<(), SpecError> {
        for (name, value) in &self.yarn.env {
            let plain = name.len() <= 200
                && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            let ours = name.starts_with("HEDDLE_");
            let fits = value.len() <= 32 << 10 && !value.contains(['\0', '\n']);
            if !plain || ours || !fits {
                let rule = format!(
                    "{name:?}: expected a name of letters, digits and \"_\" that does not start with HEDDLE_, and a value of one line, at most 32 KiB"
                );
                return Err(SpecError::Rule { key: "yarn.env", rule });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::spec::job::sample;

    fn file(text: &str) -> Result<String, String> {
        FileSpec::parse(text, Path::new("/jobs")).map(|file| file.to_string())
    }

    fn refused(change: impl FnOnce(&mut JobSpec)) -> String {
        let mut spec = sample();
        change(&mut spec);
        spec.check().unwrap_err().to_string()
    }

    #[test]
    fn a_file_has_the_name_after_the_hash_or_its_own() {
        assert_eq!(file("a.txt").unwrap(), "/jobs/a.txt#a.txt");
        assert_eq!(file("d/a.txt#b").unwrap(), "/jobs/d/a.txt#b");
        assert_eq!(file("hdfs:///x/y.zip#d").unwrap(), "hdfs:///x/y.zip#d");
        for text in ["", "#b", "a#", "a#b/c", "a#..", "/", "a#$(x)", "a#b\nc"] {
            assert!(file(text).is_err(), "{text}");
        }
        assert!(file("a#heddle").unwrap_err().contains("is taken"));
        assert!(file("bin/heddle").unwrap_err().contains("#my-heddle"));
    }

    #[test]
    fn two_files_of_one_name_are_refused() {
        let text = refused(|spec| {
            spec.yarn.files = vec![FileSpec::parse("a/x", Path::new("/")).unwrap()];
            spec.yarn.archives = vec![FileSpec::parse("b/x", Path::new("/")).unwrap()];
        });
        assert!(text.starts_with("yarn.archives: \"x\" is the name of two"), "{text}");
    }

    #[test]
    fn what_yarn_would_refuse_is_refused_first() {
        for (change, key) in [
            ((|y| y.queue.clear()) as fn(&mut YarnSpec), "yarn.queue"),
            (|y| y.tags = vec!["x".to_owned(); 11], "yarn.tags"),
            (|y| y.tags = vec!["a,b".to_owned()], "yarn.tags"),
            (|y| y.max_attempts = 0, "yarn.max-attempts"),
            (|y| y.memory_retry.factor = f64::NAN, "yarn.memory-retry"),
            (|y| y.env = [("A B".to_owned(), String::new())].into(), "yarn.env"),
            (|y| y.env = [("HEDDLE_RUN".to_owned(), String::new())].into(), "yarn.env"),
        ] {
            let text = refused(|spec| change(&mut spec.yarn));
            assert!(text.starts_with(&format!("{key}: ")), "{text}");
        }
        let text = refused(|spec| {
            spec.trainers.resources = [("vcores".to_owned(), 1)].into();
        });
        assert!(text.contains("trainers.vcores"), "{text}");
    }

    #[test]
    fn memory_grows_by_the_factor_and_only_so_often() {
        let retry = MemoryRetry::default();
        assert_eq!(retry.memory(Bytes::mib(512), 0), Some(Bytes::mib(512)));
        assert_eq!(retry.memory(Bytes::mib(512), 1), Some(Bytes::mib(768)));
        assert_eq!(retry.memory(Bytes::mib(512), 2), None);
    }

    #[test]
    fn the_overhead_comes_on_top() {
        let mut spec = sample();
        assert_eq!(spec.container_memory(Bytes(1000)), Bytes(1100));
        spec.yarn.memory_overhead = Share::Bytes(Bytes(0));
        assert_eq!(spec.container_memory(Bytes(1000)), Bytes(1000));
    }
}
