//! URLs of files and directories: the storage, and the path in it.

use std::fmt;
use std::str::FromStr;

use crate::path::{PathError, StorePath};

/// A parsed URL: a path of this machine, or a path on an HDFS.
///
/// Written `/abs/path`, `file:///abs/path`, `hdfs://host:port/path`, `hdfs://name-service/path` or
/// `hdfs:///path` (the cluster's `fs.defaultFS`). A relative path is an error; the caller resolves it before.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StorageUrl {
    /// On this machine's file system.
    Local(StorePath),
    /// On an HDFS.
    Hdfs {
        /// `host:port` of the NameNode or the id of a name service; empty for the cluster's default.
        authority: String,
        /// The path there.
        path: StorePath,
    },
}

/// Why a text is not a URL of a storage.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StorageUrlError {
    /// A scheme other than `file` and `hdfs`.
    #[error("'{text}': unknown scheme '{scheme}' (known: file, hdfs)")]
    Scheme {
        /// What was given.
        text: String,
        /// The part before `://`.
        scheme: String,
    },
    /// A `file://` URL that names another host.
    #[error("'{0}': a file:// URL has no host (write file:///path)")]
    FileHost(String),
    /// The authority of an HDFS URL has characters that a host, port or name service cannot have.
    #[error("'{0}': bad host, port or name service")]
    Authority(String),
    /// The path part is not a valid path.
    #[error("bad path in '{text}'")]
    Path {
        /// The text.
        text: String,
        /// The error in the path.
        #[source]
        source: PathError,
    },
}

impl StorageUrl {
    /// Reads a location.
    ///
    /// # Errors
    /// On an unknown scheme, a host in a `file` URL, a bad authority or a bad or relative path.
    pub fn parse(text: &str) -> Result<Self, StorageUrlError> {
        let path_of = |path: &str| {
            StorePath::parse(path)
                .map_err(|source| StorageUrlError::Path { text: text.to_owned(), source })
        };
        let Some((scheme, rest)) = text.split_once("://") else {
            return Ok(Self::Local(path_of(text.strip_prefix("file:").unwrap_or(text))?));
        };
        match scheme {
            "file" if !rest.starts_with('/') => Err(StorageUrlError::FileHost(text.to_owned())),
            "file" => Ok(Self::Local(path_of(rest)?)),
            "hdfs" => {
                let (authority, path) = match rest.find('/') {
                    Some(slash) => rest.split_at(slash),
                    None => (rest, "/"),
                };
                let plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
                if !authority.chars().all(plain) {
                    return Err(StorageUrlError::Authority(text.to_owned()));
                }
                Ok(Self::Hdfs { authority: authority.to_owned(), path: path_of(path)? })
            }
            _ => Err(StorageUrlError::Scheme { text: text.to_owned(), scheme: scheme.to_owned() }),
        }
    }

    /// The path inside its storage.
    pub fn path(&self) -> &StorePath {
        match self {
            Self::Local(path) | Self::Hdfs { path, .. } => path,
        }
    }

    /// The same storage, another path.
    #[must_use]
    pub fn with_path(&self, path: StorePath) -> Self {
        match self {
            Self::Local(_) => Self::Local(path),
            Self::Hdfs { authority, .. } => Self::Hdfs { authority: authority.clone(), path },
        }
    }

    /// Whether it is on this machine.
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Local(_))
    }
}

impl FromStr for StorageUrl {
    type Err = StorageUrlError;

    fn from_str(text: &str) -> Result<Self, StorageUrlError> {
        Self::parse(text)
    }
}

/// A local path has no scheme, as users type it.
impl fmt::Display for StorageUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(path) => write!(f, "{path}"),
            Self::Hdfs { authority, path } => write!(f, "hdfs://{authority}{path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(text: &str) -> String {
        StorageUrl::parse(text).expect("a valid location").to_string()
    }

    #[test]
    fn each_spelling_is_read() {
        assert_eq!(shown("/a/b"), "/a/b");
        assert_eq!(shown("file:///a/b"), "/a/b");
        assert_eq!(shown("file:/a/b"), "/a/b");
        assert_eq!(shown("hdfs:///a"), "hdfs:///a");
        assert_eq!(shown("hdfs://nn.example:8020/a/"), "hdfs://nn.example:8020/a");
        assert_eq!(shown("hdfs://ns1"), "hdfs://ns1/");
    }

    #[test]
    fn others_are_refused_by_reason() {
        assert!(matches!(StorageUrl::parse("s3://b/a"), Err(StorageUrlError::Scheme { .. })));
        assert!(matches!(StorageUrl::parse("file://host/a"), Err(StorageUrlError::FileHost(_))));
        assert!(matches!(StorageUrl::parse("hdfs://a b/c"), Err(StorageUrlError::Authority(_))));
        assert!(matches!(StorageUrl::parse("data/x"), Err(StorageUrlError::Path { .. })));
        assert!(matches!(StorageUrl::parse("hdfs://nn/../x"), Err(StorageUrlError::Path { .. })));
    }

    proptest! {
        #[test]
        fn what_parses_is_shown_as_what_parses(text in "(file://|hdfs://|/)?[a-z./:0-9]{0,30}") {
            if let Ok(location) = StorageUrl::parse(&text) {
                prop_assert_eq!(StorageUrl::parse(&location.to_string()), Ok(location));
            }
        }
    }
}
