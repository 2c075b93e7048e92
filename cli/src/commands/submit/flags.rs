//! The flags of `heddle submit`, most of which are keys of the job file under shorter names.

use std::path::PathBuf;

use crate::job_file::JobArgs;

/// What Ctrl-C does to a job that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OnInterrupt {
    /// Saves a checkpoint and ends the job; a second one ends it at once
    Kill,
    /// Leaves the job running
    Detach,
}

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub job: JobArgs,
    #[command(flatten)]
    pub keys: Keys,
    /// Continue an unfinished run although keys differ, where these do not change what a checkpoint means
    #[arg(long, conflicts_with = "fresh")]
    pub resume: bool,
    /// Train anew, whatever an earlier run of the job has done
    #[arg(long)]
    pub fresh: bool,
    /// Replace an existing model when the new one is published
    #[arg(long)]
    pub overwrite: bool,
    /// Take the checkpoint directory over from a run that still lives
    #[arg(long)]
    pub take_over: bool,
    /// Show what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Submit under this name of your own: the same name again attaches to the application instead
    #[arg(long, value_name = "TOKEN")]
    pub submit_token: Option<String>,
    /// Write the application's id to this file as soon as there is one
    #[arg(long, value_name = "FILE")]
    pub app_id_file: Option<PathBuf>,
    /// Do not wait for the job to end
    #[arg(long)]
    pub detach: bool,
    #[command(flatten)]
    pub waiting: WaitArgs,
}

/// How a job is waited for.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct WaitArgs {
    /// What Ctrl-C does
    #[arg(long, value_enum, default_value = "kill", value_name = "WHAT")]
    pub on_interrupt: OnInterrupt,
    /// Stop waiting after so long (exit code 124); the job runs on
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub wait_timeout: Option<std::time::Duration>,
}

/// A time with its unit, `60s`.
///
/// # Errors
/// What is expected instead.
pub fn duration(text: &str) -> Result<std::time::Duration, String> {
    let parsed = text.parse::<heddle_protocol::spec::DurationMs>();
    parsed.map(heddle_protocol::spec::DurationMs::as_duration).map_err(|error| error.to_string())
}

/// Keys of the job file that have flags.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Keys {
    /// Queue (yarn.queue)
    #[arg(long)]
    queue: Option<String>,
    /// Name of the job (name)
    #[arg(long)]
    name: Option<String>,
    /// Tags of the application, separated by commas (yarn.tags)
    #[arg(long, value_delimiter = ',')]
    tags: Vec<String>,
    /// Priority within the queue (yarn.priority)
    #[arg(long)]
    priority: Option<u32>,
    /// Files for the containers' work directories, separated by commas; path#name gives another name (yarn.files)
    #[arg(long, value_delimiter = ',', value_name = "PATH[#NAME]")]
    files: Vec<String>,
    /// Archives that are unpacked there, separated by commas (yarn.archives)
    #[arg(long, value_delimiter = ',', value_name = "PATH[#NAME]")]
    archives: Vec<String>,
    /// Environment variable of the containers; may be given several times (yarn.env)
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    env: Vec<String>,
    /// Only on nodes of this label (yarn.node-label)
    #[arg(long, value_name = "LABEL")]
    node_label: Option<String>,
    /// How often the ApplicationMaster may be started (yarn.max-attempts)
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// The program that containers run, instead of this one (submit.binary)
    #[arg(long, value_name = "PATH")]
    binary: Option<String>,
}

fn assignment(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((name, _)) if !name.is_empty() && !name.contains('.') => Ok(text.to_owned()),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

impl Keys {
    /// As overrides, which come before those of `--set`.
    #[must_use]
    pub fn as_sets(&self) -> Vec<String> {
        let mut sets = Vec::new();
        let mut one = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                sets.push(format!("{key}={value}"));
            }
        };
        one("name", self.name.clone());
        one("yarn.queue", self.queue.clone());
        one("yarn.priority", self.priority.map(|n| n.to_string()));
        one("yarn.node-label", self.node_label.clone());
        one("yarn.max-attempts", self.max_attempts.map(|n| n.to_string()));
        one("submit.binary", self.binary.clone());
        one("yarn.tags", list(&self.tags));
        one("yarn.files", list(&self.files));
        one("yarn.archives", list(&self.archives));
        sets.extend(self.env.iter().map(|pair| format!("yarn.env.{pair}")));
        sets
    }
}

/// A list as TOML; nothing for an empty one.
fn list(items: &[String]) -> Option<String> {
    let quoted: Vec<String> = items.iter().map(|item| format!("{item:?}")).collect();
    (!items.is_empty()).then(|| format!("[{}]", quoted.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_keys_by_shorter_names() {
        let keys = Keys {
            queue: Some("ml".to_owned()),
            files: vec!["a#b".to_owned(), "c".to_owned()],
            env: vec!["N=a=b".to_owned()],
            max_attempts: Some(3),
            ..Keys::default()
        };
        assert_eq!(
            keys.as_sets(),
            [
                "yarn.queue=ml",
                "yarn.max-attempts=3",
                "yarn.files=[\"a#b\", \"c\"]",
                "yarn.env.N=a=b"
            ]
        );
        assert!(assignment("N").is_err() && assignment("=1").is_err());
    }
}
