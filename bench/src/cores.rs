//! Which core runs which end of a measurement.
//!
//! Small messages take 4 µs where both ends share a core, and 60 µs where each wakes the other on an idle core. What the
//! scheduler chooses differs from run to run, so the ends are pinned.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// This thread has a core to itself, and the threads of servers have another one, until it is dropped.
pub(crate) struct TwoCores {
    before: CpuSet,
    client: CpuSet,
    server: CpuSet,
}

impl TwoCores {
    /// Pins this thread. A machine of one core has both ends on it.
    pub(crate) fn pin() -> io::Result<Self> {
        let before = sched_getaffinity(None)?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| before.is_set(*core));
        let first = cores.next().unwrap_or(0);
        // The core after the first is often the same one's other thread.
        let server = cores.clone().nth(1).or(cores.next()).unwrap_or(first);
        let pinned = Self { before, client: only(first), server: only(server) };
        sched_setaffinity(None, &pinned.client)?;
        Ok(pinned)
    }

    /// Starts a server: all its threads begin, and so stay, on the other core.
    pub(crate) fn start<T>(&self, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        sched_setaffinity(None, &self.server)?;
        let started = start();
        sched_setaffinity(None, &self.client)?;
        started
    }
}

impl Drop for TwoCores {
    fn drop(&mut self) {
        // A thread may always run where it ran before.
        let _set = sched_setaffinity(None, &self.before);
    }
}

fn only(core: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(core);
    set
}
