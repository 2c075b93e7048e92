//! The directories that hold configuration files, and the file system as their source.

use std::path::{Path, PathBuf};

use super::environment::Environment;

/// A directory that may hold configuration files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigDirectory {
    /// The directory.
    pub directory: PathBuf,
    /// The variable that names it, such as `HADOOP_CONF_DIR`.
    pub reason: &'static str,
}

/// The directories to search, the most specific first. `YARN_CONF_DIR` comes before `HADOOP_CONF_DIR` for
/// `yarn-site.xml` and `resource-types.xml`, and after it for the other files. `HADOOP_HOME/etc/hadoop` and
/// `/etc/hadoop/conf` count only when neither variable is set.
pub fn config_directories(environment: &Environment, is_yarn: bool) -> Vec<ConfigDirectory> {
    let named = |reason: &'static str| {
        let directory = environment.variable(reason).filter(|value| !value.is_empty())?;
        Some(ConfigDirectory { directory: PathBuf::from(directory), reason })
    };
    let order = if is_yarn {
        ["YARN_CONF_DIR", "HADOOP_CONF_DIR"]
    } else {
        ["HADOOP_CONF_DIR", "YARN_CONF_DIR"]
    };
    let mut found: Vec<ConfigDirectory> = order.into_iter().filter_map(named).collect();
    if found.is_empty() {
        for reason in ["HADOOP_HOME", "HADOOP_PREFIX"] {
            if let Some(home) = named(reason) {
                found
                    .push(ConfigDirectory { directory: home.directory.join("etc/hadoop"), reason });
            }
        }
        found.push(ConfigDirectory {
            directory: PathBuf::from("/etc/hadoop/conf"),
            reason: "the default",
        });
    }
    found.dedup_by(|later, earlier| later.directory == earlier.directory);
    found
}

/// Reads files of the file system, up to [`super::xml::FILE_BYTES_MAX`].
#[derive(Clone, Copy, Debug)]
pub struct FileSystem;

impl super::xml::FileSource for FileSystem {
    fn read(&self, path: &Path) -> std::io::Result<Option<Vec<u8>>> {
        use std::io::{Error, ErrorKind, Read as _};
        let file = match std::fs::File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        // The length in the metadata is not used, because a pipe or a device has none.
        let limit = super::xml::FILE_BYTES_MAX;
        let mut bytes = Vec::new();
        file.take(limit + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            return Err(Error::new(ErrorKind::FileTooLarge, format!("longer than {limit} bytes")));
        }
        Ok(Some(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(environment: &Environment, is_yarn: bool) -> Vec<&'static str> {
        config_directories(environment, is_yarn)
            .into_iter()
            .map(|candidate| candidate.reason)
            .collect()
    }

    #[test]
    fn yarn_files_search_the_yarn_directory_first() {
        let both = Environment::empty()
            .with_variable("HADOOP_CONF_DIR", "/h")
            .with_variable("YARN_CONF_DIR", "/y");
        assert_eq!(reasons(&both, false), ["HADOOP_CONF_DIR", "YARN_CONF_DIR"]);
        assert_eq!(reasons(&both, true), ["YARN_CONF_DIR", "HADOOP_CONF_DIR"]);
    }

    #[test]
    fn a_directory_counts_once_and_an_empty_variable_is_unset() {
        let same = Environment::empty()
            .with_variable("HADOOP_CONF_DIR", "/c")
            .with_variable("YARN_CONF_DIR", "/c");
        assert_eq!(reasons(&same, false).len(), 1);
        let home = Environment::empty()
            .with_variable("HADOOP_CONF_DIR", "")
            .with_variable("HADOOP_HOME", "/opt/h");
        assert_eq!(config_directories(&home, false)[0].directory, Path::new("/opt/h/etc/hadoop"));
    }
}
