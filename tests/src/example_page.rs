//! An example's folder and the commands of its page, which run as those of a reader do.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::local::program;

/// A copy of the files of an example, in `examples/<name>` below a folder of its own.
#[derive(Debug)]
pub struct ExamplePage {
    dir: TempDir,
    text: String,
}

impl ExamplePage {
    /// Copies the files of `examples/<name>`.
    ///
    /// # Errors
    /// The disk, without an example of its own.
    pub fn copy(name: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let example = Path::new("examples").join(name);
        let copy = dir.path().join(&example);
        std::fs::create_dir_all(&copy)?;
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(example);
        for entry in std::fs::read_dir(&example)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                std::fs::copy(entry.path(), copy.join(entry.file_name()))?;
            }
        }
        let text = std::fs::read_to_string(example.join("README.md"))?;
        Ok(Self { dir, text })
    }

    /// The folder in which the commands run.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A block of commands of the page; the first is 0.
    ///
    /// # Errors
    /// There are fewer.
    pub fn commands(&self, block: usize) -> Result<&str> {
        let rest = self.text.split("```sh\n").nth(block + 1);
        rest.and_then(|rest| rest.split("```").next()).with_context(|| format!("no block {block}"))
    }

    /// Runs commands with these variables, and without a cluster unless they name one. Returns standard output.
    ///
    /// # Errors
    /// One of them fails; with all that they printed.
    pub fn run(&self, commands: &str, variables: &[(&str, &str)]) -> Result<String> {
        let heddle = program("heddle")?;
        let path = std::env::var("PATH").context("programs are found")?;
        let path = format!("{}:{path}", heddle.parent().context("a folder")?.display());
        let ended = Command::new("sh")
            .args(["-e", "-c", commands])
            .current_dir(self.path())
            .env("PATH", path)
            .env("XDG_STATE_HOME", self.path().join("state"))
            .env_remove("HADOOP_CONF_DIR")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .output()?;
        let stdout = String::from_utf8_lossy(&ended.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&ended.stderr);
        ensure!(ended.status.success(), "{commands}: {}: {stdout}{stderr}", ended.status);
        Ok(stdout)
    }
}
