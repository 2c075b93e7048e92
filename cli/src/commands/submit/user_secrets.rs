//! The values of `yarn.secrets`, read on the submitting machine. No message holds one.

use std::collections::BTreeMap;

use heddle_agent::UserSecrets;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::SecretSource;
use zeroize::Zeroizing;

use crate::failure::CommandFailure;

/// Most bytes of all secrets together. The ResourceManager keeps them with the application, and each start of a container
/// carries them.
const BYTES_MAX: usize = 64 * 1024;

/// Reads the values.
///
/// # Errors
/// Exit code 7 for a file or variable that cannot be read or is empty, or for too many bytes.
pub fn read(sources: &BTreeMap<String, SecretSource>) -> Result<UserSecrets, CommandFailure> {
    let mut secrets = UserSecrets::default();
    let mut bytes = 0;
    for (name, source) in sources {
        let value = Zeroizing::new(value(name, source)?);
        if value.is_empty() {
            return Err(invalid(name, &format!("{source} is empty")));
        }
        bytes += value.len();
        if bytes > BYTES_MAX {
            let fact =
                format!("all secrets together must have at most {BYTES_MAX} bytes (got {bytes})");
            return Err(
                invalid(name, &fact).next("put larger files on HDFS and name them in yarn.files")
            );
        }
        secrets.0.insert(name.clone(), value);
    }
    Ok(secrets)
}

fn value(name: &str, source: &SecretSource) -> Result<Vec<u8>, CommandFailure> {
    use std::os::unix::ffi::OsStringExt;
    match source {
        SecretSource::Environment(variable) => std::env::var_os(variable)
            .map(OsStringExt::into_vec)
            .ok_or_else(|| invalid(name, &format!("{source} is not set"))),
        SecretSource::File(path) => {
            let cannot =
                |error: std::io::Error| invalid(name, &format!("cannot read {source}: {error}"));
            let about = std::fs::metadata(path).map_err(cannot)?;
            if !about.is_file() || about.len() > BYTES_MAX as u64 {
                let fact = format!("{source} must be a file of at most {BYTES_MAX} bytes");
                return Err(invalid(name, &fact));
            }
            std::fs::read(path).map_err(cannot)
        }
    }
}

fn invalid(name: &str, fact: &str) -> CommandFailure {
    CommandFailure::new(ExitCode::Input, format!("yarn.secrets.{name}: {fact}"))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn of(source: SecretSource) -> Result<UserSecrets, String> {
        read(&BTreeMap::from([("KEY".to_owned(), source)])).map_err(|failure| failure.fact)
    }

    #[test]
    fn values_come_from_files_and_variables() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, b"a\0b\n").unwrap();
        let read = of(SecretSource::File(path.clone())).unwrap();
        assert_eq!(read.0["KEY"].as_slice(), b"a\0b\n", "as it is, with its last line feed");
        assert!(!of(SecretSource::Environment("PATH".into())).unwrap().0["KEY"].is_empty());

        std::fs::write(&path, b"").unwrap();
        let empty = of(SecretSource::File(path.clone())).unwrap_err();
        assert!(empty.contains("yarn.secrets.KEY") && empty.contains("is empty"), "{empty}");
        std::fs::write(&path, vec![b'x'; BYTES_MAX + 1]).unwrap();
        assert!(of(SecretSource::File(path)).unwrap_err().contains("65536"));
        let unset = of(SecretSource::Environment("HEDDLE_TEST_NOT_SET".into())).unwrap_err();
        assert!(unset.contains("env:HEDDLE_TEST_NOT_SET is not set"), "{unset}");
        assert!(of(SecretSource::File(dir.path().into())).is_err());
    }
}
