//! Runs one job under many seeds and faults, and says which run broke a promise.

use std::collections::BTreeMap;
use std::fmt;

use heddle_protocol::ids::{PhaseNo, Step};
use heddle_protocol::spec::Consistency;

use super::chance::Chance;
use super::job::Job;
use super::world::{Bits, Fault, Report, World};

/// A run that broke a promise.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The faults, before which events.
    pub faults: Vec<(u64, Fault)>,
    /// What broke.
    pub what: String,
    /// What happened before, if it was asked for.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "{line}")?;
        }
        write!(
            f,
            "seed {} with {:?}: {}",
            self.seed, self.faults, self.what
        )
    }
}

/// A job and what its undisturbed runs come to.
#[derive(Clone, Debug)]
pub struct Explorer {
    job: Job,
    reference: BTreeMap<(PhaseNo, Step), Bits>,
    /// Events that a run without faults takes, for placing faults.
    pub length: u64,
}

impl Explorer {
    /// Runs the job without faults under a few seeds; in BSP all of them must agree.
    ///
    /// # Errors
    /// A run that broke a promise.
    pub fn new(job: Job) -> Result<Self, Box<Failure>> {
        let mut explorer = Self {
            job,
            reference: BTreeMap::new(),
            length: 0,
        };
        let mut reference: BTreeMap<(PhaseNo, Step), Bits> = BTreeMap::new();
        for seed in 0..4 {
            let mut disagree = None;
            let bsp = explorer.is_bsp();
            let watch = |world: &World| {
                if bsp && let Some((at, bits)) = world.common_state() {
                    let known = reference.entry(at).or_insert_with(|| bits.clone());
                    if *known != bits {
                        disagree = Some(at);
                    }
                }
            };
            let report = explorer.run_watched(seed, &[], watch, false)?;
            explorer.length = explorer.length.max(report.events);
            if let Some(at) = disagree {
                let what = format!("runs without faults differ at {at:?}");
                return Err(Box::new(Failure {
                    seed,
                    faults: Vec::new(),
                    what,
                    trace: Vec::new(),
                }));
            }
        }
        explorer.reference = reference;
        Ok(explorer)
    }

    fn is_bsp(&self) -> bool {
        self.job.consistency == Consistency::Bsp
    }

    /// One run.
    ///
    /// # Errors
    /// It broke a promise.
    pub fn run(&self, seed: u64, faults: &[(u64, Fault)]) -> Result<Report, Box<Failure>> {
        self.run_watched(seed, faults, |_| {}, false)
    }

    /// One run again, with all that happens in the failure.
    ///
    /// # Errors
    /// It broke a promise.
    pub fn replay(&self, seed: u64, faults: &[(u64, Fault)]) -> Result<Report, Box<Failure>> {
        self.run_watched(seed, faults, |_| {}, true)
    }

    fn run_watched(
        &self,
        seed: u64,
        faults: &[(u64, Fault)],
        watch: impl FnMut(&World),
        trace: bool,
    ) -> Result<Report, Box<Failure>> {
        let mut world = World::new(self.job.clone(), seed);
        if trace {
            world.keep_trace();
        }
        if !self.reference.is_empty() {
            world.expect(self.reference.clone());
        }
        let checked = world
            .run(faults, watch)
            .and_then(|report| self.check(&world, report));
        checked.map_err(|what| {
            Box::new(Failure {
                seed,
                faults: faults.to_vec(),
                what,
                trace: world.take_trace(),
            })
        })
    }

    fn check(&self, world: &World, report: Report) -> Result<Report, String> {
        let counts = world.final_counts();
        if counts != self.job.counts() {
            return Err(format!(
                "steps were counted {counts:?}, expected {:?}",
                self.job.counts()
            ));
        }
        let last = self.reference.iter().next_back();
        if let Some((at, bits)) = last.filter(|_| self.is_bsp())
            && *bits != report.bits
        {
            return Err(format!(
                "the end differs from an undisturbed run's at {at:?}"
            ));
        }
        Ok(report)
    }

    /// The faults of a seed: up to `most`, of these kinds, anywhere in the run.
    #[must_use]
    pub fn faults(&self, seed: u64, kinds: &[Fault], most: usize) -> Vec<(u64, Fault)> {
        let mut chance = Chance::new(seed ^ 0xfa17);
        let count = 1 + chance.below(most);
        let mut faults: Vec<_> = (0..count)
            .map(|_| {
                (
                    chance.below(self.length as usize * 5 / 4) as u64,
                    kinds[chance.below(kinds.len())],
                )
            })
            .collect();
        faults.sort_by_key(|(at, _)| *at);
        faults
    }

    /// Runs these seeds with their faults.
    ///
    /// # Errors
    /// The first run that broke a promise, with its trace.
    pub fn explore(
        &self,
        seeds: std::ops::Range<u64>,
        kinds: &[Fault],
        most: usize,
    ) -> Result<u64, Box<Failure>> {
        let mut restores = 0;
        for seed in seeds {
            let faults = self.faults(seed, kinds, most);
            match self.run(seed, &faults) {
                Ok(report) => restores += report.restores as u64 - 1,
                Err(_) => {
                    return Err(self
                        .replay(seed, &faults)
                        .err()
                        .unwrap_or_else(|| unreachable_replay(seed)));
                }
            }
        }
        Ok(restores)
    }
}

fn unreachable_replay(seed: u64) -> Box<Failure> {
    let what =
        "the run failed once and not again: something in it is not drawn from the seed".to_owned();
    Box::new(Failure {
        seed,
        faults: Vec::new(),
        what,
        trace: Vec::new(),
    })
}
