//! When each file system of a job with a keytab is asked for a token, and which tokens the job has. Pure: the caller asks,
//! and passes answers and the time.
//!
//! **Rule.** Each file system has a schedule of its own ([`TokenRefresh`]): one that is away is asked again and again, and the
//! others as if it were not there. Tokens are handed out together, the newest of each file system, as soon as one of them is
//! new.
//!
//! **Needed file systems** are those without which the job can neither start nor save. A start waits for a token of each, and
//! the first of these tokens to end limits the job. A start waits for one answer of each other file system too, which may be a
//! failure: a mirror that is away fails nothing.

use heddle_am_core::{FetchedTokens, TokenRefresh};
use heddle_hadoop::token::Credentials;
use heddle_protocol::control::{CredentialsBytes, InstallTokens};
use heddle_storage::IssuedToken;

use super::tokens;

/// The tokens of a job's file systems.
pub(super) struct TokenSchedule {
    file_systems: Vec<FileSystemTokens>,
    /// When the tokens of the submission end, ms since 1970; `None` if they are of no use.
    submitted_until_ms: Option<u64>,
    serial: u64,
}

/// The tokens of one file system.
struct FileSystemTokens {
    is_needed: bool,
    refresh: TokenRefresh,
    /// The newest one.
    issued: Option<IssuedToken>,
    /// Of the last fetch; `None` after a success.
    error: Option<String>,
}

impl TokenSchedule {
    /// Nothing was fetched yet. `needed`: for each file system, whether the job needs it.
    pub(super) fn new(needed: &[bool], submitted_until_ms: Option<u64>) -> Self {
        let file_system = |is_needed: &bool| FileSystemTokens {
            is_needed: *is_needed,
            refresh: TokenRefresh::default(),
            issued: None,
            error: None,
        };
        let file_systems = needed.iter().map(file_system).collect();
        Self { file_systems, submitted_until_ms, serial: 0 }
    }

    /// How many file systems there are.
    pub(super) fn len(&self) -> usize {
        self.file_systems.len()
    }

    /// A file system, by its position, has issued a token. Returns the wait before it is asked again, ms.
    pub(super) fn fetched(&mut self, position: usize, issued: IssuedToken, now_ms: u64) -> u64 {
        let one = &mut self.file_systems[position];
        let wait_ms = one.refresh.fetched(issued.valid_until_ms.saturating_sub(now_ms));
        one.issued = Some(issued);
        one.error = None;
        wait_ms
    }

    /// A file system, by its position, has issued none. Returns the wait before it is asked again, ms.
    pub(super) fn failed(&mut self, position: usize, error: String) -> u64 {
        let one = &mut self.file_systems[position];
        one.error = Some(error);
        one.refresh.failed()
    }

    /// The tokens that there are, for processes that run and for those that will be started.
    pub(super) fn hand_out(&mut self, now_ms: u64) -> (Credentials, FetchedTokens) {
        self.serial += 1;
        let (mut all, mut counted) = (Credentials::new(), Credentials::new());
        let mut valid_until_ms = u64::MAX;
        // Before the start others may be all that there is.
        let has_needed = self.file_systems.iter().any(|one| one.is_needed && one.issued.is_some());
        for one in &self.file_systems {
            let Some(issued) = &one.issued else { continue };
            all.add(issued.token.clone());
            if one.is_needed == has_needed {
                counted.add(issued.token.clone());
                valid_until_ms = valid_until_ms.min(issued.valid_until_ms);
            }
        }
        let lacks = |one: &FileSystemTokens| one.is_needed && one.issued.is_none();
        // The submission's tokens are used where there are no others.
        let submitted = self.submitted_until_ms.filter(|_| self.file_systems.iter().any(lacks));
        let tokens =
            InstallTokens { serial: self.serial, credentials: CredentialsBytes(all.encode()) };
        let lifetime = tokens::of_fetched(&counted, valid_until_ms, submitted, now_ms);
        (all, FetchedTokens { lifetime, tokens, error: self.errors() })
    }

    /// Whether the job can start.
    pub(super) fn is_ready(&self) -> bool {
        self.file_systems
            .iter()
            .all(|one| one.issued.is_some() || (!one.is_needed && one.error.is_some()))
    }

    /// Whether the last fetch of a file system, by its position, failed.
    pub(super) fn is_away(&self, position: usize) -> bool {
        self.file_systems[position].error.is_some()
    }

    /// Why tokens are missing, one cause for each file system that is away.
    pub(super) fn errors(&self) -> String {
        let errors: Vec<&str> =
            self.file_systems.iter().filter_map(|one| one.error.as_deref()).collect();
        errors.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use heddle_hadoop::Token;
    use heddle_hadoop::token::{DelegationIdentifier, token_kind};

    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn issued(service: &str, valid_until_ms: u64) -> IssuedToken {
        let mut identifier = DelegationIdentifier::default();
        identifier.max_date_ms = 7 * 24 * 3_600_000;
        let kind = token_kind::HDFS_DELEGATION;
        let token = Token::new(identifier.encode_writable(), *b"p", kind, service);
        IssuedToken { token, lookup: service.to_owned(), valid_until_ms }
    }

    fn services(credentials: &Credentials) -> Vec<&str> {
        credentials.tokens().map(|(_, token)| token.service()).collect()
    }

    #[test]
    fn each_file_system_has_its_own_schedule_and_retries() {
        let mut schedule = TokenSchedule::new(&[true, false], None);
        let day_ms = 24 * HOUR_MS;
        assert_eq!(schedule.fetched(0, issued("a:1", day_ms), 0), 18 * HOUR_MS);
        let waits: Vec<u64> = (0..8).map(|_| schedule.failed(1, "b is away".to_owned())).collect();
        assert_eq!(waits[..3], [1_000, 2_000, 4_000]);
        assert_eq!(waits[7], 60_000);
        assert_eq!(schedule.fetched(0, issued("a:1", 2 * day_ms), day_ms), 18 * HOUR_MS);
        assert_eq!(schedule.failed(1, "b is away".to_owned()), 60_000);
        assert_eq!(schedule.failed(0, "a is away".to_owned()), 1_000);
        assert_eq!(schedule.errors(), "a is away; b is away");
        schedule.fetched(1, issued("b:1", 2 * day_ms), day_ms);
        assert_eq!(schedule.hand_out(day_ms).1.error, "a is away", "that of b is over");
        assert!(schedule.is_away(0) && !schedule.is_away(1));
    }

    #[test]
    fn a_hand_out_has_the_newest_token_of_each_file_system() {
        let mut schedule = TokenSchedule::new(&[true, true], None);
        schedule.fetched(1, issued("b:1", HOUR_MS), 0);
        let (credentials, first) = schedule.hand_out(0);
        assert_eq!((services(&credentials), first.tokens.serial), (vec!["b:1"], 1));
        schedule.fetched(0, issued("a:1", 2 * HOUR_MS), 0);
        schedule.failed(1, "b is away".to_owned());
        let (credentials, second) = schedule.hand_out(0);
        assert_eq!((services(&credentials), second.tokens.serial), (vec!["a:1", "b:1"], 2));
        assert_eq!(
            Credentials::decode(&second.tokens.credentials.0).expect("decodes"),
            credentials
        );
        assert_eq!(second.lifetime.until_ms, HOUR_MS);
    }

    #[test]
    fn only_needed_file_systems_delay_the_start_and_limit_the_job() {
        let mut schedule = TokenSchedule::new(&[true, false], None);
        assert!(!schedule.is_ready());
        schedule.fetched(0, issued("a:1", 24 * HOUR_MS), 0);
        assert!(!schedule.is_ready(), "the mirror has not answered");
        schedule.failed(1, "the mirror is away".to_owned());
        assert!(schedule.is_ready());
        schedule.fetched(1, issued("b:1", HOUR_MS), 0);
        assert_eq!(schedule.hand_out(0).1.lifetime.until_ms, 24 * HOUR_MS);
        schedule.failed(0, "a is away".to_owned());
        assert!(schedule.is_ready(), "its token is valid");
        let mut schedule = TokenSchedule::new(&[true, false], None);
        schedule.failed(0, "a is away".to_owned());
        schedule.fetched(1, issued("b:1", HOUR_MS), 0);
        assert!(!schedule.is_ready());
        assert_eq!(schedule.hand_out(0).1.lifetime.until_ms, HOUR_MS);
    }

    #[test]
    fn tokens_of_the_submission_count_until_others_are_there() {
        let mut schedule = TokenSchedule::new(&[true, true], Some(10 * HOUR_MS));
        schedule.fetched(0, issued("a:1", 24 * HOUR_MS), 0);
        assert_eq!(schedule.hand_out(0).1.lifetime.until_ms, 10 * HOUR_MS);
        schedule.fetched(1, issued("b:1", 24 * HOUR_MS), 0);
        assert_eq!(schedule.hand_out(0).1.lifetime.until_ms, 24 * HOUR_MS);
    }
}
