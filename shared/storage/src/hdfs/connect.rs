//! Clients from Hadoop's configuration: hdfs-native for files, `heddle-hadoop` for the calls that it lacks.

use std::net::ToSocketAddrs;
use std::time::Duration;

use hdfs_native::{Client, ClientBuilder};
use heddle_hadoop::configuration::{Configuration, NameService, PropertyError, check_hdfs_class};
use heddle_hadoop::sasl::SecurityPolicy;
use heddle_hadoop::token::Credentials;
use heddle_hadoop::{HostPort, User};

use super::calls::Calls;
use super::error::read_error;
use crate::error::{Op, Reason, StorageError, chain};

/// The configuration of new files; the server's defaults where it has no value.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NewFiles {
    pub(super) replication: Option<u32>,
    pub(super) block_size: Option<u64>,
    /// Bits cleared in the modes of new files if the job sets none.
    pub(super) umask: u32,
}

impl NewFiles {
    pub(super) fn of(configuration: &Configuration) -> Self {
        let number = |key: &str| {
            configuration.size(key, 0).ok().and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0)
        };
        Self {
            replication: number("dfs.replication").and_then(|n| u32::try_from(n).ok()),
            block_size: number("dfs.blocksize"),
            umask: configuration
                .get("fs.permissions.umask-mode")
                .ok()
                .flatten()
                .and_then(|text| umask_of(&text))
                .unwrap_or(UMASK_DEFAULT),
        }
    }
}

/// `fs.permissions.umask-mode` of core-default.xml.
const UMASK_DEFAULT: u32 = 0o022;

/// The umask of a text: octal digits, or the allowed bits per class, `u=rwx,g=rx,o=` (org.apache.hadoop.fs
/// `permission.UmaskParser`).
fn umask_of(text: &str) -> Option<u32> {
    let text = text.trim();
    if let Ok(umask) = u32::from_str_radix(text, 8) {
        return Some(umask & 0o777);
    }
    let mut allowed = 0;
    for clause in text.split(',') {
        let (classes, bits) = clause.split_once('=')?;
        let mut mode = 0;
        for bit in bits.chars() {
            mode |= match bit {
                'r' => 4,
                'w' => 2,
                'x' => 1,
                _ => return None,
            };
        }
        for class in classes.chars() {
            allowed |= match class {
                'u' => mode << 6,
                'g' => mode << 3,
                'o' => mode,
                'a' => mode << 6 | mode << 3 | mode,
                _ => return None,
            };
        }
    }
    Some(0o777 & !allowed)
}

/// The smallest block that a NameNode allows by default (`dfs.namenode.fs-limits.min-block-size`).
const BLOCK_MIN: u64 = 1 << 20;

impl NewFiles {
    /// The block size for a file of this length: one block, of whole MiB, unless the configured one is smaller.
    pub(super) fn block_size_for(&self, bytes: u64) -> Option<u64> {
        match self.block_size {
            Some(configured) if bytes < configured && configured > BLOCK_MIN => {
                Some(bytes.max(1).next_multiple_of(BLOCK_MIN).min(configured))
            }
            other => other,
        }
    }
}

/// The file system of a URL's authority: the authority itself, or `fs.defaultFS` if it is empty.
///
/// # Errors
/// `Unsupported` if there is none; `Other` if its NameNodes cannot be determined.
pub(super) fn service_of(
    authority: &str,
    configuration: &Configuration,
) -> Result<NameService, StorageError> {
    let failed = |reason| StorageError::new(Op::Open, format!("hdfs://{authority}/"), reason);
    if let Err(error) = check_hdfs_class(configuration) {
        return Err(failed(Reason::Unsupported(error.to_string())));
    }
    let service = if authority.is_empty() {
        let default = configuration.trimmed("fs.defaultFS").ok().flatten().unwrap_or_default();
        if !default.starts_with("hdfs://") {
            let what =
                "fs.defaultFS names no HDFS; write hdfs://host:port/… or set HADOOP_CONF_DIR";
            return Err(failed(Reason::Unsupported(what.to_owned())));
        }
        NameService::of_default(configuration)
    } else {
        NameService::of(configuration, &format!("hdfs://{authority}"))
    };
    service.map_err(|error| failed(Reason::Other).because(chain(&error)))
}

/// The URL of a file system, for hdfs-native and for messages. hdfs-native does not accept a logical name with one
/// NameNode.
pub(super) fn url_of(service: &NameService) -> String {
    match (&service.logical, service.servers.as_slice()) {
        (Some(_), [only]) => format!("hdfs://{only}"),
        (Some(logical), _) => format!("hdfs://{logical}"),
        (None, servers) => {
            let server = servers.first().map(HostPort::to_string);
            format!("hdfs://{}", server.unwrap_or_default())
        }
    }
}

/// The client for files.
///
/// # Errors
/// `Denied` if the cluster is secured and the token file cannot be read; errors of hdfs-native.
pub(super) fn files_client(
    url: &str,
    configuration: &Configuration,
    calls: &Calls,
) -> Result<Client, StorageError> {
    let failed = |reason| StorageError::new(Op::Open, url, reason);
    let secured = is_secured(configuration).map_err(|e| failed(Reason::Other).because(e))?;
    let builder = ClientBuilder::new()
        .with_url(url)
        // A directory that does not exist: the whole configuration is passed as values.
        .with_config_dir("/dev/null")
        .with_config(normalised(configuration))
        .with_io_runtime(calls.runtime.clone());
    let builder = if secured {
        // hdfs-native ignores an unreadable token file, and panics at a truncated one. The user is the token's owner.
        Credentials::of_environment(configuration)
            .map_err(|error| failed(Reason::Denied).because(error))?;
        builder
    } else {
        let user = User::resolve(configuration.environment(), secured)
            .map_err(|error| failed(Reason::Denied).because(error))?;
        builder.with_user(user.short_name())
    };
    // Looks up accounts and, for some configurations, names. It rejects some configurations by a panic.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.build()))
        .map_err(|_| failed(Reason::Other).because("the HDFS client panicked"))?
        .map_err(|error| read_error(Op::Open, url, &error))
}

/// Keys whose values are comma lists.
const LISTS: [&str; 2] = ["dfs.ha.namenodes.", "dfs.nameservices"];
/// Keys whose values are addresses of NameNodes, and the port of an address without one.
const NAMENODE_ADDRESSES: &str = "dfs.namenode.rpc-address";
const NAMENODE_PORT: u16 = 8020;

/// The configuration as hdfs-native reads it: it does not trim values or elements of a list, compares `simple` in lower
/// case, and uses an address verbatim. Hadoop's own page about high availability writes `nn1,nn2, nn3`.
///
/// A key whose value cannot be resolved is left out: hdfs-native could not use it either.
fn normalised(configuration: &Configuration) -> Vec<(String, String)> {
    let value = |key: &str| -> Option<String> {
        if LISTS.iter().any(|list| key.starts_with(list)) {
            return Some(configuration.list(key).ok()?.join(","));
        }
        if key.starts_with(NAMENODE_ADDRESSES)
            && let Ok(Some(address)) = configuration.address(key, Some(NAMENODE_PORT))
        {
            return Some(address.to_string());
        }
        let value = configuration.trimmed(key).ok()??;
        match key {
            "hadoop.security.authentication" => Some(value.to_ascii_lowercase()),
            _ => Some(value),
        }
    };
    configuration.keys().filter_map(|key| Some((key.to_owned(), value(key)?))).collect()
}

/// Whether connections must be authenticated.
pub(super) fn is_secured(configuration: &Configuration) -> Result<bool, PropertyError> {
    SecurityPolicy::of(configuration).map(|policy| policy.required)
}

/// Limit for the connection to a NameNode's port if a user waits for the result.
const PORT: Duration = Duration::from_secs(5);

/// Connects to the ports of all NameNodes; returns the error of each if none accepts. Blocks.
pub(super) fn ports(service: &NameService) -> Result<(), String> {
    let mut wrong = Vec::new();
    for server in &service.servers {
        let addresses = match server.to_string().to_socket_addrs() {
            Ok(addresses) => addresses,
            Err(error) => {
                wrong.push(format!("{server}: {error}"));
                continue;
            }
        };
        for address in addresses {
            match std::net::TcpStream::connect_timeout(&address, PORT) {
                Ok(_) => return Ok(()),
                Err(error) => wrong.push(format!("{server}: {error}")),
            }
        }
    }
    Err(wrong.join("; "))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use heddle_hadoop::configuration::Environment;

    #[test]
    fn umasks_are_octal_or_symbolic() {
        assert_eq!(umask_of("022"), Some(0o022));
        assert_eq!(umask_of("u=rwx,g=rx,o="), Some(0o027));
        assert_eq!(umask_of("a=r"), Some(0o333));
        assert_eq!(umask_of("rwx"), None);
        let new = |pairs: &[(&str, &str)]| NewFiles::of(&configuration(pairs)).umask;
        assert_eq!(new(&[]), 0o022);
        assert_eq!(new(&[("fs.permissions.umask-mode", "077")]), 0o077);
    }

    pub(in crate::hdfs) fn configuration(pairs: &[(&str, &str)]) -> Configuration {
        let environment = Environment::empty().with_variable("HADOOP_USER_NAME", "alice");
        let mut configuration = Configuration::empty(environment);
        for (key, value) in pairs {
            configuration.set(key, *value, "test");
        }
        configuration
    }

    fn url(authority: &str, configuration: &Configuration) -> String {
        url_of(&service_of(authority, configuration).expect("a file system"))
    }

    #[test]
    fn the_namenode_is_found_by_url_default_or_name_service() {
        let plain = configuration(&[("fs.defaultFS", "hdfs://nn.example:9000/")]);
        assert_eq!(url("", &plain), "hdfs://nn.example:9000");
        assert_eq!(url("other", &plain), "hdfs://other:8020");
        assert_eq!(url("other:1234", &plain), "hdfs://other:1234");
        let service = configuration(&[
            ("fs.defaultFS", "hdfs://ns1"),
            ("dfs.ha.namenodes.ns1", "a,b"),
            ("dfs.namenode.rpc-address.ns1.a", "one:8020"),
            ("dfs.namenode.rpc-address.ns1.b", "two:8020"),
        ]);
        assert_eq!(url("", &service), "hdfs://ns1");
        let solo = configuration(&[
            ("fs.defaultFS", "hdfs://solo"),
            ("dfs.nameservices", "solo"),
            ("dfs.namenode.rpc-address.solo", "three:9000"),
        ]);
        assert_eq!(url("", &solo), "hdfs://three:9000");
    }

    /// The example of Hadoop's page "HDFS High Availability", with the blanks and the line breaks of real files.
    #[test]
    fn values_for_hdfs_native_are_trimmed() {
        let page = configuration(&[
            ("dfs.nameservices", " mycluster "),
            ("dfs.ha.namenodes.mycluster", "nn1,nn2, nn3"),
            ("dfs.namenode.rpc-address.mycluster.nn1", "\n  machine1.example.com:8020\n"),
            ("dfs.namenode.rpc-address.mycluster.nn3", "machine3.example.com"),
            ("hadoop.security.authentication", " Simple"),
            ("dfs.client.failover.max.attempts", " 3 "),
            ("fs.s3a.empty", "  "),
        ]);
        let all: std::collections::BTreeMap<_, _> = normalised(&page).into_iter().collect();
        for (key, value) in [
            ("dfs.nameservices", Some("mycluster")),
            ("dfs.ha.namenodes.mycluster", Some("nn1,nn2,nn3")),
            ("dfs.namenode.rpc-address.mycluster.nn1", Some("machine1.example.com:8020")),
            ("dfs.namenode.rpc-address.mycluster.nn3", Some("machine3.example.com:8020")),
            ("hadoop.security.authentication", Some("simple")),
            ("dfs.client.failover.max.attempts", Some("3")),
            ("fs.s3a.empty", None),
        ] {
            assert_eq!(all.get(key).map(String::as_str), value, "{key}");
        }
    }

    #[test]
    fn without_a_default_the_next_step_is_named() {
        for other in [configuration(&[]), configuration(&[("fs.defaultFS", "file:///")])] {
            let error = service_of("", &other).expect_err("none");
            let Reason::Unsupported(what) = error.reason else {
                panic!("refused otherwise: {error}")
            };
            assert!(what.contains("HADOOP_CONF_DIR"), "{what}");
        }
    }

    /// hdfs-native would dial the authority of the URL, and Hadoop's clients another one.
    #[test]
    fn mount_tables_for_hdfs_urls_are_refused() {
        let class = "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme";
        let error = service_of("ns1", &configuration(&[("fs.hdfs.impl", class)]));
        let Reason::Unsupported(what) = error.expect_err("refused").reason else {
            panic!("refused otherwise")
        };
        assert!(what.contains(class), "{what}");
    }

    #[test]
    fn a_small_file_sets_no_more_aside_than_it_needs() {
        const MIB: u64 = 1 << 20;
        let of = |block_size, bytes| {
            let files = NewFiles { block_size, replication: None, umask: 0 };
            files.block_size_for(bytes)
        };
        assert_eq!(of(Some(128 * MIB), 46), Some(MIB));
        assert_eq!(of(Some(128 * MIB), MIB + 1), Some(2 * MIB));
        assert_eq!(of(Some(128 * MIB), 500 * MIB), Some(128 * MIB));
        assert_eq!(of(Some(4096), 46), Some(4096));
        assert_eq!(of(None, 46), None);
    }

    #[test]
    fn a_name_service_without_addresses_is_an_error() {
        let half = configuration(&[("dfs.ha.namenodes.ns1", "a,b")]);
        let error = service_of("ns1", &half).expect_err("no addresses");
        let text = chain(&error);
        assert!(text.contains("dfs.namenode.rpc-address.ns1.a"), "{text}");
    }
}
