//! How often each kind of fault was injected, and how often it changed the course of its job.
//!
//! The course of a job changes when something happens that a run without faults does not have: a container is lost, a
//! connection is opened again, a rollback, another ApplicationMaster, a checkpoint that is given up or ordered, a warning.
//! What happens until the next fault counts for the fault before it.

use std::collections::BTreeMap;
use std::fmt;

use super::fault::Fault;

/// Counts of one kind of fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// It was due.
    pub due: u64,
    /// There was something that it could happen to.
    pub injected: u64,
    /// The course of the job was another one.
    pub mattered: u64,
}

/// Counts by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    counts: BTreeMap<Fault, Count>,
    last: Option<Fault>,
}

impl Coverage {
    /// A fault is injected.
    pub fn inject(&mut self, fault: Fault) {
        let count = self.counts.entry(fault).or_default();
        count.due += 1;
        count.injected += 1;
        self.last = Some(fault);
    }

    /// There was nothing that the fault just injected could happen to.
    pub fn was_nothing(&mut self, fault: Fault) {
        self.counts.entry(fault).or_default().injected -= 1;
        self.last = None;
    }

    /// The course changed. Counts once for the last fault.
    pub fn changed(&mut self) {
        if let Some(count) = self.last.take().and_then(|last| self.counts.get_mut(&last)) {
            count.mattered += 1;
        }
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        for (fault, count) in &other.counts {
            let sum = self.counts.entry(*fault).or_default();
            sum.due += count.due;
            sum.injected += count.injected;
            sum.mattered += count.mattered;
        }
    }

    /// Kinds, of these, that never changed the course of a job.
    #[must_use]
    pub fn idle(&self, kinds: &[Fault]) -> Vec<Fault> {
        let idle = |fault: &&Fault| self.counts.get(fault).is_none_or(|c| c.mattered == 0);
        kinds.iter().filter(idle).copied().collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<16} {:>9} {:>9} {:>9}", "fault", "due", "injected", "mattered")?;
        for (fault, count) in &self.counts {
            let Count { due, injected, mattered } = count;
            let name = format!("{fault:?}");
            writeln!(f, "{name:<16} {due:>9} {injected:>9} {mattered:>9}")?;
        }
        Ok(())
    }
}
