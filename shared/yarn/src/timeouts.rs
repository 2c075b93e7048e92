//! Timeouts of calls to servers of YARN.
//!
//! Java's clients wait 30 s between two tries and 15 min in all (`yarn.resourcemanager.connect.*`), and 3 min for a
//! NodeManager. An ApplicationMaster that expires after 10 min needs shorter timeouts, so the built-in defaults are not
//! Hadoop's. Values in the files of a site take precedence.

use std::time::Duration;

use heddle_backoff::Backoff;
use heddle_hadoop::configuration::{Configuration, PropertyError, TimeUnit};
use heddle_hadoop::rpc::RpcOptions;

/// Longest pause between two rounds over the ResourceManagers, even if a site sets more: an ApplicationMaster whose last
/// heartbeat is older than this commits nothing.
const PAUSE_MAX_MS: u64 = 10_000;
/// Stands for a timeout without a limit.
const UNLIMITED: Duration = Duration::from_secs(7 * 86_400);

/// Timeouts of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallTimeouts {
    /// Timeout of the first try at one server. The next try goes to the other ResourceManager, and each try that times out
    /// doubles the timeout. Default 5 s (`ipc.client.rpc-timeout.ms`, if a file sets it).
    pub attempt: Duration,
    /// Timeout of a call with all its tries. Default 20 s, in which a ResourceManager restarts; the caller handles longer
    /// outages.
    pub call: Duration,
    /// Timeout of a call to a NodeManager with all its tries. Default 10 s (`yarn.client.nodemanager-connect.max-wait-ms`,
    /// if a file sets it). Java waits 3 min for a dead node.
    pub node_call: Duration,
}

impl Default for CallTimeouts {
    fn default() -> Self {
        Self {
            attempt: Duration::from_secs(5),
            call: Duration::from_secs(20),
            node_call: Duration::from_secs(10),
        }
    }
}

impl CallTimeouts {
    /// The timeouts of a configuration, by the key of each field.
    ///
    /// # Errors
    /// A value is not a time.
    pub fn of(configuration: &Configuration) -> Result<Self, PropertyError> {
        let default = Self::default();
        Ok(Self {
            attempt: stated(configuration, "ipc.client.rpc-timeout.ms")?.unwrap_or(default.attempt),
            call: default.call,
            node_call: stated(configuration, "yarn.client.nodemanager-connect.max-wait-ms")?
                .unwrap_or(default.node_call),
        })
    }
}

/// How long a client waits for a ResourceManager that does not answer, if a file sets it
/// (`yarn.resourcemanager.connect.max-wait.ms`).
///
/// # Errors
/// The value is not a time.
pub fn stated_rm_wait(configuration: &Configuration) -> Result<Option<Duration>, PropertyError> {
    stated(configuration, "yarn.resourcemanager.connect.max-wait.ms")
}

/// Options of connections to servers of YARN: those of Hadoop's RPC, with the pauses that a file sets for the failover
/// between ResourceManagers (`yarn.client.failover-sleep-base-ms`, `yarn.client.failover-sleep-max-ms`, else
/// both from `yarn.resourcemanager.connect.retry-interval.ms`), at most 10 s.
///
/// # Errors
/// A value is not a time, or a length is not a positive integer.
pub fn rpc_options(configuration: &Configuration) -> Result<RpcOptions, PropertyError> {
    let options = RpcOptions::of(configuration)?;
    let ms = |time: Option<Duration>| {
        time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    };
    let interval = ms(stated(configuration, "yarn.resourcemanager.connect.retry-interval.ms")?);
    let first = ms(stated(configuration, "yarn.client.failover-sleep-base-ms")?)
        .or(interval.map(|interval| interval.min(options.backoff.min_ms())))
        .unwrap_or(options.backoff.min_ms())
        .min(PAUSE_MAX_MS);
    let max = ms(stated(configuration, "yarn.client.failover-sleep-max-ms")?)
        .or(interval)
        .unwrap_or(options.backoff.max_ms())
        .clamp(first, PAUSE_MAX_MS);
    Ok(RpcOptions { backoff: Backoff::new(first, max), ..options })
}

/// A time in milliseconds that a file sets. 0 and negative values mean no limit.
fn stated(configuration: &Configuration, key: &str) -> Result<Option<Duration>, PropertyError> {
    if !configuration.is_stated(key) {
        return Ok(None);
    }
    let is_unlimited = configuration.trimmed(key)?.is_some_and(|value| value.starts_with('-'));
    if is_unlimited {
        return Ok(Some(UNLIMITED));
    }
    let time = configuration.duration(key, TimeUnit::Millis, UNLIMITED)?;
    Ok(Some(if time.is_zero() { UNLIMITED } else { time.min(UNLIMITED) }))
}

#[cfg(test)]
mod tests {
    use heddle_hadoop::configuration::Environment;

    use super::*;

    fn configuration(pairs: &[(&str, &str)]) -> Configuration {
        let mut configuration = Configuration::with_defaults(Environment::empty());
        for (key, value) in pairs {
            configuration.set(key, *value, "test");
        }
        configuration
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn hadoops_default_timeouts_are_ignored() {
        let defaults = configuration(&[]);
        assert_eq!(CallTimeouts::of(&defaults), Ok(CallTimeouts::default()));
        assert_eq!(stated_rm_wait(&defaults), Ok(None));
        let options = rpc_options(&defaults).expect("the defaults read");
        assert_eq!(options.backoff, RpcOptions::default().backoff);
    }

    #[test]
    fn timeouts_of_a_site_are_used() {
        let site = configuration(&[
            ("ipc.client.rpc-timeout.ms", "30000"),
            ("ipc.client.connect.timeout", "7s"),
            ("ipc.maximum.response.length", "268435456"),
            ("yarn.client.nodemanager-connect.max-wait-ms", "15000"),
            ("yarn.resourcemanager.connect.max-wait.ms", "-1"),
            ("yarn.client.failover-sleep-base-ms", "500"),
            ("yarn.client.failover-sleep-max-ms", "60000"),
        ]);
        let timeouts = CallTimeouts::of(&site).expect("reads");
        assert_eq!((timeouts.attempt, timeouts.call), (ms(30_000), ms(20_000)));
        assert_eq!(timeouts.node_call, ms(15_000));
        assert_eq!(stated_rm_wait(&site), Ok(Some(UNLIMITED)));
        let options = rpc_options(&site).expect("reads");
        assert_eq!(options.connect_timeout, ms(7_000));
        assert_eq!(options.response_max, 256 << 20);
        assert_eq!(options.backoff, Backoff::new(500, PAUSE_MAX_MS));
    }

    #[test]
    fn the_retry_interval_sets_both_pauses() {
        let backoff = |interval: &str| {
            let key = "yarn.resourcemanager.connect.retry-interval.ms";
            let options = rpc_options(&configuration(&[(key, interval)])).expect("reads");
            options.backoff
        };
        assert_eq!(backoff("100"), Backoff::new(100, 100));
        assert_eq!(backoff("30000"), Backoff::new(200, PAUSE_MAX_MS));
    }

    #[test]
    fn a_malformed_timeout_is_an_error() {
        let site = configuration(&[("yarn.client.failover-sleep-base-ms", "soon")]);
        rpc_options(&site).expect_err("is not a time");
    }
}
