//! The commit protocol on a real HDFS, disturbed at every call of a checkpoint: not done, done and unknown, not done
//! and unknown, death before and after. The storage crate plays all of these against its HDFS in memory and against a
//! local file system. Here is a sample of the same list, to show that the memory storage behaves as HDFS does.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use heddle_protocol::ids::CutId;
use heddle_storage::checkpoint::{CheckpointDir, DamagePolicy, Depth};
use heddle_storage::testing::{Faults, Faulty, InjectedFault};
use heddle_storage::{Storage, StorePath};
use heddle_tests::checkpoints::{Shape, check_whole, checkpoint, claim, cut, salt, save};
use heddle_tests::hadoop::{Cluster, Options};
use tokio::task::JoinSet;

const SHAPE: Shape = Shape { shards: 2, bytes: 40_000 };
/// The checkpoint that is disturbed: two complete ones come before it, and one that was given up.
const NEWEST: u32 = 4;
/// Samples that are played at a time.
const AT_ONCE: usize = 6;

/// A directory with two checkpoints of generation 1, and an orphan of a cut that was given up.
async fn before(storage: &Arc<dyn Storage>, root: &StorePath) -> Result<()> {
    let dir = CheckpointDir::open_or_create(Arc::clone(storage), root.clone()).await?;
    ensure!(dir.write_claim(&claim(1, None)).await?);
    for number in [1, 2] {
        let parent = (number > 1).then(|| cut(1, number - 1));
        ensure!(checkpoint(&dir, cut(1, number), parent, salt(1), SHAPE).await);
    }
    let staging = dir.stage(cut(1, 3), salt(1)).await?;
    save(&dir, &staging, cut(1, 3), 0, SHAPE).await?;
    Ok(())
}

/// The third checkpoint, with its retention, as a process sees it that goes through `faults`.
async fn disturbed(storage: &Arc<dyn Storage>, root: &StorePath, faults: &Arc<Faults>) -> bool {
    let storage = Faulty::over(Arc::clone(storage), Arc::clone(faults));
    let dir = CheckpointDir::existing(storage, root.clone());
    checkpoint(&dir, cut(1, NEWEST), Some(cut(1, 2)), salt(1), SHAPE).await
}

/// What must hold after it, as the next one to look sees it. Returns the newest checkpoint.
async fn check(dir: &CheckpointDir, confirmed: bool) -> Result<CutId> {
    // Nothing that has a checkpoint's name is less than a checkpoint.
    let names = dir.names().await?;
    for name in &names {
        check_whole(dir, *name, SHAPE.bytes).await?;
    }
    let lineage = dir.lineage().await?;
    let newest = dir.newest(&lineage, Depth::Full, DamagePolicy::Fail).await?;
    let newest = newest.checkpoint.context("never none")?.manifest.cut;
    let exists = names.contains(&cut(1, NEWEST));
    let expected = cut(1, if exists { NEWEST } else { 2 });
    ensure!(newest == expected, "{newest} and not {expected}");
    ensure!(exists || !confirmed, "a confirmed checkpoint is gone");
    ensure!(names.len() >= 2, "{names:?} left");
    Ok(newest)
}

/// The same, and a successor claims, continues, and cleans up behind its predecessor.
async fn after(storage: &Arc<dyn Storage>, root: &StorePath, confirmed: bool) -> Result<()> {
    let dir = CheckpointDir::open_or_create(Arc::clone(storage), root.clone()).await?;
    let newest = check(&dir, confirmed).await?;
    ensure!(dir.write_claim(&claim(2, Some(newest))).await?);
    ensure!(checkpoint(&dir, cut(2, 1), Some(newest), salt(2), SHAPE).await);
    ensure!(checkpoint(&dir, cut(2, 2), Some(cut(2, 1)), salt(2), SHAPE).await);
    ensure!(dir.names().await? == [cut(2, 1), cut(2, 2)]);
    for name in [cut(2, 1), cut(2, 2)] {
        check_whole(&dir, name, SHAPE.bytes).await?;
    }
    Ok(())
}

/// One sample: a directory of its own, one fault at one call.
async fn play(storage: Arc<dyn Storage>, call: usize, fault: InjectedFault) -> Result<()> {
    let root = StorePath::parse(&format!("/user/alice/{call}-{fault:?}"))?;
    before(&storage, &root).await?;
    let faults = Faults::at([(call, fault)]);
    let confirmed = disturbed(&storage, &root, &faults).await;
    let context = || format!("{fault:?} at call {call}:\n{:#?}", faults.log());
    ensure!(
        confirmed || fault.is_crash(),
        "one lost reply must not cost a checkpoint; {}",
        context()
    );
    after(&storage, &root, confirmed).await.with_context(context)?;
    storage.delete_dir(&root).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_at_any_call_loses_no_committed_checkpoint() -> Result<()> {
    let cluster = Cluster::start(Options::hdfs())?;
    let storage: Arc<dyn Storage> = cluster.storage("alice")?;

    let root = StorePath::parse("/user/alice/undisturbed")?;
    before(&storage, &root).await?;
    let faults = Faults::none();
    ensure!(disturbed(&storage, &root, &faults).await);
    after(&storage, &root, true).await?;
    let log = faults.log();
    let rename = log.iter().position(|line| line.contains("rename"));
    let rename = rename.context("a checkpoint ends with a rename")?;
    ensure!(log.len() > 20, "only {} calls: {log:#?}", log.len());

    // Every call with one of the faults in turn, the rename with all of them.
    let mut samples: Vec<_> = (0..log.len())
        .map(|call| (call, InjectedFault::ALL[call % InjectedFault::ALL.len()]))
        .collect();
    samples.extend(InjectedFault::ALL.map(|fault| (rename, fault)));
    samples.sort_by_key(|(call, fault)| (*call, format!("{fault:?}")));
    samples.dedup();
    let mut playing = JoinSet::new();
    for (call, fault) in samples {
        if playing.len() == AT_ONCE {
            playing.join_next().await.context("some play")???;
        }
        playing.spawn(play(Arc::clone(&storage), call, fault));
    }
    while let Some(played) = playing.join_next().await {
        played??;
    }
    Ok(())
}
