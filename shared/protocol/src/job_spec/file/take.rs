//! Takes values one key at a time, given or default, and records problems, origins and resolved values.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::str::FromStr;

use super::super::limits::MEMORY_MIN;
use super::super::value::{Bytes, ValueError};
use super::context::{ReadContext, Shown};
use super::key::{Fallback, Key};
use super::origin::{KeyOverride, Origin};
use super::problem::Problem;
use super::raw::{self, Raw, RawValue};
use super::scalar::{at_least_0, boolean, choice, has_unit, parse, text_of, whole};

/// Takes keys. Each method notes a problem and returns `None` where the value is not accepted.
pub(in crate::job_spec) struct Take<'c> {
    pub(super) context: &'c ReadContext,
    given: BTreeMap<&'static str, Raw>,
    pub(super) name: String,
    shown: BTreeMap<&'static str, Shown>,
    problems: Vec<Problem>,
    pub(super) defaulted: BTreeSet<&'static str>,
    undecided: BTreeSet<String>,
}

/// The result of taking all keys.
pub(super) struct Taken {
    /// By key.
    pub(super) shown: BTreeMap<&'static str, Shown>,
    pub(super) problems: Vec<Problem>,
    /// Keys of outputs that were not given.
    pub(super) defaulted: BTreeSet<&'static str>,
    /// Keys that are `"auto"` until the data is known.
    pub(super) undecided: BTreeSet<String>,
    pub(super) origins: BTreeMap<&'static str, Origin>,
}

impl<'c> Take<'c> {
    pub(super) fn new(
        context: &'c ReadContext,
        given: BTreeMap<&'static str, Raw>,
        problems: Vec<Problem>,
    ) -> Self {
        Self {
            context,
            given,
            name: String::new(),
            shown: BTreeMap::new(),
            problems,
            defaulted: BTreeSet::new(),
            undecided: BTreeSet::new(),
        }
    }

    /// A section of defaults alone.
    ///
    /// # Panics
    /// When a default is not valid, which a test excludes.
    pub(in crate::job_spec) fn defaults<T>(read: impl FnOnce(&mut Take<'_>) -> Option<T>) -> T {
        let context = ReadContext {
            job_dir: PathBuf::from("/"),
            working_dir: PathBuf::from("/"),
            ..ReadContext::default()
        };
        let mut take = Take::new(&context, BTreeMap::new(), Vec::new());
        read(&mut take).expect("defaults are valid")
    }

    pub(super) fn finish(self) -> Taken {
        let origins = self.shown.iter().map(|(key, shown)| (*key, shown.origin.clone())).collect();
        let Self { shown, problems, defaulted, undecided, .. } = self;
        Taken { shown, problems, defaulted, undecided, origins }
    }

    /// The job's name, a part of default folders.
    pub(super) fn set_name(&mut self, name: &str) {
        self.name = name.to_owned();
    }

    /// Whether the key is given.
    pub(in crate::job_spec) fn given(&self, key: &Key) -> bool {
        self.given.contains_key(key.path)
    }

    pub(super) fn problem(&mut self, key: &Key, raw: Option<&Raw>, what: String) {
        let (place, value) = match raw {
            Some(raw) => (raw.origin.to_string(), shorten(raw.to_string())),
            None => (self.context.file.clone(), String::new()),
        };
        self.problems.push(Problem { place, key: key.path.to_owned(), value, what });
    }

    /// The given value or the default, recorded for `config show`. `None`, and a problem, where a required key is missing.
    pub(super) fn raw(&mut self, key: &'static Key) -> Option<Raw> {
        let raw = match self.given.get(key.path) {
            Some(raw) => raw.clone(),
            None => match key.fallback {
                Fallback::Value(text) | Fallback::NotYet(text) => default(text),
                Fallback::Required(example) | Fallback::Absent(example) => {
                    let name = key.name();
                    let what = format!("is missing; give it, for example {name} = {example}");
                    self.problem(key, None, what);
                    return None;
                }
            },
        };
        let shown = Shown {
            key: key.path,
            value: shorten(raw.to_string()),
            origin: raw.origin.clone(),
            resolved: None,
        };
        self.shown.insert(key.path, shown);
        Some(raw)
    }

    /// Notes what a value resolves to.
    pub(super) fn resolved(&mut self, key: &'static Key, to: &str) {
        if let Some(shown) = self.shown.get_mut(key.path)
            && shown.value != to
            && shown.value != format!("{to:?}")
        {
            shown.resolved = Some(to.to_owned());
        }
    }

    /// Records that a key without default is not given.
    pub(super) fn absent(&mut self, key: &'static Key) {
        let shown =
            Shown { key: key.path, value: String::new(), origin: Origin::Default, resolved: None };
        self.shown.entry(key.path).or_insert(shown);
    }

    /// Refuses a key without function, unless its value is the neutral one.
    pub(super) fn not_yet(&mut self, key: &'static Key) {
        let Some(raw) = self.raw(key) else {
            return;
        };
        let Fallback::NotYet(neutral) = key.fallback else {
            return;
        };
        if default(neutral).value != raw.value {
            self.problem(key, Some(&raw), "is not available yet".to_owned());
        }
    }

    /// Takes a value by this function, whose error states what was expected.
    pub(in crate::job_spec) fn with<T>(
        &mut self,
        key: &'static Key,
        read: impl FnOnce(&Raw) -> Result<T, String>,
    ) -> Option<T> {
        let raw = self.raw(key)?;
        match read(&raw) {
            Ok(value) => Some(value),
            Err(what) => {
                self.problem(key, Some(&raw), what);
                None
            }
        }
    }

    /// A text. On the command line a number or a truth value is a text too: `--set name=7`.
    pub(in crate::job_spec) fn text(&mut self, key: &'static Key) -> Option<String> {
        self.with(key, |raw| match (&raw.value, &raw.origin) {
            (
                RawValue::Integer(_) | RawValue::Bool(_) | RawValue::Float(_),
                Origin::Set { text, .. },
            ) => Ok(text.split_once('=').map_or("", |(_, value)| value).trim().to_owned()),
            _ => text_of(raw).map(str::to_owned),
        })
    }

    /// A text that parses.
    pub(in crate::job_spec) fn parse<T: FromStr<Err = ValueError>>(
        &mut self,
        key: &'static Key,
    ) -> Option<T> {
        self.with(key, parse)
    }

    /// The memory of a process.
    pub(in crate::job_spec) fn memory(&mut self, key: &'static Key) -> Option<Bytes> {
        self.with(key, |raw| {
            let size = parse(raw)?;
            has_unit(raw, size, MEMORY_MIN).map(|()| size)
        })
    }

    /// A text that parses, or the word that stands for none.
    pub(in crate::job_spec) fn optional<T: FromStr<Err = ValueError>>(
        &mut self,
        key: &'static Key,
        none: &str,
    ) -> Option<Option<T>> {
        self.with(key, |raw| match &raw.value {
            RawValue::Text(text) if text == none => Ok(None),
            _ => parse(raw).map(Some),
        })
    }

    /// A whole number within bounds.
    pub(in crate::job_spec) fn number<T: TryFrom<i128> + Into<u64>>(
        &mut self,
        key: &'static Key,
        min: T,
        max: T,
    ) -> Option<T> {
        self.with(key, whole(min, max))
    }

    /// A value that this function takes, or `"auto"`: the placeholder, until the data is known.
    pub(in crate::job_spec) fn or_auto<T>(
        &mut self,
        key: &'static Key,
        placeholder: T,
        read: impl FnOnce(&Raw) -> Result<T, String>,
    ) -> Option<T> {
        let mut is_auto = false;
        let value = self.with(key, |raw| match &raw.value {
            RawValue::Text(text) if text == "auto" => {
                is_auto = true;
                Ok(placeholder)
            }
            _ => read(raw).map_err(|expected| format!("{expected}, or \"auto\"")),
        });
        if is_auto {
            self.undecided.insert(key.path.to_owned());
        }
        value
    }

    /// A whole number within bounds, or `"auto"`.
    pub(in crate::job_spec) fn number_or_auto<T: TryFrom<i128> + Into<u64> + Copy>(
        &mut self,
        key: &'static Key,
        min: T,
        max: T,
    ) -> Option<T> {
        self.or_auto(key, min, whole(min, max))
    }

    /// A number of at least 0.
    pub(in crate::job_spec) fn real(&mut self, key: &'static Key) -> Option<f64> {
        self.with(key, at_least_0)
    }

    /// `true` or `false`.
    pub(in crate::job_spec) fn boolean(&mut self, key: &'static Key) -> Option<bool> {
        self.with(key, boolean)
    }

    /// One of some words; `later` are words that are not available yet.
    pub(in crate::job_spec) fn choice<T: Copy>(
        &mut self,
        key: &'static Key,
        choices: &[(&str, T)],
        later: &[&str],
    ) -> Option<T> {
        self.with(key, |raw| choice(raw, choices, later))
    }
}

/// A default of the list of keys.
fn default(text: &str) -> Raw {
    let set = KeyOverride { text: format!("default={text}"), from: String::new() };
    match raw::parse_set(&set) {
        Ok((_, raw)) => Raw { value: raw.value, origin: Origin::Default },
        Err(_) => unreachable!("the text has a key and an equals sign"),
    }
}

/// A value for a line of a message: at most 200 characters.
fn shorten(text: String) -> String {
    if text.chars().count() <= 200 {
        return text;
    }
    let short: String = text.chars().take(199).collect();
    format!("{short}…")
}
