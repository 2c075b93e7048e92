//! The dispatcher: the only entry, and the only code that uses all components.
//!
//! Components change their own state and return facts; [`Core`] routes the facts. Events change facts; [`Core::advance`] then
//! moves the job on as far as the facts allow. So the order of two facts does not matter. One file for
//! each subject holds the routes: `losses` (containers), `reports`, `rollback`, `local_recovery`, `failover`, `refill`,
//! `hand_over`, `shard_files`, `phases`, `spares`, `stragglers`, `takeover`, `completion`, `exports`, `model_saves`, `expiry`,
//! `last_save`, `view`.

mod allocation;
mod completion;
mod expiry;
mod exports;
mod failover;
mod hand_over;
mod last_save;
mod local_recovery;
mod losses;
mod model_saves;
mod phases;
mod refill;
mod registration;
mod reports;
mod rollback;
mod scaling;
mod shard_files;
mod spares;
mod stragglers;
mod takeover;
mod takeover_replicas;
mod view;

use std::sync::Arc;

use heddle_protocol::control::{Operation, Report, TrainerReport};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::failure::ErrorClass;
use heddle_protocol::view::WarningCode;

use crate::action::{Action, CallId, ConnectionId, OperationId};
use crate::chaos::FaultOrders;
use crate::checkpoint::commit::CommitOutcome;
use crate::checkpoint::cut::CutReason;
use crate::checkpoint::{Checkpoints, Committed, CutEnded};
use crate::config::Config;
use crate::context::deadlines::{Purpose, Retried};
use crate::context::{Context, StoreCallPurpose};
use crate::credentials::JobCredentials;
use crate::event::{Event, Stored};
use crate::failure::JobFailure;
use crate::fleet::Fleet;
use crate::model_saves::ModelSaves;
use crate::stage::{JobStage, StageKind, StageMachine};
use crate::time::{MonotonicMs, Now};
use crate::work::JobWork;
use crate::work::locality::LocalityIndex;

/// A timer that fires this much too late shows that this process stood still, not that the others were silent.
const STOOD_STILL_MS: u64 = 1_000;

/// A job's decisions: a pure function of the events so far.
#[derive(Clone, Debug)]
pub struct Core {
    ctx: Context,
    fleet: Fleet,
    work: JobWork,
    checkpoints: Checkpoints,
    saves: ModelSaves,
    credentials: JobCredentials,
    chaos: FaultOrders,
    stage: StageMachine,
}

impl Core {
    /// A job without any event; the first one is [`Event::Startup`].
    #[must_use]
    pub fn new(config: impl Into<Arc<Config>>) -> Self {
        let ctx = Context::new(config.into());
        let config = ctx.config();
        let locality = Arc::new(LocalityIndex::of(&config.locality));
        Self {
            fleet: Fleet::new(&config, Arc::clone(&locality)),
            work: JobWork::new(&config, locality, &ctx),
            checkpoints: Checkpoints::default(),
            saves: ModelSaves::default(),
            credentials: JobCredentials::default(),
            chaos: FaultOrders::default(),
            stage: StageMachine::new(),
            ctx,
        }
    }

    /// Takes in one event. Returns the actions to perform, in order.
    pub fn on(&mut self, mut event: Event, now: Now) -> Vec<Action> {
        let forgiven_ms = self.pass_time(now);
        if let Event::StoodStill { ms } = &mut event {
            *ms = ms.saturating_sub(forgiven_ms);
        }
        if self.stage.is_over() {
            return self.ctx.take_actions();
        }
        // Thousands of containers send heartbeats. A heartbeat moves nothing, except when a cut becomes due with it.
        let wanted = self.checkpoints.wanted();
        let mut moves = !is_heartbeat(&event);
        // Progress of the work does not change which containers are there.
        let mut changes_fleet = !is_progress(&event);
        self.apply(event);
        // After the event: a heartbeat that comes together with its deadline still counts.
        while let Some(purpose) = self.ctx.expired_deadline() {
            self.on_deadline(purpose);
            (moves, changes_fleet) = (true, true);
        }
        if moves || self.checkpoints.wanted() != wanted {
            self.advance(changes_fleet);
        }
        self.ctx.take_actions()
    }

    /// Whether reports on this connection count: its container registered there last, and is part of the job.
    #[must_use]
    pub fn listens_on(&self, connection: ConnectionId) -> bool {
        self.fleet.at(connection).is_some()
    }

    /// When to call [`Core::on`] with [`Event::Timer`] if nothing else happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<MonotonicMs> {
        self.ctx.next_deadline()
    }

    /// Returns how long this process is known to have stood still by now, ms.
    fn pass_time(&mut self, now: Now) -> u64 {
        let due = self.ctx.next_deadline();
        self.ctx.set_time(now);
        let late_ms = due.map_or(0, |due| self.ctx.now().since(due));
        if late_ms <= STOOD_STILL_MS {
            return 0;
        }
        self.stood_still(late_ms);
        late_ms
    }

    /// What containers sent meanwhile is still to be read, and those that came could not begin. (The lease is not extended:
    /// only an answer of the ResourceManager shows that this attempt still leads.)
    fn stood_still(&mut self, ms: u64) {
        self.fleet.forgive_silence(ms, &self.ctx);
        self.ctx.forgive_standstill(ms);
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Startup(startup) => self.start(*startup),
            Event::Allocated { container, slot, incarnation, node } => {
                if self.fleet.allocated(container, slot, incarnation, node, &mut self.ctx) {
                    self.stage.recoveries_mut().launched(slot, &self.ctx);
                }
            }
            Event::StoodStill { ms } => self.stood_still(ms),
            Event::Timer => {}
            Event::Exited { container, exit, text } => self.exited(&container, &exit, &text),
            Event::NodeUnreachable { container, cause } => {
                let loss = self.fleet.node_unreachable(&container, &cause, &mut self.ctx);
                self.lose_all(loss);
            }
            Event::Preempting { container, deadline_ms } => {
                self.preemption_announced(&container, deadline_ms);
            }
            Event::NodeLeaving { node } => self.node_leaves(&node),
            Event::Registered { connection, registration } => {
                self.registered(connection, *registration);
            }
            Event::Report { connection, report } => self.report(connection, *report),
            Event::Closed { connection } => self.fleet.closed(connection, &mut self.ctx),
            Event::Probed { member, outcome } => {
                let loss = self.fleet.probed(member, outcome, &mut self.ctx);
                self.lose_all(loss);
            }
            Event::RecordDurable { record } => {
                self.ctx.record_durable(record);
                self.decisions_durable();
            }
            Event::JournalFailed { error, fenced: true, .. } | Event::Fenced { reason: error } => {
                self.fenced(&error);
            }
            Event::ApplicationOver { reason } => self.application_over(&reason),
            Event::JournalFailed { error, fenced: false, exit_code } => {
                self.journal_failed(exit_code, &error);
            }
            Event::Stored { call, outcome } => self.stored(call, outcome),
            Event::ClusterHeard => self.ctx.cluster_answered(),
            Event::ClusterSays { text } => self.fleet.set_cluster_message(text),
            Event::Rejected { reason } => {
                self.fail(JobFailure::new(
                    ExitCode::Refused,
                    format!("the cluster refused the job: {reason}"),
                ));
            }
            Event::TokensLast(lifetime) => self.tokens_last(lifetime),
            Event::TokensFetched(fetched) => self.tokens_fetched(*fetched),
            Event::TokensNotFetched { error, is_first } => {
                self.credentials.not_fetched(error, is_first, &mut self.ctx);
            }
            Event::Operation { id, operation } => self.operation(id, &operation),
        }
    }

    fn on_deadline(&mut self, purpose: Purpose) {
        match purpose {
            Purpose::Liveness => {
                self.record_stuck_steps();
                let losses = self.fleet.check_liveness(&mut self.ctx);
                self.lose_all(losses);
            }
            Purpose::Outage => {
                let works = self.stage.is_in_phase();
                let loss = self.fleet.check_data_path(works, &mut self.ctx);
                self.lose_all(loss);
            }
            Purpose::Reconcile => self.fleet.look_at_slots(),
            Purpose::Retry(Retried::Load) => self.load_again(),
            // `advance` does what waited for it.
            Purpose::Join | Purpose::Figures | Purpose::CutStaging | Purpose::Retry(_) => {}
            Purpose::ExportLease => self.export_lease_lapsed(),
            Purpose::Allocation => self.allocation_timed_out(),
            Purpose::Takeover => self.takeover_timed_out(),
            Purpose::Replacement => self.replacement_timed_out(),
            Purpose::HandOver => self.hand_over_timed_out(),
            Purpose::Backups => self.warn_of_lacking_backups(),
            Purpose::Controller => self.controller_is_silent(),
            Purpose::LastSave => self.last_save_timed_out(),
            Purpose::CutDue => self.checkpoints.want(CutReason::Due),
            Purpose::CutTimeout => {
                let ended = self.checkpoints.timed_out(&self.fleet, &mut self.ctx);
                self.cut_ended(ended);
            }
            Purpose::CutCopies => self.checkpoints.stop_waiting_for_copies(),
            Purpose::Straggler => self.compare_trainers(),
            Purpose::TokensSave => self.save_before_tokens_end(),
            Purpose::TokensEnd => self.tokens_end(),
            Purpose::Stopped => self.stop_timed_out(),
        }
    }

    /// Moves the job on as far as the facts allow. Each round either moves it or is the last.
    ///
    /// `changes_fleet`: whether the first round looks for missing containers and for trainers that can join, which walks
    /// every slot.
    fn advance(&mut self, mut changes_fleet: bool) {
        // A cut may be complete in the event that ends this attempt: it belongs to the next one.
        while self.stage.kind() != StageKind::Over {
            self.end_on_illegal_transition();
            if changes_fleet {
                self.reconcile();
                self.watch_allocation();
                self.admit();
            }
            self.ctx.store_held_back();
            self.hand_over(changes_fleet);
            let moved = self.advance_cut()
                || self.advance_save()
                || self.advance_stage()
                || (changes_fleet && self.move_dispensable_pserver());
            if !moved {
                if changes_fleet {
                    self.refill();
                }
                if !self.stage.has_illegal() {
                    return;
                }
            }
            changes_fleet = true;
        }
    }

    fn advance_cut(&mut self) -> bool {
        if self.checkpoints.is_open() {
            let (point, work, fleet) = (self.stage.cut_point(), &self.work, &self.fleet);
            let (map, views) = (self.stage.map(), self.stage.views().all());
            return self.checkpoints.advance(point, work, map, views, fleet, &mut self.ctx);
        }
        let can = self.stage.is_in_phase() && !self.stage.views().is_handing_over();
        let Some(reason) = self.checkpoints.wanted().filter(|_| can) else {
            return false;
        };
        let is_stop = matches!(reason, CutReason::Stop | CutReason::LastSave);
        if is_stop && self.ctx.waits_to_retry(Retried::StopCut) {
            return false;
        }
        if reason == CutReason::Best && self.ctx.waits_to_retry(Retried::BestCut) {
            return false;
        }
        let timeout = self.ctx.now() + self.ctx.config().spec.checkpoint.timeout.0;
        let order = self.stage.stop_order().filter(|_| is_stop);
        let timeout = order.map_or(timeout, |order| order.cut_begins(timeout));
        self.checkpoints.open(reason, timeout, self.stage.map().len(), &mut self.ctx);
        self.checkpoints.save_begins(&self.work, &self.fleet, &self.ctx);
        true
    }

    fn advance_stage(&mut self) -> bool {
        match self.stage.kind() {
            StageKind::New | StageKind::FindingCheckpoint | StageKind::Over => false,
            StageKind::AwaitingCommit => self.advance_awaiting_commit(),
            StageKind::Takeover => self.advance_takeover(),
            StageKind::Restoring => self.advance_restoring(),
            StageKind::Idle => self.advance_idle(),
            StageKind::Beginning => self.advance_beginning(),
            StageKind::Working => self.advance_working(),
            StageKind::Exporting => self.advance_exporting(),
            StageKind::Stopping => self.advance_stopping(),
        }
    }

    fn operation(&mut self, id: OperationId, operation: &Operation) {
        let answer = match operation {
            _ if self.stage.is_stopping() => match operation {
                Operation::Stop { .. } | Operation::Kill => {
                    self.fleet.stop_all(0, &mut self.ctx);
                    Ok("stopping at once".to_owned())
                }
                Operation::Checkpoint
                | Operation::Scale { .. }
                | Operation::ScaleAuto
                | Operation::Resize(_)
                | Operation::Chaos(_) => Err("the job is ending".to_owned()),
            },
            Operation::Kill => {
                self.end_stopped("killed by an operator; run it again to continue", 0);
                Ok("killed".to_owned())
            }
            Operation::Stop { checkpoint } => match self.stop(id, *checkpoint) {
                Some(answer) => Ok(answer.to_owned()),
                None => return,
            },
            Operation::Checkpoint if self.can_cut() => {
                return self.checkpoints.ordered_by(id);
            }
            Operation::Checkpoint => {
                Err("no training is under way: there is nothing new to save".to_owned())
            }
            Operation::Scale { .. } | Operation::ScaleAuto | Operation::Resize(_) => {
                let answer = self.scaling_order(operation);
                return self.ctx.answer_recorded(id, answer);
            }
            Operation::Chaos(order) => self.chaos.order(order, &self.fleet, &mut self.ctx),
        };
        self.ctx.answer(id, answer);
    }

    fn stored(&mut self, call: CallId, outcome: Stored) {
        // A call is answered once; a repeated answer is ignored.
        let Some(purpose) = self.ctx.store_answered(call) else {
            return;
        };
        if let Stored::Fenced { error } = &outcome {
            return self.fenced(error);
        }
        match purpose {
            StoreCallPurpose::Stage(cut) => {
                let ended = self.checkpoints.staged(call, cut, outcome, &self.fleet, &mut self.ctx);
                self.cut_ended(ended);
            }
            StoreCallPurpose::Commit => {
                match self.checkpoints.commit_answered(call, outcome, &self.fleet, &mut self.ctx) {
                    CommitOutcome::NothingFollows => {}
                    CommitOutcome::GivenUp(ended) => self.cut_ended(Some(ended)),
                    CommitOutcome::Committed(committed) => self.committed(committed),
                }
            }
            StoreCallPurpose::Search => self.base_found(outcome),
            StoreCallPurpose::Publish => self.published(outcome),
            StoreCallPurpose::Replace(shard) => {
                if let Stored::NotDone { failure } | Stored::Unknown { failure } = outcome {
                    self.ctx.warn(
                        WarningCode::CopyNotReplaced,
                        format!("files of shard {shard} could not be replaced: {failure}"),
                    );
                }
            }
            StoreCallPurpose::Housekeeping => {
                if let Stored::NotDone { failure } | Stored::Unknown { failure } = outcome {
                    self.ctx.warn(
                        WarningCode::OldFilesKept,
                        format!("old checkpoint files could not be removed: {failure}"),
                    );
                }
            }
        }
    }

    /// The open cut was given up.
    fn cut_ended(&mut self, ended: Option<CutEnded>) {
        // While the outcome of a commit was awaited, a rollback follows: nothing newer than the base is left to save.
        let rolls_back = matches!(self.stage.now(), JobStage::AwaitingCommit { .. });
        self.cut_ended_by(ended, rolls_back);
    }

    fn cut_ended_by(&mut self, ended: Option<CutEnded>, rolls_back: bool) {
        let Some(ended) = ended else {
            return;
        };
        let CutEnded { reason, failure, .. } = &ended;
        if !rolls_back {
            self.save_cut_failed(failure);
        }
        let at_first = matches!(reason, CutReason::Initial | CutReason::First) && !rolls_back;
        if at_first && failure.class == ErrorClass::Denied {
            // Nothing is trained yet, and after the training nothing could be saved either.
            let message = format!("no checkpoint can be saved: {failure}");
            return self.fail(JobFailure::new(ExitCode::Denied, message));
        }
        match reason {
            CutReason::Due | CutReason::Ordered | CutReason::Initial | CutReason::First => {
                self.plan_next_cut(true, self.stage.is_working() && !rolls_back);
            }
            // After a rollback the pass is evaluated again, and training ends again. The storage has not failed.
            CutReason::Best | CutReason::Final if rolls_back => {}
            CutReason::Best => {
                if let Err(failure) = self.checkpoints.best_cut_failed(&ended, &mut self.ctx) {
                    self.fail(failure);
                }
            }
            CutReason::Stop | CutReason::LastSave => {
                self.stop_cut_failed(&failure.text, rolls_back)
            }
            CutReason::Final => {
                if let Err(failure) = self.checkpoints.final_cut_failed(&ended, &mut self.ctx) {
                    self.fail(failure);
                }
            }
        }
    }

    /// The open cut has become a checkpoint.
    fn committed(&mut self, Committed { reason }: Committed) {
        self.fleet.made_progress();
        self.plan_tokens_end();
        if self.stage.saves_last() && !self.has_unsaved_state() {
            return self.end_saved_after_failure();
        }
        match reason {
            CutReason::Due
            | CutReason::Ordered
            | CutReason::Initial
            | CutReason::First
            | CutReason::Best => {
                self.plan_next_cut(false, self.stage.is_working());
                self.move_departing_pservers();
                self.return_shards();
            }
            CutReason::Stop => self.stop_with_checkpoint(),
            CutReason::Final => {}
            // A shard has gone on meanwhile; what counts is that it is newer.
            CutReason::LastSave => self.end_saved_after_failure(),
        }
    }

    /// Whether a cut can be taken now or soon.
    fn can_cut(&self) -> bool {
        self.checkpoints.has_state() && self.stage.has_started() && self.stage.is_in_phase()
    }

    /// The same of a takeover too: it has state beyond the last checkpoint, and can be cut once its shards have registered.
    fn can_cut_soon(&self) -> bool {
        let takes_over = self.stage.kind() == StageKind::Takeover;
        self.can_cut() || (takes_over && self.checkpoints.has_state())
    }

    pub(super) fn plan_next_cut(&mut self, gave_up: bool, working: bool) {
        self.checkpoints.plan_next(gave_up, working, &self.work, &self.fleet, &mut self.ctx);
    }
}

/// Whether an event reports progress of the work alone: no slot is emptied or filled by it, no cut ends.
fn is_progress(event: &Event) -> bool {
    let Event::Report { report, .. } = event else {
        return false;
    };
    matches!(
        **report,
        Report::Heartbeat(_)
            | Report::Trainer(
                TrainerReport::Progress { .. }
                    | TrainerReport::TaskFinished { .. }
                    | TrainerReport::TaskSteps { .. }
                    | TrainerReport::Stepping { .. }
            )
    )
}

fn is_heartbeat(event: &Event) -> bool {
    matches!(event, Event::Report { report, .. } if matches!(**report, Report::Heartbeat(_)))
}
