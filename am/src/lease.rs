//! The last gate before something is published: whether this attempt surely leads.
//!
//! The core orders a commit only while the ResourceManager has answered lately. Between that and the rename this process
//! may stand still (a stopped virtual machine, a store that hangs) for longer than a whole successor takes, so the store
//! looks again right before. An answer counts from when its question was *sent*: one that lay waiting while this
//! process stood still says nothing about now.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long this attempt surely leads. Clones are handles of the same one; the default never ends: a run on one machine
/// has no cluster to lose touch with.
#[derive(Clone, Debug, Default)]
pub struct Lease(Option<LeaseState>);

#[derive(Clone, Debug)]
struct LeaseState {
    lasts: Duration,
    /// When the last question was sent that was answered.
    asked: Arc<Mutex<Instant>>,
}

impl Lease {
    /// One that lasts so long from each question that is answered, and from now.
    #[must_use]
    pub fn new(lasts: Duration) -> Self {
        Self(Some(LeaseState { lasts, asked: Arc::new(Mutex::new(Instant::now())) }))
    }

    /// A question that was sent at `asked` was answered.
    pub fn renew(&self, asked: Instant) {
        if let Some(held) = &self.0 {
            let mut last = held.asked.lock().unwrap_or_else(PoisonError::into_inner);
            *last = asked.max(*last);
        }
    }

    /// Whether it holds at `now`.
    ///
    /// # Errors
    /// It does not; the text says since when.
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
    fn an_answer_counts_from_when_its_question_was_sent() {
        let lease = Lease::new(LASTS);
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        lease.renew(after(5));
        assert_eq!(lease.check(after(15)), Ok(()));
        assert!(lease.check(after(16)).is_err());
        // However late it is heard.
        let handle = lease.clone();
        handle.renew(after(7));
        assert_eq!(lease.check(after(17)), Ok(()));
        let error = lease.check(after(40)).expect_err("over");
        assert!(error.contains("33 s"), "{error}");
        lease.renew(after(6));
        assert_eq!(lease.check(after(17)), Ok(()), "the later one counts");
    }

    #[test]
    fn without_a_cluster_it_never_ends() {
        let day = Duration::from_secs(86_400);
        assert_eq!(Lease::default().check(Instant::now() + day), Ok(()));
    }
}
