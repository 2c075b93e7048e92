//! Files that a submission puts into the work directory of each container.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::location::Location;

/// Names in a container's work directory that are taken: ours, and those of the NodeManager.
const TAKEN: [&str; 10] = [
    "heddle",
    "heddle.keytab",
    "conf",
    "run.json",
    "spec.json",
    "yarn.json",
    "tmp",
    "container_tokens",
    "launch_container.sh",
    "default_container_executor.sh",
];

/// A file and its name in a work directory. Written `path#name`, or `path`, whose last part is then the name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileSpec {
    /// Where it is.
    pub from: Location,
    /// One plain name.
    pub name: String,
}

impl FileSpec {
    /// Reads `path#name`; a path without scheme is local and relative to `base`.
    ///
    /// # Errors
    /// What was expected instead.
    pub fn parse(text: &str, base: &Path) -> Result<Self, String> {
        let (from, name) = match text.rsplit_once('#') {
            Some((from, name)) => (from, Some(name)),
            None => (text, None),
        };
        let from = Location::resolve(from, base).map_err(|error| error.to_string())?;
        let name = match name {
            Some(name) => name,
            None => from.path().rsplit('/').next().unwrap_or_default(),
        };
        let plain = !name.is_empty()
            && name.len() <= 255
            && !name.starts_with('.')
            && !name.contains(['/', '\n', '\\', '"', '\'', '$', '`'])
            && !name.chars().any(char::is_control);
        if !plain {
            return Err(format!(
                "{text:?}: expected a path, or path#name where name is one plain file name"
            ));
        }
        if TAKEN.contains(&name) {
            return Err(format!(
                "{text:?}: the name {name:?} is taken in a work directory; choose another, such as {text}#my-{name}"
            ));
        }
        Ok(Self { name: name.to_owned(), from })
    }
}

impl fmt::Display for FileSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.from, self.name)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn file(text: &str) -> Result<String, String> {
        FileSpec::parse(text, Path::new("/jobs")).map(|file| file.to_string())
    }

    #[test]
    fn a_file_has_the_name_after_the_hash_or_its_own() {
        assert_eq!(file("a.txt").unwrap(), "/jobs/a.txt#a.txt");
        assert_eq!(file("d/a.txt#b").unwrap(), "/jobs/d/a.txt#b");
        assert_eq!(file("hdfs:///x/y.zip#d").unwrap(), "hdfs:///x/y.zip#d");
        for text in ["", "#b", "a#", "a#b/c", "a#..", "/", "a#$(x)", "a#b\nc"] {
            assert!(file(text).is_err(), "{text}");
        }
        assert!(file("a#heddle").unwrap_err().contains("is taken"));
        assert!(file("bin/heddle").unwrap_err().contains("#my-heddle"));
    }
}
