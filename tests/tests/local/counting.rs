//! Counting: sample i adds 1 to row i. After kills of trainers and rollbacks of pservers every row equals the number
//! of passes exactly, in ASP, in SSP and in BSP. With the once-only memory switched off the same test fails.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use heddle_protocol::ids::Slot;
use heddle_protocol::view::{
    CheckpointView, JobEvent, JobState, JobView, RecoveryKind, RecoveryView, WarningCode,
};
use heddle_tests::local::{Lot, Run, heddle, kill9, pid_of, program};
use heddle_tests::logs::KILLS;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(240);
const FILES: u64 = 8;
const PASSES: u32 = 3;

/// The table of counts.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// 2,000 rows.
    Dense,
    /// 100,000 keys, apart from each other.
    Sparse,
}

impl Kind {
    /// Samples of a file.
    fn samples(self) -> u64 {
        match self {
            Self::Dense => 250,
            Self::Sparse => 12_500,
        }
    }

    fn keys(self) -> impl Iterator<Item = u64> {
        let apart = match self {
            Self::Dense => 1,
            Self::Sparse => 40_009,
        };
        (0..FILES * self.samples()).map(move |sample| sample * apart)
    }

    /// Lines of the job file: the table, and batches with which a file has 50 steps.
    fn lines(self) -> (String, u64) {
        let size = match self {
            Self::Dense => format!("rows = {}", FILES * self.samples()),
            Self::Sparse => "kind = \"sparse\"".to_owned(),
        };
        (size, self.samples() / 50)
    }
}

fn folder(consistency: &str, kind: Kind) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let keys: Vec<u64> = kind.keys().collect();
    for (file, keys) in keys.chunks(kind.samples() as usize).enumerate() {
        let mut text = String::new();
        for key in keys {
            writeln!(text, "1 {key}").expect("a string takes it");
        }
        std::fs::write(dir.path().join(format!("samples-{file}.dummy")), text).expect("data");
    }
    let trainer = program("counting-trainer").expect("built before");
    let (size, batch) = kind.lines();
    let text = format!(
        "name = \"count\"\n\
         [data]\ntrain = \"samples-*.dummy\"\nformat = \"dummy\"\npasses = {PASSES}\n\
         [model]\nalgorithm = \"custom\"\n\
         [[model.table]]\nname = \"counts\"\n{size}\ncols = 1\noptimizer = {{ kind = \"add\" }}\n\
         [training]\nconsistency = \"{consistency}\"\nlanes = 3\nbatch = {batch}\nseed = 3\n\
         [pservers]\ncount = 2\nshards = 4\n\
         [trainers]\nmin = 1\nmax = 2\ncommand = [\"{}\"]\n\
         [checkpoint]\ndir = \"ckpt\"\nevery = \"15 steps\"\n\
         [output]\nmodel = \"model\"\nformats = [\"safetensors\"]\n",
        trainer.display(),
    );
    std::fs::write(dir.path().join("job.toml"), text).expect("a job file");
    dir
}

/// The table of the published model, by key: a safetensors file has a length, a JSON header, then the values.
fn counts(dir: &Path) -> BTreeMap<u64, f32> {
    let published = std::fs::read(dir.join("model/MODEL.json")).expect("a published model");
    let published = heddle_protocol::model::ModelFile::from_json(&published).expect("a model file");
    let file =
        published.files.iter().find(|file| file.name.ends_with(".safetensors")).expect("written");
    let bytes =
        std::fs::read(dir.join("model").join(&published.dir).join(&file.name)).expect("a file");
    let header_bytes = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + header_bytes]).expect("JSON");
    let tensor = |name: &str| {
        let offsets = header.get(name)?["data_offsets"].as_array()?;
        let at = |index: usize| Some(8 + header_bytes + offsets.get(index)?.as_u64()? as usize);
        bytes.get(at(0)?..at(1)?)
    };
    let values = tensor("counts").expect("counts").chunks_exact(4);
    let values = values.map(|value| f32::from_le_bytes(value.try_into().expect("four bytes")));
    match tensor("counts.keys") {
        None => (0..).zip(values).collect(),
        Some(keys) => {
            let keys = keys.chunks_exact(8);
            let keys = keys.map(|key| u64::from_le_bytes(key.try_into().expect("eight bytes")));
            assert_eq!(keys.len(), values.len());
            keys.zip(values).collect()
        }
    }
}

fn ended(events: &[JobEvent]) -> JobView {
    events
        .iter()
        .find_map(|event| match event {
            JobEvent::Ended { view, .. } => Some((**view).clone()),
            _ => None,
        })
        .expect("the end is reported")
}

/// Runs the job, kills `kills` processes in running steps, and returns the rows and the last view.
fn count_with_kills(
    consistency: &str,
    kind: Kind,
    kills: u32,
    arguments: &[&str],
) -> (BTreeMap<u64, f32>, JobView) {
    let dir = folder(consistency, kind);
    let slow = [("FAILPOINTS", "step-computed=sleep(30)")];
    let mut run = Run::start_with(dir.path(), "job.toml", arguments, &slow).expect("it starts");
    let mut lot = Lot(u64::from(kills));
    for _ in 0..kills {
        let rows = run.view().map(|view| view.rows).unwrap_or(0);
        let view = run
            .wait_for("work goes on", LIMIT, |view| {
                view.state == JobState::Running
                    && view.rows > rows
                    && view.checkpoints_taken > 1
                    && view.slots.iter().all(|place| place.pid > 0)
                    && view.recoveries.iter().all(|recovery| recovery.done)
            })
            .expect("a running step");
        let slot = match lot.below(3) {
            0 => Slot::pserver(lot.below(2) as u32),
            _ => Slot::trainer(lot.below(2) as u32),
        };
        kill9(pid_of(&view, slot).expect("it runs")).expect("it was alive");
        let known = view.recoveries.len();
        run.wait_for("the loss is noticed", LIMIT, |view| view.recoveries.len() > known)
            .expect("noticed");
        std::thread::sleep(Duration::from_millis(lot.below(100)));
    }
    let (code, events, stderr) = run.expecting(KILLS).finish(LIMIT).expect("the run ends");
    assert_eq!(code, Some(0), "{stderr}");
    (counts(dir.path()), ended(&events))
}

fn exact(consistency: &str, kind: Kind) {
    let (rows, view) = count_with_kills(consistency, kind, 12, &[]);
    check_counts(&rows, kind);
    assert!(view.recoveries.len() >= 12, "{}", view.recoveries.len());
    assert!(view.epoch.count >= 2, "fewer than two rollbacks: {:?}", view.epoch);
}

fn check_counts(rows: &BTreeMap<u64, f32>, kind: Kind) {
    assert!(rows.keys().copied().eq(kind.keys()), "{} rows", rows.len());
    let wrong: Vec<_> = rows.iter().filter(|(_, count)| **count != PASSES as f32).collect();
    assert!(
        wrong.is_empty(),
        "{} rows are wrong: {:?}",
        wrong.len(),
        &wrong[..wrong.len().min(10)]
    );
}

#[test]
fn asp_counts_exactly_through_kills() {
    exact("asp", Kind::Dense);
}

#[test]
fn counts_are_exact_through_failovers() {
    for (consistency, kind) in [("asp", Kind::Dense), ("asp", Kind::Sparse), ("ssp", Kind::Dense)] {
        let sets = ["--set", "pservers.replicas=1"];
        let (rows, view) = count_with_kills(consistency, kind, 8, &sets);
        check_counts(&rows, kind);
        let is_failover = |it: &&RecoveryView| it.kind == RecoveryKind::Failover;
        let failovers: Vec<_> = view.recoveries.iter().filter(is_failover).collect();
        println!("{consistency} {kind:?}: {failovers:#?}");
        assert!(!failovers.is_empty(), "{:?}", view.recoveries);
        assert!(failovers.iter().all(|it| it.epoch_before == it.epoch_after));
    }
}

/// The number of pservers changes while the job trains: the epoch stays, and each sample counts once.
#[test]
fn counts_are_exact_while_shards_move() {
    for (consistency, kind) in [("asp", Kind::Sparse), ("ssp", Kind::Dense)] {
        let dir = folder(consistency, kind);
        let sets = ["--set", "pservers.min=1", "--set", "pservers.max=3"];
        let slow = dir.path().join("slow");
        std::fs::write(&slow, "").expect("a file");
        let slow_steps = format!("step-computed=return(sleep=200,while={})", slow.display());
        let slow_steps = [("FAILPOINTS", &*slow_steps)];
        let run = Run::start_with(dir.path(), "job.toml", &sets, &slow_steps);
        let mut run = run.expect("it starts");
        for wanted in [3, 1, 2] {
            let trains = |view: &JobView| view.state == JobState::Running && view.rows > 0;
            let view = run.wait_for("it trains", LIMIT, trains).expect("a running step");
            let id = view.run.to_string();
            let words = ["scale", &id, "pservers", &wanted.to_string()];
            let scaled = heddle(dir.path(), &words).expect("heddle starts");
            assert_eq!(scaled.code, Some(0), "{scaled:?}");
            let settled = |view: &JobView| {
                let served = view.replication.as_ref().map(|copies| copies.served.len());
                let present = view.pservers.as_ref().map(|pservers| pservers.present);
                (served, present) == (Some(wanted as usize), Some(wanted))
            };
            let view = run.wait_for("the number", LIMIT, settled).expect("shards move");
            println!("{consistency} {kind:?}: {:?} {:?}", view.pservers, view.replication);
            assert_eq!((view.epoch.count, view.recoveries.len()), (0, 0), "no rollback");
            let places = heddle(dir.path(), &["shards", &id, "--json"]).expect("heddle starts");
            let places: Vec<Value> = serde_json::from_str(&places.stdout).expect("JSON");
            let serving: BTreeSet<&str> =
                places.iter().filter_map(|shard| shard["served_by"].as_str()).collect();
            assert_eq!((places.len(), serving.len()), (4, wanted as usize), "{places:?}");
        }
        std::fs::remove_file(slow).expect("it is there");
        let (code, events, stderr) = run.finish(LIMIT).expect("the run ends");
        assert_eq!(code, Some(0), "{stderr}");
        check_counts(&counts(dir.path()), kind);
        assert_eq!(ended(&events).epoch.count, 0);
    }
}

/// Kills the process in this slot, and waits for the notice.
fn lose(run: &mut Run, view: &JobView, slot: Slot) {
    kill9(pid_of(view, slot).expect("it runs")).expect("it was alive");
    let known = view.recoveries.len();
    run.wait_for("the loss is noticed", LIMIT, |view| view.recoveries.len() > known)
        .expect("noticed");
}

/// Each step adds 1 to a row of either shard. So a step that a lost shard does not get again is an update that is lost and a
/// count that is missing.
#[test]
fn local_recovery_reports_the_updates_that_the_counts_lack() {
    let dir = folder("asp", Kind::Dense);
    for file in 0..FILES {
        let rows = (file * 125..(file + 1) * 125).flat_map(|row| [row, 1_000 + row]);
        let text: String = rows.map(|row| format!("1 {row}\n")).collect();
        std::fs::write(dir.path().join(format!("samples-{file}.dummy")), text).expect("data");
    }
    let sets = [
        "pservers.recovery=\"local\"",
        "pservers.shards=2",
        "training.batch=2",
        // A task is a file. One cut in the middle would end with a step of one row.
        "data.task-size=\"1MiB\"",
        "checkpoint.every=\"300 steps\"",
    ];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let slow = [("FAILPOINTS", "step-computed=sleep(15)")];
    let mut run = Run::start_with(dir.path(), "job.toml", &sets, &slow).expect("it starts");
    let works = |view: &JobView| {
        view.state == JobState::Running
            && view.slots.iter().all(|place| place.pid > 0)
            && view.recoveries.iter().all(|recovery| recovery.done)
    };
    // One in each pass, after a checkpoint of the pass.
    let mut before = None;
    for slot in [Slot::pserver(0), Slot::pserver(1), Slot::pserver(0)] {
        let saved = |view: &JobView| {
            // The first one has initial values.
            let in_pass = |saved: &CheckpointView| saved.phase == view.phase && saved.bytes > 0;
            Some(view.phase) > before && view.checkpoints.last().is_some_and(in_pass)
        };
        let view = run.wait_for("a checkpoint", LIMIT, |view| works(view) && saved(view));
        let (phase, rows) = view.map(|view| (view.phase, view.rows)).expect("in this pass");
        before = Some(phase);
        let view = run.wait_for("more steps", LIMIT, |view| works(view) && view.rows > rows + 200);
        lose(&mut run, &view.expect("a running step"), slot);
    }
    let view = run.wait_for("work goes on", LIMIT, works).expect("a running step");
    lose(&mut run, &view, Slot::trainer(1));
    let expected = [KILLS[0], "updates_lost"];
    let (code, events, stderr) = run.expecting(&expected).finish(LIMIT).expect("the run ends");
    assert_eq!(code, Some(0), "{stderr}");
    let (rows, view) = (counts(dir.path()), ended(&events));
    let more = rows.iter().find(|(_, count)| **count > PASSES as f32);
    assert_eq!(more, None, "counted twice");
    let counted: f64 = rows.values().map(|count| f64::from(*count)).sum();
    let missing = f64::from(PASSES) * rows.len() as f64 - counted;
    let local = view.recoveries.iter().filter(|it| it.kind == RecoveryKind::Local);
    let each: Vec<Option<u64>> = local.map(|it| it.updates_lost).collect();
    println!("lost {each:?}: {missing} counts are missing");
    let Ok([first, second, third]) = <[Option<u64>; 3]>::try_from(each) else {
        panic!("{:?}", view.recoveries)
    };
    let missing_of = |shard: std::ops::Range<u64>| {
        let counted: f64 =
            shard.clone().filter_map(|row| rows.get(&row)).map(|it| f64::from(*it)).sum();
        Some(shard.count() as u64 * u64::from(PASSES) - counted as u64)
    };
    // Each loss took its own shard back: the other one lacks nothing of it.
    assert_eq!(missing_of(0..1_000), first.zip(third).map(|(first, third)| first + third));
    assert_eq!(missing_of(1_000..2_000), second);
    assert!([first, second, third].iter().all(|lost| lost.is_some_and(|lost| lost > 0)));
    assert_eq!(view.updates_lost, Some(missing as u64));
    let end = format!(": {} updates are lost. To lose fewer,", first.unwrap_or(0));
    let told = events.iter().any(|event| match event {
        JobEvent::Warning { text, code: WarningCode::UpdatesLost } => {
            text.starts_with("shard 0 returned to step ") && text.contains(&end)
        }
        _ => false,
    });
    assert!(told, "{events:?}");
    let report = heddle(dir.path(), &["report"]).expect("heddle starts");
    assert!(report.stdout.contains("updates lost"), "{report:?}");
}

#[test]
fn ssp_counts_exactly_through_kills() {
    exact("ssp", Kind::Dense);
}

#[test]
#[ignore = "nightly: half a minute"]
fn bsp_counts_exactly_through_kills() {
    exact("bsp", Kind::Dense);
}

#[test]
fn asp_counts_sparse_rows_exactly_through_kills() {
    exact("asp", Kind::Sparse);
}

#[test]
#[ignore = "nightly: half a minute"]
fn ssp_counts_sparse_rows_exactly_through_kills() {
    exact("ssp", Kind::Sparse);
}

#[test]
#[ignore = "nightly: half a minute"]
fn bsp_counts_sparse_rows_exactly_through_kills() {
    exact("bsp", Kind::Sparse);
}

#[test]
fn undisturbed_count_is_exact_and_passes_md5sum() {
    let dir = folder("asp", Kind::Dense);
    let ended = heddle(dir.path(), &["run", "job.toml"]).expect("heddle starts");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(counts(dir.path()).values().all(|count| *count == PASSES as f32));
    let mut checked = 0;
    for entry in std::fs::read_dir(dir.path().join("ckpt")).expect("checkpoints") {
        let path = entry.expect("readable").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with('g') {
            let output = std::process::Command::new("sh")
                .args(["-c", "md5sum --strict -c *.md5"])
                .current_dir(&path)
                .output()
                .expect("md5sum runs");
            assert!(output.status.success(), "{output:?}");
            checked += 1;
        }
    }
    assert!(checked >= 2, "{checked} checkpoints");
}
