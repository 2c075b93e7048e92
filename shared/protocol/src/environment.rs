//! What a container is given when it is started: names of environment variables, and the file that
//! leads to the ApplicationMaster. The secret is in a file; nothing secret is in a variable or an argument.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::ids::Attempt;

/// The run's uuid.
pub const RUN: &str = "HEDDLE_RUN";
/// The slot, such as `pserver-0`.
pub const SLOT: &str = "HEDDLE_SLOT";
/// Which filling of the slot.
pub const INCARNATION: &str = "HEDDLE_INCARNATION";
/// Path of the file that names the ApplicationMaster's address ([`AmAddress`] as JSON), rewritten by each attempt.
pub const AM_FILE: &str = "HEDDLE_AM_FILE";
/// Path of the file (mode 0600) with the job's secret.
pub const SECRET_FILE: &str = "HEDDLE_SECRET_FILE";
/// Directory for the process's log files.
pub const LOG_DIR: &str = "HEDDLE_LOG_DIR";
/// Address that a container binds and advertises; loopback when not set.
pub const BIND_HOST: &str = "HEDDLE_BIND_HOST";
/// Pserver: number of data threads, each with a port of its own (`pservers.vcores`); 1 when not set. It must
/// be known before the first registration, which names the ports.
pub const DATA_THREADS: &str = "HEDDLE_DATA_THREADS";
/// Ports that a container may listen on (`network.ports`), such as `7000-7100`; any when not set.
pub const PORTS: &str = "HEDDLE_PORTS";

/// Content of the file that [`AM_FILE`] names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AmAddress {
    /// Where the ApplicationMaster listens.
    pub address: SocketAddr,
    /// Its attempt.
    pub attempt: Attempt,
    /// Its process on its host.
    pub pid: u32,
}
