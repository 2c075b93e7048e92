//! Records and training loss of each pass of a BSP job: the same to the last digit for any number of trainers and parameter
//! servers, and whatever dies.

use std::path::Path;
use std::time::Duration;

use heddle_protocol::ids::Slot;
use heddle_protocol::view::{JobState, JobView, TrainingPassView};
use heddle_tests::local::{Run, kill9, pid_of};
use heddle_tests::logs::KILLS;
use heddle_tests::standstill::{end_of, write_job};

const LIMIT: Duration = Duration::from_secs(180);
/// Records of each of the two files: the last step of a lane has fewer than the others.
const RECORDS: u32 = 301;
const PASSES: u32 = 4;

fn start(dir: &Path, sets: &[&str], fail_points: &str) -> Run {
    write_job(dir, "figures", RECORDS).expect("a job");
    let passes = format!("data.passes={PASSES}");
    let mut arguments = vec!["--set", &passes];
    sets.iter().for_each(|set| arguments.extend(["--set", *set]));
    let variables = [("FAILPOINTS", fail_points)];
    Run::start_with(dir, "job.toml", &arguments, &variables).expect("it starts")
}

fn passes(run: Run) -> Vec<TrainingPassView> {
    let (code, events, stderr) = run.finish(LIMIT).expect("it ends");
    assert_eq!(code, Some(0), "{stderr}");
    end_of(events).expect("the end is reported").passes
}

/// Kills the process of a slot once the job is in this pass.
fn kill_in_pass(run: &mut Run, pass: u32, slot: Slot) {
    let name = format!("pass {}", pass + 1);
    let in_pass = |view: &JobView| {
        view.state == JobState::Running
            && view.phase_text.starts_with(&name)
            && view.slots.iter().all(|slot| slot.pid > 0)
    };
    let view = run.wait_for(&name, LIMIT, in_pass).expect("it gets there");
    kill9(pid_of(&view, slot).expect("it runs")).expect("it was alive");
}

#[test]
fn figures_of_a_pass_are_the_same_in_each_run_and_over_kills() {
    let dir = tempfile::tempdir().expect("a folder");
    let expected =
        passes(start(dir.path(), &["pservers.count=1", "trainers.max=1", "trainers.min=1"], ""));
    assert_eq!(expected.len() as u32, PASSES);
    for trained in &expected {
        assert_eq!(trained.rows, u64::from(2 * RECORDS), "{expected:?}");
        assert!(trained.loss.is_some_and(f64::is_finite), "{expected:?}");
    }
    for sets in [&[][..], &["pservers.count=3", "pservers.shards=3", "trainers.max=3"]] {
        let dir = tempfile::tempdir().expect("a folder");
        assert_eq!(passes(start(dir.path(), sets, "")), expected, "{sets:?}");
    }
    for sets in [&[][..], &["pservers.replicas=1"]] {
        let dir = tempfile::tempdir().expect("a folder");
        let mut run = start(dir.path(), sets, "step-computed=sleep(25)").expecting(KILLS);
        kill_in_pass(&mut run, 1, Slot::trainer(1));
        kill_in_pass(&mut run, 2, Slot::pserver(0));
        kill_in_pass(&mut run, 3, Slot::pserver(1));
        assert_eq!(passes(run), expected, "{sets:?}");
    }
}
