//! The process of an ApplicationMaster: what it is given, what it prepares, how it ends.
//!
//! `local` leads a run on one machine from its run directory, `yarn` an application from its container; both
//! prepare alike (`prepare`) and conduct alike (`run_job`), with another cluster. Whatever goes wrong before the
//! job begins ends it with one sentence and the exit code of the command line (`start_failure`).

mod local;
mod prepare;
#[cfg(test)]
mod prepare_tests;
mod run_job;
mod start_failure;
mod yarn;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::spec::JobSpec;
use heddle_storage::chain;
use heddle_telemetry::descriptors::Limit;
use tokio::net::TcpListener;

use crate::api;
use crate::notices;
use crate::run_dir::RunDir;
use start_failure::StartFailure;

/// How long the command line may take to read the last events; it finds the end in `outcome.json` otherwise.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Runs the ApplicationMaster of the run in this directory; returns the process's exit code.
///
/// # Errors
/// When the system gives no runtime.
pub fn run(run_dir: &Path, program: &Path) -> std::io::Result<ExitCode> {
    let dir = RunDir::open(run_dir);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (outcome, view) = runtime.block_on(local::lead(&dir, program));
    for (name, result) in [
        ("outcome.json", dir.write("outcome.json", &outcome)),
        ("view.json", dir.write("view.json", &view)),
    ] {
        if let Err(error) = result {
            tracing::warn!(error = chain(&error), name, "the end could not be written down");
        }
    }
    notices::flush(LAST_WORDS);
    // Children of this process are killed by the kernel with it; storage tasks that hang are not waited for.
    runtime.shutdown_background();
    Ok(outcome.exit_code)
}

/// Runs the ApplicationMaster of an application on YARN, in its container's work directory; returns the process's exit code.
///
/// # Errors
/// When the system gives no runtime.
pub fn run_on_yarn() -> std::io::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let code = runtime.block_on(yarn::lead(&RunDir::open(".")));
    runtime.shutdown_background();
    Ok(code)
}

/// Whether this process can hold a connection of every container.
fn check_files(spec: &JobSpec, limit: Limit) -> Result<(), StartFailure> {
    let containers = u64::from(spec.pservers.count) + u64::from(spec.trainers.max);
    let what = format!("the ApplicationMaster of {containers} containers");
    limit
        .check(&what, containers)
        .map_err(|error| StartFailure::new(ExitCode::Input, error.to_string()))
}

/// The control port, on one of the job's ports.
async fn bind(host: IpAddr, spec: &JobSpec) -> Result<(TcpListener, SocketAddr), StartFailure> {
    check_files(spec, Limit::now())?;
    let ports: Vec<u16> = spec.network.ports.map_or_else(Vec::new, |range| range.ports().collect());
    let listener = api::bind(host, &ports).await.map_err(|error| {
        StartFailure::new(
            ExitCode::Input,
            format!("network.ports: none can be listened on: {error}"),
        )
    })?;
    let address = listener.local_addr().map_err(|error| {
        StartFailure::new(ExitCode::Internal, format!("the listening port has no address: {error}"))
    })?;
    Ok((listener, address))
}
