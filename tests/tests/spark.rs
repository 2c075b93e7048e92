//! Data that Spark writes: Heddle reads each form of it, and the same rows give the same model.

use std::path::Path;
use std::process::Command;

use heddle_tests::example_page::ExamplePage;
use heddle_tests::local::{heddle, model_values};

const PYTHON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/spark/python.sh");

/// Rows that tests/spark/write.py writes in several forms, as folders with a common prefix.
struct Rows {
    prefix: &'static str,
    /// The form that the others are compared with.
    text: &'static str,
    others: usize,
    thousands: usize,
    /// Keys of `[data]`, of tables, and of `[model]`.
    keys: [&'static str; 2],
}

const TABLE: [&str; 2] = [
    r#"
label = "clicked"
weight = "weight"
id = ["id"]

[[data.columns]]
names = ["price", "share", "tiny", "amount", "cents", "age", "level"]
as = "number"

[[data.columns]]
names = ["site", "device", "member"]
as = "category"
missing = "own"

[[data.columns]]
names = ["tags"]
as = "list"
separator = "|"

[[data.columns]]
names = ["*"]
as = "ignore"
"#,
    "features = \"any\"",
];
const VECTORS: [&str; 2] = [
    "label = \"label\"\ncolumns = [{ names = [\"features\"], as = \"vector\" }]\n",
    "features = 40\nstandardise = false",
];
const ALL: [Rows; 3] = [
    Rows { prefix: "table-", text: "csv", others: 7, thousands: 3, keys: TABLE },
    Rows { prefix: "late-", text: "csv", others: 1, thousands: 2, keys: TABLE },
    Rows { prefix: "vectors-", text: "libsvm", others: 6, thousands: 3, keys: VECTORS },
];

/// Trains on the files in a folder and applies the model to them: the values of the model, and the scores.
fn results(folder: &Path, rows: &Rows) -> (Vec<u8>, String) {
    let dir = tempfile::tempdir().expect("a folder");
    let place = folder.to_str().expect("a path of letters");
    let form = place.rsplit_once(rows.prefix).expect("a prefix").1;
    let [data, model] = rows.keys;
    let (format, data) = match form {
        "csv" | "packed" => ("csv", data),
        "libsvm" => ("libsvm", ""),
        _ => ("parquet", data),
    };
    // What follows from the bytes, and from the number of records, which is estimated of text, is set.
    let job = format!(
        "name = \"spark\"\n[data]\ntrain = \"{place}\"\ntest = \"{place}\"\nformat = \"{format}\"\n\
         passes = 2\ntask-size = \"1MiB\"\n{data}\n[model]\nl2 = 0.001\n{model}\n\
         [training]\nlanes = 2\nbatch = 20\n[pservers]\ncount = 1\n[trainers]\nmin = 2\nmax = 2\n\
         [checkpoint]\ndir = \"ckpt\"\n[output]\nmodel = \"model\"\n"
    );
    std::fs::write(dir.path().join("job.toml"), job).expect("a job file");
    let trained = heddle(dir.path(), &["run", "job.toml"]).expect("heddle starts");
    assert_eq!(trained.code, Some(0), "{place}: {}", trained.stderr);
    let read = format!("rows         {},000 in", 2 * rows.thousands);
    assert!(trained.stdout.contains(&read), "{place}: {}", trained.stdout);
    let scored = heddle(dir.path(), &["predict", "model", place]).expect("heddle starts");
    assert_eq!(scored.code, Some(0), "{place}: {}", scored.stderr);
    assert_eq!(scored.stdout.lines().count(), 1_000 * rows.thousands, "{place}: scores");
    (model_values(dir.path()), scored.stdout)
}

#[test]
#[ignore = "nightly: installs Spark"]
fn each_form_that_spark_writes_gives_the_model_of_its_rows() {
    let dir = tempfile::tempdir().expect("a folder");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/spark/write.py");
    let written = Command::new(PYTHON).args([script.as_ref(), dir.path()]).status();
    let written = written.expect("it starts");
    assert!(written.success(), "Spark wrote no data");
    let folders = std::fs::read_dir(dir.path()).expect("a folder");
    let folders: Vec<_> = folders.map(|folder| folder.expect("readable").path()).collect();
    for rows in ALL {
        let text = dir.path().join(format!("{}{}", rows.prefix, rows.text));
        let expected = results(&text, &rows);
        let mut others = folders.clone();
        others.retain(|folder| {
            let name = folder.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with(rows.prefix)) && *folder != text
        });
        assert_eq!(others.len(), rows.others, "{others:?}");
        for folder in others {
            let found = results(&folder, &rows);
            assert!(found == expected, "{}: another model or other scores", folder.display());
        }
    }
}

#[test]
#[ignore = "nightly: installs PyArrow"]
fn the_table_example_as_parquet_leads_to_predictions() {
    let page = ExamplePage::copy("tabular").expect("a copy");
    let commands = page.commands(1).expect("commands");
    assert!(commands.starts_with("examples/tabular/generate.py --format parquet\n"), "{commands}");
    let stdout = page.run(&format!("{PYTHON} {commands}"), &[]).expect("they succeed");
    let figures = stdout.lines().last().unwrap_or_default();
    assert!(figures.starts_with("rows 2000 ") && figures.contains("auc 0.85"), "{stdout}");
    let scores = std::fs::read_to_string(page.path().join("scores.txt")).expect("scores");
    assert_eq!(scores.lines().count(), 2_000);
}
