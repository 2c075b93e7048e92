//! Injects every fault at every call of a checkpoint: done, not done, unknown, death before and after. After each, the
//! committed checkpoints can be restored, and none is partial.

use super::*;
use crate::local::LocalStorage;
use crate::testing::{Faults, Faulty, InjectedFault, MemoryStorage};

const SHARDS: u32 = 3;
const NEWEST: u32 = 4;

/// A directory with two checkpoints of generation 1, and an orphan of a cut that was given up.
async fn before(storage: &Arc<dyn Storage>, root: &StorePath) {
    let dir = opened(storage, root).await;
    assert!(dir.write_claim(&claim_of(1, None)).await.expect("claimed"));
    for number in [1, 2] {
        let parent = (number > 1).then(|| cut(1, number - 1));
        assert!(checkpoint(&dir, cut(1, number), parent, SHARDS, salt(1)).await);
    }
    let staging = dir.stage(cut(1, 3), salt(1)).await.expect("staged");
    save(&dir, &staging, cut(1, 3), 0, SHARDS).await.expect("saved");
}

/// The third checkpoint, with its retention, by a process that goes through `faults`.
async fn disturbed(storage: &Arc<dyn Storage>, root: &StorePath, faults: &Arc<Faults>) -> bool {
    let storage = Faulty::over(Arc::clone(storage), Arc::clone(faults));
    let dir = CheckpointDir::existing(storage, root.clone());
    checkpoint(&dir, cut(1, NEWEST), Some(cut(1, 2)), SHARDS, salt(1)).await
}

/// The invariants afterwards, as the next process sees them. Returns the newest checkpoint.
async fn check(dir: &CheckpointDir, confirmed: bool, context: &str) -> CutId {
    // A directory with a checkpoint's name is a complete checkpoint.
    let names = dir.names().await.expect("listed");
    for name in &names {
        assert_whole(dir, *name, context).await;
    }
    let lineage = dir.lineage().await.expect("read");
    let newest = dir.newest(&lineage, Depth::Full, DamagePolicy::Fail).await;
    let newest =
        newest.unwrap_or_else(|error| panic!("{error}\n{context}")).checkpoint.expect("never none");
    let newest = newest.manifest.cut;
    let exists = names.contains(&cut(1, NEWEST));
    assert_eq!(newest, if exists { cut(1, NEWEST) } else { cut(1, 2) }, "{context}");
    assert!(exists || !confirmed, "a confirmed checkpoint is gone\n{context}");
    assert!(names.len() >= 2, "{names:?} left\n{context}");
    newest
}

/// The same, and a successor claims, continues, and deletes the orphans of its predecessor.
async fn after(storage: &Arc<dyn Storage>, root: &StorePath, confirmed: bool, context: &str) {
    let dir = opened(storage, root).await;
    let newest = check(&dir, confirmed, context).await;
    assert!(dir.write_claim(&claim_of(2, Some(newest))).await.expect("claimed"));
    assert!(checkpoint(&dir, cut(2, 1), Some(newest), SHARDS, salt(2)).await, "{context}");
    assert!(checkpoint(&dir, cut(2, 2), Some(cut(2, 1)), SHARDS, salt(2)).await, "{context}");
    assert_eq!(dir.names().await.expect("listed"), [cut(2, 1), cut(2, 2)], "{context}");
    for name in [cut(2, 1), cut(2, 2)] {
        assert_whole(&dir, name, context).await;
    }
    let left =
        dir.root.children(&dir.root.at(layout::STAGING).expect("short")).await.expect("listed");
    assert!(left.iter().all(|entry| entry.name() == "g2"), "{left:?}\n{context}");
}

#[tokio::test]
async fn any_fault_at_any_call_loses_no_checkpoint() {
    let root = path("/ckpt");
    let start = MemoryStorage::new();
    let shared: Arc<dyn Storage> = Arc::new(start.clone());
    before(&shared, &root).await;

    let faults = Faults::none();
    let undisturbed: Arc<dyn Storage> = Arc::new(start.copy());
    assert!(disturbed(&undisturbed, &root, &faults).await);
    let calls = faults.calls();
    assert!(calls > 30, "only {calls} calls: {:#?}", faults.log());
    after(&undisturbed, &root, true, "undisturbed").await;

    for call in 0..calls {
        for fault in InjectedFault::ALL {
            for power_loss in [false, true] {
                if power_loss && !fault.is_crash() {
                    continue;
                }
                let faults = Faults::at([(call, fault)]);
                let memory = start.copy();
                let storage: Arc<dyn Storage> = Arc::new(memory.clone());
                let confirmed = disturbed(&storage, &root, &faults).await;
                let context = format!(
                    "{fault:?} at call {call}, power loss {power_loss}:\n{:#?}",
                    faults.log()
                );
                if !fault.is_crash() {
                    assert!(confirmed, "one lost reply must not cost a checkpoint\n{context}");
                }
                if power_loss {
                    memory.power_loss();
                }
                after(&storage, &root, confirmed, &context).await;
            }
        }
    }
}

#[tokio::test]
async fn two_faults_in_one_checkpoint_lose_no_checkpoint() {
    let root = path("/ckpt");
    let start = MemoryStorage::new();
    let shared: Arc<dyn Storage> = Arc::new(start.clone());
    before(&shared, &root).await;
    let faults = Faults::none();
    let undisturbed: Arc<dyn Storage> = Arc::new(start.copy());
    assert!(disturbed(&undisturbed, &root, &faults).await);
    // All pairs from the manifest on, and two beyond the last call, which only a retry reaches.
    let log = faults.log();
    let seal =
        log.iter().position(|line| line.contains("create") && line.contains("MANIFEST.json"));
    let (from, calls) = (seal.expect("a manifest is written"), faults.calls() + 2);
    for first in from..calls {
        for second in first + 1..calls {
            for one in
                [InjectedFault::NotDone, InjectedFault::DoneUnknown, InjectedFault::NotDoneUnknown]
            {
                for two in InjectedFault::ALL {
                    let faults = Faults::at([(first, one), (second, two)]);
                    let storage: Arc<dyn Storage> = Arc::new(start.copy());
                    let confirmed = disturbed(&storage, &root, &faults).await;
                    let context =
                        format!("{one:?} at {first}, {two:?} at {second}:\n{:#?}", faults.log());
                    check(&CheckpointDir::existing(storage, root.clone()), confirmed, &context)
                        .await;
                }
            }
        }
    }
}

#[tokio::test]
async fn the_local_file_system_keeps_the_guarantees() {
    // In memory if possible: names behave the same there, and syncing thousands of small files to a
    // disk takes half a minute.
    let temp = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let temp = temp.expect("a temporary directory");
    let at = |name: &str| path(temp.path().to_str().expect("UTF-8")).join(name).expect("a name");
    let storage: Arc<dyn Storage> = Arc::new(LocalStorage);
    before(&storage, &at("start")).await;

    let faults = Faults::none();
    copy_tree(at("start").as_str(), at("undisturbed").as_str());
    assert!(disturbed(&storage, &at("undisturbed"), &faults).await);
    for call in 0..faults.calls() {
        for fault in InjectedFault::ALL.into_iter().chain([InjectedFault::CrashHalfway]) {
            let root = at(&format!("{call}-{fault:?}"));
            copy_tree(at("start").as_str(), root.as_str());
            let faults = Faults::at([(call, fault)]);
            let confirmed = disturbed(&storage, &root, &faults).await;
            let context = format!("{fault:?} at call {call}:\n{:#?}", faults.log());
            check(
                &CheckpointDir::existing(Arc::clone(&storage), root.clone()),
                confirmed,
                &context,
            )
            .await;
            if fault == InjectedFault::CrashAfter {
                after(&storage, &root, confirmed, &context).await;
            }
            std::fs::remove_dir_all(root.as_str()).expect("removed");
        }
    }
}

fn copy_tree(from: &str, to: &str) {
    std::fs::create_dir(to).expect("made");
    for entry in std::fs::read_dir(from).expect("listed") {
        let entry = entry.expect("listed");
        let (from, to) = (entry.path(), std::path::Path::new(to).join(entry.file_name()));
        if from.is_dir() {
            copy_tree(from.to_str().expect("UTF-8"), to.to_str().expect("UTF-8"));
        } else {
            std::fs::copy(from, to).expect("copied");
        }
    }
}

#[tokio::test]
async fn a_power_loss_without_sync_is_detected() {
    // Proves that the other tests can fail: without sync a checkpoint does not survive, so they pass because of the
    // sync.
    let memory = MemoryStorage::new();
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    let root = path("/ckpt");
    before(&storage, &root).await;
    let dir = opened(&storage, &root).await;
    let file =
        dir.load(cut(1, 2), Depth::Full).await.expect("whole").manifest.shards[0].file.clone();
    let victim = dir.checkpoint_dir(cut(1, 2)).expect("short").join(&file).expect("a name");
    storage.delete_file(&victim).await.expect("deleted");
    let mut writer = storage.create(&victim, crate::Mode::FILE).await.expect("created");
    writer.write(Bytes::from_static(b"not synced")).await.expect("written");
    writer.close().await.expect("closed");
    memory.power_loss();
    assert!(dir.load(cut(1, 2), Depth::Full).await.expect_err("gone").is_damage());
}

/// As a file that is open on NFS, whose name stays in its directory.
#[tokio::test]
async fn staging_that_a_saver_still_fills_is_left_for_later() {
    let temp = tempfile::tempdir().expect("a temporary directory");
    let storage: Arc<dyn Storage> = Arc::new(LocalStorage);
    let root = path(temp.path().to_str().expect("UTF-8"));
    let dir = opened(&storage, &root).await;
    let staging = dir.stage(cut(1, 1), salt(1)).await.expect("staged");
    let (begun, begins) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let place = staging.to_string();
    let saver = std::thread::spawn(move || {
        for number in 0.. {
            let _deleted = std::fs::write(format!("{place}/{number}"), b"x");
            let _known = begun.send(());
            if ended.try_recv().is_ok() {
                break;
            }
        }
    });
    begins.recv().expect("the saver runs");
    dir.discard(cut(1, 1), salt(1)).await.expect("no failure");
    end.send(()).expect("the saver runs");
    saver.join().expect("ended");
    dir.discard(cut(1, 1), salt(1)).await.expect("deleted");
    assert!(storage.stat(&staging).await.is_err_and(|error| error.is_not_found()));
}
