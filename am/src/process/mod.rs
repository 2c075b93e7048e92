//! The process of an ApplicationMaster: inputs, preparation, end.
//!
//! `local` runs a job on one machine from its run directory, `yarn` an application from its container; both
//! use the same `prepare` and `run_job`, with different clusters. A failure before the job starts ends it with
//! one message and an exit code (`start_failure`).

mod listen;
mod local;
mod prepare;
#[cfg(test)]
mod prepare_tests;
mod run_job;
mod start_failure;
mod yarn;

use std::path::Path;
use std::time::Duration;

pub use listen::check_files;

use heddle_protocol::exit_code::ExitCode;
use heddle_storage::chain;

use crate::notices;
use crate::run_dir::RunDir;

/// Time for the command line to read the last events. It finds the outcome in `outcome.json` otherwise.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the ApplicationMaster of the run in this directory; returns the process's exit code.
///
/// # Errors
/// When the runtime cannot be created.
pub fn run(run_dir: &Path, program: &Path) -> std::io::Result<ExitCode> {
    let dir = RunDir::open(run_dir);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (outcome, view) = runtime.block_on(local::lead(&dir, program));
    for (name, result) in [
        ("outcome.json", dir.write("outcome.json", &outcome)),
        ("view.json", dir.write("view.json", &view)),
    ] {
        if let Err(error) = result {
            tracing::warn!(error = chain(&error), name, "outcome_not_written");
        }
    }
    notices::flush(FLUSH_TIMEOUT);
    // Children of this process are killed by the kernel with it; storage tasks that hang are not waited for.
    runtime.shutdown_background();
    Ok(outcome.exit_code)
}

/// Runs the ApplicationMaster of an application on YARN, in its container's work directory; returns the process's exit code.
///
/// # Errors
/// When the runtime cannot be created.
pub fn run_on_yarn() -> std::io::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let code = runtime.block_on(yarn::lead(&RunDir::open(".")));
    runtime.shutdown_background();
    Ok(code)
}
