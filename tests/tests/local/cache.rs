//! `data.cache`: the model has the same bytes, and files that change are not trained on.

use std::path::Path;
use std::time::{Duration, SystemTime};

use heddle_protocol::ids::Slot;
use heddle_protocol::process_figures::ProcessFigure;
use heddle_protocol::view::JobView;
use heddle_tests::local::{Run, kill9, model_values, pid_of};
use heddle_tests::logs::KILLS;
use tempfile::TempDir;

use super::tables::{IN_ORDER, folder, run, table};

const LIMIT: Duration = Duration::from_secs(120);
const RECORDS: u32 = 2_000;

/// A table of several tasks, with two records that are not read.
fn job() -> TempDir {
    let mut text = table(IN_ORDER, ",", "", RECORDS);
    text.push_str("u,1\n");
    text.insert_str(text.find("u7,").expect("a record"), "v,2\n");
    folder("data.csv", &text, "format = \"csv\"\nbad-records = \"skip:4\"")
}

const TASKS: [&str; 2] = ["data.task-size=4KiB", "data.passes=4"];

fn start(dir: &Path, sets: &[&str]) -> Run {
    let switch = dir.join("slow");
    std::fs::write(&switch, "").expect("written");
    let slow = format!("step-computed=return(sleep=20,while={})", switch.display());
    let all: Vec<&str> = TASKS.iter().chain(sets).flat_map(|set| ["--set", set]).collect();
    Run::start_with(dir, "job.toml", &all, &[("FAILPOINTS", &slow)])
        .expect("it starts")
        .expecting(&["bad_records"])
}

fn from_cache(view: &JobView) -> u64 {
    view.figures.get(ProcessFigure::CachedRows)
}

#[test]
fn kept_records_give_the_bytes_of_records_that_are_read_again() {
    let off = job();
    let ended = run(off.path(), &TASKS);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let bad = ended.stdout.lines().find(|line| line.contains("bad records")).map(str::to_owned);
    assert!(bad.is_some(), "{}", ended.stdout);
    let expected = model_values(off.path());
    // With too little room for all, too.
    for sets in [
        &["data.cache=memory"][..],
        &["data.cache=disk"],
        &["data.cache=memory", "data.cache-size=40KiB", "trainers.max=1", "trainers.min=1"],
    ] {
        let dir = job();
        let mut going = start(dir.path(), sets);
        let view = going.wait_for("kept records", LIMIT, |view| from_cache(view) > 1_000);
        assert!(view.expect("it trains").figures.get(ProcessFigure::CachedBytes) > 0);
        std::fs::remove_file(dir.path().join("slow")).expect("it is there");
        let (code, _, stderr) = going.finish(LIMIT).expect("it ends");
        assert_eq!(code, Some(0), "{stderr}");
        assert_eq!(model_values(dir.path()), expected, "{sets:?}");
    }
}

#[test]
fn trainers_of_a_queue_get_the_tasks_that_they_keep() {
    let dir = job();
    let sets = ["data.cache=disk", "training.consistency=asp", "data.passes=6"];
    let mut going = start(dir.path(), &sets).expecting(KILLS);
    let view = going.wait_for("kept records", LIMIT, |view| from_cache(view) > 2_000);
    let pid = pid_of(&view.expect("it trains"), Slot::trainer(0)).expect("it runs");
    kill9(pid).expect("it was alive");
    std::fs::remove_file(dir.path().join("slow")).expect("it is there");
    let (code, _, stderr) = going.finish(LIMIT).expect("it ends");
    assert_eq!(code, Some(0), "{stderr}");
}

#[test]
fn file_that_changes_is_not_taken_from_the_cache() {
    let dir = job();
    let mut going = start(dir.path(), &["data.cache=memory"]).expecting(&["task_failed"]);
    going.wait_for("kept records", LIMIT, |view| from_cache(view) > 500).expect("it trains");
    let file = std::fs::File::options().append(true).open(dir.path().join("data.csv"));
    let later = SystemTime::now() + Duration::from_secs(5);
    file.expect("it is there").set_modified(later).expect("set");
    std::fs::remove_file(dir.path().join("slow")).expect("it is there");
    let (code, events, _) = going.finish(LIMIT).expect("it ends");
    let events = format!("{events:?}");
    assert_eq!(code, Some(7), "{events}");
    assert!(events.contains("has changed while the job ran"), "{events}");
}

#[test]
fn cache_that_takes_the_memory_of_trainers_is_refused() {
    let dir = job();
    let ended = run(dir.path(), &["data.cache=memory", "data.cache-size=1GiB"]);
    assert_eq!(ended.code, Some(7), "{}", ended.stderr);
    let says = "must be at most three quarters of trainers.memory = 512MiB";
    assert!(ended.stderr.contains("data.cache-size"), "{}", ended.stderr);
    assert!(ended.stderr.contains(says), "{}", ended.stderr);
}
