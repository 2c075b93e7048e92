//! Probes the store beside an owner that runs retention at the same time.

use super::*;
use crate::store::Mode;
use crate::testing::{Faults, Faulty, MemoryStorage, run_interleaved};

fn root() -> StorePath {
    path("/ckpt")
}

fn shared(memory: &MemoryStorage) -> Arc<dyn Storage> {
    Arc::new(memory.clone())
}

/// An opened directory; generation 1 is claimed if `claimed` is set.
async fn start(claimed: bool) -> MemoryStorage {
    let memory = MemoryStorage::new();
    let dir = opened(&shared(&memory), &root()).await;
    if claimed {
        assert!(dir.write_claim(&claim_of(1, None)).await.expect("claimed"));
    }
    memory
}

/// Generation 1's first checkpoints, each followed by retention.
async fn owner(dir: CheckpointDir) {
    for number in 1..=3 {
        let parent = (number > 1).then(|| cut(1, number - 1));
        assert!(checkpoint(&dir, cut(1, number), parent, 1, salt(1)).await);
    }
}

/// The result and the attempts of a starting process, while an owner runs a step wherever `choose` returns true.
fn begins_beside(
    memory: &MemoryStorage,
    owner: impl Future<Output = ()>,
    choose: impl FnMut() -> bool,
) -> usize {
    let faults = Faults::yielding();
    let storage = Faulty::over(shared(memory), Arc::clone(&faults));
    let newcomer = CheckpointDir::open_or_create(storage, root());
    let (result, ()) = run_interleaved(newcomer, owner, choose);
    let log = faults.log();
    if let Err(error) = result {
        panic!("{error}\n{log:#?}");
    }
    let is_scratch = |line: &&String| {
        line.contains("make directory")
            && line.rsplit_once('/').is_some_and(|(_, name)| name.starts_with("probe-"))
    };
    log.iter().filter(is_scratch).count()
}

fn staging(memory: &MemoryStorage) -> Vec<String> {
    let storage = shared(memory);
    let listing = async {
        let listed = storage.list(&path("/ckpt/.staging")).await;
        listed.expect("listed")
    };
    let (listed, ()) = run_interleaved(listing, async {}, || false);
    listed.iter().map(|entry| entry.name().to_owned()).collect()
}

/// More steps than a start has.
const STEPS: usize = 120;

#[tokio::test]
async fn retention_of_the_owner_does_not_disturb_a_probe() {
    let start = start(true).await;
    for at in 0..STEPS {
        let memory = start.copy();
        let dir = CheckpointDir::existing(shared(&memory), root());
        let mut step = 0;
        let tries = begins_beside(&memory, owner(dir), || {
            step += 1;
            step > at
        });
        assert_eq!(tries, 1, "the owner cleaned up after {at} steps");
        assert_eq!(staging(&memory), ["g1"]);
    }
    for pace in 1..20 {
        let memory = start.copy();
        let storage = Faulty::over(shared(&memory), Faults::yielding());
        let dir = CheckpointDir::existing(storage, root());
        let mut step = 0;
        let tries = begins_beside(&memory, owner(dir), || {
            step += 1;
            step % (pace + 1) > 0
        });
        assert_eq!(tries, 1, "the owner is {pace} times as fast");
        assert_eq!(staging(&memory), ["g1"]);
    }
}

#[tokio::test]
async fn a_probe_from_before_the_claim_retries() {
    let start = start(false).await;
    let mut most = 0;
    for at in 0..STEPS {
        let memory = start.copy();
        let dir = CheckpointDir::existing(shared(&memory), root());
        let claims = async {
            assert!(dir.write_claim(&claim_of(1, None)).await.expect("claimed"));
            owner(dir).await;
        };
        let mut step = 0;
        let tries = begins_beside(&memory, claims, || {
            step += 1;
            step > at
        });
        most = most.max(tries);
        assert_eq!(staging(&memory), ["g1"], "after {at} steps");
    }
    assert_eq!(most, 2, "once, since then the claim is seen");
}

#[tokio::test]
async fn the_next_generation_deletes_an_abandoned_probe() {
    let memory = start(true).await;
    let storage = shared(&memory);
    let id = Uuid::from_u128(5);
    for seen in [None, Some(Generation(1)), Some(Generation(2))] {
        let scratch = format!("/ckpt/.staging/{}", layout::probe_name(seen, id));
        storage.mkdir(&path(&scratch), Mode::DIR).await.expect("made");
    }
    let dir = CheckpointDir::existing(storage, root());
    for generation in [2, 3] {
        assert!(dir.write_claim(&claim_of(generation, None)).await.expect("claimed"));
        dir.retain(KEEP, Generation(generation), &[]).await.expect("cleaned up");
        let own = format!("g{generation}");
        match generation {
            2 => {
                let left = layout::probe_name(Some(Generation(2)), id);
                assert_eq!(staging(&memory), [own, left]);
            }
            _ => assert_eq!(staging(&memory), [own]),
        }
    }
}
