//! How commands call the ResourceManager: how long they wait for it, and what they print meanwhile.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use heddle_hadoop::identity::Identity;
use heddle_hadoop::{Configuration, HostPort};
use heddle_yarn::{CallTimeouts, Cluster, ClusterError, rpc_options, stated_rm_wait};

use crate::waiting;

/// How long to wait for a ResourceManager that does not respond, without `--rm-wait`, `submit.rm-wait` or a configured value. A failover
/// with ZooKeeper takes 30 to 60 s.
const RM_WAIT: Duration = Duration::from_secs(60);

/// `--rm-wait`, from the command line of this process.
static RM_WAIT_GIVEN: OnceLock<Duration> = OnceLock::new();

/// `submit.rm-wait`, from the job file or the site's defaults.
static RM_WAIT_STATED: OnceLock<Duration> = OnceLock::new();

/// Sets the wait without `--rm-wait` (`submit.rm-wait`). The first call counts.
pub fn state_rm_wait(wait: Duration) {
    let _set_before = RM_WAIT_STATED.set(wait);
}

/// Sets how long this process waits for a ResourceManager that does not respond (`--rm-wait`). The first call counts.
pub fn set_rm_wait(wait: Duration) {
    let _set_before = RM_WAIT_GIVEN.set(wait);
}

/// YARN's addresses and time limits, with the waits of an interactive command.
///
/// `context` names the caller in the ResourceManager's audit log.
///
/// # Errors
/// The configuration does not name a ResourceManager, or a value does not parse.
pub fn cluster_of(
    configuration: &Configuration,
    identity: &Identity,
    context: &str,
) -> Result<Cluster, ClusterError> {
    let wait = match RM_WAIT_GIVEN.get().or(RM_WAIT_STATED.get()) {
        Some(stated) => *stated,
        None => stated_rm_wait(configuration)?.unwrap_or(RM_WAIT),
    };
    let limits = CallTimeouts { call: wait, ..CallTimeouts::of(configuration)? };
    let options = rpc_options(configuration)?.with_caller_context(configuration, context)?;
    let cluster = Cluster::with(configuration, identity.user.clone(), options, limits)?
        .with_identity(configuration, identity)?;
    Ok(cluster.with_slow_call_observer(Arc::new(|servers: &[HostPort], wait: Duration| {
        waiting::report(&slow_call_text(servers, wait));
    })))
}

/// The line that reports a slow call.
fn slow_call_text(servers: &[HostPort], wait: Duration) -> String {
    let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
    format!(
        "waiting for the ResourceManager ({}), at most {} s (--rm-wait)",
        servers.join(", "),
        wait.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_call_is_reported_with_servers_and_limit() {
        let servers = [HostPort::new("rm1", 8032), HostPort::new("rm2", 8032)];
        let line = slow_call_text(&servers, Duration::from_secs(60));
        assert!(line.contains("rm1:8032, rm2:8032"), "{line}");
        assert!(line.contains("60 s"), "{line}");
    }
}
