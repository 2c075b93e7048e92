//! The sections of the job file about processes and connections: tables of their keys.

use std::path::PathBuf;

use super::file::paths;
use super::file::section::section;
use super::limits::VCORES_MAX;
use super::location::Location;
use super::options::{ELASTICITIES, Elasticity, NETWORK_PROTECTIONS, NetworkProtection};
use super::value::{Bytes, DurationMs, PortRange};

section! {
    (take, key)
    pub struct AmSpec = ["am"] "The ApplicationMaster, which runs the job." {
        /// Its memory.
        key memory: Bytes = "am.memory",
            Value("\"256MiB\""), OnResume + site, read(take.memory(key));
        /// Its vcores.
        key vcores: u32 = "am.vcores", Value("1"), OnResume + site, range(1, VCORES_MAX);
    }
}

section! {
    (take, key)
    pub struct NetworkSpec = ["network"] "Connections between processes of the job." {
        /// Ports that processes may listen on, such as "7000-7100". Empty: any free one.
        key ports: Option<PortRange> = "network.ports",
            Value("\"\""), Freely + site, read(take.optional(key, ""));
        /// Encryption of connections between processes of the job: "on", "off", or "auto" (on where
        /// hadoop.rpc.protection of the cluster does not contain authentication; off on this
        /// machine).
        #[serde(default, skip_serializing_if = "super::table::is_default")]
        key protection: NetworkProtection = "network.protection",
            Value("\"auto\""), Freely + site, read(take.choice(key, NETWORK_PROTECTIONS, &[]));
    }
}

section! {
    (take, key)
    pub struct LivenessSpec = ["liveness"]
        "How soon a process that hangs or is cut off is replaced." {
        /// Interval of the heartbeats of pservers and trainers: 100ms to 10s, or "auto" (1s; from
        /// 2,000 containers on containers / 2,000 s).
        #[note = "`None` is `auto`."]
        key beat: Option<DurationMs> = "liveness.beat",
            Value("\"auto\""), Freely + site, read(take.optional(key, "auto"));
        /// Silence after which a process is suspected and probed, and an outage is reported; at
        /// least 3 heartbeats are waited for.
        key suspect: DurationMs = "liveness.suspect",
            Value("\"3s\""), Freely + site, read(take.parse(key));
        /// Silence after which a process is given up and replaced: at least 5 heartbeats, above
        /// liveness.suspect, at most half of run.orphan-timeout. With an automatic heartbeat at
        /// least 8 of them are waited for. Raise it where nodes stand still for longer.
        key dead: DurationMs = "liveness.dead",
            Value("\"10s\""), Freely + site, read(take.parse(key));
        /// A trainer that has work, waits for no other process and completes no step for this time
        /// is replaced; at least liveness.dead.
        key stuck: DurationMs = "liveness.stuck",
            Value("\"10min\""), Freely + site, read(take.parse(key));
        /// A backup of a shard that acknowledges nothing for this time is left out of the copies
        /// for which updates wait, and is filled again: 100ms to liveness.dead (pservers.replicas).
        key lag: DurationMs = "liveness.lag", Value("\"2s\""), Freely + site, read(take.parse(key));
    }
}

section! {
    (take, key)
    #[derive(Default)]
    pub struct RunSpec = ["run"] "Runs on this machine, and tests of a cluster." {
        /// Folder of run directories (logs, sockets, small state). Empty: heddle in the XDG state
        /// directory.
        key work_dir: Option<PathBuf> = "run.work-dir",
            Value("\"\""), Freely + site, read(paths::local_path(take, key));
        /// A process without a message from an ApplicationMaster for this time stops: a duration,
        /// or "auto" (120s).
        #[note = "`None` is `auto`."]
        key orphan_timeout: Option<DurationMs> = "run.orphan-timeout",
            Value("\"auto\""), Freely + site, read(take.optional(key, "auto"));
        /// Whether the job takes the faults that heddle chaos orders, with the job's secret. For
        /// tests of a cluster.
        #[serde(default, skip_serializing_if = "super::table::is_default")]
        key chaos: bool = "run.chaos", Value("false"), Freely, read(take.boolean(key));
        /// "controller": the cluster's controller (heddle controller) sets the numbers of trainers
        /// and pservers between min and max, which begin with trainers.min and pservers.count; the
        /// cluster's administrator sets controller.dir. "off": they stay as in this file, until an
        /// operator changes them. A run on this machine ignores the key.
        #[serde(default, skip_serializing_if = "super::table::is_default")]
        key elastic: Elasticity = "run.elastic",
            Value("\"off\""), Freely + site, read(take.choice(key, ELASTICITIES, &[]));
    }
}

section! {
    (take, key)
    #[derive(Default)]
    pub struct ControllerSpec = ["controller"] "The controller of a cluster's elastic jobs." {
        /// Folder on HDFS of the controller and the jobs that take part, which the administrator
        /// makes (docs/elastic.md). Empty: the cluster is without a controller.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key dir: Option<Location> = "controller.dir",
            Value("\"\""), Freely + site, read(paths::optional(take, key));
    }
}

impl RunSpec {
    /// The orphan timeout in force; `auto` is 120 s where no attempt keeps containers of another.
    #[must_use]
    pub fn orphan_timeout(&self) -> DurationMs {
        self.orphan_timeout.unwrap_or(DurationMs::secs(120))
    }
}
