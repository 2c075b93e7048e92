//! Keys that name paths: the folder that a relative path starts from, and the meaning of an empty text.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::super::location::Location;
use super::super::secret_source::SecretSource;
use super::super::shipped_file::FileSpec;
use super::key::Key;
use super::origin::Origin;
use super::raw::{Raw, RawValue};
use super::scalar::{list_of, text_of};
use super::take::Take;

/// Stands for the user's name in `submit.staging`.
const USER: &str = "{user}";

/// The folder that a value's relative paths start from.
fn base(take: &Take<'_>, origin: &Origin) -> PathBuf {
    match origin {
        Origin::File { .. } => take.context.job_dir.clone(),
        Origin::Site { .. } => {
            take.context.site.as_ref().map(|site| site.dir.clone()).unwrap_or_default()
        }
        Origin::Set { .. } | Origin::Default => take.context.working_dir.clone(),
    }
}

fn location(take: &Take<'_>, raw: &Raw) -> Result<Location, String> {
    let text = text_of(raw)?;
    Location::resolve(text, &base(take, &raw.origin)).map_err(|e| e.to_string())
}

/// Records what a value resolves to, or why it is refused.
fn settled<T>(
    take: &mut Take<'_>,
    key: &'static Key,
    raw: &Raw,
    read: Result<T, String>,
    resolved: impl FnOnce(&T) -> String,
) -> Option<T> {
    match read {
        Ok(value) => {
            take.resolved(key, &resolved(&value));
            Some(value)
        }
        Err(what) => {
            take.problem(key, Some(raw), what);
            None
        }
    }
}

/// A value that `read` takes, unless the text is empty.
fn unless_empty<T>(
    take: &mut Take<'_>,
    key: &'static Key,
    read: impl FnOnce(&Take<'_>, &Raw) -> Result<T, String>,
    resolved: impl FnOnce(&T) -> String,
) -> Option<Option<T>> {
    let raw = take.raw(key)?;
    if raw.value == RawValue::Text(String::new()) {
        return Some(None);
    }
    let value = read(take, &raw);
    settled(take, key, &raw, value, resolved).map(Some)
}

fn joined(values: &[impl ToString]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// A path or a list of paths; the empty text means no path.
pub(in crate::job_spec) fn locations(
    take: &mut Take<'_>,
    key: &'static Key,
) -> Option<Vec<Location>> {
    let raw = take.raw(key)?;
    let items = match &raw.value {
        RawValue::Text(text) if text.is_empty() => Ok(&[][..]),
        RawValue::Text(_) => Ok(std::slice::from_ref(&raw)),
        _ => list_of(&raw)
            .map_err(|_| format!("expected a path or a list of paths, not {}", raw.kind())),
    };
    let all = items.and_then(|items| items.iter().map(|item| location(take, item)).collect());
    settled(take, key, &raw, all, |all: &Vec<_>| joined(all))
}

/// An output folder; the empty text stands for one that carries the job's name and the run.
pub(in crate::job_spec) fn output(
    take: &mut Take<'_>,
    key: &'static Key,
    folder: &str,
) -> Option<Location> {
    let raw = take.raw(key)?;
    let location = match &raw.value {
        RawValue::Text(text) if text.is_empty() => {
            take.defaulted.insert(key.path);
            let run = format!("{}-{}", take.name, take.context.run_label);
            match &take.context.outputs {
                Some(outputs) => Ok(outputs.join(&run).join(folder)),
                None => {
                    let out = take.context.working_dir.join("out");
                    Location::local(&out.join(run).join(folder)).map_err(|e| e.to_string())
                }
            }
        }
        _ => location(take, &raw),
    };
    settled(take, key, &raw, location, Location::to_string)
}

/// A path, or nothing for the empty text.
pub(in crate::job_spec) fn optional(
    take: &mut Take<'_>,
    key: &'static Key,
) -> Option<Option<Location>> {
    unless_empty(take, key, location, Location::to_string)
}

/// A place on HDFS, or nothing for the empty text.
pub(in crate::job_spec) fn on_hdfs(
    take: &mut Take<'_>,
    key: &'static Key,
) -> Option<Option<Location>> {
    let read = |take: &Take<'_>, raw: &Raw| match location(take, raw)? {
        at if at.as_local().is_none() => Ok(at),
        at => {
            Err(format!("expected a directory on HDFS, such as \"hdfs:///apps/heddle\" (got {at})"))
        }
    };
    unless_empty(take, key, read, Location::to_string)
}

/// A directory on HDFS in which `{user}` stands for the user's name, or nothing for the empty text.
pub(in crate::job_spec) fn home(take: &mut Take<'_>, key: &'static Key) -> Option<Option<String>> {
    take.with(key, |raw| {
        let text = text_of(raw)?;
        if text.is_empty() {
            return Ok(None);
        }
        let example = "such as \"hdfs://ns1/user/{user}\"";
        let named = text.replace(USER, "user");
        if named.contains(['{', '}', '*', '?', '[']) {
            return Err(format!("expected a directory {example}, without other patterns"));
        }
        match Location::resolve(&named, Path::new("/")) {
            Ok(at) if at.as_local().is_none() => Ok(Some(text.to_owned())),
            _ => Err(format!("expected a directory on HDFS, {example}")),
        }
    })
}

/// A path on this machine, or nothing for the empty text.
pub(in crate::job_spec) fn local_path(
    take: &mut Take<'_>,
    key: &'static Key,
) -> Option<Option<PathBuf>> {
    let read = |take: &Take<'_>, raw: &Raw| match location(take, raw)?.as_local() {
        Some(path) => Ok(path.to_owned()),
        None => Err("expected a path on this machine".to_owned()),
    };
    unless_empty(take, key, read, |path| path.to_string_lossy().into_owned())
}

/// Files with their names in a work directory.
pub(in crate::job_spec) fn files(take: &mut Take<'_>, key: &'static Key) -> Option<Vec<FileSpec>> {
    let raw = take.raw(key)?;
    let base = base(take, &raw.origin);
    let one = |item: &Raw| FileSpec::parse(text_of(item)?, &base);
    match list_of(&raw).and_then(|items| items.iter().map(one).collect::<Result<Vec<_>, _>>()) {
        Ok(files) => {
            if !files.is_empty() {
                take.resolved(key, &joined(&files));
            }
            Some(files)
        }
        Err(what) => {
            take.problem(key, Some(&raw), what);
            None
        }
    }
}

/// Names of secrets with their places. No message holds a value: it may be the secret itself, by mistake.
pub(in crate::job_spec) fn secrets(
    take: &mut Take<'_>,
    key: &'static Key,
) -> Option<BTreeMap<String, SecretSource>> {
    let raw = take.raw(key)?;
    let RawValue::Table(fields) = &raw.value else {
        let what = "expected a table such as { API_KEY = \"env:API_KEY\" }";
        take.problem(key, None, what.to_owned());
        return None;
    };
    let one = |(name, raw): (&String, &Raw)| {
        let RawValue::Text(text) = &raw.value else {
            return Err(format!("{name:?}: expected a text in quotes, not {}", raw.kind()));
        };
        match SecretSource::parse(text, &base(take, &raw.origin)) {
            Ok(source) => Ok((name.clone(), source)),
            Err(error) => Err(format!("{name:?}: {error}")),
        }
    };
    match fields.iter().map(one).collect() {
        Ok(sources) => Some(sources),
        Err(what) => {
            take.problem(key, None, what);
            None
        }
    }
}

/// A program and its arguments; a name with a slash becomes absolute.
pub(in crate::job_spec) fn command(take: &mut Take<'_>, key: &'static Key) -> Option<Vec<String>> {
    let raw = take.raw(key)?;
    let words: Result<Vec<String>, String> = list_of(&raw)
        .and_then(|items| items.iter().map(|item| text_of(item).map(str::to_owned)).collect());
    let mut words = match words {
        Ok(words) if words.first().is_none_or(|program| !program.is_empty()) => words,
        _ => {
            let what = "expected a list of texts, such as [\"./my-loop\", \"--fast\"]";
            take.problem(key, Some(&raw), what.to_owned());
            return None;
        }
    };
    if let Some(program) = words.first_mut()
        && program.contains('/')
    {
        let absolute = base(take, &raw.origin).join(&*program);
        if let Ok(clean) = Location::local(&absolute) {
            *program = clean.path().to_owned();
        }
        let shown = words.join(" ");
        take.resolved(key, &shown);
    }
    Some(words)
}
