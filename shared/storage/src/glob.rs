//! Expands a data path to its files.

use std::collections::BTreeSet;

use globset::{GlobBuilder, GlobMatcher};

use crate::error::{Op, Reason, StorageError};
use crate::path::StorePath;
use crate::store::{Entry, EntryKind, Storage};

/// Maximum files of one pattern. The manifest and the AM's memory hold the input plan, and a pattern beyond this limit is
/// usually a mistake.
const FILES_MAX: usize = 1_000_000;

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
///   stands for any number of directories.
/// - Names that start with `.` or `_` match only a pattern that starts the same way, names that end in `._COPYING_` one that
///   ends in it: Hadoop marks hidden and unfinished files so (`_SUCCESS`, `_temporary`).
///
/// # Errors
/// `NotFound` if nothing matches; `Unsupported` for a malformed pattern and for a name that is not UTF-8; `NotAFile` for pipes
/// and the like; errors of the storage, among them that of a link that leads nowhere.
pub async fn find_files(
    storage: &dyn Storage,
    pattern: &StorePath,
) -> Result<FoundFiles, StorageError> {
    let mut found = if pattern.names().any(is_wild) {
        walk(storage, pattern).await?
    } else {
        let mut found = FoundFiles::default();
        take(storage, storage.stat(pattern).await?, &mut found).await?;
        found
    };
    if found.files.is_empty() {
        return Err(StorageError::new(Op::List, storage.show(pattern), Reason::NotFound));
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
        format!("warning: the files in the folder {folder} are not read: name the folder too, or all by **")
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

/// One name of a pattern.
enum PatternSegment {
    Plain(String),
    Wild { matcher: GlobMatcher, name: String },
    AnyDepth,
}

fn segments(
    storage: &dyn Storage,
    pattern: &StorePath,
) -> Result<Vec<PatternSegment>, StorageError> {
    let one = |name: &str| {
        if name == "**" {
            return Ok(PatternSegment::AnyDepth);
        }
        if !is_wild(name) {
            return Ok(PatternSegment::Plain(name.to_owned()));
        }
        let glob = GlobBuilder::new(name).literal_separator(true).build().map_err(|error| {
            StorageError::new(
                Op::List,
                storage.show(pattern),
                Reason::Unsupported(error.kind().to_string()),
            )
        })?;
        Ok(PatternSegment::Wild { matcher: glob.compile_matcher(), name: name.to_owned() })
    };
    pattern.names().map(one).collect()
}

/// Walks the tree with a list of (path, number of segments already matched) to visit.
async fn walk(storage: &dyn Storage, pattern: &StorePath) -> Result<FoundFiles, StorageError> {
    let segments = segments(storage, pattern)?;
    let mut found = FoundFiles::default();
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
            PatternSegment::Wild { matcher, name } => {
                matched = storage.list(&dir).await?;
                matched
                    .retain(|entry| matcher.is_match(entry.name()) && states(name, entry.name()));
            }
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
                            take(storage, entry, &mut found).await?;
                        }
                    }
                }
            }
        }
        for entry in matched {
            match entry.kind {
                _ if last => take(storage, entry, &mut found).await?,
                EntryKind::Dir => to_visit.push((entry.path, depth + 1)),
                EntryKind::File => {}
                EntryKind::Unnameable => return Err(unreadable(storage, &entry).await),
                // A pipe is not a directory; a link that leads nowhere might have been one.
                EntryKind::Other => _ = storage.stat(&entry.path).await?,
            }
        }
        if found.files.len() > FILES_MAX || to_visit.len() > FILES_MAX {
            let reason =
                Reason::Unsupported(format!("the pattern names more than {FILES_MAX} files"));
            return Err(StorageError::new(Op::List, storage.show(pattern), reason));
        }
    }
    Ok(found)
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
