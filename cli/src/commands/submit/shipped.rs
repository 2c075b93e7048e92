//! The part of the submitter's Hadoop configuration that is shipped to the containers.
//!
//! A core-site.xml holds keys of cloud stores, passwords of key stores and whole tokens, under names that no list of
//! suspicious words covers. So the rule is the other way round: only what a process of a job reads is shipped, as a
//! list of keys and of families of keys. A test compares the list with the keys in the sources of those processes.
//! Tokens and the job's secret travel in the containers' credentials.

use heddle_hadoop::Configuration;
use heddle_hadoop::configuration::PropertyOrigin;

/// Keys that containers read; `*` at the end matches any ending, also an empty one.
const SHIPPED: &[&str] = &[
    // HDFS: where it is (also viewfs, which names other clusters), and how to connect to it.
    "fs.defaultFS",
    "fs.hdfs.impl",
    "fs.viewfs.*",
    "fs.permissions.umask-mode",
    "dfs.nameservices",
    "dfs.internal.nameservices",
    "dfs.federation.*",
    "dfs.ha.*",
    "dfs.namenode.rpc-address*",
    "dfs.namenode.http-address*",
    "dfs.namenode.https-address*",
    "dfs.namenode.kerberos.principal*",
    "dfs.http.policy",
    "dfs.client.*",
    "dfs.client-write-packet-size",
    "dfs.replication",
    "dfs.blocksize",
    "dfs.bytes-per-checksum",
    "dfs.checksum.type",
    "dfs.data.transfer.protection",
    "dfs.encrypt.data.transfer*",
    "dfs.user.home.dir.prefix",
    // Hadoop's RPC and users.
    "ipc.client.*",
    "ipc.maximum.*",
    "ipc.ping.interval",
    "hadoop.rpc.protection",
    "hadoop.caller.context.*",
    "hadoop.kerberos.*",
    "hadoop.security.authentication",
    "hadoop.security.authorization",
    "hadoop.security.auth_to_local*",
    "hadoop.security.dns.*",
    "hadoop.security.sasl.mechanism",
    "hadoop.security.saslproperties.resolver.class",
    "hadoop.security.token.service.use_ip",
    "hadoop.user.group.static.mapping.overrides",
    // The ResourceManager, its proxy, and access to the pages.
    "yarn.resourcemanager.address*",
    "yarn.resourcemanager.admin.address*",
    "yarn.resourcemanager.am.max-attempts",
    "yarn.resourcemanager.cluster-id",
    "yarn.resourcemanager.connect.*",
    "yarn.resourcemanager.ha.enabled",
    "yarn.resourcemanager.ha.rm-ids",
    "yarn.resourcemanager.hostname*",
    "yarn.resourcemanager.principal",
    "yarn.resourcemanager.scheduler.address*",
    "yarn.resourcemanager.webapp.*",
    "yarn.resourcemanager.application-https.policy",
    "yarn.client.*",
    "yarn.http.policy",
    "yarn.web-proxy.address",
    "yarn.acl.enable",
    "yarn.admin.acl",
    "yarn.am.*",
    "yarn.nm.liveness-monitor.*",
    // Logs of containers, as users reach them.
    "yarn.log-aggregation*",
    "yarn.nodemanager.remote-app-log-dir*",
    "yarn.nodemanager.sleep-delay-before-sigkill.ms",
    "yarn.nodemanager.webapp.*",
];

/// Words that no shipped key of a family may have: a family is open, and sites add keys of their own.
const NEVER: &[&str] = &[
    "pass",
    "secret",
    "credential",
    "private.key",
    "access.key",
    "account.key",
    "keystore",
    "truststore",
    "keytab",
];

/// Whether a key is shipped to the containers.
fn is_shipped(key: &str) -> bool {
    let lower = key.to_ascii_lowercase();
    SHIPPED.iter().any(|known| match known.strip_suffix('*') {
        None => key == *known,
        Some(family) => key.starts_with(family) && !NEVER.iter().any(|word| lower.contains(word)),
    })
}

/// The submitter's values that differ from Hadoop's defaults, with variables replaced, as one file. They are final,
/// since the defaults of HDFS and YARN are read after core-site.xml and would replace them.
pub(super) fn core_site(configuration: &Configuration) -> String {
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<configuration>\n");
    for key in configuration.keys().filter(|key| is_shipped(key)) {
        let Some(explained) = configuration.explain(key) else {
            continue;
        };
        let default = matches!(explained.setting.origin, PropertyOrigin::Default(_));
        let Ok(value) = explained.value else { continue };
        if default || value.chars().any(|c| c.is_control() && !c.is_whitespace()) {
            continue;
        }
        let (key, value) = (escaped(key), escaped(&value));
        text.push_str(&format!(
            "  <property><name>{key}</name><value>{value}</value><final>true</final></property>\n"
        ));
    }
    text.push_str("</configuration>\n");
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::path::Path;

    use heddle_hadoop::configuration::Environment;

    use super::*;

    #[test]
    fn defaults_and_unknown_keys_stay_behind() {
        let mut configuration = Configuration::with_defaults(Environment::empty());
        configuration.set("fs.defaultFS", "hdfs://a&b", "test");
        configuration.set("dfs.client.x", "${fs.defaultFS}/x", "test");
        configuration.set("my.dir", "canary", "test");
        let text = core_site(&configuration);
        assert!(text.contains("<name>fs.defaultFS</name><value>hdfs://a&amp;b</value>"), "{text}");
        assert!(text.contains("<value>hdfs://a&amp;b/x</value>"), "{text}");
        assert!(!text.contains("canary"), "{text}");
        assert_eq!(text.matches("<property>").count(), 2, "{text}");
    }

    /// Credentials as sites have them in core-site.xml, by the documentation of each store.
    #[test]
    fn no_credential_of_a_cloud_store_is_shipped() {
        let mut configuration = Configuration::with_defaults(Environment::empty());
        configuration.set("fs.defaultFS", "hdfs://a", "test");
        for key in [
            "fs.azure.account.key.store.blob.core.windows.net",
            "fs.azure.account.key.store.dfs.core.windows.net",
            "fs.azure.account.oauth2.client.secret",
            "fs.azure.sas.container.store.blob.core.windows.net",
            "fs.azure.sas.fixed.token.store.dfs.core.windows.net",
            "fs.adl.oauth2.refresh.token",
            "fs.adl.oauth2.credential",
            "fs.s3a.access.key",
            "fs.s3a.secret.key",
            "fs.s3a.session.token",
            "fs.s3a.encryption.key",
            "fs.s3a.server-side-encryption.key",
            "fs.s3a.bucket.data.secret.key",
            "fs.s3.awsSecretAccessKey",
            "fs.s3n.awsAccessKeyId",
            "fs.gs.auth.service.account.private.key",
            "fs.gs.auth.refresh.token",
            "fs.oss.accessKeySecret",
            "fs.cosn.userinfo.secretKey",
            "fs.obs.secret.key",
            "fs.swift.service.x.password",
            "hadoop.tokens",
            "hadoop.token.files",
            "hadoop.security.credential.provider.path",
            "hadoop.security.credstore.java-keystore-provider.password-file",
            "hadoop.security.group.mapping.ldap.bind.password",
            "hadoop.http.authentication.signature.secret.file",
            "hadoop.zk.auth",
            "ssl.client.keystore.password",
            "ssl.server.keystore.keypassword",
            "ssl.server.keystore.pass",
            "dfs.client.https.keystore.resource",
            "dfs.client.our.password",
            "yarn.resourcemanager.zk-auth",
            "yarn.resourcemanager.webapp.spnego-keytab-file",
            "yarn.client.site.secret",
            "javax.jdo.option.ConnectionPassword",
        ] {
            configuration.set(key, "canary", "test");
        }
        let text = core_site(&configuration);
        assert!(!text.contains("canary"), "{text}");
    }

    #[test]
    fn defaults_that_are_read_later_do_not_replace_what_was_shipped() {
        let dir = tempfile::tempdir().unwrap();
        let mut configuration = Configuration::with_defaults(Environment::empty());
        configuration.set("yarn.resourcemanager.hostname", "rm", "test");
        let path = dir.path().join("core-site.xml");
        std::fs::write(path, core_site(&configuration)).unwrap();
        let conf = dir.path().to_str().unwrap();
        let there = Environment::empty().with_variable("HADOOP_CONF_DIR", conf);
        let there = Configuration::load(there).unwrap();
        let scheduler = there.get("yarn.resourcemanager.scheduler.address");
        assert_eq!(scheduler.unwrap().as_deref(), Some("rm:8030"));
    }

    /// Keys in the sources that containers do not read from the configuration.
    const NOT_READ: &[&str] = &[
        // Names of files and of custom resources.
        "yarn.json",
        "yarn.io",
        // Tokens of the command line's session, which become credentials.
        "hadoop.token.files",
        "hadoop.tokens",
        // A ticket cache is for the command line alone.
        "hadoop.security.kerberos.ticket.cache.path",
    ];

    /// Keys of Hadoop that a line of source names: literals that begin like one.
    fn keys(line: &str) -> impl Iterator<Item = &str> {
        line.split('"').skip(1).step_by(2).filter_map(|literal| {
            let end = literal.find('{').map_or(literal, |at| &literal[..at]);
            let end = end.trim_end_matches('.');
            let is_key = ["fs.", "dfs.", "hadoop.", "ipc.", "yarn.", "net."]
                .iter()
                .any(|start| end.starts_with(start))
                && !end.contains(|c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c)));
            is_key.then_some(end)
        })
    }

    /// Keys of the job file (`[yarn]`), which look alike.
    fn is_of_the_job_file(key: &str) -> bool {
        heddle_protocol::job_spec::file::keys().any(|known| known.path == key)
    }

    fn unshipped(dir: &Path, missing: &mut Vec<String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "tests" {
                unshipped(&path, missing);
            } else if name.ends_with(".rs")
                // Tables of Hadoop's own defaults and old names.
                && !["defaults.rs", "deprecation.rs", "deprecated.rs", "tests.rs"]
                    .contains(&name.as_str())
                && !name.ends_with("_tests.rs")
            {
                let text = std::fs::read_to_string(&path).unwrap();
                let code = text.split("mod tests {").next().unwrap();
                for key in
                    code.lines().filter(|line| !line.trim_start().starts_with("//")).flat_map(keys)
                {
                    // A key of a family may be put together from its beginning.
                    let begins = SHIPPED.iter().any(|known| known.starts_with(key));
                    if !(is_shipped(key)
                        || begins
                        || NOT_READ.contains(&key)
                        || is_of_the_job_file(key))
                    {
                        missing.push(format!("{}: {key}", path.display()));
                    }
                }
            }
        }
    }

    #[test]
    fn keys_that_containers_read_are_shipped() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut missing = Vec::new();
        for source in
            ["shared/hadoop/src", "shared/yarn/src", "shared/storage/src", "am/src", "container"]
        {
            unshipped(&root.join(source), &mut missing);
        }
        assert!(missing.is_empty(), "containers read keys that `SHIPPED` lacks: {missing:#?}");
        assert!(is_shipped("yarn.resourcemanager.scheduler.address.rm2"));
    }
}
