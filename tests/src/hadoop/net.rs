//! Which /24 of the loopback network a cluster lives on.

use std::fs::{self, File};

use anyhow::{Context, Result, bail};
use nix::fcntl::{Flock, FlockArg};

/// A network that no other cluster on this machine uses while the lock is held.
pub(super) struct Net {
    /// Its first three bytes, such as `127.90.0`.
    pub(super) prefix: String,
    lock: Flock<File>,
}

impl Net {
    /// Takes a free one of 127.90.0 … 127.90.63.
    pub(super) fn take() -> Result<Self> {
        let locks = std::env::temp_dir().join("heddle-hadoop-nets");
        fs::create_dir_all(&locks)?;
        for third in 0..64 {
            let prefix = format!("127.90.{third}");
            let file = File::options()
                .create(true)
                .append(true)
                .open(locks.join(&prefix))?;
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
