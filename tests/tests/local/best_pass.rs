//! `training.keep = "best"` on real processes: the model is, byte for byte, that of a job that ends after the best pass,
//! also when a parameter server is killed after it.

use std::path::Path;
use std::time::Duration;

use heddle_protocol::figure::Figure;
use heddle_protocol::ids::Slot;
use heddle_protocol::view::{JobEvent, JobView};
use heddle_tests::local::{Run, heddle, kill9, pid_of, write_libsvm};
use heddle_tests::logs::KILLS;

const LIMIT: Duration = Duration::from_secs(240);
const PASSES: u32 = 12;
/// Makes each step take 25 ms, so that a job can be met in the middle.
const SLOW: [(&str, &str); 1] = [("FAILPOINTS", "step-computed=sleep(25)")];

/// A job whose rate is so large that the test loss soon rises. The newest two checkpoints are kept, one for each pass.
fn write_job(dir: &Path, name: &str, passes: u32, keep: &str) -> String {
    let text = format!(
        "name = \"best\"\n\
         [data]\ntrain = \"data/train-*.libsvm\"\ntest = \"data/test-*.libsvm\"\npasses = {passes}\n\
         [model]\nfeatures = 100\noptimizer = {{ kind = \"sgd\", rate = 30.0 }}\n\
         [training]\nlanes = 2\nbatch = 32\nseed = 4\nkeep = \"{keep}\"\n\
         [pservers]\ncount = 2\nshards = 4\n[trainers]\nmin = 1\nmax = 2\n\
         [output]\nmodel = \"model-{name}\"\nformats = [\"text\"]\n\
         [checkpoint]\ndir = \"ckpt-{name}\"\nevery = \"1 passes\"\nkeep = 2\n"
    );
    let file = format!("{name}.toml");
    std::fs::write(dir.join(&file), text).expect("a job file");
    file
}

fn end(run: Run) -> JobView {
    // The pass that is worse than those before it.
    let run = run.expecting(&["worse_than_constant"]);
    let (code, events, stderr) = run.finish(LIMIT).expect("the run ends");
    assert_eq!(code, Some(0), "{stderr}");
    let view = |event: &JobEvent| match event {
        JobEvent::Ended { view, .. } => Some((**view).clone()),
        _ => None,
    };
    events.iter().find_map(view).expect("the end is reported")
}

fn model(dir: &Path, name: &str) -> String {
    std::fs::read_to_string(dir.join(format!("model-{name}/model.txt"))).expect("published")
}

fn losses(view: &JobView) -> Vec<f64> {
    let of = |figures: &heddle_protocol::figure::EvaluationFigures| figures.get(Figure::LogLoss);
    view.evaluations.iter().filter_map(|scores| of(&scores.figures)).collect()
}

#[test]
fn model_is_that_of_the_best_pass_to_the_byte() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path();
    write_libsvm(&path.join("data"), "train", 3, 400, 100, 8, 11).expect("data");
    write_libsvm(&path.join("data"), "test", 1, 200, 100, 8, 12).expect("data");
    let kept =
        end(Run::start(path, &write_job(path, "kept", PASSES, "best"), &[]).expect("it starts"));
    let all = losses(&kept);
    let best = (0..all.len()).min_by(|a, b| all[*a].total_cmp(&all[*b])).expect("evaluated");
    assert!(best + 3 < all.len(), "later checkpoints push it out: {all:?}");
    assert_eq!(kept.kept_pass, Some(best as u32));

    let short = write_job(path, "short", best as u32 + 1, "last");
    let short = end(Run::start(path, &short, &[]).expect("it starts"));
    assert_eq!(losses(&short), all[..=best]);
    assert_eq!(model(path, "kept"), model(path, "short"));
    let exported = heddle(path, &["export", "ckpt-kept", "model-exported"]).expect("it starts");
    assert_eq!(exported.code, Some(0), "{}", exported.stderr);
    assert_eq!(model(path, "exported"), model(path, "short"), "without naming the checkpoint");

    let file = write_job(path, "killed", PASSES, "best");
    let mut run = Run::start_with(path, &file, &[], &SLOW).expect("it starts");
    let view = run
        .wait_for("passes after the best one", LIMIT, |view| view.evaluations.len() > best + 2)
        .expect("they come");
    kill9(pid_of(&view, Slot::pserver(0)).expect("it runs")).expect("it was alive");
    let killed = end(run.expecting(KILLS));
    assert_eq!((killed.kept_pass, losses(&killed)), (kept.kept_pass, all));
    assert_eq!(model(path, "killed"), model(path, "short"));
}
