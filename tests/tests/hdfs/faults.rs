//! What may happen to HDFS, or to its users, in the middle of checkpoints. Whatever it is: training goes on, nothing
//! committed checkpoint is lost or partial, delays are reported, and errors have their documented exit codes.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use heddle_protocol::ids::Slot;
use heddle_protocol::view::{JobEvent, JobView};
use heddle_storage::{Mode, Storage, StorePath, WriteError};
use heddle_tests::checkpoints::{content, cut};
use heddle_tests::hadoop::{Cluster, Daemon, Options, wait_until};
use heddle_tests::hdfs_job::{HdfsJob, Shape, ends_well, sums};
use heddle_tests::local::{Run, kill9, pid_of};
use heddle_tests::logs;
use nix::sys::signal::{Signal, kill};

/// Longest wait for one thing; other builds may keep all cores busy.
const LIMIT: Duration = Duration::from_secs(300);
/// How long all DataNodes are away.
const OUTAGE: Duration = Duration::from_secs(20);
const DATANODES: [Daemon; 3] = [Daemon::DataNode(1), Daemon::DataNode(2), Daemon::DataNode(3)];

/// The one cluster of this file, for one test at a time and in health.
fn cluster() -> Result<MutexGuard<'static, Cluster>> {
    static CLUSTER: OnceLock<Result<Mutex<Cluster>, String>> = OnceLock::new();
    let cluster = CLUSTER
        .get_or_init(|| {
            // Keys of encryption zones, in a file of the cluster's.
            let keys = (
                "core-site.xml".to_owned(),
                "hadoop.security.key.provider.path".to_owned(),
                "jceks://file@DIR@/keys.jceks".to_owned(),
            );
            let options = Options { properties: vec![keys], ..Options::hdfs() };
            Cluster::start(options).map(Mutex::new).map_err(|error| format!("{error:#}"))
        })
        .as_ref()
        .map_err(|error| anyhow::anyhow!(error.clone()))?;
    let cluster = cluster.lock().unwrap_or_else(PoisonError::into_inner);
    for daemon in [Daemon::NameNode(1)].into_iter().chain(DATANODES) {
        if cluster.pid(daemon).is_none() {
            cluster.restart(daemon)?;
        }
    }
    for n in 1..=3 {
        cluster.wait_datanode(n)?;
    }
    cluster.wait_ready()?;
    Ok(cluster)
}

/// Waits until `more` checkpoints were committed from now on; the view then.
fn checkpoints(run: &mut Run, more: u32) -> Result<JobView> {
    let before = run.view().map_or(0, |view| view.checkpoints_taken);
    run.wait_for("more checkpoints", LIMIT, |view| view.checkpoints_taken >= before + more)
}

/// Waits until a checkpoint's first file is there, and no later file of it is known to be.
fn in_a_checkpoint(job: &HdfsJob<'_>) -> Result<String> {
    let staging = "ckpt/.staging";
    let started = job.committed()?.last().cloned().unwrap_or_default();
    wait_until("a checkpoint begins", LIMIT, || {
        for generation in job.names(staging)? {
            for cut in job.names(&format!("{staging}/{generation}"))? {
                let files = job.names(&format!("{staging}/{generation}/{cut}"))?;
                let whole = files.iter().any(|file| file.starts_with("MANIFEST"));
                if !files.is_empty() && !whole {
                    return Ok(cut);
                }
            }
        }
        bail!("none after {started}")
    })
}

/// Waits until more rows were computed, without a recovery and without a checkpoint.
fn trains_on(run: &mut Run) -> Result<JobView> {
    let before = run.view()?;
    let after = run.wait_for("more rows", LIMIT, |view| view.rows >= before.rows + 200)?;
    ensure!(after.recoveries.len() == before.recoveries.len(), "{after:#?}");
    Ok(after)
}

fn given_up(event: &JobEvent) -> Option<&str> {
    match event {
        JobEvent::CheckpointGivenUp { reason, .. } => Some(reason),
        _ => None,
    }
}

fn warnings(run: &Run) -> Vec<String> {
    run.events()
        .iter()
        .filter_map(|event| match event {
            JobEvent::Warning { text, .. } => Some(text.clone()),
            JobEvent::CheckpointGivenUp { cut, reason } => Some(format!("{cut}: {reason}")),
            _ => None,
        })
        .collect()
}

#[test]
#[ignore = "nightly: a minute of outages"]
fn daemons_and_writers_die_in_checkpoints_and_the_job_trains_on() -> Result<()> {
    let cluster = cluster()?;
    let shape = Shape { local_data: true, ..Shape::passes(60) };
    let job = HdfsJob::new(&cluster, "daemons", shape)?;
    let mut run = job.start(&[], "step-computed=sleep(30)")?;
    checkpoints(&mut run, 2)?;

    // A DataNode, for as long as it takes: two are enough for the next checkpoint.
    in_a_checkpoint(&job)?;
    cluster.kill(DATANODES[0])?;
    trains_on(&mut run)?;
    checkpoints(&mut run, 1)?;
    cluster.restart(DATANODES[0])?;
    cluster.wait_datanode(1)?;

    // All of them, for 20 s.
    in_a_checkpoint(&job)?;
    for datanode in DATANODES {
        cluster.kill(datanode)?;
    }
    let before = trains_on(&mut run)?;
    sleep(OUTAGE);
    let after = trains_on(&mut run)?;
    ensure!(after.checkpoints_taken == before.checkpoints_taken, "where to?");
    for datanode in DATANODES {
        cluster.restart(datanode)?;
    }
    checkpoints(&mut run, 2)?;

    // The NameNode.
    in_a_checkpoint(&job)?;
    cluster.kill(Daemon::NameNode(1))?;
    trains_on(&mut run)?;
    cluster.restart(Daemon::NameNode(1))?;
    checkpoints(&mut run, 2)?;

    // The process that writes.
    in_a_checkpoint(&job)?;
    let view = run.view()?;
    kill9(pid_of(&view, Slot::pserver(1))?)?;
    let after = checkpoints(&mut run, 2)?;
    ensure!(after.recoveries.len() == view.recoveries.len() + 1, "{after:#?}");

    // A stop takes a last checkpoint, and the next run ends with the bytes of one that saw none of this.
    kill(run.pid(), Signal::SIGINT)?;
    let (code, events, _) = run.finish(LIMIT)?;
    ensure!(code == Some(130), "{code:?}");
    let Some(JobEvent::Ended { view, .. }) = events.last() else {
        bail!("{events:?}");
    };
    let given_up: Vec<&str> = events.iter().filter_map(given_up).collect();
    ensure!(
        view.history.checkpoints_given_up_total == given_up.len() as u64,
        "{:#?} and {given_up:#?}",
        view.history
    );
    let slow = events.iter().any(|event| match event {
        JobEvent::CheckpointCommitted(taken) => taken.took_ms >= OUTAGE.as_millis() as u64,
        _ => false,
    });
    ensure!(
        slow || given_up.iter().any(|reason| reason.contains("could not be saved")),
        "the outage neither delayed a checkpoint nor ended one: {events:#?}"
    );
    let kept = job.verify()?;
    let run = job.start(&[], "")?;
    let events = ends_well(run, LIMIT)?;
    let from = events.iter().find_map(|event| match event {
        JobEvent::Started { resumed_from, .. } => *resumed_from,
        _ => None,
    });
    let from = from.context("it continues")?.to_string();
    ensure!(kept.last() == Some(&from), "from {from}, and there were {kept:?}");
    job.verify()?;
    job.same_as_local(shape)?;
    Ok(())
}

#[test]
fn a_job_on_hdfs_survives_an_outage_of_all_datanodes() -> Result<()> {
    let cluster = cluster()?;
    let shape = Shape::passes(20);
    let job = HdfsJob::new(&cluster, "data", shape)?;
    let run = job.start(&[], "step-computed=sleep(10)")?;
    let mut run = run.expecting(&["task_not_read"]).expecting(logs::OUTAGE);
    checkpoints(&mut run, 1)?;
    for datanode in DATANODES {
        cluster.kill(datanode)?;
    }
    sleep(Duration::from_secs(10));
    for datanode in DATANODES {
        cluster.restart(datanode)?;
    }
    ends_well(run, LIMIT)?;
    job.verify()?;
    job.same_as_local(shape)?;
    Ok(())
}

#[test]
fn the_next_run_resolves_a_commit_cut_by_a_death() -> Result<()> {
    let cluster = cluster()?;
    let shape = Shape::passes(8);
    let mut expected = None;
    for (point, is_done) in [
        ("before-manifest", false),
        ("before-rename", false),
        ("after-rename", true),
        ("before-delete", true),
    ] {
        let job = HdfsJob::new(&cluster, point, shape)?;
        let run =
            job.start(&[], &format!("step-computed=sleep(30);{point}=return(exit,cut=g1-c3)"))?;
        let (code, events, _) = run.finish(LIMIT)?;
        ensure!(code.is_some_and(|code| code != 0), "{point}: {code:?}");
        let newest = events.iter().rev().find_map(|event| match event {
            JobEvent::CheckpointCommitted(checkpoint) => Some(checkpoint.cut.to_string()),
            _ => None,
        });
        let newest = match is_done {
            true => "g1-c3".to_owned(),
            false => newest.context("a checkpoint before that")?,
        };
        let left = job.verify()?;
        ensure!(left.last() == Some(&newest), "{point}: {newest} in {left:?}");

        let events = ends_well(job.start(&[], "")?, LIMIT).context(point)?;
        let from = events.iter().find_map(|event| match event {
            JobEvent::Started { resumed_from, .. } => *resumed_from,
            _ => None,
        });
        let from = from.context("it continues")?.to_string();
        ensure!(from == newest, "{point}: from {from}");
        job.verify()?;
        ensure!(job.names("ckpt/.staging/g1")?.is_empty(), "{point}: its orphans are swept");
        let expected = match &expected {
            Some(expected) => expected,
            None => expected.insert(job.local_model(shape)?),
        };
        let model = job.model()?;
        ensure!(model == *expected, "{point}: {:?} and not {:?}", sums(&model), sums(expected));
    }
    Ok(())
}

#[test]
#[ignore = "nightly: a job of a minute"]
fn quotas_delay_checkpoints_and_keep_the_old_ones() -> Result<()> {
    let cluster = cluster()?;
    let shape = Shape::passes(30);
    let job = HdfsJob::new(&cluster, "quota", shape)?;
    let mut run = job.start(&[], "step-computed=sleep(20)")?;
    checkpoints(&mut run, 2)?;
    // A block that is begun counts whole, 128 MiB times three.
    for (what, names, bytes) in [("names", Some(1), None), ("bytes", None, Some(1 << 20))] {
        cluster.set_quota(&job.root, names, bytes)?;
        let before = run.view()?;
        let said = warnings(&run).len();
        run.wait_event("a refusal that names the quota", LIMIT, |_| {
            warnings(&run)[said..].iter().find(|text| text.contains("quota")).cloned()
        })?;
        let kept = job.verify()?;
        let after = trains_on(&mut run)?;
        ensure!(after.checkpoints_taken == before.checkpoints_taken, "{what}: into what?");
        ensure!(job.verify()? == kept, "{what}: those that exist stay");
        cluster.set_quota(&job.root, None, None)?;
        checkpoints(&mut run, 1)?;
    }
    kill(run.pid(), Signal::SIGINT)?;
    let (code, ..) = run.finish(LIMIT)?;
    ensure!(code == Some(130), "{code:?}");
    // At the start it is a refusal.
    cluster.set_quota(&job.root, Some(1), None)?;
    let kept = job.verify()?;
    let ended = job.heddle(&["run", "job.toml"])?;
    ensure!(ended.code == Some(5), "{ended:?}");
    ensure!(ended.stderr.contains("NameSpace quota"), "in the NameNode's words: {ended:?}");
    ensure!(job.verify()? == kept);
    cluster.set_quota(&job.root, None, None)?;
    Ok(())
}

#[test]
fn space_quota_that_no_checkpoint_fits_ends_the_job_at_once() -> Result<()> {
    let cluster = cluster()?;
    let shape = Shape { local_data: true, ..Shape::passes(30) };
    let job = HdfsJob::new(&cluster, "narrow", shape)?;
    // A file of a shard has 12 MB, so one of its blocks counts 39 MiB. The files before it have blocks of 1 MiB.
    cluster.set_quota(&job.root, None, Some(20 << 20))?;
    let ended = job.heddle(&["run", "job.toml", "--set", "model.features=2000000"])?;
    ensure!(ended.code == Some(5), "{ended:?}");
    let words = ["no checkpoint can be saved", "quota", "request a larger quota"];
    ensure!(words.iter().all(|words| ended.stderr.contains(words)), "{ended:?}");
    ensure!(job.committed()?.is_empty(), "nothing was trained");
    cluster.set_quota(&job.root, None, None)?;
    Ok(())
}

#[test]
fn safe_mode_delays_checkpoints_and_refuses_beginnings() -> Result<()> {
    let cluster = cluster()?;
    let shape = Shape::passes(30);
    let job = HdfsJob::new(&cluster, "safe", shape)?;
    let mut run = job.start(&[], "step-computed=sleep(20)")?;
    checkpoints(&mut run, 2)?;
    cluster.dfsadmin(&["-safemode", "enter"])?;
    let said = warnings(&run).len();
    run.wait_event("a warning that names safe mode", LIMIT, |_| {
        warnings(&run)[said..].iter().find(|text| text.contains("safe mode")).cloned()
    })?;
    trains_on(&mut run)?;
    let other = HdfsJob::local_only(&cluster, "beginning", Shape { local_data: true, ..shape })?;
    let ended = other.heddle(&["run", "job.toml"])?;
    ensure!(ended.code == Some(6), "{ended:?}");
    ensure!(ended.stderr.contains("safe mode"), "{ended:?}");
    cluster.dfsadmin(&["-safemode", "leave"])?;
    checkpoints(&mut run, 2)?;
    kill(run.pid(), Signal::SIGINT)?;
    let (code, ..) = run.finish(LIMIT)?;
    ensure!(code == Some(130), "{code:?}");
    job.verify()?;
    Ok(())
}

#[test]
fn missing_write_permission_is_an_error_before_training() -> Result<()> {
    let cluster = cluster()?;
    let shape = Shape { local_data: true, ..Shape::passes(1) };
    let mut job = HdfsJob::new(&cluster, "denied", shape)?;
    job.user = "mallory";
    let ended = job.heddle(&["run", "job.toml"])?;
    ensure!(ended.code == Some(5), "{ended:?}");
    ensure!(job.names("")?.is_empty());
    Ok(())
}

#[test]
fn an_output_in_use_is_rejected_before_training() -> Result<()> {
    let cluster = cluster()?;
    let job = HdfsJob::new(&cluster, "leased", Shape::passes(1))?;
    let storage = cluster.storage("alice")?;
    let path = StorePath::parse(&format!("{}/model", job.root))?;
    let runtime = tokio::runtime::Runtime::new()?;
    let open = runtime.block_on(async {
        storage.mkdir(&path, Mode::DIR).await?;
        let mut writer = storage.create(&path.join("MODEL.json")?, Mode::FILE).await?;
        writer.write(Bytes::from_static(b"{")).await?;
        writer.sync().await?;
        anyhow::Ok(writer)
    })?;
    let ended = job.heddle(&["run", "job.toml"])?;
    ensure!(ended.code == Some(7), "{ended:?}");
    ensure!(ended.stderr.contains("output.model"), "{ended:?}");
    ensure!(job.committed()?.is_empty(), "nothing was trained");
    drop(open);
    Ok(())
}

#[test]
fn a_dead_first_datanode_costs_one_attempt_of_a_file() -> Result<()> {
    let cluster = cluster()?;
    let storage = cluster.storage("alice")?;
    let data = content(cut(1, 1), 0, 3 << 20);
    let place = |number: usize| StorePath::parse(&format!("/user/alice/pipeline-{number}"));
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        // Connections for reading live on for some seconds after their use.
        let mut writer = storage.create(&place(0)?, Mode::FILE).await?;
        writer.write(Bytes::copy_from_slice(&data[..1 << 20])).await?;
        writer.sync().await?;
        let head = wait_until("one data connection", LIMIT, || cluster.pipeline_head())?;
        cluster.kill(Daemon::DataNode(head))?;
        let mut ended = async {
            writer.write(Bytes::copy_from_slice(&data[1 << 20..])).await?;
            writer.sync().await?;
            writer.close().await
        }
        .await;
        let mut tries = 0;
        // As a pserver does it: the whole file again under a new name.
        while let Err(error) = ended {
            ensure!(error.error().is_retryable(), "{error}");
            ensure!(tries < 60, "{error}");
            tries += 1;
            sleep(Duration::from_millis(500));
            ended = put(&*storage, &place(tries)?, &data).await;
        }
        let mut reader = storage.open(&place(tries)?, 0).await?;
        let mut read = Vec::new();
        while let Some(chunk) = reader.next().await? {
            read.extend_from_slice(&chunk);
        }
        ensure!(read == data, "{} of {} bytes", read.len(), data.len());
        Ok(())
    })
}

async fn put(storage: &dyn Storage, path: &StorePath, data: &[u8]) -> Result<(), WriteError> {
    let mut writer = storage.create(path, Mode::FILE).await?;
    writer.write(Bytes::copy_from_slice(data)).await?;
    writer.sync().await?;
    writer.close().await
}

#[test]
fn encryption_zone_is_named_before_anything_is_written() -> Result<()> {
    let cluster = cluster()?;
    let shape = Shape { local_data: true, ..Shape::passes(1) };
    let job = HdfsJob::new(&cluster, "zone", shape)?;
    let tool = |class: &str, arguments: &[&str]| -> Result<()> {
        let output = cluster.java(class).args(arguments).output()?;
        ensure!(output.status.success(), "{class} {arguments:?}: {output:?}");
        Ok(())
    };
    tool("org.apache.hadoop.crypto.key.KeyShell", &["create", "of-the-zone"])?;
    // A NameNode reads the file of keys when it starts.
    let namenode = Daemon::NameNode(1);
    cluster.kill(namenode)?;
    cluster.restart(namenode)?;
    cluster.wait_ready()?;
    cluster.webhdfs("PUT", "/zone", "MKDIRS&permission=777")?;
    let crypto = "org.apache.hadoop.hdfs.tools.CryptoAdmin";
    let create = ["-createZone", "-keyName", "of-the-zone", "-path", "/zone"];
    tool(crypto, &create)?;

    let url = format!("{}/zone/ckpt", cluster.hdfs());
    let ended = job.heddle(&["run", "job.toml", "--set", &format!("checkpoint.dir={url}")])?;
    ensure!(
        ended.code == Some(7)
            && ended.stderr.contains("checkpoint.dir")
            && ended.stderr.contains("lies in the encryption zone /zone")
            && !ended.stderr.contains("cargo"),
        "{ended:?}"
    );
    let left = cluster.dfs("alice", &["-ls", "/zone"])?;
    ensure!(!String::from_utf8_lossy(&left).contains("ckpt"), "{}", String::from_utf8_lossy(&left));
    // A file that others put there is named as well.
    let storage = cluster.storage("alice")?;
    let file = job.path().join("secret.libsvm");
    std::fs::write(&file, "1 1:1\n")?;
    let local = file.display().to_string();
    cluster.dfs("alice", &["-put", &local, "/zone/secret.libsvm"])?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let path = StorePath::parse("/zone/secret.libsvm")?;
    let opened = runtime.block_on(storage.open(&path, 0));
    let error = format!("{:#}", anyhow::Error::from(opened.err().context("opened")?));
    ensure!(error.contains("lies in an encryption zone"), "{error}");
    Ok(())
}
