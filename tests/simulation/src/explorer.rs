//! Runs one job under many seeds and faults on all cores, and reports the run that broke an invariant.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use heddle_protocol::ids::TaskId;
use heddle_protocol::job_spec::Consistency;

use super::bursts::Bursts;
use super::chance::Chance;
use super::coverage::Coverage;
use super::fault::{Fault, Schedule};
use super::job::Job;
use super::store::Durable;
use super::world::{Ended, Reference, Report, World};

/// Lines of a failing run's log that are shown: the last, unless all are asked for (`{:#}`).
const LINES_MAX: usize = 150;

/// A run that broke a promise.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The job's name.
    pub job: String,
    /// The seed.
    pub seed: u64,
    /// The faults, before which events.
    pub faults: Schedule,
    /// What broke.
    pub what: String,
    /// What happened before, if it was asked for.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = if f.alternate() { self.trace.len() } else { LINES_MAX };
        for line in &self.trace[self.trace.len().saturating_sub(shown)..] {
            writeln!(f, "{line}")?;
        }
        let Self { job, seed, faults, .. } = self;
        writeln!(f, "job {job}, seed {seed}, faults {faults}: {}", self.what)?;
        write!(
            f,
            "to replay: HEDDLE_JOB={job} HEDDLE_SEED={seed} HEDDLE_FAULTS={faults} \
             cargo test -p heddle-simulation --test simulation replay -- --nocapture"
        )
    }
}

/// What an exploration came to.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Runs.
    pub runs: u64,
    /// Rollbacks in them, the start of each job left out.
    pub rollbacks: u64,
    /// Failovers without a rollback.
    pub failovers: u64,
    /// How many times a pserver handed shards over.
    pub hand_overs: u64,
    /// Recoveries by a spare that are over.
    pub spares: u64,
    /// Updates that local recoveries lost.
    pub lost: u64,
    /// Divisions of lanes by speed.
    pub divisions: u64,
    /// Trainers replaced for their speed.
    pub replaced_slow: u64,
    /// Extra trainers that were started for late tasks.
    pub extra_trainers: u64,
    /// Tasks that a trainer stopped to compute, because another one had finished them.
    pub withdrawn: u64,
    /// Copies that refills have brought up to date.
    pub refills: u64,
    /// Jobs that failed for a good reason and were submitted again.
    pub resubmitted: u64,
    /// Those that saved their state first.
    pub last_saves: u64,
    /// Checkpoints committed.
    pub commits: u64,
    /// Shards in them with several files.
    pub copies: u64,
    /// Events.
    pub events: u64,
    /// What the faults did.
    pub coverage: Coverage,
}

impl Summary {
    /// Adds another one.
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.rollbacks += other.rollbacks;
        self.failovers += other.failovers;
        self.hand_overs += other.hand_overs;
        self.spares += other.spares;
        self.lost += other.lost;
        self.divisions += other.divisions;
        self.replaced_slow += other.replaced_slow;
        self.extra_trainers += other.extra_trainers;
        self.withdrawn += other.withdrawn;
        self.refills += other.refills;
        self.resubmitted += other.resubmitted;
        self.last_saves += other.last_saves;
        self.commits += other.commits;
        self.copies += other.copies;
        self.events += other.events;
        self.coverage.add(&other.coverage);
    }

    fn add_run(&mut self, report: &Report) {
        self.runs += 1;
        self.rollbacks += (report.restores as u64).saturating_sub(1);
        self.failovers += report.failovers;
        self.hand_overs += report.hand_overs;
        self.spares += report.spares;
        self.lost += report.lost;
        self.divisions += report.divisions;
        self.replaced_slow += report.replaced_slow;
        self.extra_trainers += report.extra_trainers;
        self.withdrawn += report.withdrawn;
        self.refills += report.refills as u64;
        self.resubmitted += u64::from(report.resubmitted);
        self.last_saves += u64::from(report.saved_last);
        self.commits += report.checkpoints.len() as u64;
        let newest = report.checkpoints.iter().filter_map(|durable| durable.checkpoints.last());
        let shards = newest.flat_map(|checkpoint| &checkpoint.manifest.shards);
        self.copies += shards.filter(|shard| shard.copies.len() > 1).count() as u64;
        self.events += report.events;
        self.coverage.add(&report.coverage);
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            runs,
            rollbacks,
            failovers,
            hand_overs,
            spares,
            lost,
            refills,
            resubmitted,
            last_saves,
            commits,
            copies,
            events,
            ..
        } = self;
        writeln!(
            f,
            "{runs} runs, {rollbacks} rollbacks, {failovers} failovers, {spares} by spares, {hand_overs} hand-overs, {lost} updates lost, {refills} refills, {resubmitted} jobs submitted again, {last_saves} of them from a last save, {commits} checkpoints, {copies} shards in them with copies, {events} events"
        )?;
        let Self { divisions, replaced_slow, extra_trainers, withdrawn, coverage, .. } = self;
        writeln!(
            f,
            "{divisions} divisions of lanes by speed, {replaced_slow} slow trainers replaced, {extra_trainers} extra ones started, {withdrawn} tasks withdrawn"
        )?;
        write!(f, "{coverage}")
    }
}

/// The faults of a run.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// Those that are known before.
    pub schedule: Schedule,
    /// Those that are drawn on the way.
    pub bursts: Option<Bursts>,
}

impl Trial {
    /// With these faults alone.
    #[must_use]
    pub fn of(schedule: Schedule) -> Self {
        Self { schedule, bursts: None }
    }
}

/// A job and what its undisturbed runs come to.
#[derive(Clone, Debug)]
pub struct Explorer {
    name: String,
    job: Arc<Job>,
    reference: Arc<Reference>,
    /// Checkpoints of runs without faults.
    starts: Arc<Vec<Durable>>,
    /// Fingerprints of checkpoints that a job was continued from to a right end.
    proven: Arc<Mutex<BTreeSet<u64>>>,
    /// Events that a run without faults takes, for placing faults.
    pub length: u64,
}

impl Explorer {
    /// Runs a named job without faults under a few seeds; in BSP all of them must agree.
    ///
    /// # Errors
    /// A run that broke a promise, or no such job.
    pub fn new(name: &str) -> Result<Self, Box<Failure>> {
        let failure = |seed, what| {
            Box::new(Failure {
                job: name.to_owned(),
                seed,
                faults: Schedule::default(),
                what,
                trace: Vec::new(),
            })
        };
        let job = Job::named(name).ok_or_else(|| failure(0, "no such job".to_owned()))?;
        let mut explorer = Self {
            name: name.to_owned(),
            job: Arc::new(job),
            reference: Arc::default(),
            starts: Arc::default(),
            proven: Arc::default(),
            length: 0,
        };
        let mut reference = Reference::new();
        let mut starts = Vec::new();
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
            let report = explorer.run_watched(seed, &Trial::default(), watch, false)?;
            starts.extend(report.checkpoints.iter().cloned());
            explorer.length = explorer.length.max(report.events);
            if let Some(at) = disagree {
                return Err(failure(seed, format!("runs without faults differ at {at:?}")));
            }
        }
        explorer.reference = Arc::new(reference);
        explorer.starts = Arc::new(starts);
        Ok(explorer)
    }

    /// The job's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn is_bsp(&self) -> bool {
        self.job.consistency == Consistency::Bsp
    }

    /// One run.
    ///
    /// # Errors
    /// It broke a promise.
    pub fn run(&self, seed: u64, faults: &Schedule) -> Result<Report, Box<Failure>> {
        self.try_out(seed, &Trial::of(faults.clone()))
    }

    /// As [`Explorer::run`], with faults that are drawn on the way.
    ///
    /// # Errors
    /// It broke a promise.
    pub fn try_out(&self, seed: u64, trial: &Trial) -> Result<Report, Box<Failure>> {
        self.run_watched(seed, trial, |_| {}, false)
    }

    /// One run again, with its event log: in the failure, and as a hash in the report.
    ///
    /// # Errors
    /// It broke a promise.
    pub fn replay(&self, seed: u64, trial: &Trial) -> Result<Report, Box<Failure>> {
        self.run_watched(seed, trial, |_| {}, true)
    }

    fn run_watched(
        &self,
        seed: u64,
        trial: &Trial,
        mut watch: impl FnMut(&World),
        trace: bool,
    ) -> Result<Report, Box<Failure>> {
        let mut world = World::resumed(Arc::clone(&self.job), seed, self.start(seed));
        match trace {
            true => world.keep_trace(),
            false => world.end_log(),
        }
        if let Some(bursts) = &trial.bursts {
            world.burst(bursts.clone());
        }
        self.expect_of(&mut world);
        // A broken assertion of the machines is a broken promise like any other. The world is not used after it but
        // for its log.
        let ran = catch_unwind(AssertUnwindSafe(|| {
            let report = world.run(&trial.schedule.0, &mut watch)?;
            self.check(&world, &report)?;
            self.continue_from_each(&mut world, &report.checkpoints, seed)?;
            Ok(report)
        }));
        let ran = ran.unwrap_or_else(|panic| Err(words_of(&*panic)));
        ran.map_err(|what| {
            Box::new(Failure {
                job: self.name.clone(),
                seed,
                faults: world.injected(),
                what,
                trace: world.take_trace(),
            })
        })
    }

    /// What a seed's job begins with: one in two continues from a checkpoint of an undisturbed run.
    fn start(&self, seed: u64) -> Durable {
        let mut chance = Chance::new(seed ^ 0x57a7);
        match chance.one_in(2) {
            true => self.starts.get(chance.below(self.starts.len())).cloned(),
            false => None,
        }
        .unwrap_or_default()
    }

    fn expect_of(&self, world: &mut World) {
        if !self.reference.is_empty() {
            world.expect(Arc::clone(&self.reference));
        }
    }

    fn check(&self, world: &World, report: &Report) -> Result<(), String> {
        if report.ended == Ended::NoCheckpointIsWhole {
            return Ok(());
        }
        let counts = world.final_counts();
        if self.job.local {
            return self.check_lost_updates(world, &counts);
        }
        if self.job.poisoned.is_some() {
            return self.check_set_aside(world, &counts);
        }
        if counts != self.job.counts() {
            return Err(format!("steps were counted {counts:?}, expected {:?}", self.job.counts()));
        }
        let last = self.reference.iter().next_back();
        if let Some((at, bits)) = last.filter(|_| self.is_bsp())
            && *bits != report.bits
        {
            return Err(format!("the end differs from an undisturbed run's at {at:?}"));
        }
        Ok(())
    }

    /// Tasks that were set aside: the poisoned one in each pass in which it fails. Others may be where trainers died at the same
    /// step of them; the passes before that step are counted in full.
    fn check_set_aside(&self, world: &World, counts: &[f32]) -> Result<(), String> {
        let listed = world.set_aside();
        let expected = self.job.counts();
        let mut rows = expected.iter().zip(counts);
        for (task, steps) in (0..).map(TaskId).zip(&self.job.tasks) {
            let of_task = listed.iter().filter(|one| one.task == task);
            let (failing, others): (Vec<_>, Vec<_>) =
                of_task.partition(|one| self.job.failure(one.phase, task).is_some());
            let fails = self.job.poisoned.filter(|(poisoned, _)| *poisoned == task);
            if failing.len() as u32 != fails.map_or(0, |(_, passes)| passes) {
                return Err(format!("set aside are {listed:?}"));
            }
            for (expected, count) in rows.by_ref().take(*steps as usize) {
                let most = *expected;
                if *count > most || *count < most - others.len() as f32 {
                    return Err(format!("steps were counted {counts:?}, set aside {listed:?}"));
                }
            }
        }
        Ok(())
    }

    /// Local recovery: no step is counted twice, and those that are missing are reported as lost.
    fn check_lost_updates(&self, world: &World, counts: &[f32]) -> Result<(), String> {
        let expected = self.job.counts();
        let twice = counts.iter().zip(&expected).any(|(count, expected)| count > expected);
        if counts.len() != expected.len() || twice {
            return Err(format!("steps were counted {counts:?}, at most {expected:?}"));
        }
        let missing = expected.iter().sum::<f32>() - counts.iter().sum::<f32>();
        let lost = world.updates_lost() as f32;
        let right = match self.job.counts_on_each_shard() {
            true => missing == lost,
            false => missing <= lost,
        };
        match right {
            true => Ok(()),
            false => {
                Err(format!("{missing} steps are missing, {lost} updates reported: {counts:?}"))
            }
        }
    }

    /// Continues the job from each checkpoint that it committed, in a cluster of its own, to its end. What was continued
    /// from once, in this run or in another one, is left out.
    fn continue_from_each(
        &self,
        world: &mut World,
        checkpoints: &[Durable],
        seed: u64,
    ) -> Result<(), String> {
        for durable in checkpoints {
            let print = durable.fingerprint();
            if lock(&self.proven).contains(&print) {
                continue;
            }
            let cut = durable.checkpoints.last().map(|c| c.manifest.cut);
            let mut clone = World::resumed(Arc::clone(&self.job), seed ^ print, durable.clone());
            self.expect_of(&mut clone);
            match world.keeps_trace() {
                true => clone.keep_trace(),
                false => clone.end_log(),
            }
            let ran = clone.run(&[], |_| {});
            ran.and_then(|report| self.check(&clone, &report)).map_err(|what| {
                world.append_trace(clone.take_trace());
                format!("continued from {cut:?}: {what}")
            })?;
            lock(&self.proven).insert(print);
        }
        Ok(())
    }

    /// The faults of a seed: up to `most`, of a few of these kinds; of two seeds one has them anywhere in the run, the
    /// other in bursts, with more of the network's.
    ///
    /// A few kinds, drawn for each seed, combine with themselves and each other more often than all would: swarm
    /// testing (Groce and others, ISSTA 2012).
    #[must_use]
    pub fn trial(&self, seed: u64, kinds: &[Fault], most: usize) -> Trial {
        let mut chance = Chance::new(seed ^ 0xfa17);
        if seed % 2 == 1 {
            let (network, others): (Vec<Fault>, Vec<Fault>) =
                kinds.iter().partition(|kind| kind.is_network());
            let mut few = network.clone();
            // As often as the network's together.
            let other: Vec<Fault> =
                (0..2).filter_map(|_| others.get(chance.below(others.len())).copied()).collect();
            few.extend(other.iter().cycle().take(network.len().max(2)));
            return Trial {
                schedule: Schedule::default(),
                bursts: Some(Bursts::new(seed, few, most)),
            };
        }
        let count = 1 + chance.below(most);
        let few = 1 + chance.below(5);
        let kinds: Vec<Fault> = (0..few).map(|_| kinds[chance.below(kinds.len())]).collect();
        let mut faults: Vec<_> = (0..count)
            .map(|_| {
                (
                    chance.below(self.length as usize * 5 / 4) as u64,
                    kinds[chance.below(kinds.len())],
                )
            })
            .collect();
        faults.sort_by_key(|(at, _)| *at);
        Trial::of(Schedule(faults))
    }

    /// Runs these seeds with their faults.
    ///
    /// # Errors
    /// The lowest seed found whose run broke a promise, with the fewest faults that still break it and its log.
    pub fn explore(
        &self,
        seeds: Range<u64>,
        kinds: &[Fault],
        most: usize,
    ) -> Result<Summary, Box<Failure>> {
        self.explore_runs(seeds, |seed| (seed, self.trial(seed, kinds, most)))
    }

    /// Runs with one fault right before each event, in turn under three seeds.
    ///
    /// # Errors
    /// As [`Explorer::explore`].
    pub fn at_every_event(&self, fault: Fault) -> Result<Summary, Box<Failure>> {
        self.explore_runs(0..self.length, |at| (at % 3, Trial::of(Schedule(vec![(at, fault)]))))
    }

    /// Runs with the first fault right before every event whose number `every` divides, and the second `apart` events later.
    ///
    /// # Errors
    /// As [`Explorer::explore`].
    pub fn at_pairs(
        &self,
        [first, second]: [Fault; 2],
        every: u64,
        apart: u64,
    ) -> Result<Summary, Box<Failure>> {
        let pair = |at: u64| Trial::of(Schedule(vec![(at, first), (at + apart, second)]));
        self.explore_runs(0..self.length / every, |number| (number % 3, pair(every * number)))
    }

    fn explore_runs(
        &self,
        numbers: Range<u64>,
        plan: impl Fn(u64) -> (u64, Trial) + Sync,
    ) -> Result<Summary, Box<Failure>> {
        let next = AtomicU64::new(numbers.start);
        let failed: Mutex<Option<(u64, Box<Failure>)>> = Mutex::new(None);
        let total: Mutex<Summary> = Mutex::default();
        let work = || {
            let mut summary = Summary::default();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= numbers.end || lock(&failed).is_some() {
                    break;
                }
                let (seed, trial) = plan(number);
                match self.try_out(seed, &trial) {
                    Ok(report) => summary.add_run(&report),
                    Err(failure) => {
                        let mut failed = lock(&failed);
                        if failed.as_ref().is_none_or(|(known, _)| number < *known) {
                            *failed = Some((number, failure));
                        }
                    }
                }
            }
            lock(&total).add(&summary);
        };
        let cores = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            for _ in 0..cores {
                scope.spawn(work);
            }
        });
        if let Some((_, failure)) = lock(&failed).take() {
            return Err(self.shrink(failure.seed, failure.faults));
        }
        let total = lock(&total).clone();
        Ok(total)
    }
}

/// What is behind a lock, also if another run panicked while it held it: only sums are.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let words = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panicked: {}", words.unwrap_or("without a word"))
}
