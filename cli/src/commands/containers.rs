//! The hidden commands: what containers run. They are started by Heddle and never by hand.
//!
//! The job's secret comes from a file (`heddle run`) or from the container's credentials (YARN), which is the one
//! thing that the crates below cannot do by themselves, since they do not depend on Hadoop.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use heddle_agent::{AmPlace, ContainerEnvironment, UserSecrets};
use heddle_am::carried_files;
use heddle_am::node_address;
use heddle_am::staging::{SECRET_ALIAS, USER_SECRET_PREFIX};
use heddle_hadoop::token::Credentials;
use heddle_protocol::environment::{AM_DIR, BIND_HOST, DATA_THREADS, PORTS};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::handshake::Secret;
use heddle_protocol::job_spec::PortRange;
use heddle_telemetry::descriptors::Limit;
use heddle_telemetry::logs;
use heddle_trainer::TrainerError;

use crate::failure::{CommandFailure, CommandResult, OrFail};

#[derive(Debug, clap::Args)]
pub struct AmArgs {
    /// The run directory that the command line made
    #[arg(long, required_unless_present = "yarn")]
    run_dir: Option<PathBuf>,
    /// Run in a container of YARN, with the files of its work directory
    #[arg(long, conflicts_with = "run_dir")]
    pub yarn: bool,
}

/// Logs into the container's folder; a container's stderr is a file beside them, for what is worse
/// than a log line. Raises the limit of open files: each of these processes holds many connections.
fn init_process(process: &'static str) -> Result<(), CommandFailure> {
    let setup = logs::Setup {
        process,
        dir: heddle_agent::log_dir(),
        stderr: "error",
        ..logs::Setup::default()
    };
    logs::init(&setup).or_fail(ExitCode::Internal, "cannot open the log")?;
    Limit::raise();
    Ok(())
}

/// Writes the files of an ApplicationMaster that travel in its credentials into the work directory.
///
/// # Errors
/// Exit code 5 if the credentials cannot be read, or the directory cannot be written.
pub fn unpack_carried_files() -> Result<(), CommandFailure> {
    let Some(tokens) = std::env::var_os("HADOOP_TOKEN_FILE_LOCATION") else {
        return Ok(());
    };
    carried_files::unpack(Path::new(&tokens), Path::new("."))
        .or_fail(ExitCode::Denied, "cannot write the files of the ApplicationMaster")
}

pub fn am(args: &AmArgs) -> CommandResult {
    init_process("am")?;
    heddle_fail_points::setup(&[]);
    let program = std::env::current_exe()
        .or_fail(ExitCode::Internal, "cannot determine the path of this program")?;
    let ended = match &args.run_dir {
        Some(run_dir) => heddle_am::process::run(run_dir, &program),
        None => heddle_am::process::run_on_yarn(),
    };
    let code = ended.or_fail(ExitCode::Internal, "cannot start the runtime")?;
    std::process::exit(i32::from(code.code()))
}

/// Parses an environment variable; `absent` if it is not set.
fn variable<T: std::str::FromStr>(name: &'static str, absent: T) -> Result<T, CommandFailure> {
    match std::env::var(name) {
        Err(_) => Ok(absent),
        Ok(value) if value.is_empty() => Ok(absent),
        Ok(value) => value.parse().map_err(|_| {
            CommandFailure::new(
                ExitCode::Internal,
                format!("environment variable {name} is {value:?}"),
            )
        }),
    }
}

/// The variable with the path of a container's credentials. (ApplicationConstants.CONTAINER_TOKEN_FILE_ENV_NAME)
const TOKEN_FILE: &str = "HADOOP_TOKEN_FILE_LOCATION";

fn environment() -> Result<ContainerEnvironment, CommandFailure> {
    let read = if std::env::var_os(AM_DIR).is_some() {
        let file = std::env::var_os(TOKEN_FILE).ok_or_else(|| {
            CommandFailure::new(
                ExitCode::Usage,
                format!(
                    "environment variable {TOKEN_FILE} is not set: only a NodeManager starts this \
                     command"
                ),
            )
        })?;
        let credentials = read_credentials(Path::new(&file))?;
        let secret = job_secret(&credentials, Path::new(&file))?;
        ContainerEnvironment::with_secrets(secret, user_secrets(&credentials))
    } else {
        ContainerEnvironment::from_process()
    };
    read.or_fail(ExitCode::Usage, "cannot read the container's environment")
}

fn read_credentials(file: &Path) -> Result<Credentials, CommandFailure> {
    Credentials::read_file(file)
        .or_fail(ExitCode::Denied, "cannot read the container's credentials")
}

/// The values of `yarn.secrets`.
fn user_secrets(credentials: &Credentials) -> UserSecrets {
    let named = credentials.secrets().filter_map(|(alias, value)| {
        let name = alias.strip_prefix(USER_SECRET_PREFIX)?;
        Some((name.to_owned(), value.to_vec().into()))
    });
    UserSecrets(named.collect())
}

/// The job's secret in a container's credentials. No message contains it.
fn job_secret(credentials: &Credentials, file: &Path) -> Result<Secret, CommandFailure> {
    let missing = || {
        CommandFailure::new(
            ExitCode::Denied,
            format!("{}: no secret {SECRET_ALIAS} of 64 hexadecimal digits", file.display()),
        )
    };
    let text = credentials.secret(SECRET_ALIAS).ok_or_else(missing)?;
    let text = std::str::from_utf8(text).map_err(|_| missing())?;
    Secret::from_hex(text).map_err(|_| missing())
}

/// The address of this node, from its address or name. `am`: the ApplicationMaster, to which every node connects.
fn address_of(host: &str, am: &AmPlace) -> Result<IpAddr, CommandFailure> {
    if host == "localhost" {
        // A resolver may return ::1 first, or only that.
        return Ok(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    let servers: Vec<String> = match am {
        AmPlace::Directory { first, .. } => first.iter().map(|am| am.address.to_string()).collect(),
        AmPlace::File(_) => Vec::new(),
    };
    let fact = format!("{BIND_HOST}, else NM_HOST, must be an address of this node (got {host})");
    node_address::of_node(host, &servers)
        .or_fail(ExitCode::Input, fact)
        .map_err(|failure| failure.next("configure every node to resolve its own name"))
}

pub fn pserver() -> CommandResult {
    init_process("pserver")?;
    let environment = environment()?;
    let options = heddle_pserver::Options {
        threads: variable(DATA_THREADS, 1)?,
        host: address_of(&environment.host, &environment.am)?,
        mechanism: environment.mechanism,
        timeout: environment.timeout,
        ports: match variable(PORTS, String::new())?.as_str() {
            "" => None,
            text => Some(
                text.parse::<PortRange>()
                    .or_fail(ExitCode::Internal, format_args!("environment variable {PORTS}"))?,
            ),
        },
    };
    match heddle_pserver::run(environment, options) {
        Ok(end) => {
            tracing::info!(%end, "container_stopped");
            heddle_agent::leave(&end)
        }
        Err(error) => {
            tracing::error!(%error, "pserver_failed");
            Err(CommandFailure::caused(ExitCode::Internal, "cannot run the pserver", &error))
        }
    }
}

pub fn trainer() -> CommandResult {
    init_process("trainer")?;
    match heddle_trainer::run(environment()?) {
        Ok(()) => Ok(ExitCode::Ok),
        Err(error @ TrainerError::Environment(_)) => Err(CommandFailure::caused(
            ExitCode::Usage,
            "cannot read the container's environment",
            &error,
        )),
        Err(error) => {
            tracing::error!(%error, "trainer_failed");
            Err(CommandFailure::caused(ExitCode::Internal, "cannot run the trainer", &error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret_of(file: &Path) -> Result<Secret, CommandFailure> {
        job_secret(&read_credentials(file)?, file)
    }

    #[test]
    fn secret_is_read_from_credentials_and_never_shown() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("container_tokens");
        let digits = "c0".repeat(32);
        let mut credentials = Credentials::new();
        credentials.insert_secret(SECRET_ALIAS, digits.as_bytes().to_vec());
        credentials.insert_secret("heddle.secret.API_KEY", b"canary".to_vec());
        credentials.insert_secret("another.program", b"canary".to_vec());
        credentials.write_file(&file).expect("written");
        let secret = secret_of(&file).expect("there");
        assert_eq!(*secret.to_hex(), digits);
        let named = user_secrets(&read_credentials(&file).expect("there"));
        assert_eq!(named.0.len(), 1);
        assert_eq!(named.0["API_KEY"].as_slice(), b"canary");
        assert_eq!(format!("{named:?}"), "{\"API_KEY\"}");

        credentials.insert_secret(SECRET_ALIAS, digits.as_bytes()[1..].to_vec());
        credentials.write_file(&file).expect("written");
        let failure = secret_of(&file).expect_err("a digit is missing");
        assert!(failure.fact.contains(SECRET_ALIAS), "{failure:?}");
        assert!(!format!("{failure:?}").contains("c0c0"), "{failure:?}");

        Credentials::new().write_file(&file).expect("written");
        let failure = secret_of(&file).expect_err("none");
        assert!(failure.fact.contains(SECRET_ALIAS), "{failure:?}");
        let failure = secret_of(&dir.path().join("nowhere")).expect_err("no file");
        assert!(failure.causes.iter().any(|cause| cause.contains("nowhere")), "{failure:?}");
    }

    #[test]
    fn node_is_given_by_address_or_by_name() {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let am = AmPlace::File(PathBuf::new());
        assert_eq!(address_of("127.0.0.1", &am).ok(), Some(loopback));
        assert_eq!(address_of("localhost", &am).ok(), Some(loopback));
        let failure = address_of("no such host", &am).expect_err("no address");
        assert!(failure.fact.contains("no such host"), "{failure:?}");
    }
}
