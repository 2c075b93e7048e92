//! The launcher of `yarn jar`, a Java process that starts this program and waits for it.
//!
//! It passes signals on and returns the exit code. A killed launcher cannot pass anything on: this program then dies with
//! it, as if it had been killed itself. Its job continues on the cluster.

use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getppid};

/// The variable with the launcher's process id.
const VARIABLE: &str = "HEDDLE_LAUNCHER";

/// Ends this process when its launcher dies, if it has one. For the start of `main`.
///
/// Children of this process inherit the variable; their parent is another process, and they are left alone.
pub fn die_with_launcher() {
    let named = std::env::var(VARIABLE).ok().and_then(|pid| pid.parse().ok());
    let Some(launcher) = named.map(Pid::from_raw).filter(|pid| pid.as_raw() > 1) else {
        return;
    };
    if getppid() == launcher {
        // The kernel sends the signal when the thread that started this process ends: Java's main thread, which waits.
        let _best_effort = prctl::set_pdeathsig(Signal::SIGKILL);
    }
    // It may have died before the call above.
    let is_gone = getppid() != launcher && kill(launcher, None) == Err(nix::errno::Errno::ESRCH);
    if is_gone {
        let _ended = kill(Pid::this(), Signal::SIGKILL);
    }
}
