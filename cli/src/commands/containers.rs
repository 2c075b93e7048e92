//! The hidden commands: what containers run. They are started by Heddle and never by hand.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use heddle_agent::Environment;
use heddle_protocol::environment::{BIND_HOST, DATA_THREADS, LOG_DIR, PORTS};
use heddle_protocol::spec::PortRange;
use heddle_telemetry::logs;
use heddle_trainer::TrainerError;

use crate::exit::Exit;
use crate::failure::{Failure, Outcome};

#[derive(Debug, clap::Args)]
pub struct AmArgs {
    /// The run directory that the command line made
    #[arg(long, required_unless_present = "yarn")]
    run_dir: Option<PathBuf>,
    /// In a container of YARN, whose work directory holds what is needed
    #[arg(long, conflicts_with = "run_dir")]
    yarn: bool,
}

/// Logs into the container's folder; a container's stderr is a file beside them, for what is worse
/// than a log line.
fn init_logs(process: &'static str) -> Result<(), Failure> {
    let setup = logs::Setup {
        process,
        dir: std::env::var_os(LOG_DIR).map(PathBuf::from),
        stderr: "error",
        ..logs::Setup::default()
    };
    logs::init(&setup).map_err(|error| Failure::caused(Exit::Internal, "no log", &error))
}

pub fn am(args: &AmArgs) -> Outcome {
    init_logs("am")?;
    let program = std::env::current_exe()
        .map_err(|error| Failure::caused(Exit::Internal, "this program's own path", &error))?;
    let ended = match &args.run_dir {
        Some(run_dir) => heddle_am::process::run(run_dir, &program),
        None => heddle_am::process::run_on_yarn(),
    };
    let code = ended.map_err(|error| Failure::caused(Exit::Internal, "no runtime", &error))?;
    std::process::exit(i32::from(code))
}

/// A variable that parses, or what holds without it.
fn variable<T: std::str::FromStr>(name: &'static str, absent: T) -> Result<T, Failure> {
    match std::env::var(name) {
        Err(_) => Ok(absent),
        Ok(value) if value.is_empty() => Ok(absent),
        Ok(value) => value.parse().map_err(|_| {
            Failure::new(
                Exit::Internal,
                format!("environment variable {name} is {value:?}"),
            )
        }),
    }
}

fn environment() -> Result<Environment, Failure> {
    Environment::from_process().map_err(|error| {
        Failure::caused(Exit::Usage, "a container without its environment", &error)
    })
}

/// Ends the process with a container's exit code, which are more than the command line has.
fn exit(exit: &heddle_agent::Exit) -> ! {
    tracing::info!(?exit, "container ends");
    std::process::exit(i32::from(exit.code()))
}

pub fn pserver() -> Outcome {
    init_logs("pserver")?;
    let options = heddle_pserver::Options {
        threads: variable(DATA_THREADS, 1)?,
        host: variable(BIND_HOST, IpAddr::V4(Ipv4Addr::LOCALHOST))?,
        ports: match variable(PORTS, String::new())?.as_str() {
            "" => None,
            text => Some(text.parse::<PortRange>().map_err(|error| {
                Failure::caused(
                    Exit::Internal,
                    format!("environment variable {PORTS}"),
                    &error,
                )
            })?),
        },
    };
    match heddle_pserver::run(environment()?, options) {
        Ok(end) => exit(&end),
        Err(error) => {
            tracing::error!(%error, "pserver cannot run");
            Err(Failure::caused(
                Exit::Internal,
                "the pserver cannot run",
                &error,
            ))
        }
    }
}

pub fn trainer() -> Outcome {
    init_logs("trainer")?;
    match heddle_trainer::run() {
        Ok(()) => Ok(Exit::Ok),
        Err(error @ TrainerError::Environment(_)) => Err(Failure::caused(
            Exit::Usage,
            "a container without its environment",
            &error,
        )),
        Err(error) => {
            tracing::error!(%error, "trainer cannot run");
            Err(Failure::caused(
                Exit::Internal,
                "the trainer cannot run",
                &error,
            ))
        }
    }
}
