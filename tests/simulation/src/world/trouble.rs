//! What is wrong for a while: wires that are slow, ways that are closed, storage that is down, slots whose processes end.

use std::collections::{BTreeMap, BTreeSet};

use heddle_am_core::{Event, Exit, OperationId};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::Slot;

use super::Wire;

/// The ApplicationMaster of any attempt, as an end of a partitioned path. Containers are numbered from 1.
pub(super) const AM: u64 = 0;

/// Why the processes of a slot end.
#[derive(Clone, Debug)]
pub(super) struct Curse {
    /// How they end.
    pub(super) exit: Exit,
    /// The number of processes that still end so.
    pub(super) left: u32,
}

/// How often the cluster is still going to do something otherwise than ordered.
#[derive(Debug, Default)]
pub(super) struct ClusterErrors {
    /// An ask is answered with two containers.
    pub(super) grants_twice: u32,
    /// A container cannot be started.
    pub(super) launches_fail: u32,
    /// A process stands still for a while before it does anything.
    pub(super) starts_slow: u32,
    /// The end of a container is reported twice.
    pub(super) completions_twice: u32,
    /// The end of a container is never reported.
    pub(super) completions_lost: u32,
}

/// Takes one, if there is one.
pub(super) fn take_one(left: &mut u32) -> bool {
    let is_one = *left > 0;
    *left = left.saturating_sub(1);
    is_one
}

/// What is wrong at present.
#[derive(Default)]
pub(super) struct Trouble {
    /// Connections without delivery before an event.
    slow: BTreeMap<Wire, u64>,
    /// Paths without delivery before an event: from, to.
    closed: BTreeMap<(u64, u64), u64>,
    /// The storage does not answer before this event.
    pub(super) storage_down_until: u64,
    /// The ResourceManager does not answer before this event.
    pub(super) cluster_silent_until: u64,
    /// No probe of a port is answered before this event.
    pub(super) probes_silent_until: u64,
    /// How many controllers have been superseded.
    pub(super) controller: u64,
    /// Orders of controllers that are not answered, with the generations of these.
    pub(super) orders: BTreeMap<OperationId, u64>,
    /// The highest generation of a controller whose order was accepted.
    pub(super) accepted: u64,
    /// The next record cannot be written, ever.
    pub(super) journal_fails: bool,
    /// What the cluster does otherwise than ordered, the next times.
    pub(super) cluster: ClusterErrors,
    /// Events of the cluster at this time.
    late: Vec<(u64, Event)>,
    /// Processes that end when an event comes.
    pub(super) doomed: BTreeMap<u64, (u64, Exit)>,
    /// Slots whose processes need more memory than the spec gives them.
    pub(super) hungry: BTreeSet<Slot>,
    /// Slots whose processes end soon after they were started.
    pub(super) cursed: BTreeMap<Slot, Curse>,
    /// Ends by slot that count against the job: two for one with a bad exit code, one for a kill, for one that the
    /// ApplicationMaster may take for a kill, and where it gave a living process up.
    pub(super) ends: BTreeMap<Slot, u32>,
    /// The job's outcome is in the journal or on its way there.
    pub(super) is_decided: bool,
    /// Exit codes of the job that what happened accounts for.
    pub(super) excused: BTreeSet<ExitCode>,
}

impl Trouble {
    pub(super) fn slow_down(&mut self, wire: Wire, until: u64) {
        self.slow.insert(wire, until);
    }

    pub(super) fn holds(&self, wire: Wire, events: u64) -> bool {
        !self.slow.is_empty() && self.slow.get(&wire).is_some_and(|until| *until > events)
    }

    pub(super) fn close(&mut self, from: u64, to: u64, until: u64) {
        self.closed.insert((from, to), until);
    }

    pub(super) fn cuts_off(&self, from: u64, to: u64, events: u64) -> bool {
        let until = || self.closed.get(&(from, to));
        !self.closed.is_empty() && until().is_some_and(|until| *until > events)
    }

    pub(super) fn storage_is_down(&self, events: u64) -> bool {
        self.storage_down_until > events
    }

    pub(super) fn say_late(&mut self, at: u64, event: Event) {
        self.late.push((at, event));
    }

    /// The cluster's events that are due.
    pub(super) fn said(&mut self, events: u64) -> Vec<Event> {
        if self.late.is_empty() {
            return Vec::new();
        }
        let (now, later) =
            std::mem::take(&mut self.late).into_iter().partition(|(at, _)| *at <= events);
        self.late = later;
        now.into_iter().map(|(_, event)| event).collect()
    }

    /// Whether the job's failure counts are used up, or nearly: an exit for failed containers is right then.
    pub(super) fn containers_failed_often(&self) -> bool {
        let worst = self.ends.values().max().copied().unwrap_or(0);
        let all: u32 = self.ends.values().sum();
        worst >= 8 || all >= 20
    }
}
