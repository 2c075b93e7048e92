//! A row of the table of keys: path, default, documentation, and whether a resumed run may change the key.

/// A section of the job file.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// `data`; empty for the top.
    pub name: &'static str,
    /// What the section is about.
    pub doc: &'static str,
    /// Its keys, in the order of the reference.
    pub keys: &'static [Key],
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// `section.key`, or the key alone at the top.
    pub path: &'static str,
    /// What it means, its unit and bounds.
    pub doc: &'static str,
    /// The value of a key that is not given.
    pub fallback: Fallback,
    /// Whether a resumed run may have another value.
    pub resume: ResumeRule,
    /// Whether the site's defaults may set it: it does not change what a job computes.
    pub by_site: bool,
}

impl Key {
    /// The key without its section.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.path.rsplit('.').next().unwrap_or(self.path)
    }
}

/// The value of a key that is not given.
#[derive(Clone, Copy, Debug)]
pub enum Fallback {
    /// The key must be given. With an example, as TOML.
    Required(&'static str),
    /// This value, as TOML.
    Value(&'static str),
    /// No value, which is valid. With an example, as TOML.
    Absent(&'static str),
    /// The function does not exist yet: only this value, as TOML, is accepted.
    NotYet(&'static str),
}

/// Whether a run may resume from a checkpoint of a spec with another value of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeRule {
    /// No: the key changes what the names in a checkpoint mean.
    Never,
    /// With `--resume`.
    OnResume,
    /// Always: the key is not part of the job.
    Freely,
}
