//! What is wrong with a job file, said so that a person can mend it without looking anything up.

use std::fmt;

/// One thing that is wrong: where, which key, what it says, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// `job.toml:12` or `--set trainers.max=x`; empty where the fault is that something is absent.
    pub place: String,
    /// Dotted; empty where the text is no TOML at all.
    pub key: String,
    /// As it was written; empty where the key itself is wrong.
    pub value: String,
    /// What was expected, or what the matter is.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        if !self.key.is_empty() {
            f.write_str(&self.key)?;
            if !self.value.is_empty() {
                write!(f, " = {}", self.value)?;
            }
            f.write_str(": ")?;
        }
        f.write_str(&self.what)
    }
}

/// Everything that is wrong, in the order of the keys; never empty. Prints one a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, problem) in self.0.iter().enumerate() {
            if n > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
