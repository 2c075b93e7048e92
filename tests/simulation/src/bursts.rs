//! Faults that come several at once, when much is on its way.
//!
//! A fault at a random event mostly hits a job in which nothing can go wrong: the defects that are hard to find need two or
//! three faults close together, and around a moment at which an order is on its way ([`Moment`]). **Rule:** at some of these
//! moments a few faults are drawn, within the next few events or the next few hundred. Half of all faults, these and
//! others, hit the container that the last moment or the last fault was about, if they can (`World::choose`).
//!
//! Bursts are drawn while a run goes on, so its faults are known when it has ended ([`super::World::injected`]); a replay
//! is given these as a list and draws none.

use super::chance::Chance;
use super::fault::Fault;

/// Orders are on their way that a fault may keep from some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Moment {
    /// An attempt of the ApplicationMaster starts.
    AmStarts,
    /// A cut is ordered: the first order to a shard, the first to a trainer.
    Cut,
    /// A lane is taken from a trainer that lives.
    LaneMoves,
    /// A container registers that was registered before.
    RegistersAgain,
    /// The job goes back to a checkpoint.
    RollsBack,
}

/// Faults still to be drawn in a run.
#[derive(Clone, Debug)]
pub struct Bursts {
    chance: Chance,
    kinds: Vec<Fault>,
    /// Faults that may still be drawn.
    left: usize,
}

impl Bursts {
    /// Up to this number of faults of these kinds, one kind as often as it is named.
    #[must_use]
    pub fn new(seed: u64, kinds: Vec<Fault>, most: usize) -> Self {
        Self { chance: Chance::new(seed ^ 0xb0_575), kinds, left: most }
    }

    /// The faults that this moment brings, each with the events until then.
    pub(super) fn draw(&mut self) -> Vec<(u64, Fault)> {
        if self.left == 0 || self.kinds.is_empty() || !self.chance.one_in(3) {
            return Vec::new();
        }
        let count = (1 + self.chance.below(3)).min(self.left);
        self.left -= count;
        let within = [4, 25, 150][self.chance.below(3)];
        let chance = &mut self.chance;
        let kinds = &self.kinds;
        let mut one = || {
            let after = chance.below(within) as u64;
            (after, kinds[chance.below(kinds.len())])
        };
        (0..count).map(|_| one()).collect()
    }
}
