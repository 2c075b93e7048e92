//! A stale predecessor commits and deletes while its successor claims, continues, commits and deletes. Their calls are
//! interleaved in many orders, one call at a time.
//!
//! In every order: a commit that was confirmed to the predecessor is continued; every checkpoint name denotes a complete
//! checkpoint; the successor's own checkpoints stay. An attempt whose lease has expired publishes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use heddle_am::claim::{ClaimRequest, Claimed, Liveness, claim};
use heddle_am::lease::Lease;
use heddle_am::store::Store;
use heddle_am_core::{CallId, Event, StoreCall, Stored};
use heddle_protocol::ids::{
    Attempt, CutId, Epoch, Generation, PhaseNo, RunId, SaveNo, ShardId, Step,
};
use heddle_protocol::manifest::{
    FORMAT_VERSION_WITH_FILES, InputPlan, Manifest, Progress, Salt, ShardFile, Work,
};
use heddle_storage::checkpoint::{
    CheckpointDir, ClaimRecord, CommitError, DamagePolicy, Depth, Owner,
};
use heddle_storage::shard_file::{Section, ShardHeader, ShardWriter, Values};
use heddle_storage::testing::{Faults, Faulty, MemoryStorage, run_interleaved};
use heddle_storage::{Storage, StorageUrl, StorePath};
use proptest::prelude::*;
use tokio::sync::mpsc;
use uuid::Uuid;

const RUN: RunId = RunId(Uuid::from_u128(7));
const STALE: Salt = Salt(Uuid::from_u128(1));
const SUCCESSOR: Salt = Salt(Uuid::from_u128(2));

fn cut(generation: Generation, number: u32) -> CutId {
    CutId { generation, number }
}

fn owner(attempt: u32) -> Owner {
    Owner::Application { application: "application_1_1".to_owned(), attempt: Attempt(attempt) }
}

fn root() -> StorePath {
    StorePath::parse("/ckpt").expect("a path")
}

/// Saves the one shard of a cut and returns the manifest to commit.
async fn prepare(
    dir: &CheckpointDir,
    cut: CutId,
    parent: Option<CutId>,
    salt: Salt,
) -> Option<Manifest> {
    let staging = dir.stage(cut, salt).await.ok()?;
    let content = Bytes::from(cut.to_string());
    let header = ShardHeader {
        run: RUN,
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
    let mut writer = ShardWriter::create(storage, &staging, header).await.ok()?;
    writer.write(content).await.ok()?;
    let file = writer.finish(storage).await.ok()?;
    Some(manifest(cut, parent, vec![file]))
}

fn manifest(cut: CutId, parent: Option<CutId>, shards: Vec<ShardFile>) -> Manifest {
    Manifest {
        format_version: FORMAT_VERSION_WITH_FILES,
        run: RUN,
        job: "test".to_owned(),
        cut,
        epoch: Epoch::first(cut.generation),
        parent,
        salt: Salt(Uuid::nil()),
        at_ms: 0,
        spec_digest: String::new(),
        spec: serde_json::Value::Null,
        plan: InputPlan::default(),
        initial: false,
        shards,
        phase: PhaseNo(0),
        work: Work::Lanes { step: Step(0) },
        task_steps: BTreeMap::new(),
        evaluations: Vec::new(),
        best_pass: None,
        progress: Progress::default(),
        tables: Vec::new(),
    }
}

/// Where both begin: two checkpoints of generation 1, and the files of two more.
struct Start {
    memory: MemoryStorage,
    pending: Vec<Manifest>,
}

async fn start() -> Start {
    let memory = MemoryStorage::new();
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    let dir = CheckpointDir::open_or_create(storage, root()).await.expect("opened");
    let generation = Generation(1);
    let record = ClaimRecord {
        format_version: 1,
        generation,
        run: RUN,
        owner: owner(1),
        base: None,
        salt: STALE,
        at_ms: 0,
    };
    assert!(dir.write_claim(&record).await.expect("claimed"));
    let mut manifests = Vec::new();
    for number in 1..=4 {
        let parent = (number > 1).then(|| cut(generation, number - 1));
        manifests.push(prepare(&dir, cut(generation, number), parent, STALE).await.expect("saved"));
    }
    let pending = manifests.split_off(2);
    for manifest in manifests {
        dir.commit(manifest, STALE, &|| Ok(())).await.expect("committed");
    }
    Start { memory, pending }
}

fn user(memory: &MemoryStorage) -> CheckpointDir {
    let storage = Faulty::over(Arc::new(memory.clone()), Faults::yielding());
    CheckpointDir::existing(storage, root())
}

/// The predecessor continues without noticing its successor. Returns the cuts whose commit it got confirmed.
async fn stale(dir: CheckpointDir, pending: Vec<Manifest>) -> Vec<CutId> {
    let mut confirmed = Vec::new();
    for manifest in pending {
        let cut = manifest.cut;
        match dir.commit(manifest, STALE, &|| Ok(())).await {
            Ok(_) => confirmed.push(cut),
            Err(CommitError::Fenced(_)) => return confirmed,
            Err(_) => {}
        }
        let _leaks = dir.retain(2, cut.generation, &[cut]).await;
    }
    confirmed
}

/// The successor claims and takes two checkpoints.
async fn successor(dir: CheckpointDir) -> (Claimed, Vec<CutId>) {
    let request = ClaimRequest {
        run: RUN,
        owner: owner(2),
        salt: SUCCESSOR,
        at_ms: 0,
        take_over: false,
        fresh: false,
        on_corrupt: DamagePolicy::Fail,
    };
    let claimed = claim(&dir, &request, &|_: &Owner| Liveness::Unknown).await.expect("claimed");
    let mut parent = claimed.base.as_ref().map(|base| base.manifest.cut);
    let mut taken = Vec::new();
    for number in 1..=2 {
        let cut = cut(claimed.generation, number);
        let manifest = prepare(&dir, cut, parent, SUCCESSOR).await.expect("saved");
        dir.commit(manifest, SUCCESSOR, &|| Ok(())).await.expect("nobody is above it");
        let _leaks = dir.retain(2, cut.generation, &[cut]).await;
        parent = Some(cut);
        taken.push(cut);
    }
    (claimed, taken)
}

fn interleave(start: &Start, choose: impl FnMut() -> bool) {
    let memory = start.memory.copy();
    let (confirmed, (claimed, taken)) = run_interleaved(
        stale(user(&memory), start.pending.clone()),
        successor(user(&memory)),
        choose,
    );

    let base = claimed.base.expect("never from initial values").manifest.cut;
    let newest = confirmed.last().copied().unwrap_or(cut(Generation(1), 2));
    assert!(base >= newest, "{newest} was confirmed, {base} is continued");

    let storage: Arc<dyn Storage> = Arc::new(memory);
    let dir = CheckpointDir::existing(storage, root());
    block_on(async {
        for name in dir.names().await.expect("listed") {
            dir.load(name, Depth::Full)
                .await
                .unwrap_or_else(|error| panic!("{name} is not whole: {error}"));
        }
        let lineage = dir.lineage().await.expect("read");
        let found = dir
            .newest(&lineage, Depth::Full, DamagePolicy::Fail)
            .await
            .expect("read")
            .checkpoint
            .expect("one");
        assert_eq!(Some(&found.manifest.cut), taken.last());
        for cut in taken {
            assert!(lineage.holds(cut));
            dir.load(cut, Depth::Full).await.expect("whole");
        }
    });
}

/// The storage in memory never waits.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    run_interleaved(future, async {}, || false).0
}

/// Runs both; which of them is first changes at the given steps.
fn with_switches(start: &Start, successor_first: bool, switches: &[usize]) {
    let mut step = 0;
    interleave(start, || {
        let turns = switches.iter().filter(|at| **at <= step).count();
        step += 1;
        successor_first ^ (turns % 2 == 1)
    });
}

/// Steps that the two take together, one after the other.
fn steps(start: &Start) -> usize {
    let mut steps = 0;
    interleave(start, || {
        steps += 1;
        false
    });
    // The steps of the second one do not call the closure.
    steps + 150
}

#[test]
fn every_switch_and_switch_back_is_safe() {
    let start = block_on(start());
    let steps = steps(&start);
    for first in 0..steps {
        for successor_first in [false, true] {
            with_switches(&start, successor_first, &[first]);
            for length in [1, 3, 8, 21, 55] {
                with_switches(&start, successor_first, &[first, first + length]);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 150,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn any_interleaving_is_safe(turns in proptest::collection::vec(any::<bool>(), 600)) {
        let start = block_on(start());
        let mut turns = turns.into_iter();
        interleave(&start, || turns.next().unwrap_or(false));
    }

    #[test]
    fn many_switches_are_safe(
        mut switches in proptest::collection::vec(0usize..400, 3..8),
        successor_first: bool,
    ) {
        let start = block_on(start());
        switches.sort_unstable();
        with_switches(&start, successor_first, &switches);
    }
}

/// What the store of generation 1's attempt answers, as long as that has such a lease.
async fn told(start: &Start, lease: Lease, call: StoreCall) -> Stored {
    let storage: Arc<dyn Storage> = Arc::new(start.memory.clone());
    let store = Store {
        dir: CheckpointDir::existing(storage, root()),
        location: StorageUrl::parse("/ckpt").expect("a location"),
        salt: STALE,
        run: RUN,
        job: "test".to_owned(),
        generation: Generation(1),
        overwrite: false,
        permissions: None,
        lease,
        mirrors: None,
    };
    let (calls, incoming) = mpsc::unbounded_channel();
    let (events, mut heard) = mpsc::unbounded_channel();
    calls.send((CallId(1), Box::new(call))).expect("it listens");
    drop(calls);
    store.run(incoming, events, mpsc::unbounded_channel().0).await;
    match heard.recv().await {
        Some(Event::Stored { outcome, .. }) => outcome,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn attempt_with_expired_lease_publishes_nothing() {
    let start = start().await;
    let manifest = &start.pending[0];
    let commit =
        || StoreCall::Commit { staging: String::new(), manifest: Box::new(manifest.clone()) };
    let output = tempfile::tempdir().expect("a temporary directory");
    let publish = || StoreCall::PublishModel {
        save: SaveNo(0),
        after: CutId::default(),
        dir: output.path().display().to_string(),
        model: "model".to_owned(),
        files: Vec::new(),
        checkpoint: manifest.cut,
    };
    let over = || Lease::new(Duration::ZERO);
    for call in [commit(), publish()] {
        let told = told(&start, over(), call).await;
        let Stored::NotDone { failure } = &told else { panic!("{told:?}") };
        assert!(failure.text.contains("another attempt may lead"), "{failure}");
    }
    let storage: Arc<dyn Storage> = Arc::new(start.memory.clone());
    let dir = CheckpointDir::existing(storage, root());
    assert!(!dir.names().await.expect("listed").contains(&manifest.cut));
    let model = output.path().join(heddle_protocol::model::MODEL_FILE);
    assert!(!model.exists());

    // An answer, and both are tried again.
    let lease = Lease::new(Duration::from_secs(3600));
    let committed = told(&start, lease.clone(), commit()).await;
    assert!(matches!(committed, Stored::Committed(_)), "{committed:?}");
    let published = told(&start, lease, publish()).await;
    assert!(matches!(published, Stored::Published(_)), "{published:?}");
    assert!(model.exists());
}
