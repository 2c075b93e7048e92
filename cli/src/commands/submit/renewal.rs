//! The configuration with which the ResourceManager renews the tokens of a submission.
//!
//! The ResourceManager finds the name services of its own configuration. Where a job has a token of another one, the
//! submission carries the keys of all its name services: the ResourceManager then renews the tokens of HDFS by these alone. Other
//! submissions carry none.

use std::collections::BTreeSet;

use heddle_hadoop::Configuration;
use heddle_hadoop::configuration::{DefaultFileSystem, PropertyError};
use heddle_hadoop::token::{Credentials, renewal_configuration, token_kind};

/// Prefix of the service of a token whose file system has a name.
const NAMED: &str = "ha-hdfs:";
/// What a client of any NameNode reads.
const COMMON: [&str; 5] = [
    "dfs.nameservices",
    "dfs.namenode.kerberos.principal",
    "dfs.namenode.kerberos.principal.pattern",
    "hadoop.rpc.protection",
    "hadoop.security.authentication",
];

/// The encoded configuration; `None` where no token is of another name service than that of `fs.defaultFS`.
///
/// # Errors
/// A value does not resolve.
pub fn configuration_for(
    configuration: &Configuration,
    tokens: &Credentials,
) -> Result<Option<Vec<u8>>, PropertyError> {
    let services = tokens.of_kind(token_kind::HDFS_DELEGATION);
    let names: BTreeSet<String> = services
        .filter_map(|token| token.service().strip_prefix(NAMED))
        .map(str::to_owned)
        .collect();
    let own = match DefaultFileSystem::of(configuration) {
        Ok(DefaultFileSystem::Hdfs(authority)) => authority,
        _ => String::new(),
    };
    if names.iter().all(|name| *name == own) {
        return Ok(None);
    }
    let is_of_a_name = |key: &str| {
        names.iter().any(|name| {
            key == format!("dfs.ha.namenodes.{name}")
                || key == format!("dfs.client.failover.proxy.provider.{name}")
                || key.starts_with(&format!("dfs.namenode.rpc-address.{name}."))
        })
    };
    let keys = configuration.keys().filter(|key| COMMON.contains(key) || is_of_a_name(key));
    renewal_configuration(configuration, keys).map(Some)
}

#[cfg(test)]
mod tests {
    use heddle_hadoop::Token;
    use heddle_hadoop::configuration::Environment;

    use super::*;

    #[test]
    fn only_a_foreign_name_service_needs_a_configuration() {
        let mut configuration = Configuration::empty(Environment::empty());
        for (key, value) in [
            ("fs.defaultFS", "hdfs://near"),
            ("dfs.nameservices", "near,far,third"),
            ("dfs.ha.namenodes.far", "a,b"),
            ("dfs.namenode.rpc-address.far.a", "h:8020"),
            ("dfs.namenode.rpc-address.third.a", "t:8020"),
            ("dfs.replication", "3"),
        ] {
            configuration.set(key, value, "test");
        }
        let encoded = |services: &[&str]| {
            let mut tokens = Credentials::new();
            for service in services {
                tokens.add(Token::new(*b"i", *b"p", token_kind::HDFS_DELEGATION, *service));
            }
            configuration_for(&configuration, &tokens).expect("it resolves")
        };
        assert_eq!(encoded(&["ha-hdfs:near", "10.0.0.1:8020"]), None);
        let expected =
            ["dfs.ha.namenodes.far", "dfs.namenode.rpc-address.far.a", "dfs.nameservices"];
        let expected = renewal_configuration(&configuration, expected).expect("it resolves");
        assert_eq!(encoded(&["ha-hdfs:near", "ha-hdfs:far"]), Some(expected));
    }
}
