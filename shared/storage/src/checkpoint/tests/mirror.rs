//! Copies of whole checkpoints in another directory, with faults at every call.

use super::*;
use crate::testing::{Faults, Faulty, InjectedFault, MemoryStorage};

const SHARDS: u32 = 2;

/// A directory with two checkpoints of generation 1 and one of generation 2, which continues the second.
async fn source() -> CheckpointDir {
    let storage: Arc<dyn Storage> = Arc::new(MemoryStorage::new());
    let dir = opened(&storage, &path("/ckpt")).await;
    assert!(dir.write_claim(&claim_of(1, None)).await.expect("claimed"));
    assert!(checkpoint(&dir, cut(1, 1), None, SHARDS, salt(1)).await);
    assert!(checkpoint(&dir, cut(1, 2), Some(cut(1, 1)), SHARDS, salt(1)).await);
    assert!(dir.write_claim(&claim_of(2, Some(cut(1, 2)))).await.expect("claimed"));
    assert!(checkpoint(&dir, cut(2, 1), Some(cut(1, 2)), SHARDS, salt(2)).await);
    dir
}

async fn newest(dir: &CheckpointDir) -> Option<CutId> {
    let lineage = dir.lineage().await.expect("read");
    let newest = dir.newest(&lineage, Depth::Full, DamagePolicy::Fail).await.expect("found");
    newest.checkpoint.map(|checkpoint| checkpoint.manifest.cut)
}

#[tokio::test]
async fn a_mirror_is_a_checkpoint_directory_of_the_same_lineage() {
    let dir = source().await;
    let storage: Arc<dyn Storage> = Arc::new(MemoryStorage::new());
    let mirror = opened(&storage, &path("/mirror")).await;
    for cut in [cut(1, 2), cut(2, 1)] {
        for _ in 0..2 {
            dir.copy_to(cut, &mirror, &|| Ok(())).await.expect("copied, or there");
            assert_whole(&mirror, cut, "copied").await;
            assert_eq!(newest(&mirror).await, Some(cut));
        }
    }
    assert_eq!(mirror.lineage().await.expect("read"), dir.lineage().await.expect("read"));
    assert!(!dir.is_same_as(&mirror).await.expect("both open"));
    assert!(dir.is_same_as(&dir.clone()).await.expect("both open"));
    let error = dir.copy_to(cut(1, 9), &mirror, &|| Ok(())).await.expect_err("there is none");
    assert!(matches!(error, CommitError::NotDone(_)), "{error}");
}

#[tokio::test]
async fn a_mirror_of_another_run_is_refused_with_both() {
    let dir = source().await;
    let storage: Arc<dyn Storage> = Arc::new(MemoryStorage::new());
    let mirror = opened(&storage, &path("/mirror")).await;
    let other = RunId(Uuid::from_u128(5));
    let claim = ClaimRecord { run: other, salt: salt(99), ..claim_of(1, None) };
    assert!(mirror.write_claim(&claim).await.expect("claimed"));
    let error = dir.copy_to(cut(1, 2), &mirror, &|| Ok(())).await.expect_err("refused");
    let CommitError::NotDone(error) = error else { panic!("{error}") };
    let text = error.to_string();
    assert!(text.contains(&RUN.to_string()) && text.contains(&other.to_string()), "{text}");
    assert!(mirror.names().await.expect("listed").is_empty());
}

#[tokio::test]
async fn a_later_owner_of_a_mirror_fences_earlier_ones() {
    let dir = source().await;
    let storage: Arc<dyn Storage> = Arc::new(MemoryStorage::new());
    let mirror = opened(&storage, &path("/mirror")).await;
    dir.copy_to(cut(2, 1), &mirror, &|| Ok(())).await.expect("copied");
    let error = dir.copy_to(cut(1, 2), &mirror, &|| Ok(())).await.expect_err("superseded");
    assert!(matches!(error, CommitError::Fenced(_)), "{error}");
}

#[tokio::test]
async fn a_file_that_is_bad_here_is_used_from_a_mirror() {
    let memory = MemoryStorage::new();
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    let dir = opened(&storage, &path("/ckpt")).await;
    assert!(dir.write_claim(&claim_of(1, None)).await.expect("claimed"));
    assert!(checkpoint(&dir, cut(1, 1), None, SHARDS, salt(1)).await);
    assert!(checkpoint(&dir, cut(1, 2), Some(cut(1, 1)), SHARDS, salt(1)).await);
    let mirror = opened(&storage, &path("/mirror")).await;
    dir.copy_to(cut(1, 2), &mirror, &|| Ok(())).await.expect("copied");
    let name =
        dir.load(cut(1, 2), Depth::Shallow).await.expect("whole").manifest.shards[1].file.clone();
    let replace = RepairMode::Replace { own: Some(Generation(1)) };
    let with = dir.clone().with_mirrors(vec![mirror.clone()]);
    let lineage = dir.lineage().await.expect("read");
    for bad in [name.as_str(), "MANIFEST.json"] {
        memory.damage(&path(&format!("/ckpt/g1-c2/{bad}")), |bytes| bytes[20] ^= 1);
        let found = with.newest(&lineage, Depth::Full, DamagePolicy::Fail).await;
        let found = found.unwrap_or_else(|error| panic!("{bad}: {error}"));
        assert_eq!(found.checkpoint.expect("one").manifest.cut, cut(1, 2), "{bad}");
        assert_eq!(found.passed_over.len(), 1, "{bad}");
        let alone = dir.newest(&lineage, Depth::Full, DamagePolicy::Previous).await;
        let alone = alone.expect("an older one").checkpoint.expect("one");
        assert_eq!(alone.manifest.cut, cut(1, 1), "{bad}");
        let repaired = with.repair(cut(1, 2), None, replace).await.expect("repaired");
        assert_eq!((repaired.replaced.len(), repaired.lost.len()), (1, 0), "{bad}");
        assert_whole(&dir, cut(1, 2), bad).await;
    }
    // A mirror with the checkpoint of another process has nothing to offer.
    memory.damage(&path("/ckpt/g1-c2/MANIFEST.json"), |bytes| bytes[20] ^= 1);
    let other = opened(&storage, &path("/other")).await;
    let claim = ClaimRecord { salt: salt(9), ..claim_of(1, None) };
    assert!(other.write_claim(&claim).await.expect("claimed"));
    assert!(checkpoint(&other, cut(1, 2), None, SHARDS, salt(9)).await);
    let with = dir.clone().with_mirrors(vec![other]);
    let found = with.newest(&lineage, Depth::Full, DamagePolicy::Previous).await.expect("found");
    assert_eq!(found.checkpoint.expect("one").manifest.cut, cut(1, 1));
}

#[tokio::test]
async fn any_fault_of_a_copy_leaves_a_whole_mirror_or_none() {
    let dir = source().await;
    let start = MemoryStorage::new();
    let shared: Arc<dyn Storage> = Arc::new(start.clone());
    let _made = opened(&shared, &path("/mirror")).await;
    let copy = async |storage: Arc<dyn Storage>| {
        let mirror = CheckpointDir::existing(storage, path("/mirror"));
        dir.copy_to(cut(2, 1), &mirror, &|| Ok(())).await
    };
    let faults = Faults::none();
    copy(Faulty::over(Arc::new(start.copy()), Arc::clone(&faults))).await.expect("copied");
    assert!(faults.calls() > 20, "{:#?}", faults.log());
    for call in 0..faults.calls() {
        for fault in InjectedFault::ALL {
            let faults = Faults::at([(call, fault)]);
            let memory = start.copy();
            let storage: Arc<dyn Storage> = Arc::new(memory.clone());
            let _interrupted = copy(Faulty::over(Arc::clone(&storage), Arc::clone(&faults))).await;
            if fault.is_crash() {
                memory.power_loss();
            }
            let context = format!("{fault:?} at call {call}: {:#?}", faults.log());
            let mirror = CheckpointDir::existing(Arc::clone(&storage), path("/mirror"));
            for name in mirror.names().await.expect("listed") {
                assert_whole(&mirror, name, &context).await;
            }
            copy(storage).await.unwrap_or_else(|error| panic!("{error}\n{context}"));
            assert_whole(&mirror, cut(2, 1), &context).await;
        }
    }
}
