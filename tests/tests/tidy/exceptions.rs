//! Exceptions from the rules, each with its reason: the files of `tests/tests/tidy/exceptions`, one for each package.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::sources;

const FOLDER: &str = "tests/tests/tidy/exceptions";

/// The exceptions of one rule.
pub struct Exceptions {
    rule: &'static str,
    /// Subject and reason.
    listed: BTreeMap<String, String>,
    used: RefCell<BTreeSet<String>>,
}

impl Exceptions {
    /// Reads the exceptions of a rule. A line is `rule | subject | reason`.
    pub fn of(rule: &'static str) -> Self {
        let mut listed = BTreeMap::new();
        for file in
            std::fs::read_dir(sources::root().join(FOLDER)).expect("the directory is readable")
        {
            let path = file.expect("the directory is readable").path();
            let text = std::fs::read_to_string(&path).expect("a list is readable");
            for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
                let fields: Vec<&str> = line.split('|').map(str::trim).collect();
                let [of, subject, reason] = fields[..] else {
                    panic!(
                        "{}: {line:?} must have the form `rule | subject | reason`",
                        path.display()
                    );
                };
                assert!(!reason.is_empty(), "{}: {line:?} has no reason", path.display());
                if of == rule {
                    listed.insert(subject.to_owned(), reason.to_owned());
                }
            }
        }
        Self { rule, listed, used: RefCell::default() }
    }

    /// Whether the subject is an exception.
    pub fn allow(&self, subject: &str) -> bool {
        let allowed = self.listed.contains_key(subject);
        if allowed {
            self.used.borrow_mut().insert(subject.to_owned());
        }
        allowed
    }

    /// Fails with the list of violations, and where an exception is not needed any more.
    pub fn check(self, mut violations: Vec<String>) {
        let used = self.used.into_inner();
        for subject in self.listed.keys().filter(|subject| !used.contains(*subject)) {
            violations.push(format!(
                "{subject}: this exception is not needed any more; delete it from {FOLDER}"
            ));
        }
        violations.sort();
        violations.dedup();
        let count = violations.len();
        assert!(
            violations.is_empty(),
            "{}: {count} violations\n{}",
            self.rule,
            violations.join("\n")
        );
    }
}
