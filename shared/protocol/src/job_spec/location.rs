//! Where data, checkpoints and models are: a URL with a scheme, resolved once.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use super::value::{ValueError, serde_as_text};

/// A place in a store: `file:///abs/path` or `hdfs://authority/path`. Absolute, without `.` and `..`.
/// `viewfs://table/path` names one of HDFS by a mount table; the command line resolves it before a job starts.
///
/// May hold a glob where the key allows one (`data.train`, `data.test`). Local ones print as a plain
/// path, since users type and paste that form.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    scheme: Scheme,
    /// Of hdfs and viewfs, what stands between `//` and the path; may be empty (the default file system).
    authority: String,
    /// Starts with `/`.
    path: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Scheme {
    File,
    Hdfs,
    Viewfs,
}

impl Location {
    /// Resolves a text of the user: a path without scheme is local and relative to `base`. `file:/x` is `/x`, as Hadoop writes it.
    ///
    /// # Errors
    /// The text is empty, names another scheme, holds a NUL byte or climbs above the root.
    pub fn resolve(text: &str, base: &Path) -> Result<Self, ValueError> {
        let error = |what: &str| Err(ValueError(what.to_owned()));
        if text.is_empty() || text.contains('\0') {
            return error(
                "a path or a URL such as \"data/train.libsvm\" or \"hdfs:///data/train\"",
            );
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            let path = text.strip_prefix("file:").filter(|path| path.starts_with('/'));
            return Self::local(&base.join(path.unwrap_or(text)));
        };
        let (authority, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => return error("a URL with a path, such as \"hdfs:///data/train\""),
        };
        match scheme {
            "file" if authority.is_empty() => Self::local(Path::new(path)),
            "file" => error("three slashes after \"file:\", as in \"file:///data/train\""),
            "hdfs" | "viewfs" => Ok(Self {
                scheme: if scheme == "hdfs" { Scheme::Hdfs } else { Scheme::Viewfs },
                authority: authority.to_owned(),
                path: clean(Path::new(path))?,
            }),
            _ => error("a path, or a URL that starts with file://, hdfs:// or viewfs://"),
        }
    }

    /// A place on this machine.
    ///
    /// # Errors
    /// The path is not absolute, not UTF-8, or climbs above the root.
    pub fn local(path: &Path) -> Result<Self, ValueError> {
        Ok(Self { scheme: Scheme::File, authority: String::new(), path: clean(path)? })
    }

    /// The path on this machine, if it is there.
    #[must_use]
    pub fn as_local(&self) -> Option<&Path> {
        (self.scheme == Scheme::File).then(|| Path::new(&self.path))
    }

    /// `file`, `hdfs` or `viewfs`.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        match self.scheme {
            Scheme::File => "file",
            Scheme::Hdfs => "hdfs",
            Scheme::Viewfs => "viewfs",
        }
    }

    /// Host and port, name service or mount table; empty for local places and for the default file system.
    #[must_use]
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The absolute path within the store.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// As a URL, with the scheme always.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://{}{}", self.scheme(), self.authority, self.path)
    }

    /// The place above this one, and the name in it; `None` for a root.
    #[must_use]
    pub fn parent_and_name(&self) -> Option<(Self, &str)> {
        let (above, name) = self.path.rsplit_once('/').filter(|(_, name)| !name.is_empty())?;
        let path = if above.is_empty() { "/" } else { above };
        Some((Self { path: path.to_owned(), ..self.clone() }, name))
    }

    /// Whether it is `folder`, or lies in it.
    #[must_use]
    pub fn is_in(&self, folder: &Self) -> bool {
        let (own, outer) = (self.path().trim_end_matches('/'), folder.path().trim_end_matches('/'));
        let below =
            own.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        below && self.scheme() == folder.scheme() && self.authority() == folder.authority()
    }

    /// The place `name` below this one.
    ///
    /// # Panics
    /// Never for names without `/`, which all of ours are; a `..` in it is refused by an assertion.
    #[must_use]
    pub fn join(&self, name: &str) -> Self {
        assert!(!name.is_empty() && name.split('/').all(|part| part != ".."), "a plain name");
        let slash = if self.path.ends_with('/') { "" } else { "/" };
        Self {
            scheme: self.scheme,
            authority: self.authority.clone(),
            path: format!("{}{slash}{name}", self.path),
        }
    }
}

/// The absolute path without `.`, `..`, doubled and final slashes.
fn clean(path: &Path) -> Result<String, ValueError> {
    let mut out = PathBuf::from("/");
    let error = |what: &str| Err(ValueError(what.to_owned()));
    if !path.is_absolute() {
        return error("an absolute path");
    }
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            Component::Normal(name) => out.push(name),
            Component::ParentDir => {
                if !out.pop() {
                    return error("a path that stays below the root");
                }
            }
        }
    }
    match out.into_os_string().into_string() {
        Ok(path) => Ok(path),
        Err(_) => error("a path of valid UTF-8"),
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scheme {
            Scheme::File => f.write_str(&self.path),
            Scheme::Hdfs | Scheme::Viewfs => f.write_str(&self.url()),
        }
    }
}

impl FromStr for Location {
    type Err = ValueError;

    /// Of resolved places only: a relative path is refused.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        if !text.contains("://") && !text.starts_with('/') {
            return Err(ValueError("an absolute path or a URL".to_owned()));
        }
        Self::resolve(text, Path::new("/"))
    }
}

serde_as_text!(Location);

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use proptest::prelude::*;

    use super::*;

    fn resolved(text: &str) -> String {
        Location::resolve(text, Path::new("/jobs/a")).unwrap().url()
    }

    #[test]
    fn a_path_without_scheme_is_local_and_relative_to_the_base() {
        assert_eq!(resolved("train/*.libsvm"), "file:///jobs/a/train/*.libsvm");
        assert_eq!(resolved("../b/./x//y/"), "file:///jobs/b/x/y");
        assert_eq!(resolved("/abs"), "file:///abs");
        assert_eq!(resolved("file:///abs/x"), "file:///abs/x");
        assert_eq!(resolved("file:/abs/../x/*.gz"), "file:///x/*.gz");
        assert_eq!(resolved("file:x"), "file:///jobs/a/file:x");
        assert_eq!(resolved("hdfs:///x"), "hdfs:///x");
        assert_eq!(resolved("hdfs://nn:8020/x/../y"), "hdfs://nn:8020/y");
        assert_eq!(resolved("viewfs:///x/*.gz"), "viewfs:///x/*.gz");
    }

    #[test]
    fn an_invalid_location_is_refused() {
        for text in ["", "s3://bucket/x", "file://host/x", "hdfs://nn", "../../../x", "/..", "a\0b"]
        {
            assert!(Location::resolve(text, Path::new("/jobs/a")).is_err(), "{text}");
        }
    }

    #[test]
    fn join_goes_one_down() {
        assert_eq!("/a".parse::<Location>().unwrap().join("b").to_string(), "/a/b");
        assert_eq!("/".parse::<Location>().unwrap().join("b").to_string(), "/b");
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_prints_parses_to_the_same(text in ".{0,60}") {
            if let Ok(location) = Location::resolve(&text, Path::new("/base")) {
                prop_assert_eq!(location.to_string().parse::<Location>(), Ok(location));
            }
        }
    }
}
