//! Ways that a person may take on a cluster, each to its end: algorithms and consistencies, copies of checkpoints, kinds of
//! recovery, late work, values of another job, a site with the recommended settings. Where a model's bytes are determined they
//! are those of the same job without Hadoop.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use heddle_protocol::ids::{Incarnation, Role, Slot};
use heddle_protocol::view::{JobEvent, JobView, RecoveryKind, WarningCode};
use heddle_tests::hadoop::{Cluster, Options, Shared, wait_until};
use heddle_tests::hdfs_job::{Shape, model_at, sums};
use heddle_tests::local::{Ended, kill9};
use heddle_tests::logs::{KILLS, SILENCE, SLOWNESS};
use heddle_tests::yarn_job::{Counting, Submitted, Watch, YarnJob, settled};

use super::job_replicas::is_whole;

const LIMIT: Duration = Duration::from_secs(240);
/// Enough steps for a fault: a test that has done its part lets the job run out.
const LONG: Shape = Shape { passes: 20, every: "20 steps", local_data: false };
const SHORT: Shape = Shape { passes: 4, every: "10 steps", local_data: false };
const SLOW: &str = "step-computed=return(sleep=40,while={slow})";

/// Four nodes, so that three copies of a shard and a further pserver have hosts of their own.
fn cluster() -> Result<&'static Cluster> {
    static CLUSTER: Shared = Shared::new();
    let options = || Options { nodemanagers: 4, am_expiry_ms: 60_000, ..Options::default() };
    CLUSTER.get(options)
}

/// Keys of `[model]` for each algorithm. All of them take labels 0 and 1.
const ALGORITHMS: [(&str, &str); 6] = [
    ("logistic", "algorithm = \"logistic-regression\""),
    ("svm", "algorithm = \"svm\""),
    ("linear", "algorithm = \"linear-regression\""),
    ("softmax", "algorithm = \"softmax-regression\"\nclasses = 2"),
    ("machine", "algorithm = \"factorization-machine\"\nrank = 2"),
    ("kmeans", "algorithm = \"kmeans\"\nclusters = 3"),
];

/// A job file whose places are below `{root}`.
fn job_file(model: &str, training: &str) -> String {
    format!(
        "name = \"path\"\n\
         [data]\ntrain = \"{{root}}/data/*.libsvm\"\ntest = \"{{root}}/data/train-000.libsvm\"\npasses = 3\n\
         [model]\nfeatures = 200\n{model}\n\
         [training]\nseed = 7\n{training}\n\
         [pservers]\ncount = 2\nshards = 4\n[trainers]\nmin = 2\nmax = 2\n\
         [checkpoint]\ndir = \"{{root}}/ckpt\"\nevery = \"20 steps\"\n[output]\nmodel = \"{{root}}/model\"\n"
    )
}

/// The line of figures on the test data.
fn figures(ended: &Ended) -> Result<&str> {
    ensure!(ended.code == Some(0), "{ended:?}");
    ended.stdout.lines().find(|line| line.starts_with("test  ")).context("no figures")
}

/// The first figure of such a line.
fn first_figure(line: &str) -> Result<f64> {
    line.split_whitespace().nth(2).and_then(|word| word.parse().ok()).context("no figure")
}

/// How a job ended, and the files of its model by name.
struct Trained {
    ended: Ended,
    model: BTreeMap<String, Vec<u8>>,
}

/// The job of this file on the cluster and on this machine.
fn there_and_here(job: &YarnJob<'_>, text: &str) -> Result<[Trained; 2]> {
    let place = job.path().join("here");
    std::fs::create_dir_all(&place)?;
    std::os::unix::fs::symlink(job.path().join("data"), place.join("data"))?;
    let here = text.replace("{root}", &place.display().to_string());
    std::fs::write(job.path().join("here.toml"), here)?;
    let ended = job.submit_and_wait(&[])?;
    ensure!(ended.code == Some(0), "{ended:?}");
    let there = Trained { ended, model: job.model()? };
    let ended = job.heddle(&["run", "here.toml"])?;
    ensure!(ended.code == Some(0), "{ended:?}");
    Ok([there, Trained { ended, model: model_at(&place.join("model"))? }])
}

#[test]
#[ignore = "nightly: seventeen jobs"]
fn each_algorithm_trains_as_without_hadoop() -> Result<()> {
    for (name, model) in ALGORITHMS {
        let text = job_file(model, "lanes = 4\nbatch = 8");
        let job = YarnJob::bsp(cluster()?, name, SHORT)?.with_file("path.toml", &text)?;
        let [there, here] = there_and_here(&job, &text).context(name)?;
        let (own, expected) = (figures(&there.ended)?, figures(&here.ended)?);
        ensure!(own == expected, "{name}: {own} and not {expected}");
        let (own, expected) = (sums(&there.model), sums(&here.model));
        ensure!(there.model == here.model, "{name}: {own:?} and not {expected:?}");
        for consistency in ["asp", "ssp"] {
            let stale = if consistency == "ssp" { "\nstaleness = 1" } else { "" };
            let text = job_file(model, &format!("consistency = \"{consistency}\"{stale}"));
            let folder = format!("{name}-{consistency}");
            let job = YarnJob::bsp(cluster()?, &folder, SHORT)?.with_file("path.toml", &text)?;
            if (name, consistency) == ("kmeans", "ssp") {
                let refused = job.submit_and_wait(&[])?;
                ensure!(refused.code == Some(7), "{refused:?}");
                continue;
            }
            let [there, here] = there_and_here(&job, &text).with_context(|| folder.clone())?;
            let [there, here] = [figures(&there.ended)?, figures(&here.ended)?];
            let [own, expected] = [first_figure(there)?, first_figure(here)?];
            ensure!(
                (own - expected).abs() <= 0.1 * expected.abs(),
                "{folder}: {there}, here {here}"
            );
        }
    }
    Ok(())
}

/// The shard files of a checkpoint by shard, the paths on HDFS.
fn shard_files(job: &YarnJob<'_>, checkpoint: &str) -> Result<BTreeMap<String, Vec<String>>> {
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in job.names(&format!("ckpt/{checkpoint}"))? {
        if let Some((shard, _)) = name.strip_prefix("shard-").and_then(|rest| rest.split_once('-'))
            && name.ends_with(".ckpt")
        {
            let path = format!("{}/ckpt/{checkpoint}/{name}", job.root);
            files.entry(shard.to_owned()).or_default().push(path);
        }
    }
    Ok(files)
}

#[test]
#[ignore = "nightly: a job of a minute and Hadoop's shell"]
fn copies_and_a_mirror_mend_a_checkpoint() -> Result<()> {
    let job = YarnJob::bsp(cluster()?, "copied", SHORT)?;
    let mirrors = format!("checkpoint.mirrors=[\"{}/mirror\"]", job.url());
    let mut arguments = vec!["--set", "pservers.replicas=1", "--set", "checkpoint.copies=2"];
    arguments.extend(["--set", "checkpoint.digest=md5+sha256", "--set", &mirrors]);
    let lag = ["backup_lags"];
    job.submit(&arguments, "")?.expecting(&lag).ends_well(LIMIT)?;
    job.same_as_local(SHORT)?;

    let checkpoints = job.checkpoints();
    let mirror = format!("{}/mirror", job.url());
    let checkpoint = |code: i32, arguments: &[&str]| {
        let ended = job.heddle(&[&["checkpoint"], arguments].concat())?;
        ensure!(ended.code == Some(code), "{arguments:?}: {ended:?}");
        Ok(ended)
    };
    job.verify()?;
    checkpoint(0, &["groups", &checkpoints])?;
    checkpoint(0, &["verify", &mirror])?;

    let newest = job.committed()?.pop().context("checkpoints")?;
    let files = shard_files(&job, &newest)?;
    ensure!(files.len() == 2 && files.values().all(|two| two.len() == 2), "{files:?}");
    let remove = |path: &String| cluster()?.dfs("alice", &["-rm", "-skipTrash", path]).map(drop);
    let damage = |path: &String| -> Result<()> {
        let rubbish = job.path().join("rubbish");
        std::fs::write(&rubbish, "rubbish")?;
        let from = rubbish.display().to_string();
        cluster()?.dfs("alice", &["-put", "-f", &from, path]).map(drop)
    };
    // One file of each shard: the other one is enough.
    remove(&files["00000"][0])?;
    damage(&files["00001"][1])?;
    let groups = checkpoint(0, &["groups", &checkpoints])?;
    ensure!(groups.stdout.matches("1 of 2 good").count() == 2, "{groups:?}");
    checkpoint(0, &["repair", &checkpoints])?;
    checkpoint(0, &["groups", &checkpoints])?;

    // Both files of a shard: they come from the mirror.
    let files = shard_files(&job, &newest)?;
    files["00000"].iter().try_for_each(remove)?;
    checkpoint(8, &["groups", &checkpoints])?;
    checkpoint(8, &["verify", &checkpoints])?;
    checkpoint(8, &["repair", &checkpoints])?;
    checkpoint(0, &["repair", &checkpoints, "--from", &mirror])?;
    job.verify()?;

    // The job itself takes what is good.
    let files = shard_files(&job, &newest)?;
    files["00001"].iter().try_for_each(damage)?;
    remove(&files["00000"][1])?;
    arguments.extend(["--set", "data.passes=6", "--resume", "--overwrite"]);
    let copies = ["copy_passed_over", "copy_used", "copy_replaced", "damaged_checkpoint_kept"];
    job.submit(&arguments, "")?.expecting(&lag).expecting(&copies).ends_well(LIMIT)?;
    let longer = YarnJob::bsp(cluster()?, "copied-alone", SHORT)?;
    let expected = longer.local_model(Shape { passes: 6, ..SHORT })?;
    ensure!(job.model()? == expected, "{:?} and not {:?}", sums(&job.model()?), sums(&expected));
    // A restore replaces the files that it passed over, and not one that it did not come to.
    checkpoint(0, &["repair", &checkpoints])?;
    job.verify()?;
    Ok(())
}

/// Waits for a warning of this kind.
fn warned(submitted: &Submitted<'_>, of: WarningCode) -> Result<String> {
    wait_until(of.name(), LIMIT, || {
        let events = submitted.events();
        let found = events.iter().find_map(|event| match event {
            JobEvent::Warning { text, code } if *code == of => Some(text.clone()),
            _ => None,
        });
        found.with_context(|| format!("{events:?}"))
    })
}

#[test]
#[ignore = "nightly: a job of a minute"]
fn two_of_three_copies_may_go_at_once() -> Result<()> {
    let job = YarnJob::bsp(cluster()?, "thrice", LONG)?;
    let three = ["--set", "pservers.count=3", "--set", "pservers.shards=3"];
    let sets = [&three[..], &["--set", "pservers.replicas=2"]].concat();
    let mut submitted = job.submit(&sets, SLOW)?.expecting(KILLS);
    submitted.wait_for("all copies are there", LIMIT, is_whole)?;
    let watch = Watch::in_a_step(&mut submitted, 1)?;
    for slot in [Slot::pserver(0), Slot::pserver(1)] {
        kill9(watch.process(slot)?.pid)?;
    }
    let after = submitted.wait_for("both are replaced", LIMIT, |view| {
        settled(view) && view.recoveries.len() >= watch.view.recoveries.len() + 2
    })?;
    ensure!(after.epoch == watch.view.epoch, "nothing is rolled back: {:#?}", after.recoveries);
    job.hurry()?;
    submitted.ends_well(LIMIT)?;
    job.same_as_local(LONG)
}

#[test]
#[ignore = "nightly: a job of a minute"]
fn lost_shards_alone_return_with_local_recovery() -> Result<()> {
    let job = YarnJob::bsp(cluster()?, "alone", LONG)?;
    let sets = ["--set", "training.consistency=asp", "--set", "pservers.recovery=local"];
    let submitted = job.submit(&sets, SLOW)?;
    let mut submitted = submitted.expecting(KILLS).expecting(&["updates_lost"]);
    let watch = Watch::in_a_step(&mut submitted, 2)?;
    kill9(watch.process(Slot::pserver(1))?.pid)?;
    let is_back = |view: &JobView| {
        settled(view) && view.recoveries.iter().any(|one| one.kind == RecoveryKind::Local)
    };
    submitted.wait_for("its shards are back", LIMIT, is_back)?;
    warned(&submitted, WarningCode::UpdatesLost)?;
    job.hurry()?;
    submitted.ends_well(LIMIT)?;
    let data = format!("{}/data", job.url());
    let scored = job.heddle(&["predict", &format!("{}/model", job.url()), &data])?;
    ensure!(scored.code == Some(0) && scored.stderr.contains("log-loss 0."), "{scored:?}");
    Ok(())
}

#[test]
#[ignore = "nightly: a job of a minute"]
fn spare_takes_the_place_of_a_trainer() -> Result<()> {
    let job = YarnJob::bsp(cluster()?, "spare-trainer", LONG)?;
    let mut submitted = job.submit(&["--set", "trainers.spares=1"], SLOW)?.expecting(KILLS);
    submitted.wait_for("the spare is ready", LIMIT, |view| {
        view.spares.is_some_and(|spares| spares.trainers.ready == 1)
    })?;
    let watch = Watch::in_a_step(&mut submitted, 1)?;
    // Not the spare, which may be any of them.
    let mut slots = watch.view.slots.iter();
    let busy = slots.find(|place| place.slot.role == Role::Trainer && place.total > 0);
    let lost = busy.context("a trainer works")?.slot;
    kill9(watch.process(lost)?.pid)?;
    let after = watch.replaced(&mut submitted, &BTreeSet::from([lost]), 0)?;
    let recovery = after.recoveries.last().context("it is listed")?;
    ensure!(recovery.kind == RecoveryKind::Spare, "{recovery:#?}");
    job.hurry()?;
    submitted.ends_well(LIMIT)?;
    job.same_as_local(LONG)
}

#[test]
#[ignore = "nightly: a job of a minute"]
fn lanes_move_away_from_a_slow_trainer() -> Result<()> {
    let job = YarnJob::bsp(cluster()?, "slow-trainer", SHORT)?;
    // Passes of 150 steps, enough to measure trainers by.
    let four = [
        "--set",
        "trainers.min=4",
        "--set",
        "trainers.max=4",
        "--set",
        "training.lanes=8",
        "--set",
        "training.batch=1",
    ];
    // Five times as long as the others.
    let points = "step-computed=sleep(20);step-slowed=return(sleep=80,slot=1)";
    let mut submitted = job.submit(&four, points)?.expecting(&["trainer_slow"]);
    let text = warned(&submitted, WarningCode::TrainerSlow)?;
    ensure!(text.starts_with("trainer-1 "), "{text}");
    let view = submitted.ends_well(LIMIT)?;
    ensure!(view.recoveries.is_empty(), "{:#?}", view.recoveries);
    job.same_as_local_with(SHORT, &four)
}

#[test]
#[ignore = "nightly: two jobs of a minute"]
fn late_tasks_are_computed_by_others_and_count_once() -> Result<()> {
    // With few files the other trainer is idle when a task is late, with many it has more of them.
    for (name, files, extra) in [("late", 8, "0"), ("later", 48, "1")] {
        let counting = Counting::of_files(cluster()?, name, "asp", 2, [files, 100])?;
        let extra = format!("trainers.extra={extra}");
        let sets = ["--set", "trainers.min=2", "--set", "checkpoint.every=10min", "--set", &extra];
        let points = "step-computed=sleep(20);step-slowed=return(sleep=1480,slot=1)";
        let submitted = counting.job.submit(&sets, points)?;
        let mut submitted = submitted.expecting(SLOWNESS);
        let view = submitted.ends_well(LIMIT).context(name)?;
        counting.check()?;
        ensure!(view.stragglers.is_some_and(|late| late.stopped > 0), "{:?}", view.stragglers);
        ensure!(view.recoveries.is_empty(), "{:#?}", view.recoveries);
        if name == "later" {
            warned(&submitted, WarningCode::ExtraTrainerStarted)?;
        }
    }
    Ok(())
}

#[test]
#[ignore = "nightly: three jobs"]
fn tasks_that_cannot_be_read_are_set_aside_up_to_a_share() -> Result<()> {
    let job = YarnJob::bsp(cluster()?, "poisoned", SHORT)?;
    let poison = job.path().join("poison");
    std::fs::create_dir(&poison)?;
    std::fs::write(poison.join("bad.libsvm"), "what is this\n")?;
    job.upload(&poison, "data")?;
    let asp = ["--set", "training.consistency=asp"];
    let refused = job.submit_and_wait(&asp)?;
    ensure!(refused.code == Some(7) && refused.stderr.contains("bad.libsvm:1"), "{refused:?}");
    let tolerant = [&asp[..], &["--set", "data.failed-share=50%", "--fresh"]].concat();
    let ended = job.submit_and_wait(&tolerant)?;
    ensure!(ended.code == Some(0), "{ended:?}");
    for words in ["set aside", "bad.libsvm"] {
        ensure!(ended.stderr.contains(words), "{words}: {ended:?}");
    }
    Ok(())
}

#[test]
#[ignore = "nightly: a job of a minute"]
fn hung_thread_is_given_up_and_named() -> Result<()> {
    let job = YarnJob::bsp(cluster()?, "hung", LONG)?;
    let switch = job.path().join("hang");
    let hang = format!("return(sleep=60000,slot=0,incarnation=1,while={})", switch.display());
    let submitted = job.submit(&[], &format!("{SLOW};data-turn={hang}"))?;
    let mut submitted = submitted.expecting(KILLS).expecting(SILENCE);
    let watch = Watch::in_a_step(&mut submitted, 2)?;
    std::fs::write(&switch, "")?;
    let lost = wait_until("it is given up", LIMIT, || {
        let lost = submitted.events().into_iter().find_map(|event| match event {
            JobEvent::Lost { slot, cause, .. } => Some((slot, cause)),
            _ => None,
        });
        lost.context("no loss")
    })?;
    ensure!(lost.0 == Slot::pserver(0) && lost.1.contains("hangs: data-0"), "{lost:?}");
    let after = submitted.wait_for("it is replaced", LIMIT, |view| {
        settled(view) && view.recoveries.len() > watch.view.recoveries.len()
    })?;
    for slot in &after.slots {
        let is_first = slot.incarnation == Incarnation(1);
        ensure!(is_first != (slot.slot == Slot::pserver(0)), "{slot:?}");
    }
    job.hurry()?;
    submitted.ends_well(LIMIT)?;
    job.same_as_local(LONG)
}

#[test]
#[ignore = "nightly: two jobs and two local ones"]
fn values_of_another_job_are_taken_from_hdfs() -> Result<()> {
    let first = YarnJob::bsp(cluster()?, "first", SHORT)?;
    first.submit(&[], "")?.ends_well(LIMIT)?;
    first.same_as_local(SHORT)?;
    let second = YarnJob::bsp(cluster()?, "second", SHORT)?;
    let missing = format!("model.init={}/missing", first.url());
    let refused = second.submit_and_wait(&["--set", &missing])?;
    ensure!(refused.code == Some(7) && refused.stderr.contains("missing"), "{refused:?}");
    let init = format!("model.init={}", first.checkpoints());
    second.submit(&["--set", &init], "")?.ends_well(LIMIT)?;
    let local = format!("model.init={}/local/ckpt", first.path().display());
    second.same_as_local_with(SHORT, &["--set", &local])
}

#[test]
#[ignore = "nightly: three jobs, one after the other"]
fn job_goes_on_with_other_pservers_and_its_own_period() -> Result<()> {
    let job = YarnJob::bsp(cluster()?, "resized", LONG)?;
    let auto = ["--set", "checkpoint.every=auto", "--set", "pservers.shards=3"];
    for count in [2, 1, 3] {
        let count = format!("pservers.count={count}");
        let mut sets = [&auto[..], &["--set", &count]].concat();
        if count != "pservers.count=2" {
            sets.push("--resume");
        }
        let mut submitted = job.submit(&sets, SLOW)?;
        let begun = submitted.wait_for("it trains", LIMIT, settled)?;
        submitted.wait_for("steps", LIMIT, |view| settled(view) && view.rows > begun.rows)?;
        if count == "pservers.count=3" {
            job.hurry()?;
            submitted.ends_well(LIMIT)?;
            break;
        }
        let killed = job.heddle(&["kill", &submitted.id, "--checkpoint"])?;
        ensure!(killed.code == Some(0), "{killed:?}");
        submitted.wait_gone(LIMIT)?;
        submitted.finish(LIMIT)?;
    }
    job.same_as_local(LONG)
}

#[test]
#[ignore = "nightly: a job of a minute"]
fn job_outlives_the_loss_of_its_staging_directory() -> Result<()> {
    let job = YarnJob::bsp(cluster()?, "unstaged", LONG)?;
    let mut submitted = job.submit(&[], SLOW)?.expecting(KILLS).expecting(&["plan_removed"]);
    let watch = Watch::in_a_step(&mut submitted, 1)?;
    let staging = format!("/user/alice/.heddle/staging/{}", submitted.id);
    cluster()?.dfs("alice", &["-rm", "-r", "-skipTrash", &staging])?;
    let text = warned(&submitted, WarningCode::PlanRemoved)?;
    ensure!(text.contains(&staging), "{text}");
    let lost = Slot::trainer(0);
    kill9(watch.process(lost)?.pid)?;
    let watch = Watch { since: std::time::Instant::now(), ..watch };
    watch.replaced(&mut submitted, &BTreeSet::from([lost]), 0)?;
    let status = job.heddle(&["status", &submitted.id])?;
    ensure!(status.code == Some(0) && status.stdout.contains("trainer-0"), "{status:?}");
    job.hurry()?;
    submitted.ends_well(LIMIT)?;
    ensure!(!job.heddle_names("staging")?.contains(&submitted.id), "staging is gone");
    job.same_as_local(LONG)
}

/// Names and values of a file of Hadoop's configuration in `yarn-conf/template`.
fn template(file: &str) -> Result<Vec<(String, String)>> {
    let path = format!("{}/../yarn-conf/template/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path)?;
    let between = |line: &str, tag: &str| -> Option<String> {
        let (_, rest) = line.split_once(&format!("<{tag}>"))?;
        Some(rest.split_once(&format!("</{tag}>"))?.0.to_owned())
    };
    let found: Vec<_> = text
        .lines()
        .filter_map(|line| Some((between(line, "name")?, between(line, "value")?)))
        .collect();
    ensure!(found.len() == text.matches("<property>").count(), "a property is not on one line");
    Ok(found)
}

/// What a cluster of one machine cannot have: ZooKeeper, one port for all NodeManagers, GPUs.
const NOT_HERE: [&str; 3] = [
    "yarn.resourcemanager.store.class",
    "yarn.nodemanager.address",
    "yarn.nodemanager.resource-plugins",
];

#[test]
#[ignore = "nightly: a cluster of its own"]
fn job_runs_with_the_recommended_settings_of_a_site() -> Result<()> {
    let mut properties = Vec::new();
    for file in ["yarn-site.xml", "capacity-scheduler.xml"] {
        for (key, value) in template(file)? {
            if !NOT_HERE.contains(&key.as_str()) {
                properties.push((file.to_owned(), key, value));
            }
        }
    }
    let cluster = Cluster::start(Options { properties: properties.clone(), ..Options::default() })?;
    // Hadoop knows each of them: a property that is misspelt has no default.
    for (key, value) in template("yarn-site.xml")? {
        if NOT_HERE.contains(&key.as_str()) {
            continue;
        }
        let answer = cluster.rm_get(&format!("/conf?format=json&name={key}"))?;
        let effective = answer["property"]["value"].as_str().context("no such key in Hadoop")?;
        ensure!(effective == value, "{key}: {effective} and not {value}");
    }
    let job = YarnJob::bsp(&cluster, "recommended", SHORT)?;
    job.submit(&[], "")?.ends_well(LIMIT)?;
    job.same_as_local(SHORT)
}
