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
use heddle_tests::yarn_job::{Submitted, YarnJob, settled};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

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
fn export_after_a_kill_equals_a_run_that_ended_there() -> Result<()> {
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
    job.submit(&[], "")?.ends_well(LIMIT)?;
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
            // Ids of applications are long numbers.
            && !report.stdout.contains(" 130"),
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

#[test]
fn commands_end_soon_where_hdfs_does_not_respond() -> Result<()> {
    let cluster = cluster()?;
    let shape = Shape { passes: 40, every: "1 pass", local_data: false };
    let job = YarnJob::bsp(cluster, "filesilent", shape)?;
    let mut submitted = job.submit(&[], "step-computed=return(sleep=200,while={slow})")?;
    submitted.wait_for("it trains", LIMIT, settled)?;
    // Connections are accepted by the system, and no byte is answered.
    let silent = std::net::TcpListener::bind("127.0.0.1:0")?;
    let url = format!("hdfs://{}", silent.local_addr()?);
    let conf = job.path().join("conf-silent");
    cluster.conf_dir_with(&conf, &[("core-site.xml", "fs.defaultFS", &url)])?;
    let id = submitted.id.clone();
    let note =
        "HDFS did not respond within 10 s; the job's report, kept logs and secret are not read";
    for (arguments, words) in [
        (&["list", "--yarn"][..], &[id.as_str(), "running"][..]),
        (&["status", &id], &["running"]),
        (&["logs", &id, "am"], &[note, "am.log"]),
        (&["kill", &id], &[note, "has ended"]),
    ] {
        let begun = Instant::now();
        let mut command = job.command()?;
        command.args(arguments).env("HADOOP_CONF_DIR", &conf).stdin(Stdio::null());
        let output = command.output()?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        ensure!(output.status.code() == Some(0), "{arguments:?}: {:?} {text}", output.status);
        for word in words {
            ensure!(text.contains(word), "{arguments:?}: no {word}: {text}");
        }
        // One read of a file alone waits for a minute otherwise.
        ensure!(begun.elapsed() < Duration::from_secs(50), "{arguments:?}: {:?}", begun.elapsed());
    }
    submitted.wait_gone(LIMIT)
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
fn loss_of_an_applicationmaster_is_a_recovery() -> Result<()> {
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

/// Applications of alice with a tag that have not ended, as `heddle list` shows them.
fn tagged(job: &YarnJob<'_>, tag: &str) -> Result<Vec<String>> {
    let listed = job.heddle(&["list", "--tag", tag, "--json"])?;
    ensure!(listed.code == Some(0), "{listed:?}");
    let lines: Result<Vec<serde_json::Value>, _> =
        listed.stdout.lines().map(serde_json::from_str).collect();
    let lives = |line: &serde_json::Value| line["state"] == "running" || line["state"] == "waiting";
    let id = |line: serde_json::Value| line["application"].as_str().map(str::to_owned);
    Ok(lines?.into_iter().filter(lives).filter_map(id).collect())
}

#[test]
fn oozie_finds_and_kills_the_job_by_the_tag_of_its_action() -> Result<()> {
    let shape = Shape { passes: 40, every: "1 pass", local_data: false };
    let job = YarnJob::bsp(cluster()?, "oozie", shape)?;
    let action = job.path().join("action.xml");
    std::fs::write(
        &action,
        "<configuration><property><name>oozie.child.mapreduce.job.tags</name>\
         <value>oozie-Child-1</value></property></configuration>",
    )?;
    let slow = job.shell("step-computed=return(sleep=40,while={slow})", "")?;
    let mut command = job.submit_command(&["--output", "properties", "--tags", "mine"])?;
    let submitted = command
        .args(slow)
        .env("OOZIE_ACTION_CONF_XML", &action)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(job.path().join("errors"))?)
        .spawn()?;
    let printed = || std::fs::read_to_string(job.path().join("errors")).unwrap_or_default();
    // A kill before that is a refusal of the submission.
    wait_until("the job is submitted", LIMIT, || {
        ensure!(printed().contains("Submitted application "), "{}", printed());
        Ok(())
    })?;
    let id = tagged(&job, "oozie-child-1")?.pop().context("none has the tag")?;
    ensure!(tagged(&job, "mine")? == [id.clone()], "its own tag stays");
    // As Oozie does, by the ResourceManager.
    let killed = job.heddle(&["kill", &id])?;
    ensure!(killed.code == Some(0), "{killed:?}");
    let output = submitted.wait_with_output()?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), printed());
    let properties: Vec<(&str, &str)> =
        out.lines().filter_map(|line| line.split_once('=')).collect();
    let names: Vec<&str> = properties.iter().map(|(name, _)| *name).collect();
    ensure!(names == ["application", "tracking-url", "exit"], "{out}");
    ensure!(properties[0].1 == id && properties[1].1.starts_with("http://"), "{out}");
    ensure!(properties[2].1 == "3" && output.status.code() == Some(3), "{out}{err}");
    ensure!(out.lines().count() == 3 && out.len() <= 2048, "{out}");
    let line = format!("Submitted application {id}");
    ensure!(err.lines().any(|it| it == line), "{err}");
    ensure!(err.lines().any(|it| it.starts_with(&id)), "{err}");
    ensure!(tagged(&job, "oozie-child-1")?.is_empty(), "it has ended");

    let missing = ("OOZIE_ACTION_CONF_XML", "/nonexistent/action.xml");
    let mut command = job.submit_command(&["--dry-run"])?;
    let output = command.env(missing.0, missing.1).output()?;
    ensure!(output.status.code() == Some(7), "{output:?}");
    Ok(())
}

/// What the operator imports of Airflow, and a worker that runs it.
const AIRFLOW: [(&str, &str); 4] = [
    ("airflow/__init__.py", ""),
    (
        "airflow/exceptions.py",
        "class AirflowException(Exception): pass\nclass AirflowFailException(AirflowException): pass\n",
    ),
    (
        "airflow/models.py",
        "import logging\nclass BaseOperator:\n    log = logging.getLogger('task')\n\
         \x20   def __init__(self, task_id): self.task_id = task_id\n",
    ),
    (
        "worker.py",
        "import signal, sys, types\nfrom heddle_operator import HeddleOperator\n\
         task = types.SimpleNamespace(dag_id='d', task_id='train', run_id='r', map_index=-1)\n\
         operator = HeddleOperator(task_id='train', job=sys.argv[2], arguments=sys.argv[3:], heddle=sys.argv[1])\n\
         def killed(*_):\n    operator.on_kill()\n    sys.exit(9)\n\
         signal.signal(signal.SIGTERM, killed)\noperator.execute({'task_instance': task})\n",
    ),
];

#[test]
fn an_airflow_retry_follows_the_job_of_a_killed_worker() -> Result<()> {
    let shape = Shape { passes: 18, every: "1 pass", local_data: false };
    let job = YarnJob::bsp(cluster()?, "airflow", shape)?;
    for (name, text) in AIRFLOW {
        let file = job.path().join(name);
        std::fs::create_dir_all(file.parent().context("it has one")?)?;
        std::fs::write(file, text)?;
    }
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/airflow/heddle_operator.py");
    let text = std::fs::read_to_string(&source)?;
    ensure!(text.lines().count() <= 60, "{} lines", text.lines().count());
    std::fs::copy(source, job.path().join("heddle_operator.py"))?;
    let slow = job.shell("step-computed=return(sleep=250,while={slow})", "")?;
    // The arguments of a submission as the operator passes them on.
    let submit = job.submit_command(&[])?;
    let worker = |name: &str, more: &[&str]| -> Result<std::process::Child> {
        let mut worker = std::process::Command::new("python3");
        worker.arg("worker.py").arg(submit.get_program()).args(submit.get_args().skip(1));
        for (name, value) in submit.get_envs() {
            match value {
                Some(value) => worker.env(name, value),
                None => worker.env_remove(name),
            };
        }
        let errors = std::fs::File::create(job.path().join(name))?;
        worker.args(&slow).args(more).current_dir(job.path()).stdin(Stdio::null()).stderr(errors);
        Ok(worker.spawn()?)
    };
    let printed = |name: &str| std::fs::read_to_string(job.path().join(name)).unwrap_or_default();
    let waits_for = |name: &str, text: &str| {
        wait_until(text, LIMIT, || {
            let all = printed(name);
            ensure!(all.contains(text), "{all}");
            Ok(())
        })
    };
    let mut first = worker("first", &[])?;
    waits_for("first", "Submitted application ")?;
    first.kill()?;
    first.wait()?;
    let mut second = worker("second", &[])?;
    waits_for("second", "checkpoint g1-c")?;
    ensure!(!printed("second").contains("Submitted application"), "it attached");
    // Airflow kills the task: the job ends with a last checkpoint.
    kill(Pid::from_raw(second.id().cast_signed()), Signal::SIGTERM)?;
    ensure!(second.wait()?.code() == Some(9), "{}", printed("second"));
    ensure!(printed("second").contains("saving a checkpoint and stopping"), "in order");
    let mut refused = worker("refused", &["--conf", "spark.yarn.queue=x"])?;
    ensure!(!refused.wait()?.success(), "refused");
    let text = printed("refused");
    ensure!(text.contains("AirflowFailException") && text.contains("exit code 7"), "{text}");
    let mut third = worker("third", &[])?;
    waits_for("third", "Submitted application ")?;
    job.hurry()?;
    ensure!(third.wait()?.success(), "{}", printed("third"));
    ensure!(printed("third").contains(", from checkpoint g1-c"), "{}", printed("third"));
    job.same_as_local(shape)
}
