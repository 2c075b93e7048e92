//! Flags and properties as users of Spark and Hadoop type them. Each stands for one key, or is refused with the key to
//! use.

use std::path::{Path, PathBuf};

use heddle_hadoop::configuration::StatedValue;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::file::KeyOverride;
use heddle_protocol::job_spec::file::keys::{GROUPS, find, slip};

use super::foreign_keys;
use super::properties::{self, PropertyLine};
use crate::failure::{CommandFailure, OrFail};

/// The beginnings of Hadoop's keys that a client uses.
const HADOOP: &[&str] =
    &["dfs.", "fs.", "ha.", "hadoop.", "io.", "ipc.", "net.", "rpc.", "security.", "ssl.", "yarn."];

#[derive(Clone, Debug, Default, clap::Args)]
pub struct ToolFlags {
    /// Set a key of the job file, else one of Hadoop's configuration; may be repeated
    #[arg(long, short = 'D', value_name = "KEY=VALUE", value_parser = property)]
    conf: Vec<String>,
    /// Read such keys from a file with `key=value` or `key value` on each line
    #[arg(long, value_name = "FILE")]
    properties_file: Option<PathBuf>,
    /// Set the most trainers (trainers.max)
    #[arg(long, visible_alias = "num-executors", value_name = "N")]
    num_workers: Option<u32>,
    /// Set the memory of a trainer (trainers.memory)
    #[arg(long, visible_alias = "executor-memory", value_name = "SIZE", value_parser = size)]
    worker_memory: Option<String>,
    /// Set the vcores of a trainer (trainers.vcores)
    #[arg(long, visible_alias = "executor-cores", value_name = "N")]
    worker_cores: Option<u32>,
    /// Set the number of parameter servers (pservers.count)
    #[arg(long, value_name = "N")]
    num_ps: Option<u32>,
    /// Set the memory of a parameter server (pservers.memory)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    ps_memory: Option<String>,
    /// Set the memory of the ApplicationMaster (am.memory)
    #[arg(long, visible_alias = "driver-memory", value_name = "SIZE", value_parser = size)]
    am_memory: Option<String>,
    /// Accept `yarn`, where jobs are submitted to in any case
    #[arg(long, value_parser = master)]
    master: Option<String>,
    /// Accept `cluster`: the ApplicationMaster always runs there
    #[arg(long, value_name = "MODE", value_parser = deploy_mode)]
    deploy_mode: Option<String>,
}

fn property(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((key, _)) if !key.trim().is_empty() => Ok(text.to_owned()),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

/// A size with its unit. Spark takes a number alone for MiB, a job file for bytes.
fn size(text: &str) -> Result<String, String> {
    match text.parse::<heddle_protocol::job_spec::Bytes>() {
        Ok(_) if text.ends_with(|c: char| c.is_ascii_alphabetic()) => Ok(text.to_owned()),
        _ => Err("expected a size with its unit, such as 4g or 512MiB".to_owned()),
    }
}

fn master(text: &str) -> Result<String, String> {
    match text {
        "yarn" => Ok(text.to_owned()),
        text if text.starts_with("local") => {
            Err("a job is submitted to YARN; `heddle run` trains on this machine".to_owned())
        }
        _ => Err("expected yarn; HADOOP_CONF_DIR names the cluster".to_owned()),
    }
}

fn deploy_mode(text: &str) -> Result<String, String> {
    match text {
        "cluster" => Ok(text.to_owned()),
        "client" => Err("the ApplicationMaster always runs on the cluster; \
            --on-interrupt states what Ctrl-C does to the job"
            .to_owned()),
        _ => Err("expected cluster".to_owned()),
    }
}

/// What a command line states: keys of the job, and keys of Hadoop's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatedKeys {
    /// In the order in which they count, the later winning.
    pub job: Vec<KeyOverride>,
    /// In the same order.
    pub hadoop: Vec<StatedValue>,
}

impl StatedKeys {
    /// Adds a property, or the reason why it is refused.
    fn add(&mut self, key: &str, value: &str, from: String, refused: &mut Vec<String>) {
        match of_job(key) {
            Ok(true) => self.job.push(KeyOverride { text: format!("{key}={value}"), from }),
            Ok(false) => {
                self.hadoop.push(StatedValue { key: key.to_owned(), value: value.to_owned(), from })
            }
            Err(why) => refused.push(format!("{from}: {key} {why}")),
        }
    }
}

/// Whether a property is a key of the job (else of Hadoop's configuration).
fn of_job(key: &str) -> Result<bool, String> {
    if let Some(why) = foreign_keys::refusal(key) {
        return Err(why);
    }
    // `yarn.env.NAME` and `model.optimizer.alpha` are fields of a key.
    let is_own = key.match_indices('.').map(|(at, _)| &key[..at]).chain([key]);
    if is_own.into_iter().any(|path| find(path).is_some()) {
        return Ok(true);
    }
    if let Some(meant) = slip(key) {
        return Err(format!("is unknown; did you mean {meant}?"));
    }
    if HADOOP.iter().any(|prefix| key.starts_with(prefix)) {
        return Ok(false);
    }
    let section = key.split('.').next().unwrap_or_default();
    match GROUPS.iter().any(|group| group.name == section && !section.is_empty()) {
        // The job file's reader has the better message.
        true => Ok(true),
        false => Err("is neither a key of a job nor of Hadoop's configuration".to_owned()),
    }
}

impl ToolFlags {
    /// Whether a flag is given.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self {
            conf,
            properties_file,
            num_workers,
            worker_memory,
            worker_cores,
            num_ps,
            ps_memory,
            am_memory,
            master,
            deploy_mode,
        } = self;
        let numbers = [num_workers, worker_cores, num_ps];
        let texts = [worker_memory, ps_memory, am_memory, master, deploy_mode];
        conf.is_empty()
            && properties_file.is_none()
            && numbers.iter().all(|number| number.is_none())
            && texts.iter().all(|text| text.is_none())
    }

    /// What the flags state: the file first, then `--conf`, then the named flags.
    ///
    /// # Errors
    /// Exit code 7 with all properties that are refused, each with its place.
    pub fn stated(&self) -> Result<StatedKeys, CommandFailure> {
        let (mut stated, mut refused) = (StatedKeys::default(), Vec::new());
        if let Some(path) = &self.properties_file {
            for PropertyLine { line, key, value } in read(path)? {
                stated.add(&key, &value, format!("{}:{line}", path.display()), &mut refused);
            }
        }
        for text in &self.conf {
            let (key, value) = text.split_once('=').unwrap_or((text, ""));
            stated.add(key.trim(), value.trim(), format!("--conf {text}"), &mut refused);
        }
        if !refused.is_empty() {
            return Err(CommandFailure::new(ExitCode::Input, refused.join("\n"))
                .next("`heddle config template` prints every key with its meaning"));
        }
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        for (flag, key, value) in [
            ("num-workers", "trainers.max", number(self.num_workers)),
            ("worker-memory", "trainers.memory", self.worker_memory.clone()),
            ("worker-cores", "trainers.vcores", number(self.worker_cores)),
            ("num-ps", "pservers.count", number(self.num_ps)),
            ("ps-memory", "pservers.memory", self.ps_memory.clone()),
            ("am-memory", "am.memory", self.am_memory.clone()),
        ] {
            if let Some(value) = value {
                stated.job.push(KeyOverride {
                    text: format!("{key}={value}"),
                    from: format!("--{flag} {value}"),
                });
            }
        }
        Ok(stated)
    }
}

fn read(path: &Path) -> Result<Vec<PropertyLine>, CommandFailure> {
    let fact = format!("cannot read --properties-file {}", path.display());
    let text = std::fs::read_to_string(path).or_fail_with(CommandFailure::of_file, fact)?;
    properties::parse(&text).map_err(|(line, what)| {
        CommandFailure::new(ExitCode::Input, format!("{}:{line}: {what}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_property_is_the_jobs_or_hadoops_or_refused() {
        for key in ["yarn.queue", "name", "yarn.env.LANG", "model.optimizer.alpha", "trainers.no"] {
            assert_eq!(of_job(key), Ok(true), "{key}");
        }
        for key in [
            "yarn.resourcemanager.address",
            "yarn.log-aggregation-enable",
            "yarn.acl.enable",
            "fs.defaultFS",
            "dfs.replication",
            "hadoop.rpc.protection",
        ] {
            assert_eq!(of_job(key), Ok(false), "{key}");
        }
        for (key, why) in [
            ("yarn.quue", "did you mean yarn.queue?"),
            ("trainers.mx", "did you mean trainers.max?"),
            ("spark.yarn.queue", "use yarn.queue"),
            ("angel.ps.number", "neither"),
            ("queue", "neither"),
        ] {
            assert!(of_job(key).is_err_and(|text| text.contains(why)), "{key}: {:?}", of_job(key));
        }
    }

    #[test]
    fn values_of_other_tools_are_checked() {
        assert!(size("4g").is_ok() && size("512MiB").is_ok());
        assert!(size("4096").is_err() && size("4x").is_err() && size("g").is_err());
        assert!(master("yarn").is_ok());
        assert!(master("local[4]").is_err_and(|text| text.contains("heddle run")));
        assert!(deploy_mode("client").is_err() && deploy_mode("cluster").is_ok());
    }

    #[test]
    fn the_later_of_two_statements_is_last() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "trainers.max 3\nfs.x=1\n").expect("written");
        let flags = ToolFlags {
            conf: vec!["trainers.max=4".into(), "fs.x=2".into()],
            properties_file: Some(file.path().to_owned()),
            num_workers: Some(5),
            ..ToolFlags::default()
        };
        let stated = flags.stated().expect("all are known");
        let job: Vec<_> = stated.job.iter().map(|set| set.text.as_str()).collect();
        assert_eq!(job, ["trainers.max=3", "trainers.max=4", "trainers.max=5"]);
        assert_eq!(stated.job[0].from, format!("{}:1", file.path().display()));
        assert_eq!(stated.job[2].from, "--num-workers 5");
        let hadoop: Vec<_> = stated.hadoop.iter().map(|set| set.value.as_str()).collect();
        assert_eq!(hadoop, ["1", "2"]);
        assert!(!flags.is_empty() && ToolFlags::default().is_empty());
    }
}
