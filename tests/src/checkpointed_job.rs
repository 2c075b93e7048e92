//! A small local job that keeps a checkpoint of each pass, and the files of its checkpoints.

use std::path::{Path, PathBuf};

use crate::local::{heddle_with, write_libsvm};

/// Slows the steps of [`checkpointed_job`]: each pass takes longer than a checkpoint. The final checkpoint would replace
/// one that is still being saved.
pub const SLOW_STEPS: (&str, &str) = ("FAILPOINTS", "step-computed=sleep(50)");

/// Data and the file `job.toml` of a job of three passes with its checkpoints in `ckpt` and its model in `model`; `more`
/// are further lines of `[checkpoint]`.
///
/// # Panics
/// Where the files cannot be written.
#[must_use]
pub fn checkpointed_job(more: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    write_libsvm(&dir.path().join("data"), "train", 2, 100, 40, 5, 1).expect("data");
    let text = format!(
        "name = \"checkpointed\"\n\
         [data]\ntrain = \"data/*.libsvm\"\npasses = 3\n\
         [model]\nalgorithm = \"logistic-regression\"\nfeatures = 40\nstandardise = false\n\
         [training]\nlanes = 2\nbatch = 10\n\
         [pservers]\ncount = 2\nshards = 4\n[trainers]\nmin = 1\nmax = 2\n\
         [checkpoint]\ndir = \"ckpt\"\nevery = \"1 pass\"\n{more}\
         [output]\nmodel = \"model\"\n"
    );
    std::fs::write(dir.path().join("job.toml"), text).expect("a job file");
    dir
}

/// [`checkpointed_job`] after its run.
///
/// # Panics
/// Where the job fails.
#[must_use]
pub fn finished_job() -> tempfile::TempDir {
    let dir = checkpointed_job("");
    let ended =
        heddle_with(dir.path(), &["run", "job.toml"], &[SLOW_STEPS]).expect("heddle starts");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    dir
}

/// The folders of the checkpoints in `dir`, oldest first.
///
/// # Panics
/// Where `dir` cannot be read.
#[must_use]
pub fn checkpoints_in(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a folder of checkpoints");
    let mut found: Vec<((u32, u32), PathBuf)> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let (generation, number) = path.file_name()?.to_str()?.split_once("-c")?;
            let generation = generation.strip_prefix('g')?.parse().ok()?;
            Some(((generation, number.parse().ok()?), path))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

/// The shard files in a checkpoint's folder, by name.
///
/// # Panics
/// Where the folder cannot be read.
#[must_use]
pub fn shard_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("files");
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "ckpt"))
        .collect();
    files.sort();
    files
}

/// Copies a folder and what is in it to a new one.
///
/// # Panics
/// Where `from` cannot be read, or `to` exists or cannot be written.
pub fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("a new folder");
    for entry in std::fs::read_dir(from).expect("readable") {
        let entry = entry.expect("readable");
        let target = to.join(entry.file_name());
        match entry.file_type().expect("known").is_dir() {
            true => copy_tree(&entry.path(), &target),
            false => assert!(std::fs::copy(entry.path(), target).is_ok(), "copied"),
        }
    }
}
