//! Whole jobs under seeded faults: see `heddle_simulation`.
//!
//! What this would notice, `simulation_mutations` shows.
//!
//! A failing run prints the command that runs it again with every event. `HEDDLE_SEEDS=100000 cargo test … explore` looks
//! at more seeds of each job.

use std::process::Command;

use heddle_protocol::view::JobState;
use heddle_simulation::{Explorer, Fault, Job, Schedule, Summary, Trial};

/// Seeds of each job in an exploration, unless `HEDDLE_SEEDS` is set.
const SEEDS: u64 = 300;
/// Faults of a run, at the most.
const FAULTS_MAX: usize = 6;

fn explorer(name: &str) -> Explorer {
    Explorer::new(name).unwrap_or_else(|failure| panic!("{failure}"))
}

fn seeds() -> u64 {
    let more = std::env::var("HEDDLE_SEEDS").ok();
    more.and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS)
}

/// One fault right before each event of a run of each job.
fn at_every_event(jobs: [&str; 2], faults: &[Fault]) {
    for explorer in jobs.map(explorer) {
        for fault in faults {
            let ran = explorer.at_every_event(*fault);
            ran.unwrap_or_else(|failure| panic!("{failure}"));
        }
    }
}

/// One fault right before each event of a run of each job: what happened in all runs of a job.
fn summaries(jobs: [&str; 2], fault: Fault) -> [Summary; 2] {
    jobs.map(|name| {
        let ran = explorer(name).at_every_event(fault);
        let summary = ran.unwrap_or_else(|failure| panic!("{failure}"));
        println!("{name}: {summary}");
        summary
    })
}

#[test]
fn a_trainer_may_die_before_any_event() {
    at_every_event(["bsp", "asp"], &[Fault::KillTrainer]);
}

#[test]
fn a_pserver_may_die_before_any_event() {
    at_every_event(["bsp", "asp"], &[Fault::KillPserver]);
}

#[test]
fn containers_outlive_an_applicationmaster_at_any_event() {
    at_every_event(["bsp", "asp"], &[Fault::KillAm]);
}

#[test]
fn everything_may_die_before_any_event() {
    at_every_event(["bsp", "asp"], &[Fault::KillAll]);
}

#[test]
fn a_cut_may_be_ordered_before_any_event() {
    at_every_event(["bsp-uneven", "asp-evaluated"], &[Fault::Cut]);
}

#[test]
fn a_stale_master_changes_nothing_from_any_event_on() {
    let faults = [Fault::LoseTrainer, Fault::LosePserver];
    at_every_event(["bsp", "asp"], &faults);
}

#[test]
fn a_connection_may_break_before_any_event() {
    let faults = [Fault::BreakData, Fault::BreakControl, Fault::Pause, Fault::Hang];
    at_every_event(["bsp", "asp"], &faults);
}

#[test]
fn preemption_and_silence_before_any_event() {
    let faults = [Fault::Preempt, Fault::NodeLeaves, Fault::Scale, Fault::Silence];
    at_every_event(["bsp-uneven", "asp-evaluated"], &faults);
}

/// The kinds that no other test here injects before every event, in the shortest jobs.
#[test]
fn any_other_fault_may_come_before_any_event() {
    let faults = [
        Fault::Crash,
        Fault::CrashLoop,
        Fault::OutOfMemory,
        Fault::TwoAms,
        Fault::PauseAm,
        Fault::WallJumps,
        Fault::ClockLeaps,
        Fault::LagControl,
        Fault::LagData,
        Fault::CutOffControl,
        Fault::CutOffData,
        Fault::SilentProbes,
        Fault::CallFails,
        Fault::CallUnknown,
        Fault::CallHangs,
        Fault::NoRoom,
        Fault::StorageDown,
        Fault::JournalFails,
        Fault::GrantsTwice,
        Fault::LaunchesFail,
        Fault::StartsSlow,
        Fault::CompletionsTwice,
        Fault::CompletionsLost,
    ];
    at_every_event(["bsp", "asp"], &faults);
    at_every_event(["bsp-copies", "asp-copies"], &[Fault::Corrupt, Fault::FlipCopy]);
    at_every_event(["asp-poisoned", "asp-poisoned-replicas"], &[Fault::KillAm, Fault::KillTrainer]);
}

/// A job whose only trainer uses up its failures continues from what it saved before its end, with the same bytes in BSP.
#[test]
fn jobs_that_give_up_save_what_their_shards_hold() {
    for summary in summaries(["bsp-alone", "asp-alone"], Fault::CrashLoop) {
        assert!(summary.last_saves > 0, "{summary}");
    }
}

#[test]
fn clocks_wait_for_no_trainer_that_is_gone() {
    let faults = [Fault::KillTrainer, Fault::BreakData, Fault::Cut];
    at_every_event(["ssp", "ssp-idle"], &faults);
}

#[test]
fn copies_outlive_a_primary_or_a_backup_at_any_event() {
    for summary in summaries(["bsp-replicas", "asp-replicas"], Fault::KillPserver) {
        assert!(summary.failovers > summary.runs / 4, "{summary}");
        assert!(summary.rollbacks < summary.runs / 4, "{summary}");
    }
    at_every_event(["bsp-replicas", "asp-replicas"], &[Fault::KillAm]);
}

/// Two pservers are lost one after the other: in the middle of the refills, and after them.
#[test]
fn second_loss_after_the_refill_costs_no_rollback() {
    let [middle, after] = [15, 250].map(|apart| {
        let mut total = Summary::default();
        for explorer in ["bsp-replicas", "asp-replicas"].map(explorer) {
            let ran = explorer.at_pairs([Fault::KillPserver; 2], 9, apart);
            total.add(&ran.unwrap_or_else(|failure| panic!("{failure}")));
        }
        println!("{apart} events apart: {total}");
        total
    });
    assert!(after.refills > 0 && after.failovers > after.runs / 2, "{after}");
    assert!(after.rollbacks < middle.rollbacks, "{middle}{after}");
}

/// Runs of a job with the first fault at events of the whole run, and the second one shortly after it.
fn shortly_after(name: &str, pair: [Fault; 2]) -> Summary {
    let mut total = Summary::default();
    let explorer = explorer(name);
    for apart in [1, 12] {
        let ran = explorer.at_pairs(pair, 9, apart);
        total.add(&ran.unwrap_or_else(|failure| panic!("{failure}")));
    }
    println!("{name}: {total}");
    assert!(total.rollbacks < total.runs / 4, "{total}");
    total
}

/// A backup is lost, and the ApplicationMaster before the primary stops waiting for it.
#[test]
fn s19_primary_registers_before_its_backups_have_everything() {
    shortly_after("asp-replicas", [Fault::KillPserver, Fault::KillAm]);
}

/// The next attempt finds a primary that has more than its backup, and the primary is lost then.
#[test]
fn s20_what_a_primary_has_alone_is_not_done_at_a_takeover() {
    shortly_after("asp-replicas", [Fault::KillAm, Fault::KillPserver]);
}

/// Two backups of which each may have more, with an attempt that ends while one of them is chosen.
#[test]
fn s22_next_attempt_promotes_the_survivor_with_more() {
    shortly_after("asp-replicas-threads", [Fault::KillPserver, Fault::KillAm]);
}

/// A node with a primary and a lane's trainer is lost: the lane's successor completes the step, and the bytes are the same.
#[test]
fn s31_primary_and_trainer_of_one_node_change_no_byte() {
    let total = shortly_after("bsp-replicas", [Fault::KillPserver, Fault::KillTrainer]);
    assert!(total.failovers > total.runs / 2, "{total}");
}

/// Living pservers hand their shards over, whatever else happens to them.
#[test]
fn shards_leave_pservers_that_are_to_go_and_nothing_returns() {
    let mut total = Summary::default();
    for explorer in ["bsp-replicas", "asp-replicas"].map(explorer) {
        for fault in [Fault::NodeLeaves, Fault::Preempt] {
            let ran = explorer.at_every_event(fault);
            total.add(&ran.unwrap_or_else(|failure| panic!("{failure}")));
        }
    }
    println!("{total}");
    assert!(total.hand_overs > total.runs / 10, "{total}");
    assert!(total.rollbacks < total.runs / 10, "{total}");
}

/// The number of pservers changes, and something else goes wrong meanwhile.
#[test]
fn shards_move_at_any_event_whatever_else_happens() {
    let jobs = ["bsp-moves", "asp-moves", "ssp-moves", "asp-moves-replicas"].map(explorer);
    let mut total = Summary::default();
    for explorer in &jobs {
        let ran = explorer.at_every_event(Fault::Scale);
        total.add(&ran.unwrap_or_else(|failure| panic!("{failure}")));
    }
    println!("{total}");
    // A number that changes before shards are placed begins another epoch.
    assert!(total.hand_overs > total.runs / 10, "{total}");
    assert!(total.rollbacks < total.runs / 100, "{total}");
    for fault in Fault::ALL {
        let mut total = Summary::default();
        for explorer in &jobs {
            let ran = explorer.at_pairs([Fault::Scale, fault], 25, 60);
            total.add(&ran.unwrap_or_else(|failure| panic!("{failure}")));
        }
        println!("{fault:?}: {total}");
    }
}

/// Controllers order sizes, one that is superseded too, and the ApplicationMaster restarts.
#[test]
fn orders_of_controllers_are_followed_in_turn() {
    let explorer = explorer("asp-controlled");
    let ran = explorer.at_every_event(Fault::Scale);
    println!("{}", ran.unwrap_or_else(|failure| panic!("{failure}")));
    for faults in [[Fault::Scale; 2], [Fault::Scale, Fault::KillAm]] {
        let ran = explorer.at_pairs(faults, 15, 60);
        println!("{faults:?}: {}", ran.unwrap_or_else(|failure| panic!("{failure}")));
    }
}

#[test]
fn spares_take_the_places_of_what_is_lost_at_any_event() {
    let faults = [Fault::KillPserver, Fault::KillTrainer, Fault::LosePserver, Fault::KillAm];
    at_every_event(["bsp-spares", "asp-spares"], &faults);
    // The second loss meets the container that followed the first one as a spare.
    let pairs = |name| {
        let ran = explorer(name).at_pairs([Fault::KillPserver; 2], 9, 150);
        let summary = ran.unwrap_or_else(|failure| panic!("{failure}"));
        println!("{name}: {summary}");
        summary
    };
    let (alone, copied) = (pairs("bsp-spares"), pairs("asp-spares-replicas"));
    assert!(alone.spares > alone.runs / 2, "{alone}");
    assert!(copied.refills > copied.runs, "{copied}");
}

#[test]
fn s51_lost_updates_are_counted_and_none_is_applied_twice() {
    let faults = [Fault::KillPserver, Fault::LosePserver, Fault::KillAm];
    at_every_event(["asp-local", "asp-local-alone"], &faults);
    // The second loss finds the shards that went back in the middle, and after it; so does the end of an attempt.
    let pairs = [(Fault::KillPserver, 15), (Fault::KillPserver, 150)].into_iter();
    let pairs = pairs.chain((90..200).step_by(30).map(|apart| (Fault::KillAm, apart)));
    let explorer = explorer("asp-local-alone");
    for (second, apart) in pairs {
        let ran = explorer.at_pairs([Fault::KillPserver, second], 7, apart);
        let summary = ran.unwrap_or_else(|failure| panic!("{failure}"));
        println!("{second:?} {apart} events later: {summary}");
        assert!(summary.lost > 0, "{summary}");
    }
}

#[test]
fn lanes_leave_a_slow_trainer_whatever_dies_meanwhile() {
    for (name, fault) in [("bsp-slow", Fault::KillTrainer), ("bsp-replaced", Fault::KillPserver)] {
        let explorer = explorer(name);
        let undisturbed = explorer.run(0, &Schedule::default()).expect("nothing goes wrong");
        assert_eq!(undisturbed.divisions > 0, name == "bsp-slow");
        assert_eq!(undisturbed.replaced_slow > 0, name == "bsp-replaced");
        assert_eq!(undisturbed.restores, 1, "no work is lost for it");
        let ran = explorer.at_every_event(fault);
        ran.unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn late_tasks_count_once_whatever_dies_meanwhile() {
    let explorer = explorer("asp-slow");
    let undisturbed = explorer.run(0, &Schedule::default()).expect("nothing goes wrong");
    assert!(undisturbed.withdrawn > 0, "no task was late");
    for fault in [Fault::KillTrainer, Fault::KillAm] {
        let ran = explorer.at_every_event(fault);
        ran.unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn extra_trainers_compute_late_tasks_whatever_dies_meanwhile() {
    let explorer = explorer("asp-extra");
    let undisturbed = explorer.run(0, &Schedule::default()).expect("nothing goes wrong");
    assert!(undisturbed.extra_trainers > 0 && undisturbed.withdrawn > 0, "no task was late");
    let faults = [Fault::KillTrainer, Fault::LoseTrainer, Fault::KillAm, Fault::KillPserver];
    let explored = explorer.explore(0..100, &faults, FAULTS_MAX);
    let summary = explored.unwrap_or_else(|failure| panic!("{failure}"));
    println!("{summary}");
    assert!(summary.extra_trainers > summary.runs / 4, "{summary}");
}

#[test]
fn s4_a_new_primary_saves_what_is_snapped_r18() {
    for summary in summaries(["bsp-copies", "asp-copies"], Fault::KillPserver) {
        assert!(summary.copies > summary.commits / 4, "{summary}");
    }
}

#[test]
fn s46_damaged_files_are_replaced_by_equal_ones() {
    at_every_event(["bsp-copies", "asp-copies"], &[Fault::Corrupt]);
}

#[test]
fn s48_files_that_differ_are_never_committed() {
    at_every_event(["bsp-copies", "asp-copies"], &[Fault::FlipCopy]);
}

#[test]
fn saves_are_published_once_whatever_dies_meanwhile() {
    let faults = [Fault::KillTrainer, Fault::LoseTrainer, Fault::KillAm, Fault::TwoAms];
    for name in ["bsp-saves", "asp-saves"] {
        let explorer = explorer(name);
        let undisturbed = explorer.run(0, &Schedule::default()).expect("nothing goes wrong");
        assert!(undisturbed.saves > 0, "{name}: no save was published");
        let explored = explorer.explore(0..30, &faults, FAULTS_MAX);
        explored.unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// The jobs of `HEDDLE_JOBS`: names, as in `asp-replicas,bsp`, or `2/4`, every fourth job from the second on.
fn chosen(jobs: &str) -> Vec<&str> {
    let number = |text: &str| text.parse::<usize>().ok().filter(|number| *number > 0);
    match jobs.split_once('/').map(|(nth, of)| (number(nth), number(of))) {
        None if jobs.is_empty() => Job::NAMES.to_vec(),
        None => jobs.split(',').collect(),
        Some((Some(nth), Some(of))) => Job::NAMES.into_iter().skip(nth - 1).step_by(of).collect(),
        Some(_) => panic!("HEDDLE_JOBS must be names or <part>/<parts> (got {jobs})"),
    }
}

#[test]
fn explore_all_jobs() {
    let started = std::time::Instant::now();
    let mut total = Summary::default();
    let only = std::env::var("HEDDLE_JOBS").unwrap_or_default();
    // A failure does not keep the other jobs from being explored: a night shows all that it can.
    let mut failures = Vec::new();
    for name in chosen(&only) {
        match explorer(name).explore(0..seeds(), &Fault::ALL, FAULTS_MAX) {
            Ok(explored) => {
                println!(
                    "{name}: {} runs, {:.0?} since the start",
                    explored.runs,
                    started.elapsed()
                );
                total.add(&explored);
            }
            Err(failure) => {
                println!("{failure}");
                failures.push(name);
            }
        }
    }
    assert!(failures.is_empty(), "jobs with a failure, printed above: {failures:?}");
    let per_minute = total.runs as f64 / started.elapsed().as_secs_f64() * 60.0;
    println!("{total}{per_minute:.0} runs a minute");
    if !only.is_empty() {
        return;
    }
    assert!(total.failovers > 0, "no backup was promoted");
    assert!(total.hand_overs > 0, "no shard was handed over");
    assert!(total.divisions > 0 && total.replaced_slow > 0, "no trainer was slow");
    assert!(total.withdrawn > 0, "no task was late");
    assert!(total.refills > 0, "no backup was filled");
    assert!(total.rollbacks > total.runs / 10, "too few of these faults cost anything");
    for state in [JobState::Starting, JobState::Running, JobState::Recovering, JobState::Finishing]
    {
        let lacking = total.coverage.lacking(state, &Fault::ALL);
        assert!(lacking.is_empty(), "never came while a job was {state:?}: {lacking:?}");
    }
    let idle = total.coverage.idle(&Fault::ALL);
    assert!(idle.is_empty(), "these faults never changed the course of a job: {idle:?}");
}

/// Hashes of the event logs of some seeds of each job.
fn log_hashes() -> String {
    let mut hashes = String::new();
    for name in Job::NAMES {
        let explorer = explorer(name);
        for seed in 0..5 {
            let trial = explorer.trial(seed, &Fault::ALL, FAULTS_MAX);
            let ran = explorer.replay(seed, &trial);
            let hash = ran.unwrap_or_else(|failure| panic!("{failure}")).log_hash;
            hashes += &format!("LOG {name} {seed} {hash:016x}\n");
        }
    }
    hashes
}

#[test]
fn a_seed_gives_the_same_event_log_in_another_process() {
    let own = log_hashes();
    if std::env::var_os("HEDDLE_LOG_HASHES").is_some() {
        return print!("{own}");
    }
    let other = Command::new(std::env::current_exe().expect("this program has a file"))
        .args(["a_seed_gives_the_same_event_log_in_another_process", "--exact"])
        .args(["--nocapture", "--test-threads", "1"])
        .env("HEDDLE_LOG_HASHES", "1")
        .output()
        .expect("this program starts once more");
    let other = String::from_utf8_lossy(&other.stdout);
    let other: String = other
        .lines()
        .filter_map(|line| line.find("LOG ").map(|at| format!("{}\n", &line[at..])))
        .collect();
    assert_eq!(other, own);
}

#[test]
fn replay() {
    let (Ok(seed), Ok(name)) = (std::env::var("HEDDLE_SEED"), std::env::var("HEDDLE_JOB")) else {
        return;
    };
    let seed = seed.parse().expect("HEDDLE_SEED is a number");
    let explorer = explorer(&name);
    let trial = match std::env::var("HEDDLE_FAULTS") {
        Ok(faults) => Trial::of(faults.parse::<Schedule>().expect("HEDDLE_FAULTS")),
        Err(_) => explorer.trial(seed, &Fault::ALL, FAULTS_MAX),
    };
    let report = explorer.replay(seed, &trial).unwrap_or_else(|failure| panic!("{failure:#}"));
    println!("faults {}: {} events, log {:016x}", report.faults, report.events, report.log_hash);
}
