//! The identity of a process on a cluster: the user, and the login for each server. One rule for all clients:
//!
//! 1. Security is not required (`hadoop.security.authentication` = `simple`): the user as [`User::resolve`] has it.
//! 2. A token for the service: the token.
//! 3. Else Kerberos: the keytab of `KRB5KEYTAB` and `KRB5PRINCIPAL`, else the ticket cache
//!    (`hadoop.security.kerberos.ticket.cache.path`, `KRB5CCNAME`, krb5.conf).
//!
//! With security the user is the short name of the keytab's principal, of the tokens' owner, or of the ticket, in this
//! order; never the account of the operating system. Source: `UserGroupInformation`, `KerberosName`.

use crate::configuration::{Configuration, PropertyError};
use crate::kerberos::{
    AuthToLocal, AuthToLocalError, GssapiEngine, KerberosEngine, KerberosError, KerberosLogin,
    ServerPrincipal, TicketSource,
};
use crate::rpc::Login;
use crate::sasl::SecurityPolicy;
use crate::token::{Credentials, CredentialsSourceError, Identifier, Token, token_kind};
use crate::user::{NoUser, User};

/// The user of a process on a cluster, and what it authenticates with.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The user. Its names are short names.
    pub user: User,
    /// The security that connections must have.
    pub policy: SecurityPolicy,
    /// The tokens of the session; none without security.
    pub credentials: Credentials,
    /// Where Kerberos tickets come from; `None` without security.
    pub tickets: Option<TicketSource>,
}

/// Why a process has no identity.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The system has no name for the user.
    #[error(transparent)]
    NoUser(#[from] NoUser),
    /// A value does not parse.
    #[error(transparent)]
    Value(#[from] PropertyError),
    /// The tokens of the session cannot be read.
    #[error(transparent)]
    Tokens(#[from] CredentialsSourceError),
    /// There is no usable ticket.
    #[error(transparent)]
    Kerberos(#[from] KerberosError),
    /// The principal has no short name.
    #[error(transparent)]
    Name(#[from] AuthToLocalError),
}

impl Identity {
    /// The identity of a process with this configuration. Reads files; does not use the network.
    ///
    /// # Errors
    /// See [`IdentityError`].
    pub fn resolve(configuration: &Configuration) -> Result<Self, IdentityError> {
        let environment = configuration.environment();
        let policy = SecurityPolicy::of(configuration)?;
        if !policy.required {
            let user = User::resolve(environment, false)?;
            return Ok(Self { user, policy, credentials: Credentials::new(), tickets: None });
        }
        let credentials = Credentials::of_environment(configuration)?;
        let tickets = ticket_source(configuration)?;
        let principal = match (&tickets, owner(&credentials)) {
            (TicketSource::Cache(_), Some(owner)) => owner,
            (TicketSource::Keytab { .. } | TicketSource::Cache(_), _) => {
                GssapiEngine.owner(&tickets)?.principal
            }
        };
        let real = short_name_of(configuration, &principal)?;
        let user = match environment.stated("HADOOP_PROXY_USER") {
            Some(effective) => User::proxy(effective, real),
            None => User::new(real),
        };
        Ok(Self { user, policy, credentials, tickets: Some(tickets) })
    }

    /// The login at a server: by `token`, else by Kerberos.
    #[must_use]
    pub fn login(&self, token: Option<Token>, server: ServerPrincipal) -> Login {
        let tickets = self.tickets.clone().filter(|_| token.is_none());
        Login {
            user: self.user.clone(),
            token,
            kerberos: tickets.map(|source| KerberosLogin { source, server }),
            policy: self.policy.clone(),
        }
    }
}

/// The name of a cache, and a keytab with its principal, as variables or system properties.
fn ticket_source(configuration: &Configuration) -> Result<TicketSource, PropertyError> {
    let environment = configuration.environment();
    if let Some(keytab) = environment.stated("KRB5KEYTAB") {
        let principal = environment.stated("KRB5PRINCIPAL").map(str::to_owned);
        return Ok(TicketSource::Keytab { path: keytab.into(), principal });
    }
    let configured = configuration.trimmed("hadoop.security.kerberos.ticket.cache.path")?;
    let configured = configured.filter(|path| !path.is_empty());
    // An empty property stands for an unset variable: the variable then has another purpose in this process.
    let variable = match environment.property("KRB5CCNAME") {
        Some(property) => Some(property),
        None => environment.variable("KRB5CCNAME"),
    };
    let variable = variable.filter(|name| !name.is_empty()).map(str::to_owned);
    Ok(TicketSource::Cache(configured.or(variable)))
}

/// The owner of the tokens: of the ResourceManager's, else of a NameNode's.
fn owner(credentials: &Credentials) -> Option<String> {
    [token_kind::RM_DELEGATION, token_kind::HDFS_DELEGATION].iter().find_map(|kind| {
        credentials.of_kind(kind).find_map(|token| match Identifier::of(token) {
            Ok(Identifier::Delegation(identifier)) => Some(identifier.owner),
            _ => None,
        })
    })
}

/// The short name of a principal by `hadoop.security.auth_to_local`.
///
/// # Errors
/// The rules do not parse, or none applies.
pub fn short_name_of(
    configuration: &Configuration,
    principal: &str,
) -> Result<String, AuthToLocalError> {
    // Without the library there is no krb5.conf to speak of: a container that has tokens alone.
    let realm = heddle_gssapi::default_realm().ok().flatten();
    AuthToLocal::of(configuration, realm)?.short_name(principal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::Environment;
    use crate::token::DelegationIdentifier;

    fn configuration(environment: Environment) -> Configuration {
        let mut configuration = Configuration::with_defaults(environment);
        configuration.set("hadoop.security.authentication", "kerberos", "test");
        configuration.set("hadoop.security.auth_to_local", "RULE:[1:$1@$0](.*@R)s/@.*//", "test");
        configuration
    }

    fn environment() -> Environment {
        Environment::empty().with_property("user.name", "os")
    }

    #[test]
    fn without_security_the_user_is_the_systems() {
        let configuration = Configuration::with_defaults(environment());
        let identity = Identity::resolve(&configuration).expect("a user");
        assert_eq!((identity.user, identity.tickets), (User::new("os"), None));
    }

    #[test]
    fn the_owner_of_the_tokens_is_the_user() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("tokens");
        let identifier = DelegationIdentifier { owner: "alice@R".into(), ..Default::default() };
        let mut tokens = Credentials::new();
        let kind = token_kind::HDFS_DELEGATION;
        tokens.add(Token::new(identifier.encode_writable(), *b"p", kind, "127.0.0.1:8020"));
        tokens.write_file(&file).expect("written");
        let name = file.to_str().expect("a plain name");
        let environment = environment().with_variable("HADOOP_TOKEN_FILE_LOCATION", name);
        let identity = Identity::resolve(&configuration(environment)).expect("an owner");
        assert_eq!(identity.user, User::new("alice"));
        let other = Identity::resolve(&configuration(
            self::environment()
                .with_variable("HADOOP_TOKEN_FILE_LOCATION", name)
                .with_variable("HADOOP_PROXY_USER", "bob"),
        ));
        assert_eq!(other.expect("an owner").user, User::proxy("bob", "alice"));
    }

    #[test]
    fn a_missing_ticket_is_an_error_that_names_the_cache() {
        let environment = environment().with_variable("KRB5CCNAME", "FILE:/nonexistent/cc");
        let error = Identity::resolve(&configuration(environment)).expect_err("has no ticket");
        assert_eq!(error.to_string(), "no Kerberos ticket in the cache FILE:/nonexistent/cc");
    }

    #[test]
    fn the_cache_is_that_of_the_property_then_of_the_variable() {
        let source = |environment: Environment| {
            ticket_source(&configuration(environment)).expect("values are good")
        };
        let cache = |name: &str| TicketSource::Cache(Some(name.to_owned()));
        let variable = environment().with_variable("KRB5CCNAME", "FILE:/a");
        assert_eq!(source(variable.clone()), cache("FILE:/a"));
        assert_eq!(source(variable.clone().with_property("KRB5CCNAME", "DIR:/b")), cache("DIR:/b"));
        let hidden = variable.clone().with_property("KRB5CCNAME", "");
        assert_eq!(source(hidden), TicketSource::Cache(None));
        let keytab = variable.with_property("KRB5KEYTAB", "/k").with_variable("KRB5PRINCIPAL", "a");
        let expected = TicketSource::Keytab { path: "/k".into(), principal: Some("a".into()) };
        assert_eq!(source(keytab), expected);
    }
}
