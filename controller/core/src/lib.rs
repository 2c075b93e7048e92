//! The planner of elastic jobs: which job gets how many trainers and pservers.
//!
//! [`plan()`] takes the state of the cluster, the elastic jobs and the time, and returns decisions, each with its reason. It is a
//! pure function: what it has to remember between rounds comes in with each job ([`ElasticJob::changes`]). Its `clippy.toml`
//! forbids sockets, files, clocks and random numbers. The controller reads YARN and sends the orders; a
//! job's ApplicationMaster places containers and moves shards.
//!
//! The score of a job is the part of its range that it has: 0 at its minimum, 1 at its top. Jobs of a higher class are served
//! first, in a class those with lower scores. One round applies seven rules in this order, each in its own module, on one copy of
//! the cluster's state, so that two rules cannot promise the same room:
//!
//! | rule | module | what it does |
//! | --- | --- | --- |
//! | R1 | `excess` | cuts sizes above the top, withdraws what YARN does not grant |
//! | R2 | `asked` | counts what YARN has been asked for as used |
//! | R3 | `minimums` | makes room for jobs below their minimum |
//! | R4 | `overload` | shrinks jobs while the cluster is loaded above its limit |
//! | R5 | `growth` | gives free room to the lowest scores |
//! | R6 | `idle_gpus` | moves trainers without GPUs away from GPUs that idle for lack of CPU or memory |
//! | R7 | `fairness` | moves room from high scores to low ones |
//!
//! A job keeps its minimum under all rules. Room that is being released may go to a minimum, since YARN queues the requests of a
//! starting job in any case. Growth waits until it is free.
//!
//! ```
//! use heddle_controller_core::{ClusterState, NodeCapacity, ResourceVector, plan};
//!
//! let total = ResourceVector::new(0, 64, 262_144);
//! let node = NodeCapacity { name: "n1".to_owned(), total, free: total };
//! let cluster = ClusterState { nodes: vec![node], ..ClusterState::default() };
//! assert!(plan(&cluster, &[], 0).decisions.is_empty());
//! ```

mod asked;
mod cluster;
mod decision;
mod excess;
mod fairness;
mod free_index;
mod growth;
mod idle_gpus;
mod job;
mod minimums;
mod overload;
mod plan;
mod resources;
mod room;
mod round;
mod score;
mod sizes;
mod victims;

pub use cluster::{ClusterState, LoadLimit, NodeCapacity, QueueCapacity};
pub use decision::{ScalingDecision, ScalingPlan, ScalingReason, WaitingJob, WaitingReason};
pub use job::{ElasticJob, FixedSize, HISTORY_MS, NodeContainers, ReleaseOrder, SizeChange};
pub use plan::plan;
pub use resources::ResourceVector;
pub use room::Shortage;
pub use score::Score;
pub use sizes::{ContainerCounts, SizeRange};
