//! Whole jobs under seeded faults: see `heddle_tests::simulation`.
//!
//! The same with the shards' once-only memory switched off must fail, which shows that the counting would notice:
//! `cargo test -p heddle-tests --test simulation --features no-once-only-memory`.
//!
//! A failing run prints its seed and its faults. `HEDDLE_SEED=… HEDDLE_JOB=… cargo test -p heddle-tests --test simulation replay`
//! runs it again and prints every event; `HEDDLE_SEEDS=100000 cargo test … explore` looks at more seeds.

use heddle_protocol::spec::{Consistency, Every};
use heddle_tests::simulation::{Explorer, Fault, Job};

/// Seeds of one exploration unless `HEDDLE_SEEDS` says more: some seconds on one core.
const SEEDS: u64 = 300;

fn job(name: &str) -> Job {
    let small = |consistency| Job::small(consistency);
    match name {
        "bsp" => small(Consistency::Bsp),
        "asp" => small(Consistency::Asp),
        // A lane without data, ends said by empty steps, three trainers for two lanes, four shards.
        "bsp-uneven" => Job {
            tasks: vec![3],
            end_on_last: false,
            trainers: 3,
            shards: 4,
            every: Every::Steps(1),
            ..small(Consistency::Bsp)
        },
        "bsp-evaluated" => Job {
            test_tasks: 2,
            every: Every::Passes(1),
            ..small(Consistency::Bsp)
        },
        "asp-evaluated" => Job {
            tasks: vec![1, 3, 1, 2],
            trainers: 3,
            test_tasks: 2,
            shards: 3,
            every: Every::Steps(1),
            ..small(Consistency::Asp)
        },
        other => panic!("no job {other}"),
    }
}

fn explorer(name: &str) -> Explorer {
    Explorer::new(job(name)).unwrap_or_else(|failure| panic!("job {name}: {failure}"))
}

fn seeds() -> u64 {
    std::env::var("HEDDLE_SEEDS")
        .ok()
        .and_then(|seeds| seeds.parse().ok())
        .unwrap_or(SEEDS)
}

#[cfg(not(feature = "no-once-only-memory"))]
mod promises {
    use super::*;

    fn explore(name: &str) {
        let restores = explorer(name)
            .explore(0..seeds(), &Fault::ALL, 4)
            .unwrap_or_else(|failure| panic!("job {name}: {failure}"));
        assert!(
            restores > seeds() / 10,
            "too few of these faults cost anything: {restores} rollbacks"
        );
    }

    /// One fault right before each event of a run.
    fn at_every_event(name: &str, fault: Fault) {
        let explorer = explorer(name);
        for at in 0..explorer.length {
            if explorer.run(at % 3, &[(at, fault)]).is_err()
                && let Err(failure) = explorer.replay(at % 3, &[(at, fault)])
            {
                panic!("job {name}: {failure}");
            }
        }
    }

    #[test]
    fn a_trainer_may_die_before_any_event() {
        at_every_event("bsp", Fault::KillTrainer);
        at_every_event("asp", Fault::KillTrainer);
    }

    #[test]
    fn a_pserver_may_die_before_any_event() {
        at_every_event("bsp", Fault::KillPserver);
        at_every_event("asp", Fault::KillPserver);
    }

    #[test]
    fn the_applicationmaster_may_die_before_any_event_and_containers_live_on() {
        at_every_event("bsp", Fault::KillAm);
        at_every_event("asp", Fault::KillAm);
    }

    #[test]
    fn everything_may_die_before_any_event() {
        at_every_event("bsp", Fault::KillAll);
        at_every_event("asp", Fault::KillAll);
    }

    #[test]
    fn a_cut_may_be_ordered_before_any_event() {
        at_every_event("bsp-uneven", Fault::Cut);
        at_every_event("asp-evaluated", Fault::Cut);
    }

    #[test]
    fn a_zombie_changes_nothing_from_any_event_on() {
        for fault in [Fault::LoseTrainer, Fault::LosePserver] {
            at_every_event("bsp", fault);
            at_every_event("asp", fault);
        }
    }

    #[test]
    fn a_connection_may_break_before_any_event() {
        for fault in [Fault::BreakData, Fault::BreakControl, Fault::Pause] {
            at_every_event("bsp", fault);
            at_every_event("asp", fault);
        }
    }

    #[test]
    fn a_cluster_may_want_things_back_or_fall_silent_before_any_event() {
        for fault in [
            Fault::Preempt,
            Fault::NodeLeaves,
            Fault::Scale,
            Fault::Silence,
        ] {
            at_every_event("bsp-uneven", fault);
            at_every_event("asp-evaluated", fault);
        }
    }

    #[test]
    fn explore_bsp() {
        explore("bsp");
        explore("bsp-uneven");
        explore("bsp-evaluated");
    }

    #[test]
    fn explore_asp() {
        explore("asp");
        explore("asp-evaluated");
    }
}

#[cfg(feature = "no-once-only-memory")]
#[test]
fn without_the_once_only_memory_some_step_is_counted_twice() {
    // A task handed to a second trainer near the end of a pass is enough: no fault is needed.
    let failure = Explorer::new(job("asp"))
        .and_then(|explorer| explorer.explore(0..seeds(), &Fault::ALL, 4))
        .expect_err("the counting must notice");
    assert!(failure.what.contains("counted"), "{failure}");
}

#[test]
fn replay() {
    let (Ok(seed), Ok(name)) = (std::env::var("HEDDLE_SEED"), std::env::var("HEDDLE_JOB")) else {
        return;
    };
    let seed = seed.parse().expect("a number");
    let explorer = explorer(&name);
    explorer
        .replay(seed, &explorer.faults(seed, &Fault::ALL, 4))
        .unwrap_or_else(|failure| panic!("{failure}"));
}
