//! A job that is rejected has not fenced the owner of the checkpoint directory.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{Attempt, CutId, Epoch, Generation, PhaseNo, RunId, ShardId, Step};
use heddle_protocol::job_spec::file::{KeyOverride, ReadContext, read};
use heddle_protocol::job_spec::{JobSpec, SpecDigest};
use heddle_protocol::manifest::{FORMAT_VERSION_WITH_FILES, Manifest, Progress, Salt, Work};
use heddle_storage::checkpoint::{CheckpointDir, Owner};
use heddle_storage::shard_file::{Section, ShardHeader, ShardWriter, Values};
use uuid::Uuid;

use super::prepare::{PreparationInputs, Prepared, prepare};
use super::start_failure::StartFailure;
use crate::claim::{Liveness, local_owner};
use crate::event_log::{EventLog, EventOutput};
use crate::lease::Lease;
use crate::run_dir::{ResumeMode, RunFile};

fn spec(dir: &Path, sets: &[&str]) -> JobSpec {
    let text = format!(
        "name = \"job\"\n[data]\ntrain = \"{0}/data/*\"\npasses = 2\n\
         [model]\nalgorithm = \"logistic-regression\"\nfeatures = 10\n\
         [training]\nbatch = 8\n\
         [checkpoint]\ndir = \"{0}/ckpt\"\n[output]\nmodel = \"{0}/model\"\n",
        dir.display()
    );
    let context = ReadContext {
        file: "job.toml".to_owned(),
        job_dir: dir.to_owned(),
        working_dir: dir.to_owned(),
        sets: sets.iter().map(|set| KeyOverride::set(set)).collect(),
        ..ReadContext::default()
    };
    match read(&text, &context) {
        Ok(job) => {
            let mut spec = job.spec;
            // As if the data had decided.
            spec.undecided.clear();
            spec
        }
        Err(problems) => panic!("{problems}"),
    }
}

/// Continues with `--take-over` beside a living owner.
async fn asks(spec: &JobSpec) -> Result<Prepared, StartFailure> {
    asks_beside(spec, Liveness::Alive).await
}

/// Continues after an owner that lives and is taken over, or has ended.
async fn asks_beside(spec: &JobSpec, before: Liveness) -> Result<Prepared, StartFailure> {
    let file = RunFile {
        run: RunId(Uuid::from_u128(1)),
        name: spec.name.clone(),
        started_ms: 0,
        job_dir: "/".into(),
        earlier: ResumeMode::ContinueSame,
        overwrite: false,
        take_over: before == Liveness::Alive,
        from: None,
        default_output: false,
        warnings: Vec::new(),
        parts: None,
    };
    let owner = local_owner().expect("an owner");
    let lives = |_: &Owner| before;
    let run_dir = tempfile::tempdir().expect("a folder");
    let inputs = PreparationInputs {
        file: &file,
        spec,
        owner,
        lease: Lease::default(),
        run_dir: run_dir.path().to_str().expect("UTF-8"),
        events: &EventLog::new(Attempt(1), EventOutput::LogOnly),
    };
    prepare(inputs, &lives, std::future::ready(Ok(()))).await
}

/// Commits a checkpoint of a prepared job.
async fn commits(prepared: &Prepared, spec: &JobSpec, number: u32) {
    let (dir, salt) = (&prepared.store.dir, prepared.store.salt);
    let cut = CutId { generation: prepared.generation, number };
    let staging = dir.stage(cut, salt).await.expect("staged");
    let content = Bytes::from_static(b"marks");
    let header = ShardHeader {
        run: prepared.store.run,
        shard: ShardId(0),
        shards: 1,
        cut,
        epoch: Epoch::first(cut.generation),
        phase: PhaseNo(0),
        step: Step(0),
        tables: Vec::new(),
        sections: vec![Section {
            table: None,
            name: "marks".to_owned(),
            values: Values::Bytes,
            count: content.len() as u64,
        }],
    };
    let storage = &**dir.storage();
    let mut writer = ShardWriter::create(storage, &staging, header).await.expect("created");
    writer.write(content).await.expect("written");
    let manifest = Manifest {
        format_version: FORMAT_VERSION_WITH_FILES,
        run: prepared.store.run,
        job: spec.name.clone(),
        cut,
        epoch: Epoch::first(cut.generation),
        parent: None,
        salt: Salt(Uuid::nil()),
        at_ms: 0,
        spec_digest: SpecDigest::of(spec).0,
        spec: serde_json::to_value(spec).expect("JSON"),
        plan: (*prepared.plan).clone(),
        initial: false,
        shards: vec![writer.finish(storage).await.expect("finished")],
        phase: PhaseNo(0),
        work: Work::Lanes { step: Step(0) },
        task_steps: BTreeMap::new(),
        evaluations: Vec::new(),
        best_pass: None,
        progress: Progress::default(),
        tables: Vec::new(),
    };
    dir.commit(manifest, salt, &|| Ok(())).await.expect("committed");
}

async fn refused(spec: &JobSpec, dir: &CheckpointDir, because: &str) {
    let Err(refusal) = asks(spec).await else { panic!("allowed, not refused for {because}") };
    assert!(
        refusal.exit_code == ExitCode::Input && refusal.message.contains(because),
        "{refusal:?}"
    );
    let claimed = dir.claimed().await.expect("listed");
    assert_eq!(claimed, [Generation(1)], "the owner is fenced for {because}");
}

#[tokio::test]
async fn job_refused_for_its_spec_or_data_fences_no_owner() {
    let temp = tempfile::tempdir().expect("a temporary directory");
    let data = temp.path().join("data");
    std::fs::create_dir(&data).expect("made");
    std::fs::write(data.join("a"), "1 1:1\n").expect("written");
    let same = spec(temp.path(), &[]);
    let owner = match asks(&same).await {
        Ok(prepared) => prepared,
        Err(refusal) => panic!("{refusal:?}"),
    };
    commits(&owner, &same, 1).await;
    let dir = &owner.store.dir;

    let other = spec(temp.path(), &["model.features=11"]);
    refused(&other, dir, "model.features").await;
    let longer = spec(temp.path(), &["data.passes=3"]);
    refused(&longer, dir, "rerun with --resume").await;
    std::fs::write(data.join("b"), "1 1:1\n").expect("written");
    refused(&same, dir, "since the checkpoint was made").await;
    std::fs::remove_file(data.join("b")).expect("removed");

    match asks(&same).await {
        Ok(prepared) => assert_eq!(prepared.generation, Generation(2)),
        Err(refusal) => panic!("{refusal:?}"),
    }
}

#[tokio::test]
async fn run_without_a_trained_step_yields_to_another_spec() {
    for change in ["model.features=11", "data"] {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let data = temp.path().join("data");
        std::fs::create_dir(&data).expect("made");
        std::fs::write(data.join("a"), "1 1:1\n").expect("written");
        let first = spec(temp.path(), &[]);
        let owner = match asks(&first).await {
            Ok(prepared) => prepared,
            Err(refusal) => panic!("{refusal:?}"),
        };
        commits(&owner, &first, 1).await;
        let second = match change {
            "data" => {
                std::fs::write(data.join("a"), "1 1:1\n0 2:1\n").expect("written");
                first.clone()
            }
            set => spec(temp.path(), &[set]),
        };
        // A living predecessor may be training at this time.
        assert!(asks(&second).await.is_err(), "{change}");
        let prepared = match asks_beside(&second, Liveness::Gone).await {
            Ok(prepared) => prepared,
            Err(refusal) => panic!("{change}: {refusal:?}"),
        };
        assert!(prepared.base.is_none(), "{change}");
    }
}

/// A way to damage a checkpoint's directory; `shard` is the name of its shard file.
type Damage = fn(dir: &Path, shard: &str);

fn rewrite(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).expect("read");
    change(&mut bytes);
    std::fs::write(path, bytes).expect("written");
}

/// Replaces a file by a pipe without a writer.
fn pipe(path: &Path) {
    std::fs::remove_file(path).expect("removed");
    nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).expect("made");
}

fn folder(path: &Path) {
    std::fs::remove_file(path).expect("removed");
    std::fs::create_dir(path).expect("made");
}

/// Changes the manifest and makes its sidecar fit.
fn edit_manifest(dir: &Path, from: &str, to: &str) {
    let path = dir.join("MANIFEST.json");
    let text = std::fs::read_to_string(&path).expect("read");
    assert!(text.contains(from), "{from} in {text}");
    let text = text.replace(from, to);
    std::fs::write(&path, &text).expect("written");
    let mut md5sum = std::process::Command::new("md5sum");
    let sum = md5sum.args(["-b", "MANIFEST.json"]).current_dir(dir).output();
    let line = sum.expect("md5sum runs").stdout;
    std::fs::write(dir.join("MANIFEST.json.md5"), line).expect("written");
}

const DAMAGES: [(&str, Damage); 17] = [
    ("shard truncated", |dir, shard| {
        rewrite(&dir.join(shard), |bytes| bytes.truncate(50));
    }),
    ("shard extended", |dir, shard| {
        rewrite(&dir.join(shard), |bytes| bytes.push(0));
    }),
    ("shard emptied", |dir, shard| {
        rewrite(&dir.join(shard), Vec::clear);
    }),
    ("shard deleted", |dir, shard| {
        std::fs::remove_file(dir.join(shard)).expect("removed");
    }),
    ("shard a folder", |dir, shard| folder(&dir.join(shard))),
    ("shard a pipe", |dir, shard| pipe(&dir.join(shard))),
    ("sidecar deleted", |dir, shard| {
        std::fs::remove_file(dir.join(format!("{shard}.md5"))).expect("removed");
    }),
    ("sidecar edited", |dir, shard| {
        let path = dir.join(format!("{shard}.md5"));
        rewrite(&path, |bytes| {
            bytes[0] = if bytes[0] == b'0' { b'1' } else { b'0' };
        });
    }),
    ("sidecar a pipe", |dir, shard| {
        pipe(&dir.join(format!("{shard}.md5")));
    }),
    ("manifest flipped", |dir, _| {
        rewrite(&dir.join("MANIFEST.json"), |bytes| bytes[40] ^= 1);
    }),
    ("manifest truncated", |dir, _| {
        rewrite(&dir.join("MANIFEST.json"), |bytes| bytes.truncate(30));
    }),
    ("manifest deleted", |dir, _| {
        std::fs::remove_file(dir.join("MANIFEST.json")).expect("removed");
    }),
    ("manifest a pipe", |dir, _| pipe(&dir.join("MANIFEST.json"))),
    ("manifest a folder", |dir, _| {
        folder(&dir.join("MANIFEST.json"));
    }),
    ("manifest's sidecar a pipe", |dir, _| {
        pipe(&dir.join("MANIFEST.json.md5"));
    }),
    ("a path out of the folder", |dir, shard| {
        edit_manifest(dir, shard, "../../data/a");
    }),
    ("empty folder", |dir, _| {
        std::fs::remove_dir_all(dir).expect("removed");
        std::fs::create_dir(dir).expect("made");
    }),
];

/// A continued job reports the checkpoints that it skips, and keeps them: the check at the start finds nearly every
/// damage, and skipped checkpoints are outside the lineage of the new claim.
#[tokio::test]
async fn damaged_newest_checkpoint_is_set_aside_and_reported() {
    for (what, damage) in DAMAGES {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let data = temp.path().join("data");
        std::fs::create_dir(&data).expect("made");
        std::fs::write(data.join("a"), "1 1:1\n").expect("written");
        let spec = spec(temp.path(), &[]);
        let before = match asks(&spec).await {
            Ok(prepared) => prepared,
            Err(refusal) => panic!("{refusal:?}"),
        };
        commits(&before, &spec, 1).await;
        commits(&before, &spec, 2).await;
        let newest = temp.path().join("ckpt/g1-c2");
        let files = std::fs::read_dir(&newest).expect("listed");
        let names = files.map(|file| file.expect("listed").file_name().into_string());
        let is_shard = |name: &String| name.ends_with(".ckpt");
        let shard = names.flatten().find(is_shard).expect("a shard file");
        damage(&newest, &shard);

        let limit = std::time::Duration::from_secs(60);
        let after = match tokio::time::timeout(limit, asks(&spec)).await {
            Ok(Ok(prepared)) => prepared,
            Ok(Err(refusal)) => panic!("{what}: {refusal:?}"),
            Err(_) => panic!("{what}: hangs"),
        };
        let base = after.base.expect("the one before").manifest.cut;
        assert_eq!(base.number, 1, "{what}");
        let [damaged] = &after.damaged[..] else { panic!("{what}: {:?}", after.damaged) };
        assert_eq!(damaged.cut.number, 2, "{what}");
        assert!(damaged.error.contains("g1-c2"), "{what}: {}", damaged.error);
        let aside = std::fs::read_dir(temp.path().join("ckpt/damaged")).expect("listed");
        let aside: Vec<_> = aside.map(|entry| entry.expect("listed").path()).collect();
        assert_eq!(aside.len(), 1, "{what}: {aside:?}");
        assert_eq!(aside[0].display().to_string(), damaged.dir, "{what}");
        assert!(!newest.exists(), "{what}");
    }
}
