//! The example of a trainer of the user's own, as its README runs it.

use std::path::Path;

use heddle_tests::local::{heddle, program};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/custom-trainer/job.toml");

/// The last figure of that name in the output.
fn figure(output: &str, name: &str) -> f64 {
    let words: Vec<&str> = output.split_whitespace().collect();
    let at = words.iter().rposition(|word| *word == name);
    let value = at.and_then(|at| words.get(at + 1)?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {output}"))
}

fn run(dir: &Path, sets: &[&str]) -> heddle_tests::local::Ended {
    let trainer = program("custom-trainer").expect("built before");
    let command = format!("trainers.command=[\"{}\"]", trainer.display());
    let mut arguments = vec!["run", EXAMPLE, "--set", &command];
    sets.iter().for_each(|set| arguments.extend(["--set", set]));
    heddle(dir, &arguments).expect("heddle starts")
}

#[test]
fn custom_network_beats_the_linear_model_on_its_tables() {
    let dir = tempfile::tempdir().expect("a folder");
    let ended = run(dir.path(), &[]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // Logistic regression on the same columns ends at 0.212 and 0.973.
    assert!(figure(&ended.stdout, "log-loss") < 0.2, "{ended:?}");
    assert!(figure(&ended.stdout, "auc") > 0.975, "{ended:?}");
    // Once a pass, and once in the summary.
    assert_eq!(ended.stderr.matches("training loss 0.").count(), 20, "{ended:?}");
    assert!(figure(&ended.stdout, "loss") < 0.25, "{ended:?}");
}

#[test]
fn table_of_another_shape_ends_the_job() {
    let dir = tempfile::tempdir().expect("a folder");
    let table = "model.table=[{ name = \"hidden\", rows = 58, cols = 16 }, \
        { name = \"output\", rows = 1, cols = 16 }]";
    let ended = run(dir.path(), &[table]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let message = "cols of \"output\" must be cols of \"hidden\" + 1 (got 16 and 16)";
    assert!(ended.stderr.contains(message), "{ended:?}");
}
