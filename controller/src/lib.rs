//! The controller of a cluster's elastic jobs, without its loop: what a round reads becomes the input of the planner
//! ([`rounds`]), one controller leads ([`lease`]), jobs take part by grants ([`grants`]), and decisions are logged
//! ([`decision_log`]).
//!
//! A round lists applications, nodes and queues, reads the status of each granted job, makes a plan
//! ([`heddle_controller_core::plan()`]), and sends orders. The command `heddle controller` makes these calls.

pub mod decision_log;
pub mod dir;
pub mod grants;
pub mod lease;
pub mod rounds;
pub mod seen_job;
pub mod status;
