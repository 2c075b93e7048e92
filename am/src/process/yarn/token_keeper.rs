//! Tokens of a job with a keytab: fetched by the ApplicationMaster, given to all containers, cancelled at the end.
//!
//! Only this process logs in by Kerberos. When to fetch is decided by [`TokenSchedule`], what follows for the job by its core.
//! All file systems are asked at the same time, and each delays its own tokens alone. The login blocks, on threads of its own
//! (`heddle_hadoop::kerberos`). New tokens go first into the token file of this process, then into the launch context of
//! containers, then to the running ones: a container that starts meanwhile has either the new ones or is registered after them.

use std::sync::Arc;
use std::time::Duration;

use heddle_am_core::Event;
use heddle_hadoop::identity::Identity;
use heddle_hadoop::kerberos::TicketSource;
use heddle_hadoop::token::{Credentials, ProcessTokens};
use heddle_hadoop::{Configuration, Token};
use heddle_storage::{IssueError, IssuedToken, TokenIssuer, chain};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tracing::Instrument as _;

use super::inputs::JobFileSystem;
use super::token_schedule::TokenSchedule;
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
    /// File systems of the job.
    pub(super) file_systems: Vec<JobFileSystem>,
    /// When the tokens of the submission end, ms since 1970; `None` if they are of no use.
    pub(super) submitted_until_ms: Option<u64>,
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
        let (mut issuers, mut needed) = (Vec::<TokenIssuer>::new(), Vec::new());
        for JobFileSystem { authority, is_needed } in &login.file_systems {
            let issuer = TokenIssuer::new(authority, login.configuration, &identity)?;
            // The default file system has two names.
            match issuers.iter().position(|other| other.place() == issuer.place()) {
                Some(position) => needed[position] |= is_needed,
                None => {
                    issuers.push(issuer);
                    needed.push(*is_needed);
                }
            }
        }
        let schedule = TokenSchedule::new(&needed, login.submitted_until_ms);
        let work = Arc::new(KeeperWork {
            issuers,
            renewer: login.principal.to_owned(),
            containers,
            events,
            live: Mutex::default(),
        });
        let (ready, first) = watch::channel(false);
        let (running, asking) = (Arc::clone(&work), Arc::clone(&work));
        let span = tracing::info_span!("tokens");
        let issue = move |position| Arc::clone(&asking).issue(position);
        let task = async move { running.run(schedule, &ready, issue).await };
        let task = tokio::spawn(task.instrument(span));
        Ok(Self { work, first, task: task.abort_handle() })
    }

    /// Waits for the tokens that a start needs, however long the Key Distribution Center is away.
    pub(super) async fn first(&self) {
        // The task ends with this value alone.
        let mut first = self.first.clone();
        let _ended = first.wait_for(|ready| *ready).await;
    }

    /// Ends fetching, and cancels the tokens of this attempt.
    pub(super) async fn cancel(&self) {
        self.task.abort();
        let cancelled = tokio::time::timeout(CANCEL_LIMIT, Arc::clone(&self.work).cancel()).await;
        if cancelled.is_err() {
            tracing::warn!(error = "no response in time", "tokens_not_cancelled");
        }
    }
}

impl KeeperWork {
    /// Asks each file system by `issue` when the schedule wants it, and hands out what comes.
    async fn run<Issuing>(
        &self,
        mut schedule: TokenSchedule,
        ready: &watch::Sender<bool>,
        issue: impl Fn(usize) -> Issuing,
    ) where
        Issuing: Future<Output = (usize, Result<IssuedToken, String>)> + Send + 'static,
    {
        let mut asked = JoinSet::new();
        let ask = |position, wait_ms| {
            let issued = issue(position);
            let asking = async move {
                tokio::time::sleep(Duration::from_millis(wait_ms)).await;
                issued.await
            };
            asking.in_current_span()
        };
        for position in 0..schedule.len() {
            asked.spawn(ask(position, 0));
        }
        while let Some(answer) = asked.join_next().await {
            let (position, issued) = answer.expect("a fetch neither panics nor is aborted alone");
            let wait_ms = match issued {
                Ok(issued) => self.fetched(position, issued, &mut schedule).await,
                Err(error) => {
                    tracing::warn!(error, "tokens_not_fetched");
                    let is_first = !schedule.is_away(position);
                    let wait_ms = schedule.failed(position, error);
                    let error = schedule.errors();
                    let _ending = self.events.send(Event::TokensNotFetched { error, is_first });
                    wait_ms
                }
            };
            ready.send_replace(schedule.is_ready());
            asked.spawn(ask(position, wait_ms));
        }
    }

    /// Fetches a token of one file system.
    async fn issue(self: Arc<Self>, position: usize) -> (usize, Result<IssuedToken, String>) {
        let issued = self.issuers[position].issue(&self.renewer).await;
        (position, issued.map_err(|error| chain(&error)))
    }

    /// Hands out tokens, one of which is new. Returns the wait before its file system is asked again, ms.
    async fn fetched(
        &self,
        position: usize,
        issued: IssuedToken,
        schedule: &mut TokenSchedule,
    ) -> u64 {
        let now_ms = wall_ms();
        let mut live = self.live.lock().await;
        live.retain(|(_, _, until_ms)| *until_ms > now_ms);
        live.push((position, issued.token.clone(), issued.valid_until_ms));
        drop(live);
        let service = issued.token.service().to_owned();
        let valid_ms = issued.valid_until_ms.saturating_sub(now_ms);
        let wait_ms = schedule.fetched(position, issued, now_ms);
        let (credentials, fetched) = schedule.hand_out(now_ms);
        tracing::info!(serial = fetched.tokens.serial, service, valid_ms, "tokens_fetched");
        if let Some(process) = ProcessTokens::installed()
            && let Err(error) = process.replace(&credentials)
        {
            tracing::warn!(error = chain(&error), "tokens_not_installed");
        }
        self.containers.replace(&credentials);
        let _ending = self.events.send(Event::TokensFetched(Box::new(fetched)));
        wait_ms
    }

    /// Cancels all tokens, at all file systems at the same time.
    async fn cancel(self: Arc<Self>) {
        let live = std::mem::take(&mut *self.live.lock().await);
        let count = live.len();
        let mut cancelling = JoinSet::new();
        for position in 0..self.issuers.len() {
            let work = Arc::clone(&self);
            let tokens: Vec<Token> =
                live.iter().filter(|one| one.0 == position).map(|one| one.1.clone()).collect();
            cancelling.spawn(async move {
                for token in &tokens {
                    if let Err(error) = work.issuers[position].cancel(token).await {
                        tracing::info!(error = chain(&error), "token_not_cancelled");
                    }
                }
            });
        }
        cancelling.join_all().await;
        tracing::info!(count, "tokens_cancelled");
    }
}

impl Drop for TokenKeeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    /// What a file system that issues tokens answers.
    fn issued() -> IssuedToken {
        let token = Token::new(*b"i", *b"p", "HDFS_DELEGATION_TOKEN", "works:1");
        IssuedToken { token, lookup: "works:1".to_owned(), valid_until_ms: wall_ms() + 86_400_000 }
    }

    #[tokio::test]
    async fn a_file_system_that_is_away_stops_no_other_token() {
        for away in [0, 1] {
            let (events, mut received) = mpsc::unbounded_channel();
            let work = KeeperWork {
                issuers: Vec::new(),
                renewer: String::new(),
                containers: ContainerCredentials::new(Credentials::new()),
                events,
                live: Mutex::default(),
            };
            let (ready, first) = watch::channel(false);
            let schedule = TokenSchedule::new(&[away != 0, away != 1], None);
            let run = work.run(schedule, &ready, |position| async move {
                match position == away {
                    true => (position, Err("cannot get a token of hdfs://away".to_owned())),
                    false => (position, Ok(issued())),
                }
            });
            let (mut handed_out, mut failures) = (Vec::new(), 0);
            let watched = async {
                while failures < 3 {
                    match received.recv().await {
                        Some(Event::TokensFetched(fetched)) => handed_out.push(fetched.tokens),
                        Some(Event::TokensNotFetched { error, is_first }) => {
                            assert_eq!(error, "cannot get a token of hdfs://away");
                            assert_eq!(is_first, failures == 0);
                            failures += 1;
                        }
                        other => panic!("{other:?}"),
                    }
                }
            };
            tokio::select! {
                () = run => panic!("fetching does not end"),
                () = watched => {}
            }
            assert!(*first.borrow(), "the start waits for needed file systems alone");
            assert_eq!(handed_out.len(), 1, "a failure repeats no other fetch");
            assert_eq!(handed_out[0].credentials.0, work.containers.encode());
            assert_eq!(work.live.lock().await.len(), 1);
        }
    }
}
