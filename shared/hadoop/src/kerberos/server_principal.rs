//! The principal of a server, from the configuration.

use crate::address::HostPort;
use crate::configuration::{Configuration, PropertyError};

/// Stands for the server's host in a configured principal.
const HOST: &str = "_HOST";

/// The configured principal of a service, and the key that has it.
///
/// `_HOST` stands for the host that is dialled, as configured. A host that is configured by its IP address needs the
/// whole principal, because names are not looked up here: a false DNS answer must not choose the server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerPrincipal {
    /// The key.
    pub key: &'static str,
    /// Its value; `None` if it is not set.
    pub pattern: Option<String>,
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
        let pattern = configuration.trimmed(key)?.filter(|value| !value.is_empty());
        Ok(Self { key, pattern })
    }

    /// The principal of the server at `address`.
    #[must_use]
    pub fn at(&self, address: &HostPort) -> Option<String> {
        self.pattern.as_ref().map(|pattern| with_host(pattern, address))
    }
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
        None => principal.pattern,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_replaced_only_as_a_whole_component() {
        let at = |pattern: &str| {
            let pattern = Some(pattern.to_owned());
            ServerPrincipal { key: "k", pattern }.at(&HostPort::new("NN1.Example", 8020))
        };
        assert_eq!(at("nn/_HOST@R").as_deref(), Some("nn/nn1.example@R"));
        assert_eq!(at("nn/_HOST").as_deref(), Some("nn/nn1.example"));
        assert_eq!(at("nn/other@R").as_deref(), Some("nn/other@R"));
        assert_eq!(at("nn/x_HOST@R").as_deref(), Some("nn/x_HOST@R"));
        let unset = ServerPrincipal { key: "k", pattern: None };
        assert_eq!(unset.at(&HostPort::new("h", 1)), None);
    }
}
