//! Which faults a chaos session orders: a pure function of its seed, so that a session with the same seed orders the same.

use clap::ValueEnum;
use heddle_protocol::control::{FaultTarget, OrderedFault};
use heddle_protocol::ids::{Role, Slot};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum FaultKind {
    /// The process ends by SIGKILL
    Kill,
    /// The process stands still for 2, 5 or 15 s
    Pause,
    /// A thread of the process stands still for 5 or 15 s, while its heartbeats are sent
    Hang,
    /// A trainer computes 10 or 100 times slower for 20 s
    Slow,
    /// The process closes its connections
    Drop,
    /// A parameter server takes 10 or 100 times as long to write checkpoints, for 20 s
    SlowDisk,
    /// A byte of a file of the newest checkpoint changes, if a good copy or an older checkpoint stays
    Corrupt,
    /// A trainer neither reads from nor writes to one of the parameter servers for 5 or 15 s
    Cut,
}

/// A role of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum FaultRole {
    /// Parameter servers
    Pserver,
    /// Trainers
    Trainer,
    /// The ApplicationMaster, on a cluster
    Am,
}

impl FaultKind {
    fn applies_to(self, role: FaultRole) -> bool {
        match self {
            Self::Kill | Self::Pause => true,
            Self::Hang | Self::Drop => role != FaultRole::Am,
            Self::Slow | Self::Cut => role == FaultRole::Trainer,
            // Pservers write the files.
            Self::SlowDisk | Self::Corrupt => role == FaultRole::Pserver,
        }
    }
}

/// The draw of a session's faults.
#[derive(Clone, Debug)]
pub struct ChaosPlan {
    seed: u64,
    /// Kinds of fault and roles that fit each other, in ascending order.
    choices: Vec<(FaultKind, FaultRole)>,
    pservers: u32,
    trainers: u32,
    /// Whether one fault may hit up to half of a role's processes.
    hard: bool,
}

/// One order: processes, and the fault that all of them get at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedFault {
    pub targets: Vec<FaultTarget>,
    pub fault: OrderedFault,
}

impl ChaosPlan {
    /// A plan for a job of this size; `None` if no kind applies to any of the roles.
    pub fn new(
        seed: u64,
        kinds: &[FaultKind],
        roles: &[FaultRole],
        pservers: u32,
        trainers: u32,
        hard: bool,
    ) -> Option<Self> {
        let pairs = kinds.iter().flat_map(|kind| roles.iter().map(|role| (*kind, *role)));
        let mut choices: Vec<_> = pairs.filter(|(kind, role)| kind.applies_to(*role)).collect();
        choices.sort_unstable();
        choices.dedup();
        (!choices.is_empty()).then_some(Self { seed, choices, pservers, trainers, hard })
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Fault number `number` of the session, from 0.
    pub fn fault(&self, number: u64) -> PlannedFault {
        let mut draw = FaultDraw(mix(self.seed ^ mix(number)));
        let (kind, role) = self.choices[draw.below(self.choices.len() as u64) as usize];
        let targets = match role {
            _ if kind == FaultKind::Corrupt => vec![FaultTarget::Checkpoint],
            FaultRole::Am => vec![FaultTarget::Am],
            FaultRole::Pserver => self.slots(Role::Pserver, self.pservers, &mut draw),
            FaultRole::Trainer => self.slots(Role::Trainer, self.trainers, &mut draw),
        };
        let fault = match kind {
            FaultKind::Kill => OrderedFault::Kill,
            FaultKind::Pause => OrderedFault::Pause { ms: draw.of(&[2_000, 5_000, 15_000]) },
            FaultKind::Hang => OrderedFault::Hang { ms: draw.of(&[5_000, 15_000]) },
            FaultKind::Slow => OrderedFault::Slow { factor: draw.of(&[10, 100]), ms: 20_000 },
            FaultKind::Drop => OrderedFault::Drop,
            FaultKind::SlowDisk => {
                OrderedFault::SlowDisk { factor: draw.of(&[10, 100]), ms: 20_000 }
            }
            FaultKind::Cut => OrderedFault::Cut {
                pserver: draw.below(u64::from(self.pservers)) as u32,
                ms: draw.of(&[5_000, 15_000]),
            },
            FaultKind::Corrupt => OrderedFault::Corrupt { draw: draw.below(1 << 16) as u32 },
        };
        PlannedFault { targets, fault }
    }

    /// One process, or, in a hard session, up to half of them.
    fn slots(&self, role: Role, count: u32, draw: &mut FaultDraw) -> Vec<FaultTarget> {
        let most = if self.hard { count.div_ceil(2) } else { 1 };
        let mut left: Vec<u32> = (0..count).collect();
        let hit = 1 + draw.below(u64::from(most));
        let mut targets: Vec<_> = (0..hit.min(u64::from(count)))
            .map(|_| left.swap_remove(draw.below(left.len() as u64) as usize))
            .map(|index| FaultTarget::Slot(Slot { role, index }))
            .collect();
        targets.sort_unstable();
        targets
    }
}

struct FaultDraw(u64);

impl FaultDraw {
    /// A number below `bound`. The bounds here are small, so that the remainder favours none noticeably.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = mix(self.0);
        self.0 % bound.max(1)
    }

    fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}

/// A bijection that spreads its argument: the output function of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn plan(seed: u64, hard: bool) -> ChaosPlan {
        ChaosPlan::new(seed, FaultKind::value_variants(), FaultRole::value_variants(), 4, 3, hard)
            .expect("all fit")
    }

    #[test]
    fn a_seed_draws_the_same_faults_and_all_of_them() {
        let of = |seed| (0..2_000).map(|n| plan(seed, false).fault(n)).collect::<Vec<_>>();
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
        let text = |fault: &PlannedFault| format!("{} {:?}", fault.fault, fault.targets);
        let met: BTreeSet<String> = of(7).iter().map(text).collect();
        // Pserver: 1 kill, 3 pauses, 2 hangs, 1 drop, 2 slow disks of 4; trainer: those but for the disks, 2 slow ones and 2 cuts
        // from each of 4 pservers, of 3; ApplicationMaster: 1 and 3; the newest checkpoint.
        assert_eq!(met.len(), 9 * 4 + 17 * 3 + 4 + 1, "{met:#?}");
    }

    #[test]
    fn faults_hit_one_process_or_half_of_a_role() {
        assert!((0..400).all(|n| plan(1, false).fault(n).targets.len() == 1));
        let sizes: BTreeSet<usize> =
            (0..400).map(|n| plan(1, true).fault(n).targets.len()).collect();
        assert_eq!(sizes, BTreeSet::from([1, 2]));
    }

    #[test]
    fn kinds_that_apply_to_no_role_have_no_plan() {
        let of = |kind, role| ChaosPlan::new(1, &[kind], &[role], 1, 1, false);
        assert!(of(FaultKind::Slow, FaultRole::Pserver).is_none());
        assert!(of(FaultKind::Hang, FaultRole::Am).is_none());
        assert!(of(FaultKind::Slow, FaultRole::Trainer).is_some());
    }
}
