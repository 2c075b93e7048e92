//! What a cluster refuses, and what must not happen twice: refusals with their exit codes and without remains, tokens of
//! submissions, clients that die, memory that is exceeded, secrets that other users cannot read.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use heddle_protocol::ids::Slot;
use heddle_protocol::view::{JobEvent, JobState};
use heddle_tests::canaries::Canaries;
use heddle_tests::hadoop::{Cluster, Options, Shared, wait_until};
use heddle_tests::hdfs_job::Shape;
use heddle_tests::local::{Ended, kill9};
use heddle_tests::yarn_job::{YarnJob, settled};
use heddle_yarn::Memory;
use heddle_yarn::client::ApplicationFilter;

const LIMIT: Duration = Duration::from_secs(180);
const SHAPE: Shape = Shape { passes: 2, every: "20 steps", local_data: false };
const LONG: Shape = Shape { passes: 20, every: "20 steps", local_data: false };
/// What the client's configuration hides, and what the job must not carry around.
const CANARY: &str = "canary-of-a-password";
/// A value of `yarn.secrets`.
const USER_SECRET: &str = "canary-of-a-users-secret";

/// One cluster for all tests of this file, with a queue in which an ApplicationMaster and one more container fit.
fn cluster() -> Result<&'static Cluster> {
    static CLUSTER: Shared = Shared::new();
    let options = || {
        let scheduler = |key: &str, value: &str| {
            let key = format!("yarn.scheduler.capacity.root.{key}");
            ("capacity-scheduler.xml".to_owned(), key, value.to_owned())
        };
        let client = |key: &str, value: &str| {
            let file = "client-yarn-site.xml".to_owned();
            (file, key.to_owned(), value.to_owned())
        };
        let core = |key: &str| ("core-site.xml".to_owned(), key.to_owned(), CANARY.to_owned());
        Options {
            properties: vec![
                // Credentials of cloud stores, as sites have them beside HDFS.
                core("fs.azure.account.key.store.blob.core.windows.net"),
                core("fs.azure.sas.container.store.blob.core.windows.net"),
                core("fs.adl.oauth2.refresh.token"),
                core("fs.s3a.access.key"),
                core("fs.s3a.secret.key"),
                core("fs.s3a.session.token"),
                core("fs.s3a.server-side-encryption.key"),
                core("fs.gs.auth.service.account.private.key"),
                core("fs.oss.accessKeySecret"),
                core("ssl.client.keystore.pass"),
                core("fs.gs.proxy.password"),
                core("fs.azure.account.oauth2.client.secret"),
                scheduler("queues", "default,tiny"),
                scheduler("default.capacity", "90"),
                scheduler("tiny.capacity", "10"),
                scheduler("tiny.maximum-capacity", "10"),
                scheduler("tiny.user-limit-factor", "100"),
                client("my.own.password", CANARY),
                client("yarn.scheduler.minimum-allocation-mb", "64"),
                // As the daemons have it.
                client("yarn.acl.enable", "true"),
                client("yarn.admin.acl", " "),
            ],
            am_expiry_ms: 60_000,
            ..Options::default()
        }
    };
    CLUSTER.get(options)
}

/// Applications in the ResourceManager's list.
fn applications(cluster: &Cluster) -> Result<BTreeSet<String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let all = cluster.yarn("alice")?.applications(&ApplicationFilter::default()).await?;
        Ok(all.iter().map(|report| report.id.to_string()).collect())
    })
}

fn says(ended: &Ended, code: i32, words: &[&str]) -> Result<()> {
    ensure!(ended.code == Some(code), "expected exit code {code}: {ended:?}");
    for word in words {
        ensure!(ended.stderr.contains(word), "expected {word:?}: {ended:?}");
    }
    Ok(())
}

#[test]
fn a_job_that_cannot_run_is_rejected_at_submission() -> Result<()> {
    let cluster = cluster()?;
    let job = YarnJob::bsp(cluster, "refused", SHAPE)?;
    let root = job.url();
    let (missing, local) = (
        format!("data.train={root}/nowhere/*.libsvm"),
        format!("checkpoint.dir={}/here", job.path().display()),
    );
    let fpga = "trainers.resources={ \"yarn.io/fpga\" = 1 }";
    for (setting, code, words) in [
        ("trainers.memory=9GiB", 4, &["trainers.memory"][..]),
        (fpga, 4, &["yarn.io/fpga"]),
        ("yarn.queue=nowhere", 4, &["nowhere", "default"]),
        ("yarn.node-label=gold", 4, &["gold"]),
        (missing.as_str(), 7, &["data.train", "nowhere"]),
        (local.as_str(), 7, &["checkpoint.dir", "hdfs://"]),
    ] {
        let ended = job.submit_and_wait(&["--set", setting])?;
        says(&ended, code, words)?;
    }
    job.upload(&job.path().join("data"), "model")?;
    cluster.webhdfs(
        "PUT",
        &format!("{}/model/train-000.libsvm", job.root),
        &format!("RENAME&destination={}/model/MODEL.json", job.root),
    )?;
    says(&job.submit_and_wait(&[])?, 7, &["output.model", "--overwrite"])?;
    let own = [
        "--set",
        "data.train=data/train-*.libsvm",
        "--set",
        "checkpoint.dir=",
        "--set",
        "output.model=",
    ];
    let homeless = job.submit_as("newcomer", &own)?;
    says(&homeless, 5, &["home directory", "/user/newcomer", "administrator"])?;

    // Other tests submit beside this one: what they have staged becomes an application a moment later.
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let staged = job.heddle_names("staging")?;
        let known = applications(cluster)?;
        let Some(id) = staged.iter().find(|id| !known.contains(*id)) else { break };
        ensure!(Instant::now() < end, "{id} was not submitted and left things on HDFS");
        std::thread::sleep(Duration::from_millis(500));
    }
    let left = job.names("")?;
    ensure!(left.iter().all(|name| ["data", "model"].contains(&name.as_str())), "{left:?}");
    Ok(())
}

#[test]
fn a_dry_run_writes_nothing_and_prints_the_plan() -> Result<()> {
    let job = YarnJob::bsp(cluster()?, "dry", SHAPE)?;
    let ended = job.submit_and_wait(&["--dry-run", "--json"])?;
    ensure!(ended.code == Some(0), "{ended:?}");
    let plan: serde_json::Value = serde_json::from_str(&ended.stdout)?;
    // 160 MiB and a tenth, in steps of 64 MiB: two pservers, two trainers and the ApplicationMaster.
    ensure!(plan["total_max"]["memory_mib"] == 5 * 192, "{plan:#}");
    ensure!(plan["train_tasks"].as_u64().is_some_and(|tasks| tasks >= 4), "{plan:#}");
    let elastic = ["pservers.min=1", "pservers.max=4", "pservers.shards=4"];
    let elastic = elastic.iter().flat_map(|key| ["--set", *key]);
    let elastic: Vec<&str> = ["--dry-run"].into_iter().chain(elastic).collect();
    let elastic = job.submit_and_wait(&elastic)?;
    let sizes = "2, later 1 to 4 × ";
    ensure!(elastic.code == Some(0) && elastic.stdout.contains(sizes), "{elastic:?}");
    let many = [
        "--dry-run",
        "--set",
        "training.lanes=500",
        "--set",
        "trainers.min=500",
        "--set",
        "trainers.max=500",
    ];
    let large = job.submit_and_wait(&many)?;
    let note = "the job cannot begin on this cluster";
    ensure!(large.code == Some(0) && large.stdout.contains(note), "{large:?}");
    let beyond_tiny = ["yarn.queue=tiny", "training.lanes=6", "trainers.min=6", "trainers.max=6"];
    for (sets, words) in [
        (&["yarn.queue=nope"][..], "nope: the cluster does not list it"),
        (&beyond_tiny, "the job cannot begin in queue \"tiny\": it needs "),
        (&["yarn.priority=50"], "yarn.cluster.max-application-priority"),
    ] {
        let mut arguments = vec!["--dry-run"];
        sets.iter().for_each(|set| arguments.extend(["--set", set]));
        // The ResourceManager's web server has half a second for its answer.
        wait_until(words, LIMIT, || {
            let noted = job.submit_and_wait(&arguments)?;
            ensure!(noted.code == Some(0) && noted.stdout.contains(words), "{noted:?}");
            Ok(())
        })?;
    }
    // A proxy that connects over https alone blocks the pages.
    let strict = "yarn.resourcemanager.application-https.policy=STRICT";
    let noted = job.submit_and_wait(&["--dry-run", "--conf", strict])?;
    let note = "blocks the job's pages";
    ensure!(noted.code == Some(0) && noted.stdout.contains(note), "{noted:?}");
    ensure!(job.names("")? == ["data"], "{:?}", job.names("")?);
    Ok(())
}

#[test]
fn a_full_queue_ends_the_job_after_its_timeout() -> Result<()> {
    let cluster = cluster()?;
    let job = YarnJob::bsp(cluster, "full", SHAPE)?;
    let mut submitted =
        job.submit(&["--queue", "tiny", "--set", "yarn.allocation-timeout=5s"], "")?;
    let (code, events, stderr) = submitted.finish(LIMIT)?;
    ensure!(code == Some(75), "{code:?}: {stderr}; {}", submitted.story());
    let message = events.iter().rev().find_map(|event| match event {
        JobEvent::Ended { message, .. } => Some(message.clone()),
        _ => None,
    });
    let message = message.context("its end is reported")?;
    ensure!(
        message.contains("tiny") || message.contains("queue"),
        "the holder of the queue: {message}"
    );
    submitted.wait_gone(LIMIT)?;
    ensure!(!job.heddle_names("staging")?.contains(&submitted.id), "staging is gone");
    ensure!(job.committed()?.is_empty(), "nothing was trained");
    Ok(())
}

#[test]
fn second_job_in_the_same_places_is_refused_by_name() -> Result<()> {
    let job = YarnJob::bsp(cluster()?, "twice", LONG)?;
    let mut first =
        job.submit(&["--set", "yarn.view-acl=bob,dr.who"], "step-computed=sleep(60)")?;
    first.wait_for("it trains", LIMIT, settled)?;
    // Its page is for those whom its owner names, too.
    for friend in ["/", "/?user.name=bob"] {
        let page = first.proxied(friend)?;
        ensure!(page.contains("trainer-1"), "{page}");
    }
    let second = job.submit_and_wait(&[])?;
    says(&second, 9, &[&first.id])?;
    let view = first.view()?;
    ensure!(view.recoveries.is_empty() && view.epoch.count == 0, "{view:#?}");
    first.kill()?;
    first.wait_gone(LIMIT)
}

#[test]
fn a_second_job_with_the_same_output_is_rejected() -> Result<()> {
    let job = YarnJob::bsp(cluster()?, "shared", LONG)?;
    let mut late = job.submit(&[], "step-computed=return(sleep=60,while={slow})")?;
    late.wait_for("it trains", LIMIT, settled)?;
    let other = format!("checkpoint.dir={}/ckpt-of-the-first", job.url());
    let mut early = job.submit(&["--set", &other, "--set", "data.passes=2"], "")?;
    early.ends_well(LIMIT)?;
    let short = Shape { passes: 2, ..LONG };
    job.same_as_local(short)?;
    let published = job.entries("model")?;

    // The submission could not know; the end does.
    job.hurry()?;
    let (code, events, stderr) = late.finish(LIMIT)?;
    ensure!(code == Some(7), "{code:?}: {stderr}; {}", late.story());
    let message = events.iter().rev().find_map(|event| match event {
        JobEvent::Ended { message, .. } => Some(message.clone()),
        _ => None,
    });
    let message = message.context("its end is reported")?;
    ensure!(
        message.contains("MODEL.json exists already") && message.contains("--overwrite"),
        "{message}"
    );
    let report = late.report()?;
    ensure!(
        report.attempt.is_some_and(|attempt| attempt.attempt == 1),
        "another attempt would find the same: {report:?}"
    );
    ensure!(
        job.entries("model")? == published,
        "{:?} and not {published:?}",
        job.entries("model")?
    );
    // What it has learnt is not lost.
    let elsewhere = format!("output.model={}/model-of-the-other", job.url());
    let mut again = job.submit(&["--resume", "--set", &elsewhere], "")?;
    let last = job.committed()?.pop().context("checkpoints")?;
    again.ends_well(LIMIT)?;
    let resumed = again.events().iter().find_map(|event| match event {
        JobEvent::Started { resumed_from, .. } => Some(*resumed_from),
        _ => None,
    });
    ensure!(
        resumed.flatten().is_some_and(|from| from.to_string() == last),
        "{resumed:?} and not {last}"
    );
    ensure!(
        job.names("model-of-the-other")?.contains(&"MODEL.json".to_owned()),
        "its model is there"
    );
    late.wait_gone(LIMIT)
}

#[test]
fn the_next_submission_deletes_files_of_a_killed_application() -> Result<()> {
    let job = YarnJob::bsp(cluster()?, "left", LONG)?;
    // Submissions of other tests would delete them too.
    let home = format!("submit.staging={}", job.url());
    let home = ["--set", &home];
    let staging = || -> Result<Vec<String>> {
        Ok(job.entries(".heddle/staging")?.into_iter().map(|(name, _)| name).collect())
    };
    let first = job.submit(&home, "step-computed=sleep(60)")?;
    // No process is left that would clean up.
    kill9(first.client_pid())?;
    first.kill()?;
    first.wait_gone(LIMIT)?;
    ensure!(staging()?.contains(&first.id), "it was not removed");
    let second = job.submit_and_wait(&[home[0], home[1], "--detach"])?;
    ensure!(second.code == Some(0), "{second:?}");
    let id = second.stdout.trim();
    let staging = staging()?;
    ensure!(
        !staging.contains(&first.id) && staging.iter().any(|name| name == id),
        "{} is over, {id} lives: {staging:?}",
        first.id
    );
    let killed = job.heddle(&["kill", id])?;
    ensure!(killed.code == Some(0), "{killed:?}");
    Ok(())
}

#[test]
fn a_submit_token_makes_one_application_if_the_client_dies() -> Result<()> {
    let job = YarnJob::bsp(cluster()?, "token", SHAPE)?;
    let token = ["--submit-token", "nightly-2026-11-21"];
    let first = job.submit(&token, "step-computed=sleep(60)")?;
    let second = job.submit(&token, "step-computed=sleep(60)")?;
    ensure!(first.id == second.id, "{} and {}", first.id, second.id);
    kill9(first.client_pid())?;
    kill9(second.client_pid())?;
    let id = first.id.clone();
    // Dropping them would end the application.
    std::mem::forget((first, second));
    let mut attached = job.attach(&id)?;
    let (code, events, stderr) = attached.finish(LIMIT)?;
    ensure!(code == Some(0), "{code:?}: {stderr}; {}", attached.story());
    ensure!(
        matches!(events.last(), Some(JobEvent::Ended { state: JobState::Finished, .. })),
        "{:?}",
        events.last()
    );
    job.same_as_local(SHAPE)?;
    let late = job.heddle(&["attach", &id])?;
    ensure!(late.code == Some(0), "the end is reported afterwards too: {late:?}");
    Ok(())
}

#[test]
fn a_container_over_its_memory_is_retried_with_more() -> Result<()> {
    let job = YarnJob::bsp(cluster()?, "memory", SHAPE)?;
    // The shell that becomes the trainer first starts what eats the container's memory: tail keeps a line without end.
    let hog = "case \"$HEDDLE_SLOT-$HEDDLE_INCARNATION\" in\n\
               trainer-1-1) { head -c 400000000 /dev/zero; sleep 30; } 2>/dev/null | tail >/dev/null 2>&1 & ;;\nesac";
    let submitted = job.submit_with_shell(&[], "step-computed=sleep(80)", hog)?;
    let mut submitted = submitted.expecting(&["memory_raised"]);
    let view = submitted.wait_for("the trainer is replaced", LIMIT, |view| {
        settled(view) && view.history.ended_total > 0
    })?;
    let slot = Slot::trainer(1);
    let ended = view.history.ended.iter().find(|ended| ended.slot == slot);
    let cause = &ended.with_context(|| format!("{view:#?}"))?.cause;
    ensure!(cause.contains("of 192 MB physical"), "both figures: {cause}");
    let said: String = submitted.logs("am.log").into_values().collect();
    ensure!(said.contains("instead of trainers.memory"), "the key to change: {said}");
    let place = view.slots.iter().find(|place| place.slot == slot);
    let placement = place.and_then(|place| place.placement.clone());
    let container = placement.context("the replacement is known")?.container.parse()?;
    let report = submitted.container(container)?;
    // Half as much again: 240 MiB and a tenth, in steps of 64 MiB.
    ensure!(report.resources.memory == Memory::mib(320), "{report:?}");
    submitted.ends_well(LIMIT)?;
    job.same_as_local(SHAPE)?;
    Ok(())
}

#[test]
fn secrets_are_in_credentials_and_nowhere_else() -> Result<()> {
    let cluster = cluster()?;
    let job = YarnJob::bsp(cluster, "secrets", LONG)?;
    let key = job.path().join("key");
    std::fs::write(&key, USER_SECRET)?;
    let user_secret = format!("yarn.secrets={{ KEY = \"file:{}\" }}", key.display());
    let mut submitted = job.submit(&["--set", &user_secret], "step-computed=sleep(60)")?;
    submitted.wait_for("it trains", LIMIT, settled)?;
    let id = submitted.id.clone();
    let secret =
        cluster.dfs("alice", &["-cat", &format!("/user/alice/.heddle/staging/{id}/secret")])?;
    let secret = secret.trim_ascii().to_vec();
    ensure!(secret.len() == 64, "64 digits, of {}", secret.len());
    let mut canaries = Canaries::new(vec![
        ("the job's secret", secret),
        ("a value of the client's configuration", CANARY.into()),
        ("a value of yarn.secrets", USER_SECRET.into()),
    ])?;

    // What NodeManagers keep of containers, their logs, and their own: credentials files are the place for secrets.
    for n in 1..=3 {
        // What a NodeManager writes down to recover by is its own, as its memory is.
        for part in ["local", "logs"] {
            let dir = cluster.dir().join(format!("nm{n}/{part}"));
            canaries.look_below(&dir, &["container_tokens", ".tokens"]);
        }
    }
    canaries.look_at_processes(&submitted.processes());
    for path in ["/", "/api/v1/status", "/metrics"] {
        canaries.look_at(path, submitted.get(path)?);
    }
    for arguments in [&["status", &id][..], &["status", &id, "--json"], &["logs", &id]] {
        canaries.look_at(&format!("{arguments:?}"), format!("{:?}", job.heddle(arguments)?));
    }
    let of_rm = cluster.rm_get(&format!("/ws/v1/cluster/apps/{id}"))?;
    canaries.look_at("REST of the ResourceManager", of_rm.to_string());
    // Nor the job itself, for users that its owner does not name: the proxy names the requesting user.
    submitted.proxied("/?user.name=alice")?;
    for stranger in ["/", "/api/v1/job", "/?user.name=bob"] {
        let refused = submitted.proxied(stranger);
        ensure!(
            refused.as_ref().is_err_and(|error| format!("{error:#}").contains(": 403 ")),
            "{stranger}: {refused:?}"
        );
    }
    let staging = format!("/user/alice/.heddle/staging/{id}");
    let staged = ["-cat", &format!("{staging}/*.json"), &format!("{staging}/conf/*")];
    canaries.look_at("staging", cluster.dfs("alice", &staged)?);
    submitted.kill()?;
    submitted.wait_gone(LIMIT)?;
    canaries.look_at("the application's report", format!("{:?}", submitted.report()?));
    canaries.are_nowhere()
}
