//! What a handler may touch besides its component: time, configuration, deadlines, outgoing actions, store calls.
//!
//! The fields are private. A handler gets `&mut Context` and can set a deadline, send an action, write a record and start
//! a store call; the order of effects is decided here alone (see [`journal_gate`] and [`lease`]).

pub(crate) mod deadlines;
pub(crate) mod journal_gate;
pub(crate) mod lease;

use std::collections::BTreeMap;
use std::sync::Arc;

use heddle_backoff::Backoff;
use heddle_protocol::ids::{Attempt, CutId, Epoch, Generation, ShardId};
use heddle_protocol::job_spec::Consistency;
use heddle_protocol::view::{self, WarningCode};

use crate::action::{Action, CallId, ContainerOrder, OperationId, RecordId, StoreCall};
use crate::config::{Config, Limits};
use crate::record::Record;
use crate::time::{MonotonicMs, Now};
use deadlines::{Deadlines, Purpose, Retried};
use journal_gate::JournalGate;
use lease::{ClusterLease, HeldCall};

/// The longest backoff as a multiple of the first one.
const BACKOFF_MAX_FACTOR: u64 = 64;

/// What a store call is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreCallPurpose {
    /// Making the staging directory of a cut.
    Stage(CutId),
    /// Committing the open cut.
    Commit,
    /// Finding an older checkpoint.
    Search,
    /// Publishing the model.
    Publish,
    /// A failure is reported and has no other effect.
    Housekeeping,
    /// Replacing bad copies of this shard. A failure is reported and has no other effect.
    Replace(ShardId),
}

/// Time, configuration, deadlines, outgoing actions and store calls of one attempt.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    config: Arc<Config>,
    now: Now,
    attempt: Attempt,
    generation: Generation,
    epoch: Epoch,
    gate: JournalGate,
    deadlines: Deadlines,
    lease: ClusterLease,
    calls: BTreeMap<CallId, StoreCallPurpose>,
    next_call: CallId,
    message: String,
}

impl Context {
    pub(crate) fn new(config: Arc<Config>) -> Self {
        Self {
            config,
            now: Now::default(),
            attempt: Attempt(0),
            generation: Generation(1),
            epoch: Epoch::default(),
            gate: JournalGate::default(),
            deadlines: Deadlines::default(),
            lease: ClusterLease::default(),
            calls: BTreeMap::new(),
            next_call: CallId(1),
            message: String::new(),
        }
    }

    /// The configuration. It never changes, and a handler can keep it while it changes the context.
    pub(crate) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config)
    }

    /// The configuration's limits.
    pub(crate) fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// Whether the job trains with BSP.
    pub(crate) fn is_bsp(&self) -> bool {
        self.config.spec.training.consistency == Consistency::Bsp
    }

    /// The time of the present event.
    pub(crate) fn now(&self) -> MonotonicMs {
        self.now.mono
    }

    /// The time of the present event, by both clocks.
    pub(crate) fn time(&self) -> Now {
        self.now
    }

    /// The time of the present event for records and reports: milliseconds since 1970.
    pub(crate) fn wall_ms(&self) -> u64 {
        self.now.wall_ms
    }

    /// Advances the clocks. The monotonic one never goes back.
    pub(crate) fn set_time(&mut self, now: Now) {
        self.now = Now { mono: now.mono.max(self.now.mono), wall_ms: now.wall_ms };
    }

    /// This ApplicationMaster's attempt.
    pub(crate) fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// The generation that this attempt has claimed.
    pub(crate) fn generation(&self) -> Generation {
        self.generation
    }

    /// The attempt has started with this claim.
    pub(crate) fn set_identity(&mut self, attempt: Attempt, generation: Generation) {
        (self.attempt, self.generation) = (attempt, generation);
    }

    /// The current epoch of the data plane.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Another epoch begins.
    pub(crate) fn set_epoch(&mut self, epoch: Epoch) {
        debug_assert!(epoch >= self.epoch, "epochs only grow");
        self.epoch = epoch;
    }

    /// What the job waits for, for its users; empty if nothing.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn set_message(&mut self, message: impl Into<String>) {
        self.message = message.into();
    }

    pub(crate) fn clear_message(&mut self) {
        self.message.clear();
    }

    /// The wait before a retry: it doubles with each failed try.
    pub(crate) fn backoff_ms(&self, tries: u32) -> u64 {
        let min_ms = self.config.limits.retry_ms;
        Backoff::new(min_ms, min_ms.saturating_mul(BACKOFF_MAX_FACTOR)).after_ms(tries)
    }

    /// Sets or moves a deadline.
    pub(crate) fn set_deadline(&mut self, purpose: Purpose, at: MonotonicMs) {
        self.deadlines.set(purpose, at);
    }

    /// Sets a deadline, unless an earlier one for the purpose is set.
    pub(crate) fn set_deadline_at_latest(&mut self, purpose: Purpose, at: MonotonicMs) {
        self.deadlines.at_latest(purpose, at);
    }

    /// The driver stood still for this time: containers that the job waits for get as much more.
    pub(crate) fn forgive_standstill(&mut self, ms: u64) {
        self.deadlines.forgive_standstill(ms);
    }

    /// Lets it be tried again after the wait that follows this number of failed tries.
    pub(crate) fn retry_later(&mut self, what: Retried, tries: u32) {
        self.deadlines.set(Purpose::Retry(what), self.now.mono + self.backoff_ms(tries));
    }

    /// Whether it may not be tried again yet.
    pub(crate) fn waits_to_retry(&self, what: Retried) -> bool {
        self.is_waiting_for(Purpose::Retry(what))
    }

    /// When a deadline expires, if it is set.
    pub(crate) fn deadline(&self, purpose: Purpose) -> Option<MonotonicMs> {
        self.deadlines.at(purpose)
    }

    /// Whether a deadline is set.
    pub(crate) fn is_waiting_for(&self, purpose: Purpose) -> bool {
        self.deadlines.at(purpose).is_some()
    }

    pub(crate) fn clear_deadline(&mut self, purpose: Purpose) {
        self.deadlines.clear(purpose);
    }

    pub(crate) fn clear_all_deadlines(&mut self) {
        self.deadlines.clear_all();
    }

    /// The earliest deadline.
    pub(crate) fn next_deadline(&self) -> Option<MonotonicMs> {
        self.deadlines.next()
    }

    /// Takes out a deadline that has expired, the earliest first.
    pub(crate) fn expired_deadline(&mut self) -> Option<Purpose> {
        self.deadlines.due(self.now.mono)
    }

    /// Adds an action. It leaves when the journal's rule allows it.
    pub(crate) fn push(&mut self, action: Action) {
        self.gate.push(action);
    }

    /// Adds an order to the source of containers.
    pub(crate) fn order(&mut self, order: ContainerOrder) {
        self.push(Action::Container(order));
    }

    /// Writes a record.
    pub(crate) fn journal(&mut self, record: Record) {
        self.gate.journal(record);
    }

    /// Writes a record that is a decision in this job, whatever it is in others.
    pub(crate) fn journal_decision(&mut self, record: Record) {
        self.gate.decide(record);
    }

    /// The journal holds this record and all before it.
    pub(crate) fn record_durable(&mut self, record: RecordId) {
        self.gate.durable(record);
    }

    /// Whether every record is durable.
    pub(crate) fn is_journal_durable(&self) -> bool {
        self.gate.is_settled()
    }

    /// Whether every decision is durable: what follows from them has left.
    pub(crate) fn are_decisions_durable(&self) -> bool {
        self.gate.are_decisions_durable()
    }

    /// Drops every action and store call that waits: this attempt must have no further effect.
    pub(crate) fn abandon(&mut self) {
        self.gate.abandon();
        self.lease.abandon();
    }

    /// The actions that can be performed now.
    pub(crate) fn take_actions(&mut self) -> Vec<Action> {
        self.gate.take()
    }

    /// The ResourceManager has answered.
    pub(crate) fn cluster_answered(&mut self) {
        self.lease.renew(self.now.mono);
    }

    /// How long the ResourceManager has not answered.
    pub(crate) fn cluster_silent_ms(&self) -> u64 {
        self.lease.silent_ms(self.now.mono)
    }

    /// Whether the ResourceManager has answered recently enough to be sure that this attempt still leads.
    pub(crate) fn holds_lease(&self) -> bool {
        self.lease.holds(self.now.mono, self.config.cluster_lease_ms)
    }

    /// The last record so far. What is published waits for it.
    pub(crate) fn last_record(&self) -> RecordId {
        self.gate.asked()
    }

    /// Whether a store call that follows this record may be performed now, under the lease. It does not wait for later notes:
    /// where a pass takes less time than a write of the journal, there is always one under way.
    pub(crate) fn can_publish(&self, after: RecordId) -> bool {
        self.holds_lease() && self.gate.has(after)
    }

    /// Starts a store call. One that needs the lease waits until this attempt surely leads.
    pub(crate) fn store(&mut self, purpose: StoreCallPurpose, call: StoreCall) -> CallId {
        let id = self.number_call(purpose);
        match lease::needs_lease(&call) {
            true => self.lease.hold_back(HeldCall { after: self.gate.asked(), id, call }),
            false => self.gate.push(Action::Store { id, call: Box::new(call) }),
        }
        id
    }

    /// Starts a store call for which [`Self::can_publish`] holds.
    pub(crate) fn store_at_once(&mut self, purpose: StoreCallPurpose, call: StoreCall) -> CallId {
        let id = self.number_call(purpose);
        self.gate.push_judged(Action::Store { id, call: Box::new(call) });
        id
    }

    fn number_call(&mut self, purpose: StoreCallPurpose) -> CallId {
        let id = self.next_call;
        self.next_call = CallId(id.0 + 1);
        self.calls.insert(id, purpose);
        id
    }

    /// Performs the store calls that waited for the lease, if this attempt surely leads.
    pub(crate) fn store_held_back(&mut self) {
        while self.lease.next_follows().is_some_and(|after| self.can_publish(after)) {
            let Some(HeldCall { id, call, .. }) = self.lease.take_next() else { return };
            self.gate.push_judged(Action::Store { id, call: Box::new(call) });
        }
    }

    /// A store call is over. Returns what it was for; `None` for one that was answered before.
    pub(crate) fn store_answered(&mut self, call: CallId) -> Option<StoreCallPurpose> {
        self.calls.remove(&call)
    }

    /// Answers an operator.
    pub(crate) fn answer(&mut self, id: OperationId, result: Result<String, String>) {
        self.push(Action::Answer { id, result });
    }

    /// Answers an operator or a controller, whose order is recorded: when the record is durable, so that later attempts
    /// keep what they have been promised.
    pub(crate) fn answer_recorded(&mut self, id: OperationId, result: Result<String, String>) {
        self.gate.push_recorded(Action::Answer { id, result });
    }

    /// Reports an event to the users of the job.
    pub(crate) fn notice(&mut self, event: view::JobEvent) {
        self.push(Action::Notice(Box::new(event)));
    }

    /// Reports something unexpected that the job survives.
    pub(crate) fn warn(&mut self, code: WarningCode, text: String) {
        self.notice(view::JobEvent::warning(code, text));
    }
}
