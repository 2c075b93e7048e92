//! The lease: one controller leads.
//!
//! Each leader has a generation, and the file `private/lease/<generation>.json`, which it makes exclusively and writes again
//! every [`RENEW_MS`] with a counter. Others watch: when the counter of the highest generation has not moved for
//! [`TAKE_OVER_MS`] of the watcher's own clock, or its leader has resigned, they try to make the next file. Clocks of two hosts
//! are not compared. A leader that was suspended meanwhile finds a higher generation when it renews; jobs refuse orders that it
//! sends before (`am/core`), and it stops to send them when its last renewal is older than 7 s.

use std::ops::Range;

use heddle_storage::{
    Mode, StorageError, WriteError, chain, numbered_files, publish_small, read_small, replace_small,
};
use serde::{Deserialize, Serialize};

use crate::dir::ControllerDir;

/// How often a leader renews its lease.
pub const RENEW_MS: u64 = 2_000;
/// A leader that has not renewed for this time does not give orders.
const ORDERS_MS: u64 = 7_000;
/// A lease that has not been renewed for this time is taken over.
pub const TAKE_OVER_MS: u64 = 10_000;
/// A lease is short.
const BYTES_MAX: usize = 4_096;

/// Content of a lease's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderLease {
    /// From 1.
    pub generation: u64,
    /// Host of the leader.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// Grows with each renewal.
    pub counter: u64,
    /// The leader has ended in order.
    #[serde(default)]
    pub is_resigned: bool,
}

impl LeaderLease {
    /// `controller 4 on gateway-1, process 4711`.
    #[must_use]
    pub fn text(&self) -> String {
        format!("controller {} on {}, process {}", self.generation, self.host, self.pid)
    }
}

/// Watches the lease of another controller.
#[derive(Clone, Debug, Default)]
pub struct LeaseWatch {
    /// Generation and counter, and when they were first seen.
    seen: Option<((u64, u64), u64)>,
}

impl LeaseWatch {
    /// The generation to take, if the lead is free. `read_ms`: from when to when it was read, of the watcher's monotonic clock.
    /// A slow read does not make a lease older: it was seen first at the end of one read, and stood at the start of another.
    pub fn next_generation(
        &mut self,
        lease: Option<&LeaderLease>,
        read_ms: Range<u64>,
    ) -> Option<u64> {
        let Some(lease) = lease else { return Some(1) };
        let state = (lease.generation, lease.counter);
        let since_ms = match self.seen {
            Some((seen, since_ms)) if seen == state => since_ms,
            _ => read_ms.end,
        };
        self.seen = Some((state, since_ms));
        let is_free = lease.is_resigned || read_ms.start.saturating_sub(since_ms) >= TAKE_OVER_MS;
        is_free.then_some(lease.generation + 1)
    }
}

/// Whether a leader that last renewed its lease at that time of its own clock may give orders: standbys still wait.
#[must_use]
pub fn may_order(renewed_ms: u64, now_ms: u64) -> bool {
    now_ms.saturating_sub(renewed_ms) < ORDERS_MS
}

/// The lease of the highest generation, if there has been a leader.
///
/// # Errors
/// The storage fails, or the file is not a lease.
pub async fn read(dir: &ControllerDir) -> Result<Option<LeaderLease>, LeaseError> {
    let files = numbered_files(dir.storage(), &dir.leases(), "json").await?;
    let Some((_, path)) = files.last_key_value() else { return Ok(None) };
    let bytes = read_small(dir.storage(), path, BYTES_MAX).await?;
    let lease = serde_json::from_slice(&bytes).map_err(|error| LeaseError::NotALease {
        file: dir.storage().show(path),
        error: error.to_string(),
    })?;
    Ok(Some(lease))
}

/// Why a lease is not read, taken or renewed.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The storage fails.
    #[error("{}", chain(.0))]
    Storage(#[from] StorageError),
    /// The file is damaged.
    #[error("{file} is not a lease: {error}")]
    NotALease {
        /// The file.
        file: String,
        /// Why.
        error: String,
    },
    /// Another controller leads.
    #[error("{} leads", .0.text())]
    Superseded(LeaderLease),
}

/// A lease of this process.
#[derive(Debug)]
pub struct HeldLease {
    lease: LeaderLease,
}

impl HeldLease {
    /// Takes the lead with this generation, unless another process was faster.
    ///
    /// # Errors
    /// The storage fails.
    pub async fn take(dir: &ControllerDir, lease: LeaderLease) -> Result<Option<Self>, LeaseError> {
        let path = dir.leases().join(&file_name(lease.generation)).expect("a short name");
        match publish_small(dir.storage(), &path, json(&lease)).await {
            Ok(()) => {}
            Err(WriteError::NotDone(error)) if error.is_exists() => return Ok(None),
            Err(error) => return Err(StorageError::from(error).into()),
        }
        let files = numbered_files(dir.storage(), &dir.leases(), "json").await?;
        for (_, path) in files.range(..lease.generation) {
            // A file that stays is not the highest.
            let _kept = dir.storage().delete_file(path).await;
        }
        Ok(Some(Self { lease }))
    }

    /// Renews it, from the time of the call on.
    ///
    /// # Errors
    /// [`LeaseError::Superseded`] if another controller leads; the storage fails.
    pub async fn renew(&mut self, dir: &ControllerDir) -> Result<(), LeaseError> {
        if let Some(highest) = read(dir).await?
            && highest.generation > self.lease.generation
        {
            return Err(LeaseError::Superseded(highest));
        }
        self.lease.counter += 1;
        self.write(dir).await
    }

    /// Gives the lead up, so that another one need not wait.
    ///
    /// # Errors
    /// The storage fails; then the lease lapses.
    pub async fn resign(mut self, dir: &ControllerDir) -> Result<(), LeaseError> {
        self.lease.is_resigned = true;
        self.write(dir).await
    }

    async fn write(&self, dir: &ControllerDir) -> Result<(), LeaseError> {
        let path = dir.leases().join(&file_name(self.lease.generation)).expect("a short name");
        replace_small(dir.storage(), &path, Mode::FILE, json(&self.lease))
            .await
            .map_err(StorageError::from)?;
        Ok(())
    }

    /// Its content.
    #[must_use]
    pub fn lease(&self) -> &LeaderLease {
        &self.lease
    }
}

fn file_name(generation: u64) -> String {
    format!("{generation:09}.json")
}

fn json(lease: &LeaderLease) -> bytes::Bytes {
    serde_json::to_vec(lease).expect("plain fields are JSON").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(generation: u64, counter: u64) -> LeaderLease {
        LeaderLease { generation, host: "h".to_owned(), pid: 1, counter, is_resigned: false }
    }

    #[test]
    fn lease_is_taken_when_its_counter_has_stood_for_10_s() {
        let mut watch = LeaseWatch::default();
        let at_once = |now_ms| now_ms..now_ms;
        assert_eq!(watch.next_generation(None, at_once(0)), Some(1), "there was no leader");
        let mut at =
            |counter, now_ms| watch.next_generation(Some(&lease(4, counter)), at_once(now_ms));
        assert_eq!(at(7, 1_000), None);
        assert_eq!(at(7, 10_999), None);
        assert_eq!(at(8, 11_000), None, "slow, and alive");
        assert_eq!(at(8, 20_999), None);
        assert_eq!(at(8, 21_000), Some(5));
        let mut fresh = LeaseWatch::default();
        let seen = fresh.next_generation(Some(&lease(4, 8)), at_once(90_000));
        assert_eq!(seen, None, "a clock of its own");
        // The leader has stopped to order by then, by its own clock, which began earlier.
        assert!(may_order(1_000, 7_999) && !may_order(1_000, 8_000));
        let resigned = LeaderLease { is_resigned: true, ..lease(4, 9) };
        assert_eq!(fresh.next_generation(Some(&resigned), at_once(90_001)), Some(5));
    }

    #[test]
    fn slow_read_does_not_make_a_lease_older() {
        let mut watch = LeaseWatch::default();
        let mut read = |read_ms| watch.next_generation(Some(&lease(4, 7)), read_ms);
        assert_eq!(read(0..11_000), None);
        assert_eq!(read(13_000..13_100), None, "seen for two seconds");
        assert_eq!(read(20_999..24_000), None, "it may have been renewed since");
        assert_eq!(read(21_000..21_001), Some(5));
    }
}
