//! Faults that a process brings upon itself by the order of an operator (`heddle chaos`): its end and its standstill by
//! signals, and the slowness of a computation or of a writer.
//!
//! A process needs no rights for them, on a cluster too: it signals itself. Connections and threads are the process's own
//! affair, so `drop`, `hang` and `cut` are carried out where they are.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use heddle_protocol::control::OrderedFault;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long an ApplicationMaster lives on after it has been ordered to die: the answer to the operator leaves meanwhile.
const ANSWER_LEAVES: Duration = Duration::from_millis(100);

/// Carries out what is done by a signal. Returns the fault if it is of another kind, after a pause has ended, or if the
/// system refuses.
pub fn signal_self(fault: OrderedFault) -> Option<OrderedFault> {
    match fault {
        OrderedFault::Kill => {
            tracing::warn!("killed_by_order");
            report(kill(Pid::this(), Signal::SIGKILL));
        }
        OrderedFault::Pause { ms } => pause(ms),
        OrderedFault::Hang { .. }
        | OrderedFault::Slow { .. }
        | OrderedFault::SlowDisk { .. }
        | OrderedFault::Corrupt { .. }
        | OrderedFault::Cut { .. }
        | OrderedFault::Drop => return Some(fault),
    }
    None
}

/// As [`signal_self`], on a thread of its own, after the answers to operators have left.
pub fn signal_self_soon(fault: OrderedFault) {
    let body = move || {
        std::thread::sleep(ANSWER_LEAVES);
        signal_self(fault);
    };
    if let Err(error) = std::thread::Builder::new().name("fault".to_owned()).spawn(body) {
        tracing::error!(%error, "ordered_fault_failed");
    }
}

/// Stops this process. A child continues it: a stopped process cannot.
fn pause(ms: u64) {
    tracing::warn!(ms, "paused_by_order");
    let script = format!("sleep {}.{:03}; kill -CONT {}", ms / 1000, ms % 1000, Pid::this());
    let mut waker = Command::new("/bin/sh");
    waker.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match waker.spawn() {
        Ok(mut waker) => {
            report(kill(Pid::this(), Signal::SIGSTOP));
            // It has ended: it was what continued this process. Otherwise an operator did, and it ends by itself.
            let _still_runs = waker.try_wait();
        }
        Err(error) => tracing::error!(%error, "ordered_fault_failed"),
    }
}

fn report(signalled: nix::Result<()>) {
    if let Err(error) = signalled {
        tracing::error!(%error, "ordered_fault_failed");
    }
}

/// How slow a computation or a writer is made. Clones share it. Without an order it costs one load of a number that never changes.
#[derive(Clone, Debug, Default)]
pub struct Slowness(Arc<SlownessState>);

#[derive(Debug, Default)]
struct SlownessState {
    /// 0: not slowed.
    factor: AtomicU32,
    /// Of the end, ms after the first order.
    until_ms: AtomicU64,
    first: OnceLock<Instant>,
}

impl Slowness {
    /// From now on what is measured takes `factor` times as long, for `ms`.
    pub fn set(&self, factor: u32, ms: u64) {
        let until = self.0.elapsed_ms().saturating_add(ms);
        self.0.until_ms.store(until, Ordering::Relaxed);
        self.0.factor.store(factor, Ordering::Relaxed);
    }

    /// Whether an order may be in force: whether [`Self::extra`] is worth a measurement.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.factor.load(Ordering::Relaxed) != 0
    }

    /// How long to sleep after a computation that took `computed`.
    #[must_use]
    pub fn extra(&self, computed: Duration) -> Option<Duration> {
        let factor = self.0.factor.load(Ordering::Relaxed);
        if factor == 0 {
            return None;
        }
        if self.0.elapsed_ms() >= self.0.until_ms.load(Ordering::Relaxed) {
            self.0.factor.store(0, Ordering::Relaxed);
            return None;
        }
        Some(computed.saturating_mul(factor - 1))
    }
}

impl SlownessState {
    fn elapsed_ms(&self) -> u64 {
        let elapsed = self.first.get_or_init(Instant::now).elapsed();
        u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowness_multiplies_until_its_end() {
        let slowness = Slowness::default();
        let step = Duration::from_millis(3);
        assert_eq!(slowness.extra(step), None);
        slowness.set(5, 600_000);
        assert_eq!(slowness.extra(step), Some(Duration::from_millis(12)));
        slowness.set(5, 0);
        assert_eq!(slowness.extra(step), None);
    }

    #[test]
    fn other_faults_are_returned() {
        for fault in [OrderedFault::Drop, OrderedFault::Hang { ms: 1 }] {
            assert_eq!(signal_self(fault), Some(fault));
        }
    }
}
