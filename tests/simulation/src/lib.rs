//! A whole job in one thread: the real machines of ApplicationMaster, agents, pservers and trainers, and in place of
//! sockets, processes and time a seed.
//!
//! A run is a function of its [`Job`], its seed and its faults. What is held against every run:
//! - it ends, within bounded events and simulated time;
//! - BSP: every checkpoint is bit for bit the state of its step in a run without faults, and so is the end;
//! - ASP, SSP: every step counted once;
//! - SSP: no pull granted across a gap above the staleness;
//! - a manifest names files of its own cut; no cut is committed twice; no epoch is sent before it is durable;
//! - a report that is confirmed, and so never repeated, was taken in.
//!
//! A failing run prints the command that replays it, with as few of its faults as still make it fail. Every run has an
//! event log, whose hash is the same for the same seed in every process; what the faults did is counted in [`Coverage`].

mod am;
mod bursts;
mod chance;
mod coverage;
mod explorer;
mod exporter;
mod fault;
mod job;
mod jobs;
mod known_clocks;
mod pserver;
mod scene;
mod shrink;
mod standstill;
mod store;
mod trainer;
mod world;

pub use bursts::{Bursts, Moment};
pub use chance::Chance;
pub use coverage::{Count, Coverage};
pub use explorer::{Explorer, Failure, Summary, Trial};
pub use fault::{Fault, Schedule};
pub use job::{Job, Room};
pub use scene::{A, B, Scene};
pub use store::Durable;
pub use world::{Bits, Ended, Reference, Report, World};
