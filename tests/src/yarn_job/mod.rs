//! Jobs that `heddle submit` hands to a test cluster, as alice: what a person would see of them, and what only a test
//! may see and do.
//!
//! - [`YarnJob`] is a job before it is submitted: a local folder with its job file, a folder on HDFS with its data, and
//!   `heddle` with the cluster's configuration in its environment.
//! - [`Submitted`] is a `heddle submit --json` that watches its application: events, the ApplicationMaster's view, the
//!   ResourceManager's report, the end.
//! - [`Process`] is a process of a job on this machine, found by its environment in /proc: also of containers
//!   whose NodeManager is dead and of an ApplicationMaster that the ResourceManager has declared dead.
//!
//! Containers are small, so that three nodes of 4096 MiB hold several jobs at a time.

mod kinds;
mod processes;
mod submitted;
mod watch;

pub use kinds::{Counting, YarnJob};
pub use processes::{Process, exit_code_left, is_stopped, processes};
pub use submitted::Submitted;
pub use watch::{Watch, settled};
