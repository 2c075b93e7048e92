//! docs/faults.md names the tests that show each outcome: they exist, no line is without one or a reason, and none is there
//! twice.

use std::collections::BTreeSet;

use crate::sources;

pub fn check() {
    let path = sources::root().join("docs/faults.md");
    let page = std::fs::read_to_string(path).expect("the page is readable");
    let tests: BTreeSet<String> =
        sources::all().iter().flat_map(|(_, text)| tests_of(text)).collect();
    let problems = problems(&page, &tests);
    assert!(problems.is_empty(), "docs/faults.md:\n{}", problems.join("\n"));
    let last_of = [
        ('A', 23),
        ('B', 12),
        ('C', 14),
        ('D', 25),
        ('E', 27),
        ('F', 15),
        ('G', 27),
        ('H', 7),
        ('I', 23),
    ];
    for (group, last) in last_of {
        let ids = (1..=last).map(|number| format!("| {group}{number} |"));
        let missing: Vec<String> = ids.filter(|id| !page.contains(id.as_str())).collect();
        assert!(missing.is_empty(), "docs/faults.md lacks {missing:?}");
    }
}

/// Names of the functions that follow `#[test]`, or a test attribute of a runtime, in macros too.
fn tests_of(text: &str) -> Vec<String> {
    let mut is_next = false;
    let mut names = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_next = true;
        } else if let Some((_, name)) = line.split_once("fn ").filter(|_| is_next) {
            let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            names.push(name[..end.unwrap_or(name.len())].to_owned());
            is_next = false;
        }
    }
    names
}

/// What is wrong with the lines of the page's tables.
fn problems(page: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let (mut problems, mut seen) = (Vec::new(), BTreeSet::new());
    for row in page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| |")) {
        if row.starts_with("| ---") {
            continue;
        }
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [id, _, _, shown] = cells[..] else {
            problems.push(format!("not four cells: {row}"));
            continue;
        };
        if !seen.insert(id) {
            problems.push(format!("{id}: a second line"));
        }
        let names: Vec<&str> = shown.split('`').skip(1).step_by(2).collect();
        if names.is_empty() && !shown.starts_with("no test: ") {
            problems.push(format!("{id}: neither a test nor \"no test: \" and a reason"));
        }
        for name in names.into_iter().filter(|name| !tests.contains(*name)) {
            problems.push(format!("{id}: no test is named {name}"));
        }
    }
    problems
}

#[test]
fn lines_without_a_test_or_a_reason_are_found() {
    let names =
        tests_of("#[test]\nfn one() {}\nfn two() {}\n  #[tokio::test]\n  async fn three() {}");
    assert_eq!(names, ["one", "three"]);
    let tests: BTreeSet<String> = names.into_iter().collect();
    let page = "| | fault | outcome | shown by |\n| --- | --- | --- | --- |\n\
        | A1 | a | b | `one` |\n\
        | A2 | a | b | `two` |\n| A3 | a | b | |\n| A4 | a | b | no test: YARN acts |\n\
        | A1 | a | b | `three` |\n| A5 | a |";
    let found = problems(page, &tests);
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(found[0].contains("A2: no test is named two") && found[1].starts_with("A3"));
    assert_eq!(found[2], "A1: a second line");
}
