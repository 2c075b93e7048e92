//! Credentials of the job: how long file systems accept its tokens, and when it must save because of that.
//!
//! **Rule.** With dead tokens a job can neither save nor load a lost shard: it would train on for nothing, and hang in its
//! next recovery. So it ends before. A last checkpoint begins a reserve before the tokens are of no use, and the job ends
//! with exit code 5 when it is committed, or without it when the time is over. A new submission continues with new tokens.
//!
//! Where the ApplicationMaster fetches tokens itself, others come in time and move all points. If they do not come, the job
//! takes a checkpoint before those that it has are of no use, and goes on: a Key Distribution Center that comes back makes
//! everything right again.
//!
//! **Delivery.** Tokens that were fetched are sent to every registered container, and to each one that registers later:
//! it may have been started with older ones. A container confirms them when they are in its token file. One that cannot
//! write it gets the next ones.
//!
//! **Limits.** The reserve is a tenth of the time that the tokens last, at least twice the time of the newest checkpoint,
//! and at most `checkpoint.timeout`. A job that exports its model has saved already.

use std::collections::BTreeSet;
use std::sync::Arc;

use heddle_protocol::control::{Command, InstallTokens};
use heddle_protocol::ids::{Member, Role, Slot};
use heddle_protocol::view::{CredentialsView, WarningCode};

use crate::context::Context;
use crate::context::deadlines::Purpose;
use crate::fleet::Fleet;
use crate::time::MonotonicMs;
use crate::token_lifetime::TokenLifetime;

/// Share of the time that the tokens last, for the last checkpoint.
const RESERVE_SHARE: u64 = 10;
/// Times that the newest checkpoint took, for the last one.
const RESERVE_TIMES: u64 = 2;

/// What is known of the job's tokens; nothing where it needs none.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobCredentials {
    expiry: Option<TokenExpiry>,
    fetched: Option<TokenDelivery>,
    /// Fetches that failed.
    failures: u64,
    /// Of the last one of each file system; empty if none failed.
    error: String,
}

/// Tokens on their way to the containers.
#[derive(Clone, Debug)]
struct TokenDelivery {
    serial: u64,
    command: Arc<Command>,
    installed: BTreeSet<Member>,
}

/// A lifetime on the driver's clock.
#[derive(Clone, Copy, Debug)]
struct TokenExpiry {
    learned: MonotonicMs,
    unusable: MonotonicMs,
    end: MonotonicMs,
    until_ms: u64,
}

impl JobCredentials {
    /// The tokens last this long from now on, and those before do not count any more. `took_ms`: time of the newest
    /// checkpoint; 0 without one.
    pub(crate) fn last(&mut self, lifetime: TokenLifetime, took_ms: u64, ctx: &mut Context) {
        let TokenLifetime { usable_ms, end_ms, until_ms } = lifetime;
        let learned = ctx.now();
        let (unusable, end) = (learned + usable_ms, learned + end_ms.max(usable_ms));
        self.expiry = Some(TokenExpiry { learned, unusable, end, until_ms });
        self.plan(took_ms, ctx);
    }

    /// Sets when the last checkpoint begins and when the job ends.
    pub(crate) fn plan(&self, took_ms: u64, ctx: &mut Context) {
        let Some(expiry) = self.expiry else {
            return;
        };
        let share_ms = expiry.unusable.since(expiry.learned) / RESERVE_SHARE;
        let reserve_ms = share_ms
            .max(took_ms.saturating_mul(RESERVE_TIMES))
            .min(ctx.config().spec.checkpoint.timeout.0);
        let save = MonotonicMs(expiry.unusable.0.saturating_sub(reserve_ms));
        ctx.set_deadline(Purpose::TokensSave, save);
        ctx.set_deadline(Purpose::TokensEnd, expiry.end);
    }

    /// When the job ends for want of tokens, if the ApplicationMaster fetches no others.
    pub(crate) fn last_end(&self) -> Option<MonotonicMs> {
        self.expiry.filter(|expiry| expiry.end == expiry.unusable).map(|expiry| expiry.end)
    }

    /// Why there are no others than those that end; `None` where the ApplicationMaster fetches none, or had no failure.
    pub(crate) fn fetch_error(&self) -> Option<&str> {
        Some(self.error.as_str()).filter(|error| !error.is_empty())
    }

    /// Tokens were fetched: all containers get them. `error`: of the file systems that are away.
    pub(crate) fn fetched(
        &mut self,
        tokens: InstallTokens,
        error: String,
        fleet: &Fleet,
        ctx: &mut Context,
    ) {
        self.error = error;
        let serial = tokens.serial;
        let command = Arc::new(Command::Tokens(tokens));
        for role in [Role::Pserver, Role::Trainer] {
            fleet.send_to_all(role, Arc::clone(&command), ctx);
        }
        self.fetched = Some(TokenDelivery { serial, command, installed: BTreeSet::new() });
    }

    /// Tokens could not be fetched.
    pub(crate) fn not_fetched(&mut self, error: String, is_first: bool, ctx: &mut Context) {
        if is_first {
            // The view counts the others.
            ctx.warn(
                WarningCode::TokensNotFetched,
                format!("tokens of HDFS could not be fetched, trying again: {error}"),
            );
        }
        self.failures = self.failures.saturating_add(1);
        self.error = error;
    }

    /// A container has registered: it may have been started with older tokens.
    pub(crate) fn registered(&self, slot: Slot, fleet: &Fleet, ctx: &mut Context) {
        if let Some(delivery) = &self.fetched {
            fleet.send(slot, Arc::clone(&delivery.command), ctx);
        }
    }

    /// A container has these tokens in its token file.
    pub(crate) fn installed(&mut self, member: Member, serial: u64) {
        if let Some(delivery) = self.fetched.as_mut().filter(|one| one.serial == serial) {
            delivery.installed.insert(member);
        }
    }

    /// For the users of the job.
    pub(crate) fn view(&self, fleet: &Fleet) -> Option<CredentialsView> {
        let expiry = self.expiry?;
        let pending = self.fetched.as_ref().map_or(0, |delivery| {
            let holders = [Role::Pserver, Role::Trainer].map(|role| fleet.holders(role));
            let waits = |member: &Member| !delivery.installed.contains(member);
            holders.into_iter().flatten().filter(|holder| waits(&holder.member)).count()
        });
        Some(CredentialsView {
            until_ms: expiry.until_ms,
            is_refreshed: expiry.end != expiry.unusable,
            failures: self.failures,
            error: self.error.clone(),
            pending_containers: u32::try_from(pending).unwrap_or(u32::MAX),
        })
    }
}
