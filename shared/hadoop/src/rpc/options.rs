//! Times and limits of calls and connections.

use std::time::Duration;

use tokio::time::Instant;

use super::backoff::Backoff;
use crate::configuration::{Configuration, PropertyError, TimeUnit, ValueProblem};

/// Settings of an [`RpcClient`](super::RpcClient). The defaults are Hadoop's where it has some.
#[derive(Clone, Debug)]
pub struct RpcOptions {
    /// Longest time for resolving, connecting and authenticating (`ipc.client.connect.timeout`). Default 20 s.
    pub connect_timeout: Duration,
    /// Longest wait for one server's answer before another is tried (`ipc.client.rpc-timeout.ms`). A call's own
    /// timeout is the limit over all servers. Default 120 s.
    pub attempt_timeout: Duration,
    /// With calls outstanding and nothing heard for so long, a ping goes out, so that a dead peer shows itself
    /// (`ipc.ping.interval`). Default 60 s.
    pub ping_interval: Duration,
    /// A connection without calls is closed after it (`ipc.client.connection.maxidletime`). Default 10 s.
    pub idle_timeout: Duration,
    /// Longest reply in bytes (`ipc.maximum.response.length`). Default 128 MiB.
    pub response_max: usize,
    /// Longest request in bytes (`ipc.maximum.data.length`, which the server enforces). Default 128 MiB.
    pub request_max: usize,
    /// Pauses between the rounds over all servers.
    pub backoff: Backoff,
    /// A note for the servers' audit logs (`hadoop.caller.context`), at most 128 bytes by default. Default none.
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
            backoff: Backoff::default(),
            caller_context: None,
        }
    }
}

impl RpcOptions {
    /// The options of a configuration, by the keys named at each field. A timeout of 0, which for Hadoop is "for
    /// ever", becomes the default: every wait here ends.
    ///
    /// # Errors
    /// When a value is no time, or a length no positive number.
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
    /// Says who calls (`hadoop.caller.context`), in the servers' audit logs, where the site has switched that on
    /// (`hadoop.caller.context.enabled`). `context` is cut to the bytes that servers keep
    /// (`hadoop.caller.context.max.size`).
    ///
    /// # Errors
    /// When the largest size is no number.
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

/// `from + span`, or ten years later when that is beyond what the clock can tell: a span may be any number that a
/// configuration file holds.
pub(super) fn later(from: Instant, span: Duration) -> Instant {
    const TEN_YEARS: Duration = Duration::from_secs(10 * 365 * 86_400);
    from + span.min(TEN_YEARS)
}

/// What may be done when a call fails in a way that another try could cure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// One try at one server.
    Never,
    /// Try again only when the call was surely not executed: no connection, standby, "try again later".
    IfNotExecuted,
    /// Try again also when the outcome is unknown. Right for calls that Hadoop marks `@Idempotent`, and for
    /// `@AtMostOnce` ones of servers with a retry cache (NameNode): a retry has the same client id and call id.
    Always,
}

/// How one call is made.
#[derive(Clone, Copy, Debug)]
pub struct CallOptions {
    /// Longest time in all: waiting, connecting, all tries. The call is over by then, with a reply or an error.
    pub timeout: Duration,
    /// Longest time for the first try, when other than [`RpcOptions::attempt_timeout`]. Each try that ends by time
    /// doubles the limit of the next.
    pub attempt_timeout: Option<Duration>,
    /// What may be tried again.
    pub retry: Retry,
}

impl CallOptions {
    /// One try.
    pub fn once(timeout: Duration) -> Self {
        Self { timeout, attempt_timeout: None, retry: Retry::Never }
    }

    /// Tries until `timeout`, as long as the call was surely not executed.
    pub fn unless_executed(timeout: Duration) -> Self {
        Self { timeout, attempt_timeout: None, retry: Retry::IfNotExecuted }
    }

    /// Tries until `timeout`, also when the outcome of a try is unknown.
    pub fn idempotent(timeout: Duration) -> Self {
        Self { timeout, attempt_timeout: None, retry: Retry::Always }
    }

    /// The same with another limit for the first try.
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
    fn the_built_in_defaults_are_hadoops() {
        let (of_configuration, own) = (options(&[]).expect("are good"), RpcOptions::default());
        assert_eq!(format!("{of_configuration:?}"), format!("{own:?}"));
    }

    #[test]
    fn no_wait_is_for_ever_and_no_number_too_large() {
        let zero = options(&[("ipc.client.rpc-timeout.ms", "0")]).expect("is good");
        assert_eq!(zero.attempt_timeout, Duration::from_secs(120));
        let huge = options(&[("ipc.ping.interval", "9223372036854775807d")]).expect("is good");
        assert!(later(Instant::now(), huge.ping_interval) > Instant::now());
        assert!(later(Instant::now(), Duration::MAX) > Instant::now());
    }

    #[test]
    fn caller_context_is_sent_where_the_site_wants_it() {
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
    fn lengths_are_positive_and_within_a_frame() {
        for length in ["0", "-1", "2147483648", "x"] {
            options(&[("ipc.maximum.response.length", length)]).expect_err("is no length");
        }
    }
}
