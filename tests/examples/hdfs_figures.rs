//! Measures shards of checkpoints on HDFS beside Hadoop's own shell, with the same bytes on the same cluster, and a
//! whole checkpoint of a job: the figures of docs/performance.md.
//!
//! ```text
//! cargo build --release -p heddle-cli
//! cargo run --release -p heddle-tests --example hdfs_figures
//! ```
//!
//! 1 GiB as one file and as eight. Ours goes from a local file into a shard's file with its MD5 and sidecar, hsynced,
//! and back into a local file with the check; Java's is `-put` and `-get`, which make no MD5 and do not sync. Local
//! files are in memory (`/dev/shm`) on both sides. In turn, `HEDDLE_ROUNDS` times (default 3) after one that does not
//! count. One DataNode, one copy: on one machine more copies measure DataNodes only.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use heddle_protocol::manifest::ShardFile;
use heddle_protocol::view::JobEvent;
use heddle_storage::shard_file::{ShardReader, ShardWriter};
use heddle_storage::{Mode, Storage, StorePath, make_dirs};
use heddle_tests::checkpoints::{Shape, cut, header};
use heddle_tests::hadoop::{Cluster, Options};
use heddle_tests::local::Run;
use tokio::task::JoinSet;

const TOTAL: usize = 1 << 30;
const PIECE: usize = 2 << 20;
const CHECKPOINT_LIMIT: Duration = Duration::from_secs(300);

/// Seconds of each round, by what was done.
type Times = BTreeMap<String, Vec<f64>>;

fn main() -> Result<()> {
    let rounds = std::env::var("HEDDLE_ROUNDS").ok().and_then(|text| text.parse().ok());
    let rounds: usize = rounds.unwrap_or(3);
    let cluster = Cluster::start(Options { datanodes: 1, ..Options::hdfs() })?;
    let local = tempfile::tempdir_in("/dev/shm")?;
    let mut times = Times::new();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    for files in [1, 8] {
        let sources = sources(local.path(), files)?;
        for round in 0..=rounds {
            let ours = runtime.block_on(ours(&cluster, local.path(), &sources))?;
            let java = java(&cluster, local.path(), &sources)?;
            for (what, seconds) in ours.into_iter().chain(java) {
                eprintln!("{round} {files} {what} {seconds:.2} s");
                if round > 0 {
                    times.entry(format!("{files} {what}")).or_default().push(seconds);
                }
            }
        }
        for source in sources {
            fs::remove_file(source)?;
        }
    }
    for round in 0..=rounds {
        let seconds = checkpoint(&cluster, round)?;
        eprintln!("{round} checkpoint {seconds:.2} s");
        if round > 0 {
            times.entry("checkpoint of 1 GB".to_owned()).or_default().push(seconds);
        }
    }
    println!("| what | s, median of {rounds} (range) |\n| --- | --- |");
    for (what, seconds) in &mut times {
        seconds.sort_by(f64::total_cmp);
        let (first, last) = (seconds[0], seconds[seconds.len() - 1]);
        let median = seconds[seconds.len() / 2];
        println!("| {what} | {median:.2} ({first:.2}–{last:.2}) |");
    }
    Ok(())
}

/// Files of [`TOTAL`] bytes together.
fn sources(local: &Path, files: usize) -> Result<Vec<PathBuf>> {
    let piece: Vec<u8> = (0..PIECE).map(|n| (n ^ (n >> 8) ^ (n >> 13)) as u8).collect();
    (0..files)
        .map(|number| {
            let path = local.join(format!("source-{files}-{number}"));
            let mut file = File::create(&path)?;
            for _ in 0..TOTAL / files / PIECE {
                file.write_all(&piece)?;
            }
            Ok(path)
        })
        .collect()
}

/// Writes the files as shards, all at once, and reads them back the same way.
async fn ours(
    cluster: &Cluster,
    local: &Path,
    sources: &[PathBuf],
) -> Result<Vec<(&'static str, f64)>> {
    let storage: Arc<dyn Storage> = cluster.storage("alice")?;
    let dir = StorePath::parse("/user/alice/ours")?;
    make_dirs(&*storage, &dir, Mode::DIR).await?;
    let shape = Shape { shards: u32::try_from(sources.len())?, bytes: TOTAL / sources.len() };
    let begin = Instant::now();
    let mut writing = JoinSet::new();
    for (shard, source) in (0..).zip(sources) {
        let (storage, dir, source) = (Arc::clone(&storage), dir.clone(), source.clone());
        writing.spawn(async move {
            let header = header(cut(1, 1), shard, shape);
            let mut writer = ShardWriter::create(&*storage, &dir, header).await?;
            let mut file = File::open(source)?;
            for _ in 0..shape.bytes / PIECE {
                let mut piece = Vec::with_capacity(PIECE);
                (&mut file).take(PIECE as u64).read_to_end(&mut piece)?;
                writer.write(Bytes::from(piece)).await?;
            }
            anyhow::Ok(writer.finish(&*storage).await?)
        });
    }
    let mut shards: Vec<ShardFile> = Vec::new();
    while let Some(shard) = writing.join_next().await {
        shards.push(shard??);
    }
    let wrote = begin.elapsed().as_secs_f64();

    let begin = Instant::now();
    let mut reading = JoinSet::new();
    for shard in shards {
        let (storage, dir) = (Arc::clone(&storage), dir.clone());
        let path = local.join(format!("got-{}", shard.shard.0));
        reading.spawn(async move {
            let mut file = File::create(&path)?;
            let identity = header(cut(1, 1), 0, shape).identity();
            let mut reader = ShardReader::open(&*storage, &dir, &shard, &identity).await?;
            while let Some(piece) = reader.next().await? {
                file.write_all(&piece.data)?;
            }
            anyhow::Ok(path)
        });
    }
    let mut got = Vec::new();
    while let Some(path) = reading.join_next().await {
        got.push(path??);
    }
    let read = begin.elapsed().as_secs_f64();
    for path in got {
        ensure!(path.metadata()?.len() == shape.bytes as u64, "{}", path.display());
        fs::remove_file(path)?;
    }
    storage.delete_dir(&dir).await?;
    Ok(vec![("ours, write", wrote), ("ours, read", read)])
}

/// The same by `hdfs dfs`, with as many threads as files; and what a call costs that does nothing.
fn java(cluster: &Cluster, local: &Path, sources: &[PathBuf]) -> Result<Vec<(&'static str, f64)>> {
    let timed = |arguments: &[&str]| {
        let mut command = cluster.java("org.apache.hadoop.fs.FsShell");
        command
            .args(arguments)
            .env("HADOOP_USER_NAME", "alice")
            // The test cluster's JVMs are small and quick to start; this one is to be fast.
            .env("_JAVA_OPTIONS", "-Xmx1g -XX:TieredStopAtLevel=4");
        let begin = Instant::now();
        let output = command.output()?;
        let seconds = begin.elapsed().as_secs_f64();
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(seconds)
    };
    let start = timed(&["-mkdir", "-p", "/user/alice/java"])?;
    let threads = sources.len().to_string();
    let names: Vec<String> = sources.iter().map(|path| path.display().to_string()).collect();
    let mut put = vec!["-put", "-t", &threads];
    put.extend(names.iter().map(String::as_str));
    put.push("/user/alice/java");
    let wrote = timed(&put)?;

    let to = local.join("java");
    fs::create_dir(&to)?;
    let target = to.display().to_string();
    let remote: Vec<String> = sources
        .iter()
        .filter_map(|path| path.file_name())
        .map(|name| format!("/user/alice/java/{}", name.to_string_lossy()))
        .collect();
    let mut get = vec!["-get", "-t", &threads];
    get.extend(remote.iter().map(String::as_str));
    get.push(&target);
    let read = timed(&get)?;
    ensure!(fs::read_dir(&to)?.count() == sources.len(), "all came");
    fs::remove_dir_all(to)?;
    cluster.webhdfs("DELETE", "/user/alice/java", "DELETE&recursive=true")?;
    Ok(vec![("java, start", start), ("java, -put", wrote), ("java, -get", read)])
}

/// The first checkpoint with files of a job with 250 million f32 parameters, from the order to the commit, in seconds.
fn checkpoint(cluster: &Cluster, round: usize) -> Result<f64> {
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("train.libsvm"), "1 1:1 7:0.5\n0 2:1 9:2\n".repeat(64))?;
    let place = format!("hdfs:///user/alice/job-{round}");
    let text = format!(
        "name = \"figures\"\n\
         [data]\ntrain = \"train.libsvm\"\npasses = 1\n\
         [model]\nalgorithm = \"logistic-regression\"\nfeatures = 250000000\noptimizer = {{ kind = \"sgd\", rate = 0.1 }}\n\
         [training]\nlanes = 1\nbatch = 8\n\
         [pservers]\ncount = 2\nshards = 8\nmemory = \"3GiB\"\n\
         [trainers]\nmin = 1\nmax = 1\nmemory = \"3GiB\"\n\
         [checkpoint]\ndir = \"{place}/ckpt\"\nevery = \"1 pass\"\n\
         [output]\nmodel = \"{place}/model\"\n"
    );
    fs::write(dir.path().join("job.toml"), text)?;
    let conf = cluster.conf_dir().display().to_string();
    let variables = [("HADOOP_CONF_DIR", conf.as_str()), ("HADOOP_USER_NAME", "alice")];
    let run = Run::start_with(dir.path(), "job.toml", &[], &variables)?;
    let taken = run.wait_event("a checkpoint", CHECKPOINT_LIMIT, |event| match event {
        JobEvent::CheckpointCommitted(taken) if taken.bytes > 0 => Some(taken.clone()),
        _ => None,
    })?;
    drop(run);
    ensure!(taken.bytes >= 1_000_000_000, "{taken:?}");
    let parent = format!("/user/alice/job-{round}");
    cluster.webhdfs("DELETE", &parent, "DELETE&recursive=true").context("remove the checkpoint")?;
    Ok(taken.took_ms as f64 / 1e3)
}
