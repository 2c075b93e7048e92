//! Compares the configuration parser with Hadoop's own class.
//!
//! `golden/configuration/generate.sh` writes the answers of Hadoop to the questions of this test. Intended differences are
//! listed here only.

use std::path::{Path, PathBuf};
use std::time::Duration;

use heddle_hadoop::configuration::{Configuration, Environment, TimeUnit, ValueProblem};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/configuration")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The environment that `generate.sh` sets for Java.
fn environment(directory: &Path) -> Environment {
    Environment::empty()
        .with_variable("HADOOP_CONF_DIR", directory.to_str().expect("the path is text"))
        .with_variable("HOST_NAME", "env.example.com")
        .with_variable("EMPTY", "")
        .with_property("user.name", "golden")
        .with_property("user.home", "/home/golden")
        .with_property("site.name", "prod")
}

fn escaped(value: Option<String>) -> String {
    value.map_or_else(
        || "-".to_owned(),
        |value| {
            format!("={}", value.replace('\\', "\\\\").replace('\n', "\\n").replace('\t', "\\t"))
        },
    )
}

/// The answer in the golden file's form; `None` for an error.
fn answer(configuration: &Configuration, kind: &str, key: &str) -> Option<String> {
    let duration = |unit: TimeUnit, default| match configuration.duration(key, unit, default) {
        // Java counts in 64 bits and saturates.
        Ok(span) => Some(i64::try_from(span.as_nanos()).unwrap_or(i64::MAX).to_string()),
        Err(error) if error.problem == ValueProblem::Negative => Some("negative".to_owned()),
        Err(_) => None,
    };
    match kind {
        "get" => configuration.get(key).ok().map(escaped),
        "trimmed" => configuration.trimmed(key).ok().map(escaped),
        "boolean-true" => configuration.boolean(key, true).ok().map(|value| value.to_string()),
        "boolean-false" => configuration.boolean(key, false).ok().map(|value| value.to_string()),
        "integer" => configuration.integer(key, 42).ok().map(|value| value.to_string()),
        "size" => configuration.size(key, 42).ok().map(|value| value.to_string()),
        "duration-ms" => duration(TimeUnit::Millis, Duration::from_millis(42)),
        "duration-s" => duration(TimeUnit::Seconds, Duration::from_secs(42)),
        "list" => configuration.list(key).ok().map(|items| escaped(Some(items.join("|")))),
        _ => panic!("unknown question {kind}"),
    }
}

/// The golden answer with the intended differences.
fn intended(kind: &str, golden: &str) -> Option<String> {
    match (kind, golden) {
        (_, "!error") => None,
        // White space only counts as no value, because no caller needs the difference.
        ("trimmed", "=") => Some("-".to_owned()),
        // Hadoop returns negative times; this crate rejects them.
        ("duration-ms" | "duration-s", text) if text.starts_with('-') => {
            Some("negative".to_owned())
        }
        (_, text) => Some(text.to_owned()),
    }
}

#[test]
fn every_answer_equals_hadoops() {
    let mut differences = Vec::new();
    let mut questions = 0;
    let mut cases: Vec<_> =
        std::fs::read_dir(golden().join("cases")).expect("the cases are there").collect();
    cases.sort_by_key(|entry| entry.as_ref().expect("is listed").path());
    for case in cases {
        let directory = case.expect("is listed").path();
        let configuration = Configuration::load(environment(&directory));
        for line in read(&directory.join("golden")).lines() {
            let (question, expected) = line.split_once('\t').expect("question, tab, answer");
            let (kind, key) = question.split_once(' ').expect("kind, blank, key");
            questions += 1;
            let given = configuration
                .as_ref()
                .ok()
                .and_then(|configuration| answer(configuration, kind, key));
            if given != intended(kind, expected) {
                let name = directory.file_name().expect("has a name").to_string_lossy();
                differences.push(format!("{name}: {question}: Hadoop {expected}, here {given:?}"));
            }
        }
    }
    assert!(questions > 500, "only {questions} questions");
    assert!(
        differences.is_empty(),
        "{} differences\n{}",
        differences.len(),
        differences.join("\n")
    );
}

#[test]
fn built_in_defaults_equal_hadoops() {
    let configuration = Configuration::with_defaults(Environment::empty());
    let golden = read(&golden().join("defaults.tsv"));
    let ours: Vec<String> = golden
        .lines()
        .map(|line| {
            let key = line.split('\t').next().expect("has a first field");
            let raw = configuration.explain(key).map(|explanation| explanation.setting.raw);
            format!("{key}\t{}", escaped(raw))
        })
        .collect();
    assert_eq!(ours, golden.lines().collect::<Vec<_>>());
    assert_eq!(configuration.keys().count(), ours.len(), "a default without a golden line");
}
