//! Whole jobs with data, checkpoints and model on HDFS: the quick start, and the same behind a name service whose active
//! NameNode changes during the run.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use heddle_tests::hadoop::{Cluster, Daemon, Options};
use heddle_tests::hdfs_job::{HdfsJob, Shape, commits, ends_well, model_at};

/// Longest wait for one thing; other builds may keep all cores busy.
const LIMIT: Duration = Duration::from_secs(300);

#[test]
fn the_quick_start_on_hdfs_gives_the_result_of_a_local_run() -> Result<()> {
    let cluster = Cluster::start(Options::hdfs())?;
    let job = HdfsJob::new(&cluster, "quickstart", Shape::passes(1))?;
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/quickstart");
    for part in ["train", "test"] {
        job.upload(&example.join("data").join(part), &format!("quick/{part}"))?;
    }
    let file = example.join("job.toml").display().to_string();
    let local = job.path().display();
    // Fewer passes than the example's 40, since each checkpoint costs HDFS some dozens of calls.
    let run = |place: &str, data: &str| {
        let settings = [
            format!("data.train={data}/train/*.libsvm.gz"),
            format!("data.test={data}/test/*.libsvm.gz"),
            format!("checkpoint.dir={place}/ckpt"),
            format!("output.model={place}/model"),
            "data.passes=10".to_owned(),
        ];
        let mut arguments = vec!["run", &file];
        for setting in &settings {
            arguments.extend(["--set", setting]);
        }
        let ended = job.heddle(&arguments)?;
        ensure!(ended.code == Some(0), "{ended:?}");
        let line = ended.stdout.lines().next().context("a line of scores")?;
        ensure!(line.starts_with("test  log-loss 0."), "{line}");
        Ok(line.to_owned())
    };
    let here = run(&format!("{local}/place"), &example.join("data").display().to_string())?;
    let root = format!("hdfs://{}", job.root);
    let there = run(&root, &format!("{root}/quick"))?;
    ensure!(here == there, "{here} here, {there} on HDFS");

    ensure!(job.verify()?.len() == 3, "checkpoint.keep is 3");
    // 8 shards and a manifest, twice, and of the third the same, or the manifest alone where it is still the first checkpoint,
    // which has initial values: that depends on time.
    let files = job.md5sum()?;
    ensure!(matches!(files, 19 | 27), "md5sum takes the sidecars of {files} files");
    Ok(())
}

#[test]
fn a_namenode_failover_loses_no_checkpoint_and_no_byte() -> Result<()> {
    let cluster = Cluster::start(Options { namenodes: 2, ..Options::hdfs() })?;
    let shape = Shape::passes(20);
    let job = HdfsJob::new(&cluster, "failover", shape)?;
    // Until the other NameNode is used, which takes Hadoop's tool some seconds.
    let slow = job.path().join("slow");
    std::fs::write(&slow, "")?;
    let points = format!("step-computed=return(sleep=30,while={})", slow.display());
    let mut run = job.start(&[], &points)?;
    let before = run.wait_for("checkpoints", LIMIT, |view| view.checkpoints_taken >= 2)?;
    // Killed, not stopped: every process with a connection loses it in the middle of a call.
    cluster.kill(Daemon::NameNode(1))?;
    cluster.fail_over_to(2)?;
    let after = run.wait_for("checkpoints by the other NameNode", LIMIT, |view| {
        view.checkpoints_taken >= before.checkpoints_taken + 3
    })?;
    ensure!(after.rows > before.rows && after.recoveries.is_empty(), "{after:#?}");
    std::fs::remove_file(slow)?;
    let events = ends_well(run, LIMIT)?;
    ensure!(commits(&events) >= 5);
    ensure!(job.verify()?.len() == 3);
    job.same_as_local(shape)?;
    Ok(())
}

/// A mirror whose NameNode responds to nothing delays neither the checkpoints nor the other mirror. Then the file system of the
/// checkpoints is gone for good; the job goes on from each of its mirrors, which lie on two others.
#[test]
#[ignore = "nightly: two clusters"]
fn job_continues_from_mirrors_on_other_file_systems() -> Result<()> {
    let first = Cluster::start(Options::hdfs())?;
    let second = Cluster::start(Options::hdfs())?;
    let shape = Shape { local_data: true, ..Shape::passes(2) };
    let job = HdfsJob::new(&first, "mirrored", shape)?;
    let expected = job.local_model(Shape { passes: 3, ..shape })?;
    let here = job.path().display();
    let mirrors = [format!("{}/user/alice/mirror", second.hdfs()), format!("file://{here}/mirror")];
    let run = |arguments: &[&str], settings: &[String]| {
        let mut all = [&["run", "job.toml"], arguments].concat();
        for setting in settings {
            all.extend(["--set", setting]);
        }
        let ended = job.heddle(&all)?;
        ensure!(ended.code == Some(0), "{all:?}: {ended:?}");
        Ok(())
    };
    let both = format!("checkpoint.mirrors=[\"{}\", \"{}\"]", mirrors[0], mirrors[1]);
    let model = format!("output.model={here}/model");
    let settings = ["--set", &both, "--set", &model, "--set", "checkpoint.every=5 steps"];
    let running = job.start(&settings, "step-computed=sleep(200)")?;
    let delayed = ["checkpoint_not_mirrored", "mirror_delayed"];
    let mut running = running.expecting(&delayed);
    let before = running.wait_for("both mirrors have a checkpoint", LIMIT, |view| {
        view.mirrors.len() == 2 && view.mirrors.iter().all(|mirror| mirror.checkpoint.is_some())
    })?;
    second.pause(Daemon::NameNode(1))?;
    running.wait_for("checkpoints go on", LIMIT, |view| {
        let [hung, other] = &view.mirrors[..] else { return false };
        view.checkpoints_taken >= before.checkpoints_taken + 3
            && hung.behind >= 2
            && other.checkpoint > before.mirrors[1].checkpoint
    })?;
    second.resume(Daemon::NameNode(1))?;
    ends_well(running, LIMIT)?;
    first.kill(Daemon::NameNode(1))?;
    for (number, mirror) in mirrors.iter().enumerate() {
        let verified = job.heddle(&["checkpoint", "verify", mirror])?;
        ensure!(verified.code == Some(0), "{mirror}: {verified:?}");
        let model = job.path().join(format!("model-{number}"));
        run(
            &["--resume", "--from", mirror],
            &[
                "data.passes=3".to_owned(),
                format!("checkpoint.dir={here}/ckpt-{number}"),
                format!("output.model={}", model.display()),
            ],
        )?;
        ensure!(model_at(&model)? == expected, "another model from {mirror}");
    }
    Ok(())
}
