//! The checkpoint of initial values: a manifest without shard files.

use heddle_protocol::failure::ErrorClass;
use heddle_protocol::manifest::FORMAT_VERSION_INITIAL;

use super::*;
use crate::StorageUrl;
use crate::local::LocalStorage;

fn initial() -> Manifest {
    Manifest {
        format_version: FORMAT_VERSION_INITIAL,
        initial: true,
        work: Work::Lanes { step: Step(0) },
        ..manifest(cut(1, 1), None, Vec::new())
    }
}

#[tokio::test]
async fn initial_values_are_whole_without_files_here_and_in_a_mirror() {
    let temp = tempfile::tempdir().expect("a directory");
    let storage: Arc<dyn Storage> = Arc::new(LocalStorage);
    let under = |name: &str| path(&temp.path().join(name).display().to_string());
    let dir = opened(&storage, &under("ckpt")).await;
    assert!(dir.write_claim(&claim_of(1, None)).await.expect("claimed"));
    let staging = dir.stage(cut(1, 1), salt(1)).await.expect("staged");
    save(&dir, &staging, cut(1, 1), 0, 2).await.expect("a file that its writer could not remove");
    dir.commit(initial(), salt(1), &|| Ok(())).await.expect("committed");
    let mirror = opened(&storage, &under("mirror")).await;
    dir.copy_to(cut(1, 1), &mirror, &|| Ok(())).await.expect("copied");
    for place in [&dir, &mirror] {
        let loaded = place.load(cut(1, 1), Depth::Full).await.expect("whole");
        assert!(loaded.manifest.initial && loaded.manifest.bytes() == 0);
        let listed = storage.list(&loaded.dir).await.expect("listed");
        let names: Vec<&str> = listed.iter().map(|entry| entry.name()).collect();
        assert_eq!(names, ["MANIFEST.json", "MANIFEST.json.md5"]);
        let (manifest, groups) = place.groups(cut(1, 1), Depth::Full).await.expect("read");
        assert!(manifest.initial && groups.is_empty());
        let lineage = place.lineage().await.expect("read");
        let newest = place.newest(&lineage, Depth::Full, DamagePolicy::Fail).await.expect("found");
        assert_eq!(newest.checkpoint.map(|newest| newest.manifest.cut), Some(cut(1, 1)));
    }
    let repair = dir.repair(cut(1, 1), None, RepairMode::DryRun).await.expect("nothing to do");
    assert!(repair.texts().is_empty());
    assert!(checkpoint(&dir, cut(1, 2), Some(cut(1, 1)), 2, salt(1)).await);
    assert_eq!(dir.names().await.expect("listed"), [cut(1, 1), cut(1, 2)]);
}

#[tokio::test]
async fn nothing_is_read_from_initial_values() {
    let temp = tempfile::tempdir().expect("a directory");
    let storage: Arc<dyn Storage> = Arc::new(LocalStorage);
    let root = temp.path().join("ckpt").display().to_string();
    let dir = opened(&storage, &path(&root)).await;
    assert!(dir.write_claim(&claim_of(1, None)).await.expect("claimed"));
    dir.stage(cut(1, 1), salt(1)).await.expect("staged");
    dir.commit(initial(), salt(1), &|| Ok(())).await.expect("committed");
    let location = StorageUrl::parse(&format!("{root}/g1-c1")).expect("a location");
    let read = StoredCheckpoint::readable(&location).await.map(drop);
    let opened = StoredCheckpoint::manifest_at(&location).await.map(drop);
    for refused in [read, opened] {
        let error = refused.expect_err("it has no values");
        assert_eq!(error.class(), ErrorClass::Input);
        assert!(error.to_string().contains("nothing was trained"), "{error}");
    }
}
