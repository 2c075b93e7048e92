//! Files on a real HDFS: what Hadoop's own tools wrote and we read, the other way round, and every promise that
//! storages keep.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use heddle_storage::{
    EntryKind, Mode, OfVersion, Reason, Storage, StorePath, WriteError, find_files, make_dirs,
    probe, publish_small,
};
use heddle_tests::hadoop::{Cluster, Daemon, Options, Shared, wait_until};

/// Block size of this file's tests: the smallest round one that real sites may have, so that several are quick.
const BLOCK: usize = 1 << 20;

/// One cluster for all tests of this file.
fn cluster() -> Result<&'static Cluster> {
    static CLUSTER: Shared = Shared::new();
    CLUSTER.get(Options::hdfs)
}

/// A directory of a test's own, and alice's way to it.
struct Place {
    storage: Arc<dyn Storage>,
    root: StorePath,
}

impl Place {
    async fn new(name: &str) -> Result<Self> {
        let storage = cluster()?.storage_with("alice", &[("dfs.blocksize", &BLOCK.to_string())])?;
        let root = StorePath::parse(&format!("/user/alice/{name}"))?;
        make_dirs(&*storage, &root, Mode::DIR).await?;
        Ok(Self { storage, root })
    }

    fn at(&self, name: &str) -> Result<StorePath> {
        let mut path = self.root.clone();
        for name in name.split('/') {
            path = path.join(name)?;
        }
        Ok(path)
    }

    async fn put(&self, name: &str, data: &[u8]) -> Result<(), WriteError> {
        let path = self.at(name).expect("plain names");
        let mut writer = self.storage.create(&path, Mode::FILE).await?;
        for piece in data.chunks(300_001) {
            writer.write(Bytes::copy_from_slice(piece)).await?;
        }
        writer.sync().await?;
        writer.close().await
    }

    async fn get(&self, name: &str, offset: u64) -> Result<Vec<u8>> {
        let mut reader = self.storage.open(&self.at(name)?, offset).await?;
        let mut all = Vec::new();
        while let Some(chunk) = reader.next().await? {
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8).collect()
}

#[tokio::test]
async fn hadoop_reads_what_we_wrote_and_we_read_what_it_wrote() -> Result<()> {
    const LENGTHS: [usize; 6] = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 77];
    let cluster = cluster()?;
    let ours = Place::new("ours").await?;
    let theirs = Place::new("theirs").await?;
    let local = tempfile::tempdir()?;
    for name in ["put", "got"] {
        fs::create_dir(local.path().join(name))?;
    }
    let mut puts = Vec::new();
    for len in LENGTHS {
        ours.put(&len.to_string(), &bytes(len)).await?;
        let file = local.path().join(format!("put/{len}"));
        fs::write(&file, bytes(len))?;
        puts.push(file.display().to_string());
    }
    let all = |place: &Place| LENGTHS.map(|len| format!("{}/{len}", place.root));
    let run = |arguments: &[&str], more: &[String], last: &str| {
        let more = more.iter().map(String::as_str);
        let arguments: Vec<&str> = arguments.iter().copied().chain(more).collect();
        let last = (!last.is_empty()).then_some(last);
        cluster.dfs("alice", &arguments.into_iter().chain(last).collect::<Vec<_>>())
    };
    let block = format!("dfs.blocksize={BLOCK}");
    run(&["-D", &block, "-put"], &puts, theirs.root.as_str())?;

    ensure!(
        run(&["-cat"], &all(&ours), "")? == LENGTHS.map(bytes).concat(),
        "-cat prints what we wrote"
    );
    let got = local.path().join("got");
    run(&["-get"], &all(&ours), &got.to_string_lossy())?;
    for len in LENGTHS {
        let name = len.to_string();
        ensure!(fs::read(got.join(&name))? == bytes(len), "-get of {len} bytes");
        let status = theirs.storage.stat(&theirs.at(&name)?).await?;
        ensure!(status.bytes == len as u64 && status.kind == EntryKind::File, "{status:?}");
        ensure!(theirs.get(&name, 0).await? == bytes(len), "we read {len} bytes of -put");
        let from = len / 3;
        ensure!(theirs.get(&name, from as u64).await? == bytes(len)[from..]);
    }
    // The sum that Hadoop makes of a file's blocks: the same for both, so HDFS's own sums are what a Java client
    // would have written too.
    let sums = run(&["-checksum"], &[all(&ours), all(&theirs)].concat(), "")?;
    let sums = String::from_utf8(sums)?;
    let sums: Vec<&str> = sums
        .lines()
        .map(|line| line.split_once('\t').map(|(_, sum)| sum))
        .collect::<Option<_>>()
        .context("lines of path, tab, sum")?;
    ensure!(sums.len() == 2 * LENGTHS.len(), "{sums:?}");
    ensure!(sums[..LENGTHS.len()] == sums[LENGTHS.len()..], "{sums:#?}");
    ensure!(sums[1].contains("CRC32C"), "{sums:#?}");
    Ok(())
}

#[tokio::test]
async fn the_store_passes_the_probe() -> Result<()> {
    let place = Place::new("probe").await?;
    probe(&*place.storage, &place.at("scratch")?).await?;
    Ok(())
}

#[tokio::test]
async fn files_of_any_length_read_back_as_written() -> Result<()> {
    let place = Place::new("lengths").await?;
    for len in [0, 1, 511, 512, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 77] {
        let (name, data) = (len.to_string(), bytes(len));
        let path = place.at(&name)?;
        place.put(&name, &data).await?;
        ensure!(place.storage.stat(&path).await?.bytes == len as u64);
        ensure!(place.get(&name, 0).await? == data, "{len} bytes");
        let from = len / 3;
        ensure!(place.get(&name, from as u64).await? == data[from..], "{len} bytes from {from}");
        ensure!(place.get(&name, len as u64 + 10).await?.is_empty(), "beyond the end of {len}");
        let some = place.storage.read_range(&path, from as u64, len / 2).await?;
        ensure!(some == data[from..from + len / 2]);
        let error = place.storage.read_range(&path, from as u64, len).await;
        ensure!(
            len < 3 || matches!(error, Err(error) if matches!(error.reason, Reason::Short { .. })),
            "a range beyond the end of {len}"
        );
    }
    Ok(())
}

/// The reason of a call that was not done.
fn not_done(result: Result<(), WriteError>) -> Result<Reason> {
    match result {
        Err(WriteError::NotDone(error)) => Ok(error.reason),
        other => bail!("{other:?}"),
    }
}

#[tokio::test]
async fn reasons_are_distinguished() -> Result<()> {
    let place = Place::new("reasons").await?;
    let storage = &place.storage;
    place.put("file", b"one").await?;
    storage.mkdir(&place.at("dir")?, Mode::DIR).await?;
    let (file, dir, none) = (place.at("file")?, place.at("dir")?, place.at("none")?);
    let orphan = place.at("none/child")?;

    ensure!(not_done(place.put("file", b"two").await)? == Reason::Exists);
    ensure!(not_done(place.put("dir", b"two").await)? == Reason::Exists);
    ensure!(not_done(place.put("none/child", b"x").await)? == Reason::NotFound);
    ensure!(not_done(storage.mkdir(&file, Mode::DIR).await)? == Reason::Exists);
    ensure!(not_done(storage.mkdir(&orphan, Mode::DIR).await)? == Reason::NotFound);
    ensure!(not_done(storage.rename(&none, &place.at("x")?).await)? == Reason::NotFound);
    ensure!(not_done(storage.rename(&file, &orphan).await)? == Reason::NotFound);
    ensure!(not_done(storage.rename(&file, &dir).await)? == Reason::Exists);
    ensure!(not_done(storage.delete_file(&none).await)? == Reason::NotFound);
    ensure!(not_done(storage.delete_file(&dir).await)? == Reason::IsADirectory);
    ensure!(not_done(storage.delete_dir(&file).await)? == Reason::NotADirectory);

    let reason = |error: heddle_storage::StorageError| error.reason;
    ensure!(storage.stat(&none).await.map_err(reason) == Err(Reason::NotFound));
    ensure!(storage.list(&none).await.map_err(reason) == Err(Reason::NotFound));
    ensure!(storage.list(&file).await.map_err(reason) == Err(Reason::NotADirectory));
    let opened = storage.open(&none, 0).await.map(drop).map_err(reason);
    ensure!(opened == Err(Reason::NotFound), "{opened:?}");
    let opened = storage.open(&dir, 0).await.map(drop);
    ensure!(opened.as_ref().is_err_and(|error| !error.is_retryable()), "{opened:?}");
    Ok(())
}

#[tokio::test]
async fn files_are_private_to_their_owner() -> Result<()> {
    let place = Place::new("private").await?;
    place.put("secret", b"x").await?;
    let listed = cluster()?.dfs("alice", &["-ls", place.root.as_str()])?;
    let listed = String::from_utf8(listed)?;
    ensure!(listed.contains("-rw------- "), "{listed}");
    let mallory = cluster()?.storage("mallory")?;
    let path = place.at("secret")?;
    let reason = |error: heddle_storage::StorageError| error.reason;
    ensure!(mallory.stat(&path).await.map_err(reason) == Err(Reason::Denied));
    let opened = mallory.open(&path, 0).await.map(drop).map_err(reason);
    ensure!(opened == Err(Reason::Denied), "{opened:?}");
    let created = mallory.create(&place.at("theirs")?, Mode::FILE).await;
    ensure!(not_done(created.map(drop))? == Reason::Denied);
    ensure!(not_done(mallory.rename(&path, &place.at("x")?).await)? == Reason::Denied);
    Ok(())
}

#[tokio::test]
async fn file_that_another_client_writes_is_taken_over() -> Result<()> {
    let place = Place::new("lease").await?;
    let other = cluster()?.storage("alice")?;
    let path = place.at("open")?;
    let mut writer = other.create(&path, Mode::FILE).await?;
    writer.write(Bytes::from(bytes(100_000))).await?;
    writer.sync().await?;

    ensure!(not_done(place.put("open", b"mine").await)? == Reason::Exists);
    place.storage.rename(&path, &place.at("moved")?).await?;
    place.storage.delete_file(&place.at("moved")?).await?;
    // The writer that held the lease learns of it at the latest when it closes.
    let closed = match writer.write(Bytes::from(bytes(100_000))).await {
        Ok(()) => writer.close().await,
        Err(error) => Err(error),
    };
    ensure!(closed.is_err(), "its file is gone");
    // Not under the same name: a writer that failed deletes what has its path, whatever its origin. Names of files that
    // two processes might make hold a salt for that reason.
    place.put("next", b"mine").await?;
    ensure!(place.get("next", 0).await? == b"mine");
    Ok(())
}

#[tokio::test]
async fn a_dropped_writer_leaves_no_open_file() -> Result<()> {
    let place = Place::new("dropped").await?;
    let mut writer = place.storage.create(&place.at("torn")?, Mode::FILE).await?;
    writer.write(Bytes::from(bytes(100_000))).await?;
    drop(writer);
    // Deleted in the background: the next creation under this name succeeds in the end.
    let mut tries = 0;
    while let Err(error) = place.put("torn", b"new").await {
        ensure!(error.error().is_exists() && tries < 500, "{error}");
        tries += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    ensure!(place.get("torn", 0).await? == b"new");
    Ok(())
}

#[tokio::test]
async fn patterns_and_small_files_work_as_they_do_locally() -> Result<()> {
    let place = Place::new("patterns").await?;
    let storage = &*place.storage;
    for name in ["b.svm", "a.svm", "c.txt", "_SUCCESS", "d.svm._COPYING_"] {
        publish_small(storage, &place.at(name)?, Bytes::from_static(b"x")).await?;
    }
    let again = publish_small(storage, &place.at("a.svm")?, Bytes::from_static(b"y")).await;
    ensure!(again.is_err_and(|error| error.error().is_exists()));
    let found = find_files(storage, &place.at("*.svm*")?).await?;
    let names: Vec<_> = found.files.iter().map(|entry| entry.name()).collect();
    ensure!(names == ["a.svm", "b.svm"], "{names:?}");
    storage.mkdir(&place.at("below")?, Mode::DIR).await?;
    let found = find_files(storage, &place.root).await?;
    ensure!(found.files.len() == 3 && found.folders == [place.at("below")?], "{found:?}");
    Ok(())
}

#[tokio::test]
async fn a_file_is_replaced_completely() -> Result<()> {
    let place = Place::new("replace").await?;
    let storage = &*place.storage;
    place.put("model", b"the old one").await?;
    for (draft, target) in [("draft", "model"), ("other-draft", "other")] {
        place.put(draft, b"new").await?;
        storage.replace(&place.at(draft)?, &place.at(target)?).await?;
        ensure!(place.get(target, 0).await? == b"new", "{target}");
        let gone = storage.stat(&place.at(draft)?).await;
        ensure!(gone.is_err_and(|error| error.is_not_found()), "{draft}");
    }
    storage.mkdir(&place.at("dir")?, Mode::DIR).await?;
    let onto_a_directory = storage.replace(&place.at("other")?, &place.at("dir")?).await;
    ensure!(onto_a_directory.is_err(), "a directory was replaced");
    let missing = storage.replace(&place.at("none")?, &place.at("other")?).await;
    ensure!(missing.is_err_and(|error| error.error().is_not_found()));
    ensure!(place.get("other", 0).await? == b"new");
    Ok(())
}

/// Of many files, which are opened by their inodes, also where a snapshot keeps the inode of a file that was replaced.
#[tokio::test]
async fn replaced_file_of_the_same_length_is_another_version() -> Result<()> {
    for name in ["versions", "snapshots"] {
        let (cluster, place) = (cluster()?, Place::new(name).await?);
        let storage = &*place.storage;
        let names: Vec<_> = (0..16).map(|n| format!("data/{n}")).collect();
        let data = place.at("data")?;
        storage.mkdir(&data, Mode::DIR).await?;
        for name in &names {
            place.put(name, b"old").await?;
        }
        if name == "snapshots" {
            cluster.webhdfs("PUT", place.root.as_str(), "ALLOWSNAPSHOT")?;
            cluster.webhdfs("PUT", place.root.as_str(), "CREATESNAPSHOT")?;
        }
        let entries = storage.list(&data).await?;
        let (before, after) = entries.split_at(8);
        for entry in before {
            let found = storage.read_version(&entry.path, entry.version(), 0, 3).await?;
            let is_it = matches!(found, OfVersion::Same(bytes) if &bytes[..] == b"old");
            ensure!(is_it, "{name}: {}", entry.path);
        }
        for entry in after {
            place.put("draft", b"new").await?;
            storage.replace(&place.at("draft")?, &entry.path).await?;
            let found = storage.read_version(&entry.path, entry.version(), 0, 3).await?;
            let is_another = matches!(found, OfVersion::Changed { bytes: 3 });
            ensure!(is_another, "{name}: {} {found:?}", entry.path);
        }
    }
    Ok(())
}

#[tokio::test]
async fn blocks_are_named_by_the_hosts_that_nodemanagers_have() -> Result<()> {
    let (cluster, place) = (cluster()?, Place::new("hosts").await?);
    place.put("file", b"x").await?;
    let path = place.at("file")?;
    // A file is complete with its first copy; the others are reported to the NameNode a little later.
    wait_until("three copies", Duration::from_secs(10), || {
        let reply = cluster.webhdfs("GET", path.as_str(), "GET_BLOCK_LOCATIONS")?;
        for n in 1..=3 {
            let host = cluster.host(Daemon::NodeManager(n));
            ensure!(reply.contains(&format!("\"{host}\"")), "{host} in {reply}");
        }
        Ok(())
    })
}
