//! Expands a data path to its files.

use globset::{GlobBuilder, GlobMatcher};

use crate::error::{Op, Reason, StorageError};
use crate::path::StorePath;
use crate::store::{Entry, EntryKind, Storage};

/// Maximum files of one pattern. The manifest and the AM's memory hold the input plan, and a pattern beyond this limit is
/// usually a mistake.
const FILES_MAX: usize = 1_000_000;

/// The files of `pattern`, sorted by path.
///
/// - Without wildcards: that file; or, for a directory, the files directly in it.
/// - Each name of the path may contain `*`, `?`, `[…]` and `{a,b}`, which never match a `/`; `**`
///   stands for any number of directories.
/// - Names that start with `.` or `_` match only a pattern that starts the same way: Hadoop marks
///   hidden and unfinished files so (`_SUCCESS`, `_temporary`).
///
/// # Errors
/// `NotFound` if nothing matches; `Unsupported` for a malformed pattern; errors of the storage.
pub async fn find_files(
    storage: &dyn Storage,
    pattern: &StorePath,
) -> Result<Vec<Entry>, StorageError> {
    let mut found = if pattern.names().any(is_wild) {
        walk(storage, pattern).await?
    } else {
        plain(storage, pattern).await?
    };
    if found.is_empty() {
        return Err(StorageError::new(Op::List, storage.show(pattern), Reason::NotFound));
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found.dedup_by(|a, b| a.path == b.path);
    Ok(found)
}

fn is_wild(name: &str) -> bool {
    name.contains(['*', '?', '[', '{'])
}

fn is_hidden(name: &str) -> bool {
    name.starts_with(['.', '_'])
}

async fn plain(storage: &dyn Storage, path: &StorePath) -> Result<Vec<Entry>, StorageError> {
    let entry = storage.stat(path).await?;
    match entry.kind {
        EntryKind::File => Ok(vec![entry]),
        EntryKind::Dir => Ok(files_in(storage, path).await?),
        EntryKind::Other => Err(StorageError::new(
            Op::Open,
            storage.show(path),
            Reason::Unsupported("neither a file nor a directory".to_owned()),
        )),
    }
}

async fn files_in(storage: &dyn Storage, dir: &StorePath) -> Result<Vec<Entry>, StorageError> {
    let children = storage.list(dir).await?;
    Ok(children.into_iter().filter(|e| e.kind == EntryKind::File && !is_hidden(e.name())).collect())
}

/// One name of a pattern.
enum PatternSegment {
    Plain(String),
    Wild { matcher: GlobMatcher, hidden: bool },
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
        Ok(PatternSegment::Wild { matcher: glob.compile_matcher(), hidden: is_hidden(name) })
    };
    pattern.names().map(one).collect()
}

/// Walks the tree with a list of (path, number of segments already matched) to visit.
async fn walk(storage: &dyn Storage, pattern: &StorePath) -> Result<Vec<Entry>, StorageError> {
    let segments = segments(storage, pattern)?;
    let mut found = Vec::new();
    let mut to_visit = vec![(StorePath::root(), 0)];
    while let Some((dir, depth)) = to_visit.pop() {
        let last = depth + 1 == segments.len();
        match &segments[depth] {
            PatternSegment::Plain(name) => {
                let child = dir.join(name).expect("a name taken from a path");
                match storage.stat(&child).await {
                    Ok(entry) => {
                        take(storage, entry, last, depth + 1, &mut found, &mut to_visit).await?
                    }
                    Err(error) if error.is_not_found() => {}
                    Err(error) if error.reason == Reason::NotADirectory => {}
                    Err(error) => return Err(error),
                }
            }
            PatternSegment::Wild { matcher, hidden } => {
                for entry in storage.list(&dir).await? {
                    if matcher.is_match(entry.name()) && (*hidden || !is_hidden(entry.name())) {
                        take(storage, entry, last, depth + 1, &mut found, &mut to_visit).await?;
                    }
                }
            }
            PatternSegment::AnyDepth => {
                if last {
                    found.extend(files_in(storage, &dir).await?);
                } else {
                    to_visit.push((dir.clone(), depth + 1));
                }
                let children = storage.list(&dir).await?;
                let dirs = children
                    .into_iter()
                    .filter(|e| e.kind == EntryKind::Dir && !is_hidden(e.name()));
                to_visit.extend(dirs.map(|entry| (entry.path, depth)));
            }
        }
        if found.len() > FILES_MAX || to_visit.len() > FILES_MAX {
            let reason =
                Reason::Unsupported(format!("the pattern names more than {FILES_MAX} files"));
            return Err(StorageError::new(Op::List, storage.show(pattern), reason));
        }
    }
    Ok(found)
}

async fn take(
    storage: &dyn Storage,
    entry: Entry,
    last: bool,
    depth: usize,
    found: &mut Vec<Entry>,
    to_visit: &mut Vec<(StorePath, usize)>,
) -> Result<(), StorageError> {
    match entry.kind {
        EntryKind::File if last => found.push(entry),
        EntryKind::Dir if last => found.extend(files_in(storage, &entry.path).await?),
        EntryKind::Dir => to_visit.push((entry.path, depth)),
        EntryKind::File | EntryKind::Other => {}
    }
    Ok(())
}
