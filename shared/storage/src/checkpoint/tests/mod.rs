//! The checkpoint directory as a whole: the calls of a job, with faults at every call.

mod copies;
mod crash;
mod foreign;
mod initial;
mod mirror;
mod restore;
mod scratch;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use heddle_protocol::ids::{Attempt, CutId, Epoch, Generation, PhaseNo, RunId, ShardId, Step};
use heddle_protocol::manifest::{
    FORMAT_VERSION_WITH_FILES, InputPlan, Manifest, Progress, Salt, ShardFile, Work,
};
use uuid::Uuid;

use super::*;
use crate::path::StorePath;
use crate::shard_file::{Section, ShardHeader, ShardReader, ShardWriter, Values};
use crate::store::Storage;

pub(super) const RUN: RunId = RunId(Uuid::from_u128(77));
const KEEP: usize = 2;

pub(super) fn cut(generation: u32, number: u32) -> CutId {
    CutId { generation: Generation(generation), number }
}

pub(super) fn salt(of: u128) -> Salt {
    Salt(Uuid::from_u128(of))
}

pub(super) fn path(text: &str) -> StorePath {
    StorePath::parse(text).expect("a valid path")
}

pub(super) async fn opened(storage: &Arc<dyn Storage>, root: &StorePath) -> CheckpointDir {
    CheckpointDir::open_or_create(Arc::clone(storage), root.clone()).await.expect("opened")
}

pub(super) fn claim_of(generation: u32, base: Option<CutId>) -> ClaimRecord {
    ClaimRecord {
        format_version: 1,
        generation: Generation(generation),
        run: RUN,
        owner: Owner::Application {
            application: "application_1_1".to_owned(),
            attempt: Attempt(generation),
        },
        base,
        salt: salt(u128::from(generation)),
        at_ms: 0,
    }
}

/// The content of a shard's sections at a cut: different for each.
fn content(cut: CutId, shard: u32) -> Vec<u8> {
    format!("{cut} shard {shard}").into_bytes()
}

fn header(cut: CutId, shard: u32, shards: u32) -> ShardHeader {
    let count = content(cut, shard).len() as u64;
    ShardHeader {
        run: RUN,
        shard: ShardId(shard),
        shards,
        cut,
        epoch: Epoch::first(cut.generation),
        phase: PhaseNo(0),
        step: Step(u64::from(cut.number)),
        tables: Vec::new(),
        sections: vec![Section {
            table: None,
            name: "marks".to_owned(),
            values: Values::Bytes,
            count,
        }],
    }
}

pub(super) fn manifest(cut: CutId, parent: Option<CutId>, shards: Vec<ShardFile>) -> Manifest {
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
        work: Work::Lanes { step: Step(u64::from(cut.number)) },
        task_steps: BTreeMap::new(),
        evaluations: Vec::new(),
        best_pass: None,
        progress: Progress::default(),
        tables: Vec::new(),
    }
}

/// Saves one shard as a pserver does: after a failure again, as another file.
pub(super) async fn save(
    dir: &CheckpointDir,
    staging: &StorePath,
    cut: CutId,
    shard: u32,
    shards: u32,
) -> Option<ShardFile> {
    for _ in 0..2 {
        let storage = &**dir.storage();
        let Ok(mut writer) =
            ShardWriter::create(storage, staging, header(cut, shard, shards)).await
        else {
            continue;
        };
        if writer.write(Bytes::from(content(cut, shard))).await.is_err() {
            continue;
        }
        if let Ok(file) = writer.finish(storage).await {
            return Some(file);
        }
    }
    None
}

/// Takes a checkpoint from the first file to the last deletion, with the retries of the ApplicationMaster. Returns
/// whether the commit was confirmed.
pub(super) async fn checkpoint(
    dir: &CheckpointDir,
    cut: CutId,
    parent: Option<CutId>,
    shards: u32,
    own: Salt,
) -> bool {
    let mut staging = dir.stage(cut, own).await;
    if staging.is_err() {
        staging = dir.stage(cut, own).await;
    }
    let Ok(staging) = staging else { return false };
    let mut files = Vec::new();
    for shard in 0..shards {
        match save(dir, &staging, cut, shard, shards).await {
            Some(file) => files.push(file),
            None => return false,
        }
    }
    for _ in 0..3 {
        match dir.commit(manifest(cut, parent, files.clone()), own, &|| Ok(())).await {
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

/// Checks every byte of a checkpoint.
pub(super) async fn assert_whole(dir: &CheckpointDir, cut: CutId, context: &str) {
    let loaded = dir.load(cut, Depth::Full).await;
    let loaded = loaded.unwrap_or_else(|error| panic!("{cut} is not whole: {error}\n{context}"));
    for file in &loaded.manifest.shards {
        let identity = loaded.manifest.identity();
        let reader = ShardReader::open(&**dir.storage(), &loaded.dir, file, &identity).await;
        let mut reader = reader.expect("just read");
        assert_eq!(reader.header().cut, cut);
        let mut all = Vec::new();
        while let Some(piece) = reader.next().await.expect("just read") {
            all.extend_from_slice(&piece.data);
        }
        assert_eq!(all, content(cut, file.shard.0), "{context}");
    }
}
