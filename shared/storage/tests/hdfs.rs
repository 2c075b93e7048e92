//! The hdfs:// storage against a real NameNode and DataNodes.
//!
//! Not run by themselves, since they need a cluster: `HADOOP_CONF_DIR` has to name the configuration of
//! one whose default file system this account may write, then
//! `cargo test -p heddle-storage --features hdfs --test hdfs -- --ignored`.
#![cfg(feature = "hdfs")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use heddle_protocol::ids::{CutId, Epoch, Generation, PhaseNo, RunId, ShardId, Step};
use heddle_protocol::manifest::{
    FORMAT_VERSION, InputPlan, Manifest, Progress, Salt, ShardFile, Work,
};
use heddle_storage::checkpoint::{CheckpointDir, Depth, OnCorrupt};
use heddle_storage::shard_file::{Header, Section, ShardWriter, Values};
use heddle_storage::{
    Location, Mode, Reason, Storage, StorePath, WriteError, connect, find_files, make_dirs, probe,
    publish_small,
};
use uuid::Uuid;

/// Smallest block that a NameNode takes by default.
const BLOCK: usize = 1 << 20;

/// A directory of this test's own, deleted at its end.
struct Place {
    storage: Arc<dyn Storage>,
    root: StorePath,
}

async fn place(name: &str) -> Place {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_nanos();
    let location =
        Location::parse(&format!("hdfs:///tmp/heddle-test-{name}-{now}")).expect("a location");
    let storage = connect(&location).expect("HADOOP_CONF_DIR names a cluster");
    make_dirs(&*storage, location.path(), Mode::DIR)
        .await
        .expect("made");
    Place {
        storage,
        root: location.path().clone(),
    }
}

impl Place {
    fn at(&self, name: &str) -> StorePath {
        name.split('/').fold(self.root.clone(), |path, name| {
            path.join(name).expect("a name")
        })
    }

    async fn put(&self, path: &StorePath, data: &[u8]) -> Result<(), WriteError> {
        let mut writer = self.storage.create(path, Mode::FILE).await?;
        for piece in data.chunks(300_001) {
            writer.write(Bytes::copy_from_slice(piece)).await?;
        }
        writer.sync().await?;
        writer.close().await
    }

    async fn get(&self, path: &StorePath, offset: u64) -> Vec<u8> {
        let mut reader = self.storage.open(path, offset).await.expect("opened");
        let mut all = Vec::new();
        while let Some(chunk) = reader.next().await.expect("read") {
            all.extend_from_slice(&chunk);
        }
        all
    }

    async fn end(self) {
        self.storage.delete_dir(&self.root).await.expect("deleted");
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8).collect()
}

#[tokio::test]
#[ignore = "needs a cluster"]
async fn it_keeps_the_promises_that_the_probe_checks() {
    let place = place("probe").await;
    probe(&*place.storage, &place.at("scratch"))
        .await
        .expect("passes");
    place.end().await;
}

#[tokio::test]
#[ignore = "needs a cluster"]
async fn files_of_any_length_read_back_as_written() {
    let place = place("lengths").await;
    for len in [0, 1, 511, 512, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 77] {
        let (path, data) = (place.at(&len.to_string()), bytes(len));
        place.put(&path, &data).await.expect("written");
        assert_eq!(
            place.storage.stat(&path).await.expect("there").bytes,
            len as u64
        );
        assert!(place.get(&path, 0).await == data, "{len} bytes");
        let from = len / 3;
        assert!(
            place.get(&path, from as u64).await == data[from..],
            "{len} bytes from {from}"
        );
        assert!(
            place.get(&path, len as u64 + 10).await.is_empty(),
            "beyond the end of {len}"
        );
        let some = place
            .storage
            .read_range(&path, from as u64, len / 2)
            .await
            .expect("read");
        assert!(some == data[from..from + len / 2]);
        let error = place.storage.read_range(&path, from as u64, len).await;
        assert!(len < 3 || matches!(error.expect_err("too far").reason, Reason::Short { .. }));
    }
    place.end().await;
}

#[tokio::test]
#[ignore = "needs a cluster"]
async fn reasons_are_told_apart() {
    let place = place("reasons").await;
    let file = place.at("file");
    place.put(&file, b"one").await.expect("written");
    let not_done = |result: Result<(), WriteError>| match result {
        Err(WriteError::NotDone(error)) => error.reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(not_done(place.put(&file, b"two").await), Reason::Exists);
    assert_eq!(
        not_done(place.put(&place.at("none/file"), b"x").await),
        Reason::NotFound
    );
    assert_eq!(
        not_done(place.storage.mkdir(&file, Mode::DIR).await),
        Reason::Exists
    );
    assert_eq!(
        not_done(place.storage.mkdir(&place.at("none/dir"), Mode::DIR).await),
        Reason::NotFound
    );
    assert_eq!(
        not_done(
            place
                .storage
                .rename(&place.at("none"), &place.at("x"))
                .await
        ),
        Reason::NotFound
    );
    assert_eq!(
        not_done(place.storage.delete_file(&place.at("none")).await),
        Reason::NotFound
    );
    assert_eq!(
        not_done(place.storage.delete_dir(&file).await),
        Reason::NotADirectory
    );
    place
        .storage
        .mkdir(&place.at("dir"), Mode::DIR)
        .await
        .expect("made");
    assert_eq!(
        not_done(place.storage.delete_file(&place.at("dir")).await),
        Reason::IsADirectory
    );
    assert_eq!(
        not_done(place.storage.rename(&file, &place.at("dir")).await),
        Reason::Exists
    );
    let stat = |name: &str| {
        let (storage, path) = (place.storage.clone(), place.at(name));
        async move { storage.stat(&path).await.expect_err("not there").reason }
    };
    assert_eq!(stat("none").await, Reason::NotFound);
    let listed = |name: &str| {
        let (storage, path) = (place.storage.clone(), place.at(name));
        async move { storage.list(&path).await.expect_err("no directory").reason }
    };
    assert_eq!(listed("none").await, Reason::NotFound);
    assert_eq!(listed("file").await, Reason::NotADirectory);
    let opened = place
        .storage
        .open(&place.at("none"), 0)
        .await
        .map(drop)
        .expect_err("not there");
    assert_eq!(opened.reason, Reason::NotFound);
    let opened = place
        .storage
        .open(&place.at("dir"), 0)
        .await
        .map(drop)
        .expect_err("a directory");
    assert!(!opened.is_retryable(), "{opened}");
    place.end().await;
}

#[tokio::test]
#[ignore = "needs a cluster"]
async fn a_dropped_writer_leaves_no_open_file() {
    let place = place("dropped").await;
    let path = place.at("torn");
    let mut writer = place
        .storage
        .create(&path, Mode::FILE)
        .await
        .expect("created");
    writer
        .write(Bytes::from(bytes(100_000)))
        .await
        .expect("written");
    drop(writer);
    // Deleted in the background: the next creation under this name succeeds in the end.
    for _ in 0..1000 {
        match place.put(&path, b"new").await {
            Ok(()) => break,
            Err(error) => assert!(error.error().is_exists(), "{error}"),
        }
    }
    assert_eq!(place.get(&path, 0).await, b"new");
    place.end().await;
}

#[tokio::test]
#[ignore = "needs a cluster"]
async fn patterns_and_small_files_work_as_they_do_locally() {
    let place = place("patterns").await;
    for name in ["b.svm", "a.svm", "c.txt", "_SUCCESS"] {
        publish_small(&*place.storage, &place.at(name), Bytes::from_static(b"x"))
            .await
            .expect("published");
    }
    let error = publish_small(
        &*place.storage,
        &place.at("a.svm"),
        Bytes::from_static(b"y"),
    )
    .await;
    assert!(error.expect_err("taken").error().is_exists());
    let found = find_files(&*place.storage, &place.at("*.svm"))
        .await
        .expect("found");
    let names: Vec<_> = found.iter().map(|entry| entry.name()).collect();
    assert_eq!(names, ["a.svm", "b.svm"]);
    place.end().await;
}

#[tokio::test]
#[ignore = "needs a cluster"]
async fn checkpoints_are_committed_restored_and_retained() {
    let place = place("checkpoints").await;
    let dir = CheckpointDir::open_or_create(place.storage.clone(), place.at("ckpt"))
        .await
        .expect("opened");
    let salt = Salt(Uuid::new_v4());
    let generation = Generation(1);
    let claim = heddle_storage::checkpoint::ClaimRecord {
        format_version: 1,
        generation,
        run: RunId(Uuid::new_v4()),
        owner: heddle_storage::checkpoint::Owner::Application {
            application: "application_1_1".to_owned(),
            attempt: heddle_protocol::ids::Attempt(1),
        },
        base: None,
        salt,
        at_ms: 0,
    };
    assert!(dir.write_claim(&claim).await.expect("claimed"));
    assert!(
        dir.write_claim(&claim)
            .await
            .expect("recognised by its salt")
    );
    for number in 1..=3 {
        let cut = CutId { generation, number };
        let staging = dir.stage(cut, salt).await.expect("staged");
        let mut shards = Vec::new();
        for shard in 0..2 {
            shards.push(save(&dir, &staging, cut, shard).await);
        }
        let manifest = manifest(cut, claim.run, shards);
        dir.commit(manifest.clone(), salt, &|| Ok(()))
            .await
            .expect("committed");
        // Once more, as after a lost reply.
        dir.commit(manifest, salt, &|| Ok(()))
            .await
            .expect("recognised");
        dir.retain(2, generation, Some(cut))
            .await
            .expect("retained");
    }
    let lineage = dir.lineage().await.expect("read");
    let newest = dir
        .newest(&lineage, Depth::Full, OnCorrupt::Fail)
        .await
        .expect("whole")
        .expect("one");
    assert_eq!(
        newest.manifest.cut,
        CutId {
            generation,
            number: 3
        }
    );
    assert_eq!(dir.names().await.expect("listed").len(), 2);
    place.end().await;
}

/// Kill and restart NameNode and DataNodes while this runs, as often as you like.
#[tokio::test]
#[ignore = "needs a cluster, and somebody who disturbs it"]
async fn no_disturbance_of_the_daemons_costs_a_committed_checkpoint() {
    let place = place("disturbed").await;
    let (root, salt, generation) = (place.at("ckpt"), Salt(Uuid::new_v4()), Generation(1));
    let dir = patiently(async || {
        CheckpointDir::open_or_create(place.storage.clone(), root.clone()).await
    })
    .await;
    let mut late = 0;
    for number in 1..=10 {
        let cut = CutId { generation, number };
        // As the ApplicationMaster and the pservers do it: each piece again until it is done.
        let staging = patiently(async || dir.stage(cut, salt).await).await;
        let mut shards = Vec::new();
        for shard in 0..2 {
            shards.push(patiently(async || try_save(&dir, &staging, cut, shard).await).await);
        }
        let manifest = manifest(cut, RunId(Uuid::nil()), shards);
        patiently(async || {
            let result = dir.commit(manifest.clone(), salt, &|| Ok(())).await;
            late += u32::from(result.is_err());
            result
        })
        .await;
        let _leaks = dir.retain(2, generation, Some(cut)).await;
        eprintln!("{cut} is committed");
    }
    eprintln!("{late} tries to commit failed");
    let names = patiently(async || dir.names().await).await;
    assert_eq!(
        names.last(),
        Some(&CutId {
            generation,
            number: 10
        })
    );
    for cut in names {
        patiently(async || dir.load(cut, Depth::Full).await).await;
    }
    place.end().await;
}

/// Again until it succeeds, for five minutes.
async fn patiently<T, E: std::fmt::Debug>(mut call: impl AsyncFnMut() -> Result<T, E>) -> T {
    let give_up = std::time::Instant::now() + std::time::Duration::from_secs(300);
    loop {
        match call().await {
            Ok(value) => return value,
            Err(error) => assert!(std::time::Instant::now() < give_up, "{error:?}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}

/// A shard of two blocks and a bit.
async fn save(dir: &CheckpointDir, staging: &StorePath, cut: CutId, shard: u32) -> ShardFile {
    try_save(dir, staging, cut, shard).await.expect("saved")
}

async fn try_save(
    dir: &CheckpointDir,
    staging: &StorePath,
    cut: CutId,
    shard: u32,
) -> Result<ShardFile, heddle_storage::shard_file::SaveError> {
    let data = bytes(2 * BLOCK + 12_345);
    let header = Header {
        run: RunId(Uuid::nil()),
        shard: ShardId(shard),
        shards: 2,
        cut,
        epoch: Epoch::first(cut.generation),
        phase: PhaseNo(0),
        step: Step(0),
        tables: Vec::new(),
        sections: vec![Section {
            table: None,
            name: "data".to_owned(),
            values: Values::Bytes,
            count: data.len() as u64,
        }],
    };
    let storage = &**dir.storage();
    let mut writer = ShardWriter::create(storage, staging, header).await?;
    writer.write(Bytes::from(data)).await?;
    writer.finish(storage).await
}

fn manifest(cut: CutId, run: RunId, shards: Vec<ShardFile>) -> Manifest {
    Manifest {
        format_version: FORMAT_VERSION,
        run,
        job: "test".to_owned(),
        cut,
        epoch: Epoch::first(cut.generation),
        parent: None,
        salt: Salt(Uuid::nil()),
        at_ms: 0,
        spec_digest: String::new(),
        spec: serde_json::Value::Null,
        plan: InputPlan::default(),
        shards,
        phase: PhaseNo(0),
        work: Work::Lanes { step: Step(0) },
        task_steps: BTreeMap::new(),
        evaluations: Vec::new(),
        progress: Progress::default(),
    }
}
