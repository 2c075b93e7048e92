//! How long to wait before asking again.

/// Waits that double from `first_ms` up to `last_ms`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    first_ms: u64,
    last_ms: u64,
}

/// A shard said "later" or "not ready". The first wait is about the time a step takes, so that a full
/// staging budget costs little; the last keeps a waiting trainer below 20 frames a second and part.
pub(crate) const RETRY: Backoff = Backoff {
    first_ms: 1,
    last_ms: 50,
};

/// A connection broke or was refused. A restarted pserver listens within milliseconds, one that is gone
/// stays gone until the ApplicationMaster names another place.
pub(crate) const RECONNECT: Backoff = Backoff {
    first_ms: 5,
    last_ms: 500,
};

impl Backoff {
    /// The wait after `tries` failures before this one.
    pub(crate) fn wait_ms(self, tries: u32) -> u64 {
        self.first_ms
            .checked_shl(tries.min(32))
            .map_or(self.last_ms, |ms| ms.min(self.last_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_last() {
        let waits: Vec<_> = (0..8).map(|tries| RETRY.wait_ms(tries)).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 50, 50]);
        assert_eq!(RECONNECT.wait_ms(u32::MAX), 500);
    }
}
