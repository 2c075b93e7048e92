//! The end of the job's tokens: what it means for checkpoints and stage. The rule is in `credentials`.

use heddle_protocol::exit_code::ExitCode;

use super::Core;
use crate::checkpoint::cut::CutReason;
use crate::context::deadlines::{Purpose, Retried};
use crate::failure::JobFailure;
use crate::stage::StageKind;
use crate::stage::stop::StopOrder;
use crate::token_lifetime::{FetchedTokens, TokenLifetime};

impl Core {
    /// The job's tokens last this long.
    pub(super) fn tokens_last(&mut self, lifetime: TokenLifetime) {
        if self.stage.is_stopping() {
            return;
        }
        if self.stage.stop_order().is_some_and(|order| order.is_for_tokens()) {
            // New tokens came while the last checkpoint was being taken: it is one as any other.
            self.stage.take_stop_order();
            self.ctx.clear_deadline(Purpose::Retry(Retried::StopCut));
            self.checkpoints.unwant();
        }
        self.credentials.last(lifetime, self.took_ms(), &mut self.ctx);
    }

    /// The ApplicationMaster has fetched tokens.
    pub(super) fn tokens_fetched(&mut self, fetched: FetchedTokens) {
        let FetchedTokens { lifetime, tokens, error } = fetched;
        if !self.stage.is_stopping() {
            self.credentials.fetched(tokens, error, &self.fleet, &mut self.ctx);
            self.tokens_last(lifetime);
        }
    }

    /// A checkpoint exists: the last one may take as long.
    pub(super) fn plan_tokens_end(&mut self) {
        // One that has begun does not begin again.
        if self.ctx.is_waiting_for(Purpose::TokensSave) {
            self.credentials.plan(self.took_ms(), &mut self.ctx);
        }
    }

    fn took_ms(&self) -> u64 {
        self.checkpoints.views().last().map_or(0, |last| last.took_ms)
    }

    /// The last checkpoint begins. Where shards are not in a common state, nothing newer than the base can be saved.
    pub(super) fn save_before_tokens_end(&mut self) {
        if self.stage.kind() == StageKind::Exporting || self.stage.stop_order().is_some() {
            return;
        }
        let Some(end) = self.credentials.last_end() else {
            return self.save_now();
        };
        if !self.can_cut_soon() {
            return self.end_without_tokens(None);
        }
        self.stage.set_stop_order(StopOrder::for_tokens(end));
        self.checkpoints.want(CutReason::Stop);
    }

    /// The time for a last checkpoint is over.
    pub(super) fn tokens_end(&mut self) {
        // An export that cannot go on ends by its own limits.
        if self.stage.kind() == StageKind::Exporting {
            return;
        }
        let cause = match self.credentials.fetch_error() {
            Some(error) => format!("others could not be fetched: {error}"),
            None => "it was not complete in time".to_owned(),
        };
        self.end_without_tokens(Some(&cause));
    }

    /// The last checkpoint is committed.
    pub(super) fn end_saved_without_tokens(&mut self) {
        self.end_with_tokens("ended after a checkpoint", "to continue from it");
    }

    /// There is no checkpoint newer than the last one.
    pub(super) fn end_without_tokens(&mut self, cause: Option<&str>) {
        let ended = match cause {
            Some(cause) => format!("ended without a new checkpoint ({cause})"),
            None => "ended".to_owned(),
        };
        let from = match self.checkpoints.base_manifest() {
            Some(base) => format!("to continue from checkpoint {}", base.cut),
            None => "to start from the beginning: no checkpoint exists yet".to_owned(),
        };
        self.end_with_tokens(&ended, &from);
    }

    fn end_with_tokens(&mut self, ended: &str, continues: &str) {
        let message = format!(
            "the job's HDFS tokens are about to end, so it {ended}; submit it again {continues}"
        );
        self.fail(JobFailure::new(ExitCode::Denied, message));
    }
}
