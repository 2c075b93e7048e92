//! Foreign files stay unchanged, byte for byte; a directory that cannot be written is an error.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::*;
use crate::error::Reason;
use crate::local::LocalStorage;

fn local() -> (tempfile::TempDir, StorePath, Arc<dyn Storage>) {
    let temp = tempfile::tempdir().expect("a temporary directory");
    let root = path(temp.path().to_str().expect("UTF-8")).join("ckpt").expect("a name");
    (temp, root, Arc::new(LocalStorage))
}

#[tokio::test]
async fn a_directory_with_foreign_content_is_rejected_unchanged() {
    let (_temp, root, storage) = local();
    fs::create_dir(root.as_str()).expect("made");
    fs::write(format!("{root}/thesis.tex"), b"years").expect("written");
    let error = CheckpointDir::open_or_create(storage, root.clone()).await.expect_err("refused");
    let text = error.to_string();
    assert!(text.contains("not empty (it holds thesis.tex)"), "{text}");
    assert_eq!(fs::read_dir(root.as_str()).expect("listed").count(), 1);
}

#[tokio::test]
async fn an_empty_or_missing_directory_is_created_private() {
    let (_temp, root, storage) = local();
    opened(&storage, &root).await;
    let mode = fs::metadata(root.as_str()).expect("there").permissions().mode() & 0o7777;
    assert_eq!(mode, 0o700);
    opened(&storage, &root).await;
}

#[tokio::test]
async fn foreign_files_survive_all_calls() {
    let (_temp, root, storage) = local();
    let dir = opened(&storage, &root).await;
    assert!(dir.write_claim(&claim_of(1, None)).await.expect("claimed"));
    let foreign = [
        "notes.txt",
        "g1-c1.bak/file",
        "g1-c01/file",
        "g2-c1/file",
        "claims/readme",
        "claims/g01",
        "journal/notes/file",
        ".staging/mine/file",
        ".staging/g1/mine/file",
        ".staging/g1/c1-short/file",
        ".staging/g2/c1-00000000000000000000000000000001/file",
        "damaged/mine/file",
    ];
    for name in foreign {
        let file = format!("{root}/{name}");
        fs::create_dir_all(Path::new(&file).parent().expect("a parent")).expect("made");
        fs::write(&file, name).expect("written");
    }
    for number in 1..=5 {
        let parent = (number > 1).then(|| cut(1, number - 1));
        assert!(checkpoint(&dir, cut(1, number), parent, 2, salt(1)).await);
    }
    dir.remove(cut(1, 4)).await.expect_err("kept");
    dir.set_aside(cut(1, 4)).await.expect("set aside");
    for name in foreign {
        assert_eq!(fs::read_to_string(format!("{root}/{name}")).ok().as_deref(), Some(name));
    }
    // g2-c1 has the name of a checkpoint of a later generation: this owner may neither check nor delete it.
    assert_eq!(dir.names().await.expect("listed"), [cut(1, 5), cut(2, 1)]);
}

#[tokio::test]
async fn an_unwritable_directory_is_denied_with_its_path() {
    // Root may write everywhere, so permissions cannot be tested as root.
    if nix::unistd::geteuid().is_root() {
        let storage: Arc<dyn Storage> = Arc::new(LocalStorage);
        let error = CheckpointDir::open_or_create(storage, path("/proc/heddle"))
            .await
            .expect_err("refused");
        assert!(
            matches!(error, CheckpointError::Storage(_))
                && error.to_string().contains("/proc/heddle"),
            "{error}"
        );
        return;
    }
    let (temp, root, storage) = local();
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o500)).expect("changed");
    let error = CheckpointDir::open_or_create(storage, root).await.expect_err("refused");
    let CheckpointError::Storage(error) = error else { panic!("{error}") };
    assert_eq!(error.reason, Reason::Denied);
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o700)).expect("changed");
}

#[tokio::test]
async fn a_file_of_that_name_is_an_error_with_its_path() {
    let (_temp, root, storage) = local();
    fs::write(root.as_str(), b"x").expect("written");
    let error = CheckpointDir::open_or_create(storage, root).await.expect_err("refused");
    assert!(error.to_string().contains("not a directory"), "{error}");
}

#[tokio::test]
async fn a_directory_of_a_later_version_is_rejected_with_both() {
    let (_temp, root, storage) = local();
    opened(&storage, &root).await;
    fs::write(format!("{root}/HEDDLE"), br#"{"format_version": 9, "made_by": "heddle 9"}"#)
        .expect("written");
    let error =
        CheckpointDir::open_or_create(storage, root).await.expect_err("refused").to_string();
    assert!(error.ends_with("it has format version 9, this program reads up to 1"), "{error}");
}

#[tokio::test]
async fn opening_a_foreign_directory_for_reading_is_an_error() {
    let (temp, _, storage) = local();
    let root = path(temp.path().to_str().expect("UTF-8"));
    let error = CheckpointDir::open(storage, root).await.expect_err("refused");
    assert!(matches!(error, CheckpointError::NotOurs { .. }));
    assert_eq!(fs::read_dir(temp.path()).expect("listed").count(), 0);
}

#[tokio::test]
async fn md5sum_itself_checks_a_checkpoint() {
    let (_temp, root, storage) = local();
    let dir = opened(&storage, &root).await;
    assert!(checkpoint(&dir, cut(1, 1), None, 3, salt(1)).await);
    let script = "md5sum --strict -c *.md5 | grep -c ': OK'";
    let output = std::process::Command::new("sh")
        .args(["-c", script])
        .current_dir(format!("{root}/g1-c1"))
        .output()
        .expect("sh runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "4", "{output:?}");
}
