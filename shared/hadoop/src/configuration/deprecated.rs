//! Deprecated names of keys that Hadoop 3 still accepts, and their present names.
//!
//! The list is the output of `Configuration.dumpDeprecatedKeys` with the HDFS and YARN classes loaded (3.5.0). A test
//! compares it with that output.

/// Pairs of old and new name, sorted by the old one.
const DEPRECATED: &[(&str, &str)] = &[
    ("dfs.access.time.precision", "dfs.namenode.accesstime.precision"),
    ("dfs.backup.address", "dfs.namenode.backup.address"),
    ("dfs.backup.http.address", "dfs.namenode.backup.http-address"),
    ("dfs.balance.bandwidthPerSec", "dfs.datanode.balance.bandwidthPerSec"),
    ("dfs.block.size", "dfs.blocksize"),
    ("dfs.data.dir", "dfs.datanode.data.dir"),
    ("dfs.datanode.max.xcievers", "dfs.datanode.max.transfer.threads"),
    ("dfs.df.interval", "fs.df.interval"),
    ("dfs.encryption.key.provider.uri", "hadoop.security.key.provider.path"),
    ("dfs.federation.nameservice.id", "dfs.nameservice.id"),
    ("dfs.federation.nameservices", "dfs.nameservices"),
    ("dfs.http.address", "dfs.namenode.http-address"),
    ("dfs.https.address", "dfs.namenode.https-address"),
    ("dfs.https.client.keystore.resource", "dfs.client.https.keystore.resource"),
    ("dfs.https.need.client.auth", "dfs.client.https.need-auth"),
    ("dfs.max-repl-streams", "dfs.namenode.replication.max-streams"),
    ("dfs.max.objects", "dfs.namenode.max.objects"),
    ("dfs.name.dir", "dfs.namenode.name.dir"),
    ("dfs.name.dir.restore", "dfs.namenode.name.dir.restore"),
    ("dfs.name.edits.dir", "dfs.namenode.edits.dir"),
    ("dfs.namenode.replication.considerLoad", "dfs.namenode.redundancy.considerLoad"),
    ("dfs.namenode.replication.considerLoad.factor", "dfs.namenode.redundancy.considerLoad.factor"),
    ("dfs.namenode.replication.interval", "dfs.namenode.redundancy.interval.seconds"),
    (
        "dfs.namenode.replication.pending.timeout-sec",
        "dfs.namenode.reconstruction.pending.timeout-sec",
    ),
    ("dfs.nfs.exports.allowed.hosts", "nfs.exports.allowed.hosts"),
    ("dfs.permissions", "dfs.permissions.enabled"),
    ("dfs.permissions.supergroup", "dfs.permissions.superusergroup"),
    ("dfs.read.prefetch.size", "dfs.client.read.prefetch.size"),
    ("dfs.replication.considerLoad", "dfs.namenode.redundancy.considerLoad"),
    ("dfs.replication.interval", "dfs.namenode.redundancy.interval.seconds"),
    ("dfs.replication.min", "dfs.namenode.replication.min"),
    ("dfs.replication.pending.timeout.sec", "dfs.namenode.reconstruction.pending.timeout-sec"),
    ("dfs.safemode.extension", "dfs.namenode.safemode.extension"),
    ("dfs.safemode.threshold.pct", "dfs.namenode.safemode.threshold-pct"),
    ("dfs.secondary.http.address", "dfs.namenode.secondary.http-address"),
    ("dfs.socket.timeout", "dfs.client.socket-timeout"),
    ("dfs.umaskmode", "fs.permissions.umask-mode"),
    ("dfs.write.packet.size", "dfs.client-write-packet-size"),
    ("fs.checkpoint.dir", "dfs.namenode.checkpoint.dir"),
    ("fs.checkpoint.edits.dir", "dfs.namenode.checkpoint.edits.dir"),
    ("fs.checkpoint.period", "dfs.namenode.checkpoint.period"),
    ("fs.default.name", "fs.defaultFS"),
    ("hadoop.configured.node.mapping", "net.topology.configured.node.mapping"),
    ("hadoop.http.rmwebapp.scheduler.page.class", "yarn.http.rmwebapp.scheduler.page.class"),
    ("heartbeat.recheck.interval", "dfs.namenode.heartbeat.recheck-interval"),
    ("io.bytes.per.checksum", "dfs.bytes-per-checksum"),
    ("session.id", "dfs.metrics.session-id"),
    ("slave.host.name", "dfs.datanode.hostname"),
    ("topology.node.switch.mapping.impl", "net.topology.node.switch.mapping.impl"),
    ("topology.script.file.name", "net.topology.script.file.name"),
    ("topology.script.number.args", "net.topology.script.number.args"),
    ("yarn.client.max-nodemanagers-proxies", "yarn.client.max-cached-nodemanagers-proxies"),
    ("yarn.resourcemanager.display.per-user-apps", "yarn.webapp.filter-entity-list-by-user"),
    (
        "yarn.resourcemanager.system-metrics-publisher.enabled",
        "yarn.system-metrics-publisher.enabled",
    ),
    ("yarn.resourcemanager.zk-acl", "hadoop.zk.acl"),
    ("yarn.resourcemanager.zk-auth", "hadoop.zk.auth"),
    ("yarn.resourcemanager.zk-num-retries", "hadoop.zk.num-retries"),
    ("yarn.resourcemanager.zk-retry-interval-ms", "hadoop.zk.retry-interval-ms"),
    ("yarn.resourcemanager.zk-timeout-ms", "hadoop.zk.timeout-ms"),
];

/// The key's present name.
pub(super) fn present_name(key: &str) -> &str {
    match DEPRECATED.binary_search_by_key(&key, |(old, _)| old) {
        Ok(index) => DEPRECATED[index].1,
        Err(_) => key,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_names_are_sorted_for_binary_search() {
        assert!(DEPRECATED.is_sorted_by_key(|(old, _)| old));
        assert_eq!(present_name("fs.default.name"), "fs.defaultFS");
        assert_eq!(present_name("fs.defaultFS"), "fs.defaultFS");
    }

    #[test]
    fn the_list_equals_hadoops() {
        let golden = include_str!("../../tests/golden/configuration/deprecated.tsv");
        let ours: Vec<String> =
            DEPRECATED.iter().map(|(old, new)| format!("{old}\t{new}")).collect();
        assert_eq!(ours, golden.lines().collect::<Vec<_>>());
    }
}
