//! What a cluster does to jobs by its own rules: takes containers for another queue, renews the tokens of attempts, loses
//! the last word of one that is done. What a user does to them afterwards: moves them to another queue, removes what
//! they left.

use std::collections::BTreeSet;
use std::sync::MutexGuard;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use heddle_protocol::ids::Role;
use heddle_protocol::view::{JobState, JobView, SlotState};
use heddle_storage::{Mode, StorePath, make_dirs};
use heddle_tests::hadoop::{Cluster, Daemon, Hello, Options, Shared, wait_until};
use heddle_tests::hdfs_job::Shape;
use heddle_tests::local::{Ended, kill9};
use heddle_tests::logs::{KILLS, RM_LOST};
use heddle_tests::yarn_job::{Counting, Watch, YarnJob, settled};
use heddle_yarn::client::FinalApplicationStatus;

const LIMIT: Duration = Duration::from_secs(180);

/// The cluster of this file, for one test at a time: one of them takes all of it, another its ResourceManager.
/// Two queues have a half each and may take all; three nodes have room for six containers of 192 MiB each.
fn cluster() -> Result<(&'static Cluster, MutexGuard<'static, ()>)> {
    static CLUSTER: Shared = Shared::new();
    let options = || {
        let property = |file: &str, key: &str, value: &str| {
            let file = format!("{file}.xml");
            (file, key.to_owned(), value.to_owned())
        };
        let queue = |key: &str, value: &str| {
            let key = format!("yarn.scheduler.capacity.root.{key}");
            property("capacity-scheduler", &key, value)
        };
        let preemption = |key: &str, value: &str| {
            let key = format!("yarn.resourcemanager.monitor.capacity.preemption.{key}");
            property("yarn-site", &key, value)
        };
        Options {
            properties: vec![
                property("yarn-site", "yarn.nodemanager.resource.memory-mb", "1152"),
                queue("queues", "default,other"),
                queue("default.capacity", "50"),
                queue("other.capacity", "50"),
                queue("other.maximum-capacity", "100"),
                queue("other.user-limit-factor", "100"),
                property("yarn-site", "yarn.resourcemanager.scheduler.monitor.enable", "true"),
                preemption("monitoring_interval", "300"),
                preemption("max_wait_before_kill", "500"),
                // All that is due at once, not a tenth of the cluster and a fifth of that in each round.
                preemption("total_preemption_per_round", "1.0"),
                preemption("natural_termination_factor", "1.0"),
            ],
            // Several clusters on two cores may keep an ApplicationMaster waiting for some seconds.
            am_expiry_ms: 15_000,
            // More than three times the expiry, or the ResourceManager does not start.
            amrm_token_roll_s: Some(46),
            ..Options::default()
        }
    };
    CLUSTER.alone(options)
}

fn trainers(view: &JobView) -> usize {
    let running = view
        .slots
        .iter()
        .filter(|place| place.slot.role == Role::Trainer && place.state == SlotState::Running);
    running.count()
}

#[test]
fn a_preempted_job_counts_exactly() -> Result<()> {
    const ALL: usize = 15;
    let (cluster, _turn) = cluster()?;
    let counting = Counting::new(cluster, "gives-way", "asp", 10)?;
    // A pass has four tasks of two such steps for each trainer: a preempted trainer is in the middle of one, and mostly
    // cannot hand it back in the half second that is left.
    let slow = "step-computed=return(sleep=8000,while={slow})";
    let first = counting.job.submit(&["--set", "trainers.max=15"], slow)?;
    let mut first = first.expecting(KILLS);
    first.wait_for("it has the whole cluster", LIMIT, |view| {
        settled(view) && trainers(view) == ALL
    })?;

    let shape = Shape::passes(2);
    let job = YarnJob::bsp(cluster, "is-given-way", shape)?;
    let mut second =
        job.submit(&["--queue", "other"], "step-computed=return(sleep=500,while={slow})")?;
    second.wait_for("the other queue's job has its containers", LIMIT, settled)?;
    // Its five containers, its ApplicationMaster's among them, are trainers of the first job, which asks for them again.
    let shrunk = first.wait_for("it has what is left", LIMIT, |view| trainers(view) == ALL - 5)?;
    ensure!(
        shrunk.epoch.count == 0 && shrunk.state == JobState::Running,
        "nothing is rolled back: {shrunk:#?}"
    );
    job.hurry()?;
    second.ends_well(LIMIT)?;
    job.same_as_local(shape)?;

    first.wait_for("it has the whole cluster again", LIMIT, |view| {
        settled(view) && trainers(view) == ALL
    })?;
    counting.job.hurry()?;
    let view = first.ends_well(LIMIT)?;
    let ended = &view.history.ended;
    let causes: BTreeSet<&str> = ended.iter().map(|ended| ended.cause.as_str()).collect();
    println!("{} ended: {causes:?}", view.history.ended_total);
    // A NodeManager that reports first names the killer of the container, not the reason; neither is a failure.
    let is_taken = |cause: &&str| {
        *cause == "was preempted" || cause.contains("Container Killed by ResourceManager")
    };
    ensure!(!causes.is_empty() && causes.iter().all(is_taken), "{view:#?}");
    ensure!(view.epoch.count == 0, "only trainers were taken: {view:#?}");
    counting.check()
}

#[test]
#[ignore = "nightly: waits for the key of the ResourceManager"]
fn renewed_token_opens_new_connections_without_the_old_one() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let rm = Daemon::ResourceManager(1);
    // Three minutes at this pace, a second or two without the pauses.
    let shape = Shape::passes(18);
    let job = YarnJob::bsp(cluster, "token-roll", shape)?;
    let slow = "step-computed=return(sleep=250,while={slow})";
    let mut submitted = job.submit(&[], slow)?.expecting(RM_LOST);
    let watch = Watch::in_a_step(&mut submitted, 1)?;
    let renewed = || {
        let logs = submitted.logs("am.log");
        let count = |log: &String| log.matches("token_renewed").count();
        logs.values().map(count).sum::<usize>()
    };
    let activated = || -> Result<usize> {
        let log = std::fs::read_to_string(cluster.dir().join(format!("{rm}.log")))?;
        Ok(log.matches("Activating next master key").count())
    };
    let known = renewed();
    wait_until("the token is renewed", LIMIT, || {
        ensure!(renewed() > known, "not yet; {}", submitted.story());
        activated()
    })
    .and_then(|known| {
        // From here on the ResourceManager's state holds the new key alone.
        wait_until("the old key is dropped", LIMIT, || {
            ensure!(activated()? > known, "not yet");
            Ok(())
        })
    })?;
    cluster.kill(rm)?;
    cluster.restart(rm)?;
    cluster.wait_ready()?;
    watch.untouched(&mut submitted)?;
    job.hurry()?;
    submitted.ends_well(LIMIT)?;
    let report = submitted.report()?;
    ensure!(report.attempt.is_some_and(|attempt| attempt.attempt == 1), "{report:?}");
    job.same_as_local(shape)
}

#[test]
fn an_attempt_after_a_lost_unregistration_trains_nothing() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let shape = Shape::passes(1);
    // It dies before the ResourceManager receives the end, or with the answer in transit: then no attempt follows.
    for (point, attempts) in [("before-unregister", 2), ("after-unregister", 1)] {
        let job = YarnJob::bsp(cluster, point, shape)?;
        let submitted = job.submit(&[], &format!("{point}=return(exit,attempt=1)"))?;
        let mut submitted = submitted.expecting(&["already_finished"]);
        let view = submitted.ends_well(LIMIT)?;
        ensure!(view.state == JobState::Finished, "{point}: {view:#?}");
        let report = submitted.report()?;
        ensure!(
            report.final_status == FinalApplicationStatus::Succeeded
                && report.attempt.is_some_and(|attempt| attempt.attempt == attempts),
            "{point}: {report:?}"
        );
        let logs = submitted.logs("stderr");
        let later: Vec<_> = logs.keys().filter(|id| id.contains("_02_")).collect();
        ensure!(
            later.len() + 1 == usize::try_from(attempts)?,
            "{point}: an ApplicationMaster and nothing else: {later:?}"
        );
        job.same_as_local(shape)?;
        ensure!(!job.heddle_names("staging")?.contains(&submitted.id), "{point}: staging is gone");
        submitted.wait_gone(LIMIT).context("no process is left")?;
    }
    Ok(())
}

/// A name that Heddle gives to uploaded data, and that of a program.
const UPLOAD: &str = "0123456789abcdef0123456789abcdef";

fn ends_with(ended: &Ended, code: i32, word: &str) -> Result<()> {
    ensure!(ended.code == Some(code), "expected exit code {code}: {ended:?}");
    ensure!(ended.stderr.contains(word), "expected {word:?}: {ended:?}");
    Ok(())
}

/// A directory of alice's below `~/.heddle`.
fn make_dir(cluster: &Cluster, path: &str) -> Result<()> {
    let storage = cluster.storage("alice")?;
    let path = StorePath::parse(&format!("/user/alice/.heddle/{path}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(make_dirs(&*storage, &path, Mode::DIR))?)
}

/// What the user has below `~/.heddle` in these folders.
fn left(job: &YarnJob<'_>) -> Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for folder in ["staging", "reports", "data", "bin", "mine"] {
        all.extend(job.heddle_names(folder)?.into_iter().map(|name| format!("{folder}/{name}")));
    }
    Ok(all)
}

#[test]
#[ignore = "nightly: a job of a minute"]
fn a_live_job_moves_and_keeps_its_files_when_others_go() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let dead = YarnJob::bsp(cluster, "clean-dead", Shape::passes(20))?;
    let killed = dead.submit(&[], "step-computed=return(sleep=4000,while={slow})")?;
    // No process is left that would clean up.
    kill9(killed.client_pid())?;
    killed.kill()?;
    killed.wait_gone(LIMIT)?;

    let job = YarnJob::bsp(cluster, "clean-live", Shape { local_data: true, ..Shape::passes(2) })?;
    // Several minutes at this pace, so that it runs while the commands below do.
    let slow = "step-computed=return(sleep=4000,while={slow})";
    make_dir(cluster, &format!("data/{UPLOAD}"))?;
    make_dir(cluster, "mine/notes")?;
    let mut live = job.submit(&[], slow)?;
    live.wait_for("training", LIMIT, settled)?;
    moves(&job, &live.id)?;
    cleans(cluster, &job, &live.id, &killed.id)?;

    job.hurry()?;
    live.ends_well(LIMIT)?;
    job.same_as_local(Shape { local_data: true, ..Shape::passes(2) })?;
    let of_ended = ["move", &live.id, "default"];
    ends_with(&job.heddle(&of_ended)?, 4, "cannot be moved")?;
    let all = job.heddle(&["clean", "--older-than", "0s"])?;
    ends_with(&all, 0, "removed")?;
    ensure!(left(&job)?.iter().all(|name| name.starts_with("mine/")), "{:?}", left(&job)?);
    ensure!(!job.committed()?.is_empty() && !job.names("model")?.is_empty(), "its output stays");
    Ok(())
}

fn moves(job: &YarnJob<'_>, id: &str) -> Result<()> {
    // With lists of users the ResourceManager does not reveal whether a queue exists.
    let nowhere = job.heddle(&["move", id, "nowhere"])?;
    ends_with(&nowhere, 5, "nowhere")?;
    let parent = job.heddle(&["move", id, "root"])?;
    ends_with(&parent, 4, "root")?;
    let mut others = job.command()?;
    let others = others.env("HADOOP_USER_NAME", "bob").args(["move", id, "other"]).output()?;
    let others = Ended {
        code: others.status.code(),
        stdout: String::new(),
        stderr: String::from_utf8_lossy(&others.stderr).into_owned(),
    };
    ends_with(&others, 5, "MODIFY_APP")?;
    let unknown = job.heddle(&["move", "application_1_0001", "other"])?;
    ends_with(&unknown, 7, "application_1_0001")?;
    let moved = job.heddle(&["move", id, "other", "--json"])?;
    ends_with(&moved, 0, "")?;
    let moved: serde_json::Value = serde_json::from_str(&moved.stdout)?;
    ensure!(moved["queue"].as_str().is_some_and(|queue| queue.ends_with("other")), "{moved}");
    Ok(())
}

fn cleans(cluster: &Cluster, job: &YarnJob<'_>, live: &str, killed: &str) -> Result<()> {
    let before = left(job)?;
    let young = job.heddle(&["clean", "--yarn"])?;
    ends_with(&young, 0, "0 entries")?;
    // A ResourceManager that does not respond may have anything.
    cluster.pause(Daemon::ResourceManager(1))?;
    let silent = job.heddle(&["clean", "--yarn", "--older-than", "0s", "--rm-wait", "1s"]);
    cluster.resume(Daemon::ResourceManager(1))?;
    ends_with(&silent?, 6, "nothing on the cluster was removed")?;
    let dry = job.heddle(&["clean", "--yarn", "--older-than", "0s", "--dry-run", "--json"])?;
    ends_with(&dry, 0, "would be removed")?;
    ensure!(left(job)? == before, "nothing is removed: {:?} and not {before:?}", left(job)?);
    let named = |name: &str| dry.stdout.lines().any(|line| line.contains(name));
    ensure!(named(&format!("reports/{killed}")) && named(UPLOAD) && !named(live), "{dry:?}");

    let cleaned = job.heddle(&["clean", "--yarn", "--older-than", "0s", "--json"])?;
    ends_with(&cleaned, 0, "in use by a job")?;
    ensure!(cleaned.stdout.lines().count() == dry.stdout.lines().count(), "{cleaned:?}");
    let after = left(job)?;
    let has = |folder: &str, part: &str| {
        after.iter().any(|name| name.starts_with(folder) && name.contains(part))
    };
    ensure!(has("staging/", live) && has("reports/", live) && has("bin/", "heddle-"), "{after:?}");
    ensure!(has("data/", "") && has("mine/", ""), "{after:?}");
    ensure!(!has("reports/", killed) && !has("data/", UPLOAD), "{after:?}");
    Ok(())
}

/// A cluster of one host has no place for a backup.
fn backups_without_a_host_are_refused(job: &YarnJob<'_>) -> Result<()> {
    let host = job.cluster().host(Daemon::NodeManager(1));
    for more in [&["--dry-run"][..], &[]] {
        let wanted = [&["--set", "pservers.replicas=1"], more].concat();
        let refused = job.submit_and_wait(&wanted)?;
        ensure!(refused.code == Some(4), "{refused:?}");
        for words in ["pservers.replicas = 1 needs 2 hosts", &format!("1 ({host}) can hold")] {
            ensure!(refused.stderr.contains(words), "no {words:?}: {refused:?}");
        }
    }
    ensure!(job.heddle_names("staging")?.is_empty(), "nothing is left");
    Ok(())
}

/// Pools of a FairScheduler that no administrator declared: what the ResourceManager takes runs, and a refusal has its words.
#[test]
#[ignore = "nightly: a cluster of its own"]
fn a_fair_scheduler_decides_about_undeclared_pools() -> Result<()> {
    let set = |key: &str, value: &str| {
        ("yarn-site.xml".to_owned(), format!("yarn.{key}"), value.to_owned())
    };
    let class = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fair.FairScheduler";
    let allocations = tempfile::NamedTempFile::new()?;
    let open = "<queue name=\"open\" type=\"parent\"/>";
    std::fs::write(allocations.path(), format!("<allocations>{open}</allocations>\n"))?;
    let properties = vec![
        set("resourcemanager.scheduler.class", class),
        set("scheduler.fair.allocation.file", &allocations.path().display().to_string()),
        set("resource-types.memory-mb.increment-allocation", "64"),
    ];
    let cluster = Cluster::start(Options { nodemanagers: 1, properties, ..Options::default() })?;
    let shape = Shape { passes: 1, every: "20 steps", local_data: false };
    let job = YarnJob::bsp(&cluster, "fair", shape)?;
    backups_without_a_host_are_refused(&job)?;
    let ended = job.submit_and_wait(&["--queue", "root.open"])?;
    ensure!(matches!(ended.code, Some(4 | 5)), "a pool of pools: {ended:?}");
    for word in ["the cluster refused the job", "root.open"] {
        ensure!(ended.stderr.contains(word), "no {word}: {ended:?}");
    }
    ensure!(job.heddle_names("staging")?.is_empty(), "nothing is left");
    let mut submitted = job.submit(&["--queue", "research.nlp"], "")?;
    submitted.ends_well(LIMIT)?;
    ensure!(submitted.report()?.queue == "root.research.nlp", "{:?}", submitted.report()?);
    job.same_as_local(shape)
}

#[test]
fn a_program_that_is_copied_to_hdfs_runs() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    Hello::submit(cluster, &["--upload", "--containers", "2", "--", "true"])?.succeed()?;
    let left = cluster.webhdfs("GET", "/user/alice/.hello-yarn", "LISTSTATUS")?;
    ensure!(!left.contains("application_"), "it is removed: {left}");
    Ok(())
}
