//! How often each kind of fault was injected, and how often it changed the course of its job.
//!
//! The course of a job changes when something happens that a run without faults does not have: a container is lost, a
//! connection is opened again, a rollback, another ApplicationMaster, a checkpoint that is given up or ordered, a warning.
//! What happens until the next fault counts for the fault before it. A second table has the stage of the job in which the faults
//! came.

use std::collections::BTreeMap;
use std::fmt;

use heddle_protocol::view::JobState;

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
    /// Injections by the state of the job.
    stages: BTreeMap<JobState, BTreeMap<Fault, u64>>,
    last: Option<Fault>,
}

impl Coverage {
    /// A fault is injected. `state`: that of the job, if an ApplicationMaster leads it.
    pub fn inject(&mut self, fault: Fault, state: Option<JobState>) {
        if let Some(state) = state {
            *self.stages.entry(state).or_default().entry(fault).or_default() += 1;
        }
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
        for (state, counts) in &other.stages {
            let sums = self.stages.entry(*state).or_default();
            for (fault, count) in counts {
                *sums.entry(*fault).or_default() += count;
            }
        }
    }

    /// Kinds, of these, that never came while a job was in this state.
    #[must_use]
    pub fn lacking(&self, state: JobState, kinds: &[Fault]) -> Vec<Fault> {
        let counts = self.stages.get(&state);
        let has = |fault: &Fault| counts.is_some_and(|counts| counts.contains_key(fault));
        kinds.iter().copied().filter(|fault| !has(fault)).collect()
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
        write!(f, "{:<16}", "due in state")?;
        for state in self.stages.keys() {
            write!(f, " {:>11}", format!("{state:?}"))?;
        }
        writeln!(f)?;
        for fault in self.counts.keys() {
            write!(f, "{:<16}", format!("{fault:?}"))?;
            for counts in self.stages.values() {
                write!(f, " {:>11}", counts.get(fault).copied().unwrap_or_default())?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
