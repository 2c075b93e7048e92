//! Delegation tokens of a file system, issued to a process that logs in by a keytab.
//!
//! The ApplicationMaster of a long job fetches tokens itself. Nothing else renews them, so they are valid for one renew
//! interval; a process learns the interval by renewing a token once (`ClientProtocol.renewDelegationToken`). It is its own
//! renewer.

use heddle_hadoop::Token;
use heddle_hadoop::configuration::{Configuration, NameService};
use heddle_hadoop::identity::Identity;
use heddle_hadoop::kerberos::ServerPrincipal;
use heddle_hadoop::namenode::NameNode;
use heddle_hadoop::rpc::{RpcClient, RpcOptions};

use super::calls::CALL;
use super::connect;
use super::login::{lookup_service, token_service};
use crate::error::chain;

/// Why there is no token: the file system and the cause.
#[derive(Debug, thiserror::Error)]
#[error("cannot get a token of {place}: {cause}")]
pub struct IssueError {
    place: String,
    cause: String,
}

/// A token and its end.
#[derive(Clone, Debug)]
pub struct IssuedToken {
    /// The token, with the service that Java gives it.
    pub token: Token,
    /// The service by which hdfs-native looks for it.
    pub lookup: String,
    /// When it ends unless it is renewed, ms since 1970.
    pub valid_until_ms: u64,
}

/// Issues tokens of one file system.
#[derive(Debug)]
pub struct TokenIssuer {
    namenode: NameNode,
    service: NameService,
    configuration: Configuration,
}

impl TokenIssuer {
    /// The issuer of an authority (`host:port`, a name service, or empty for `fs.defaultFS`); `identity` has a keytab.
    ///
    /// # Errors
    /// The configuration names no such file system.
    pub fn new(
        authority: &str,
        configuration: &Configuration,
        identity: &Identity,
    ) -> Result<Self, IssueError> {
        let failed = |error: &dyn std::error::Error| IssueError {
            place: format!("hdfs://{authority}"),
            cause: chain(error),
        };
        let service = connect::service_of(authority, configuration).map_err(|e| failed(&e))?;
        let options = RpcOptions::of(configuration).map_err(|error| failed(&error))?;
        let principal =
            ServerPrincipal::of_namenode(configuration).map_err(|error| failed(&error))?;
        let login = identity.login(None, principal);
        let client = RpcClient::new(options);
        let namenode = NameNode::new(&client, service.servers.clone(), login, CALL);
        Ok(Self { namenode, service, configuration: configuration.clone() })
    }

    /// The file system, as a URL.
    #[must_use]
    pub fn place(&self) -> String {
        connect::url_of(&self.service)
    }

    /// Fetches a token that `renewer` may renew, and renews it to learn when it ends.
    ///
    /// # Errors
    /// There is no usable login, or the NameNode refuses or does not answer.
    pub async fn issue(&self, renewer: &str) -> Result<IssuedToken, IssueError> {
        let failed = |cause: String| IssueError { place: self.place(), cause };
        let service = token_service(&self.service, &self.configuration).await;
        let service = service.map_err(|error| failed(chain(&error)))?;
        let token = self.namenode.delegation_token(renewer).await;
        let token = token
            .map_err(|error| failed(chain(&error)))?
            .ok_or_else(|| failed("the NameNode issues no delegation tokens".to_owned()))?;
        let token = token.with_service(service);
        match self.namenode.renew_delegation_token(&token).await {
            Ok(valid_until_ms) => {
                Ok(IssuedToken { token, lookup: lookup_service(&self.service), valid_until_ms })
            }
            Err(error) => {
                // The caller asks again, and each try would leave a token at the NameNode.
                let _ended_by_itself = self.namenode.cancel_delegation_token(&token).await;
                Err(failed(chain(&error)))
            }
        }
    }

    /// Cancels a token.
    ///
    /// # Errors
    /// See [`TokenIssuer::issue`].
    pub async fn cancel(&self, token: &Token) -> Result<(), IssueError> {
        let cancelled = self.namenode.cancel_delegation_token(token).await;
        cancelled.map_err(|error| IssueError { place: self.place(), cause: chain(&error) })
    }
}
