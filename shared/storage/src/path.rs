//! The path of a file or directory inside one storage.

use std::fmt;

/// Longest path accepted, in bytes: Linux's `PATH_MAX` and half of HDFS's limit of 8000.
const PATH_BYTES_MAX: usize = 4096;
/// Longest single name, in bytes: what Linux file systems and HDFS's default
/// (`dfs.namenode.fs-limits.max-component-length`) allow.
pub(crate) const NAME_BYTES_MAX: usize = 255;

/// An absolute path inside one storage: UTF-8, `/` between names, no empty, `.` or `..` name, no
/// `/` at the end (the root is `/` alone).
///
/// ```
/// use heddle_storage::StorePath;
/// let dir = StorePath::parse("/data//ckpt/").expect("a valid path");
/// assert_eq!(dir.as_str(), "/data/ckpt");
/// assert_eq!(dir.join("g1-c4").expect("a valid name").as_str(), "/data/ckpt/g1-c4");
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorePath(String);

/// Why a text is not a path or a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The path does not start with `/`.
    #[error("'{0}' is not an absolute path")]
    Relative(String),
    /// A name is `..`, or contains a `/` or a zero byte where a single name is expected.
    #[error("'{0}' is not a name that may stand in a path")]
    Name(String),
    /// The path or a name in it is too long.
    #[error("path of {0} bytes is too long")]
    TooLong(usize),
}

impl StorePath {
    /// Reads an absolute path. Doubled slashes, `.` and a slash at the end are dropped.
    ///
    /// # Errors
    /// The path is relative, too long, or contains `..` or a zero byte. `..` is an error and not resolved, because with
    /// symbolic links its meaning does not follow from the text.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        if !text.starts_with('/') {
            return Err(PathError::Relative(text.to_owned()));
        }
        let mut path = Self::root();
        for name in text.split('/').filter(|name| !name.is_empty() && *name != ".") {
            path = path.join(name)?;
        }
        Ok(path)
    }

    /// The root, `/`.
    pub fn root() -> Self {
        Self("/".to_owned())
    }

    /// This path with one more name at its end.
    ///
    /// # Errors
    /// `name` is empty, `.`, `..`, too long, or contains `/` or a zero byte.
    pub fn join(&self, name: &str) -> Result<Self, PathError> {
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
            return Err(PathError::Name(name.to_owned()));
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(PathError::TooLong(name.len()));
        }
        let mut text = self.0.clone();
        if !self.is_root() {
            text.push('/');
        }
        text.push_str(name);
        if text.len() > PATH_BYTES_MAX {
            return Err(PathError::TooLong(text.len()));
        }
        Ok(Self(text))
    }

    /// The directory that holds this path; `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        let cut = self.0.rfind('/')?;
        Some(if cut == 0 { Self::root() } else { Self(self.0[..cut].to_owned()) })
    }

    /// Another name in the same directory.
    ///
    /// # Errors
    /// See [`join`](Self::join).
    pub fn sibling(&self, name: &str) -> Result<Self, PathError> {
        self.parent().unwrap_or_else(Self::root).join(name)
    }

    /// The last name; empty for the root.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or("")
    }

    /// The names from the root down; none for the root.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.split('/').filter(|name| !name.is_empty())
    }

    /// The whole path as text, starting with `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is `/`.
    pub fn is_root(&self) -> bool {
        self.0 == "/"
    }
}

impl fmt::Display for StorePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for StorePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(text: &str) -> StorePath {
        StorePath::parse(text).expect("a valid path")
    }

    #[test]
    fn spellings_of_one_path_are_equal() {
        assert_eq!(path("/a/b"), path("//a/./b/"));
        assert_eq!(path("/"), StorePath::root());
    }

    #[test]
    fn parent_and_name_take_a_path_apart() {
        assert_eq!(path("/a/b").parent(), Some(path("/a")));
        assert_eq!(path("/a").parent(), Some(StorePath::root()));
        assert_eq!(StorePath::root().parent(), None);
        assert_eq!(path("/a/b").name(), "b");
        assert_eq!(StorePath::root().name(), "");
    }

    #[test]
    fn relative_upward_and_overlong_paths_are_refused() {
        assert!(matches!(StorePath::parse("a/b"), Err(PathError::Relative(_))));
        assert!(matches!(StorePath::parse("/a/../b"), Err(PathError::Name(_))));
        assert!(matches!(StorePath::parse("/a\0b"), Err(PathError::Name(_))));
        assert!(matches!(
            StorePath::parse(&format!("/{}", "x".repeat(256))),
            Err(PathError::TooLong(256))
        ));
        assert!(matches!(path("/a").join("b/c"), Err(PathError::Name(_))));
    }

    proptest! {
        #[test]
        fn what_parses_parses_again_to_itself(text in "\\PC{0,60}") {
            if let Ok(path) = StorePath::parse(&text) {
                prop_assert_eq!(StorePath::parse(path.as_str()), Ok(path.clone()));
                prop_assert!(path.names().all(|name| name != ".." && name != "."));
            }
        }
    }
}
