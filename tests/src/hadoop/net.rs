//! Which /24 of the loopback network a cluster lives on.

use std::fs::{self, File};

use anyhow::{Context, Result, bail};
use nix::fcntl::{Flock, FlockArg};

/// A network that no other cluster on this machine uses while the lock is held.
pub struct Net {
    /// Its first three bytes, such as `127.90.0`.
    pub prefix: String,
    lock: Flock<File>,
}

impl Net {
    /// Takes a free one of 127.90.0 … 127.90.63.
    ///
    /// # Errors
    /// None is free; the lock files cannot be made.
    pub fn take() -> Result<Self> {
        let locks = std::env::temp_dir().join("heddle-hadoop-nets");
        fs::create_dir_all(&locks)?;
        for third in 0..64 {
            let prefix = format!("127.90.{third}");
            let file = File::options().create(true).append(true).open(locks.join(&prefix))?;
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(Self { prefix, lock }),
                Err((_, nix::errno::Errno::EWOULDBLOCK)) => {}
                Err((_, error)) => return Err(error).context("lock a loopback network"),
            }
        }
        bail!("64 clusters run on this machine already")
    }

    /// Another handle on the same lock: the network stays taken until the last holder is gone, so the reaper holds
    /// one for as long as daemons may live.
    pub(super) fn share(&self) -> Result<File> {
        Ok(self.lock.try_clone()?)
    }
}

/// The ports of DataNode `n` of the cluster on a network: data, web, calls. They are chosen because all DataNodes of a
/// machine are on 127.0.0.1, and one that starts again has the ports that it had, as it would on a machine of its own.
/// Below the range from which Linux hands out ports by itself.
pub(super) fn datanode_ports(prefix: &str, n: u8) -> [u16; 3] {
    let third = prefix.rsplit('.').next().and_then(|byte| byte.parse().ok());
    let first = 21_000 + u16::from(third.unwrap_or(0_u8)) * 12 + u16::from(n) * 3;
    [first, first + 1, first + 2]
}
