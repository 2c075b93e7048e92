//! The job's core as its driver sees it: schedules of events, the actions that come out, the state that remains.
//!
//! Nothing here has a socket, a file or a clock. Each test is named after what it shows; most are schedules that
//! break the obvious protocol.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cluster;
mod cuts;
mod ending;
mod happy;
mod harness;
mod process;
mod random;
mod recovery;
mod start;
mod takeover;
mod world;
