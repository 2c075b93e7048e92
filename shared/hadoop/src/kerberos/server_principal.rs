//! The principal of a server, from the configuration.

use crate::address::HostPort;
use crate::configuration::{Configuration, PropertyError};

/// Stands for the server's host in a configured principal.
const HOST: &str = "_HOST";

/// The configured principal of a service, and the key that has it.
///
/// `_HOST` stands for the host that is dialled, as configured. A host that is configured by its IP address needs the
/// whole principal, because names are not looked up here: a false DNS answer must not choose the server.
///
/// A server that calls itself another principal is rejected, unless a file of the site sets `<key>.pattern` and the principal
/// matches: name services of other clusters often have others. Hadoop's own default `*` does not count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ServerPrincipal {
    /// The key.
    pub key: &'static str,
    /// Its value; `None` if it is not set.
    pub configured: Option<String>,
    /// Other principals that a server may have (`<key>.pattern`): `*` stands for any characters, `?` for one.
    pub others: Option<String>,
}

impl ServerPrincipal {
    /// The principal of the NameNodes (`dfs.namenode.kerberos.principal`).
    ///
    /// # Errors
    /// The value does not resolve.
    pub fn of_namenode(configuration: &Configuration) -> Result<Self, PropertyError> {
        Self::of(configuration, "dfs.namenode.kerberos.principal")
    }

    /// The principal of the ResourceManagers (`yarn.resourcemanager.principal`).
    ///
    /// # Errors
    /// The value does not resolve.
    pub fn of_resource_manager(configuration: &Configuration) -> Result<Self, PropertyError> {
        Self::of(configuration, "yarn.resourcemanager.principal")
    }

    fn of(configuration: &Configuration, key: &'static str) -> Result<Self, PropertyError> {
        let stated = |key: &str| -> Result<Option<String>, PropertyError> {
            Ok(configuration.trimmed(key)?.filter(|value| !value.is_empty()))
        };
        let pattern = format!("{key}.pattern");
        let others = if configuration.is_stated(&pattern) { stated(&pattern)? } else { None };
        Ok(Self { key, configured: stated(key)?, others })
    }

    /// The principal of the server at `address`.
    #[must_use]
    pub fn at(&self, address: &HostPort) -> Option<String> {
        self.configured.as_ref().map(|configured| with_host(configured, address))
    }

    /// The principal to request a ticket for where a server calls itself `offered`, a name without realm, and its site permits
    /// that. The realm is that of the pattern; without one, or with one for several realms, it is the default realm.
    #[must_use]
    pub fn permitted(&self, offered: &str) -> Option<String> {
        let others = self.others.as_deref()?;
        let (name, realm) = match others.split_once('@') {
            Some((name, realm)) => (name, Some(realm)),
            None => (others, None),
        };
        // A realm in the offer would select the realm of the ticket.
        let is_part = |part: &str| {
            !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        };
        let parts = offered.split_once('/');
        let is_name = parts.is_some_and(|(service, host)| is_part(service) && is_part(host));
        if !is_name || !matches(name.as_bytes(), offered.as_bytes()) {
            return None;
        }
        let realm = realm.filter(|realm| !realm.contains(['*', '?', '[', '{']));
        Some(match realm {
            Some(realm) => format!("{offered}@{realm}"),
            None => offered.to_owned(),
        })
    }
}

/// Whether a text fits a pattern of `*` and `?`.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    // Where the last `*` is, and up to where it reaches.
    let mut star = None;
    while from < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(&letter) if letter == b'?' || letter == text[from] => {
                (at, from) = (at + 1, from + 1)
            }
            _ => {
                let Some((of_star, reached)) = star else { return false };
                star = Some((of_star, reached + 1));
                (at, from) = (of_star + 1, reached + 1);
            }
        }
    }
    pattern[at..].iter().all(|letter| *letter == b'*')
}

fn with_host(pattern: &str, address: &HostPort) -> String {
    let (name, realm) = match pattern.split_once('@') {
        Some((name, realm)) => (name, format!("@{realm}")),
        None => (pattern, String::new()),
    };
    match name.split_once('/') {
        Some((service, HOST)) => format!("{service}/{}{realm}", address.host()),
        _ => pattern.to_owned(),
    }
}

/// The renewer of delegation tokens of a submission: the ResourceManager's principal. `None` if it is not configured.
///
/// # Errors
/// The value does not resolve.
pub fn token_renewer(
    configuration: &Configuration,
    resource_managers: &[HostPort],
) -> Result<Option<String>, PropertyError> {
    let principal = ServerPrincipal::of_resource_manager(configuration)?;
    // All members of an HA group map to one user, so the first stands for them.
    Ok(match resource_managers.first() {
        Some(first) => principal.at(first),
        None => principal.configured,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::Environment;

    #[test]
    fn the_host_is_replaced_only_as_a_whole_component() {
        let at = |configured: &str| {
            let configured = Some(configured.to_owned());
            let principal = ServerPrincipal { key: "k", configured, others: None };
            principal.at(&HostPort::new("NN1.Example", 8020))
        };
        assert_eq!(at("nn/_HOST@R").as_deref(), Some("nn/nn1.example@R"));
        assert_eq!(at("nn/_HOST").as_deref(), Some("nn/nn1.example"));
        assert_eq!(at("nn/other@R").as_deref(), Some("nn/other@R"));
        assert_eq!(at("nn/x_HOST@R").as_deref(), Some("nn/x_HOST@R"));
        let unset = ServerPrincipal { key: "k", configured: None, others: None };
        assert_eq!(unset.at(&HostPort::new("h", 1)), None);
    }

    #[test]
    fn a_pattern_of_the_site_permits_other_principals() {
        let permitted = |pattern: &str, offered: &str| {
            let mut configuration = Configuration::with_defaults(Environment::empty());
            configuration.set("dfs.namenode.kerberos.principal", "nn/_HOST@R", "test");
            configuration.set("dfs.namenode.kerberos.principal.pattern", pattern, "test");
            ServerPrincipal::of_namenode(&configuration).expect("it resolves").permitted(offered)
        };
        assert_eq!(permitted("hdfs/*@FAR", "hdfs/h.far").as_deref(), Some("hdfs/h.far@FAR"));
        assert_eq!(permitted("hdfs/n?.far@*", "hdfs/n1.far").as_deref(), Some("hdfs/n1.far"));
        assert_eq!(permitted("*", "nn/x").as_deref(), Some("nn/x"));
        assert_eq!(permitted("*/*.far*@FAR", "nn/a.b.far.x").as_deref(), Some("nn/a.b.far.x@FAR"));
        for (pattern, offered) in [
            ("hdfs/*@FAR", "http/h.far"),
            ("hdfs/n?.far", "hdfs/n12.far"),
            ("hdfs/n1", "hdfs/n1.far"),
            ("*", "krbtgt"),
            ("*", "nn/x@OTHER"),
            ("*", "nn/"),
            ("*", "nn/x/y"),
            ("*", "nn//x"),
            ("", "nn/x"),
        ] {
            assert_eq!(permitted(pattern, offered), None, "{pattern} {offered}");
        }
    }

    #[test]
    fn hadoops_default_pattern_permits_no_other() {
        let configuration = Configuration::with_defaults(Environment::empty());
        let principal = ServerPrincipal::of_namenode(&configuration).expect("it resolves");
        assert_eq!(principal.permitted("nn/x"), None);
    }
}
