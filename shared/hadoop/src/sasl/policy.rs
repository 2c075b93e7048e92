//! The security that a client requires of a connection.

use super::Qop;
use crate::configuration::{Configuration, PropertyError, ValueProblem};

/// The security that a connection must have before the first call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SecurityPolicy {
    /// Reject SIMPLE (`hadoop.security.authentication` is not `simple`).
    pub required: bool,
    /// Accept SIMPLE from a server that offers nothing else, although security is required
    /// (`ipc.client.fallback-to-simple-auth-allowed`). Default and recommendation: false.
    pub fallback_to_simple: bool,
    /// Permitted levels in order of preference: those of `hadoop.rpc.protection`, and the others where a resolver chooses
    /// (`hadoop.security.saslproperties.resolver.class`). Not empty.
    pub protection: Vec<Qop>,
    /// Whether `hadoop.rpc.protection` states that all connections are protected: it does not contain `authentication`.
    pub is_protected: bool,
}

/// The policy for a cluster without security: SIMPLE if the server accepts it, else a token.
impl Default for SecurityPolicy {
    fn default() -> Self {
        Self {
            required: false,
            fallback_to_simple: false,
            protection: vec![Qop::Auth],
            is_protected: false,
        }
    }
}

impl SecurityPolicy {
    /// The policy of a configuration: `hadoop.security.authentication`, `hadoop.rpc.protection`,
    /// `hadoop.security.saslproperties.resolver.class`, `ipc.client.fallback-to-simple-auth-allowed`.
    ///
    /// # Errors
    /// A value is unknown. Hadoop's own client fails too: a typo must not disable security.
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
        let is_protected = !protection.contains(&Qop::Auth);
        // A server whose resolver chooses by the client's address or the port may demand any level of a client. The built-in
        // class chooses nothing.
        const RESOLVER: &str = "hadoop.security.saslproperties.resolver.class";
        let resolver = configuration.trimmed(RESOLVER)?.unwrap_or_default();
        if !matches!(resolver.as_str(), "" | "org.apache.hadoop.security.SaslPropertiesResolver") {
            for level in [Qop::Privacy, Qop::Integrity, Qop::Auth] {
                if !protection.contains(&level) {
                    protection.push(level);
                }
            }
        }
        let fallback_to_simple =
            configuration.boolean("ipc.client.fallback-to-simple-auth-allowed", false)?;
        Ok(Self { required, fallback_to_simple, protection, is_protected })
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
    fn the_defaults_require_no_security() {
        assert_eq!(policy(&[]), Ok(SecurityPolicy::default()));
    }

    #[test]
    fn a_secured_configuration_requires_security() {
        let expected = SecurityPolicy {
            required: true,
            fallback_to_simple: false,
            protection: vec![Qop::Privacy, Qop::Integrity],
            is_protected: true,
        };
        let given = [
            ("hadoop.security.authentication", "Kerberos"),
            ("hadoop.rpc.protection", "privacy,integrity"),
        ];
        assert_eq!(policy(&given), Ok(expected));
    }

    /// `IngressPortBasedResolver` and `WhitelistBasedResolver` demand other levels of some clients.
    #[test]
    fn a_resolver_permits_all_levels() {
        let levels = |protection: &str, class: &str| {
            let given = [
                ("hadoop.rpc.protection", protection),
                ("hadoop.security.saslproperties.resolver.class", class),
            ];
            let policy = policy(&given).expect("it reads");
            (policy.protection, policy.is_protected)
        };
        let resolver = "org.apache.hadoop.security.IngressPortBasedResolver";
        let all = vec![Qop::Auth, Qop::Privacy, Qop::Integrity];
        assert_eq!(levels("authentication", resolver), (all, false));
        let all = vec![Qop::Integrity, Qop::Privacy, Qop::Auth];
        assert_eq!(levels("integrity", resolver), (all, true));
        let built_in = "org.apache.hadoop.security.SaslPropertiesResolver";
        assert_eq!(levels("integrity", built_in), (vec![Qop::Integrity], true));
    }

    #[test]
    fn a_typo_does_not_disable_security() {
        policy(&[("hadoop.security.authentication", "kerbros")]).expect_err("is not a method");
        policy(&[("hadoop.rpc.protection", "private")]).expect_err("is not a level");
    }
}
