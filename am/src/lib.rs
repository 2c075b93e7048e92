//! The ApplicationMaster: drives the core, owns sockets, disks and time.

pub mod api;
pub mod claim;
pub mod cluster;
pub mod driver;
mod encoded;
mod hook;
pub mod input;
pub mod journal;
mod late;
pub mod lease;
pub mod node_address;
mod notices;
pub mod past;
mod plan_file;
pub mod process;
pub mod publish;
pub mod report;
pub mod run_dir;
pub mod staging;
pub mod store;
