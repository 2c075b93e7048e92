//! The ApplicationMaster: drives the core, owns sockets, disks and time.

pub mod api;
pub mod attempt_history;
pub mod claim;
pub mod cluster;
mod delay_warning;
pub mod driver;
mod encoded;
mod hook;
pub mod input;
pub mod journal;
pub mod lease;
pub mod node_address;
mod notices;
mod plan_file;
pub mod process;
pub mod publish;
pub mod report;
pub mod run_dir;
pub mod staging;
pub mod store;
