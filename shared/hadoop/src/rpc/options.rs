//! Timeouts, limits and retry modes of calls and connections.

use std::time::Duration;

use heddle_backoff::Backoff;
use tokio::time::Instant;

use crate::configuration::{Configuration, PropertyError, TimeUnit, ValueProblem};

/// Settings of an [`RpcClient`](super::RpcClient). The defaults are Hadoop's, where Hadoop has one.
#[derive(Clone, Debug)]
pub struct RpcOptions {
    /// Timeout of resolving, connecting and authenticating (`ipc.client.connect.timeout`). Default 20 s.
    pub connect_timeout: Duration,
    /// Timeout of one try at one server (`ipc.client.rpc-timeout.ms`). The timeout of a call covers all its tries.
    /// Default 120 s.
    pub attempt_timeout: Duration,
    /// A connection with outstanding calls and without received bytes for this time sends a ping, which fails if the
    /// peer is dead (`ipc.ping.interval`). Default 60 s.
    pub ping_interval: Duration,
    /// A connection without calls closes after this time (`ipc.client.connection.maxidletime`). Default 10 s.
    pub idle_timeout: Duration,
    /// Longest reply in bytes (`ipc.maximum.response.length`). Default 128 MiB.
    pub response_max: usize,
    /// Longest request in bytes (`ipc.maximum.data.length`, which the server enforces). Default 128 MiB.
    pub request_max: usize,
    /// Pauses between the rounds over all servers, with jitter. Default 200 ms to 2 s: an ApplicationMaster reconnects
    /// well within its expiry, and a server receives one call per client in 2 s.
    pub backoff: Backoff,
    /// Caller context for the servers' audit logs (`hadoop.caller.context`), at most 128 bytes by default. Default none.
    pub caller_context: Option<String>,
}

impl Default for RpcOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(20),
            attempt_timeout: Duration::from_secs(120),
            ping_interval: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(10),
            response_max: 128 << 20,
            request_max: 128 << 20,
            backoff: Backoff::new(200, 2_000),
            caller_context: None,
        }
    }
}

impl RpcOptions {
    /// The options of a configuration, by the key of each field. A timeout of 0, which means no limit in Hadoop, becomes
    /// the default, because every wait has a limit here.
    ///
    /// # Errors
    /// A value is not a time, or a length is not a positive integer.
    pub fn of(configuration: &Configuration) -> Result<Self, PropertyError> {
        let default = Self::default();
        let time = |key, default| {
            let value = configuration.duration(key, TimeUnit::Millis, default)?;
            Ok::<_, PropertyError>(if value.is_zero() { default } else { value })
        };
        let length = |key, default: usize| {
            let value = configuration.integer(key, i64::try_from(default).unwrap_or(i64::MAX))?;
            let is_usable = (1..=i64::from(i32::MAX)).contains(&value);
            let value = usize::try_from(value).ok().filter(|_| is_usable);
            value.ok_or_else(|| configuration.value_error(key, ValueProblem::Number))
        };
        Ok(Self {
            connect_timeout: time("ipc.client.connect.timeout", default.connect_timeout)?,
            attempt_timeout: time("ipc.client.rpc-timeout.ms", default.attempt_timeout)?,
            ping_interval: time("ipc.ping.interval", default.ping_interval)?,
            idle_timeout: time("ipc.client.connection.maxidletime", default.idle_timeout)?,
            response_max: length("ipc.maximum.response.length", default.response_max)?,
            request_max: length("ipc.maximum.data.length", default.request_max)?,
            backoff: default.backoff,
            caller_context: None,
        })
    }
}

impl RpcOptions {
    /// Sets the caller context (`hadoop.caller.context`) if the site enables it (`hadoop.caller.context.enabled`).
    /// `context` is cut to the length that servers keep (`hadoop.caller.context.max.size`).
    ///
    /// # Errors
    /// The maximum length is not an integer.
    pub fn with_caller_context(
        self,
        configuration: &Configuration,
        context: &str,
    ) -> Result<Self, PropertyError> {
        if !configuration.boolean("hadoop.caller.context.enabled", false)? {
            return Ok(self);
        }
        let max = configuration.integer("hadoop.caller.context.max.size", 128)?;
        let max = usize::try_from(max).unwrap_or(0).min(context.len());
        let end = (0..=max).rev().find(|end| context.is_char_boundary(*end));
        let context = &context[..end.unwrap_or(0)];
        Ok(Self { caller_context: (!context.is_empty()).then(|| context.to_owned()), ..self })
    }
}

/// `from + span`, with at most ten years added: a configuration file may have a span that the clock cannot represent.
pub(super) fn later(from: Instant, span: Duration) -> Instant {
    const TEN_YEARS: Duration = Duration::from_secs(10 * 365 * 86_400);
    from + span.min(TEN_YEARS)
}

/// Which failures of a call permit another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// One try at one server.
    Never,
    /// Try again only if the call was certainly not executed: no connection, standby, `RetriableException`.
    IfNotExecuted,
    /// Try again also if the outcome is unknown. For calls that Hadoop marks `@Idempotent`, and for `@AtMostOnce` calls
    /// of servers with a retry cache (NameNode): a retry has the same client id and call id.
    Always,
}

/// Timeouts and retry mode of one call.
#[derive(Clone, Copy, Debug)]
pub struct CallOptions {
    /// Timeout of the whole call: waiting, connecting, all tries.
    pub timeout: Duration,
    /// Timeout of the first try, if not [`RpcOptions::attempt_timeout`]. Each try that times out doubles the timeout of
    /// the next one.
    pub attempt_timeout: Option<Duration>,
    /// Which failures permit another try.
    pub retry: Retry,
}

impl CallOptions {
    /// A call with one try.
    pub fn once(timeout: Duration) -> Self {
        Self { timeout, attempt_timeout: None, retry: Retry::Never }
    }

    /// A call that is tried until `timeout`, while it was certainly not executed.
    pub fn unless_executed(timeout: Duration) -> Self {
        Self { timeout, attempt_timeout: None, retry: Retry::IfNotExecuted }
    }

    /// A call that is tried until `timeout`, also if the outcome of a try is unknown.
    pub fn idempotent(timeout: Duration) -> Self {
        Self { timeout, attempt_timeout: None, retry: Retry::Always }
    }

    /// Sets the timeout of the first try.
    pub fn with_attempt_timeout(self, limit: Duration) -> Self {
        Self { attempt_timeout: Some(limit), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::Environment;

    fn options(pairs: &[(&str, &str)]) -> Result<RpcOptions, PropertyError> {
        let mut configuration = Configuration::with_defaults(Environment::empty());
        for (key, value) in pairs {
            configuration.set(key, *value, "test");
        }
        RpcOptions::of(&configuration)
    }

    #[test]
    fn the_defaults_equal_hadoops() {
        let (of_configuration, own) = (options(&[]).expect("are good"), RpcOptions::default());
        assert_eq!(format!("{of_configuration:?}"), format!("{own:?}"));
    }

    #[test]
    fn zero_and_huge_timeouts_are_bounded() {
        let zero = options(&[("ipc.client.rpc-timeout.ms", "0")]).expect("is good");
        assert_eq!(zero.attempt_timeout, Duration::from_secs(120));
        let huge = options(&[("ipc.ping.interval", "9223372036854775807d")]).expect("is good");
        assert!(later(Instant::now(), huge.ping_interval) > Instant::now());
        assert!(later(Instant::now(), Duration::MAX) > Instant::now());
    }

    #[test]
    fn caller_context_is_set_if_the_site_enables_it() {
        let context = |pairs: &[(&str, &str)]| {
            let mut configuration = Configuration::with_defaults(Environment::empty());
            for (key, value) in pairs {
                configuration.set(key, *value, "test");
            }
            let options = RpcOptions::default();
            let options = options.with_caller_context(&configuration, "heddle_application_1_1");
            options.expect("is good").caller_context
        };
        let on = ("hadoop.caller.context.enabled", "true");
        assert_eq!(context(&[]), None);
        assert_eq!(context(&[on]).as_deref(), Some("heddle_application_1_1"));
        let short = ("hadoop.caller.context.max.size", "6");
        assert_eq!(context(&[on, short]).as_deref(), Some("heddle"));
    }

    #[test]
    fn a_length_outside_a_frame_is_rejected() {
        for length in ["0", "-1", "2147483648", "x"] {
            options(&[("ipc.maximum.response.length", length)]).expect_err("is not a length");
        }
    }
}
