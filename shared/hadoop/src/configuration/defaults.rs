//! Built-in defaults: what `core-default.xml`, `hdfs-default.xml` and `yarn-default.xml` of Hadoop 3.5.0 say about the
//! keys that a client, an ApplicationMaster or a reader of this crate asks for. A test holds them to the real files.
//!
//! The full files have some 2000 keys, nearly all of them for daemons.

/// `core-default.xml`.
pub(super) const CORE: &[(&str, &str)] = &[
    ("fs.defaultFS", "file:///"),
    ("hadoop.tmp.dir", "/tmp/hadoop-${user.name}"),
    ("hadoop.security.authorization", "false"),
    ("hadoop.security.authentication", "simple"),
    ("hadoop.rpc.protection", "authentication"),
    ("hadoop.security.token.service.use_ip", "true"),
    ("hadoop.security.sasl.mechanism", "DIGEST-MD5"),
    ("hadoop.kerberos.min.seconds.before.relogin", "60"),
    ("hadoop.security.auth_to_local.mechanism", "hadoop"),
    ("ipc.client.connection.maxidletime", "10000"),
    ("ipc.client.connect.max.retries", "10"),
    ("ipc.client.connect.retry.interval", "1000"),
    ("ipc.client.connect.timeout", "20000"),
    ("ipc.client.connect.max.retries.on.timeouts", "45"),
    ("ipc.client.connect.max.retries.on.sasl", "5"),
    ("ipc.client.tcpnodelay", "true"),
    ("ipc.client.ping", "true"),
    ("ipc.ping.interval", "60000"),
    ("ipc.client.rpc-timeout.ms", "120000"),
    ("ipc.maximum.data.length", "134217728"),
    ("ipc.maximum.response.length", "134217728"),
    ("ipc.client.fallback-to-simple-auth-allowed", "false"),
    ("hadoop.caller.context.enabled", "false"),
    ("hadoop.caller.context.max.size", "128"),
    ("io.file.buffer.size", "4096"),
    ("fs.permissions.umask-mode", "022"),
    ("fs.trash.interval", "0"),
];

/// `hdfs-default.xml`.
pub(super) const HDFS: &[(&str, &str)] = &[
    ("dfs.replication", "3"),
    ("dfs.blocksize", "134217728"),
    ("dfs.bytes-per-checksum", "512"),
    ("dfs.checksum.type", "CRC32C"),
    ("dfs.permissions.enabled", "true"),
    ("dfs.user.home.dir.prefix", "/user"),
    ("dfs.client.use.datanode.hostname", "false"),
    ("dfs.client.socket-timeout", "60000"),
    ("dfs.client.failover.max.attempts", "15"),
    ("dfs.client.failover.sleep.base.millis", "500"),
    ("dfs.client.failover.sleep.max.millis", "15000"),
    ("dfs.client.failover.random.order", "true"),
    ("dfs.client.failover.resolve-needed", "false"),
    (
        "dfs.client.block.write.replace-datanode-on-failure.enable",
        "true",
    ),
    (
        "dfs.client.block.write.replace-datanode-on-failure.policy",
        "DEFAULT",
    ),
    (
        "dfs.client.block.write.replace-datanode-on-failure.best-effort",
        "false",
    ),
    ("dfs.client.block.write.retries", "3"),
    ("dfs.encrypt.data.transfer", "false"),
    ("dfs.namenode.http-address", "0.0.0.0:9870"),
    ("dfs.namenode.https-address", "0.0.0.0:9871"),
    ("dfs.namenode.kerberos.principal.pattern", "*"),
    ("dfs.namenode.delegation.token.max-lifetime", "604800000"),
    ("dfs.namenode.delegation.token.renew-interval", "86400000"),
    ("dfs.http.policy", "HTTP_ONLY"),
];

/// `yarn-default.xml`.
pub(super) const YARN: &[(&str, &str)] = &[
    ("yarn.resourcemanager.hostname", "0.0.0.0"),
    (
        "yarn.resourcemanager.address",
        "${yarn.resourcemanager.hostname}:8032",
    ),
    (
        "yarn.resourcemanager.scheduler.address",
        "${yarn.resourcemanager.hostname}:8030",
    ),
    (
        "yarn.resourcemanager.webapp.address",
        "${yarn.resourcemanager.hostname}:8088",
    ),
    (
        "yarn.resourcemanager.webapp.https.address",
        "${yarn.resourcemanager.hostname}:8090",
    ),
    (
        "yarn.resourcemanager.resource-tracker.address",
        "${yarn.resourcemanager.hostname}:8031",
    ),
    (
        "yarn.resourcemanager.admin.address",
        "${yarn.resourcemanager.hostname}:8033",
    ),
    ("yarn.http.policy", "HTTP_ONLY"),
    ("yarn.acl.enable", "false"),
    ("yarn.admin.acl", "*"),
    ("yarn.am.liveness-monitor.expiry-interval-ms", "900000"),
    ("yarn.nm.liveness-monitor.expiry-interval-ms", "600000"),
    ("yarn.resourcemanager.connect.max-wait.ms", "900000"),
    ("yarn.resourcemanager.connect.retry-interval.ms", "30000"),
    ("yarn.resourcemanager.am.max-attempts", "2"),
    ("yarn.resourcemanager.ha.enabled", "false"),
    (
        "yarn.client.failover-proxy-provider",
        "org.apache.hadoop.yarn.client.ConfiguredRMFailoverProxyProvider",
    ),
    ("yarn.client.failover-retries", "0"),
    ("yarn.client.failover-retries-on-socket-timeouts", "0"),
    (
        "yarn.client.application-client-protocol.poll-interval-ms",
        "200",
    ),
    (
        "yarn.client.application-client-protocol.poll-timeout-ms",
        "-1",
    ),
    ("yarn.client.nodemanager-connect.max-wait-ms", "180000"),
    ("yarn.client.nodemanager-connect.retry-interval-ms", "10000"),
    ("yarn.client.max-cached-nodemanagers-proxies", "0"),
    ("yarn.scheduler.minimum-allocation-mb", "1024"),
    ("yarn.scheduler.maximum-allocation-mb", "8192"),
    ("yarn.scheduler.minimum-allocation-vcores", "1"),
    ("yarn.scheduler.maximum-allocation-vcores", "4"),
    ("yarn.scheduler.include-port-in-node-name", "false"),
    (
        "yarn.nodemanager.env-whitelist",
        "JAVA_HOME,HADOOP_COMMON_HOME,HADOOP_HDFS_HOME,HADOOP_CONF_DIR,CLASSPATH_PREPEND_DISTCACHE,HADOOP_YARN_HOME,HADOOP_HOME,PATH,LANG,TZ",
    ),
    ("yarn.nodemanager.remote-app-log-dir", "/tmp/logs"),
    ("yarn.nodemanager.remote-app-log-dir-suffix", "logs"),
    ("yarn.nodemanager.sleep-delay-before-sigkill.ms", "250"),
    ("yarn.log-aggregation-enable", "false"),
    ("yarn.node-labels.enabled", "false"),
    ("yarn.timeline-service.enabled", "false"),
    ("yarn.cluster.max-application-priority", "0"),
    ("yarn.app.attempt.diagnostics.limit.kc", "64"),
    ("yarn.resourcemanager.application.max-tags", "10"),
    ("yarn.resourcemanager.application.max-tag.length", "100"),
    (
        "yarn.resourcemanager.delegation-token.max-conf-size-bytes",
        "12800",
    ),
    (
        "yarn.resourcemanager.delegation.token.max-lifetime",
        "604800000",
    ),
    (
        "yarn.resourcemanager.delegation.token.renew-interval",
        "86400000",
    ),
    ("yarn.fail-fast", "false"),
];
