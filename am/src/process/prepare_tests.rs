//! A job that is refused has taken nothing from whoever holds the checkpoint directory.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use heddle_protocol::ids::{CutId, Epoch, Generation, PhaseNo, RunId, ShardId, Step};
use heddle_protocol::manifest::{FORMAT_VERSION, Manifest, Progress, Salt, Work};
use heddle_protocol::spec::JobSpec;
use heddle_protocol::spec::file::{Context, read};
use heddle_storage::checkpoint::{CheckpointDir, Owner};
use heddle_storage::shard_file::{Header, Section, ShardWriter, Values};
use uuid::Uuid;

use super::prepare::{Prepared, prepare};
use super::refusal::Refusal;
use crate::claim::{Liveness, local_owner};
use crate::lease::Lease;
use crate::run_dir::{Earlier, RunFile};

fn spec(dir: &Path, sets: &[&str]) -> JobSpec {
    let text = format!(
        "name = \"job\"\n[data]\ntrain = \"{0}/data/*\"\npasses = 2\n\
         [model]\nalgorithm = \"logistic-regression\"\nfeatures = 10\n\
         [checkpoint]\ndir = \"{0}/ckpt\"\n[output]\nmodel = \"{0}/model\"\n",
        dir.display()
    );
    let context = Context {
        file: "job.toml".to_owned(),
        job_dir: dir.to_owned(),
        working_dir: dir.to_owned(),
        sets: sets.iter().map(|set| (*set).to_owned()).collect(),
        outputs: None,
        run_label: String::new(),
    };
    match read(&text, &context) {
        Ok(job) => job.spec,
        Err(problems) => panic!("{problems}"),
    }
}

/// Asks to go on beside an owner that lives, with `--take-over`.
async fn asks(spec: &JobSpec) -> Result<Prepared, Refusal> {
    let file = RunFile {
        run: RunId(Uuid::from_u128(1)),
        name: spec.name.clone(),
        started_ms: 0,
        job_dir: "/".into(),
        earlier: Earlier::ContinueSame,
        overwrite: false,
        take_over: true,
    };
    let owner = local_owner().expect("an owner");
    let lives = |_: &Owner| Liveness::Alive;
    prepare(
        &file,
        spec,
        owner,
        &lives,
        Lease::default(),
        std::future::ready(Ok(())),
    )
    .await
}

/// Commits a checkpoint of whoever was prepared.
async fn commits(prepared: &Prepared, spec: &JobSpec) {
    let (dir, salt) = (&prepared.store.dir, prepared.store.salt);
    let cut = CutId {
        generation: prepared.generation,
        number: 1,
    };
    let staging = dir.stage(cut, salt).await.expect("staged");
    let content = Bytes::from_static(b"marks");
    let header = Header {
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
    let mut writer = ShardWriter::create(storage, &staging, header)
        .await
        .expect("created");
    writer.write(content).await.expect("written");
    let manifest = Manifest {
        format_version: FORMAT_VERSION,
        run: prepared.store.run,
        job: spec.name.clone(),
        cut,
        epoch: Epoch::first(cut.generation),
        parent: None,
        salt: Salt(Uuid::nil()),
        at_ms: 0,
        spec_digest: spec.digest().0,
        spec: serde_json::to_value(spec).expect("JSON"),
        plan: prepared.plan.clone(),
        shards: vec![writer.finish(storage).await.expect("finished")],
        phase: PhaseNo(0),
        work: Work::Lanes { step: Step(0) },
        task_steps: BTreeMap::new(),
        evaluations: Vec::new(),
        progress: Progress::default(),
    };
    dir.commit(manifest, salt, &|| Ok(()))
        .await
        .expect("committed");
}

async fn refused(spec: &JobSpec, dir: &CheckpointDir, because: &str) {
    let Err(refusal) = asks(spec).await else {
        panic!("allowed, not refused for {because}")
    };
    assert!(
        refusal.exit_code == 7 && refusal.message.contains(because),
        "{refusal:?}"
    );
    let claimed = dir.claimed().await.expect("listed");
    assert_eq!(
        claimed,
        [Generation(1)],
        "the owner is fenced for {because}"
    );
}

#[tokio::test]
async fn who_is_refused_for_its_spec_or_its_data_has_fenced_nobody() {
    let temp = tempfile::tempdir().expect("a temporary directory");
    let data = temp.path().join("data");
    std::fs::create_dir(&data).expect("made");
    std::fs::write(data.join("a"), "1 1:1\n").expect("written");
    let same = spec(temp.path(), &[]);
    let owner = match asks(&same).await {
        Ok(prepared) => prepared,
        Err(refusal) => panic!("{refusal:?}"),
    };
    commits(&owner, &same).await;
    let dir = &owner.store.dir;

    let other = spec(temp.path(), &["model.features=11"]);
    refused(&other, dir, "model.features").await;
    let longer = spec(temp.path(), &["data.passes=3"]);
    refused(&longer, dir, "use --resume").await;
    std::fs::write(data.join("b"), "1 1:1\n").expect("written");
    refused(&same, dir, "is not what it was").await;
    std::fs::remove_file(data.join("b")).expect("removed");

    match asks(&same).await {
        Ok(prepared) => assert_eq!(prepared.generation, Generation(2)),
        Err(refusal) => panic!("{refusal:?}"),
    }
}
