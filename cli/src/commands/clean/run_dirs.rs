//! The run directories of this machine, as candidates for removal.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use heddle_am::run_dir::RunDir;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::RunId;
use heddle_protocol::job_spec::JobSpec;
use uuid::Uuid;

use super::decision::RunFound;
use crate::failure::CommandFailure;
use crate::runs::LocalRun;

/// A run directory.
pub struct RunEntry {
    /// Where it is.
    pub path: PathBuf,
    /// Its run.
    pub run: RunId,
    /// Its job's name; empty if the directory is incomplete.
    pub name: String,
    /// Bytes of all files in it.
    pub bytes: u64,
    /// What the decision needs.
    pub found: RunFound,
}

/// All run directories of a work directory, by name. Folders with other names are left out.
pub fn read(work_dir: &Path) -> Vec<RunEntry> {
    let Ok(entries) = fs::read_dir(work_dir.join("runs")) else {
        return Vec::new();
    };
    let mut all: Vec<RunEntry> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| {
            let run = Uuid::parse_str(&entry.file_name().to_string_lossy()).ok()?;
            Some(one(entry.path(), RunId(run)))
        })
        .collect();
    all.sort_by(|a, b| a.path.cmp(&b.path));
    all
}

fn one(path: PathBuf, run: RunId) -> RunEntry {
    let dir = RunDir::open(&path);
    let job = dir.spec().ok();
    let holds_output = job.is_some_and(|job| holds_output(&path, &job));
    let (state, name) = match dir.run_file() {
        Ok(file) => {
            let name = file.name.clone();
            (Some(LocalRun { dir, file }.state()), name)
        }
        Err(_) => (None, String::new()),
    };
    let (bytes, modified_ms) = measure(&path);
    RunEntry { path, run, name, bytes, found: RunFound { state, modified_ms, holds_output } }
}

/// Removes a run directory. A missing one is a success.
///
/// # Errors
/// Exit code 5 if that is denied.
pub fn remove(run: &RunEntry) -> Result<(), CommandFailure> {
    match fs::remove_dir_all(&run.path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(CommandFailure::caused(
            ExitCode::Denied,
            format!("cannot remove the run directory {}", run.path.display()),
            &error,
        )),
        _ => Ok(()),
    }
}

/// Whether the checkpoints or the model of the job are in its run directory.
fn holds_output(dir: &Path, job: &JobSpec) -> bool {
    let outputs = [&job.checkpoint.dir, &job.output.model];
    let outputs = outputs.into_iter().chain(&job.checkpoint.mirrors);
    let is_within = |place: &Path| {
        // Links in either path: the same directory may have two names.
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        place.starts_with(dir) || real(place).starts_with(real(dir))
    };
    outputs.filter_map(|place| place.as_local()).any(is_within)
}

/// Bytes of all files below a directory, and its newest change in ms since 1970. Links are not followed.
fn measure(dir: &Path) -> (u64, u64) {
    let changed = |path: &Path| {
        let modified = fs::symlink_metadata(path).and_then(|meta| meta.modified()).ok()?;
        let since = modified.duration_since(UNIX_EPOCH).ok()?;
        u64::try_from(since.as_millis()).ok()
    };
    let (mut bytes, mut newest) = (0, changed(dir).unwrap_or(0));
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        let (of_entry, modified) = match meta.is_dir() {
            true => measure(&entry.path()),
            false => (meta.len(), changed(&entry.path()).unwrap_or(0)),
        };
        bytes += of_entry;
        newest = newest.max(modified);
    }
    (bytes, newest)
}
