//! What a client insists on.

use super::Qop;
use crate::configuration::{Configuration, PropertyError, ValueProblem};

/// What a connection must be before anything is said on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SecurityPolicy {
    /// Refuse SIMPLE (`hadoop.security.authentication` is not `simple`).
    pub required: bool,
    /// Take SIMPLE from a server that has nothing else although security is required
    /// (`ipc.client.fallback-to-simple-auth-allowed`). Default false, and best left so.
    pub fallback_to_simple: bool,
    /// Allowed levels in order of preference (`hadoop.rpc.protection`). Not empty.
    pub protection: Vec<Qop>,
}

/// A cluster without security: SIMPLE where the server lets us, tokens where it asks for one.
impl Default for SecurityPolicy {
    fn default() -> Self {
        Self { required: false, fallback_to_simple: false, protection: vec![Qop::Auth] }
    }
}

impl SecurityPolicy {
    /// The policy of a configuration: `hadoop.security.authentication`, `hadoop.rpc.protection`,
    /// `ipc.client.fallback-to-simple-auth-allowed`.
    ///
    /// # Errors
    /// When a value is none of the known words. Hadoop's own client stops there too: a typo must not open a door.
    pub fn of(configuration: &Configuration) -> Result<Self, PropertyError> {
        const AUTHENTICATION: &str = "hadoop.security.authentication";
        const PROTECTION: &str = "hadoop.rpc.protection";
        let authentication =
            configuration.trimmed(AUTHENTICATION)?.unwrap_or_default().to_ascii_lowercase();
        let required = match authentication.as_str() {
            "" | "simple" => false,
            "kerberos" | "token" | "kerberos_ssl" => true,
            _ => {
                let problem = ValueProblem::Word("simple, kerberos, token");
                return Err(configuration.value_error(AUTHENTICATION, problem));
            }
        };
        let mut protection = Vec::new();
        for word in configuration.list(PROTECTION)? {
            protection.push(match word.to_ascii_lowercase().as_str() {
                "authentication" => Qop::Auth,
                "integrity" => Qop::Integrity,
                "privacy" => Qop::Privacy,
                _ => {
                    let problem = ValueProblem::Word("authentication, integrity, privacy");
                    return Err(configuration.value_error(PROTECTION, problem));
                }
            });
        }
        if protection.is_empty() {
            protection.push(Qop::Auth);
        }
        let fallback_to_simple =
            configuration.boolean("ipc.client.fallback-to-simple-auth-allowed", false)?;
        Ok(Self { required, fallback_to_simple, protection })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::Environment;

    fn policy(pairs: &[(&str, &str)]) -> Result<SecurityPolicy, PropertyError> {
        let mut configuration = Configuration::with_defaults(Environment::empty());
        for (key, value) in pairs {
            configuration.set(key, *value, "test");
        }
        SecurityPolicy::of(&configuration)
    }

    #[test]
    fn the_defaults_ask_for_nothing() {
        assert_eq!(policy(&[]), Ok(SecurityPolicy::default()));
    }

    #[test]
    fn a_secured_configuration_requires_what_it_says() {
        let expected = SecurityPolicy {
            required: true,
            fallback_to_simple: false,
            protection: vec![Qop::Privacy, Qop::Integrity],
        };
        let given = [
            ("hadoop.security.authentication", "Kerberos"),
            ("hadoop.rpc.protection", "privacy,integrity"),
        ];
        assert_eq!(policy(&given), Ok(expected));
    }

    #[test]
    fn a_typo_opens_no_door() {
        policy(&[("hadoop.security.authentication", "kerbros")]).expect_err("is no method");
        policy(&[("hadoop.rpc.protection", "private")]).expect_err("is no level");
    }
}
