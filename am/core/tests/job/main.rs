//! The job's core as its driver sees it: schedules of events, the actions that come out, the state that remains.
//!
//! There are no sockets, files or clocks. The name of a test is its claim; most are schedules that break a simpler
//! protocol.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod allocation;
mod best_pass;
mod chaos;
mod checkpoint_period;
mod cluster;
mod controller;
mod copies;
mod cuts;
mod early_stop;
mod ending;
mod expiry;
mod failover;
mod figures;
mod hand_over;
mod happy;
mod harness;
mod idle_trainers;
mod initial_values;
mod last_save;
mod local_recovery;
mod memory;
mod model_saves;
mod moves;
mod no_pservers;
mod outages;
mod progress;
mod recovery;
mod refills;
mod set_aside;
mod size;
mod spares;
mod start;
mod stop;
mod storage_wait;
mod stragglers;
mod survivors;
mod takeover;
mod training_loss;
