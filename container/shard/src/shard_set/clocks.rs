//! SSP: the clocks of trainers, and which pulls they let through (`docs/consistency.md`).
//!
//! A trainer is counted from its first clock on the present connection until the connection closes or it sends that it has
//! no task. A pull of a trainer that is not counted waits for its clock. A joiner asks for the lowest clock and starts there;
//! while no trainer is counted, the answer is the highest clock ever sent. Clocks do not fall: a lower one is refused.
//!
//! **Backups.** Clocks are not replicated: a promoted copy grants nothing until each member of that moment has sent a clock,
//! with or without a task, in this epoch and phase. A closed connection does not end the counting where shards can move,
//! since the trainer may only have moved to a new primary: the ApplicationMaster does, when it takes the trainer out of the
//! members.
//!
//! Frames and waiting pulls are in [`super::clocked_pulls`].

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::control::Sharing;
use heddle_protocol::ids::Member;
use heddle_protocol::mutation::Mutation;

/// The clocks that a data thread has received.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    /// None: the phase has no clocks.
    staleness: Option<u64>,
    /// The highest clock of each trainer, counted or not.
    sent: BTreeMap<Member, u64>,
    /// Clocks of counted trainers.
    counted: BTreeMap<Member, u64>,
    /// The same, the lowest first.
    by_clock: BTreeSet<(u64, Member)>,
    /// The highest clock ever sent.
    highest: u64,
    /// Whether shards can get other primaries in an epoch.
    shards_move: bool,
    /// Trainers that have sent a clock on a connection that is open.
    known: BTreeSet<Member>,
    /// Trainers without which nothing is granted: those that were not known when a copy was promoted.
    awaited: BTreeSet<Member>,
}

/// A clock below an earlier one of the same trainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FallingClock;

impl Clocks {
    /// A new epoch or phase begins: no trainer is counted.
    pub(super) fn begin(&mut self, sharing: Sharing, shards_move: bool) {
        let staleness = sharing.staleness().map(u64::from);
        *self = Self { staleness, shards_move, ..Self::default() };
    }

    /// Whether pulls wait for clocks.
    pub(super) fn are_on(&self) -> bool {
        self.staleness.is_some()
    }

    /// A trainer sends its clock. It is counted if it has a task.
    ///
    /// # Errors
    /// The clock falls. Nothing has happened.
    pub(super) fn set(
        &mut self,
        member: Member,
        clock: u64,
        has_task: bool,
    ) -> Result<(), FallingClock> {
        if self.sent.get(&member).is_some_and(|sent| clock < *sent) {
            return Err(FallingClock);
        }
        self.sent.insert(member, clock);
        self.highest = self.highest.max(clock);
        if self.shards_move {
            self.known.insert(member);
            self.awaited.remove(&member);
        }
        self.remove(member);
        if has_task || Mutation::IdleTrainerIsCounted.is_on() {
            self.counted.insert(member, clock);
            self.by_clock.insert((clock, member));
        }
        Ok(())
    }

    fn remove(&mut self, member: Member) {
        if let Some(clock) = self.counted.remove(&member) {
            self.by_clock.remove(&(clock, member));
        }
    }

    /// The trainer's connection is closed.
    pub(super) fn disconnect(&mut self, member: Member) {
        self.known.remove(&member);
        if !self.shards_move || Mutation::ClosedTrainerIsNotCounted.is_on() {
            self.remove(member);
        }
    }

    /// Trainers have left: their clocks are not needed any more.
    pub(super) fn retain(&mut self, is_member: impl Fn(Member) -> bool) {
        self.sent.retain(|member, _| is_member(*member));
        self.counted.retain(|member, _| is_member(*member));
        self.by_clock.retain(|(_, member)| is_member(*member));
        self.awaited.retain(|member| is_member(*member));
    }

    /// A copy here serves from now on: nothing is granted without these trainers.
    pub(super) fn promoted(&mut self, members: impl Iterator<Item = Member>) {
        if self.are_on() && !Mutation::UnknownTrainerIsNotAwaited.is_on() {
            self.awaited.extend(members.filter(|member| !self.known.contains(member)));
        }
    }

    /// Whether the clock of a trainer is awaited.
    pub(super) fn are_incomplete(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// The lowest clock of the counted trainers.
    fn lowest(&self) -> Option<u64> {
        self.by_clock.first().map(|(clock, _)| *clock)
    }

    /// Where a trainer that joins starts.
    pub(super) fn start(&self) -> u64 {
        self.lowest().unwrap_or(self.highest)
    }

    /// The gap of a pull that is granted now: its number minus the lowest clock. None: it waits.
    pub(super) fn gap(&self, member: Member, number: u64) -> Option<u64> {
        let staleness = self.staleness.filter(|_| !self.are_incomplete())?;
        let own = *self.counted.get(&member)?;
        let lowest = self.lowest().filter(|_| !Mutation::OwnClockAlone.is_on()).unwrap_or(own);
        let gap = number.saturating_sub(lowest);
        (gap <= staleness).then_some(gap)
    }
}
