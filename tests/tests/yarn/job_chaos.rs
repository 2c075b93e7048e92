//! Sessions of `heddle chaos` in jobs with backups on a cluster of four NodeManagers.

use std::thread::scope;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use heddle_protocol::view::JobState;
use heddle_tests::hadoop::{Cluster, Options};
use heddle_tests::hdfs_job::Shape;
use heddle_tests::logs::{OUTAGE, RM_LOST, SILENCE, SLOWNESS};
use heddle_tests::yarn_job::{Counting, Watch, YarnJob};

/// The passes that are left after the last fault take minutes where other jobs keep the processors busy.
const LIMIT: Duration = Duration::from_secs(900);
/// More passes than a session with slow steps has: 38 steps of more than a tenth of a second each.
const PASSES: u32 = 160;
const SHAPE: Shape = Shape { passes: PASSES, every: "20 steps", local_data: false };
/// A backup of each shard, and an attempt for each kill of an ApplicationMaster.
const REPLICATED: [&str; 10] = [
    "--set",
    "run.chaos=true",
    "--set",
    "pservers.count=3",
    "--set",
    "pservers.shards=6",
    "--set",
    "pservers.replicas=1",
    "--set",
    "yarn.max-attempts=10",
];

/// A session of ten minutes in a running job, which then ends well. Returns the faults.
fn session_of_faults(job: &YarnJob<'_>) -> Result<Vec<String>> {
    let submitted = job.submit(&REPLICATED, "step-computed=return(sleep=100,while={slow})")?;
    // Faults of every kind, in a cluster that is a single machine: people are told of silence, cuts, hangs and slowness.
    let told = ["fault_ordered", "_by_order", "container_ended"];
    let mut submitted =
        submitted.expecting(&told).expecting(SILENCE).expecting(SLOWNESS).expecting(OUTAGE);
    submitted = submitted.expecting(RM_LOST);
    Watch::in_a_step(&mut submitted, 2)?;
    let session = ["chaos", &submitted.id, "--seed", "7", "--for", "10m", "--json"];
    let ended = job.heddle(&session)?;
    ensure!(ended.code == Some(0), "{ended:?}");
    let view = submitted.view()?;
    ensure!(view.state == JobState::Running, "the job ended before its faults: {view:?}");
    let mut faults = Vec::new();
    for line in ended.stdout.lines() {
        let line: serde_json::Value = serde_json::from_str(line)?;
        // A file is changed only if a good copy or an older checkpoint stays, which depends on the time of the order.
        if line["fault"].is_string() && line["fault"] != "corrupt" {
            faults.push(format!("{} of {}", line["fault"], line["targets"]));
        } else {
            println!("{}: {line}", submitted.id);
        }
    }
    job.hurry()?;
    let view = submitted.ends_well(LIMIT)?;
    println!("{} recoveries, epoch {:?}", view.recoveries.len(), view.epoch);
    Ok(faults)
}

fn bytes(cluster: &Cluster, name: &str) -> Result<Vec<String>> {
    let job = YarnJob::bsp(cluster, name, SHAPE)?;
    let faults = session_of_faults(&job)?;
    job.same_as_local(SHAPE)?;
    Ok(faults)
}

fn counts(cluster: &Cluster, name: &str) -> Result<Vec<String>> {
    let counting = Counting::new(cluster, name, "asp", PASSES)?;
    let faults = session_of_faults(&counting.job)?;
    counting.check()?;
    Ok(faults)
}

/// The same seed orders the same faults; no update is lost or counted twice, and no byte changes.
#[test]
#[ignore = "nightly: twenty-five minutes"]
fn two_sessions_of_one_seed_order_the_same_faults() -> Result<()> {
    let options = Options {
        datanodes: 3,
        nodemanagers: 4,
        nm_expiry_ms: 8_000,
        am_max_attempts: 10,
        ..Options::default()
    };
    let cluster = &Cluster::start(options)?;
    let mut sessions = Vec::new();
    for number in 1..=2 {
        let pair = scope(|scope| -> Result<_> {
            let counts = scope.spawn(|| counts(cluster, &format!("counts-{number}")));
            let bytes = bytes(cluster, &format!("bytes-{number}")).context("bytes")?;
            Ok([bytes, counts.join().expect("no panic").context("counts")?])
        })?;
        println!("{number}: {pair:#?}");
        sessions.push(pair);
    }
    // A session is a number of minutes: the last fault may fall behind its end.
    for (first, second) in sessions[0].iter().zip(&sessions[1]) {
        let both = first.len().min(second.len());
        ensure!(both >= 10 && first[..both] == second[..both], "{first:?}, then {second:?}");
    }
    Ok(())
}
