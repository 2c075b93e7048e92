//! SSP with backups: what a data thread may know of the clocks of trainers, counted again from what arrives.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::frame::{Header, flags};
use heddle_protocol::ids::{Epoch, Member, PhaseNo};

/// The clocks that a data thread has.
#[derive(Debug, Default)]
pub struct KnownClocks {
    era: (Epoch, PhaseNo),
    members: BTreeSet<Member>,
    /// None: the trainer has no task.
    clocks: BTreeMap<Member, Option<u64>>,
    /// Trainers whose first clock with a task may be held, by a cut or behind earlier frames.
    held: BTreeSet<Member>,
    awaited: BTreeSet<Member>,
    /// Clocks of later phases, and of trainers that the list lacks.
    early: BTreeMap<Member, (Header, bool)>,
}

impl KnownClocks {
    /// A new epoch or phase.
    pub fn begin(&mut self, epoch: Epoch, phase: PhaseNo) {
        if (epoch, phase) > self.era {
            let Self { members, early, .. } = std::mem::take(self);
            *self = Self { era: (epoch, phase), members, early, ..Self::default() };
            self.take_early();
        }
    }

    fn take_early(&mut self) {
        for (member, (header, may_be_held)) in std::mem::take(&mut self.early) {
            self.arrives(member, &header, may_be_held);
        }
    }

    /// Whether the list has the trainer.
    pub fn has(&self, member: Member) -> bool {
        self.members.contains(&member)
    }

    /// The members.
    pub fn members(&mut self, trainers: &[Member]) {
        self.members = trainers.iter().copied().collect();
        self.clocks.retain(|member, _| self.members.contains(member));
        self.awaited.retain(|member| self.members.contains(member));
        self.take_early();
    }

    /// A copy of a shard serves from now on.
    pub fn promoted(&mut self) {
        let known =
            |member: &&Member| self.clocks.contains_key(*member) || self.held.contains(*member);
        let unknown = self.members.iter().filter(|member| !known(member));
        self.awaited.extend(unknown);
    }

    /// A clock that was not refused has arrived.
    pub fn arrives(&mut self, member: Member, header: &Header, may_be_held: bool) {
        let era = (header.epoch, header.phase);
        if era > self.era || !self.has(member) {
            self.early.insert(member, (*header, may_be_held));
            return;
        }
        if era < self.era {
            return;
        }
        self.awaited.remove(&member);
        if may_be_held && self.clocks.get(&member).copied().flatten().is_none() {
            self.clocks.remove(&member);
            self.held.insert(member);
            return;
        }
        let clock = (!header.has(flags::EMPTY)).then_some(header.step.0);
        self.clocks.insert(member, clock);
    }

    /// A trainer's connection is closed. One with a task counts on.
    pub fn closes(&mut self, member: Member) {
        self.held.remove(&member);
        self.early.remove(&member);
        if self.clocks.get(&member) == Some(&None) {
            self.clocks.remove(&member);
        }
    }

    /// Whether the pull with these values may have been granted.
    ///
    /// # Errors
    /// What forbids it.
    pub fn check(&self, header: &Header, staleness: u32) -> Result<(), String> {
        if (header.epoch, header.phase) != self.era {
            return Ok(());
        }
        let number = header.step.0;
        if !self.awaited.is_empty() {
            return Err(format!(
                "pull {number} is granted by a promoted copy that knows nothing of {:?}",
                self.awaited
            ));
        }
        for (member, clock) in &self.clocks {
            if let Some(clock) = clock.filter(|clock| number > clock + u64::from(staleness)) {
                return Err(format!(
                    "pull {number} is granted while the clock of {member} is {clock}"
                ));
            }
        }
        Ok(())
    }
}
