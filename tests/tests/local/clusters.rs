//! K-means as real jobs: its line of figures, its end, its model, what `heddle predict` makes of it, and what it refuses.

use std::path::Path;

use heddle_tests::local::{Ended, heddle};
use tempfile::TempDir;

/// Three groups of records around (0, 0), (10, 0) and (0, 10), which differ by far less. Labels are not used.
fn folder() -> TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let records: String = (0..300)
        .map(|n| {
            let (x, y) = [(0.0, 0.0), (10.0, 0.0), (0.0, 10.0)][n % 3];
            let (dx, dy) = (0.01 * (n % 7) as f64, 0.01 * (n % 5) as f64);
            format!("{} 1:{} 2:{}\n", n % 11, x + dx, y + dy)
        })
        .collect();
    std::fs::write(dir.path().join("train.libsvm"), records).expect("written");
    let text = "name = \"groups\"\n[data]\ntrain = \"train.libsvm\"\npasses = 10\n\
         [model]\nalgorithm = \"kmeans\"\nclusters = 3\nfeatures = 2\nstandardise = false\n\
         [training]\nlanes = 2\nbatch = 10\n\
         [pservers]\ncount = 1\nshards = 2\n[trainers]\nmin = 1\nmax = 1\n\
         [checkpoint]\ndir = \"ckpt\"\n[output]\nmodel = \"model\"\n";
    std::fs::write(dir.path().join("job.toml"), text).expect("a job file");
    dir
}

fn run(dir: &Path, sets: &[&str]) -> Ended {
    let mut arguments = vec!["run", "job.toml"];
    sets.iter().for_each(|set| arguments.extend(["--set", set]));
    heddle(dir, &arguments).expect("heddle starts")
}

/// The figures of the job's last line of them.
fn figures(ended: &Ended) -> String {
    let lines: Vec<&str> = ended.stdout.lines().filter(|line| line.starts_with("test  ")).collect();
    let [line] = lines[..] else { panic!("{ended:?}") };
    line.trim_start_matches("test  ").to_owned()
}

#[test]
fn groups_are_found_and_the_job_ends_when_centres_rest() {
    for sets in [
        &[][..],
        &["training.consistency=asp", "trainers.max=2"],
        &["model.standardise=true"],
        &["data.test=train.libsvm"],
    ] {
        let dir = folder();
        let ended = run(dir.path(), sets);
        assert_eq!(ended.code, Some(0), "{sets:?}: {}", ended.stderr);
        let figures = figures(&ended);
        let names: Vec<_> =
            figures.split("  ").filter_map(|figure| figure.split(' ').next()).collect();
        assert_eq!(names, ["inertia", "moved", "empty"], "{sets:?}: {figures}");
        assert!(figures.ends_with("  empty 0"), "{sets:?}: {figures}");
        assert!(ended.stderr.contains("below model.tolerance"), "{sets:?}: {}", ended.stderr);

        let scored = heddle(dir.path(), &["predict", "model", "train.libsvm"]).expect("starts");
        assert_eq!(scored.code, Some(0), "{sets:?}: {}", scored.stderr);
        let lines: Vec<(usize, f64)> = scored
            .stdout
            .lines()
            .map(|line| line.split_once(' ').expect("cluster and distance"))
            .map(|(cluster, distance)| {
                (cluster.parse().expect("one"), distance.parse().expect("one"))
            })
            .collect();
        assert_eq!(lines.len(), 300);
        for (n, (cluster, distance)) in lines.iter().enumerate() {
            assert_eq!(*cluster, lines[n % 3].0, "{sets:?}: record {n}");
            assert!(*distance < 0.1, "{sets:?}: {distance}");
        }
        assert!(lines[0].0 != lines[1].0 && lines[1].0 != lines[2].0 && lines[0].0 != lines[2].0);
        let inertia: f64 = lines.iter().map(|(_, distance)| distance * distance).sum();
        let printed = scored.stderr.split("inertia ").nth(1).expect("a figure").trim();
        let printed: f64 = printed.parse().expect("a number");
        assert!((printed - inertia).abs() < 1e-3, "{printed} {inertia}");
    }
    let dir = folder();
    assert_eq!(run(dir.path(), &[]).code, Some(0));
    let scored =
        heddle(dir.path(), &["predict", "model", "train.libsvm", "--json"]).expect("starts");
    let first = scored.stdout.lines().next().expect("a line");
    let json: serde_json::Value = serde_json::from_str(first).expect("JSON");
    assert!(json["cluster"].is_u64() && json["distance"].is_f64(), "{first}");
}

/// More passes continue from the centres, and more clusters than groups stay empty or split them.
#[test]
fn more_passes_continue_from_the_centres() {
    let dir = folder();
    let ended = run(dir.path(), &["data.passes=2", "model.tolerance=0", "model.clusters=40"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let sets =
        ["data.passes=4", "model.tolerance=0", "model.clusters=40"].map(|set| ["--set", set]);
    let mut arguments = vec!["run", "job.toml", "--overwrite", "--resume"];
    arguments.extend(sets.iter().flatten());
    let ended = heddle(dir.path(), &arguments).expect("starts");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let resumed = std::fs::read(dir.path().join("model/model.safetensors")).expect("a model");
    let whole = folder();
    let ended = run(whole.path(), &["data.passes=4", "model.tolerance=0", "model.clusters=40"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let expected = std::fs::read(whole.path().join("model/model.safetensors")).expect("a model");
    assert!(resumed == expected, "the same bytes as in one run");
}

#[test]
fn weights_move_centres() {
    let dir = folder();
    let text = std::fs::read_to_string(dir.path().join("train.libsvm")).expect("readable");
    // Records of the second and the third group do not count.
    let weighted: String = text
        .lines()
        .enumerate()
        .map(|(n, line)| {
            let (label, features) = line.split_once(' ').expect("a record");
            format!("{label}:{} {features}\n", if n % 3 == 0 { 2.0 } else { 0.0 })
        })
        .collect();
    std::fs::write(dir.path().join("train.libsvm"), weighted).expect("written");
    let ended = run(dir.path(), &["model.clusters=1"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let arguments = ["predict", "model", "train.libsvm", "--labelled"];
    let scored = heddle(dir.path(), &arguments).expect("starts");
    let first = scored.stdout.lines().next().expect("a line");
    let distance: f64 = first.split_once(' ').expect("two words").1.parse().expect("a number");
    assert!(distance < 0.1, "{first}");
}

#[test]
fn jobs_that_cannot_be_clustered_are_exit_7() {
    for (sets, message) in [
        (
            &["model.clusters=0"][..],
            "model.clusters = 0: is 0, must be from 1 to 65536: algorithm kmeans needs it",
        ),
        (
            &["model.clusters=301"],
            "model.clusters: is 301, must not be above the 300 records of the training data",
        ),
        (&["model.init-rounds=0"], "expected a whole number from 1 to 100"),
        (&["model.tolerance=-1"], "expected a number of at least 0"),
        (
            &["model.rank=4"],
            "model.rank = 4: is a key of algorithm factorization-machine, not of kmeans",
        ),
        (
            &["model.classes=4"],
            "model.classes = 4: is a key of algorithm softmax-regression, not of kmeans",
        ),
        (
            &["model.loss=hinge"],
            "is a key of algorithm svm and factorization-machine, not of kmeans",
        ),
        (&["model.l2=0.5"], "model.l2 = 0.5: is not a key of algorithm kmeans"),
        (&["model.init=other"], "is not a key of algorithm kmeans"),
        (&["model.optimizer={ kind = \"adam\" }"], "is not a key of algorithm kmeans"),
        (
            &["training.consistency=ssp"],
            "must be \"bsp\" or \"asp\" with algorithm kmeans, whose values rest during a pass",
        ),
        (&["data.class-weights={ \"1\" = 2.0 }"], "the labels of kmeans are numbers"),
        (&["output.formats=text"], "\"text\" is for linear models, not for algorithm \"kmeans\""),
        (&["model.features=70000"], "is 70000, must be from 1 to 65535 with algorithm kmeans"),
        (&["model.algorithm=svm"], "model.clusters = 3: is a key of algorithm kmeans, not of svm"),
    ] {
        let dir = folder();
        let ended = run(dir.path(), sets);
        assert_eq!(ended.code, Some(7), "{sets:?}: {ended:?}");
        assert!(ended.stderr.contains(message), "{message} in {}", ended.stderr);
        assert!(!dir.path().join("model/MODEL.json").exists(), "{sets:?}: something was published");
    }
}
