//! The last check before a publication: whether this attempt certainly leads.
//!
//! The core orders a commit only while the ResourceManager answers. Between that order and the rename this process may
//! be suspended (a stopped virtual machine, a store that hangs) for longer than a successor needs to start. So the store
//! checks the lease again immediately before. A heartbeat counts from when it was *sent*: an answer that waited while
//! this process was suspended proves nothing about the present.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long this attempt certainly leads. Clones share one lease. The default never expires: a local run has no
/// ResourceManager.
#[derive(Clone, Debug, Default)]
pub struct Lease(Option<LeaseState>);

#[derive(Clone, Debug)]
struct LeaseState {
    lasts: Duration,
    /// When the last answered heartbeat was sent.
    asked: Arc<Mutex<Instant>>,
}

impl Lease {
    /// A lease of this duration, counted from now and from each answered heartbeat.
    #[must_use]
    pub fn new(lasts: Duration) -> Self {
        Self(Some(LeaseState { lasts, asked: Arc::new(Mutex::new(Instant::now())) }))
    }

    /// A heartbeat that was sent at `asked` was answered.
    pub fn renew(&self, asked: Instant) {
        if let Some(held) = &self.0 {
            let mut last = held.asked.lock().unwrap_or_else(PoisonError::into_inner);
            *last = asked.max(*last);
        }
    }

    /// Checks that the lease holds at `now`.
    ///
    /// # Errors
    /// The lease has expired; the text has the time since the last answered heartbeat.
    pub fn check(&self, now: Instant) -> Result<(), String> {
        let Some(held) = &self.0 else {
            return Ok(());
        };
        let asked = *held.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let silent = now.saturating_duration_since(asked);
        if silent <= held.lasts {
            return Ok(());
        }
        Err(format!(
            "the ResourceManager has not answered for {} s, so another attempt may lead",
            silent.as_secs()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LASTS: Duration = Duration::from_secs(10);

    #[test]
    fn answer_counts_from_when_its_heartbeat_was_sent() {
        let lease = Lease::new(LASTS);
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        lease.renew(after(5));
        assert_eq!(lease.check(after(15)), Ok(()));
        assert!(lease.check(after(16)).is_err());
        // However late the answer arrives.
        let handle = lease.clone();
        handle.renew(after(7));
        assert_eq!(lease.check(after(17)), Ok(()));
        let error = lease.check(after(40)).expect_err("over");
        assert!(error.contains("33 s"), "{error}");
        lease.renew(after(6));
        assert_eq!(lease.check(after(17)), Ok(()), "the later one counts");
    }

    #[test]
    fn lease_of_a_local_run_never_expires() {
        let day = Duration::from_secs(86_400);
        assert_eq!(Lease::default().check(Instant::now() + day), Ok(()));
    }
}
