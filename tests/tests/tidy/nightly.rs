//! No test is lost: each one that `scripts/test.sh` leaves out is in a program whose ignored tests `scripts/nightly.sh` runs.

use std::collections::BTreeSet;

use crate::sources;

const LIST: &str = "nightly_tests=(";

pub fn check() {
    let script = std::fs::read_to_string(sources::root().join("scripts/nightly.sh"));
    let script = script.expect("the script is readable");
    let list = script.lines().find_map(|line| line.strip_prefix(LIST)?.strip_suffix(')'));
    let listed: BTreeSet<&str> = list.expect("a list of programs").split_whitespace().collect();
    let (mut programs, mut others) = (BTreeSet::new(), Vec::new());
    for (path, text) in sources::all() {
        for line in text.lines().map(str::trim).filter(|line| line.starts_with("#[ignore")) {
            let program = path.strip_prefix("tests/tests/");
            match program.and_then(|rest| rest.split(['/', '.']).next()) {
                Some(program) if line.starts_with("#[ignore = \"nightly: ") => {
                    programs.insert(program.to_owned());
                }
                _ => others.push(format!("{path}: {line}")),
            }
        }
    }
    assert!(others.is_empty(), "ignored without \"nightly: \" and a reason: {others:#?}");
    assert!(programs.iter().map(String::as_str).eq(listed), "{LIST} must name {programs:?}");
}
