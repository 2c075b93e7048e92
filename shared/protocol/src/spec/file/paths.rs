//! Taking the keys that name places: relative to what, and what an empty text stands for.

use std::path::PathBuf;

use super::super::location::Location;
use super::super::yarn::FileSpec;
use super::raw::{Origin, Raw, RawValue};
use super::scalar::{list_of, text_of};
use super::take::Take;

impl Take<'_> {
    /// The folder that a value's relative paths start from.
    fn base(&self, origin: &Origin) -> PathBuf {
        match origin {
            Origin::File { .. } => self.context.job_dir.clone(),
            Origin::Set(_) | Origin::Default => self.context.working_dir.clone(),
        }
    }

    fn location(&self, raw: &Raw) -> Result<Location, String> {
        let text = text_of(raw)?;
        Location::resolve(text, &self.base(&raw.origin)).map_err(|e| e.to_string())
    }

    /// A path or a list of paths; the empty text is the empty list.
    pub(super) fn locations(&mut self, path: &'static str) -> Option<Vec<Location>> {
        let raw = self.raw(path)?;
        let items: &[Raw] = match &raw.value {
            RawValue::Text(text) if text.is_empty() => &[],
            RawValue::Text(_) => std::slice::from_ref(&raw),
            _ => match list_of(&raw) {
                Ok(items) => items,
                Err(_) => {
                    let what = format!("expected a path or a list of paths, not {}", raw.kind());
                    self.problem(path, Some(&raw), what);
                    return None;
                }
            },
        };
        let locations: Result<Vec<_>, _> = items.iter().map(|item| self.location(item)).collect();
        match locations {
            Ok(locations) => {
                let texts: Vec<_> = locations.iter().map(Location::to_string).collect();
                self.resolved(path, &texts.join(" "));
                Some(locations)
            }
            Err(what) => {
                self.problem(path, Some(&raw), what);
                None
            }
        }
    }

    /// An output folder; the empty text stands for one that carries the job's name and the run.
    pub(super) fn output(&mut self, path: &'static str, folder: &str) -> Option<Location> {
        let raw = self.raw(path)?;
        let location = match &raw.value {
            RawValue::Text(text) if text.is_empty() => {
                self.defaulted.insert(path);
                let run = format!("{}-{}", self.name, self.context.run_label);
                match &self.context.outputs {
                    Some(outputs) => Ok(outputs.join(&run).join(folder)),
                    None => {
                        let out = self.context.working_dir.join("out");
                        Location::local(&out.join(run).join(folder)).map_err(|e| e.to_string())
                    }
                }
            }
            _ => self.location(&raw),
        };
        match location {
            Ok(location) => {
                self.resolved(path, &location.to_string());
                Some(location)
            }
            Err(what) => {
                self.problem(path, Some(&raw), what);
                None
            }
        }
    }

    /// A path on this machine, or nothing for the empty text.
    pub(super) fn local_path(&mut self, path: &'static str) -> Option<Option<PathBuf>> {
        let raw = self.raw(path)?;
        if raw.value == RawValue::Text(String::new()) {
            return Some(None);
        }
        let local = self.location(&raw).and_then(|at| match at.as_local() {
            Some(path) => Ok(Some(path.to_owned())),
            None => Err("expected a path on this machine".to_owned()),
        });
        match local {
            Ok(local) => {
                if let Some(local) = &local {
                    self.resolved(path, &local.to_string_lossy());
                }
                Some(local)
            }
            Err(what) => {
                self.problem(path, Some(&raw), what);
                None
            }
        }
    }

    /// Files with their names in a work directory.
    pub(super) fn files(&mut self, path: &'static str) -> Option<Vec<FileSpec>> {
        let raw = self.raw(path)?;
        let base = self.base(&raw.origin);
        let one = |item: &Raw| FileSpec::parse(text_of(item)?, &base);
        match list_of(&raw).and_then(|items| items.iter().map(one).collect::<Result<Vec<_>, _>>()) {
            Ok(files) => {
                if !files.is_empty() {
                    let texts: Vec<_> = files.iter().map(FileSpec::to_string).collect();
                    self.resolved(path, &texts.join(" "));
                }
                Some(files)
            }
            Err(what) => {
                self.problem(path, Some(&raw), what);
                None
            }
        }
    }

    /// A program and its arguments; a name with a slash becomes absolute.
    pub(super) fn command(&mut self, path: &'static str) -> Option<Vec<String>> {
        let raw = self.raw(path)?;
        let words: Result<Vec<String>, String> = list_of(&raw)
            .and_then(|items| items.iter().map(|item| text_of(item).map(str::to_owned)).collect());
        let mut words = match words {
            Ok(words) if words.first().is_none_or(|program| !program.is_empty()) => words,
            _ => {
                let what = "expected a list of texts, such as [\"./my-loop\", \"--fast\"]";
                self.problem(path, Some(&raw), what.to_owned());
                return None;
            }
        };
        if let Some(program) = words.first_mut()
            && program.contains('/')
        {
            let absolute = self.base(&raw.origin).join(&*program);
            if let Ok(clean) = Location::local(&absolute) {
                *program = clean.path().to_owned();
            }
            let shown = words.join(" ");
            self.resolved(path, &shown);
        }
        Some(words)
    }
}
