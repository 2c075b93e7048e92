//! Addresses of ResourceManagers and NameNodes, single servers and groups for high availability (HA).
//!
//! Source: `YarnConfiguration.getSocketAddr`, `HAUtil`, `RMHAUtils`, `DFSUtilClient.getAddresses`.

use super::{Configuration, PropertyError};
use crate::address::HostPort;

/// A port of the ResourceManager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RmService {
    /// Applications and clients, 8032.
    Client,
    /// ApplicationMasters, 8030.
    Scheduler,
    /// Administration, 8033.
    Admin,
    /// Web pages and REST over HTTP, 8088.
    Web,
    /// Web pages and REST over TLS, 8090.
    SecureWeb,
}

impl RmService {
    /// Key of the address.
    pub fn key(self) -> &'static str {
        match self {
            Self::Client => "yarn.resourcemanager.address",
            Self::Scheduler => "yarn.resourcemanager.scheduler.address",
            Self::Admin => "yarn.resourcemanager.admin.address",
            Self::Web => "yarn.resourcemanager.webapp.address",
            Self::SecureWeb => "yarn.resourcemanager.webapp.https.address",
        }
    }

    /// Port of an address without a port.
    pub fn default_port(self) -> u16 {
        match self {
            Self::Client => 8032,
            Self::Scheduler => 8030,
            Self::Admin => 8033,
            Self::Web => 8088,
            Self::SecureWeb => 8090,
        }
    }
}

/// The NameNodes behind one file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameService {
    /// The logical name, if the file system has one (high availability, federation).
    pub logical: Option<String>,
    /// The RPC addresses, in the order of the configuration.
    pub servers: Vec<HostPort>,
}

/// Why a configuration does not name the servers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServersError {
    /// A value does not parse.
    #[error(transparent)]
    Value(#[from] PropertyError),
    /// High availability is on and the list of ids is empty.
    #[error("{ids} must list at least one id because {enabled} is true")]
    NoIds {
        /// The key that enables it.
        enabled: &'static str,
        /// The key with the list.
        ids: &'static str,
    },
    /// A member of a group has no address.
    #[error("{key} is not set")]
    NoAddress {
        /// The key of the address.
        key: String,
    },
    /// The URI is not one of HDFS.
    #[error("a file system must be an hdfs:// URI with a host (got \"{0}\")")]
    NotHdfs(String),
}

/// Port of a NameNode whose address has none.
const NAMENODE_PORT: u16 = 8020;

impl RmService {
    /// Addresses of the ResourceManagers for this service: one, or the HA group in the order of their ids.
    ///
    /// # Errors
    /// An address is malformed, or a member of the group has none.
    pub fn addresses(self, configuration: &Configuration) -> Result<Vec<HostPort>, ServersError> {
        let (key, port) = (self.key(), self.default_port());
        if !configuration.boolean("yarn.resourcemanager.ha.enabled", false)? {
            let address = configuration.address(key, Some(port))?;
            return Ok(vec![
                address.ok_or_else(|| ServersError::NoAddress { key: key.to_owned() })?,
            ]);
        }
        let ids = configuration.list("yarn.resourcemanager.ha.rm-ids")?;
        if ids.is_empty() {
            let (enabled, ids) =
                ("yarn.resourcemanager.ha.enabled", "yarn.resourcemanager.ha.rm-ids");
            return Err(ServersError::NoIds { enabled, ids });
        }
        let mut servers = Vec::with_capacity(ids.len());
        for id in ids {
            let own_key = format!("{key}.{id}");
            let address = match configuration.address(&own_key, Some(port))? {
                Some(address) => address,
                None => {
                    let host =
                        configuration.trimmed(&format!("yarn.resourcemanager.hostname.{id}"))?;
                    let host = host.ok_or(ServersError::NoAddress { key: own_key })?;
                    HostPort::new(host, port)
                }
            };
            servers.push(address);
        }
        Ok(servers)
    }
}

impl NameService {
    /// The NameNodes of a file system: `hdfs://host[:port][/…]` or `hdfs://logical-name[/…]`.
    ///
    /// # Errors
    /// The URI is not one of HDFS, an address is malformed, or a member of the group has none.
    pub fn of(configuration: &Configuration, uri: &str) -> Result<Self, ServersError> {
        let not_hdfs = || ServersError::NotHdfs(uri.to_owned());
        let authority = uri.strip_prefix("hdfs://").ok_or_else(not_hdfs)?;
        let authority = authority.split('/').next().unwrap_or_default();
        // A URI may have user@host. HDFS ignores the user.
        let authority = authority.rsplit('@').next().unwrap_or_default();
        if authority.is_empty() {
            return Err(not_hdfs());
        }
        let ids = configuration.list(&format!("dfs.ha.namenodes.{authority}"))?;
        let is_logical = !ids.is_empty()
            || configuration.list("dfs.nameservices")?.iter().any(|name| name == authority);
        if !is_logical {
            let server = HostPort::parse(authority, Some(NAMENODE_PORT)).map_err(|_| not_hdfs())?;
            return Ok(Self { logical: None, servers: vec![server] });
        }
        let keys: Vec<String> = if ids.is_empty() {
            vec![format!("dfs.namenode.rpc-address.{authority}")]
        } else {
            ids.iter().map(|id| format!("dfs.namenode.rpc-address.{authority}.{id}")).collect()
        };
        let mut servers = Vec::with_capacity(keys.len());
        for key in keys {
            servers.push(
                configuration
                    .address(&key, Some(NAMENODE_PORT))?
                    .ok_or(ServersError::NoAddress { key })?,
            );
        }
        Ok(Self { logical: Some(authority.to_owned()), servers })
    }

    /// The NameNodes of `fs.defaultFS`.
    ///
    /// # Errors
    /// See [`NameService::of`]; a default file system other than HDFS is [`ServersError::NotHdfs`].
    pub fn of_default(configuration: &Configuration) -> Result<Self, ServersError> {
        Self::of(configuration, &configuration.trimmed("fs.defaultFS")?.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Environment;
    use super::*;

    fn configuration(pairs: &[(&str, &str)]) -> Configuration {
        let mut configuration = Configuration::with_defaults(Environment::empty());
        for (key, value) in pairs {
            configuration.set(key, *value, "test");
        }
        configuration
    }

    fn shown(servers: &[HostPort]) -> Vec<String> {
        servers.iter().map(HostPort::to_string).collect()
    }

    #[test]
    fn a_single_resource_manager_has_its_host_name() {
        let configuration = configuration(&[("yarn.resourcemanager.hostname", "rm.example.com")]);
        let client = RmService::Client.addresses(&configuration).expect("is set");
        assert_eq!(shown(&client), ["rm.example.com:8032"]);
        let scheduler = RmService::Scheduler.addresses(&configuration).expect("is set");
        assert_eq!(shown(&scheduler), ["rm.example.com:8030"]);
    }

    #[test]
    fn each_rm_of_a_group_has_an_address_or_host_name() {
        let configuration = configuration(&[
            ("yarn.resourcemanager.ha.enabled", "true"),
            ("yarn.resourcemanager.ha.rm-ids", "rm1, rm2"),
            ("yarn.resourcemanager.hostname.rm1", "a"),
            ("yarn.resourcemanager.address.rm2", "b:9"),
            ("yarn.resourcemanager.scheduler.address.rm2", "b"),
        ]);
        assert_eq!(
            shown(&RmService::Client.addresses(&configuration).expect("set")),
            ["a:8032", "b:9"]
        );
        assert_eq!(
            shown(&RmService::Scheduler.addresses(&configuration).expect("set")),
            ["a:8030", "b:8030"]
        );
        let missing = RmService::Admin.addresses(&configuration);
        assert_eq!(
            missing,
            Err(ServersError::NoAddress { key: "yarn.resourcemanager.admin.address.rm2".into() })
        );
    }

    #[test]
    fn high_availability_without_ids_is_an_error() {
        let configuration = configuration(&[("yarn.resourcemanager.ha.enabled", "true")]);
        assert!(matches!(
            RmService::Client.addresses(&configuration),
            Err(ServersError::NoIds { .. })
        ));
    }

    #[test]
    fn name_services_are_logical_or_hosts() {
        let configuration = configuration(&[
            ("fs.defaultFS", "hdfs://prod"),
            ("dfs.nameservices", "prod,solo"),
            ("dfs.ha.namenodes.prod", "nn1,nn2"),
            ("dfs.namenode.rpc-address.prod.nn1", "a:8020"),
            ("dfs.namenode.rpc-address.prod.nn2", "b"),
            ("dfs.namenode.rpc-address.solo", "c:1"),
        ]);
        let default = NameService::of_default(&configuration).expect("set");
        assert_eq!(
            (default.logical.as_deref(), shown(&default.servers)),
            (Some("prod"), vec!["a:8020".into(), "b:8020".into()])
        );
        let solo = NameService::of(&configuration, "hdfs://solo/path").expect("set");
        assert_eq!(
            (solo.logical.as_deref(), shown(&solo.servers)),
            (Some("solo"), vec!["c:1".into()])
        );
        let host = NameService::of(&configuration, "hdfs://nn.example.com:9000/x").expect("a host");
        assert_eq!(
            (host.logical, shown(&host.servers)),
            (None, vec!["nn.example.com:9000".into()])
        );
        for uri in ["file:///", "hdfs://", "hdfs:///x", "s3://b"] {
            assert!(
                matches!(NameService::of(&configuration, uri), Err(ServersError::NotHdfs(_))),
                "{uri}"
            );
        }
    }
}
