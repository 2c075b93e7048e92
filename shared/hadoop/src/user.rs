//! Who the caller is.
//!
//! Source: `security.UserGroupInformation.createLoginUser`.

use crate::configuration::Environment;

/// The user that a server is told about on connections without other proof.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct User {
    /// On whose behalf calls are made.
    pub effective: String,
    /// Who makes them, when that is another (`HADOOP_PROXY_USER`): a proxy user in Hadoop's sense.
    pub real: Option<String>,
}

/// No name for the caller: no `HADOOP_USER_NAME`, and the system does not know the user id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system has no name for user id {user_id}, and HADOOP_USER_NAME is not set")]
pub struct NoUser {
    /// The process's user id.
    pub user_id: u32,
}

impl User {
    /// A user who acts for itself.
    pub fn new(name: impl Into<String>) -> Self {
        Self { effective: name.into(), real: None }
    }

    /// A user for whom another, trusted one acts.
    pub fn proxy(effective: impl Into<String>, real: impl Into<String>) -> Self {
        Self { effective: effective.into(), real: Some(real.into()) }
    }

    /// The user as Hadoop's clients resolve it: `HADOOP_USER_NAME` unless the cluster is secured (there the name
    /// comes from a proof, and the variable is ignored), else the system's user; `HADOOP_PROXY_USER` makes calls on
    /// behalf of that one. Both may also be system properties.
    ///
    /// # Errors
    /// When nothing gives a name, as in a container with an arbitrary user id.
    pub fn resolve(environment: &Environment, is_secured: bool) -> Result<Self, NoUser> {
        let given = |name: &str| {
            let value = environment.variable(name).or_else(|| environment.property(name));
            value.filter(|value| !value.is_empty()).map(str::to_owned)
        };
        let login = match given("HADOOP_USER_NAME").filter(|_| !is_secured) {
            Some(name) => name,
            None => match environment.property("user.name") {
                Some(name) => name.to_owned(),
                None => {
                    return Err(NoUser { user_id: nix::unistd::getuid().as_raw() });
                }
            },
        };
        Ok(match given("HADOOP_PROXY_USER") {
            Some(effective) => Self::proxy(effective, login),
            None => Self::new(login),
        })
    }

    /// The name without host and realm, `alice` of `alice/host@REALM`: what HDFS and YARN call the user by default.
    pub fn short_name(&self) -> &str {
        self.effective.split(['/', '@']).next().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment() -> Environment {
        Environment::empty().with_property("user.name", "os")
    }

    #[test]
    fn the_variable_names_the_user_where_there_is_no_proof() {
        let named = environment().with_variable("HADOOP_USER_NAME", "alice");
        assert_eq!(User::resolve(&named, false), Ok(User::new("alice")));
        assert_eq!(User::resolve(&named, true), Ok(User::new("os")));
        assert_eq!(User::resolve(&environment(), false), Ok(User::new("os")));
        assert_eq!(
            User::resolve(&environment().with_variable("HADOOP_USER_NAME", ""), false),
            Ok(User::new("os"))
        );
    }

    #[test]
    fn a_proxy_user_is_acted_for() {
        let environment = environment()
            .with_variable("HADOOP_USER_NAME", "service")
            .with_variable("HADOOP_PROXY_USER", "alice");
        assert_eq!(User::resolve(&environment, false), Ok(User::proxy("alice", "service")));
    }

    #[test]
    fn without_any_name_there_is_no_user() {
        User::resolve(&Environment::empty(), false).expect_err("nobody knows the user");
    }

    #[test]
    fn short_names_have_neither_host_nor_realm() {
        assert_eq!(User::new("nn/host@REALM").short_name(), "nn");
        assert_eq!(User::new("alice@REALM").short_name(), "alice");
        assert_eq!(User::new("alice").short_name(), "alice");
    }
}
