//! Jobs by `heddle submit` on one healthy cluster: the same results as `heddle run`, and the commands that query them.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use heddle_protocol::ids::Role;
use heddle_protocol::view::{JobEvent, JobState, JobView, SlotState};
use heddle_tests::example_page::ExamplePage;
use heddle_tests::hadoop::{Cluster, Options, RunJar, Shared, javas, launcher_jar, wait_until};
use heddle_tests::hdfs_job::{HdfsJob, Shape, model_at};
use heddle_tests::local::program;
use heddle_tests::yarn_job::{Counting, YarnJob, settled};
use heddle_yarn::ApplicationState;
use heddle_yarn::client::FinalApplicationStatus;

const LIMIT: Duration = Duration::from_secs(180);
const SHAPE: Shape = Shape { passes: 2, every: "20 steps", local_data: false };

fn cluster() -> Result<&'static Cluster> {
    static CLUSTER: Shared = Shared::new();
    let options = || {
        let priority = "yarn.cluster.max-application-priority";
        Options {
            am_expiry_ms: 60_000,
            properties: vec![("yarn-site.xml".into(), priority.into(), "9".into())],
            ..Options::default()
        }
    };
    CLUSTER.get(options)
}

#[test]
fn the_quick_start_gives_the_result_of_a_local_run() -> Result<()> {
    let job = YarnJob::bsp(cluster()?, "quickstart", SHAPE)?;
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/quickstart");
    for part in ["train", "test"] {
        job.upload(&example.join("data").join(part), &format!("quick/{part}"))?;
    }
    let file = example.join("job.toml").display().to_string();
    // Fewer passes than the example's 40, since each checkpoint costs HDFS some dozens of calls.
    let run = |command: &str, place: &str, data: &str| {
        let settings = [
            format!("data.train={data}/train/*.libsvm.gz"),
            format!("data.test={data}/test/*.libsvm.gz"),
            format!("checkpoint.dir={place}/ckpt"),
            format!("output.model={place}/model"),
            "data.passes=10".to_owned(),
        ];
        let mut arguments = vec![command, &file];
        for setting in &settings {
            arguments.extend(["--set", setting]);
        }
        let ended = job.heddle(&arguments)?;
        ensure!(ended.code == Some(0), "{ended:?}");
        let line = ended.stdout.lines().next().context("a line of scores")?;
        ensure!(line.starts_with("test  log-loss 0."), "{ended:?}");
        Ok((line.to_owned(), ended))
    };
    let local = format!("{}/place", job.path().display());
    let (here, _) = run("run", &local, &example.join("data").display().to_string())?;
    let (there, ended) = run("submit", &job.url(), &format!("{}/quick", job.url()))?;
    ensure!(here == there, "{here} here, {there} on YARN: {ended:?}");
    // checkpoint.keep is 3; a periodic one that is open when training ends gives way to the final one.
    let kept = job.verify()?;
    ensure!((2..=3).contains(&kept.len()), "{kept:?}");
    ensure!(ended.stderr.contains("application_"), "the id is printed: {ended:?}");
    Ok(())
}

#[test]
fn the_table_example_gives_the_model_and_scores_of_a_local_run() -> Result<()> {
    let job = HdfsJob::local_only(cluster()?, "tabular", SHAPE)?;
    let page = ExamplePage::copy("tabular")?;
    let scores = page.path().join("scores.txt");
    page.run(page.commands(0)?, &[])?;
    let model = model_at(&page.path().join("examples/tabular/out/model"))?;
    let expected = (model, std::fs::read(&scores)?);
    std::fs::remove_file(&scores)?;
    let commands = page.commands(2)?;
    ensure!(commands.contains("hdfs:///user/me/tabular/model examples/"), "{commands}");
    let commands = commands.replace("/user/me/tabular", &job.root);
    let conf = cluster()?.conf_dir().display().to_string();
    page.run(&commands, &[("HADOOP_CONF_DIR", &conf), ("HADOOP_USER_NAME", job.user)])?;
    ensure!((job.model()?, std::fs::read(&scores)?) == expected, "another model or other scores");
    Ok(())
}

#[test]
fn a_bsp_job_gives_the_bytes_of_a_local_run_and_deletes_staging() -> Result<()> {
    let job = YarnJob::bsp(cluster()?, "bytes", SHAPE)?;
    // The local run reads its data again in each pass.
    let mut submitted = job.submit(&["--set", "data.cache=disk"], "")?;
    let id = submitted.id.clone();
    let view = submitted.ends_well(LIMIT)?;
    ensure!(view.epoch.count == 0 && view.recoveries.is_empty(), "{view:#?}");
    job.same_as_local(SHAPE)?;

    let report = format!("/user/alice/.heddle/reports/{id}/report.json");
    let report = cluster()?.dfs("alice", &["-cat", &report])?;
    let report: serde_json::Value = serde_json::from_slice(&report)?;
    ensure!(report["state"] == "finished" && report["exit_code"] == 0, "{report:#}");
    ensure!(report["application"]["id"] == id.as_str(), "{report:#}");
    ensure!(report["containers"].as_array().is_some_and(|all| all.len() == 4), "{report:#}");
    ensure!(!job.heddle_names("staging")?.contains(&id), "staging is gone");
    Ok(())
}

#[test]
fn yarn_jar_trains_as_a_local_run_and_passes_codes_on() -> Result<()> {
    let job = YarnJob::bsp(cluster()?, "jar", SHAPE)?;
    let jar = launcher_jar(job.path())?;
    let run_jar = RunJar::prepare()?;
    let yarn_jar = |arguments: &[&OsStr]| -> Result<Output> {
        let conf = cluster()?.conf_dir();
        let mut command = run_jar.command(&javas()[0], &conf, &[], job.path(), &jar);
        command
            .args(arguments)
            .current_dir(job.path())
            .env("HEDDLE_BINARY", program("heddle")?)
            .env("HADOOP_USER_NAME", job.user)
            .env("XDG_STATE_HOME", job.path().join("state"))
            .env_remove("FAILPOINTS");
        Ok(command.output()?)
    };
    let command = job.submit_command(&[])?;
    let submit: Vec<&OsStr> = command.get_args().collect();
    let with = |key: &'static str| [&submit[..], &["--set".as_ref(), key.as_ref()]].concat();
    for (code, arguments) in [
        (2, vec![]),
        (7, with("training.batch=none")),
        (4, with("yarn.queue=missing")),
        (0, submit.clone()),
        // It is finished.
        (0, submit.clone()),
    ] {
        let output = yarn_jar(&arguments)?;
        ensure!(output.status.code() == Some(code), "{arguments:?}: {output:?}");
    }
    ensure!(!job.verify()?.is_empty());
    job.same_as_local(SHAPE)
}

#[test]
fn users_of_the_modify_list_kill_a_job_and_no_others() -> Result<()> {
    let job = YarnJob::bsp(cluster()?, "modified", Shape { passes: 60, ..SHAPE })?;
    let mut submitted = job.submit(&["--set", "yarn.modify-acl=bob"], "step-computed=sleep(60)")?;
    submitted.wait_for("it trains", LIMIT, settled)?;
    for (user, code) in [("carol", 5), ("bob", 0)] {
        let mut command = job.command()?;
        command.env("HADOOP_USER_NAME", user).args(["kill", &submitted.id]);
        let output = command.output()?;
        ensure!(output.status.code() == Some(code), "{user}: {output:?}");
    }
    let (code, _, stderr) = submitted.finish(LIMIT)?;
    ensure!(code == Some(3), "{code:?}: {stderr}");
    submitted.wait_gone(LIMIT)
}

#[test]
fn local_data_is_uploaded_and_gives_the_same_bytes() -> Result<()> {
    let job = YarnJob::bsp(cluster()?, "uploaded", SHAPE)?;
    let data = format!("data.train={}/data/*.libsvm", job.path().display());
    let mut submitted = job.submit(&["--set", &data], "")?;
    submitted.ends_well(LIMIT)?;
    job.same_as_local(SHAPE)?;
    Ok(())
}

#[test]
fn a_protected_job_gives_the_bytes_of_a_local_run() -> Result<()> {
    let job = YarnJob::bsp(cluster()?, "protected", SHAPE)?;
    let on = ["--set", "network.protection=on"];
    let mut submitted = job.submit(&on, "")?;
    submitted.ends_well(LIMIT)?;
    job.same_as_local(SHAPE)?;
    Ok(())
}

#[test]
fn a_detached_job_is_listed_shown_followed_and_logged() -> Result<()> {
    let job = YarnJob::bsp(cluster()?, "detached", SHAPE)?;
    let mut command =
        job.submit_command(&["--detach", "--name", "my-job", "--queue", "default"])?;
    command.args(["--tags", "Red,blue", "--priority", "3", "--app-id-file", "id"]);
    command.args(job.shell("step-computed=sleep(60)", "")?);
    command.args(["--set", "data.passes=8"]);
    let output = command.output()?;
    ensure!(output.status.success(), "{output:?}");
    let id = String::from_utf8(output.stdout)?.trim().to_owned();
    ensure!(std::fs::read_to_string(job.path().join("id"))?.trim() == id, "{id}");

    let mut attached = job.attach(&id)?;
    let view = attached
        .wait_for("it trains", LIMIT, |view| view.state == JobState::Running && view.rows > 0)?;
    ensure!(view.name == "my-job", "{view:#?}");
    let report = attached.report()?;
    ensure!(
        report.name == "my-job" && report.kind == "HEDDLE" && report.priority == 3,
        "{report:?}"
    );
    ensure!(report.tags.iter().any(|tag| tag == "red"), "{report:?}");

    let shown = job.heddle(&["status", &id, "--json"])?;
    let status: serde_json::Value =
        serde_json::from_str(&shown.stdout).with_context(|| format!("{shown:?}"))?;
    ensure!(status["view"]["name"] == "my-job", "{status:#}");
    let listed = job.heddle(&["list", "--yarn"])?;
    ensure!(listed.code == Some(0) && listed.stdout.contains(&id), "{listed:?}");
    let logs = job.heddle(&["logs", &id])?;
    ensure!(
        logs.code == Some(0) && logs.stdout.contains("trainer"),
        "logs of containers that run: {logs:?}"
    );

    let killed = job.heddle(&["kill", &id])?;
    ensure!(killed.code == Some(0), "{killed:?}");
    let (code, events, stderr) = attached.finish(LIMIT)?;
    ensure!(code == Some(3), "{code:?}: {stderr}");
    ensure!(
        matches!(events.last(), Some(JobEvent::Ended { state: JobState::Stopped, .. })),
        "{:?}",
        events.last()
    );
    attached.wait_gone(LIMIT)?;
    let report = attached.report()?;
    ensure!(
        report.state.is_some_and(ApplicationState::is_final)
            && report.final_status == FinalApplicationStatus::Killed,
        "{report:?}"
    );
    ensure!(!job.heddle_names("staging")?.contains(&id), "staging is gone");
    Ok(())
}

#[test]
fn pages_are_behind_the_proxy_and_link_to_the_report() -> Result<()> {
    let job = YarnJob::bsp(cluster()?, "page", SHAPE)?;
    let mut submitted = job.submit(&[], "step-computed=sleep(60)")?;
    submitted.wait_for("it trains from a checkpoint", LIMIT, |view| {
        settled(view) && view.checkpoints_taken > 0
    })?;
    let page = submitted.proxied("/")?;
    for word in ["pserver-0", "trainer-1", "checkpoint"] {
        ensure!(page.contains(word), "no {word} in {page}");
    }
    ensure!(
        !page.contains("href=\"/") && !page.contains("<script"),
        "links are relative and nothing needs a script: {page}"
    );
    let view: JobView = serde_json::from_str(&submitted.proxied("/api/v1/status")?)?;
    ensure!(view.slots.iter().all(|place| place.placement.is_some()), "{view:#?}");
    ensure!(submitted.proxied("/metrics")?.contains("heddle_"), "Prometheus text");
    submitted.ends_well(LIMIT)?;
    // The same link that led to the page: the ResourceManager sends on to the logs.
    let report = submitted.report()?;
    ensure!(report.tracking_url.contains("/proxy/"), "{report:?}");
    let page = cluster()?.browse(&report.tracking_url)?;
    for word in [submitted.id.as_str(), "finished", "pserver-0"] {
        ensure!(page.contains(word), "no {word} in {page}");
    }
    Ok(())
}

#[test]
fn an_application_that_was_killed_is_continued_by_the_next() -> Result<()> {
    let job = YarnJob::bsp(cluster()?, "continued", SHAPE)?;
    let long = ["--set", "data.passes=8"];
    let mut first = job.submit(&long, "step-computed=sleep(40)")?;
    first.wait_for("checkpoints", LIMIT, |view| settled(view) && view.checkpoints_taken >= 3)?;
    first.kill()?;
    first.wait_gone(LIMIT)?;
    let (_, events, _) = first.finish(LIMIT)?;
    let advice = "submit the job again: it continues from its last checkpoint";
    let advised = events.iter().any(|event| match event {
        JobEvent::Ended { message, .. } => message.contains(advice),
        _ => false,
    });
    ensure!(advised, "{events:?}");
    let newest = job.committed()?.pop().context("checkpoints")?;
    // The first one was killed while it wrote its journal.
    let mut second = job.submit(&long, "")?.expecting(&["journal_file_incomplete"]);
    let view = second.ends_well(LIMIT)?;
    let resumed = second.events().iter().find_map(|event| match event {
        JobEvent::Started { resumed_from, .. } => Some(*resumed_from),
        _ => None,
    });
    let from = resumed.flatten().context("it prints from where it continues")?;
    ensure!(from.to_string() == newest, "{from}, and the newest was {newest}");
    ensure!(view.epoch.generation.0 == 2, "{view:#?}");
    let whole = Shape { passes: 8, ..SHAPE };
    job.same_as_local(whole)?;
    Ok(())
}

#[test]
fn one_of_two_concurrent_jobs_shrinks_and_grows() -> Result<()> {
    let cluster = cluster()?;
    let beside = YarnJob::bsp(cluster, "beside", SHAPE)?;
    let mut other = beside.submit(&[], "step-computed=sleep(60)")?;
    let counting = Counting::new(cluster, "scaled", "asp", 60)?;
    let large = ["--set", "pservers.count=3", "--set", "trainers.max=6"];
    let mut submitted =
        counting.job.submit(&large, "step-computed=return(sleep=40,while={slow})")?;
    let trainers = |view: &JobView| {
        let all = view.slots.iter().filter(|place| place.slot.role == Role::Trainer);
        all.filter(|place| place.state == SlotState::Running).count()
    };
    for count in [6, 2, 5] {
        if count != 6 {
            let number = count.to_string();
            let scaled = counting.job.heddle(&["scale", &submitted.id, "trainers", &number])?;
            ensure!(scaled.code == Some(0), "{scaled:?}");
        }
        let view = submitted.wait_for(&format!("{count} trainers"), LIMIT, |view| {
            view.state == JobState::Running && trainers(view) == count
        })?;
        ensure!(view.epoch.count == 0, "nothing is rolled back: {view:#?}");
        submitted.wait_for("they work", LIMIT, |now| now.rows > view.rows)?;
        wait_until("the others have ended", LIMIT, || {
            let processes = submitted.processes();
            ensure!(processes.len() == 1 + 3 + count, "{processes:?}");
            Ok(())
        })?;
    }
    let nodes: std::collections::BTreeSet<_> = submitted
        .processes()
        .iter()
        .filter(|process| process.slot.is_some_and(|slot| slot.role == Role::Pserver))
        .map(|process| process.node)
        .collect();
    // The ApplicationMaster gives up spreading them where other nodes offer nothing in time.
    ensure!(nodes.len() >= 2, "pservers are spread: {nodes:?}");
    other.ends_well(LIMIT)?;
    beside.same_as_local(SHAPE)?;
    counting.job.hurry()?;
    submitted.ends_well(LIMIT)?;
    counting.check()
}
