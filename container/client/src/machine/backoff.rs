//! How long to wait before asking again.

/// Waits that double from `first_ms` up to `last_ms`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    first_ms: u64,
    last_ms: u64,
}

/// A shard said "later" or "not ready". The first wait is about the time a step takes, so that a full
/// staging budget costs little; the last keeps a waiting trainer below 20 frames a second and part.
pub(crate) const RETRY: Backoff = Backoff { first_ms: 1, last_ms: 50 };

/// A shard is in another epoch or phase, or does not know the trainer. That ends with the ApplicationMaster's next word to
/// the trainer, which makes the wait due at once; during a rollback it takes as long as the slowest pserver loads. Some
/// tries until then are for a word that was lost; more would send whole gradients again and again to pservers that load.
pub(crate) const NOT_SERVED: Backoff = Backoff { first_ms: 5, last_ms: 2_000 };

/// A connection broke or was refused. A restarted pserver listens within milliseconds, one that is gone
/// stays gone until the ApplicationMaster names another place.
pub(crate) const RECONNECT: Backoff = Backoff { first_ms: 5, last_ms: 500 };

impl Backoff {
    /// The wait after `tries` failures before this one.
    pub(crate) fn wait_ms(self, tries: u32) -> u64 {
        self.first_ms.checked_shl(tries.min(32)).map_or(self.last_ms, |ms| ms.min(self.last_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_last() {
        let waits: Vec<_> = (0..8).map(|tries| RETRY.wait_ms(tries)).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 50, 50]);
        let whole: u64 = (0..9).map(|tries| NOT_SERVED.wait_ms(tries)).sum();
        assert_eq!((whole, NOT_SERVED.wait_ms(9)), (2_555, 2_000));
        assert_eq!(RECONNECT.wait_ms(u32::MAX), 500);
    }
}
