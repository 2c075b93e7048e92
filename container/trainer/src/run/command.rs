//! `trainers.command` in a container of YARN: this program becomes the job's program.
//!
//! In YARN every container starts as `heddle trainer`, and the welcome names the job's program. This module writes the
//! files that a child of `heddle run` gets, sets the variables that name them, and executes the program in its own place:
//! the same process, so exit status, signals and output are the container's. The program registers again; for the
//! ApplicationMaster the connection was lost and restored.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use heddle_agent::{AmPlace, ContainerEnvironment};
use heddle_protocol::environment::{AM_FILE, LOG_DIR, SECRET_FILE};

/// The job's secret in the work directory, readable by its owner only.
const SECRET: &str = "heddle-secret";
/// Begins the names of files with the values of `yarn.secrets`; their names follow.
const USER_SECRET: &str = "heddle-secret-";
/// The address of the ApplicationMaster that started this container; `HEDDLE_AM_DIR` has the addresses of later attempts.
const AM: &str = "heddle-am.json";

/// The program of this job's trainers, if this process must start it: `heddle run` starts it directly.
pub(super) fn in_place_of<'a>(
    environment: &ContainerEnvironment,
    command: &'a [String],
) -> Option<(&'a String, &'a [String])> {
    match environment.am {
        AmPlace::File(_) => None,
        AmPlace::Directory { .. } => command.split_first(),
    }
}

/// Executes the program in this process's place. Returns only on failure.
pub(super) fn become_program(
    environment: &ContainerEnvironment,
    program: &str,
    arguments: &[String],
) -> io::Error {
    match prepare(environment, Path::new(".")) {
        Ok(variables) => Command::new(program).args(arguments).envs(variables).exec(),
        Err(error) => error,
    }
}

/// Writes the files and returns the variables that a child of `heddle run` has.
fn prepare(
    environment: &ContainerEnvironment,
    dir: &Path,
) -> io::Result<Vec<(OsString, OsString)>> {
    let dir = std::path::absolute(dir)?;
    let secret = write_private(&dir, SECRET, environment.secret.to_hex().as_bytes())?;
    let mut variables = vec![(SECRET_FILE.into(), secret.into_os_string())];
    if let AmPlace::Directory { first: Some(first), .. } = &environment.am {
        let file = write_private(&dir, AM, &serde_json::to_vec(first)?)?;
        variables.push((AM_FILE.into(), file.into_os_string()));
    }
    for (name, value) in &environment.user_secrets.0 {
        let file = write_private(&dir, &format!("{USER_SECRET}{name}"), value)?;
        variables.push((format!("{name}_FILE").into(), file.into_os_string()));
    }
    if let Some(logs) = heddle_agent::log_dir() {
        variables.push((LOG_DIR.into(), logs.into_os_string()));
    }
    Ok(variables)
}

/// Writes a file with mode 0600 and replaces any file of that name, also a link.
fn write_private(dir: &Path, name: &str, content: &[u8]) -> io::Result<PathBuf> {
    let path = dir.join(name);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    file.write_all(content)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use heddle_agent::UserSecrets;
    use heddle_protocol::environment::AmAddress;
    use heddle_protocol::handshake::{Mechanism, Secret};
    use heddle_protocol::ids::{Attempt, Incarnation, Member, RunId, Slot};

    use super::*;

    fn environment(am: AmPlace) -> ContainerEnvironment {
        ContainerEnvironment {
            run: RunId(uuid::Uuid::nil()),
            member: Member { slot: Slot::trainer(0), incarnation: Incarnation(1) },
            am,
            secret: Secret::from_hex(&"5a".repeat(32)).expect("64 digits"),
            mechanism: Mechanism::Hmac,
            timeout: heddle_agent::PeerTimeout::default(),
            user_secrets: UserSecrets([("API_KEY".to_owned(), b"value".to_vec().into())].into()),
            host: "node".to_owned(),
            container: None,
        }
    }

    fn on_yarn() -> ContainerEnvironment {
        environment(AmPlace::Directory {
            first: Some(AmAddress {
                address: ([127, 0, 0, 1], 4000).into(),
                attempt: Attempt(1),
                pid: 7,
            }),
            url: "hdfs:///am".to_owned(),
        })
    }

    #[test]
    fn program_gets_the_files_of_a_local_run() {
        let dir = tempfile::tempdir().expect("a folder");
        std::os::unix::fs::symlink("/etc/hostname", dir.path().join(SECRET)).expect("a link");
        for _ in 0..2 {
            let variables = prepare(&on_yarn(), dir.path()).expect("written");
            let (name, file) = &variables[0];
            assert_eq!(*name, SECRET_FILE);
            let mode = std::fs::symlink_metadata(file).expect("there").permissions().mode();
            assert_eq!(mode & 0o7777, 0o600);
            let text = std::fs::read_to_string(file).expect("readable");
            assert_eq!(text, "5a".repeat(32));
            let (name, file) = &variables[1];
            assert_eq!(*name, AM_FILE);
            let text = std::fs::read(file).expect("readable");
            let address: AmAddress = serde_json::from_slice(&text).expect("an address");
            assert_eq!(address.pid, 7);
            let (name, file) = &variables[2];
            assert_eq!(*name, *"API_KEY_FILE");
            let mode = std::fs::symlink_metadata(file).expect("there").permissions().mode();
            assert_eq!(mode & 0o7777, 0o600);
            assert_eq!(std::fs::read(file).expect("readable"), b"value");
        }
    }

    #[test]
    fn only_a_yarn_container_starts_the_program_itself() {
        let command = ["./mine".to_owned(), "--fast".to_owned()];
        assert!(in_place_of(&on_yarn(), &command).is_some());
        assert!(in_place_of(&on_yarn(), &[]).is_none());
        let local = environment(AmPlace::File(PathBuf::from("am.json")));
        assert!(in_place_of(&local, &command).is_none());
    }

    #[test]
    fn a_missing_program_is_an_error() {
        let dir = tempfile::tempdir().expect("a folder");
        let nowhere = dir.path().join("nowhere");
        let error = Command::new(&nowhere).exec();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
