//! Reading a job file for a command.

use std::path::{Path, PathBuf};

use clap::Args;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::Location;
use heddle_protocol::job_spec::file::{Job, KeyOverride, ReadContext, read};

use crate::failure::{CommandFailure, OrFail};
use crate::file_systems;
use crate::site_defaults;

/// A job file and its overrides.
#[derive(Clone, Debug, Args)]
pub struct JobArgs {
    /// The job file (TOML)
    #[arg(value_name = "JOB")]
    pub file: PathBuf,
    /// Override a key, such as trainers.max=8; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub set: Vec<String>,
}

/// A word of `--set`. Whether the job has such a key is checked where the job file is read.
///
/// # Errors
/// It has no `=`.
pub fn key_value(text: &str) -> Result<String, String> {
    match text.contains('=') {
        true => Ok(text.to_owned()),
        false => Err("expected KEY=VALUE, such as trainers.max=8".to_owned()),
    }
}

impl JobArgs {
    /// The job file's folder, absolute.
    ///
    /// # Errors
    /// The file or the working directory does not exist.
    pub fn job_dir(&self) -> Result<PathBuf, CommandFailure> {
        let absolute = self.absolute()?;
        Ok(absolute.parent().unwrap_or(Path::new("/")).to_owned())
    }

    /// The job file, absolute and without symbolic links.
    ///
    /// # Errors
    /// The file does not exist.
    pub fn absolute(&self) -> Result<PathBuf, CommandFailure> {
        self.readable(std::fs::canonicalize(&self.file))
    }

    fn readable<T>(&self, read: std::io::Result<T>) -> Result<T, CommandFailure> {
        let fact = format!("cannot read the job file {}", self.file.display());
        read.or_fail_with(CommandFailure::of_file, fact).map_err(|failure| {
            failure.next("`heddle config template > job.toml` writes one to start from")
        })
    }

    /// Reads and checks the job. Default output folders carry `run_label`. Locations of viewfs are resolved.
    ///
    /// # Errors
    /// Exit code 7 with all faults and their places.
    pub fn read(&self, run_label: &str) -> Result<Job, CommandFailure> {
        self.read_with(run_label, None, &[])
    }

    /// Reads the job with default output folders below `outputs` instead of this machine. `flags` override the job file and
    /// precede `--set`.
    ///
    /// # Errors
    /// Exit code 7 with all faults and their places.
    pub fn read_with(
        &self,
        run_label: &str,
        outputs: Option<Location>,
        flags: &[KeyOverride],
    ) -> Result<Job, CommandFailure> {
        let text = self.readable(std::fs::read(&self.file))?;
        let shown = self.file.display().to_string();
        let text = String::from_utf8(text).map_err(|error| {
            let line = 1 + text_lines(error.as_bytes(), error.utf8_error().valid_up_to());
            CommandFailure::new(ExitCode::Input, format!("{shown}:{line}: not valid UTF-8"))
        })?;
        let sets = self.set.iter().map(|set| KeyOverride::set(set));
        let context = ReadContext {
            file: shown,
            job_dir: self.job_dir()?,
            working_dir: working_dir()?,
            sets: flags.iter().cloned().chain(sets).collect(),
            site: site_defaults::load()?,
            outputs,
            run_label: run_label.to_owned(),
        };
        let mut job = read(&text, &context).map_err(|problems| {
            CommandFailure::new(ExitCode::Input, problems)
                .next("`heddle config template` prints every key with its meaning")
        })?;
        file_systems::resolve_job(&mut job.spec)?;
        Ok(job)
    }
}

fn text_lines(bytes: &[u8], end: usize) -> usize {
    bytes.iter().take(end).filter(|&&byte| byte == b'\n').count()
}

/// The working directory.
///
/// # Errors
/// It was removed.
pub fn working_dir() -> Result<PathBuf, CommandFailure> {
    std::env::current_dir().or_fail(ExitCode::Input, "cannot find the working directory")
}

/// A path to display: relative to the working directory if it is below it.
#[must_use]
pub fn short_path(path: &Path) -> String {
    match std::env::current_dir() {
        Ok(here) => match path.strip_prefix(&here) {
            Ok(below) if !below.as_os_str().is_empty() => below.display().to_string(),
            _ => path.display().to_string(),
        },
        Err(_) => path.display().to_string(),
    }
}
