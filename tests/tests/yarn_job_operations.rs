//! What operators do with jobs on YARN, on one real cluster: wait, save, look, stop, export, predict, and what they see
//! after an ApplicationMaster was lost.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use heddle_protocol::ids::Slot;
use heddle_protocol::view::{CheckpointView, JobEvent, JobState, JobView};
use heddle_tests::hadoop::{Cluster, Options, Shared, wait_until};
use heddle_tests::hdfs_job::Shape;
use heddle_tests::local::kill9;
use heddle_tests::logs::SMALL_NODES;
use heddle_tests::yarn_job::{Submitted, YarnJob, settled};

const LIMIT: Duration = Duration::from_secs(180);

fn cluster() -> Result<&'static Cluster> {
    static CLUSTER: Shared = Shared::new();
    let options = || Options { am_expiry_ms: 60_000, ..Options::default() };
    CLUSTER.get(options)
}

/// All regular files below a folder, by name.
fn files_below(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            let name = path.file_name().context("it has one")?;
            files.insert(name.to_string_lossy().into_owned(), std::fs::read(&path)?);
        }
    }
    Ok(files)
}

/// The checkpoint that holds the model of exactly two passes.
fn after_two_passes(view: &JobView) -> Option<&CheckpointView> {
    view.checkpoints.iter().find(|taken| {
        (taken.phase.0, taken.step.0) == (2, 0) || (taken.phase.0, taken.step.0) == (1, 38)
    })
}

#[test]
fn a_killed_jobs_checkpoint_exports_the_model_of_a_run_that_ended_there() -> Result<()> {
    let shape = |passes| Shape { passes, every: "1 pass", local_data: false };
    let job = YarnJob::bsp(cluster()?, "exported", shape(40))?;
    let mut submitted = job.submit(&[], "step-computed=return(sleep=40,while={slow})")?;
    let view = submitted.wait_for("a checkpoint after two passes", LIMIT, |view| {
        after_two_passes(view).is_some()
    })?;
    let taken = after_two_passes(&view).context("waited for")?.clone();
    let killed = job.heddle(&["kill", &submitted.id])?;
    ensure!(killed.code == Some(0), "{killed:?}");
    submitted.finish(LIMIT)?;

    let to = job.path().join("exported");
    let checkpoint = format!("{}/{}", job.checkpoints(), taken.cut);
    let exported = job.heddle(&["export", &checkpoint, &to.display().to_string()])?;
    ensure!(exported.code == Some(0), "{exported:?}");
    let found = files_below(&to)?;
    let expected = job.local_model(shape(2))?;
    ensure!(!expected.is_empty(), "a local model");
    for (name, bytes) in &expected {
        ensure!(found.get(name) == Some(bytes), "{name} differs; exported: {:?}", found.keys());
    }
    Ok(())
}

#[test]
fn prediction_on_hdfs_equals_the_local_one() -> Result<()> {
    let shape = Shape { passes: 2, every: "20 steps", local_data: false };
    let job = YarnJob::bsp(cluster()?, "predicted", shape)?;
    job.submit(&[], "")?.expecting(SMALL_NODES).ends_well(LIMIT)?;
    let here = job.local_model(shape)?;
    ensure!(!here.is_empty(), "a local model");
    let predict = |model: &str, data: &str| {
        let ended = job.heddle(&["predict", model, data])?;
        ensure!(ended.code == Some(0), "{ended:?}");
        Ok(ended.stdout)
    };
    let local_model = format!("{}/local/model", job.path().display());
    let local_data = format!("{}/data/train-000.libsvm", job.path().display());
    let data = format!("{}/data/train-000.libsvm", job.url());
    let there = predict(&format!("{}/model", job.url()), &data)?;
    ensure!(there.lines().count() == 300, "{there}");
    ensure!(there == predict(&local_model, &local_data)?, "{there}");
    Ok(())
}

/// `heddle logs -f` in the background, with what it has printed.
fn followed(
    job: &YarnJob<'_>,
    id: &str,
) -> Result<std::thread::JoinHandle<Result<(bool, String)>>> {
    let mut command = job.command()?;
    command.args(["logs", id, "trainer", "-f"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let mut stdout = child.stdout.take().context("piped above")?;
    Ok(std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text)?;
        Ok((child.wait()?.success(), text))
    }))
}

#[test]
fn a_job_is_detached_saved_viewed_and_stopped() -> Result<()> {
    let shape = Shape { passes: 400, every: "10min", local_data: false };
    let job = YarnJob::bsp(cluster()?, "operated", shape)?;
    let shell = job.shell("step-computed=return(sleep=40,while={slow})", "")?;
    let begun = Instant::now();
    let arguments = ["--wait-timeout", "2s", &shell[0], &shell[1]];
    let left = job.submit_and_wait(&arguments)?;
    ensure!(left.code == Some(124), "{left:?}");
    ensure!(begun.elapsed() >= Duration::from_secs(2), "{left:?}");
    let id = left
        .stderr
        .split(|c: char| c != '_' && !c.is_ascii_alphanumeric())
        .find(|word| word.starts_with("application_"))
        .with_context(|| format!("{left:?}"))?
        .to_owned();
    ensure!(left.stderr.contains("heddle attach"), "{left:?}");

    let mut attached = job.attach(&id)?;
    let view = attached.wait_for("it trains", LIMIT, |view| settled(view) && view.rows > 0)?;
    let follower = followed(&job, &id)?;
    let saved = job.heddle(&["checkpoint", "now", &id])?;
    ensure!(saved.code == Some(0), "{saved:?}");
    let after = attached.wait_for("another checkpoint", LIMIT, |now| {
        now.checkpoints_taken > view.checkpoints_taken
    })?;
    let saved = after.checkpoints.last().context("it was taken")?.cut;
    // What an ApplicationMaster that runs has written so far.
    let logs = job.heddle(&["logs", &id, "am"])?;
    ensure!(logs.stdout.contains("==> am-1/am.log <=="), "{logs:?}");

    let killed = job.heddle(&["kill", &id, "--checkpoint"])?;
    ensure!(killed.code == Some(0), "{killed:?}");
    let (code, events, stderr) = attached.finish(LIMIT)?;
    let Some(JobEvent::Ended { state, exit_code, .. }) = events.last() else {
        return Err(anyhow!("{events:?}"));
    };
    ensure!(*state == JobState::Stopped, "{events:?}");
    ensure!(code == Some(3), "{code:?} and {exit_code}: {stderr}");
    let newest = job.committed()?.pop().context("a final checkpoint")?;
    ensure!(newest != saved.to_string(), "{newest} was there before the order");

    let (ended_well, text) = follower.join().map_err(|_| anyhow!("the reader panicked"))??;
    ensure!(ended_well && text.contains("==> trainer-"), "{text}");
    let report = job.heddle(&["report", &id])?;
    ensure!(
        report.code == Some(0)
            && report.stdout.contains("stopped")
            && report.stdout.contains(&id)
            && !report.stdout.contains("130"),
        "{report:?}"
    );
    // The log of the whole job exists after its end.
    let logs = job.heddle(&["logs", &id, "am"])?;
    ensure!(
        logs.stdout.contains("==> am-1/am.log <==")
            && logs.stdout.contains("==> am-1/report.txt <=="),
        "{logs:?}"
    );
    let status = job.heddle(&["status", &id])?;
    ensure!(status.code == Some(0) && status.stdout.contains("stopped"), "{status:?}");
    Ok(())
}

/// Whether a recovery of the ApplicationMaster is reported with its rows.
fn am_recovered(view: &JobView) -> bool {
    view.recoveries.iter().any(|recovery| {
        recovery.slot.is_none()
            && recovery.done
            && recovery.notice_ms.is_some()
            && recovery.restart_ms.is_some()
    })
}

fn written_down(job: &YarnJob<'_>, submitted: &Submitted<'_>) -> Result<()> {
    wait_until("history is written down", LIMIT, || {
        let names = job.heddle_names(&format!("staging/{}/past", submitted.id))?;
        ensure!(names.iter().any(|name| name.ends_with(".json")), "{names:?}");
        Ok(())
    })
}

#[test]
fn the_loss_of_an_applicationmaster_keeps_history_and_is_a_recovery() -> Result<()> {
    let shape = Shape { passes: 400, every: "20 steps", local_data: false };
    let job = YarnJob::bsp(cluster()?, "history", shape)?;
    let mut submitted = job.submit(&[], "step-computed=return(sleep=40,while={slow})")?;
    submitted.wait_for("it trains", LIMIT, |view| {
        settled(view) && view.rows > 0 && view.checkpoints_taken > 0
    })?;
    kill9(submitted.process(Slot::trainer(1))?.pid)?;
    let before = submitted.wait_for("the trainer is replaced", LIMIT, |view| {
        let mut recoveries = view.recoveries.iter();
        recoveries.any(|recovery| recovery.slot == Some(Slot::trainer(1)) && recovery.done)
    })?;
    ensure!(before.history.ended_total == 1, "{:#?}", before.history);
    written_down(&job, &submitted)?;
    let lost = before.history.ended.back().context("counted")?.clone();
    // Written every two seconds at the most: the file that names this loss is there after that.
    let written = Instant::now();
    wait_until("two seconds and more", LIMIT, || {
        ensure!(written.elapsed() > Duration::from_secs(5), "not yet");
        Ok(())
    })?;
    kill9(submitted.am(1)?.pid)?;
    let after = submitted.wait_for("the next attempt leads", LIMIT, |view| {
        view.attempt.0 == 2 && settled(view) && am_recovered(view)
    })?;
    ensure!(after.recoveries.first() == before.recoveries.first(), "{:#?}", after.recoveries);
    ensure!(after.recoveries.len() == 2, "{:#?}", after.recoveries);
    ensure!(after.history.ended.contains(&lost), "{:#?}", after.history);
    ensure!(
        after.checkpoints_taken >= before.checkpoints_taken,
        "{} and then {}",
        before.checkpoints_taken,
        after.checkpoints_taken
    );
    let metrics = submitted.proxied("/metrics")?;
    ensure!(metrics.contains("heddle_recoveries_total 2\n"), "{metrics}");
    // Logs of the attempt that is gone, and of a container that it lost.
    let gone = format!("{}-{}", lost.slot, lost.incarnation);
    for (wanted, file) in [("am-1", "am-1/am.log"), (gone.as_str(), &*format!("{gone}/"))] {
        let logs = job.heddle(&["logs", &submitted.id, wanted])?;
        ensure!(logs.stdout.contains(&format!("==> {file}")), "{wanted}: {logs:?}");
    }
    job.heddle(&["kill", &submitted.id])?;
    submitted.finish(LIMIT)?;
    let report = job.heddle(&["report", &submitted.id])?;
    ensure!(
        report.stdout.contains("the ApplicationMaster was lost; attempt 2 took over"),
        "{report:?}"
    );
    let logs = job.heddle(&["logs", &submitted.id, "am"])?;
    for file in ["am-1/am.log", "am-2/am.log"] {
        ensure!(logs.stdout.contains(&format!("==> {file} <==")), "no {file}: {logs:?}");
    }
    Ok(())
}
