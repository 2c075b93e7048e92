//! Ends the process when a thread panics.

use heddle_protocol::exit_code::ContainerExitCode;

/// A guard in each thread. Without a panicked thread the others would wait without a limit; a container that ended is
/// replaced.
pub(crate) struct ExitOnPanic;

impl Drop for ExitOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("thread_panicked");
            std::process::exit(ContainerExitCode::Failed.number());
        }
    }
}
