//! Waits before a request or a connection is tried again.

use heddle_backoff::Backoff;

/// A shard replied `Later` or `OutOfOrder`. The first wait is about the time of a step, so that a full staging budget
/// costs little. The last one keeps a waiting trainer below 20 frames a second and part.
pub(super) const RETRY: Backoff = Backoff::new(1, 50);

/// A shard is in another epoch or phase, or has not registered the trainer. That ends with the ApplicationMaster's next command
/// to the trainer, which ends the wait. During a rollback it takes as long as the slowest pserver loads. The tries until
/// then are for a lost command; more would send whole gradients again and again to pservers that load.
pub(super) const NOT_SERVED: Backoff = Backoff::new(5, 2_000);

/// A connection broke or was refused. A restarted pserver listens within milliseconds. One that is gone stays gone until
/// the ApplicationMaster sends another address.
pub(super) const RECONNECT: Backoff = Backoff::new(5, 500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_last() {
        let waits: Vec<_> = (0..8).map(|tries| RETRY.after_ms(tries)).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 50, 50]);
        let whole: u64 = (0..9).map(|tries| NOT_SERVED.after_ms(tries)).sum();
        assert_eq!((whole, NOT_SERVED.after_ms(9)), (2_555, 2_000));
        assert_eq!(RECONNECT.after_ms(u32::MAX), 500);
    }
}
