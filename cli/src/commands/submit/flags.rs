//! The flags of `heddle submit`. Most are short names of keys of the job file.

use std::path::PathBuf;

use heddle_am::run_dir::ResumeMode;
use heddle_protocol::job_spec::file::KeyOverride;

use super::tool_flags::{StatedKeys, ToolFlags};
use crate::application::WaitArgs;
use crate::failure::CommandFailure;
use crate::job_file::JobArgs;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub job: JobArgs,
    #[command(flatten)]
    pub keys: Keys,
    /// Continue an unfinished run with changed keys, if these may change on resume
    #[arg(long, conflicts_with = "fresh")]
    pub resume: bool,
    /// With --resume: continue from this mirror of a lost checkpoint directory, in a new one
    #[arg(long, value_name = "MIRROR", requires = "resume")]
    pub from: Option<String>,
    /// Start over, whatever an earlier run of the job has done
    #[arg(long)]
    pub fresh: bool,
    /// Replace an existing model when the new one is published
    #[arg(long)]
    pub overwrite: bool,
    /// Take the checkpoint directory over from a run that still runs
    #[arg(long)]
    pub take_over: bool,
    /// Show what would be done; do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Submit under this name of your choice; the same name again attaches to the application
    #[arg(long, value_name = "TOKEN")]
    pub submit_token: Option<String>,
    /// Write the application's id to this file as soon as it is known
    #[arg(long, value_name = "FILE")]
    pub app_id_file: Option<PathBuf>,
    /// Set what is printed to standard output
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub output: OutputFormat,
    /// Do not wait for the job to end
    #[arg(long)]
    pub detach: bool,
    #[command(flatten)]
    pub waiting: WaitArgs,
}

impl Args {
    /// How the job handles an earlier run in the same checkpoint directory, and whether it takes the directory over.
    pub fn earlier(&self) -> (ResumeMode, bool) {
        (ResumeMode::of(self.fresh, self.resume), self.take_over)
    }
}

/// What `heddle submit` prints to standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    /// The scores and the result of the job
    Text,
    /// Lines `application=…`, `tracking-url=…` and `exit=…`; all other output goes to standard error
    Properties,
}

/// Keys of the job file that have flags.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Keys {
    /// Set the queue (yarn.queue)
    #[arg(long)]
    queue: Option<String>,
    /// Set the name of the job (name)
    #[arg(long)]
    name: Option<String>,
    /// Set tags of the application, separated by commas (yarn.tags)
    #[arg(long, value_delimiter = ',')]
    tags: Vec<String>,
    /// Set the priority within the queue (yarn.priority)
    #[arg(long)]
    priority: Option<u32>,
    /// Ship files to the containers' work directories, separated by commas; path#name sets another name (yarn.files)
    #[arg(long, value_delimiter = ',', value_name = "PATH[#NAME]")]
    files: Vec<String>,
    /// Ship archives, which are unpacked there, separated by commas (yarn.archives)
    #[arg(long, value_delimiter = ',', value_name = "PATH[#NAME]")]
    archives: Vec<String>,
    /// Set an environment variable of the containers; may be repeated (yarn.env)
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    env: Vec<String>,
    /// Use only nodes with this label (yarn.node-label)
    #[arg(long, value_name = "LABEL")]
    node_label: Option<String>,
    /// Limit the attempts of the ApplicationMaster (yarn.max-attempts)
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// Run this program in containers instead of the submitting one (submit.binary)
    #[arg(long, value_name = "PATH")]
    binary: Option<String>,
    #[command(flatten)]
    tools: ToolFlags,
}

fn assignment(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((name, _)) if !name.is_empty() && !name.contains('.') => Ok(text.to_owned()),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

impl Keys {
    /// Whether no flag is given.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.own().is_empty() && self.tools.is_empty()
    }

    /// What the flags state; the later wins, and `--set` comes after them.
    ///
    /// # Errors
    /// Exit code 7 with the properties that are refused.
    pub fn stated(&self) -> Result<StatedKeys, CommandFailure> {
        let mut stated = self.tools.stated()?;
        stated.job.extend(self.own());
        Ok(stated)
    }

    /// The flags of this table as overrides.
    fn own(&self) -> Vec<KeyOverride> {
        let mut flags = Vec::new();
        let mut one = |flag: &str, key: &str, value: Option<String>| {
            if let Some(value) = value {
                let (text, from) = (format!("{key}={value}"), format!("--{flag} {value}"));
                flags.push(KeyOverride { text, from });
            }
        };
        one("name", "name", self.name.clone());
        one("queue", "yarn.queue", self.queue.clone());
        one("priority", "yarn.priority", self.priority.map(|n| n.to_string()));
        one("node-label", "yarn.node-label", self.node_label.clone());
        one("max-attempts", "yarn.max-attempts", self.max_attempts.map(|n| n.to_string()));
        one("binary", "submit.binary", self.binary.clone());
        one("tags", "yarn.tags", list(&self.tags));
        one("files", "yarn.files", list(&self.files));
        one("archives", "yarn.archives", list(&self.archives));
        let variable =
            |pair| KeyOverride { text: format!("yarn.env.{pair}"), from: format!("--env {pair}") };
        flags.extend(self.env.iter().map(variable));
        flags
    }
}

/// A list as TOML; `None` if it is empty.
fn list(items: &[String]) -> Option<String> {
    let quoted: Vec<String> = items.iter().map(|item| format!("{item:?}")).collect();
    (!items.is_empty()).then(|| format!("[{}]", quoted.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_become_keys() {
        let keys = Keys {
            queue: Some("ml".to_owned()),
            files: vec!["a#b".to_owned(), "c".to_owned()],
            env: vec!["N=a=b".to_owned()],
            max_attempts: Some(3),
            ..Keys::default()
        };
        let flags = keys.own();
        let texts: Vec<_> = flags.iter().map(|flag| flag.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "yarn.queue=ml",
                "yarn.max-attempts=3",
                "yarn.files=[\"a#b\", \"c\"]",
                "yarn.env.N=a=b"
            ]
        );
        assert_eq!(flags[0].from, "--queue ml");
        assert!(!keys.is_empty() && Keys::default().is_empty());
        assert!(assignment("N").is_err() && assignment("=1").is_err());
    }
}
