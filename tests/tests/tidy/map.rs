//! The pages that map the code: each path that they name exists.

use crate::sources;

/// Each with the number of paths that it has at least.
const PAGES: [(&str, usize); 3] =
    [("ARCHITECTURE.md", 40), ("docs/consistency.md", 10), ("docs/replication.md", 10)];

pub fn check() {
    let mut missing = Vec::new();
    for (page, least) in PAGES {
        let text = std::fs::read_to_string(sources::root().join(page)).expect("a page is readable");
        let paths: Vec<&str> = quoted(&text).into_iter().filter(|path| is_path(path)).collect();
        assert!(paths.len() > least, "only {} paths were found in {page}", paths.len());
        let absent = paths.into_iter().filter(|path| !sources::root().join(path).exists());
        missing.extend(absent.map(|path| format!("{page}: {path}")));
    }
    assert!(missing.is_empty(), "paths that do not exist: {missing:#?}");
}

/// Texts between single backticks, outside of blocks of code.
fn quoted(text: &str) -> Vec<&str> {
    let mut in_block = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            found.extend(line.split('`').skip(1).step_by(2));
        }
    }
    found
}

/// Whether a text has the form of a path of this repository.
fn is_path(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    text.trim_end_matches('/').contains('/') && !text.starts_with('/') && text.chars().all(is_plain)
}

#[test]
fn paths_differ_from_other_quoted_texts() {
    assert_eq!(quoted("a `b/c.rs` d `e`\n```\n`f/g`\n```\n`h/`"), ["b/c.rs", "e", "h/"]);
    assert!(is_path("am/core/src") && is_path("am/core/"));
    assert!(
        !is_path("clippy.toml")
            && !is_path("work/")
            && !is_path("(phase, lane)")
            && !is_path("/metrics")
    );
}
