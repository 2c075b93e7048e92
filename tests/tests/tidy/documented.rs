//! Metrics, exit codes and keys of the job file are documented.

use std::collections::BTreeSet;

use heddle_protocol::spec::file::KEYS;

use crate::sources::{self, Source};

fn page(path: &str) -> String {
    std::fs::read_to_string(sources::root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub fn check_metrics(sources: &[Source]) {
    let text = page("docs/operations.md");
    let mut names = BTreeSet::new();
    for source in sources.iter().filter(|source| source.module.ends_with("metrics")) {
        for (_, literal) in crate::words::literals(source) {
            let name = literal.trim_matches('"');
            let is_name = name.starts_with("heddle_") && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            names.extend(is_name.then(|| name.to_owned()));
        }
    }
    assert!(names.len() > 20, "only {} metrics were found", names.len());
    let missing: Vec<&String> = names.iter().filter(|name| !text.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/operations.md does not have {missing:#?}");
}

pub fn check_keys() {
    let text = page("docs/job-file.md");
    let missing: Vec<_> = KEYS.iter().map(|key| key.path).filter(|key| !text.contains(&format!("`{key}`"))).collect();
    assert!(missing.is_empty(), "docs/job-file.md does not have {missing:#?}");
}
