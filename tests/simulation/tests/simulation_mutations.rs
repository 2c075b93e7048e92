//! What the simulation is worth: each of these defects, put back, must be found within a bounded number of seeds.
//!
//! `cargo test -p heddle-simulation --features mutations --test simulation_mutations -- --nocapture` prints how many it took.
//! Those of one kind of work are tried in its jobs. Seeds go on from job to job in turn, so that every job's first seeds
//! are tried before any job's later ones. One defect at a time is in the process, so this program has one test.

use std::time::Instant;

use heddle_protocol::mutation::{Mutation, put_back};
use heddle_simulation::{Explorer, Failure, Fault, Job};

/// Seeds of each job after which a defect counts as not found.
fn seeds_max(mutation: Mutation) -> u64 {
    match mutation {
        // It can show in one job alone, at one seed in some thousands.
        Mutation::AnyHandOut
        | Mutation::PrimaryLeavesBackupOut
        | Mutation::SurvivorsAreNotAligned => 20_000,
        _ => 2_000,
    }
}
/// Seeds of a job in turn.
const TURN: u64 = 50;
/// Faults of a run, at the most.
const FAULTS_MAX: usize = 6;

/// Defects that need a combination of faults which thousands of seeds may miss. Their rules are played step by step in
/// `simulation_schedules` and in the tests of heddle-am-core and heddle-shard. Tried only where `HEDDLE_MUTATION` names one.
const RARE: [Mutation; 9] = [
    Mutation::BarrierByNumber,
    Mutation::AllocationTimeoutRunsOn,
    Mutation::ViewsBeforeRecord,
    Mutation::BackupsNeedNotLoad,
    Mutation::TakeoverTrustsPrimaries,
    Mutation::FilledCopyIsNotCounted,
    Mutation::AnyFillName,
    Mutation::StaleFillBegin,
    Mutation::StoppedShardIsPulled,
];

/// Faults of which a defect needs several close together; all for the others.
fn kinds_of_faults(mutation: Mutation) -> &'static [Fault] {
    match mutation {
        // A barrier that waits for its connection while another attempt orders a cut of the same number.
        Mutation::BarrierByNumber => &[
            Fault::KillAm,
            Fault::LagData,
            Fault::LagControl,
            Fault::BreakData,
            Fault::CutOffData,
            Fault::Cut,
        ],
        // A lane that moves before its old trainer receives the order.
        Mutation::AnyHandOut => &[
            Fault::Scale,
            Fault::LagControl,
            Fault::LagData,
            Fault::LoseTrainer,
            Fault::CutOffControl,
        ],
        // Orders about sizes without the loss of a pserver.
        Mutation::UnwantedPserverIsGivenUp | Mutation::SurplusDoesNotWait => &[Fault::Scale],
        Mutation::UnwantedPserverIsRefused => &[Fault::Scale, Fault::KillAm],
        // An attempt that dies between an order and its record.
        Mutation::OrderAnsweredEarly => &[Fault::Scale, Fault::KillAm, Fault::TwoAms],
        // An attempt that dies between a score and its record.
        Mutation::ScoreNotDurable => &[Fault::KillAm, Fault::TwoAms, Fault::PauseAm],
        // An attempt that dies while a save is under way.
        Mutation::SaveIsForgotten => &[Fault::KillAm, Fault::TwoAms, Fault::PauseAm],
        // An attempt that dies between a local recovery and the next checkpoint.
        Mutation::LostUpdatesForgotten => &[Fault::KillPserver, Fault::LosePserver, Fault::KillAm],
        // An attempt that dies between the end of a pass and the next checkpoint.
        Mutation::SetAsideForgotten => &[Fault::KillAm, Fault::TwoAms],
        // A backup that is behind when its primary dies.
        Mutation::PrimaryLeavesBackupOut => {
            &[Fault::Pause, Fault::Hang, Fault::LagData, Fault::LosePserver, Fault::KillPserver]
        }
        // Lines that are still on the old connection when the new one registers.
        Mutation::HeardOnReplacedConnection => {
            &[Fault::BreakControl, Fault::LagControl, Fault::CutOffControl, Fault::Cut]
        }
        _ => &Fault::ALL,
    }
}

/// How the names of the jobs begin in which a defect can show.
fn kind_of_jobs(mutation: Mutation) -> &'static str {
    match mutation {
        // Barriers and tasks are ASP's.
        Mutation::ProgressPassesBarrier | Mutation::SentIsReached => "asp",
        // Computing takes time in these jobs, so connections may be slow enough.
        Mutation::BarrierByNumber => "asp-long",
        Mutation::AnyHandOut => "bsp-elastic",
        Mutation::BestPassIsNotHeld => "bsp-best",
        // Clocks are SSP's.
        Mutation::IdleTrainerIsCounted | Mutation::OwnClockAlone => "ssp",
        Mutation::UnknownTrainerIsNotAwaited
        | Mutation::ClosedTrainerIsNotCounted
        | Mutation::StoppedShardIsPulled => "ssp-replicas",
        // Copies of shards.
        Mutation::AnswersDoNotWait
        | Mutation::PrimaryLeavesBackupOut
        | Mutation::TakeoverTrustsPrimaries => "asp-replicas",
        Mutation::ViewsBeforeRecord | Mutation::BackupsNeedNotLoad => "bsp-replicas",
        Mutation::CopiesAreNotCompared => "asp-copies",
        Mutation::FilledCopyIsNotCounted
        | Mutation::AnyFillName
        | Mutation::StaleFillBegin
        | Mutation::ChunksOvertakeChanges
        | Mutation::HandOverWithoutDraining => "asp-replicas",
        // One copy of each shard.
        Mutation::FillIsNotRecorded => "asp-moves",
        Mutation::UnwantedPserverIsGivenUp
        | Mutation::UnwantedPserverIsRefused
        | Mutation::SurplusDoesNotWait => "bsp-moves",
        // Two backups.
        Mutation::SurvivorsAreNotAligned => "asp-replicas-threads",
        Mutation::SparesJoin | Mutation::SpareStaysIdle => "asp-spares",
        Mutation::ExtraTrainersStay => "asp-extra",
        // Programs ask for saves.
        Mutation::AnySaveLease | Mutation::SaveIsForgotten => "asp-saves",
        Mutation::LostShardsTakeAll | Mutation::LostUpdatesForgotten => "asp-local",
        Mutation::SetAsideForgotten => "asp-poisoned",
        Mutation::CutsWithoutState => "evaluate",
        Mutation::StaleController | Mutation::OrderAnsweredEarly => "asp-controlled",
        // The job that stops early.
        Mutation::ScoreNotDurable | Mutation::LaterScoreEndsTraining => "bsp-evaluated",
        Mutation::NoOnceOnlyMemory
        | Mutation::CommandsBeforeJournal
        | Mutation::NoLease
        | Mutation::AnyEpoch
        | Mutation::TornSnapshot
        | Mutation::HeardOnReplacedConnection
        | Mutation::LateMemoryExitIsCrash
        | Mutation::AllocationTimeoutRunsOn
        | Mutation::HungThreadIsKept => "",
    }
}

/// The first failure with a defect, and how many runs it took; nothing if there is none.
fn find(explorers: &[Explorer], kinds: &[Fault], seeds_max: u64) -> (u64, Option<Box<Failure>>) {
    let mut runs = 0;
    for from in (0..seeds_max).step_by(TURN as usize) {
        for explorer in explorers {
            match explorer.explore(from..from + TURN, kinds, FAULTS_MAX) {
                Ok(summary) => runs += summary.runs,
                Err(failure) => return (runs + failure.seed - from + 1, Some(failure)),
            }
        }
    }
    (runs, None)
}

#[test]
fn every_defect_that_is_put_back_is_found() {
    let only = std::env::var("HEDDLE_MUTATION").ok();
    let mut missed = Vec::new();
    println!("{:<28} {:>7} {:>6}  how", "defect", "seeds", "s");
    for mutation in Mutation::ALL {
        let name = format!("{mutation:?}");
        let wanted = match &only {
            Some(only) => *only == name,
            None => !RARE.contains(&mutation),
        };
        if !wanted {
            continue;
        }
        // A new one for each, since an explorer remembers which checkpoints a job was continued from.
        let explorers: Vec<Explorer> = Job::NAMES
            .iter()
            .filter(|name| name.starts_with(kind_of_jobs(mutation)))
            .map(|name| Explorer::new(name).unwrap_or_else(|failure| panic!("{failure}")))
            .collect();
        let started = Instant::now();
        put_back(Some(mutation));
        let (runs, found) = find(&explorers, kinds_of_faults(mutation), seeds_max(mutation));
        put_back(None);
        let seconds = started.elapsed().as_secs();
        match found {
            Some(failure) if only.is_none() => {
                let Failure { job, seed, faults, what, .. } = *failure;
                let what: String =
                    what.lines().next().unwrap_or_default().chars().take(120).collect();
                println!(
                    "{name:<28} {runs:>7} {seconds:>6}  {job} {seed}, faults {faults}: {what}"
                );
            }
            Some(failure) => println!("{failure}"),
            None => {
                println!("{name:<28} {runs:>7} {seconds:>6}  NOT FOUND");
                missed.push(mutation);
            }
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
