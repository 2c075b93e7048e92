//! Shard files written and read back, complete and damaged, on the local file system.

use bytes::Bytes;
use heddle_protocol::job_spec::CheckpointDigest;
use heddle_protocol::manifest::ShardFile;

use super::header::tests::header;
use super::{SaveError, ShardReader, ShardWriter};
use crate::checkpoint::{CheckpointError, Damage};
use crate::local::LocalStorage;
use crate::path::StorePath;
use crate::sidecar::SidecarError;
use crate::testing::MemoryStorage;

const ROWS: u64 = 300_000;

struct Place {
    dir: tempfile::TempDir,
    root: StorePath,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let root = StorePath::parse(dir.path().to_str().expect("UTF-8")).expect("absolute");
        Self { dir, root }
    }

    fn change(&self, file: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let path = self.dir.path().join(file);
        let mut content = std::fs::read(&path).expect("read");
        change(&mut content);
        std::fs::write(&path, content).expect("written");
    }
}

/// The bytes of the three sections, one after the other.
fn content() -> Vec<u8> {
    let values = (0..ROWS * 4).flat_map(|n| (n as f32).to_le_bytes());
    values.chain(*b"marks").collect()
}

async fn save(place: &Place, piece: usize) -> ShardFile {
    let mut writer =
        ShardWriter::create(&LocalStorage, &place.root, header(1, 2, ROWS)).await.expect("created");
    let mut rest = Bytes::from(content());
    while !rest.is_empty() {
        writer.write(rest.split_to(piece.min(rest.len()))).await.expect("written");
    }
    writer.finish(&LocalStorage).await.expect("durable")
}

async fn load(place: &Place, file: &ShardFile) -> Result<Vec<u8>, CheckpointError> {
    let identity = header(1, 2, ROWS).identity();
    let mut reader = ShardReader::open(&LocalStorage, &place.root, file, &identity).await?;
    let (mut all, mut sections) = (Vec::new(), vec![0; reader.header().sections.len()]);
    while let Some(piece) = reader.next().await? {
        assert_eq!(piece.offset, sections[piece.section], "a gap");
        sections[piece.section] += piece.data.len() as u64;
        all.extend_from_slice(&piece.data);
    }
    assert_eq!(reader.next().await?, None, "ended is ended");
    Ok(all)
}

async fn damage(place: &Place, file: &ShardFile) -> Damage {
    match load(place, file).await {
        Err(CheckpointError::Damaged { file: named, damage }) => {
            assert!(named.contains(&file.file), "{named} does not name the file");
            damage
        }
        other => panic!("expected damage, got {:?}", other.map(|all| all.len())),
    }
}

#[tokio::test]
async fn a_shard_reads_back_as_written_for_any_pieces() {
    for piece in [1 << 20, 999_983, 40_000_000] {
        let place = Place::new();
        let file = save(&place, piece).await;
        assert!(load(&place, &file).await.expect("loaded") == content());
    }
}

#[tokio::test]
async fn sections_lie_at_multiples_of_64_and_the_file_ends_at_one() {
    let place = Place::new();
    let file = save(&place, 1 << 20).await;
    let bytes = std::fs::read(place.dir.path().join(&file.file)).expect("read");
    assert_eq!(bytes.len() as u64, file.bytes);
    assert_eq!(bytes.len() % 64, 0);
    let marks = bytes.len() - 64;
    assert_eq!(&bytes[marks..marks + 5], b"marks");
    assert!(bytes[marks + 5..].iter().all(|byte| *byte == 0));
}

#[tokio::test]
async fn md5sum_itself_is_content_with_the_sidecar() {
    let place = Place::new();
    let file = save(&place, 1 << 20).await;
    let output = std::process::Command::new("md5sum")
        .args(["-c", "--strict", &format!("{}.md5", file.file)])
        .current_dir(place.dir.path())
        .output()
        .expect("md5sum runs");
    assert!(output.status.success(), "{output:?}");
}

#[tokio::test]
async fn every_damage_is_detected_and_reported() {
    let place = Place::new();
    let file = save(&place, 1 << 20).await;
    let sidecar = format!("{}.md5", file.file);
    let good = std::fs::read(place.dir.path().join(&file.file)).expect("read");
    let good_sidecar = std::fs::read(place.dir.path().join(&sidecar)).expect("read");
    let restore = || {
        place.change(&file.file, |bytes| bytes.clone_from(&good));
        std::fs::write(place.dir.path().join(&sidecar), &good_sidecar).expect("written");
    };

    place.change(&file.file, |bytes| bytes[good.len() / 2] ^= 1);
    assert!(matches!(damage(&place, &file).await, Damage::Sum { .. }));
    restore();

    // In the padding at the end, which belongs to no section.
    place.change(&file.file, |bytes| bytes[good.len() - 1] ^= 1);
    assert!(matches!(damage(&place, &file).await, Damage::Sum { .. }));
    restore();

    place.change(&file.file, |bytes| bytes.truncate(good.len() - 1));
    let cut = damage(&place, &file).await.to_string();
    assert_eq!(cut, format!("the file has {} bytes, expected {}", good.len() - 1, good.len()));
    restore();

    place.change(&file.file, |bytes| bytes[0] = b'X');
    assert!(matches!(damage(&place, &file).await, Damage::Format(_)));
    restore();

    for (change, want) in [
        (sidecar_with(&good_sidecar, |line| line.replace("shard-", "other-")), "Name"),
        (
            sidecar_with(&good_sidecar, |line| format!("{}{}", "0".repeat(32), &line[32..])),
            "Differs",
        ),
        (String::new(), "Form"),
        ("x".repeat(10_000), "Form"),
    ] {
        std::fs::write(place.dir.path().join(&sidecar), change).expect("written");
        let Damage::Sidecar(error) = damage(&place, &file).await else { panic!("expected {want}") };
        assert!(format!("{error:?}").starts_with(want), "{error:?}");
    }
    std::fs::remove_file(place.dir.path().join(&sidecar)).expect("removed");
    assert!(matches!(damage(&place, &file).await, Damage::Sidecar(SidecarError::Missing)));
    restore();

    assert!(load(&place, &file).await.is_ok(), "nothing else was changed");
    std::fs::remove_file(place.dir.path().join(&file.file)).expect("removed");
    assert!(matches!(damage(&place, &file).await, Damage::Missing));
}

fn sidecar_with(line: &[u8], change: impl Fn(&str) -> String) -> String {
    change(std::str::from_utf8(line).expect("ASCII"))
}

#[tokio::test]
async fn a_newer_file_is_rejected_with_both_versions() {
    let place = Place::new();
    let file = save(&place, 1 << 20).await;
    place.change(&file.file, |bytes| bytes[8] = 2);
    let error = load(&place, &file).await.expect_err("refused");
    assert!(!error.is_damage());
    assert!(
        error.to_string().ends_with("it has format version 2, this program reads up to 1"),
        "{error}"
    );
}

#[tokio::test]
async fn a_writer_accepts_exactly_the_bytes_of_the_header() {
    let place = Place::new();
    let mut writer =
        ShardWriter::create(&LocalStorage, &place.root, header(0, 2, 4)).await.expect("created");
    writer.write(Bytes::from(vec![0; 64])).await.expect("written");
    let short = writer.finish(&LocalStorage).await.expect_err("short");
    assert!(matches!(short, SaveError::Amount { expected: 5, given: 0, .. }), "{short}");

    let mut writer =
        ShardWriter::create(&LocalStorage, &place.root, header(0, 2, 4)).await.expect("created");
    let long = writer.write(Bytes::from(vec![0; 70])).await.expect_err("long");
    assert!(matches!(long, SaveError::Amount { given: 1, .. }), "{long}");
}

#[tokio::test]
async fn a_shard_without_rows_is_a_valid_file() {
    let place = Place::new();
    let mut header = header(0, 2, 0);
    header.sections[2].count = 0;
    let writer = ShardWriter::create(&LocalStorage, &place.root, header).await.expect("created");
    let file = writer.finish(&LocalStorage).await.expect("durable");
    assert_eq!(load(&place, &file).await.expect("loaded"), b"");
}

/// HDFS counts a whole block of each copy while a file is written, and blocks are as large as files.
#[tokio::test]
async fn a_probe_is_refused_where_its_file_would_be() {
    let full = save(&Place::new(), 1 << 20).await.bytes;
    for (quota, fits) in [(full, true), (full - 1, false)] {
        let storage = MemoryStorage::new().with_quota(quota);
        let (dir, digest) = (StorePath::root(), CheckpointDigest::Md5);
        let header = header(1, 2, ROWS);
        let probe = ShardWriter::create_probe(&storage, &dir, header.clone(), digest).await;
        match probe {
            Ok(writer) => {
                let file = writer.finish(&storage).await.expect("durable");
                assert!(fits && file.bytes < 1000, "{} bytes, without values", file.bytes);
            }
            Err(error) => assert!(!fits && error.to_string().contains("quota"), "{error}"),
        }
        let file = ShardWriter::create_with(&storage, &dir, header, digest).await;
        assert_eq!(file.is_ok(), fits);
    }
}
