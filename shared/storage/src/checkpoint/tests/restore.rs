//! The choice of a checkpoint when some are damaged, unreadable, of a later version or missing.

use super::*;
use crate::error::{Op, Reason, StorageError, WriteError};
use crate::sidecar::sidecar_name;
use crate::store::{Entry, Mode, Reader, Writer};
use crate::testing::MemoryStorage;
use async_trait::async_trait;

struct Place {
    memory: MemoryStorage,
    dir: CheckpointDir,
}

/// Three checkpoints of generation 1.
async fn place() -> Place {
    let memory = MemoryStorage::new();
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    let dir = opened(&storage, &path("/ckpt")).await;
    assert!(dir.write_claim(&claim_of(1, None)).await.expect("claimed"));
    for number in 1..=3 {
        let staging = dir.stage(cut(1, number), salt(1)).await.expect("staged");
        let mut files = Vec::new();
        for shard in 0..2 {
            files.push(save(&dir, &staging, cut(1, number), shard, 2).await.expect("saved"));
        }
        dir.commit(manifest(cut(1, number), None, files), salt(1), &|| Ok(()))
            .await
            .expect("committed");
    }
    Place { memory, dir }
}

impl Place {
    fn file(&self, number: u32, name: &str) -> StorePath {
        path(&format!("/ckpt/g1-c{number}/{name}"))
    }

    async fn shard(&self, number: u32) -> String {
        self.dir.load(cut(1, number), Depth::Shallow).await.expect("whole").manifest.shards[0]
            .file
            .clone()
    }

    async fn newest(&self, on_corrupt: DamagePolicy) -> Result<Option<u32>, CheckpointError> {
        let lineage = self.dir.lineage().await.expect("read");
        let found = self.dir.newest(&lineage, Depth::Full, on_corrupt).await?;
        let number = |cut: CutId| cut.number;
        let damaged: Vec<u32> = found.damaged.iter().map(|one| number(one.cut)).collect();
        let found = found.checkpoint.map(|found| number(found.manifest.cut));
        // Every checkpoint above the chosen one is reported.
        let above: Vec<u32> =
            self.dir.names().await.expect("read").into_iter().map(number).collect();
        let above = above.into_iter().rev().filter(|other| Some(*other) > found);
        assert_eq!(damaged, above.collect::<Vec<_>>());
        Ok(found)
    }
}

#[tokio::test]
async fn damage_of_the_newest_falls_back_or_stops() {
    type Change = fn(&mut Vec<u8>);
    let changes: [(&str, Change); 9] = [
        ("shard", |bytes| bytes[300] ^= 1),
        ("shard", |bytes| bytes.truncate(100)),
        ("shard", |bytes| bytes.push(0)),
        ("sidecar", Vec::clear),
        ("sidecar", |bytes| bytes[34] = b'x'),
        ("MANIFEST.json", |bytes| bytes[40] ^= 1),
        ("MANIFEST.json", |bytes| bytes.truncate(10)),
        ("MANIFEST.json.md5", Vec::clear),
        ("MANIFEST.json.md5", |bytes| bytes[0] ^= 1),
    ];
    for (index, (name, change)) in changes.into_iter().enumerate() {
        let place = place().await;
        let shard = place.shard(3).await;
        let name = match name {
            "shard" => shard,
            "sidecar" => sidecar_name(&shard),
            other => other.to_owned(),
        };
        place.memory.damage(&place.file(3, &name), change);
        assert_eq!(
            place.newest(DamagePolicy::Previous).await.expect("the one before"),
            Some(2),
            "change {index}"
        );
        let error = place.newest(DamagePolicy::Fail).await.expect_err("stops");
        assert!(
            error.is_damage() && error.to_string().contains("/ckpt/g1-c3/"),
            "change {index}: {error}"
        );
    }
}

#[tokio::test]
async fn a_missing_file_is_damage() {
    for name in ["shard", "sidecar", "MANIFEST.json", "MANIFEST.json.md5"] {
        let place = place().await;
        let shard = place.shard(3).await;
        let name = match name {
            "shard" => shard,
            "sidecar" => sidecar_name(&shard),
            other => other.to_owned(),
        };
        place.dir.storage().delete_file(&place.file(3, &name)).await.expect("deleted");
        assert_eq!(
            place.newest(DamagePolicy::Previous).await.expect("the one before"),
            Some(2),
            "{name}"
        );
    }
}

#[tokio::test]
async fn sidecars_in_other_spellings_are_valid() {
    let place = place().await;
    let name = sidecar_name(&place.shard(3).await);
    place.memory.damage(&place.file(3, &name), |bytes| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let (sum, rest) = text.split_at(32);
        *bytes = format!("{}{}\r\n", sum.to_uppercase(), rest.trim_end()).into_bytes();
    });
    assert_eq!(place.newest(DamagePolicy::Fail).await.expect("good"), Some(3));
}

/// Writes a manifest with a valid sum, as another program would.
async fn replace_manifest(place: &Place, change: impl FnOnce(&mut serde_json::Value)) {
    let manifest = place.dir.load(cut(1, 3), Depth::Shallow).await.expect("whole").manifest;
    let mut json = serde_json::to_value(&manifest).expect("JSON");
    change(&mut json);
    let bytes = serde_json::to_vec(&json).expect("JSON");
    let line = crate::sidecar_line(crate::digest::sum_of(&bytes), "MANIFEST.json");
    place.memory.damage(&place.file(3, "MANIFEST.json"), |old| *old = bytes);
    place.memory.damage(&place.file(3, "MANIFEST.json.md5"), |old| *old = line.into_bytes());
}

#[tokio::test]
async fn a_manifest_of_a_later_version_stops_under_any_policy() {
    let place = place().await;
    replace_manifest(&place, |json| json["format_version"] = 5.into()).await;
    let error = place.newest(DamagePolicy::Previous).await.expect_err("stops");
    assert!(!error.is_damage());
    assert!(
        error.to_string().ends_with("it has format version 5, this program reads up to 4"),
        "{error}"
    );
}

#[tokio::test]
async fn a_manifest_with_a_duplicate_or_another_cut_is_damaged() {
    let twice = place().await;
    replace_manifest(&twice, |json| json["shards"][1] = json["shards"][0].clone()).await;
    assert_eq!(twice.newest(DamagePolicy::Previous).await.expect("the one before"), Some(2));
    let other = place().await;
    replace_manifest(&other, |json| json["cut"]["number"] = 7.into()).await;
    assert_eq!(other.newest(DamagePolicy::Previous).await.expect("the one before"), Some(2));
}

#[tokio::test]
async fn without_a_usable_checkpoint_the_result_is_an_error() {
    let place = place().await;
    for number in 1..=3 {
        place
            .dir
            .storage()
            .delete_file(&place.file(number, "MANIFEST.json"))
            .await
            .expect("deleted");
    }
    let error = place.newest(DamagePolicy::Previous).await.expect_err("stops");
    assert!(matches!(error, CheckpointError::NoneUsable { damaged: 3, .. }), "{error}");
    // Checkpoints in `damaged/` still count; a checkpoint that is there twice counts once.
    for number in [1, 2, 3, 3] {
        place.dir.set_aside(cut(1, number)).await.expect("set aside");
    }
    let error = place.newest(DamagePolicy::Previous).await.expect_err("stops");
    assert!(matches!(error, CheckpointError::NoneUsable { damaged: 3, .. }), "{error}");
}

#[tokio::test]
async fn a_missing_base_is_an_error() {
    let place = place().await;
    assert!(place.dir.write_claim(&claim_of(2, Some(cut(1, 3)))).await.expect("claimed"));
    for number in 1..=3 {
        place
            .dir
            .storage()
            .delete_dir(&path(&format!("/ckpt/g1-c{number}")))
            .await
            .expect("deleted");
    }
    let error = place.newest(DamagePolicy::Previous).await.expect_err("stops");
    assert!(
        matches!(error, CheckpointError::Lost { cut: lost, .. } if lost == cut(1, 3)),
        "{error}"
    );
}

#[tokio::test]
async fn a_new_directory_has_no_checkpoint() {
    let storage: Arc<dyn Storage> = Arc::new(MemoryStorage::new());
    let dir = opened(&storage, &path("/ckpt")).await;
    for generation in [1, 2] {
        assert!(dir.write_claim(&claim_of(generation, None)).await.expect("claimed"));
        let lineage = dir.lineage().await.expect("read");
        let found =
            dir.newest(&lineage, Depth::Full, DamagePolicy::Fail).await.expect("none is an answer");
        assert_eq!(found.checkpoint, None);
        assert!(found.damaged.is_empty());
    }
}

/// Reads of one file fail as if its DataNodes were down.
#[derive(Debug)]
pub(super) struct Away {
    pub(super) inner: MemoryStorage,
    pub(super) name: String,
    /// A checkpoint that retention removes at the first of these reads instead.
    pub(super) removed: Option<StorePath>,
}

impl Away {
    async fn check(&self, path: &StorePath) -> Result<(), StorageError> {
        if !path.as_str().contains(&self.name) {
            return Ok(());
        }
        match &self.removed {
            Some(dir) => {
                let _gone_before = self.inner.delete_dir(dir).await;
                Ok(())
            }
            None => Err(StorageError::new(Op::Read, path, Reason::Unavailable)),
        }
    }
}

#[async_trait]
impl Storage for Away {
    fn show(&self, path: &StorePath) -> String {
        self.inner.show(path)
    }
    async fn create(&self, path: &StorePath, mode: Mode) -> Result<Box<dyn Writer>, WriteError> {
        self.inner.create(path, mode).await
    }
    async fn open(&self, path: &StorePath, offset: u64) -> Result<Box<dyn Reader>, StorageError> {
        self.check(path).await?;
        self.inner.open(path, offset).await
    }
    async fn read_range(
        &self,
        path: &StorePath,
        offset: u64,
        len: usize,
    ) -> Result<Bytes, StorageError> {
        self.check(path).await?;
        self.inner.read_range(path, offset, len).await
    }
    async fn stat(&self, path: &StorePath) -> Result<Entry, StorageError> {
        self.inner.stat(path).await
    }
    async fn list(&self, path: &StorePath) -> Result<Vec<Entry>, StorageError> {
        self.inner.list(path).await
    }
    async fn mkdir(&self, path: &StorePath, mode: Mode) -> Result<(), WriteError> {
        self.inner.mkdir(path, mode).await
    }
    async fn rename(&self, from: &StorePath, to: &StorePath) -> Result<(), WriteError> {
        self.inner.rename(from, to).await
    }
    async fn replace(&self, from: &StorePath, to: &StorePath) -> Result<(), WriteError> {
        self.inner.replace(from, to).await
    }
    async fn delete_file(&self, path: &StorePath) -> Result<(), WriteError> {
        self.inner.delete_file(path).await
    }
    async fn delete_dir(&self, path: &StorePath) -> Result<(), WriteError> {
        self.inner.delete_dir(path).await
    }
}

#[tokio::test]
async fn an_unreadable_newest_stops_without_a_fallback() {
    let place = place().await;
    let shard = place.shard(3).await;
    for name in [
        "g1-c3/MANIFEST.json".to_owned(),
        format!("g1-c3/{}", sidecar_name(&shard)),
        format!("g1-c3/{shard}"),
    ] {
        let storage: Arc<dyn Storage> =
            Arc::new(Away { inner: place.memory.clone(), name, removed: None });
        let dir = CheckpointDir::existing(storage, path("/ckpt"));
        let lineage = dir.lineage().await.expect("read");
        let error =
            dir.newest(&lineage, Depth::Full, DamagePolicy::Previous).await.expect_err("stops");
        assert!(error.is_retryable() && !error.is_damage(), "{error}");
        // Retention does not delete anything either.
        let kept = place.memory.paths();
        let _ = dir.retain(2, Generation(1), &[]).await;
        assert_eq!(place.dir.names().await.expect("listed").len(), 3.min(kept.len()));
    }
}

#[tokio::test]
async fn retention_counts_only_complete_checkpoints_and_leaves_two() {
    let place = place().await;
    let shard = place.shard(3).await;
    place.memory.damage(&place.file(3, &shard), Vec::clear);
    let swept = place.dir.retain(2, Generation(1), &[]).await.expect("swept");
    assert_eq!(swept.checkpoints, [], "1 and 2 are the only whole ones");
    let swept = place.dir.retain(0, Generation(1), &[]).await.expect("swept");
    assert_eq!(swept.checkpoints, [], "never below two");
}

#[tokio::test]
async fn retention_keeps_a_held_checkpoint_beyond_its_number() {
    let place = place().await;
    let held = [cut(1, 1), cut(1, 3)];
    let swept = place.dir.retain(2, Generation(1), &held).await.expect("swept");
    assert_eq!(swept.checkpoints, [], "2 and 3 are the newest two, 1 is held");
    let swept = place.dir.retain(2, Generation(1), &held[1..]).await.expect("swept");
    assert_eq!(swept.checkpoints, [cut(1, 1)]);
}

#[tokio::test]
async fn retention_deletes_the_oldest_and_those_outside_the_lineage() {
    let place = place().await;
    assert!(place.dir.write_claim(&claim_of(2, Some(cut(1, 2)))).await.expect("claimed"));
    assert!(checkpoint(&place.dir, cut(2, 1), Some(cut(1, 2)), 2, salt(2)).await);
    assert_eq!(place.dir.names().await.expect("listed"), [cut(1, 2), cut(2, 1)]);
}

#[tokio::test]
async fn a_superseded_owner_deletes_and_commits_nothing() {
    let place = place().await;
    assert!(place.dir.write_claim(&claim_of(2, Some(cut(1, 3)))).await.expect("claimed"));
    let before = place.memory.paths();
    assert!(place.dir.retain(2, Generation(1), &[]).await.expect_err("fenced").is_fenced());
    assert_eq!(place.memory.paths(), before);
    let staging = place.dir.stage(cut(1, 9), salt(1)).await.expect("its own staging");
    let file = save(&place.dir, &staging, cut(1, 9), 0, 1).await.expect("saved");
    let error = place.dir.commit(manifest(cut(1, 9), None, vec![file]), salt(1), &|| Ok(())).await;
    assert!(matches!(error, Err(CommitError::Fenced(_))));
    assert_eq!(place.dir.names().await.expect("listed").len(), 3);
}

#[tokio::test]
async fn a_closed_gate_prevents_the_commit_until_it_opens() {
    let place = place().await;
    let staging = place.dir.stage(cut(1, 4), salt(1)).await.expect("staged");
    let file = save(&place.dir, &staging, cut(1, 4), 0, 1).await.expect("saved");
    let manifest = manifest(cut(1, 4), None, vec![file]);
    let shut = place
        .dir
        .commit(manifest.clone(), salt(1), &|| Err("no word from the cluster".to_owned()))
        .await;
    assert!(matches!(shut, Err(CommitError::Shut(_))));
    assert!(!place.dir.names().await.expect("listed").contains(&cut(1, 4)));
    place.dir.commit(manifest, salt(1), &|| Ok(())).await.expect("committed");
    assert_whole(&place.dir, cut(1, 4), "").await;
}

#[tokio::test]
async fn a_manifest_with_a_missing_file_is_not_committed() {
    let place = place().await;
    let staging = place.dir.stage(cut(1, 4), salt(1)).await.expect("staged");
    let good = save(&place.dir, &staging, cut(1, 4), 0, 1).await.expect("saved");
    let mut wrong_length = good.clone();
    wrong_length.bytes += 1;
    let mut missing = good.clone();
    missing.uuid = Uuid::from_u128(5);
    missing.file = ShardFile::name(missing.shard, missing.uuid);
    let mut wrong_sum = good.clone();
    wrong_sum.md5.0[0] ^= 1;
    for file in [wrong_length, missing, wrong_sum] {
        let error =
            place.dir.commit(manifest(cut(1, 4), None, vec![file]), salt(1), &|| Ok(())).await;
        assert!(matches!(error, Err(CommitError::NotDone(error)) if error.is_damage()));
    }
    place
        .dir
        .commit(manifest(cut(1, 4), None, vec![good]), salt(1), &|| Ok(()))
        .await
        .expect("committed");
}

#[tokio::test]
async fn a_copied_directory_is_valid() {
    let place = place().await;
    place.dir.storage().rename(&path("/ckpt/g1-c3"), &path("/copy")).await.expect("moved");
    let found = StoredCheckpoint::load(&**place.dir.storage(), &path("/copy"), Depth::Full)
        .await
        .expect("whole");
    assert_eq!(found.manifest.cut, cut(1, 3));
}

#[tokio::test]
async fn the_listing_contains_damaged_checkpoints() {
    let place = place().await;
    let shard = place.shard(2).await;
    place.memory.damage(&place.file(2, &shard), |bytes| bytes[300] ^= 1);
    let listing = place.dir.listing(Depth::Full).await.expect("listed");
    let good: Vec<_> = listing.iter().map(|one| matches!(one.health, Health::Good(_))).collect();
    assert_eq!(good, [true, false, true]);
    // Detected only by reading every byte.
    let listing = place.dir.listing(Depth::Shallow).await.expect("listed");
    assert!(listing.iter().all(|one| matches!(one.health, Health::Good(_)) && one.in_lineage));
}

#[tokio::test]
async fn a_checkpoint_that_is_removed_while_it_is_read_is_not_damaged() {
    for (name, depth) in [
        ("MANIFEST.json", Depth::Shallow),
        ("MANIFEST.json.md5", Depth::Shallow),
        (".ckpt.md5", Depth::Shallow),
        (".ckpt", Depth::Full),
    ] {
        let on = async |number: u32| {
            let place = place().await;
            let removed = path(&format!("/ckpt/g1-c{number}"));
            let name = match name {
                "MANIFEST.json" => format!("g1-c{number}/{name}"),
                name => name.to_owned(),
            };
            let removed = Some(removed);
            let storage = Arc::new(Away { inner: place.memory.clone(), name, removed });
            CheckpointDir::existing(storage, path("/ckpt"))
        };
        let listing = on(2).await.listing(depth).await.expect("listed");
        let cuts: Vec<_> = listing.iter().map(|one| one.cut).collect();
        assert_eq!(cuts, [cut(1, 1), cut(1, 3)], "{name}");
        assert!(listing.iter().all(|one| matches!(one.health, Health::Good(_))), "{name}");
        let dir = on(3).await;
        let lineage = dir.lineage().await.expect("read");
        let newest = dir.newest(&lineage, depth, DamagePolicy::Fail).await.expect("an older one");
        assert_eq!(newest.checkpoint.expect("found").manifest.cut, cut(1, 2), "{name}");
        let error = on(2).await.groups(cut(1, 2), Depth::Full).await.expect_err("gone");
        assert!(matches!(error, CheckpointError::Unknown { .. }), "{name}: {error}");
        let dir = on(2).await;
        let alone = StoredCheckpoint::load(&**dir.storage(), &path("/ckpt/g1-c2"), depth).await;
        let error = alone.expect_err("gone");
        assert!(matches!(error, CheckpointError::Removed { .. }), "{name}: {error}");
        assert!(!error.is_damage() && error.class() == ErrorClass::Input);
    }
}

#[tokio::test]
async fn removal_by_a_user_spares_the_newest_two() {
    let place = place().await;
    for kept in [2, 3] {
        let error = place.dir.remove(cut(1, kept)).await.expect_err("kept");
        assert!(matches!(error, CheckpointError::Kept { .. }));
    }
    place.dir.remove(cut(1, 1)).await.expect("removed");
    let error = place.dir.set_aside(cut(1, 1)).await.expect_err("never was");
    assert!(matches!(error, CheckpointError::Unknown { .. }));
    let error = place.dir.remove(cut(1, 1)).await.expect_err("gone");
    assert!(matches!(error, CheckpointError::Unknown { .. }));
    assert_eq!(place.dir.names().await.expect("listed"), [cut(1, 2), cut(1, 3)]);
}
