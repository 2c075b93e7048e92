//! The names of a service in the service fields of tokens.
//!
//! A service field has one of three forms: `ip:port` (the default), `host:port`
//! (`hadoop.security.token.service.use_ip` = false), or a logical name such as `ha-hdfs:prod`. Tokens for ResourceManagers
//! in HA have the addresses of all members, separated by commas. An AMRM token has none and is found by its kind.
//! Source: `SecurityUtil.buildTokenService`, `HAUtilClient.buildTokenServiceForLogicalUri`, `AMRMTokenSelector`.

use std::net::SocketAddr;

use crate::address::HostPort;

/// All names that a token for one service may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceNames {
    /// The most specific name first: logical names, then addresses by host, then by IP.
    names: Vec<String>,
}

impl ServiceNames {
    /// No names; only [`Credentials::of_kind`](super::Credentials::of_kind) finds a token for it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the logical name of an HDFS name service, `prod` for `hdfs://prod`.
    #[must_use]
    pub fn with_name_service(mut self, logical: &str) -> Self {
        self.names.insert(0, format!("ha-hdfs:{logical}"));
        self
    }

    /// Adds an address as configured.
    #[must_use]
    pub fn with_host(mut self, address: &HostPort) -> Self {
        self.names.push(address.to_string());
        self
    }

    /// Adds an address as resolved.
    #[must_use]
    pub fn with_ip(mut self, address: SocketAddr) -> Self {
        self.names.push(address.to_string());
        self
    }

    /// The service that Java writes into a token for these servers (`SecurityUtil.buildTokenService`,
    /// `ClientRMProxy.getRMDelegationTokenService`): the resolved address, or the configured one if `uses_ip` is false
    /// (`hadoop.security.token.service.use_ip`); all members of an HA group, separated by commas.
    pub async fn token_service(servers: &[HostPort], uses_ip: bool) -> String {
        let mut names = Vec::new();
        for server in servers {
            let resolved = match uses_ip {
                true => tokio::net::lookup_host((server.host(), server.port()))
                    .await
                    .ok()
                    .and_then(|mut found| found.next()),
                false => None,
            };
            names.push(resolved.map_or_else(|| server.to_string(), |ip| ip.to_string()));
        }
        names.join(",")
    }

    /// Adds each server as configured and as resolved. A host that does not resolve is added as configured only.
    #[must_use]
    pub async fn with_servers(mut self, servers: &[HostPort]) -> Self {
        for server in servers {
            self = self.with_host(server);
            if let Ok(resolved) = tokio::net::lookup_host((server.host(), server.port())).await {
                for address in resolved {
                    self = self.with_ip(address);
                }
            }
        }
        self
    }

    /// The names.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether a token's service field has one of the names.
    pub fn matches(&self, service: &str) -> bool {
        self.rank(service).is_some()
    }

    /// Position of the best name that the service field has; lower is better.
    pub(super) fn rank(&self, service: &str) -> Option<usize> {
        let parts = || service.split(',').map(str::trim).filter(|part| !part.is_empty());
        self.names.iter().position(|name| parts().any(|part| part.eq_ignore_ascii_case(name)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Credentials, Token};
    use super::*;

    fn credentials(services: &[&str]) -> Credentials {
        let mut credentials = Credentials::new();
        for service in services {
            credentials.add(Token::new(service.as_bytes(), *b"p", "K", *service));
        }
        credentials
    }

    fn names() -> ServiceNames {
        ServiceNames::new()
            .with_host(&HostPort::new("NN1.example.com", 8020))
            .with_ip("10.0.0.1:8020".parse().expect("an address"))
            .with_name_service("prod")
    }

    fn found(services: &[&str]) -> Option<String> {
        Some(credentials(services).for_service("K", &names())?.service().to_owned())
    }

    #[test]
    fn a_token_is_found_in_each_of_the_three_forms() {
        for service in ["ha-hdfs:prod", "nn1.example.com:8020", "10.0.0.1:8020"] {
            assert_eq!(found(&["other:1", service]).as_deref(), Some(service));
        }
    }

    #[test]
    fn the_most_specific_name_wins() {
        assert_eq!(found(&["10.0.0.1:8020", "ha-hdfs:prod"]).as_deref(), Some("ha-hdfs:prod"));
    }

    #[test]
    fn a_joined_service_matches_any_member() {
        assert_eq!(
            found(&["10.0.0.9:8020,10.0.0.1:8020"]).as_deref(),
            Some("10.0.0.9:8020,10.0.0.1:8020")
        );
    }

    #[test]
    fn another_port_another_kind_or_no_service_is_not_found() {
        assert_eq!(found(&["10.0.0.1:8021", "10.0.0.1", "", "ha-hdfs:production"]), None);
        assert_eq!(credentials(&["10.0.0.1:8020"]).for_service("L", &names()), None);
    }

    #[test]
    fn a_token_without_service_is_found_by_its_kind() {
        let credentials = credentials(&["", "x"]);
        assert_eq!(credentials.of_kind("K").count(), 2);
        assert_eq!(credentials.of_kind("L").count(), 0);
    }
}
