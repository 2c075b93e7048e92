//! The login to a file system, before hdfs-native dials it.
//!
//! hdfs-native sends the user's ticket to the server, checks no principal and accepts SIMPLE. So it never uses Kerberos
//! here: the first call logs in by `heddle-hadoop`, fetches a delegation token and puts it where hdfs-native looks
//! ([`ProcessTokens`]). Without security there is nothing to do.
//!
//! A NameNode keeps a token for a day, so a command cancels those that it fetched ([`cancel_fetched_tokens`]), unless a job uses
//! them ([`keep_fetched_tokens`]).

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use heddle_hadoop::Token;
use heddle_hadoop::configuration::RmService;
use heddle_hadoop::configuration::{Configuration, NameService, PropertyError};
use heddle_hadoop::identity::{Identity, IdentityError};
use heddle_hadoop::kerberos::{ServerPrincipal, token_renewer};
use heddle_hadoop::namenode::NameNode;
use heddle_hadoop::rpc::error::AuthError;
use heddle_hadoop::rpc::{RpcClient, RpcError, RpcOptions};
use heddle_hadoop::token::{ProcessTokens, ServiceNames, token_kind};

use tracing::debug;

use super::calls::{CALL, Calls};
use crate::error::chain;

/// Longest time for cancelling all tokens; they end by themselves too.
const CANCEL_LIMIT: Duration = Duration::from_secs(2);

/// The tokens that this process fetched, with the NameNodes that issued them; `None`: they outlive the process.
static FETCHED: Mutex<Option<Vec<(NameNode, Token)>>> = Mutex::new(Some(Vec::new()));

/// Leaves the tokens that this process fetched to the job that it submits.
pub fn keep_fetched_tokens() {
    *FETCHED.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// Cancels the tokens that this process fetched and does not keep. Blocks for at most two seconds; its caller is outside of any
/// runtime.
pub fn cancel_fetched_tokens() {
    let fetched = FETCHED.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
    if fetched.is_empty() {
        return;
    }
    let Ok(calls) = Calls::get() else { return };
    calls.runtime.block_on(async {
        // At the same time: a NameNode that does not answer must not take the time of the others.
        let all = fetched.iter().map(async |(namenode, token)| {
            if let Err(error) = namenode.cancel_delegation_token(token).await {
                debug!(error = chain(&error), "token_not_cancelled");
            }
        });
        if tokio::time::timeout(CANCEL_LIMIT, join_all(all)).await.is_err() {
            debug!("tokens_not_cancelled_in_time");
        }
    });
}

/// Why a call without hdfs-native fails.
pub(super) enum OwnFailure {
    /// There is no usable login; the text.
    Login(String),
    /// The call failed.
    Call(RpcError),
}

impl From<RpcError> for OwnFailure {
    fn from(error: RpcError) -> Self {
        match &error {
            // The next step is part of the text: this may be the first call of a local run.
            RpcError::Auth { source: AuthError::Kerberos(cause), .. } => {
                Self::Login(format!("{}; {}", chain(&error), cause.next_step()))
            }
            _ => Self::Call(error),
        }
    }
}

fn login_failed(error: &dyn std::error::Error) -> OwnFailure {
    OwnFailure::Login(chain(error))
}

/// Logs in, and returns the client for calls that hdfs-native lacks. Must be called within the calls' runtime, which
/// drives its connections.
///
/// # Errors
/// There is no usable login, or the NameNode issues no token.
pub(super) async fn log_in(
    service: &NameService,
    configuration: &Configuration,
) -> Result<NameNode, OwnFailure> {
    let identity = Identity::resolve(configuration).map_err(|error| match &error {
        IdentityError::Kerberos(cause) => {
            OwnFailure::Login(format!("{}; {}", chain(&error), cause.next_step()))
        }
        _ => login_failed(&error),
    })?;
    let options = RpcOptions::of(configuration).map_err(|error| login_failed(&error))?;
    let principal =
        ServerPrincipal::of_namenode(configuration).map_err(|error| login_failed(&error))?;
    let client = RpcClient::new(options);
    let namenode = |token: Option<Token>| {
        let login = identity.login(token, principal.clone());
        NameNode::new(&client, service.servers.clone(), login, CALL)
    };
    if !identity.policy.required {
        return Ok(namenode(None));
    }
    let mut names = ServiceNames::new().with_servers(&service.servers).await;
    if let Some(logical) = &service.logical {
        names = names.with_name_service(logical);
    }
    let kind = token_kind::HDFS_DELEGATION;
    let token = match identity.credentials.for_service(kind, &names) {
        Some(token) => token.clone(),
        None => {
            let token = fetch(&namenode(None), service, configuration).await?;
            let mut fetched = FETCHED.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(all) = fetched.as_mut() {
                // By the token itself: the connection to the NameNode is open then.
                all.push((namenode(Some(token.clone())), token.clone()));
            }
            token
        }
    };
    if let Some(process) = ProcessTokens::installed() {
        process.add(&token, &lookup_service(service)).map_err(|error| login_failed(&error))?;
    }
    Ok(namenode(Some(token)))
}

/// Fetches a delegation token by Kerberos, with the service that Java gives it.
async fn fetch(
    namenode: &NameNode,
    service: &NameService,
    configuration: &Configuration,
) -> Result<Token, OwnFailure> {
    // A submission passes the token on, and the ResourceManager renews it.
    let managers = RmService::Client.addresses(configuration).unwrap_or_default();
    let renewer = token_renewer(configuration, &managers).map_err(|error| login_failed(&error))?;
    let token = namenode.delegation_token(&renewer.unwrap_or_default()).await?;
    let Some(token) = token else {
        return Err(OwnFailure::Login("the NameNode issues no delegation tokens".to_owned()));
    };
    let name = token_service(service, configuration).await.map_err(|error| login_failed(&error))?;
    Ok(token.with_service(name))
}

/// The service that Java gives to tokens of a file system.
///
/// # Errors
/// A value does not parse.
pub(super) async fn token_service(
    service: &NameService,
    configuration: &Configuration,
) -> Result<String, PropertyError> {
    let uses_ip = configuration.boolean("hadoop.security.token.service.use_ip", true)?;
    Ok(match &service.logical {
        Some(logical) if service.servers.len() > 1 => format!("ha-hdfs:{logical}"),
        _ => ServiceNames::token_service(&service.servers, uses_ip).await,
    })
}

/// The service by which hdfs-native looks for a token: the name service, or the address as its URL has it.
pub(super) fn lookup_service(service: &NameService) -> String {
    match (&service.logical, service.servers.as_slice()) {
        (_, [only]) => only.to_string(),
        (Some(logical), _) => format!("ha-hdfs:{logical}"),
        (None, servers) => servers.first().map(ToString::to_string).unwrap_or_default(),
    }
}
