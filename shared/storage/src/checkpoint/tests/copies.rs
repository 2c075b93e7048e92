//! Copies that stand in for each other, and their repair.

use heddle_protocol::job_spec::CheckpointDigest;
use heddle_protocol::manifest::{Sha256, ShardCopy};

use super::restore::Away;
use super::*;
use crate::local::LocalStorage;
use crate::sidecar::sidecar_name;
use crate::testing::{Faults, Faulty, InjectedFault, MemoryStorage};

const SHARDS: u32 = 2;

/// Checkpoints 1 to 3 of generation 1, each shard with `copies` files.
async fn written(storage: &Arc<dyn Storage>, copies: u32) -> CheckpointDir {
    let dir = opened(storage, &path("/ckpt")).await;
    assert!(dir.write_claim(&claim_of(1, None)).await.expect("claimed"));
    for number in 1..=3 {
        let cut = cut(1, number);
        let staging = dir.stage(cut, salt(1)).await.expect("staged");
        let mut files = Vec::new();
        for shard in 0..SHARDS {
            let mut saved = Vec::new();
            for _ in 0..copies {
                saved.push(save(&dir, &staging, cut, shard, SHARDS).await.expect("saved"));
            }
            let list: Vec<ShardCopy> = saved.iter().map(ShardFile::first).collect();
            let list = if copies > 1 { list } else { Vec::new() };
            files.push(ShardFile { copies: list, ..saved.remove(0) });
        }
        let parent = (number > 1).then(|| super::cut(1, number - 1));
        let manifest = manifest(cut, parent, files);
        dir.commit(manifest, salt(1), &|| Ok(())).await.expect("committed");
    }
    dir
}

/// The file of copy `copy` of shard 0 of checkpoint `number`.
async fn file(dir: &CheckpointDir, number: u32, copy: usize) -> StorePath {
    let (manifest, _) = dir.groups(cut(1, number), Depth::Shallow).await.expect("read");
    let name = manifest.shards[0].copies()[copy].file.clone();
    path(&format!("/ckpt/g1-c{number}/{name}"))
}

fn sidecar_of(file: &StorePath) -> StorePath {
    file.sibling(&sidecar_name(file.name())).expect("short")
}

async fn bytes_of(storage: &dyn Storage, path: &StorePath) -> Vec<u8> {
    crate::read_small(storage, path, 1 << 20).await.expect("read").to_vec()
}

/// What can happen to one copy.
#[derive(Clone, Copy, Debug)]
enum Accident {
    Deleted,
    Truncated,
    Flipped,
    SidecarDeleted,
    /// Another cut's file has its place.
    OtherCut,
    /// The same, and the sidecar was edited along.
    OtherCutAndSidecar,
}

impl Accident {
    const ALL: [Self; 6] = [
        Self::Deleted,
        Self::Truncated,
        Self::Flipped,
        Self::SidecarDeleted,
        Self::OtherCut,
        Self::OtherCutAndSidecar,
    ];

    fn word(self) -> &'static str {
        match self {
            Self::Deleted => "missing",
            Self::Truncated | Self::Flipped | Self::SidecarDeleted => "damaged",
            Self::OtherCut | Self::OtherCutAndSidecar => "other version",
        }
    }

    async fn happen(self, memory: &MemoryStorage, file: &StorePath, other: &StorePath) {
        match self {
            Self::Deleted => {
                memory.delete_file(&sidecar_of(file)).await.expect("deleted");
                memory.delete_file(file).await.expect("deleted");
            }
            Self::Truncated => memory.damage(file, |bytes| bytes.truncate(100)),
            Self::Flipped => memory.damage(file, |bytes| {
                let last = bytes.len() - 50;
                bytes[last] ^= 1;
            }),
            Self::SidecarDeleted => memory.delete_file(&sidecar_of(file)).await.expect("deleted"),
            Self::OtherCut | Self::OtherCutAndSidecar => {
                let theirs = bytes_of(memory, other).await;
                memory.damage(file, |bytes| bytes.clone_from(&theirs));
                if matches!(self, Self::OtherCutAndSidecar) {
                    let sum = crate::digest::sum_of(&theirs);
                    let line = crate::sidecar::sidecar_line(sum, file.name());
                    memory.damage(&sidecar_of(file), |bytes| *bytes = line.clone().into_bytes());
                }
            }
        }
    }
}

async fn newest(dir: &CheckpointDir) -> Newest {
    let lineage = dir.lineage().await.expect("read");
    dir.newest(&lineage, Depth::Full, DamagePolicy::Previous).await.expect("there is one")
}

fn replace() -> RepairMode {
    RepairMode::Replace { own: Some(Generation(1)) }
}

#[tokio::test]
async fn another_copy_of_the_same_cut_stands_in_and_repairs() {
    for accident in Accident::ALL {
        for copy in 0..2 {
            let memory = MemoryStorage::new();
            let storage: Arc<dyn Storage> = Arc::new(memory.clone());
            let dir = written(&storage, 2).await;
            let bad = file(&dir, 3, copy).await;
            let other = file(&dir, 2, copy).await;
            accident.happen(&memory, &bad, &other).await;

            let found = newest(&dir).await;
            let context = format!("{accident:?} of copy {copy}");
            assert_eq!(found.checkpoint.expect("one").manifest.cut, cut(1, 3), "{context}");
            assert!(found.damaged.is_empty() && found.passed_over.len() == 1, "{context}");
            let (_, groups) = dir.groups(cut(1, 3), Depth::Full).await.expect("read");
            assert!(groups[0].is_restorable() && !groups[0].is_whole(), "{context}");
            assert_eq!(groups[0].copies[copy].state.word(), accident.word(), "{context}");
            assert!(groups[1].is_whole(), "{context}");
            if accident.word() == "other version" {
                let error = groups[0].copies[copy].state.error().expect("a reason");
                let error = chain(error);
                assert!(error.contains("of g1-c2 ") && error.contains("of g1-c3 "), "{error}");
            }

            let dry = dir.repair(cut(1, 3), None, RepairMode::DryRun).await.expect("repaired");
            assert_eq!((dry.replaced.len(), dry.lost.len()), (1, 0), "{context}");
            assert!(dir.load(cut(1, 3), Depth::Full).await.is_err(), "{context}: nothing changed");
            let done = dir.repair(cut(1, 3), None, replace()).await.expect("repaired");
            assert_eq!((done.replaced.len(), done.lost.len()), (1, 0), "{context}");
            assert_whole(&dir, cut(1, 3), &context).await;
            let aside = storage.list(&path("/ckpt/damaged")).await.expect("listed");
            assert_eq!(aside.len(), 1, "{context}: {aside:?}");
            let kept = storage.list(&aside[0].path).await.expect("listed");
            let expected = match accident {
                Accident::Deleted => 0,
                Accident::SidecarDeleted => 1,
                _ => 2,
            };
            assert_eq!(kept.len(), expected, "{context}: {kept:?}");
            let again = dir.repair(cut(1, 3), None, replace()).await.expect("repaired");
            assert!(again.replaced.is_empty(), "{context}");
        }
    }
}

#[tokio::test]
async fn a_wrong_sidecar_alone_is_repaired_from_its_file() {
    let memory = MemoryStorage::new();
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    let dir = written(&storage, 1).await;
    let good = file(&dir, 3, 0).await;
    memory.damage(&sidecar_of(&good), |bytes| bytes[0] ^= 1);
    let done = dir.repair(cut(1, 3), None, replace()).await.expect("repaired");
    assert_eq!((done.replaced.len(), done.lost.len()), (1, 0), "{done:?}");
    assert_whole(&dir, cut(1, 3), "its bytes were right").await;
}

#[tokio::test]
async fn without_a_good_copy_the_older_cut_is_used() {
    let memory = MemoryStorage::new();
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    let dir = written(&storage, 2).await;
    for copy in 0..2 {
        let (bad, other) = (file(&dir, 3, copy).await, file(&dir, 2, copy).await);
        Accident::OtherCutAndSidecar.happen(&memory, &bad, &other).await;
    }
    let found = newest(&dir).await;
    assert_eq!(found.checkpoint.expect("one").manifest.cut, cut(1, 2));
    assert_eq!(found.damaged.len(), 1);
    let done = dir.repair(cut(1, 3), None, replace()).await.expect("reported");
    assert_eq!((done.replaced.len(), done.lost.len()), (0, 1));
    assert_eq!(done.lost[0].copies.len(), 2);
    let text = done.texts().remove(0);
    assert!(text.contains("shard 0 has no good copy") && text.contains("g1-c2"), "{text}");
}

/// An older cut in the place of one that cannot be read would lose work because a DataNode was down for a moment.
#[tokio::test]
async fn an_unread_copy_never_leads_to_an_older_cut() {
    let memory = MemoryStorage::new();
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    let dir = written(&storage, 2).await;
    let (bad, other) = (file(&dir, 3, 0).await, file(&dir, 2, 0).await);
    let away = |name: &StorePath| {
        let name = name.name().to_owned();
        let storage: Arc<dyn Storage> =
            Arc::new(Away { inner: memory.clone(), name, removed: None });
        CheckpointDir::existing(storage, path("/ckpt"))
    };
    // One copy is good, the other one unread.
    let found = newest(&away(&bad)).await;
    assert_eq!(found.checkpoint.expect("one").manifest.cut, cut(1, 3));
    assert!(found.passed_over.is_empty(), "nothing is wrong with it");
    // One copy is damaged, the other one unread.
    Accident::Flipped.happen(&memory, &bad, &other).await;
    let dir = away(&file(&dir, 3, 1).await);
    let lineage = dir.lineage().await.expect("read");
    let error = dir.newest(&lineage, Depth::Full, DamagePolicy::Previous).await;
    let error = error.expect_err("it may be good");
    assert!(error.is_retryable() && !error.is_damage(), "{error}");
    let error = dir.repair(cut(1, 3), None, replace()).await.expect_err("nothing to repair from");
    assert!(error.is_retryable(), "{error}");
}

#[tokio::test]
async fn s47_a_killed_repair_that_runs_again_makes_it_whole() {
    let start = MemoryStorage::new();
    let storage: Arc<dyn Storage> = Arc::new(start.clone());
    let dir = written(&storage, 2).await;
    for (copy, accident) in [(0, Accident::Flipped), (1, Accident::SidecarDeleted)] {
        let (bad, other) = (file(&dir, 3, copy).await, file(&dir, 2, copy).await);
        accident.happen(&start, &bad, &other).await;
    }
    let run = async |storage: Arc<dyn Storage>| {
        CheckpointDir::existing(storage, path("/ckpt")).repair(cut(1, 3), None, replace()).await
    };
    let faults = Faults::none();
    let undisturbed: Arc<dyn Storage> = Arc::new(start.copy());
    run(Faulty::over(undisturbed, Arc::clone(&faults))).await.expect("repaired");
    assert!(faults.calls() > 20, "{:#?}", faults.log());
    for call in 0..faults.calls() {
        for fault in InjectedFault::ALL {
            let faults = Faults::at([(call, fault)]);
            let memory = start.copy();
            let storage: Arc<dyn Storage> = Arc::new(memory.clone());
            let _interrupted = run(Faulty::over(Arc::clone(&storage), Arc::clone(&faults))).await;
            if fault.is_crash() {
                memory.power_loss();
            }
            let context = format!("{fault:?} at call {call}: {:#?}", faults.log());
            let again = run(Arc::clone(&storage)).await;
            let again = again.unwrap_or_else(|error| panic!("{error}\n{context}"));
            assert!(again.lost.is_empty(), "{again:?}\n{context}");
            let dir = CheckpointDir::existing(storage, path("/ckpt"));
            assert_whole(&dir, cut(1, 3), &context).await;
        }
    }
}

#[tokio::test]
async fn a_repair_ends_when_another_process_claims() {
    let memory = MemoryStorage::new();
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    let dir = written(&storage, 2).await;
    let (bad, other) = (file(&dir, 3, 0).await, file(&dir, 2, 0).await);
    Accident::Truncated.happen(&memory, &bad, &other).await;
    assert!(dir.write_claim(&claim_of(2, Some(cut(1, 3)))).await.expect("claimed"));
    let error = dir.repair(cut(1, 3), None, replace()).await.expect_err("claimed meanwhile");
    assert!(error.is_fenced(), "{error}");
    assert!(dir.load(cut(1, 3), Depth::Full).await.is_err(), "nothing was changed");
}

#[tokio::test]
async fn special_files_are_damage_and_are_not_opened() {
    let temp = tempfile::tempdir().expect("a folder");
    let root = path(temp.path().to_str().expect("UTF-8"));
    let storage: Arc<dyn Storage> = Arc::new(LocalStorage);
    let dir = opened(&storage, &root).await;
    assert!(dir.write_claim(&claim_of(1, None)).await.expect("claimed"));
    assert!(checkpoint(&dir, cut(1, 1), None, SHARDS, salt(1)).await);
    let (manifest, _) = dir.groups(cut(1, 1), Depth::Shallow).await.expect("read");
    let file = temp.path().join("g1-c1").join(&manifest.shards[0].file);
    std::fs::remove_file(&file).expect("removed");
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let (_, groups) = dir.groups(cut(1, 1), Depth::Full).await.expect("read");
    assert_eq!(groups[0].copies[0].state.word(), "damaged");
}

fn sha256sum_is_content(folder: &std::path::Path) {
    let names = std::fs::read_dir(folder).expect("a folder").flatten();
    let names: Vec<_> = names
        .map(|entry| entry.file_name())
        .filter(|name| name.to_string_lossy().ends_with(".ckpt.sha256"))
        .collect();
    assert_eq!(names.len(), 1, "{names:?}");
    let mut checker = std::process::Command::new("sha256sum");
    let checked = checker.arg("-c").args(&names).current_dir(folder).output().expect("it runs");
    assert!(checked.status.success(), "{checked:?}");
}

#[tokio::test]
async fn a_second_sum_is_written_checked_and_copied_along() {
    let temp = tempfile::tempdir().expect("a folder");
    let at = |name: &str| path(temp.path().join(name).to_str().expect("UTF-8"));
    let storage: Arc<dyn Storage> = Arc::new(LocalStorage);
    let dir = opened(&storage, &at("ckpt")).await;
    assert!(dir.write_claim(&claim_of(1, None)).await.expect("claimed"));
    let cut = cut(1, 1);
    let staging = dir.stage(cut, salt(1)).await.expect("staged");
    let digest = CheckpointDigest::Md5AndSha256;
    let writer = ShardWriter::create_with(&*storage, &staging, header(cut, 0, 1), digest).await;
    let mut writer = writer.expect("created");
    writer.write(Bytes::from(content(cut, 0))).await.expect("written");
    let file = writer.finish(&*storage).await.expect("durable");
    let written = manifest(cut, None, vec![file.clone()]);
    let identity = written.identity();
    dir.commit(written, salt(1), &|| Ok(())).await.expect("committed");
    assert_whole(&dir, cut, "both sums fit").await;
    sha256sum_is_content(&temp.path().join("ckpt/g1-c1"));

    let other = ShardFile { sha256: Some(Sha256([7; 32])), ..file.clone() };
    let reader = ShardReader::open(&*storage, &at("ckpt/g1-c1"), &other, &identity).await;
    let error = reader.expect("opened").check().await.expect_err("another sum");
    let is_strong =
        matches!(error, CheckpointError::Damaged { damage: Damage::StrongSum { .. }, .. });
    assert!(is_strong, "{error}");

    let mirror = opened(&storage, &at("mirror")).await;
    dir.copy_to(cut, &mirror, &|| Ok(())).await.expect("copied");
    sha256sum_is_content(&temp.path().join("mirror/g1-c1"));
    std::fs::write(temp.path().join("ckpt/g1-c1").join(&file.file), "no shard").expect("written");
    let with = dir.clone().with_mirrors(vec![mirror]);
    let repaired = with.repair(cut, None, replace()).await.expect("repaired");
    assert_eq!((repaired.replaced.len(), repaired.lost.len()), (1, 0), "{repaired:?}");
    assert_whole(&dir, cut, "repaired").await;
    sha256sum_is_content(&temp.path().join("ckpt/g1-c1"));
}
