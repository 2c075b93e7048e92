//! The jobs that are explored, by name.

use heddle_protocol::ids::TaskId;
use heddle_protocol::job_spec::{Consistency, DurationMs, Every, JobKind};

use super::job::{Job, Room};

impl Job {
    /// Names of the jobs, for [`Job::named`].
    pub const NAMES: [&'static str; 50] = [
        "bsp",
        "bsp-alone",
        "bsp-uneven",
        "bsp-evaluated",
        "bsp-best",
        "bsp-tight",
        "bsp-elastic",
        "bsp-slow",
        "bsp-replaced",
        "asp-slow",
        "asp-extra",
        "asp-idle",
        "asp",
        "asp-alone",
        "asp-evaluated",
        "asp-best",
        "asp-threads",
        "asp-tight",
        "asp-long",
        "ssp",
        "ssp-idle",
        "ssp-tight",
        "bsp-sparse",
        "asp-sparse",
        "ssp-sparse",
        "bsp-replicas",
        "bsp-replicas-sparse",
        "asp-replicas",
        "asp-replicas-threads",
        "ssp-replicas",
        "ssp-replicas-idle",
        "bsp-copies",
        "asp-copies",
        "bsp-spares",
        "asp-spares",
        "asp-spares-replicas",
        "bsp-moves",
        "asp-moves",
        "ssp-moves",
        "asp-moves-replicas",
        "asp-controlled",
        "bsp-saves",
        "asp-saves",
        "asp-local",
        "asp-local-alone",
        "asp-local-spares",
        "asp-poisoned",
        "asp-poisoned-replicas",
        "evaluate",
        "evaluate-alone",
    ];

    /// A job by its name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let small = Self::small;
        Some(match name {
            "bsp" => small(Consistency::Bsp),
            "asp" => small(Consistency::Asp),
            // One trainer: where its failures are used up, shards hold what no checkpoint has.
            "bsp-alone" => Self { trainers: 1, every: Every::Passes(1), ..small(Consistency::Bsp) },
            "asp-alone" => Self {
                tasks: vec![2; 6],
                trainers: 1,
                every: Every::Passes(1),
                ..small(Consistency::Asp)
            },
            // A lane without data, ends pushed by empty steps, three trainers for two lanes, four shards.
            "bsp-uneven" => Self {
                tasks: vec![3],
                end_on_last: false,
                trainers: 3,
                shards: 4,
                every: Every::Steps(1),
                ..small(Consistency::Bsp)
            },
            // Training ends after the third of four passes; the model is exported.
            "bsp-evaluated" => Self {
                tasks: vec![2, 1],
                passes: 4,
                test_tasks: 2,
                every: Every::Passes(1),
                early_stop: 1,
                losses: vec![0.7, 0.5, 0.6, 0.4],
                output: true,
                ..small(Consistency::Bsp)
            },
            // The second of four passes is the best, and checkpoints that follow it push it out of the newest two.
            "bsp-best" => Self {
                tasks: vec![2, 1],
                passes: 4,
                test_tasks: 1,
                every: Every::Steps(1),
                losses: vec![0.7, 0.5, 0.6, 0.55],
                keep_best: true,
                output: true,
                ..small(Consistency::Bsp)
            },
            "asp-best" => Self {
                passes: 3,
                test_tasks: 2,
                every: Every::Steps(1),
                losses: vec![0.5, 0.6, 0.5],
                keep_best: true,
                output: true,
                ..small(Consistency::Asp)
            },
            // Room for less than what is on its way.
            "bsp-tight" => Self {
                tasks: vec![2, 2, 2],
                lanes: 3,
                passes: 1,
                trainers: 3,
                every: Every::Steps(1),
                data_threads: 2,
                shards: 3,
                room: Room::TIGHT,
                ..small(Consistency::Bsp)
            },
            "asp-evaluated" => Self {
                tasks: vec![1, 3, 1, 2],
                trainers: 3,
                test_tasks: 2,
                shards: 3,
                every: Every::Steps(1),
                output: true,
                ..small(Consistency::Asp)
            },
            "asp-threads" => {
                Self { tasks: vec![2, 2, 1], data_threads: 2, shards: 4, ..small(Consistency::Asp) }
            }
            "asp-tight" => {
                Self { every: Every::Steps(1), room: Room::TIGHT, ..small(Consistency::Asp) }
            }
            // Many lanes, which move whenever a trainer comes or goes.
            "bsp-elastic" => Self {
                tasks: vec![3, 4, 3, 4],
                lanes: 4,
                passes: 1,
                pservers: 3,
                shards: 3,
                trainers: 3,
                compute_ms: 40,
                ..small(Consistency::Bsp)
            },
            // A trainer is so slow that lanes move away from it.
            "bsp-slow" => Self {
                tasks: vec![8; 4],
                lanes: 4,
                passes: 1,
                trainers: 3,
                compute_ms: 400,
                slow: [5, 5],
                ..small(Consistency::Bsp)
            },
            // A trainer is so slow that it is replaced.
            "bsp-replaced" => Self {
                tasks: vec![5; 4],
                lanes: 4,
                passes: 1,
                trainers: 3,
                compute_ms: 400,
                slow: [15, 1],
                ..small(Consistency::Bsp)
            },
            // Tasks of a slow trainer are attempted again by others.
            "asp-slow" => Self {
                tasks: vec![3, 2, 3, 2],
                passes: 2,
                trainers: 3,
                test_tasks: 3,
                compute_ms: 400,
                slow: [60, 60],
                ..small(Consistency::Asp)
            },
            // The other trainer is busy when a task is late; the slow one is replaced by a fast one.
            "asp-extra" => Self {
                tasks: vec![2; 10],
                passes: 4,
                every: Every::Steps(8),
                extra: 1,
                compute_ms: 2_000,
                slow: [20, 1],
                ..small(Consistency::Asp)
            },
            // Two of three trainers leave in each pass, before its long task is done, and come back with the next one.
            "asp-idle" => Self {
                tasks: vec![1, 1, 1, 1, 6],
                trainers: 3,
                spares: [0, 1],
                idle_timeout: DurationMs::secs(1),
                compute_ms: 2_000,
                test_tasks: 2,
                ..small(Consistency::Asp)
            },
            // Trainers are in the middle of a task whatever happens.
            "asp-long" => Self {
                tasks: vec![4, 4],
                passes: 1,
                every: Every::Time(DurationMs::secs(1)),
                compute_ms: 1_000,
                ..small(Consistency::Asp)
            },
            "ssp" => Self { tasks: vec![3, 2, 2], staleness: 1, ..small(Consistency::Ssp) },
            // Fewer tasks than trainers, one of them without a step, and no look-ahead.
            "ssp-idle" => Self {
                tasks: vec![4, 1, 0],
                trainers: 4,
                shards: 3,
                every: Every::Steps(1),
                ..small(Consistency::Ssp)
            },
            // Trainers are in the middle of a task whatever happens, and pulls have little room to wait in.
            "ssp-tight" => Self {
                tasks: vec![3, 4, 3],
                passes: 1,
                staleness: 1,
                trainers: 3,
                data_threads: 2,
                shards: 4,
                every: Every::Time(DurationMs::secs(1)),
                compute_ms: 400,
                room: Room::TIGHT,
                ..small(Consistency::Ssp)
            },
            "bsp-sparse" => {
                Self { sparse: true, every: Every::Steps(1), ..small(Consistency::Bsp) }
            }
            "asp-sparse" => Self {
                tasks: vec![2, 3, 1],
                sparse: true,
                data_threads: 2,
                shards: 4,
                every: Every::Steps(1),
                ..small(Consistency::Asp)
            },
            "ssp-sparse" => Self {
                tasks: vec![3, 2, 2],
                sparse: true,
                staleness: 1,
                room: Room::TIGHT,
                ..small(Consistency::Ssp)
            },
            // Three pservers with a backup of each shard; a pass is long enough for a failover in its middle.
            "bsp-replicas" => Self {
                tasks: vec![3, 2, 3],
                pservers: 3,
                shards: 3,
                replicas: 1,
                test_tasks: 1,
                ..small(Consistency::Bsp)
            },
            "bsp-replicas-sparse" => Self {
                tasks: vec![2, 3],
                pservers: 2,
                shards: 4,
                data_threads: 2,
                replicas: 1,
                sparse: true,
                every: Every::Steps(1),
                ..small(Consistency::Bsp)
            },
            "asp-replicas" => Self {
                tasks: vec![3, 2, 4],
                pservers: 3,
                shards: 3,
                trainers: 3,
                replicas: 1,
                test_tasks: 1,
                ..small(Consistency::Asp)
            },
            // Shards move among one to three pservers.
            "bsp-moves" => Self {
                tasks: vec![3, 2, 3],
                shards: 4,
                pservers_between: Some([1, 3]),
                every: Every::Steps(2),
                ..small(Consistency::Bsp)
            },
            "asp-moves" => Self {
                tasks: vec![3, 2, 4, 3],
                shards: 6,
                data_threads: 2,
                pservers_between: Some([1, 3]),
                sparse: true,
                ..small(Consistency::Asp)
            },
            "ssp-moves" => Self {
                tasks: vec![3, 2, 4, 3],
                shards: 3,
                pservers_between: Some([1, 3]),
                ..small(Consistency::Ssp)
            },
            // The same by orders of controllers, of which one is superseded now and then.
            "asp-controlled" => Self {
                tasks: vec![3, 2, 4, 3],
                trainers: 3,
                shards: 4,
                pservers_between: Some([1, 3]),
                elastic: true,
                ..small(Consistency::Asp)
            },
            "asp-moves-replicas" => Self {
                tasks: vec![3, 2, 4, 3],
                shards: 4,
                pservers_between: Some([2, 4]),
                replicas: 1,
                ..small(Consistency::Asp)
            },
            "asp-replicas-threads" => Self {
                tasks: vec![3, 3, 2],
                pservers: 3,
                shards: 6,
                data_threads: 2,
                replicas: 2,
                sparse: true,
                every: Every::Steps(1),
                ..small(Consistency::Asp)
            },
            "ssp-replicas" => Self {
                tasks: vec![3, 2, 4],
                pservers: 3,
                shards: 3,
                trainers: 3,
                replicas: 1,
                staleness: 1,
                compute_ms: 40,
                ..small(Consistency::Ssp)
            },
            // Pservers without a primary, which get one later; trainers without a task, which get one later.
            "ssp-replicas-idle" => Self {
                tasks: vec![5, 1, 0],
                pservers: 4,
                shards: 2,
                trainers: 4,
                replicas: 2,
                test_tasks: 1,
                every: Every::Steps(2),
                compute_ms: 40,
                ..small(Consistency::Ssp)
            },
            // Backups save their shards too.
            "bsp-copies" => Self {
                tasks: vec![3, 2, 3],
                pservers: 3,
                shards: 3,
                replicas: 1,
                copies: 2,
                every: Every::Steps(1),
                ..small(Consistency::Bsp)
            },
            // Two backups, of which one saves; snapshots have little room.
            "asp-copies" => Self {
                tasks: vec![3, 2, 4],
                pservers: 3,
                shards: 3,
                replicas: 2,
                copies: 2,
                every: Every::Steps(1),
                room: Room::TIGHT,
                ..small(Consistency::Asp)
            },
            // Lost containers are replaced by those that are there.
            "bsp-spares" => Self {
                tasks: vec![3, 2, 3],
                spares: [1, 1],
                shards: 4,
                every: Every::Steps(1),
                ..small(Consistency::Bsp)
            },
            "asp-spares" => Self {
                tasks: vec![3, 2, 4],
                trainers: 3,
                spares: [2, 2],
                shards: 3,
                ..small(Consistency::Asp)
            },
            // The spare gets copies of shards.
            "asp-spares-replicas" => Self {
                tasks: vec![3, 2, 4],
                pservers: 3,
                spares: [1, 0],
                shards: 3,
                replicas: 1,
                ..small(Consistency::Asp)
            },
            // Programs ask for saves, and some exports take longer than their leases.
            "bsp-saves" => Self {
                tasks: vec![3, 2, 3],
                trainers: 3,
                output: true,
                asks_every: 2,
                compute_ms: 4_000,
                ..small(Consistency::Bsp)
            },
            "asp-saves" => Self {
                tasks: vec![3, 2, 4, 2],
                trainers: 3,
                output: true,
                asks_every: 2,
                compute_ms: 4_000,
                every: Every::Steps(4),
                ..small(Consistency::Asp)
            },
            // The shards of a lost pserver go back alone.
            "asp-local" => Self {
                tasks: vec![3, 2, 4],
                local: true,
                shards: 4,
                data_threads: 2,
                test_tasks: 1,
                ..small(Consistency::Asp)
            },
            // One shard: the lost updates are those that the counts lack.
            "asp-local-alone" => Self {
                tasks: vec![3, 2, 4],
                local: true,
                pservers: 1,
                shards: 1,
                ..small(Consistency::Asp)
            },
            "asp-local-spares" => Self {
                tasks: vec![3, 2, 4],
                local: true,
                sparse: true,
                spares: [1, 0],
                shards: 4,
                every: Every::Steps(4),
                ..small(Consistency::Asp)
            },
            // A task is set aside in the first two passes, and computed in the third.
            "asp-poisoned" => Self {
                tasks: vec![2, 3, 1],
                passes: 3,
                poisoned: Some((TaskId(1), 2)),
                test_tasks: 1,
                ..small(Consistency::Asp)
            },
            "asp-poisoned-replicas" => Self {
                tasks: vec![2, 3, 1],
                passes: 2,
                poisoned: Some((TaskId(0), 1)),
                pservers: 3,
                shards: 3,
                trainers: 3,
                replicas: 1,
                every: Every::Steps(1),
                ..small(Consistency::Asp)
            },
            // A model is evaluated: pservers have it, or trainers do.
            "evaluate" => Self {
                kind: JobKind::Evaluate,
                test_tasks: 6,
                trainers: 3,
                ..small(Consistency::Asp)
            },
            "evaluate-alone" => Self {
                kind: JobKind::Evaluate,
                test_tasks: 6,
                trainers: 3,
                pservers: 0,
                shards: 0,
                compute_ms: 400,
                ..small(Consistency::Asp)
            },
            _ => return None,
        })
    }
}
