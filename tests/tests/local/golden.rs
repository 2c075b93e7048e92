//! Jobs that an earlier program left unfinished are continued to the bytes with which it ended them itself.
//!
//! `tests/golden` has what `tests/golden/write.py` kept of them, one folder for each version of the formats: data, job file,
//! checkpoint directory with claims and journal, run directory, and the model.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use heddle_protocol::manifest::Manifest;
use heddle_tests::checkpointed_job::copy_tree;
use heddle_tests::local::{Ended, heddle, program};
use md5::{Digest, Md5};
use tempfile::TempDir;

/// Where the jobs ran.
const PLACE: &str = "/tmp/heddle-golden-files";

/// The unfinished job of a golden folder, as if it had run where it is now.
struct Unfinished {
    dir: TempDir,
    golden: PathBuf,
}

impl Unfinished {
    fn of(version: &str, job: &str) -> Self {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(version).join(job);
        let dir = tempfile::tempdir().expect("a folder");
        let unfinished = Self { dir, golden };
        for entry in fs::read_dir(unfinished.golden.join("unfinished")).expect("a golden job") {
            let path = entry.expect("readable").path();
            let to = unfinished.path().join(path.file_name().expect("a name"));
            match path.is_dir() {
                true => copy_tree(&path, &to),
                false => assert!(fs::copy(&path, &to).is_ok(), "copied"),
            }
        }
        unfinished.move_here(unfinished.path());
        unfinished.date_input();
        // The job file of a job that counts names it.
        let trainer = program("counting-trainer").expect("built before");
        symlink(trainer, unfinished.path().join("counting-trainer")).expect("linked");
        unfinished
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Puts the present folder into all files that name the one in which they were written, and mends their sums.
    fn move_here(&self, folder: &Path) {
        let here = self.path().to_str().expect("a path of letters");
        for entry in fs::read_dir(folder).expect("readable") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                self.move_here(&path);
                continue;
            }
            let Ok(text) = fs::read_to_string(&path) else { continue };
            if text.contains(PLACE) {
                let text = text.replace(PLACE, here);
                fs::write(&path, &text).expect("written");
                mend_sum(&path, text.as_bytes());
            }
        }
    }

    /// The time of each input file is the one that the checkpoints name.
    fn date_input(&self) {
        for file in self.newest().plan.files {
            let path = file.url.trim_start_matches("file://");
            let time = SystemTime::UNIX_EPOCH + Duration::from_millis(file.modified_ms);
            File::options()
                .write(true)
                .open(path)
                .and_then(|file| file.set_modified(time))
                .expect("dated");
        }
    }

    /// The newest checkpoint's manifest, wherever the job has its checkpoints.
    fn newest(&self) -> Manifest {
        let mut found = Vec::new();
        manifests(self.path(), &mut found);
        found.into_iter().max_by_key(|manifest| manifest.cut).expect("a checkpoint")
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        let ended = heddle(self.path(), arguments).expect("heddle starts");
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        ended
    }

    /// Files of a model by name: those that the earlier program wrote, and those in `dir`.
    fn assert_equal_models(&self, dir: &Path) {
        for name in ["model.safetensors", "model.txt"] {
            let Ok(expected) = fs::read(self.golden.join("model").join(name)) else {
                assert_eq!(name, "model.txt", "the format of every model");
                continue;
            };
            assert!(fs::read(dir.join(name)).expect("a model") == expected, "{name} differs");
        }
    }
}

fn manifests(folder: &Path, found: &mut Vec<Manifest>) {
    for entry in fs::read_dir(folder).expect("readable") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            manifests(&path, found);
        } else if path.file_name().is_some_and(|name| name == "MANIFEST.json") {
            found.push(
                Manifest::from_json(&fs::read(&path).expect("readable")).expect("a manifest"),
            );
        }
    }
}

/// Writes the sum of a file that has a sidecar.
fn mend_sum(path: &Path, content: &[u8]) {
    let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
    let sidecar = path.with_file_name(format!("{name}.md5"));
    if sidecar.exists() {
        let sum = hex::encode(Md5::digest(content));
        fs::write(sidecar, format!("{sum} *{name}\n")).expect("written");
    }
}

/// The folder of the newest model below `dir`.
fn model_below(dir: &Path) -> Option<PathBuf> {
    if dir.join("model.safetensors").exists() {
        return Some(dir.to_owned());
    }
    let entries = fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path());
    entries.filter(|path| path.is_dir()).find_map(|path| model_below(&path))
}

/// Continues a job to its end, and reads the model of then.
fn continues(version: &str, job: &str) {
    let unfinished = Unfinished::of(version, job);
    let before = unfinished.newest();
    let dir = unfinished.path();
    assert!(!before.is_untrained(), "{}", before.cut);
    let ended = unfinished.run(&["run", "job.toml"]);
    let after = unfinished.newest();
    assert!(after.cut.generation > before.cut.generation, "{ended:?}");
    let model = model_below(dir).expect("a model");
    unfinished.assert_equal_models(&model);

    // What the earlier program published scores as the new one does; models of programs of one's own are not scored.
    let Ok(expected) = fs::read_to_string(unfinished.golden.join("scores.txt")) else { return };
    let golden = unfinished.golden.join("model");
    for model in [golden, model] {
        let model = model.to_str().expect("a path of letters");
        let scores = unfinished.run(&["predict", model, "data/test-0.libsvm"]).stdout;
        assert_eq!(scores, expected);
    }
}

/// The checkpoints of an unfinished job are whole, and can be exported.
fn reads(version: &str, job: &str, checkpoints: &str) {
    let unfinished = Unfinished::of(version, job);
    let verified = unfinished.run(&["checkpoint", "verify", checkpoints]);
    let newest = unfinished.newest();
    assert!(verified.stdout.contains(&newest.cut.to_string()), "{verified:?}");
    unfinished.run(&["checkpoint", "ls", checkpoints]);
    unfinished.run(&["export", checkpoints, "exported"]);
}

#[test]
fn bsp_run_of_manifest_2_is_continued() {
    continues("manifest-2", "bsp-standardised");
}

#[test]
fn sparse_bsp_run_with_backups_of_manifest_2_is_continued() {
    continues("manifest-2", "bsp-sparse-backups");
    reads("manifest-2", "bsp-sparse-backups", "ckpt");
}

#[test]
fn asp_run_with_backups_of_manifest_2_is_continued() {
    continues("manifest-2", "asp-counts-backups");
    reads("manifest-2", "asp-counts-backups", "ckpt");
}

#[test]
fn sparse_asp_run_of_manifest_2_is_continued() {
    continues("manifest-2", "asp-sparse-counts");
    reads("manifest-2", "asp-sparse-counts", "ckpt");
}
