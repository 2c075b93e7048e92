//! When an ApplicationMaster with a keytab fetches tokens: at the start, and then at three quarters of each interval in
//! which they are valid without being renewed. A fetch that fails is repeated with backoff, without end.
//!
//! The share is that of Spark (`spark.security.credentials.renewalRatio`). The rest of the interval is the time in which a
//! Key Distribution Center may be away.

use heddle_backoff::Backoff;

/// Numerator and denominator of the share of an interval after which others are fetched.
const SHARE: (u64, u64) = (3, 4);
/// Waits between failed fetches, before the first tokens.
const RETRY: Backoff = Backoff::new(1_000, 60_000);
/// Longest wait between failed fetches, as a share of the interval: a quarter of the time that is left for them. With short
/// intervals a fetch must not be late because those before it failed.
const RETRY_SHARE: u64 = 16;
/// Least wait after a fetch: a server with a false clock must not be asked without a pause.
const LEAST_MS: u64 = 5_000;

/// The schedule of fetches.
#[derive(Clone, Debug)]
pub struct TokenRefresh {
    retry: Backoff,
}

impl Default for TokenRefresh {
    fn default() -> Self {
        Self { retry: RETRY }
    }
}

impl TokenRefresh {
    /// All tokens were fetched; the first of them is valid for this long. Returns the wait before the next fetch, ms.
    pub fn fetched(&mut self, valid_ms: u64) -> u64 {
        let longest_ms = (valid_ms / RETRY_SHARE).clamp(LEAST_MS, RETRY.max_ms());
        self.retry = Backoff::new(RETRY.min_ms(), longest_ms);
        (valid_ms / SHARE.1).saturating_mul(SHARE.0).max(LEAST_MS)
    }

    /// A fetch failed. Returns the wait before the next one, ms.
    pub fn failed(&mut self) -> u64 {
        self.retry.next_ms()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fetches_follow_at_three_quarters_and_failures_back_off() {
        let mut refresh = TokenRefresh::default();
        assert_eq!(refresh.fetched(60_000), 45_000);
        assert_eq!([refresh.failed(), refresh.failed(), refresh.failed()], [1_000, 2_000, 4_000]);
        assert_eq!((0..20).map(|_| refresh.failed()).max(), Some(5_000));
        assert_eq!(refresh.fetched(86_400_000), 64_800_000);
        assert_eq!(refresh.failed(), 1_000);
        assert_eq!((0..20).map(|_| refresh.failed()).max(), Some(60_000));
        assert_eq!(refresh.fetched(0), 5_000);
    }
}
