//! Checkpoints made as the ApplicationMaster and its pservers make them, without a job: for tests of storages.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use bytes::Bytes;
use heddle_protocol::ids::{Attempt, CutId, Epoch, Generation, PhaseNo, RunId, ShardId, Step};
use heddle_protocol::manifest::{
    FORMAT_VERSION_WITH_FILES, InputPlan, Manifest, Progress, Salt, ShardFile, Work,
};
use heddle_storage::StorePath;
use heddle_storage::checkpoint::{CheckpointDir, ClaimRecord, CommitError, Depth, Owner};
use heddle_storage::shard_file::{
    SaveError, Section, ShardHeader, ShardReader, ShardWriter, Values,
};
use uuid::Uuid;

/// The run that makes them.
const RUN: RunId = RunId(Uuid::from_u128(77));
/// How many are kept.
const KEEP: usize = 2;

/// What a checkpoint consists of.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Number of shards, a file each.
    pub shards: u32,
    /// Bytes of a shard's one section.
    pub bytes: usize,
}

/// Checkpoint `number` of a generation.
#[must_use]
pub fn cut(generation: u32, number: u32) -> CutId {
    CutId { generation: Generation(generation), number }
}

/// The salt of a process.
#[must_use]
pub fn salt(of: u32) -> Salt {
    Salt(Uuid::from_u128(of.into()))
}

/// The claim of a generation, which continues from `base`.
#[must_use]
pub fn claim(generation: u32, base: Option<CutId>) -> ClaimRecord {
    ClaimRecord {
        format_version: 1,
        generation: Generation(generation),
        run: RUN,
        owner: Owner::Application {
            application: "application_1_1".to_owned(),
            attempt: Attempt(generation),
        },
        base,
        salt: salt(generation),
        at_ms: 0,
    }
}

/// Bytes that differ from their neighbours and from those of other checkpoints and shards.
#[must_use]
pub fn content(cut: CutId, shard: u32, bytes: usize) -> Vec<u8> {
    let seed = cut.generation.0 as usize * 101 + cut.number as usize * 11 + shard as usize;
    (seed..seed + bytes).map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8).collect()
}

/// What a shard's file begins with: one section of bytes.
#[must_use]
pub fn header(cut: CutId, shard: u32, shape: Shape) -> ShardHeader {
    ShardHeader {
        run: RUN,
        shard: ShardId(shard),
        shards: shape.shards,
        cut,
        epoch: Epoch::first(cut.generation),
        phase: PhaseNo(0),
        step: Step(cut.number.into()),
        tables: Vec::new(),
        sections: vec![Section {
            table: None,
            name: "marks".to_owned(),
            values: Values::Bytes,
            count: shape.bytes as u64,
        }],
    }
}

/// Saves one shard, in one try.
///
/// # Errors
/// The storage fails.
pub async fn save(
    dir: &CheckpointDir,
    staging: &StorePath,
    cut: CutId,
    shard: u32,
    shape: Shape,
) -> Result<ShardFile, SaveError> {
    let header = header(cut, shard, shape);
    let storage = &**dir.storage();
    let mut writer = ShardWriter::create(storage, staging, header).await?;
    writer.write(Bytes::from(content(cut, shard, shape.bytes))).await?;
    writer.finish(storage).await
}

/// The manifest of a checkpoint with these files.
#[must_use]
pub fn manifest(cut: CutId, parent: Option<CutId>, shards: Vec<ShardFile>) -> Manifest {
    Manifest {
        format_version: FORMAT_VERSION_WITH_FILES,
        run: RUN,
        job: "test".to_owned(),
        cut,
        epoch: Epoch::first(cut.generation),
        parent,
        salt: salt(0),
        at_ms: 0,
        spec_digest: String::new(),
        spec: serde_json::Value::Null,
        plan: InputPlan::default(),
        initial: false,
        shards,
        phase: PhaseNo(0),
        work: Work::Lanes { step: Step(cut.number.into()) },
        task_steps: BTreeMap::new(),
        evaluations: Vec::new(),
        best_pass: None,
        progress: Progress::default(),
        tables: Vec::new(),
    }
}

/// Takes a checkpoint from the first file to the last deletion, each call again as often as the ApplicationMaster and
/// the pservers do. Returns whether the commit was confirmed.
pub async fn checkpoint(
    dir: &CheckpointDir,
    cut: CutId,
    parent: Option<CutId>,
    own: Salt,
    shape: Shape,
) -> bool {
    let mut staging = dir.stage(cut, own).await;
    if staging.is_err() {
        staging = dir.stage(cut, own).await;
    }
    let Ok(staging) = staging else { return false };
    let mut files = Vec::new();
    for shard in 0..shape.shards {
        let mut file = save(dir, &staging, cut, shard, shape).await;
        if file.is_err() {
            file = save(dir, &staging, cut, shard, shape).await;
        }
        match file {
            Ok(file) => files.push(file),
            Err(_) => return false,
        }
    }
    for _ in 0..3 {
        let manifest = manifest(cut, parent, files.clone());
        match dir.commit(manifest, own, &|| Ok(())).await {
            Ok(_) => {
                let _leaks = dir.retain(KEEP, cut.generation, &[cut]).await;
                return true;
            }
            Err(CommitError::Fenced(_)) => return false,
            Err(_) => {}
        }
    }
    false
}

/// Checks that every byte of a checkpoint is what was written.
///
/// # Errors
/// One is not, or cannot be read.
pub async fn check_whole(dir: &CheckpointDir, cut: CutId, bytes: usize) -> Result<()> {
    let loaded = dir.load(cut, Depth::Full).await?;
    let identity = loaded.manifest.identity();
    for file in &loaded.manifest.shards {
        let mut reader = ShardReader::open(&**dir.storage(), &loaded.dir, file, &identity).await?;
        ensure!(reader.header().cut == cut, "{:?}", reader.header());
        let mut all = Vec::new();
        while let Some(piece) = reader.next().await? {
            all.extend_from_slice(&piece.data);
        }
        ensure!(all == content(cut, file.shard.0, bytes), "{} of {cut} has other bytes", file.file);
    }
    Ok(())
}
