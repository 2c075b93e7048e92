//! The user on whose behalf calls are made.
//!
//! Source: `security.UserGroupInformation.createLoginUser`.

use crate::configuration::Environment;

/// The user that the connection context names on connections without authentication.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct User {
    /// Name of the user on whose behalf calls are made.
    pub effective: String,
    /// Name of the authenticated user if it differs from `effective` (a proxy user in Hadoop's sense).
    pub real: Option<String>,
}

/// The user has no name: `HADOOP_USER_NAME` is not set, and the system has no entry for the user id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot determine the user: the system has no name for user id {user_id}; set HADOOP_USER_NAME"
)]
pub struct NoUser {
    /// The process's user id.
    pub user_id: u32,
}

impl User {
    /// A user that acts for itself.
    pub fn new(name: impl Into<String>) -> Self {
        Self { effective: name.into(), real: None }
    }

    /// `effective`, with calls made by the proxy user `real`.
    pub fn proxy(effective: impl Into<String>, real: impl Into<String>) -> Self {
        Self { effective: effective.into(), real: Some(real.into()) }
    }

    /// The user as Hadoop's clients resolve it: `HADOOP_USER_NAME`, else the system's user. A secured cluster takes the
    /// name from the authentication and ignores the variable. `HADOOP_PROXY_USER` names another effective user. Both
    /// may also be system properties.
    ///
    /// # Errors
    /// No source has a name, as in a container with an arbitrary user id.
    pub fn resolve(environment: &Environment, is_secured: bool) -> Result<Self, NoUser> {
        let stated = |name: &str| {
            let value = environment.variable(name).or_else(|| environment.property(name));
            value.filter(|value| !value.is_empty()).map(str::to_owned)
        };
        let login = match stated("HADOOP_USER_NAME").filter(|_| !is_secured) {
            Some(name) => name,
            None => match environment.property("user.name") {
                Some(name) => name.to_owned(),
                None => {
                    return Err(NoUser { user_id: nix::unistd::getuid().as_raw() });
                }
            },
        };
        Ok(match stated("HADOOP_PROXY_USER") {
            Some(effective) => Self::proxy(effective, login),
            None => Self::new(login),
        })
    }

    /// The name without host and realm: `alice` of `alice/host@REALM`. HDFS and YARN map principals so by default.
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
    fn the_variable_counts_only_without_security() {
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
    fn the_proxy_user_variable_sets_the_effective_user() {
        let environment = environment()
            .with_variable("HADOOP_USER_NAME", "service")
            .with_variable("HADOOP_PROXY_USER", "alice");
        assert_eq!(User::resolve(&environment, false), Ok(User::proxy("alice", "service")));
    }

    #[test]
    fn a_user_without_a_name_is_an_error() {
        User::resolve(&Environment::empty(), false).expect_err("no source has a name");
    }

    #[test]
    fn short_names_have_neither_host_nor_realm() {
        assert_eq!(User::new("nn/host@REALM").short_name(), "nn");
        assert_eq!(User::new("alice@REALM").short_name(), "alice");
        assert_eq!(User::new("alice").short_name(), "alice");
    }
}
