//! Failed logins: their exit code, and the next step of the user.

use heddle_hadoop::identity::IdentityError;
use heddle_hadoop::kerberos::KerberosError;
use heddle_hadoop::rpc::RpcError;
use heddle_hadoop::rpc::error::AuthError;
use heddle_hadoop::sasl::{DigestError, KerberosFailure, SaslError};
use heddle_hadoop::token::{Credentials, ProcessTokens, token_kind};
use heddle_protocol::exit_code::ExitCode;

use crate::failure::CommandFailure;

/// The failure of a process without an identity on the cluster.
pub fn no_identity(error: &IdentityError) -> CommandFailure {
    let fact = "cannot determine the user to act as";
    let failure = |exit| CommandFailure::caused(exit, fact, error);
    match error {
        IdentityError::Kerberos(cause) => {
            CommandFailure::caused(ExitCode::Denied, "cannot log in by Kerberos", cause)
                .next(cause.next_step())
        }
        IdentityError::Tokens(cause) => CommandFailure::caused(
            ExitCode::Denied,
            "cannot read the tokens of this session",
            cause,
        )
        .next("start a new session, or unset HADOOP_TOKEN_FILE_LOCATION to use a Kerberos ticket"),
        IdentityError::Value(_) => failure(ExitCode::Input),
        IdentityError::Name(_) => {
            failure(ExitCode::Denied).next("correct hadoop.security.auth_to_local in core-site.xml")
        }
        _ => failure(ExitCode::Denied),
    }
}

/// What a session with tokens lacks, if a login at the ResourceManager failed because there is no ticket either.
pub fn lacking_token(error: &RpcError) -> Option<String> {
    let RpcError::Auth { source: AuthError::Kerberos(KerberosError::NoTicket { .. }), .. } = error
    else {
        return None;
    };
    lacking(&ProcessTokens::installed()?.credentials())
}

fn lacking(session: &Credentials) -> Option<String> {
    let present =
        session.tokens().map(|(_, token)| format!("{} for {}", token.kind(), token.service()));
    let present = present.collect::<Vec<_>>().join(", ");
    let fact = format!(
        "HADOOP_TOKEN_FILE_LOCATION has no {} of this ResourceManager (it has {present})",
        token_kind::RM_DELEGATION
    );
    (!present.is_empty()).then_some(fact)
}

/// The next step after a login that the ResourceManager rejected.
pub fn after_no_login(error: &RpcError) -> &'static str {
    let RpcError::Auth { source, .. } = error else {
        return "check that HADOOP_CONF_DIR is that of the cluster";
    };
    match source {
        AuthError::Sasl(SaslError::SimpleRefused) => {
            "core-site.xml enables security, and the ResourceManager does not: check that HADOOP_CONF_DIR is that of \
             the cluster"
        }
        AuthError::Sasl(SaslError::Digest(DigestError::NoCommonQop { .. })) => {
            "set hadoop.rpc.protection in core-site.xml to the cluster's value"
        }
        AuthError::Sasl(SaslError::Kerberos(KerberosFailure::NoCommonLevel { .. })) => {
            "set hadoop.rpc.protection in core-site.xml to the cluster's value"
        }
        AuthError::Sasl(SaslError::Kerberos(KerberosFailure::OtherServer { .. })) => {
            "check that HADOOP_CONF_DIR is that of the cluster, and yarn.resourcemanager.principal"
        }
        AuthError::Kerberos(cause) => cause.next_step(),
        AuthError::Refused(exception) if exception.message().contains("GSS initiate failed") => {
            "the clocks differ by more than five minutes, or the server's keytab is out of date: check the clock of this \
             machine, then ask an administrator of the cluster"
        }
        AuthError::Refused(exception) if exception.message().contains("impersonate") => {
            "ask an administrator for the right to act for other users (hadoop.proxyuser.*)"
        }
        AuthError::Sasl(SaslError::NoCommonMethod { offered, .. })
            if offered.iter().any(|method| method == "KERBEROS") =>
        {
            "get a ticket with kinit, or submit from a session that has a delegation token of the ResourceManager \
             (HADOOP_TOKEN_FILE_LOCATION)"
        }
        AuthError::Refused(exception) if exception.is_invalid_token() => {
            "the delegation token is unknown or has expired: start a new session"
        }
        AuthError::Refused(exception) if exception.message().contains("SIMPLE authentication") => {
            "the cluster is secured, and core-site.xml does not enable it (hadoop.security.authentication): check that \
             HADOOP_CONF_DIR is that of the cluster"
        }
        AuthError::Refused(exception) if exception.is_denied() => {
            "ask an administrator for the right to call the ResourceManager (hadoop-policy.xml, \
             security.applicationclient.protocol.acl)"
        }
        _ => "check that HADOOP_CONF_DIR is that of the cluster",
    }
}

#[cfg(test)]
mod tests {
    use heddle_hadoop::Token;

    use super::*;

    #[test]
    fn a_session_without_the_needed_token_names_what_it_has() {
        let mut session = Credentials::new();
        assert_eq!(lacking(&session), None, "there is no session");
        let identifier = heddle_hadoop::token::DelegationIdentifier::default().encode_writable();
        session.add(Token::new(identifier, *b"p", token_kind::HDFS_DELEGATION, "nn:1"));
        let text = lacking(&session).unwrap_or_default();
        assert!(text.contains("no RM_DELEGATION_TOKEN"), "{text}");
        assert!(text.ends_with("(it has HDFS_DELEGATION_TOKEN for nn:1)"), "{text}");
    }
}
