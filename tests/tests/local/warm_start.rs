//! A job that begins with another job's checkpoint, by real processes: any number of shards, the same bytes as one longer job,
//! and refusals that name the cause.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use heddle_protocol::ids::Slot;
use heddle_protocol::job_spec::position::{POSITIONS, key_of_position};
use heddle_protocol::view::{JobEvent, JobView};
use heddle_storage::checkpoint::{Depth, StoredCheckpoint};
use heddle_storage::shard_file::{ShardReader, ShardRows};
use heddle_storage::{StorageUrl, connect};
use heddle_tests::checkpointed_job::checkpoints_in;
use heddle_tests::local::{
    Ended, Run, heddle, heddle_with, kill9, pid_of, write_distinct_keys, write_libsvm,
};

const ANY: &str = "\"any\"";
const FTRL: &str = "{ kind = \"ftrl\", alpha = 0.1, l1 = 0.01 }";

/// A job `name` with its checkpoints in `<name>-ckpt`.
struct JobFile {
    name: &'static str,
    passes: u32,
    shards: u32,
    /// A number, or `ANY`.
    features: &'static str,
    optimizer: &'static str,
    /// Begins the names of its files in `data`.
    train: &'static str,
    /// Further lines of `[model]`.
    model: String,
}

impl JobFile {
    fn new(name: &'static str) -> Self {
        let (passes, shards, features) = (1, 8, "300");
        let model = String::new();
        Self { name, passes, shards, features, optimizer: FTRL, train: "train", model }
    }

    fn from(name: &'static str, init: &str) -> Self {
        Self { model: format!("init = \"{init}\"\n"), ..Self::new(name) }
    }

    fn write(&self, dir: &Path) {
        let Self { name, passes, shards, features, optimizer, train, model } = self;
        let text = format!(
            "name = \"{name}\"\n\
             [data]\ntrain = \"data/{train}-*.libsvm\"\npasses = {passes}\nshuffle = false\n\
             [model]\nfeatures = {features}\noptimizer = {optimizer}\n{model}\
             [training]\nlanes = 2\nbatch = 20\n\
             [pservers]\ncount = 2\nmemory = \"2GiB\"\nshards = {shards}\n[trainers]\nmin = 1\nmax = 2\n\
             [checkpoint]\ndir = \"{name}-ckpt\"\n[output]\nmodel = \"{name}-model\"\n"
        );
        std::fs::write(dir.join(format!("{name}.toml")), text).expect("a job file");
    }

    fn run(&self, dir: &Path, variables: &[(&str, &str)]) -> Ended {
        self.write(dir);
        let arguments = ["run", &format!("{}.toml", self.name)];
        heddle_with(dir, &arguments, variables).expect("heddle starts")
    }

    /// Runs to the end, without an error.
    fn complete(&self, dir: &Path) -> Ended {
        self.complete_with(dir, &[])
    }

    /// Runs until the checkpoint before the first step exists, and ends there: the first step lasts longer than saving. Returns
    /// this checkpoint.
    fn first_checkpoint(&self, dir: &Path) -> PathBuf {
        self.write(dir);
        let step = [("FAILPOINTS", "step-computed=sleep(3600000)")];
        let job = format!("{}.toml", self.name);
        let mut run = Run::start_with(dir, &job, &[], &step).expect("starts");
        let saved = |view: &JobView| !view.checkpoints.is_empty();
        let limit = Duration::from_secs(600);
        let view = run.wait_for("the checkpoint before the first step", limit, saved);
        assert_eq!(view.expect("a checkpoint").rows, 0, "no step has ended");
        checkpoints(dir, self.name).remove(0)
    }

    /// What the command line says before it starts the job.
    fn planned(&self, dir: &Path) -> String {
        self.write(dir);
        let job = format!("{}.toml", self.name);
        heddle(dir, &["run", &job, "--dry-run"]).expect("heddle starts").stdout
    }

    fn complete_with(&self, dir: &Path, variables: &[(&str, &str)]) -> Ended {
        let ended = self.run(dir, variables);
        assert_eq!(ended.code, Some(0), "{}: {}", self.name, ended.stderr);
        ended
    }
}

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    write_libsvm(&dir.path().join("data"), "train", 2, 500, 300, 12, 7).expect("data");
    dir
}

/// The checkpoints of a job, oldest first.
fn checkpoints(dir: &Path, job: &str) -> Vec<PathBuf> {
    checkpoints_in(&dir.join(format!("{job}-ckpt")))
}

/// Bytes of rows by table, section and row.
type Rows = BTreeMap<(String, String, u64), Vec<u8>>;

/// Every row of a checkpoint, from the files of all shards.
fn rows_of(checkpoint: &Path) -> Rows {
    let mut rows = Rows::new();
    visit_rows(checkpoint, |(table, section, row), bytes| {
        let key = (table.to_owned(), section.to_owned(), row);
        assert!(rows.insert(key, bytes.to_vec()).is_none(), "a row twice");
    });
    rows
}

/// The same for tables of one column, in less memory: names of table and section as one number, key and value.
fn values_of(checkpoint: &Path) -> Vec<(usize, u64, [u8; 4])> {
    let (mut names, mut values) = (Vec::new(), Vec::new());
    visit_rows(checkpoint, |(table, section, row), bytes| {
        let name = format!("{table} {section}");
        let number = names.iter().position(|known| *known == name).unwrap_or_else(|| {
            names.push(name);
            names.len() - 1
        });
        values.push((number, row, bytes.try_into().expect("one column")));
    });
    values.sort_unstable();
    values
}

/// Shows every row of every section, with the names of its table and section and its key.
fn visit_rows(checkpoint: &Path, mut visit: impl FnMut((&str, &str, u64), &[u8])) {
    let read = async {
        let url = StorageUrl::parse(checkpoint.to_str().expect("UTF-8")).expect("a location");
        let storage = connect(&url).expect("local");
        let stored = StoredCheckpoint::load(&*storage, url.path(), Depth::Full).await;
        let stored = stored.expect("a complete checkpoint");
        let identity = stored.manifest.identity();
        for file in &stored.manifest.shards {
            let reader = ShardReader::open(&*storage, url.path(), file, &identity).await;
            let mut reader = reader.expect("opens");
            let header = reader.header().clone();
            let mut sections = vec![Vec::new(); header.sections.len()];
            while let Some(piece) = reader.next().await.expect("readable") {
                sections[piece.section].extend_from_slice(&piece.data);
            }
            let positions: BTreeMap<_, _> = header
                .sections
                .iter()
                .zip(&sections)
                .filter(|(section, _)| section.name == POSITIONS)
                .map(|(section, bytes)| (section.table, bytes.clone()))
                .collect();
            for (section, bytes) in header.sections.iter().zip(sections) {
                let Some(table) =
                    header.tables.iter().find(|table| Some(table.id) == section.table)
                else {
                    continue;
                };
                let keys: Vec<u64> = match table.rows {
                    ShardRows::Dense { first, count } => (first..first + count).collect(),
                    ShardRows::Sparse { .. } => keys_of(&positions[&Some(table.id)]),
                };
                if section.name == POSITIONS {
                    continue;
                }
                for (row, bytes) in keys.into_iter().zip(bytes.chunks(4 * table.cols as usize)) {
                    visit((&table.name, &section.name, row), bytes);
                }
            }
        }
    };
    tokio::runtime::Runtime::new().expect("a runtime").block_on(read);
}

/// The keys at these positions.
fn keys_of(positions: &[u8]) -> Vec<u64> {
    let positions = positions.as_chunks::<8>().0.iter();
    positions.map(|position| key_of_position(u64::from_le_bytes(*position))).collect()
}

fn model(dir: &Path, job: &str) -> Vec<u8> {
    std::fs::read(dir.join(format!("{job}-model/model.safetensors"))).expect("a model")
}

/// The part of a safetensors file after its header, which names the job.
fn tensors(file: &[u8]) -> &[u8] {
    let length = u64::from_le_bytes(*file.first_chunk().expect("8 bytes"));
    &file[8 + length as usize..]
}

#[test]
fn two_jobs_of_a_pass_are_one_of_two_passes_to_the_byte() {
    let cosine = "schedule = { kind = \"cosine\", steps = 100, warmup = 10 }\n";
    // With 8 shards the second job reads files of the same rows as its own.
    for (shards, features, optimizer, model) in [
        (3, "300", FTRL, "l2 = 0.001\n".to_owned()),
        (3, "300", "{ kind = \"adam\", rate = 0.05 }", cosine.to_owned()),
        (8, "300", "{ kind = \"momentum\", rate = 0.1 }", "standardise = true\n".to_owned()),
        (3, ANY, FTRL, "l2 = 0.001\n".to_owned()),
        (8, ANY, "{ kind = \"adam\", rate = 0.05 }", cosine.to_owned()),
    ] {
        let dir = folder();
        let at = dir.path();
        let job =
            |name| JobFile { features, optimizer, model: model.clone(), ..JobFile::new(name) };
        JobFile { passes: 2, ..job("two") }.complete(at);
        job("first").complete(at);
        let model = format!("{model}init = \"first-ckpt\"\n");
        JobFile { shards, model, ..job("second") }.complete(at);
        assert_eq!(
            tensors(&self::model(at, "second")),
            tensors(&self::model(at, "two")),
            "{optimizer}"
        );
        let last = |job| rows_of(checkpoints(at, job).last().expect("a checkpoint"));
        assert!(last("second") == last("two"), "{optimizer}: rows or state differ");
        assert!(last("first") != last("two"), "{optimizer}: the second pass changed nothing");
    }
}

fn restore_into_3_and_20(features: &'static str) {
    let dir = folder();
    let at = dir.path();
    JobFile { features, ..JobFile::new("other") }.complete(at);
    let source = checkpoints(at, "other").pop().expect("a checkpoint");
    let before = rows_of(&source);
    assert!(before.len() > 3 * 290, "values, z and n of each weight, and the bias");
    for (name, shards) in [("three", 3), ("twenty", 20)] {
        let from = JobFile::from(name, source.to_str().expect("UTF-8"));
        let job = JobFile { shards, features, ..from };
        let note =
            format!("begins with weights, bias (with optimizer state) of {}", source.display());
        let planned = job.planned(at);
        assert!(planned.contains(&note), "{note} in {planned}");
        let first = job.first_checkpoint(at);
        assert!(rows_of(&first) == before, "{shards} shards have other rows");
        let target = format!("{name}-restored");
        let export = ["export", first.to_str().expect("UTF-8"), target.as_str()];
        let exported = heddle(at, &export).expect("heddle starts");
        assert_eq!(exported.code, Some(0), "{}", exported.stderr);
        let file = std::fs::read(at.join(&target).join("model.safetensors")).expect("exported");
        assert_eq!(tensors(&file), tensors(&model(at, "other")), "{shards} shards");
    }
}

#[test]
fn eight_shards_restore_into_3_and_20_key_by_key() {
    restore_into_3_and_20("300");
}

#[test]
fn sparse_rows_of_8_shards_restore_into_3_and_20_key_by_key() {
    restore_into_3_and_20(ANY);
}

/// Rows of `keys` features from 8 shards into 3 and 20: each has the same bytes, and the exported models are equal.
fn restore_distinct_keys(keys: u64) {
    let dir = folder();
    let at = dir.path();
    write_distinct_keys(&at.join("data/distinct-0.libsvm"), keys).expect("data");
    JobFile { features: ANY, train: "distinct", ..JobFile::new("other") }.complete(at);
    let source = checkpoints(at, "other").pop().expect("a checkpoint");
    let before = values_of(&source);
    // Values, z and n of each weight, and of the bias.
    assert_eq!(before.len() as u64, 3 * (keys + 1));
    for (name, shards) in [("three", 3), ("twenty", 20)] {
        let from = JobFile::from(name, source.to_str().expect("UTF-8"));
        let first = JobFile { shards, features: ANY, ..from }.first_checkpoint(at);
        assert!(values_of(&first) == before, "{shards} shards have other rows");
        let target = format!("{name}-restored");
        let export = ["export", first.to_str().expect("UTF-8"), target.as_str()];
        let exported = heddle(at, &export).expect("heddle starts");
        assert_eq!(exported.code, Some(0), "{}", exported.stderr);
        let file = std::fs::read(at.join(&target).join("model.safetensors")).expect("exported");
        assert!(tensors(&file) == tensors(&model(at, "other")), "{shards} shards: another model");
    }
}

#[test]
#[ignore = "nightly: takes a minute without optimisation"]
fn a_million_keys_of_8_shards_restore_into_3_and_20() {
    restore_distinct_keys(1_000_000);
}

/// `cargo test --release -p heddle-tests --test local warm_start -- --ignored`
#[test]
#[ignore = "nightly: takes minutes without optimisation"]
fn ten_million_keys_restore_into_3_and_20() {
    restore_distinct_keys(10_000_000);
}

#[test]
fn dense_and_sparse_tables_do_not_continue_each_other() {
    let dir = folder();
    let at = dir.path();
    JobFile::new("other").complete(at);
    let job = JobFile { features: ANY, ..JobFile::from("new", "other-ckpt") };
    let words = ["model.init", "table \"weights\" is dense there and sparse in this job"];
    refused(at, "new", &job.run(at, &[]), 7, &words);
}

#[test]
fn more_rows_begin_with_their_initial_values() {
    let dir = folder();
    let at = dir.path();
    JobFile::new("other").complete(at);
    let wider = JobFile { features: "450", ..JobFile::from("wider", "other-ckpt") };
    let before = rows_of(checkpoints(at, "other").last().expect("a checkpoint"));
    let after = rows_of(&wider.first_checkpoint(at));
    for (key, bytes) in &after {
        match before.get(key) {
            Some(same) => assert_eq!(same, bytes, "{key:?}"),
            None => assert!(bytes.iter().all(|byte| *byte == 0), "{key:?}"),
        }
    }
    assert_eq!(after.len(), before.len() + 3 * 150);
}

#[test]
fn ftrl_continues_from_the_values_of_sgd() {
    let dir = folder();
    let at = dir.path();
    let sgd = "{ kind = \"sgd\", rate = 0.5 }";
    JobFile { optimizer: sgd, ..JobFile::new("other") }.complete(at);
    let job = JobFile::from("ftrl", "other-ckpt");
    let planned = job.planned(at);
    assert!(planned.contains("begins with weights, bias (values alone)"), "{planned}");
    let first = job.first_checkpoint(at);
    let values = |rows: Rows| -> Rows {
        rows.into_iter().filter(|((_, section, _), _)| section == "values").collect()
    };
    let before = values(rows_of(checkpoints(at, "other").last().expect("a checkpoint")));
    let begun = rows_of(&first);
    assert!(values(begun.clone()) == before, "it predicts the same before the first step");
    let number = |bytes: &Vec<u8>| f32::from_le_bytes(*bytes.first_chunk().expect("one value"));
    let at_zero = |(key, z): (&(String, String, u64), &Vec<u8>)| {
        let w = number(&before[&(key.0.clone(), "values".to_owned(), key.2)]);
        // alpha 0.1, beta 1, l1 0.01.
        (number(z) - (-w * 10.0 - 0.01f32.copysign(w))).abs() < 1e-5 || w == 0.0
    };
    assert!(begun.iter().filter(|(key, _)| key.1 == "z").all(at_zero));
    let wrong = "{ kind = \"ftrl\", alpha = 0.1, beta = 0.0 }";
    let refused = JobFile { optimizer: wrong, ..JobFile::from("zero", "other-ckpt") }.run(at, &[]);
    assert_eq!(refused.code, Some(7), "{refused:?}");
    let words = "ftrl with beta = 0 cannot begin with plain values";
    assert!(refused.stderr.contains(words), "{}", refused.stderr);
}

/// Saving is slow and steps are slow: a pserver dies before the first checkpoint exists, and the job begins again.
#[test]
fn rollback_before_the_first_checkpoint_begins_the_same() {
    let dir = folder();
    let at = dir.path();
    JobFile::new("other").complete(at);
    JobFile::from("plain", "other-ckpt").complete(at);
    JobFile::from("killed", "other-ckpt").write(at);
    let slow = ["--set", "checkpoint.bandwidth=2KiB"];
    let steps = [("FAILPOINTS", "step-computed=sleep(200)")];
    let mut run = Run::start_with(at, "killed.toml", &slow, &steps).expect("starts").expecting(&[
        "container_lost",
        "connection",
        "shard_not_saved",
    ]);
    let limit = Duration::from_secs(60);
    let begun = |view: &JobView| view.rows > 0 && view.checkpoints.is_empty();
    let view = run.wait_for("a step before a checkpoint", limit, begun).expect("no checkpoint yet");
    kill9(pid_of(&view, Slot::pserver(0)).expect("it runs")).expect("killed");
    let (code, events, stderr) = run.finish(Duration::from_secs(120)).expect("ends");
    assert_eq!(code, Some(0), "{stderr}");
    let to_the_beginning =
        |event: &JobEvent| matches!(event, JobEvent::RollbackStarted { base: None, .. });
    assert!(events.iter().any(to_the_beginning), "{events:?}");
    assert!(
        rows_of(checkpoints(at, "killed").last().expect("one"))
            == rows_of(checkpoints(at, "plain").last().expect("one"))
    );
}

/// Ended with this code and these words, trained nothing, published nothing.
fn refused(dir: &Path, name: &str, ended: &Ended, code: i32, words: &[&str]) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    for word in words {
        assert!(ended.stderr.contains(word), "{word:?} is not printed: {}", ended.stderr);
    }
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    assert!(!dir.join(format!("{name}-model/MODEL.json")).exists(), "something was published");
}

#[test]
fn folders_without_a_complete_checkpoint_are_refused() {
    let dir = folder();
    let at = dir.path();
    JobFile::new("other").complete(at);
    let run = |init: &str| JobFile::from("new", init).run(at, &[]);
    refused(at, "new", &run("nowhere"), 7, &["model.init", "nowhere"]);
    refused(at, "new", &run("data"), 7, &["model.init", "data is neither a checkpoint"]);
    std::fs::create_dir(at.join("empty-ckpt")).expect("made");
    std::fs::copy(at.join("other-ckpt/HEDDLE"), at.join("empty-ckpt/HEDDLE")).expect("copied");
    let words = ["model.init", "empty-ckpt has no complete checkpoint yet"];
    refused(at, "new", &run("empty-ckpt"), 7, &words);
    let words = ["model.init", "is the job's own checkpoint.dir"];
    refused(at, "new", &run("new-ckpt"), 7, &words);
    refused(at, "new", &run("new-ckpt/g1-c1"), 7, &words);
    let newest = checkpoints(at, "other").pop().expect("a checkpoint");
    let manifest = newest.join("MANIFEST.json");
    std::fs::rename(&manifest, at.join("aside")).expect("moved");
    let init = newest.to_str().expect("UTF-8");
    let words = [init, "is not a complete checkpoint: it has no MANIFEST.json"];
    refused(at, "new", &run(init), 8, &words);
    let later = std::fs::read_to_string(at.join("aside")).expect("readable");
    let later = later.replacen("\"format_version\":2", "\"format_version\":99", 1);
    std::fs::write(&manifest, &later).expect("written");
    let summed = std::process::Command::new("sh")
        .args(["-c", "md5sum -b MANIFEST.json > MANIFEST.json.md5"])
        .current_dir(&newest)
        .status();
    assert!(summed.expect("md5sum runs").success());
    refused(at, "new", &run(init), 8, &["MANIFEST.json", "it has format version 99"]);
    assert!(!at.join("new-ckpt").exists(), "nothing was claimed");
}

#[test]
fn tables_that_do_not_fit_are_refused_by_name() {
    let dir = folder();
    let at = dir.path();
    JobFile::new("other").complete(at);
    for (keys, message) in [
        (
            "algorithm = \"factorization-machine\"\nrank = 2\n",
            "it has no table \"factors\" (it has weights, bias)",
        ),
        (
            "algorithm = \"softmax-regression\"\nclasses = 3\n",
            "table \"weights\" has 1 columns there and 3 in this job; they must be equal",
        ),
        ("standardise = true\n", "its job has model.standardise = false"),
    ] {
        let mut job = JobFile::from("new", "other-ckpt");
        job.model.push_str(keys);
        refused(at, "new", &job.run(at, &[]), 7, &["model.init", "other-ckpt/g1-c", message]);
    }
    let fewer = JobFile { features: "299", ..JobFile::from("new", "other-ckpt") };
    let message = "table \"weights\" has 300 rows there and 299 in this job";
    refused(at, "new", &fewer.run(at, &[]), 7, &["model.init", message]);
    assert!(!at.join("new-ckpt").exists(), "nothing was claimed");
}

#[test]
fn damaged_files_are_refused_by_name_or_passed_over() {
    let dir = folder();
    let at = dir.path();
    // That of the first pass is kept: where training ends before it is saved, the final one replaces it.
    let slow = [("FAILPOINTS", "step-computed=sleep(100)")];
    JobFile::new("other").write(at);
    let twice = ["run", "other.toml", "--set", "data.passes=2", "--set", "checkpoint.every=1 pass"];
    assert_eq!(heddle_with(at, &twice, &slow).expect("heddle starts").code, Some(0));
    let mut all = checkpoints(at, "other");
    let (newest, older) = (all.pop().expect("the last"), all.pop().expect("the first pass"));
    let mut files: Vec<PathBuf> = std::fs::read_dir(&newest)
        .expect("files")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "ckpt"))
        .collect();
    files.sort();
    let file = &files[3];
    let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
    let whole = std::fs::read(file).expect("readable");
    // A changed byte is found by the pserver that reads it.
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    std::fs::write(file, changed).expect("written");
    let ended = JobFile::from("new", "other-ckpt").run(at, &[]);
    refused(at, "new", &ended, 8, &["model.init", name, "name another checkpoint"]);
    // A wrong length is found before: the folder has an older checkpoint, and the checkpoint itself is refused.
    std::fs::write(file, &whole[..whole.len() - 64]).expect("written");
    let init = newest.to_str().expect("UTF-8");
    let ended = JobFile::from("exact", init).run(at, &[]);
    refused(at, "exact", &ended, 8, &["model.init", name, "the file has"]);
    let ended = JobFile::from("fallback", "other-ckpt").complete(at);
    let note = format!("of {}", older.display());
    for words in ["an older checkpoint is used", name, &note] {
        assert!(ended.stderr.contains(words), "{words:?} in {}", ended.stderr);
    }
    let mut strict = JobFile::from("strict", "other-ckpt");
    strict.write(at);
    let arguments = ["run", "strict.toml", "--set", "checkpoint.on-corrupt=fail"];
    let ended = heddle(at, &arguments).expect("heddle starts");
    refused(at, "strict", &ended, 8, &["model.init", name]);
    std::fs::remove_file(file).expect("removed");
    strict.name = "missing";
    strict.model = format!("init = \"{init}\"\n");
    refused(at, "missing", &strict.run(at, &[]), 8, &["model.init", name, "the file is missing"]);
}

#[test]
fn commands_show_the_checkpoint_and_a_continued_job_needs_none() {
    let dir = folder();
    let at = dir.path();
    JobFile::new("other").complete(at);
    let newest = checkpoints(at, "other").pop().expect("a checkpoint");
    let job = JobFile::from("new", "other-ckpt");
    job.write(at);
    let plan = heddle(at, &["run", "new.toml", "--dry-run"]).expect("heddle starts");
    let note = format!("begins with weights, bias (with optimizer state) of {}", newest.display());
    assert!(plan.stdout.contains(&note), "{note} in {}", plan.stdout);
    let shown = heddle(at, &["config", "show", "new.toml"]).expect("heddle starts");
    let resolved = format!("→ {}", newest.display());
    let line = shown.stdout.lines().find(|line| line.starts_with("model.init ")).expect("the key");
    assert!(line.contains(&resolved), "{line}");
    job.complete(at);
    std::fs::remove_dir_all(at.join("other-ckpt")).expect("removed");
    let arguments = ["run", "new.toml", "--resume", "--overwrite", "--set", "data.passes=2"];
    let ended = heddle(at, &arguments).expect("heddle starts");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let changed = heddle(at, &["run", "new.toml", "--overwrite", "--set", "model.init=data"]);
    let changed = changed.expect("heddle starts");
    assert_eq!(changed.code, Some(7), "{changed:?}");
    assert!(changed.stderr.contains("model.init"), "{}", changed.stderr);
}
