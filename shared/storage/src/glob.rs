//! Expands a data path to its files.

use std::collections::BTreeSet;

use globset::{GlobBuilder, GlobMatcher};

use crate::error::{Op, Reason, StorageError};
use crate::path::StorePath;
use crate::store::{Entry, EntryKind, Storage};

/// Maximum files of one pattern. The manifest and the AM's memory hold the input plan, and a pattern beyond this limit is
/// usually a mistake.
const FILES_MAX: usize = 1_000_000;

/// Maximum patterns that one stands for by its braces.
const ALTERNATIVES_MAX: usize = 10_000;
/// The end of a file's name while `hdfs dfs -put` and `-cp` write it (`CommandWithDestination` of Hadoop).
const COPYING: &str = "._COPYING_";

/// Result of [`find_files`].
#[derive(Debug, Default)]
pub struct FoundFiles {
    /// At least one, sorted by path.
    pub files: Vec<Entry>,
    /// Folders in folders that the pattern names, sorted: it does not name what is in them.
    pub folders: Vec<StorePath>,
}

/// The files of `pattern`.
///
/// - Without wildcards: that file; or, for a directory, the files directly in it.
/// - Each name of the path may contain `*`, `?`, `[…]` and `{a,b}`, which never match a `/`; `**`
///   stands for any number of directories. `{a/b,c}` stands for two paths, as in Hadoop (`GlobExpander`).
/// - A name that exists as it is written is taken literally, except `*` and `**`.
/// - Names that start with `.` or `_` match only a pattern that starts the same way, names that end in `._COPYING_` one that
///   ends in it: Hadoop marks hidden and unfinished files so (`_SUCCESS`, `_temporary`).
///
/// # Errors
/// `NotFound` if nothing matches; `Unsupported` for a malformed pattern and for a name that is not UTF-8; `NotAFile` for pipes
/// and the like; errors of the storage, also of a link that leads nowhere.
pub async fn find_files(
    storage: &dyn Storage,
    pattern: &StorePath,
) -> Result<FoundFiles, StorageError> {
    let mut found = if pattern.names().any(is_wild) {
        let malformed = |what: &str| malformed(storage, pattern, what);
        let paths = expand(pattern.as_str(), |content| content.contains('/'));
        let mut found = FoundFiles::default();
        for path in paths.ok_or_else(|| malformed(TOO_MANY))? {
            let path = StorePath::parse(&path).map_err(|error| malformed(&error.to_string()))?;
            walk(storage, &path, &mut found).await?;
        }
        found
    } else {
        let mut found = FoundFiles::default();
        take(storage, storage.stat(pattern).await?, &mut found).await?;
        found
    };
    if found.files.is_empty() {
        let error = StorageError::new(Op::List, storage.show(pattern), Reason::NotFound);
        return Err(match found.folders.iter().min() {
            None => error,
            Some(folder) => error.because(format!(
                "files are only in folders of it such as {}: name these, or all files by **",
                storage.show(folder)
            )),
        });
    }
    found.files.sort_by(|a, b| a.path.cmp(&b.path));
    found.files.dedup_by(|a, b| a.path == b.path);
    found.folders.sort();
    found.folders.dedup();
    Ok(found)
}

/// A sentence for the user about each of `folders` from which no file is read. `files`: those that are read, sorted.
pub fn folders_left_out<'a>(
    folders: &'a [String],
    files: impl Iterator<Item = &'a str>,
) -> impl Iterator<Item = String> {
    let mut left_out: BTreeSet<&str> = folders.iter().map(String::as_str).collect();
    for file in files {
        let above = file.match_indices('/').map(|(slash, _)| &file[..slash]);
        above.for_each(|folder| _ = left_out.remove(folder));
    }
    left_out.into_iter().map(|folder| {
        format!(
            "warning: the files in the folder {folder} are not read: name the folder too, or all \
             by **"
        )
    })
}

fn is_wild(name: &str) -> bool {
    name.contains(['*', '?', '[', '{'])
}

fn is_hidden(name: &str) -> bool {
    name.starts_with(['.', '_'])
}

/// Whether a pattern that matches a name means it too: names that Hadoop hides are stated.
fn states(pattern: &str, name: &str) -> bool {
    (is_hidden(pattern) || !is_hidden(name))
        && (pattern.ends_with(COPYING) || !name.ends_with(COPYING))
}

/// The visible entries of a directory.
async fn visible(storage: &dyn Storage, dir: &StorePath) -> Result<Vec<Entry>, StorageError> {
    let mut entries = storage.list(dir).await?;
    entries.retain(|entry| states("", entry.name()));
    Ok(entries)
}

/// Why an entry is neither read nor entered.
async fn unreadable(storage: &dyn Storage, entry: &Entry) -> StorageError {
    let reason = match entry.kind {
        EntryKind::Unnameable => {
            Reason::Unsupported("its name is not UTF-8 or too long: rename it".to_owned())
        }
        EntryKind::File | EntryKind::Dir | EntryKind::Other => Reason::NotAFile,
    };
    match (&reason, storage.stat(&entry.path).await) {
        // A link that leads nowhere.
        (Reason::NotAFile, Err(error)) => error,
        _ => StorageError::new(Op::Open, storage.show(&entry.path), reason),
    }
}

fn malformed(storage: &dyn Storage, pattern: &StorePath, what: &str) -> StorageError {
    StorageError::new(Op::List, storage.show(pattern), Reason::Unsupported(what.to_owned()))
}

const TOO_MANY: &str = "the braces of the pattern stand for more than 10000 paths";

/// The texts that a pattern stands for by its braces whose content is wanted; `None` beyond [`ALTERNATIVES_MAX`].
fn expand(text: &str, is_wanted: fn(&str) -> bool) -> Option<Vec<String>> {
    let (mut to_expand, mut expanded) = (vec![text.to_owned()], Vec::new());
    while let Some(text) = to_expand.pop() {
        match braces(&text, is_wanted) {
            None => expanded.push(text),
            Some(marks) => {
                let (before, after) = (&text[..marks[0]], &text[marks[marks.len() - 1] + 1..]);
                let one =
                    |pair: &[usize]| format!("{before}{}{after}", &text[pair[0] + 1..pair[1]]);
                to_expand.extend(marks.windows(2).map(one));
            }
        }
        if to_expand.len() + expanded.len() > ALTERNATIVES_MAX {
            return None;
        }
    }
    Some(expanded)
}

/// The positions of `{`, of the commas and of `}` of an innermost pair of braces whose content is wanted.
fn braces(text: &str, is_wanted: fn(&str) -> bool) -> Option<Vec<usize>> {
    let bytes = text.as_bytes();
    let mut open: Vec<Vec<usize>> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 1,
            b'[' => at = class_end(bytes, at).unwrap_or(at),
            b'{' => open.push(vec![at]),
            b',' => open.last_mut().into_iter().for_each(|marks| marks.push(at)),
            b'}' => {
                if let Some(mut marks) = open.pop()
                    && is_wanted(&text[marks[0]..at])
                {
                    marks.push(at);
                    return Some(marks);
                }
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// The position of the `]` that ends the class at `start`, in the same name.
fn class_end(bytes: &[u8], start: usize) -> Option<usize> {
    let negated = matches!(bytes.get(start + 1), Some(b'!' | b'^'));
    // A `]` at the beginning is one of the class.
    let first = start + 2 + usize::from(negated);
    let len = bytes.get(first..)?.iter().position(|byte| matches!(byte, b']' | b'/'))?;
    (bytes[first + len] == b']').then_some(first + len)
}

/// One name of a pattern.
enum PatternSegment {
    Plain(String),
    Wild(WildName),
    AnyDepth,
}

/// A name with wildcards.
struct WildName {
    name: String,
    /// Each name that it stands for by its braces, compiled; or why it is malformed, which is
    /// an error only if no entry has the name itself.
    alternatives: Result<Vec<(String, GlobMatcher)>, String>,
}

impl WildName {
    fn of(name: &str) -> Self {
        let compiled = |alternative: String| {
            let glob = GlobBuilder::new(&alternative).literal_separator(true).build();
            let glob = glob.map_err(|error| error.kind().to_string())?;
            Ok((alternative, glob.compile_matcher()))
        };
        let alternatives = expand(name, |_| true).ok_or_else(|| TOO_MANY.to_owned());
        let alternatives = alternatives.and_then(|all| all.into_iter().map(compiled).collect());
        Self { name: name.to_owned(), alternatives }
    }

    /// The entries of `dir` that it means.
    async fn matched(
        &self,
        storage: &dyn Storage,
        dir: &StorePath,
    ) -> Result<Vec<Entry>, StorageError> {
        let literal = dir.join(&self.name)?;
        let mut entries = match storage.list(dir).await {
            Ok(entries) => entries,
            // A directory that may be entered and not listed has this name, or none that is known.
            Err(error) if error.reason == Reason::Denied => {
                return storage.stat(&literal).await.map(|entry| vec![entry]).map_err(|_| error);
            }
            Err(error) => return Err(error),
        };
        if self.name != "*" && entries.iter().any(|entry| entry.path == literal) {
            entries.retain(|entry| entry.path == literal);
            return Ok(entries);
        }
        let alternatives = self.alternatives.as_ref();
        let alternatives = alternatives.map_err(|what| malformed(storage, &literal, what))?;
        entries.retain(|entry| {
            let name = entry.name();
            alternatives.iter().any(|(pattern, glob)| glob.is_match(name) && states(pattern, name))
        });
        Ok(entries)
    }
}

fn segments(pattern: &StorePath) -> Vec<PatternSegment> {
    let one = |name: &str| match name {
        "**" => PatternSegment::AnyDepth,
        name if is_wild(name) => PatternSegment::Wild(WildName::of(name)),
        name => PatternSegment::Plain(name.to_owned()),
    };
    pattern.names().map(one).collect()
}

/// Walks the tree with a list of (path, number of segments already matched) to visit.
async fn walk(
    storage: &dyn Storage,
    pattern: &StorePath,
    found: &mut FoundFiles,
) -> Result<(), StorageError> {
    let segments = segments(pattern);
    let mut to_visit = vec![(StorePath::root(), 0)];
    while let Some((dir, depth)) = to_visit.pop() {
        let last = depth + 1 == segments.len();
        let mut matched = Vec::new();
        match &segments[depth] {
            PatternSegment::Plain(name) => {
                let child = dir.join(name).expect("a name taken from a path");
                match storage.stat(&child).await {
                    Ok(entry) => matched.push(entry),
                    // The error of a link that leads nowhere shows its target too.
                    Err(error) if error.is_not_found() && error.place == storage.show(&child) => {}
                    Err(error) if error.reason == Reason::NotADirectory => {}
                    Err(error) => return Err(error),
                }
            }
            PatternSegment::Wild(name) => matched = name.matched(storage, &dir).await?,
            PatternSegment::AnyDepth => {
                if !last {
                    to_visit.push((dir.clone(), depth + 1));
                }
                for entry in visible(storage, &dir).await? {
                    match entry.kind {
                        EntryKind::Dir => to_visit.push((entry.path, depth)),
                        // May be a directory.
                        EntryKind::Unnameable => return Err(unreadable(storage, &entry).await),
                        EntryKind::File | EntryKind::Other if !last => {}
                        EntryKind::File | EntryKind::Other => {
                            take(storage, entry, found).await?;
                        }
                    }
                }
            }
        }
        for entry in matched {
            match entry.kind {
                _ if last => take(storage, entry, found).await?,
                EntryKind::Dir => to_visit.push((entry.path, depth + 1)),
                EntryKind::File => {}
                EntryKind::Unnameable => return Err(unreadable(storage, &entry).await),
                // A pipe is not a directory; a link that leads nowhere might have been one.
                EntryKind::Other => _ = storage.stat(&entry.path).await?,
            }
        }
        if found.files.len() > FILES_MAX || to_visit.len() > FILES_MAX {
            let what = format!("the pattern names more than {FILES_MAX} files");
            return Err(malformed(storage, pattern, &what));
        }
    }
    Ok(())
}

/// Takes what a whole pattern matches: a file, or the files in a directory.
async fn take(
    storage: &dyn Storage,
    entry: Entry,
    found: &mut FoundFiles,
) -> Result<(), StorageError> {
    match entry.kind {
        EntryKind::File => found.files.push(entry),
        EntryKind::Dir => {
            for child in visible(storage, &entry.path).await? {
                match child.kind {
                    EntryKind::File => found.files.push(child),
                    EntryKind::Dir => found.folders.push(child.path),
                    EntryKind::Other | EntryKind::Unnameable => {
                        return Err(unreadable(storage, &child).await);
                    }
                }
            }
        }
        EntryKind::Other | EntryKind::Unnameable => return Err(unreadable(storage, &entry).await),
    }
    Ok(())
}
