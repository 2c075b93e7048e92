//! The inputs of a container at its start: names of environment variables, and the address of the ApplicationMaster. The secret is in a file (on YARN: in the container's credentials); nothing secret is in a
//! variable or an argument.
//!
//! On one machine [`AM_FILE`] and [`SECRET_FILE`] are set. On YARN [`AM`] and [`AM_DIR`] are, and what
//! the NodeManager sets itself is used besides: `CONTAINER_ID`, `NM_HOST`, `LOG_DIRS` and
//! `HADOOP_TOKEN_FILE_LOCATION`.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::Attempt;

/// The run's uuid.
pub const RUN: &str = "HEDDLE_RUN";
/// The slot, such as `pserver-0`.
pub const SLOT: &str = "HEDDLE_SLOT";
/// The incarnation of the slot.
pub const INCARNATION: &str = "HEDDLE_INCARNATION";
/// Path of the file that names the ApplicationMaster's address ([`AmAddress`] as JSON), rewritten by each attempt.
pub const AM_FILE: &str = "HEDDLE_AM_FILE";
/// The ApplicationMaster that started this container, as [`AmAddress`] writes itself.
pub const AM: &str = "HEDDLE_AM";
/// URL of the directory where each attempt of the ApplicationMaster writes its address once, as
/// `<attempt, 6 digits>.json` ([`AmAddress`] as JSON). The highest attempt leads.
pub const AM_DIR: &str = "HEDDLE_AM_DIR";
/// Path of the file (mode 0600) with the job's secret.
pub const SECRET_FILE: &str = "HEDDLE_SECRET_FILE";
/// Directory for the process's log files.
pub const LOG_DIR: &str = "HEDDLE_LOG_DIR";
/// Address or name of this node: a container binds it and advertises the address. When not set, `NM_HOST`, which
/// NodeManagers set; else loopback.
pub const BIND_HOST: &str = "HEDDLE_BIND_HOST";
/// Pserver: number of data threads, each with a port of its own (`pservers.vcores`); 1 when not set. It must
/// be known before the first registration, which names the ports.
pub const DATA_THREADS: &str = "HEDDLE_DATA_THREADS";
/// Ports that a container may listen on (`network.ports`), such as `7000-7100`; any when not set.
pub const PORTS: &str = "HEDDLE_PORTS";
/// How a container connects to others of the job: `on` is encrypted (`network.protection`), `off` or not set is plain. It
/// must be known before the first connection.
pub const PROTECTION: &str = "HEDDLE_PROTECTION";
/// Time without an acknowledgement after which connections of a container close (`liveness.dead`), ms; 10,000 when not set.
pub const DEAD_MS: &str = "HEDDLE_DEAD_MS";

/// Where the ApplicationMaster is: content of the file that [`AM_FILE`] names and, written
/// `<address>/<attempt>/<pid>`, of the variable [`AM`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AmAddress {
    /// Where the ApplicationMaster listens.
    pub address: SocketAddr,
    /// Its attempt.
    pub attempt: Attempt,
    /// Its process on its host.
    pub pid: u32,
}

impl fmt::Display for AmAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.address, self.attempt.0, self.pid)
    }
}

/// A text that is not `<address>/<attempt>/<pid>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected <address>:<port>/<attempt>/<pid>")]
pub struct AmAddressError;

impl FromStr for AmAddress {
    type Err = AmAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('/');
        let mut part = || parts.next().ok_or(AmAddressError);
        let (address, attempt, pid) = (part()?, part()?, part()?);
        if parts.next().is_some() {
            return Err(AmAddressError);
        }
        Ok(Self {
            address: address.parse().map_err(|_| AmAddressError)?,
            attempt: Attempt(attempt.parse().map_err(|_| AmAddressError)?),
            pid: pid.parse().map_err(|_| AmAddressError)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        let address = AmAddress {
            address: SocketAddr::from(([10, 0, 0, 7], 40_123)),
            attempt: Attempt(2),
            pid: 4711,
        };
        assert_eq!(address.to_string(), "10.0.0.7:40123/2/4711");
        assert_eq!(address.to_string().parse(), Ok(address));
        for wrong in ["", "10.0.0.7:1", "host:1/1/1", "10.0.0.7:1/1/1/1", "10.0.0.7:1/x/1"] {
            assert_eq!(wrong.parse::<AmAddress>(), Err(AmAddressError), "{wrong}");
        }
    }
}
