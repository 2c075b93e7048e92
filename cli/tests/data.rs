//! Whole small jobs through `heddle run`: what data does to them, and what they end with.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

const JOB: &str = "name = \"small\"\n[data]\ntrain = \"train.libsvm\"\npasses = 1\n[model]\n\
    features = 2\nstandardise = false\n\
    [training]\nlanes = 2\nbatch = 4\n[pservers]\ncount = 1\nshards = 2\n[trainers]\nmax = 1\n";

/// A folder with a job of forty records, of which the third may be another.
struct Bench(TempDir);

impl Bench {
    fn new(third: Option<&str>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let record = |n: usize| format!("{} 1:{} 2:{}", n % 2, n % 7, n * 3 % 5);
        let mut records: Vec<String> = (0..40).map(record).collect();
        if let Some(third) = third {
            records[2] = third.to_owned();
        }
        std::fs::write(dir.path().join("train.libsvm"), records.join("\n")).unwrap();
        std::fs::write(dir.path().join("job.toml"), JOB).unwrap();
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn heddle(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_heddle"))
            .args(arguments)
            .current_dir(self.path())
            .env_remove("RUST_LOG")
            .env("XDG_STATE_HOME", self.path().join("state"))
            .output()
            .unwrap()
    }

    /// Runs the job with these overrides; exit code, stdout, stderr.
    fn run(&self, sets: &[&str]) -> (Option<i32>, String, String) {
        let mut arguments = vec!["run", "job.toml"];
        for set in sets {
            arguments.extend(["--set", set]);
        }
        let output = self.heddle(&arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }
}

#[test]
fn unreadable_record_is_exit_7_with_its_position() {
    for (record, message) in [
        ("1 1:x", "train.libsvm:3:5: expected a finite number, found \"x\""),
        ("1 3:1", "train.libsvm:3:3: index 3 is above the highest, 2"),
        ("7 1:1", "train.libsvm:3:1: label 7"),
    ] {
        let bench = Bench::new(Some(record));
        let (exit, stdout, stderr) = bench.run(&[]);
        assert_eq!(exit, Some(7), "{stderr}");
        assert!(stderr.contains(message), "{message} in {stderr}");
        assert_eq!(stdout, "");
        let out = std::fs::read_dir(bench.path().join("out")).unwrap().next().unwrap().unwrap();
        assert!(!out.path().join("model").exists(), "no part of a model is left behind");
    }
}

#[test]
fn bad_records_may_be_left_out_up_to_a_number() {
    let bench = Bench::new(Some("1 1:x"));
    let (exit, stdout, stderr) = bench.run(&["data.bad-records=skip:1"]);
    assert_eq!(exit, Some(0), "{stderr}");
    assert!(stdout.contains("bad records  1\n") && stdout.contains(" 39 in "), "{stdout}");
    let (exit, _, stderr) = bench.run(&["data.bad-records=skip:0"]);
    assert_eq!(exit, Some(7), "{stderr}");
}

#[test]
fn scores_are_printed_once_and_predictions_keep_the_order() {
    let bench = Bench::new(None);
    let (exit, stdout, stderr) = bench.run(&["data.test=train.libsvm", "data.passes=2"]);
    assert_eq!(exit, Some(0), "{stderr}");
    let scores: Vec<_> =
        stdout.lines().filter(|line| line.starts_with("test  log-loss ")).collect();
    assert_eq!(scores.len(), 1, "{stdout}");
    assert_eq!(stdout.lines().next(), Some(scores[0]));
    for row in ["passes  ", "rows  ", "checkpoints  ", "model  ", "logs  ", "next  "] {
        assert!(stdout.lines().any(|line| line.starts_with(row)), "{row} in {stdout}");
    }
    let next = stdout.lines().find_map(|line| line.strip_prefix("next")).unwrap();
    let next: Vec<_> = next.split_whitespace().skip(1).collect();
    let scores = bench.heddle(&next);
    assert_eq!(scores.status.code(), Some(0));
    let scores = String::from_utf8(scores.stdout).unwrap();
    assert_eq!(scores.lines().count(), 40);
    assert!(scores.lines().all(|score| (0.0..=1.0).contains(&score.parse::<f64>().unwrap())));
}

#[test]
fn one_cause_has_one_exit_code() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new(None);
    let (exit, _, stderr) = bench.run(&["output.model=model", "checkpoint.dir=ckpt"]);
    assert_eq!(exit, Some(0), "{stderr}");
    let shut = |name: &str, mode: u32| {
        let path = bench.path().join(name);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    for folder in ["part", "whole", "fixed"] {
        std::fs::create_dir(bench.path().join(folder)).unwrap();
        for file in ["a.svm", "b.svm", "job.toml"] {
            std::fs::copy(bench.path().join("train.libsvm"), bench.path().join(folder).join(file))
                .unwrap();
        }
    }
    shut("part/b.svm", 0o000);
    shut("whole", 0o000);
    shut("fixed", 0o555);
    let run = |set| vec!["run", "job.toml", "--work-dir", "work", "--fresh", "--set", set];
    for (arguments, words) in [
        (run("data.train=part/b.svm"), "part/b.svm"),
        (run("data.train=part"), "part/b.svm"),
        (run("data.train=whole"), "whole"),
        (run("data.train=whole/a.svm"), "whole/a.svm"),
        (run("checkpoint.dir=fixed/ckpt"), "checkpoint.dir"),
        (run("output.model=fixed/model"), "output.model"),
        (vec!["run", "job.toml", "--work-dir", "fixed/work"], "fixed/work"),
        (vec!["run", "part/b.svm"], "the job file part/b.svm"),
        (vec!["predict", "model", "part"], "part/b.svm"),
        (vec!["predict", "model", "whole"], "whole"),
        (vec!["predict", "model", "train.libsvm", "--output", "fixed/s.txt"], "fixed"),
    ] {
        let heddle = env!("CARGO_BIN_EXE_heddle");
        let mut command = match nix::unistd::Uid::effective().is_root() {
            // Root without its capabilities has the permissions of an owner.
            true => {
                let mut command = Command::new("setpriv");
                command.args(["--bounding-set", "-all", heddle]);
                command
            }
            false => Command::new(heddle),
        };
        let ended = command.args(&arguments).current_dir(bench.path()).output().unwrap();
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(5), "{arguments:?}: {stderr}");
        assert!(
            stderr.contains(words) && stderr.to_lowercase().contains("permission denied"),
            "{stderr}"
        );
        assert!(!stderr.contains("HADOOP_USER_NAME"), "{stderr}");
    }
    shut("whole", 0o755);

    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let ended = Command::new(env!("CARGO_BIN_EXE_heddle"))
        .args(["predict", "model", "train.libsvm"])
        .current_dir(bench.path())
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(ended.status.code(), Some(5), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stderr).contains("No space left"), "{ended:?}");
}

/// Names in a folder, sorted.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn finished_job_run_again_names_its_model() {
    let bench = Bench::new(None);
    // As in README: a folder of checkpoints, and the default for the model, which carries the run's id.
    let sets = ["checkpoint.dir=ck"];
    let (exit, first, stderr) = bench.run(&sets);
    assert_eq!(exit, Some(0), "{stderr}");
    let model = |stdout: &str| {
        let row = stdout.lines().find(|line| line.starts_with("model "));
        row.unwrap().split_whitespace().nth(1).unwrap().to_owned()
    };
    let (exit, second, stderr) = bench.run(&sets);
    assert_eq!(exit, Some(0), "{stderr}");
    assert!(stderr.contains("this job is finished"), "{stderr}");
    assert!(stderr.contains("rerun with --fresh"), "{stderr}");
    assert_eq!(model(&first), model(&second));
    assert_eq!(names(&bench.path().join("out")).len(), 1, "no second model");

    // A model that was removed is written again, without training.
    let dir = bench.path().join(model(&first));
    let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let (exit, third, stderr) = bench.run(&sets);
    assert_eq!(exit, Some(0), "{stderr}");
    let again = bench.path().join(model(&third)).join("model.safetensors");
    assert_eq!(std::fs::read(again).unwrap(), bytes);
}

#[test]
fn finished_job_with_own_folders_starts_over_only_with_fresh() {
    let bench = Bench::new(None);
    let sets = ["checkpoint.dir=ck", "output.model=model"];
    assert_eq!(bench.run(&sets).0, Some(0));
    let model = || std::fs::read(bench.path().join("model").join("MODEL.json")).unwrap();
    let before = model();
    let (exit, _, stderr) = bench.run(&sets);
    assert_eq!(exit, Some(0), "{stderr}");
    assert!(stderr.contains("this job is finished"), "{stderr}");
    assert_eq!(model(), before);

    // Another job's model, and one that this job outgrows, are in the way.
    for more in [&["checkpoint.dir=other"][..], &["data.passes=2"]] {
        let mut arguments = vec!["run", "job.toml", "--resume"];
        for set in sets.iter().chain(more) {
            arguments.extend(["--set", set]);
        }
        let output = bench.heddle(&arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{more:?}: {stderr}");
        assert!(stderr.contains("--overwrite"), "{more:?}: {stderr}");
        assert_eq!(model(), before);
    }
    let again = |more: &[&str]| {
        let mut arguments = vec!["run", "job.toml", "--overwrite"];
        for set in &sets {
            arguments.extend(["--set", set]);
        }
        arguments.extend(more);
        let output = bench.heddle(&arguments);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (exit, stderr) = again(&[]);
    assert_eq!(exit, Some(0), "{stderr}");
    assert!(stderr.contains("this job is finished"), "{stderr}");
    assert!(stderr.contains("--fresh"), "{stderr}");
    let (exit, stderr) = again(&["--fresh"]);
    assert_eq!(exit, Some(0), "{stderr}");
    let (exit, stderr) = again(&["--resume", "--set", "data.passes=2"]);
    assert_eq!(exit, Some(0), "{stderr}");
    let (exit, stderr) = again(&["--resume", "--set", "data.passes=1"]);
    assert_eq!(exit, Some(7), "{stderr}");
    assert!(
        stderr.contains("the passes that the run in checkpoint.dir has begun, 2 (got 1"),
        "{stderr}"
    );
}

#[test]
fn a_model_has_the_same_names_however_often_it_is_replaced() {
    let bench = Bench::new(None);
    let mut found = Vec::new();
    for seed in ["training.seed=1", "training.seed=2", "training.seed=3"] {
        let arguments = [
            "run",
            "job.toml",
            "--fresh",
            "--overwrite",
            "--set",
            "output.model=model",
            "--set",
            seed,
            "--set",
            "data.passes=2",
        ];
        let output = bench.heddle(&arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        let dir = bench.path().join("model");
        assert_eq!(
            names(&dir),
            [
                "MODEL.json",
                "model.safetensors",
                "model.safetensors.md5",
                "model.txt",
                "model.txt.md5"
            ]
        );
        found.push(std::fs::read(dir.join("model.safetensors")).unwrap());
        let sums = Command::new("md5sum")
            .args(["--quiet", "-c", "model.safetensors.md5", "model.txt.md5"])
            .current_dir(&dir)
            .status();
        assert!(sums.unwrap().success());
    }
    assert!(found[0] != found[1] && found[1] != found[2]);

    let output = bench.heddle(&["export", "ck", "exported"]);
    assert_ne!(output.status.code(), Some(0), "there is no such folder");
    let run = bench.heddle(&["list", "--json", "--limit", "1"]);
    let run: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let run = run["run"].as_str().unwrap();
    let output = bench.heddle(&["export", run, "exported"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(names(&bench.path().join("exported")), names(&bench.path().join("model")));
    let exported = std::fs::read(bench.path().join("exported/model.safetensors"));
    assert_eq!(exported.unwrap(), found[2]);
}

#[test]
fn foreign_file_named_as_a_model_is_refused_at_the_start() {
    let bench = Bench::new(None);
    std::fs::create_dir(bench.path().join("model")).unwrap();
    std::fs::write(bench.path().join("model/model.txt"), "mine").unwrap();
    let (exit, _, stderr) = bench.run(&["output.model=model"]);
    assert_eq!(exit, Some(7), "{stderr}");
    assert!(stderr.contains("model.txt") && stderr.contains("--overwrite"), "{stderr}");
    assert!(!bench.path().join("out").exists(), "nothing was trained");
    assert_eq!(std::fs::read(bench.path().join("model/model.txt")).unwrap(), b"mine");
}

#[test]
fn a_run_that_trained_nothing_does_not_block_its_corrected_job() {
    for sets in [vec![], vec!["checkpoint.dir=ck", "output.model=model"]] {
        let bench = Bench::new(Some("1 1:x"));
        let (exit, _, stderr) = bench.run(&sets);
        assert_eq!(exit, Some(7), "{stderr}");
        // Another key, and another file under the same name.
        let mut changed = sets.clone();
        changed.push("model.l2=0.5");
        let record = |n: usize| format!("{} 1:{} 2:{}\n", n % 2, n % 7, n * 3 % 5);
        let records: String = (0..41).map(record).collect();
        std::fs::write(bench.path().join("train.libsvm"), records).unwrap();
        let (exit, _, stderr) = bench.run(&changed);
        assert_eq!(exit, Some(0), "{sets:?}: {stderr}");
        assert!(!stderr.contains("from checkpoint"), "{sets:?}: {stderr}");
    }
}

#[test]
fn a_mended_data_file_is_trained_on_by_the_same_command() {
    let bench = Bench::new(Some("1 1:x"));
    let (exit, _, stderr) = bench.run(&[]);
    assert_eq!(exit, Some(7), "{stderr}");
    assert!(stderr.contains("data.bad-records"), "{stderr}");
    let path = bench.path().join("train.libsvm");
    let mended = std::fs::read_to_string(&path).unwrap().replace("1:x", "1:0.25");
    std::fs::write(&path, mended).unwrap();
    let (exit, _, stderr) = bench.run(&[]);
    assert_eq!(exit, Some(0), "{stderr}");
}

#[test]
fn every_file_of_a_folder_is_read_or_named() {
    use std::os::unix::ffi::OsStrExt;
    let bench = Bench::new(None);
    let folder = bench.path().join("folder");
    std::fs::create_dir_all(folder.join("sub")).unwrap();
    for name in ["a.svm", "b.svm._COPYING_", "sub/c.svm"] {
        std::fs::copy(bench.path().join("train.libsvm"), folder.join(name)).unwrap();
    }
    let sets = ["data.train=folder", "output.model=model", "checkpoint.dir=ckpt"];
    let (exit, stdout, stderr) = bench.run(&sets);
    assert_eq!(exit, Some(0), "{stderr}");
    assert!(stdout.contains(" 40 in "), "{stdout}");
    assert!(
        stderr.contains("folder/sub are not read") && stderr.contains("data.train"),
        "{stderr}"
    );
    let scored = bench.heddle(&["predict", "model", "folder"]);
    let notes = String::from_utf8_lossy(&scored.stderr).into_owned();
    assert!(notes.contains("folder/sub are not read") && notes.contains("rows 40"), "{notes}");
    let scored = bench.heddle(&["--json", "predict", "model", "folder"]);
    let summary: serde_json::Value = serde_json::from_slice(&scored.stderr).unwrap();
    assert!(summary["warnings"][0].as_str().unwrap().contains("folder/sub"), "{summary}");

    std::os::unix::fs::symlink("gone", folder.join("z.svm")).unwrap();
    let latin = folder.join(std::ffi::OsStr::from_bytes(b"caf\xe9.svm"));
    for (path, name) in [(folder.join("z.svm"), "z.svm (a link to gone)"), (latin, "caf?.svm")] {
        if !path.is_symlink() {
            std::fs::write(&path, "1 1:1\n").unwrap();
        }
        for train in ["data.train=folder", "data.train=folder/{?,ca??}.svm"] {
            let (exit, _, stderr) = bench.run(&[train]);
            assert_eq!(exit, Some(7), "{stderr}");
            assert!(stderr.contains(&format!("folder/{name}")), "{stderr}");
        }
        let scored = bench.heddle(&["predict", "model", "folder"]);
        assert_eq!(scored.status.code(), Some(7), "{scored:?}");
        assert!(String::from_utf8_lossy(&scored.stderr).contains(name), "{scored:?}");
        assert!(scored.stdout.is_empty(), "{scored:?}");
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn the_folder_of_the_job_file_is_literal() {
    for name in ["run [1]", "run {a,b}", "run*"] {
        let bench = Bench::new(None);
        let folder = bench.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        for file in ["train.libsvm", "job.toml"] {
            std::fs::rename(bench.path().join(file), folder.join(file)).unwrap();
        }
        let job = format!("{name}/job.toml");
        let sets = ["--set", "output.model=model", "--set", "checkpoint.dir=ckpt"];
        let ended = bench.heddle(&[&["run", &job][..], &sets].concat());
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        let scored = bench.heddle(&["predict", "model", &format!("{name}/tr*.{{svm,libsvm}}")]);
        assert_eq!(String::from_utf8_lossy(&scored.stdout).lines().count(), 40, "{scored:?}");
        let url = format!("file:{}", folder.join("train.libsvm").display());
        let scored = bench.heddle(&["predict", "model", &url]);
        assert_eq!(String::from_utf8_lossy(&scored.stdout).lines().count(), 40, "{scored:?}");
    }
}

#[test]
fn forms_of_other_tools_are_exit_7_with_the_form_to_write() {
    let bench = Bench::new(None);
    for (set, words) in [
        ("data.train=file:data/train.svm", "write data/train.svm, or a URL"),
        ("data.train=a.svm,b.svm", "a list of paths is written ["),
        ("data.train=~/train.svm", "~ is not replaced"),
        ("data.train=${PWD}/train.svm", "the variable in ${PWD} is not replaced"),
        ("output.model=~/model", "output.model = "),
        ("checkpoint.dir=file:ckpt", "write ckpt, or a URL"),
        ("run.work-dir=$HOME/runs", "the variable in $HOME is not replaced"),
    ] {
        let (exit, _, stderr) = bench.run(&[set]);
        assert_eq!(exit, Some(7), "{set}: {stderr}");
        assert!(stderr.contains(words), "{set}: {stderr}");
        let odd = |name: &String| name.starts_with(['~', '$']) || name.contains(':');
        assert!(!names(bench.path()).iter().any(odd), "{set}");
    }
}

#[test]
fn three_label_values_are_refused_with_file_and_line() {
    let bench = Bench::new(None);
    let mut text: String = (0..39).map(|n| format!("{} 1:1\n", n % 2)).collect();
    text.push_str("-1 2:1\n");
    std::fs::write(bench.path().join("train.libsvm"), text).unwrap();
    let (exit, stdout, stderr) = bench.run(&["trainers.max=2"]);
    assert_eq!((exit, stdout.as_str()), (Some(7), ""), "{stderr}");
    assert!(
        stderr.contains("train.libsvm:40: label -1, but ") && stderr.contains(": label 0"),
        "{stderr}"
    );
    // Two labels are two classes, whichever they are.
    let text: String = (0..40).map(|n| format!("{} 1:1\n", n % 2 * 2 - 1)).collect();
    std::fs::write(bench.path().join("train.libsvm"), text).unwrap();
    let (exit, _, stderr) = bench.run(&["trainers.max=2"]);
    assert_eq!(exit, Some(0), "{stderr}");
}

#[test]
fn rows_and_bad_records_are_exact_with_two_trainers() {
    let bench = Bench::new(None);
    let write = |name: &str, rows: usize, bad: usize| {
        let record = |n: usize| format!("{} 1:{} 2:{}\n", n % 2, n % 7, n * 3 % 5);
        let mut text: String = (0..rows).map(record).collect();
        text.push_str(&"1 1:x\n".repeat(bad));
        std::fs::write(bench.path().join(name), text).unwrap();
    };
    write("train.libsvm", 4_000, 3);
    write("test.libsvm", 2_000, 1);
    let (exit, stdout, stderr) = bench.run(&[
        "data.test=test.libsvm",
        "data.passes=5",
        "model.standardise=true",
        "trainers.min=2",
        "trainers.max=2",
        "data.bad-records=skip:9",
        "training.batch=50",
    ]);
    assert_eq!(exit, Some(0), "{stderr}");
    // Five passes, without those to standardise and the evaluations.
    let row = |name: &str| stdout.lines().find(|line| line.starts_with(name)).unwrap();
    assert!(row("rows ").contains("  20,000 in "), "{stdout}");
    assert!(row("bad records ").ends_with("  4"), "{stdout}");
    let warned = stderr.matches("bad records are left out").count();
    assert_eq!(warned, 1, "{stderr}");
}

#[test]
fn packed_files_that_leave_lanes_idle_are_warned_about() {
    use std::io::Write as _;

    let bench = Bench::new(None);
    let text = std::fs::read(bench.path().join("train.libsvm")).unwrap();
    let file = std::fs::File::create(bench.path().join("train.libsvm.gz")).unwrap();
    let mut packed = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    packed.write_all(&text).unwrap();
    packed.finish().unwrap();
    let (exit, _, stderr) = bench.run(&["data.train=train.libsvm.gz"]);
    assert_eq!(exit, Some(0), "{stderr}");
    assert!(stderr.contains("warning: 1 of 2 workers"), "{stderr}");
    assert!(stderr.contains("train.libsvm.gz"), "{stderr}");

    std::fs::write(bench.path().join("train.libsvm"), b"BZh91AY&SY....").unwrap();
    let (exit, _, stderr) = bench.run(&[]);
    assert_eq!(exit, Some(7), "{stderr}");
    assert!(stderr.contains("bzip2"), "{stderr}");
}

#[test]
fn packed_training_data_gives_the_model_of_the_text() {
    use std::io::Write as _;

    let bench = Bench::new(None);
    let text = std::fs::read(bench.path().join("train.libsvm")).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&text).unwrap();
    let mut bzip2 = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::best());
    bzip2.write_all(&text).unwrap();
    let chunk = snap::raw::Encoder::new().compress_vec(&text).unwrap();
    let lengths = [text.len() as u32, chunk.len() as u32].map(u32::to_be_bytes).concat();
    let packed = [
        ("gz", gzip.finish().unwrap()),
        ("zst", zstd::encode_all(&text[..], 3).unwrap()),
        ("bz2", bzip2.finish().unwrap()),
        ("snappy", [lengths, chunk].concat()),
    ];
    let model = |data: &str| {
        let data = format!("data.train={data}");
        let sets = [&data, "data.task-size=1MiB", "training.lanes=1", "output.model=model"];
        let (exit, _, stderr) = bench.run(&sets);
        assert_eq!(exit, Some(0), "{stderr}");
        let model = std::fs::read(bench.path().join("model/model.txt")).unwrap();
        std::fs::remove_dir_all(bench.path().join("model")).unwrap();
        model
    };
    let plain = model("train.libsvm");
    for (suffix, bytes) in packed {
        let name = format!("train.libsvm.{suffix}");
        std::fs::write(bench.path().join(&name), bytes).unwrap();
        assert!(model(&name) == plain, "{name}");
    }
}

#[test]
fn predict_takes_rows_without_labels_and_writes_a_file() {
    let bench = Bench::new(None);
    let sets = ["output.model=model", "data.test=train.libsvm", "data.passes=3"];
    let (exit, stdout, stderr) = bench.run(&sets);
    assert_eq!(exit, Some(0), "{stderr}");
    let reported = stdout.lines().next().unwrap().replace("test  ", "");

    let output = bench.heddle(&["predict", "model", "train.libsvm"]);
    assert_eq!(output.status.code(), Some(0));
    let scores = String::from_utf8(output.stdout).unwrap();
    let summary = String::from_utf8(output.stderr).unwrap();
    assert!(
        summary.contains("rows 40") && summary.contains(reported.trim()),
        "{reported:?} in {summary:?}"
    );

    // The same rows without labels: the same scores, and nothing to compare them with.
    let text = std::fs::read_to_string(bench.path().join("train.libsvm")).unwrap();
    let bare: String =
        text.lines().map(|line| format!("{}\n", line.split_once(' ').unwrap().1)).collect();
    std::fs::write(bench.path().join("bare.libsvm"), bare).unwrap();
    let output = bench.heddle(&["predict", "model", "bare.libsvm", "--output", "scores.txt"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "rows 40\n");
    let written = bench.path().join("scores.txt");
    assert_eq!(std::fs::read_to_string(&written).unwrap(), scores);

    // Labels of other data: the scores, and the reason why figures are left out.
    for (text, reason) in [
        (
            "# a comment\n\n2 1:1\n1 1:1\n",
            "odd.libsvm:3 has label 2 (labels are 0 and 1, or -1 and +1)",
        ),
        ("1 1:1\n# c\n# c\n1:1\n0 1:1\n", "odd.libsvm:4 has no label"),
        ("1 1:1\n0 1:1\n-1 2:1\n", "odd.libsvm:3 has label -1, and an earlier record label 0"),
    ] {
        std::fs::write(bench.path().join("odd.libsvm"), text).unwrap();
        let output = bench.heddle(&["predict", "model", "odd.libsvm"]);
        let summary = String::from_utf8(output.stderr).unwrap();
        assert!(summary.contains("no figures: ") && summary.contains(reason), "{summary}");
        let output = bench.heddle(&["--json", "predict", "model", "odd.libsvm"]);
        let summary: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
        assert!(summary["no_figures"].as_str().unwrap().ends_with(reason), "{summary}");
    }

    // A file that is there stays unless it may be replaced; a failure leaves nothing under the name.
    let arguments = ["predict", "model", "train.libsvm", "--output", "scores.txt"];
    assert_eq!(bench.heddle(&arguments).status.code(), Some(7));
    let json = [&arguments[..], &["--overwrite", "--json"]].concat();
    let output = bench.heddle(&json);
    assert_eq!(output.status.code(), Some(0));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["rows"], 40);
    assert!(summary["log_loss"].is_f64() && summary["auc"].is_f64());
    std::fs::write(bench.path().join("bad.libsvm"), "1:1\n1:x\n").unwrap();
    let output = bench.heddle(&["predict", "model", "bad.libsvm", "--output", "bad.txt"]);
    assert_eq!(output.status.code(), Some(7));
    assert!(!names(bench.path()).iter().any(|name| name.contains("bad.txt")));
}

#[test]
fn outputs_follow_the_umask_and_checkpoints_stay_private() {
    use std::os::unix::fs::PermissionsExt;

    let bench = Bench::new(None);
    let run = |umask: &str, more: &str| {
        let script = format!(
            "umask {umask}; exec {} run job.toml --fresh {more}",
            env!("CARGO_BIN_EXE_heddle")
        );
        let output = Command::new("sh")
            .args(["-c", &script])
            .current_dir(bench.path())
            .env("XDG_STATE_HOME", bench.path().join("state"))
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{stderr}");
    };
    let mode = |name: &str| {
        let meta = std::fs::metadata(bench.path().join(name)).unwrap();
        format!("{:o}", meta.permissions().mode() & 0o7777)
    };
    let sets = "--set checkpoint.dir=a/ck --set output.model=a/model";
    run("027", sets);
    assert_eq!(mode("a"), "750");
    assert_eq!(mode("a/ck"), "700");
    assert_eq!(mode("a/model"), "750");
    for name in ["MODEL.json", "model.safetensors", "model.txt.md5"] {
        assert_eq!(mode(&format!("a/model/{name}")), "640", "{name}");
    }
    run(
        "077",
        "--set checkpoint.dir=b/ck --set output.model=b/model --set output.permissions=0644",
    );
    assert_eq!(mode("b/model"), "755");
    assert_eq!(mode("b/model/model.safetensors"), "644");
}

#[test]
fn old_runs_are_left_out_of_the_list_and_cleaned() {
    let bench = Bench::new(None);
    for _ in 0..2 {
        assert_eq!(bench.run(&[]).0, Some(0));
    }
    assert_eq!(bench.run(&["data.bad-records=skip:1", "data.train=nothing"]).0, Some(7));
    let list = |more: &[&str]| {
        let output = bench.heddle(&[&["list", "--json"], more].concat());
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stdout).unwrap().lines().count()
    };
    assert_eq!(list(&[]), 2);
    assert_eq!(list(&["-n", "1"]), 1);
    assert_eq!(list(&["--state", "failed"]), 0);
    assert_eq!(list(&["--state", "finished", "--name", "small"]), 2);
    assert_eq!(list(&["--name", "other"]), 0);
    assert_eq!(bench.heddle(&["list", "--state", "odd"]).status.code(), Some(2));

    let clean = |more: &[&str]| {
        let output = bench.heddle(&[&["clean"], more].concat());
        assert_eq!(output.status.code(), Some(0));
        let stderr = String::from_utf8(output.stderr).unwrap();
        (String::from_utf8(output.stdout).unwrap().lines().count(), stderr)
    };
    assert_eq!(clean(&[]).0, 0, "they are young");
    assert_eq!(clean(&["--older-than", "0s", "--dry-run"]).0, 2);
    assert_eq!(list(&[]), 2);
    let (removed, sum) = clean(&["--older-than", "0s"]);
    assert_eq!(removed, 2);
    assert!(sum.contains("2 entries, ") && sum.contains("B, removed"), "{sum}");
    assert_eq!(list(&[]), 0);
    assert_eq!(names(&bench.path().join("out")).len(), 2, "models stay");
}
