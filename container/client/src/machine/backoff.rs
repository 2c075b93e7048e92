//! Waits before a request or a connection is tried again.

/// Waits that double from `first_ms` up to `last_ms`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    first_ms: u64,
    last_ms: u64,
}

/// A shard replied `Later` or `OutOfOrder`. The first wait is about the time of a step, so that a full staging budget
/// costs little. The last one keeps a waiting trainer below 20 frames a second and part.
pub(super) const RETRY: Backoff = Backoff { first_ms: 1, last_ms: 50 };

/// A shard is in another epoch or phase, or does not know the trainer. That ends with the ApplicationMaster's next command
/// to the trainer, which ends the wait. During a rollback it takes as long as the slowest pserver loads. The tries until
/// then are for a lost command; more would send whole gradients again and again to pservers that load.
pub(super) const NOT_SERVED: Backoff = Backoff { first_ms: 5, last_ms: 2_000 };

/// A connection broke or was refused. A restarted pserver listens within milliseconds. One that is gone stays gone until
/// the ApplicationMaster sends another address.
pub(super) const RECONNECT: Backoff = Backoff { first_ms: 5, last_ms: 500 };

impl Backoff {
    /// The wait after `tries` earlier failures.
    pub(super) fn wait_ms(self, tries: u32) -> u64 {
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
