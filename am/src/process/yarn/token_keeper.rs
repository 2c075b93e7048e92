//! Tokens of a job with a keytab: fetched by the ApplicationMaster, given to all containers, cancelled at the end.
//!
//! Only this process logs in by Kerberos. When to fetch is decided by [`TokenRefresh`], what follows for the job by its
//! core. The login blocks, on threads of its own (`heddle_hadoop::kerberos`). New tokens go first into the token file of this
//! process, then into the launch context of containers, then to the running ones: a container that starts meanwhile has
//! either the new ones or is registered after them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use heddle_am_core::{Event, FetchedTokens, TokenRefresh};
use heddle_hadoop::identity::Identity;
use heddle_hadoop::kerberos::TicketSource;
use heddle_hadoop::token::{Credentials, ProcessTokens};
use heddle_hadoop::{Configuration, Token};
use heddle_protocol::control::{CredentialsBytes, InstallTokens};
use heddle_storage::{IssueError, TokenIssuer, chain};
use tokio::sync::{Mutex, watch};
use tracing::Instrument as _;

use super::tokens;
use crate::cluster::Events;
use crate::cluster::yarn::ContainerCredentials;
use crate::wall_clock::wall_ms;

/// Longest time for cancelling all tokens at the end. They end by themselves too.
const CANCEL_LIMIT: Duration = Duration::from_secs(10);

/// A keytab and what it is for.
pub(super) struct TokenLogin<'a> {
    /// The keytab.
    pub(super) source: TicketSource,
    /// Its principal, which is the renewer of the tokens.
    pub(super) principal: &'a str,
    /// The user of this process.
    pub(super) identity: &'a Identity,
    /// Hadoop's configuration.
    pub(super) configuration: &'a Configuration,
    /// Authorities of the file systems of the job, each once.
    pub(super) authorities: Vec<String>,
}

/// Fetches tokens as long as it lives.
pub(super) struct TokenKeeper {
    work: Arc<KeeperWork>,
    first: watch::Receiver<bool>,
    task: tokio::task::AbortHandle,
}

struct KeeperWork {
    issuers: Vec<TokenIssuer>,
    renewer: String,
    containers: ContainerCredentials,
    events: Events,
    /// Tokens that may be valid, with the positions of their issuers and the ends of their intervals.
    live: Mutex<Vec<(usize, Token, u64)>>,
}

/// What one round has fetched.
struct FetchedRound {
    credentials: Credentials,
    valid_until_ms: u64,
}

impl TokenKeeper {
    /// Starts to fetch, with what a job needs to use the tokens.
    ///
    /// # Errors
    /// The configuration names no such file system.
    pub(super) fn start(
        login: TokenLogin<'_>,
        containers: ContainerCredentials,
        events: Events,
    ) -> Result<Self, IssueError> {
        let identity = Identity {
            credentials: Credentials::new(),
            tickets: Some(login.source),
            ..login.identity.clone()
        };
        let issuer = |name: &String| TokenIssuer::new(name, login.configuration, &identity);
        let mut issuers = login.authorities.iter().map(issuer).collect::<Result<Vec<_>, _>>()?;
        // The default file system has two names.
        let mut places = BTreeSet::new();
        issuers.retain(|issuer| places.insert(issuer.place()));
        let work = Arc::new(KeeperWork {
            issuers,
            renewer: login.principal.to_owned(),
            containers,
            events,
            live: Mutex::default(),
        });
        let (done, first) = watch::channel(false);
        let running = Arc::clone(&work);
        let span = tracing::info_span!("tokens");
        let task = tokio::spawn(async move { running.run(&done).await }.instrument(span));
        Ok(Self { work, first, task: task.abort_handle() })
    }

    /// Waits for the first tokens, however long the Key Distribution Center is away.
    pub(super) async fn first(&self) {
        // The task ends with this value alone.
        let mut first = self.first.clone();
        let _ended = first.wait_for(|done| *done).await;
    }

    /// Ends fetching, and cancels the tokens of this attempt.
    pub(super) async fn cancel(&self) {
        self.task.abort();
        let cancelled = tokio::time::timeout(CANCEL_LIMIT, self.work.cancel()).await;
        if cancelled.is_err() {
            tracing::warn!(error = "no response in time", "tokens_not_cancelled");
        }
    }
}

impl KeeperWork {
    async fn run(&self, done: &watch::Sender<bool>) {
        let mut refresh = TokenRefresh::default();
        let mut serial = 0;
        loop {
            let wait_ms = match self.fetch().await {
                Ok(round) => {
                    serial += 1;
                    let valid_ms = round.valid_until_ms.saturating_sub(wall_ms());
                    tracing::info!(serial, valid_ms, "tokens_fetched");
                    self.hand_out(serial, round);
                    done.send_replace(true);
                    refresh.fetched(valid_ms)
                }
                Err(error) => {
                    let error = chain(&error);
                    tracing::warn!(error, "tokens_not_fetched");
                    let _ending = self.events.send(Event::TokensNotFetched { error });
                    refresh.failed()
                }
            };
            tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        }
    }

    /// Fetches a token of each file system.
    async fn fetch(&self) -> Result<FetchedRound, IssueError> {
        let mut round = FetchedRound { credentials: Credentials::new(), valid_until_ms: u64::MAX };
        for (position, issuer) in self.issuers.iter().enumerate() {
            let issued = issuer.issue(&self.renewer).await?;
            let mut live = self.live.lock().await;
            let now_ms = wall_ms();
            live.retain(|(_, _, until_ms)| *until_ms > now_ms);
            live.push((position, issued.token.clone(), issued.valid_until_ms));
            round.valid_until_ms = round.valid_until_ms.min(issued.valid_until_ms);
            round.credentials.add(issued.token);
        }
        Ok(round)
    }

    fn hand_out(&self, serial: u64, round: FetchedRound) {
        let FetchedRound { credentials, valid_until_ms } = round;
        if let Some(process) = ProcessTokens::installed()
            && let Err(error) = process.replace(&credentials)
        {
            tracing::warn!(error = chain(&error), "tokens_not_installed");
        }
        self.containers.replace(&credentials);
        let fetched = FetchedTokens {
            lifetime: tokens::of_fetched(&credentials, valid_until_ms, wall_ms()),
            tokens: InstallTokens { serial, credentials: CredentialsBytes(credentials.encode()) },
        };
        let _ending = self.events.send(Event::TokensFetched(Box::new(fetched)));
    }

    async fn cancel(&self) {
        let live = std::mem::take(&mut *self.live.lock().await);
        for (position, token, _) in &live {
            let cancelled = self.issuers[*position].cancel(token).await;
            if let Err(error) = cancelled {
                tracing::info!(error = chain(&error), "token_not_cancelled");
            }
        }
        tracing::info!(count = live.len(), "tokens_cancelled");
    }
}

impl Drop for TokenKeeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}
