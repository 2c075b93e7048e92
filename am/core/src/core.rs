//! The machine: its state, the one way in, and the loop that lets it settle.
//!
//! ```text
//!  New ──▶ (Takeover) ──▶ Restoring ──▶ Idle ──▶ Beginning ──▶ Working ──▶ Idle ──▶ … ──▶ Exporting ──▶ Stopping ──▶ Over
//!                            ▲            a pserver is lost      │
//!                            └───────── (AwaitingCommit) ◀───────┘
//! ```
//!
//! Events change facts; [`Core::settle`] then moves the job on as far as the facts allow. So it does not matter
//! in which order two facts became known. What each stage does is in the file of its noun: `rollback`, `phases`,
//! `cut`, `finish`, `takeover`; who is who is in `members`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use heddle_protocol::control::{Command, Operation, Report, Welcome};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{Attempt, CutId, Epoch, Generation, PhaseNo, Role, Slot, TaskId};
use heddle_protocol::manifest;
use heddle_protocol::view::{self, CheckpointView, DataLocality, EvaluationView, JobState};

use crate::action::{
    Action, CallId, Checkpoint, ConnectionId, ContainerId, OperationId, Outcome, StoreCall,
};
use crate::checkpoint::cut::Cuts;
use crate::config::Config;
use crate::context::deadlines::{Deadlines, Purpose};
use crate::context::journal_gate::JournalGate;
use crate::event::{Event, Stored};
use crate::fleet::data_path::Outages;
use crate::fleet::membership::JoinBatching;
use crate::fleet::restart_policy::FailureHistory;
use crate::fleet::slots::Slots;
use crate::fleet::storage_wait::StorageWait;
use crate::stage::completion::Export;
use crate::stage::recovery_timing::RecoveryTimings;
use crate::stage::rollback::Restoring;
use crate::stage::shard_map::ShardMap;
use crate::stage::stop::StopOrder;
use crate::stage::takeover::Takeover;
use crate::time::{MonotonicMs, Now};
use crate::work::data_statistics::DataStatistics;
use crate::work::locality::LocalityIndex;
use crate::work::phases::{NextStep, PhaseState};

/// A timer that fires so much too late says that this process stood still, not that the others were silent.
const STOOD_STILL_MS: u64 = 5_000;

/// Where the job stands.
#[derive(Clone, Debug)]
pub(crate) enum JobStage {
    /// Nothing is known yet.
    New,
    /// Listening to the containers of an earlier attempt.
    Takeover(Takeover),
    /// A shard is lost while a commit is under way: its outcome decides what to return to.
    AwaitingCommit { cause: String },
    /// A damaged checkpoint was met; an older one is being looked for.
    FindingCheckpoint { cause: String },
    /// Shards go to a common state.
    Restoring(Restoring),
    /// No work is under way. What holds the job up, if anything: a cut that not all shards have taken, too few trainers.
    Idle(NextStep),
    /// Pservers are told of the next phase.
    Beginning { begun: BTreeSet<Slot> },
    /// Trainers work on the phase.
    Working,
    /// The last checkpoint is committed; the model is being written and published.
    Exporting(Export),
    /// The outcome is settled; containers end.
    Stopping(Outcome),
    /// Nothing follows.
    Over,
}

/// What a store call is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreCallPurpose {
    Stage(CutId),
    Commit,
    Search,
    Publish,
    /// Its failure is told and has no other effect.
    Housekeeping,
}

/// A job's decisions: a pure function of the events so far.
#[derive(Clone, Debug)]
pub struct Core {
    pub(crate) config: Arc<Config>,
    /// What every container is told first.
    pub(crate) welcome: Arc<Command>,
    pub(crate) now: Now,
    pub(crate) attempt: Attempt,
    pub(crate) generation: Generation,
    pub(crate) out: JournalGate,
    pub(crate) deadlines: Deadlines,
    pub(crate) slots: Slots,
    pub(crate) trainers_wanted: u32,
    pub(crate) failure_history: FailureHistory,
    /// Grows with each phase that ends and each checkpoint that is committed.
    pub(crate) progress: u64,
    pub(crate) stage: JobStage,
    /// Work has been handed out at least once.
    pub(crate) started: bool,
    /// Containers of an earlier attempt may still register.
    pub(crate) adopting: bool,
    pub(crate) epoch: Epoch,
    pub(crate) map: ShardMap,
    pub(crate) phase: PhaseState,
    /// Steps of training tasks as far as known. A fact about the data, which no rollback makes false.
    pub(crate) task_steps: BTreeMap<TaskId, u64>,
    pub(crate) cuts: Cuts,
    /// The checkpoint that a rollback returns to.
    pub(crate) base: Option<Checkpoint>,
    pub(crate) checkpoints: Vec<CheckpointView>,
    pub(crate) evaluations: Vec<(PhaseNo, EvaluationView)>,
    pub(crate) recoveries: RecoveryTimings,
    pub(crate) calls: BTreeMap<CallId, StoreCallPurpose>,
    pub(crate) next_call: CallId,
    pub(crate) cluster_heard: MonotonicMs,
    /// Calls that wait until this attempt surely leads.
    pub(crate) held_back: VecDeque<(CallId, StoreCall)>,
    /// What the cluster last said about containers that do not come.
    pub(crate) cluster_says: String,
    /// Nodes that will be gone soon, and when that was heard.
    pub(crate) leaving: BTreeMap<String, MonotonicMs>,
    /// Containers that the cluster said it may take.
    pub(crate) preempting: BTreeSet<ContainerId>,
    pub(crate) join_batching: JoinBatching,
    /// Which trainers are members, as pservers were told last.
    pub(crate) members: Arc<Command>,
    pub(crate) locality: Arc<LocalityIndex>,
    /// Of the tasks that this attempt dispatched.
    pub(crate) data_locality: DataLocality,
    pub(crate) outages: Outages,
    /// An operator wants the job to end after a checkpoint.
    pub(crate) stop_wanted: Option<StopOrder>,
    pub(crate) load_tries: u32,
    /// Connections of containers whose end the cluster told: only why they ended is still heard.
    pub(crate) last_words: BTreeMap<ConnectionId, Slot>,
    /// Steps reached by all trainers, those that are gone included.
    pub(crate) steps: u64,
    /// Records computed by containers that are gone.
    pub(crate) rows_before: u64,
    pub(crate) statistics: DataStatistics,
    pub(crate) storage_wait: StorageWait,
    /// DataStatistics of the run before the checkpoint that this attempt started from.
    pub(crate) figures_before: manifest::Progress,
    pub(crate) ended: Option<Outcome>,
    pub(crate) message: String,
}

impl Core {
    /// A job that has not heard anything yet; the first event is [`Event::Startup`].
    #[must_use]
    pub fn new(config: Config) -> Self {
        let spec = &config.spec;
        let slots = Slots::new(spec.pservers.count, spec.trainers.max, Generation(1));
        let trainers_wanted = spec.trainers.max;
        let phase = PhaseState::new(&config, PhaseNo(0), Generation(1));
        let welcome = Welcome {
            run: config.run,
            spec: (*config.spec).clone(),
            plan: config.plan_file.clone(),
            heartbeat_ms: config.limits.heartbeat_ms,
            orphan_ms: config.limits.orphan_ms,
        };
        Self {
            welcome: Arc::new(Command::Welcome(Box::new(welcome))),
            now: Now::default(),
            attempt: Attempt(0),
            generation: Generation(1),
            out: JournalGate::default(),
            deadlines: Deadlines::default(),
            slots,
            trainers_wanted,
            failure_history: FailureHistory::default(),
            progress: 0,
            stage: JobStage::New,
            started: false,
            adopting: false,
            epoch: Epoch::default(),
            map: ShardMap::default(),
            phase,
            task_steps: BTreeMap::new(),
            cuts: Cuts::default(),
            base: None,
            checkpoints: Vec::new(),
            evaluations: Vec::new(),
            recoveries: RecoveryTimings::default(),
            calls: BTreeMap::new(),
            next_call: CallId(1),
            cluster_heard: MonotonicMs(0),
            held_back: VecDeque::new(),
            cluster_says: String::new(),
            leaving: BTreeMap::new(),
            preempting: BTreeSet::new(),
            join_batching: JoinBatching::default(),
            members: Arc::new(Command::Members { trainers: Vec::new() }),
            locality: Arc::new(LocalityIndex::of(&config.locality)),
            data_locality: DataLocality::default(),
            outages: Outages::default(),
            stop_wanted: None,
            load_tries: 0,
            last_words: BTreeMap::new(),
            steps: 0,
            rows_before: 0,
            statistics: DataStatistics::default(),
            storage_wait: StorageWait::default(),
            figures_before: manifest::Progress::default(),
            ended: None,
            message: String::new(),
            config: Arc::new(config),
        }
    }

    /// Takes in one event and says what to do, in order.
    pub fn on(&mut self, event: Event, now: Now) -> Vec<Action> {
        self.pass_time(now);
        if matches!(self.stage, JobStage::Over) {
            return self.out.take();
        }
        // Thousands of containers beat; a beat alone moves nothing but what may want a cut.
        let wanted = self.cuts.wanted;
        let mut settles = !is_heartbeat(&event);
        // Nor does the work's progress change who is there.
        let mut people = !is_progress(&event);
        self.take_in(event);
        // After the event: a heartbeat that comes together with its deadline still counts.
        while let Some(purpose) = self.deadlines.due(self.now.mono) {
            self.fire(purpose);
            (settles, people) = (true, true);
        }
        if settles || self.cuts.wanted != wanted {
            self.settle(people);
        }
        self.out.take()
    }

    /// Whether what a container reports on this connection counts: it registered there last, and is part of the job.
    #[must_use]
    pub fn listens_on(&self, connection: ConnectionId) -> bool {
        self.slots.at(connection).is_some()
    }

    /// When to call [`Core::on`] with [`Event::Timer`] if nothing else happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<MonotonicMs> {
        self.deadlines.next()
    }

    fn pass_time(&mut self, now: Now) {
        let mono = now.mono.max(self.now.mono);
        if let Some(due) = self.deadlines.next() {
            let late_ms = mono.since(due);
            if late_ms > STOOD_STILL_MS {
                // Whatever they sent meanwhile is still to be read; nobody is dead for that.
                self.slots.forgive(late_ms);
                // But whether this attempt still leads, only hearing the ResourceManager tells.
            }
        }
        self.now = Now { mono, wall_ms: now.wall_ms };
    }

    fn take_in(&mut self, event: Event) {
        match event {
            Event::Startup(startup) => self.recovered(*startup),
            Event::Allocated { container, slot, incarnation, node } => {
                self.allocated(container, slot, incarnation, node);
            }
            // The registration says more; the cluster's word about the process alone changes nothing.
            Event::Started { container: _ } | Event::Timer => {}
            Event::Exited { container, exit, text } => self.exited(&container, &exit, &text),
            Event::NodeUnreachable { container, cause } => self.vanished(&container, &cause),
            Event::Preempting { container, deadline_ms } => {
                self.preempting(&container, deadline_ms)
            }
            Event::NodeLeaving { node } => self.node_leaving(&node),
            Event::Registered {
                connection,
                member,
                container,
                pid,
                host,
                endpoints,
                held,
                busy,
            } => {
                let holder = self.newcomer(connection, member, container, pid, host, endpoints);
                self.registered(connection, holder, held, busy);
            }
            Event::Report { connection, report } => self.report(connection, *report),
            Event::Closed { connection } => self.closed(connection),
            Event::Probed { member, outcome } => self.probed(member, outcome),
            Event::RecordDurable { record } => self.out.durable(record),
            Event::JournalFailed { error, fenced: true, .. } | Event::Fenced { reason: error } => {
                self.fenced(&error)
            }
            Event::JournalFailed { error, fenced: false, exit_code } => {
                self.journal_failed(exit_code, &error)
            }
            Event::Stored { call, outcome } => self.stored(call, outcome),
            Event::ClusterHeard => self.cluster_heard = self.now.mono,
            Event::ClusterSays { text } => self.cluster_says = text,
            Event::Rejected { reason } => {
                self.fail(ExitCode::Refused, format!("the cluster refused the job: {reason}"))
            }
            Event::Operation { id, operation } => self.operation(id, &operation),
        }
    }

    fn fire(&mut self, purpose: Purpose) {
        match purpose {
            Purpose::Liveness => self.look_for_the_silent(),
            Purpose::Outage => self.look_at_outages(),
            // `settle` does the rest.
            Purpose::Reconcile => self.slots.changed = true,
            Purpose::Join | Purpose::CutStaging => {}
            Purpose::Allocation => self.allocation_timeout(),
            Purpose::Takeover => self.takeover_over(),
            Purpose::Replacement => self.replacement_late(),
            Purpose::CutDue => self.cuts.want(crate::checkpoint::cut::Reason::Due),
            Purpose::CutTimeout => self.cut_timeout(),
            Purpose::Retry => self.retry(),
            Purpose::Late => self.feed(),
            Purpose::Stopped => self.stopped_late(),
        }
    }

    /// Moves the job on as far as the facts allow. Each round either moves it or is the last.
    ///
    /// `people`: whether the first round looks who is missing or may join, which walks every slot.
    fn settle(&mut self, mut people: bool) {
        loop {
            if people {
                self.reconcile();
                self.watch_allocation();
                self.admit();
            }
            self.store_held_back();
            let moved = self.settle_cut() || self.settle_stage();
            if !moved {
                return;
            }
            people = true;
        }
    }

    fn settle_stage(&mut self) -> bool {
        match &self.stage {
            JobStage::New | JobStage::FindingCheckpoint { .. } | JobStage::Over => false,
            JobStage::AwaitingCommit { .. } => self.settle_deciding(),
            JobStage::Takeover(_) => self.settle_takeover(),
            JobStage::Restoring(_) => self.settle_restoring(),
            JobStage::Idle(then) => self.settle_between(*then),
            JobStage::Beginning { .. } => self.settle_beginning(),
            JobStage::Working => self.settle_working(),
            JobStage::Exporting(_) => self.settle_exporting(),
            JobStage::Stopping(_) => self.settle_stopping(),
        }
    }

    fn operation(&mut self, id: OperationId, operation: &Operation) {
        let answer = match operation {
            _ if matches!(self.stage, JobStage::Stopping(_)) => match operation {
                Operation::Stop { .. } | Operation::Kill => {
                    self.stop_containers(0);
                    Ok("stopping at once".to_owned())
                }
                Operation::Checkpoint | Operation::Scale { .. } => {
                    Err("the job is ending".to_owned())
                }
            },
            Operation::Kill => {
                self.end(
                    self.stopped(
                        ExitCode::Killed,
                        "killed by an operator; run it again to continue",
                    ),
                    0,
                );
                Ok("killed".to_owned())
            }
            Operation::Stop { checkpoint } => {
                let Some(answer) = self.stop(id, *checkpoint) else {
                    return;
                };
                Ok(answer.to_owned())
            }
            Operation::Checkpoint if self.can_cut() => {
                self.cuts.want(crate::checkpoint::cut::Reason::Ordered);
                self.cuts.asked_by.push(id);
                return;
            }
            Operation::Checkpoint => {
                Err("no training is under way: there is nothing new to save".to_owned())
            }
            Operation::Scale { trainers } => self.scale(*trainers),
        };
        self.answer(id, answer);
    }

    fn stored(&mut self, call: CallId, outcome: Stored) {
        // An answer to a call that nobody waits for any more is no news.
        let Some(purpose) = self.calls.remove(&call) else {
            return;
        };
        if let Stored::Fenced { error } = &outcome {
            return self.fenced(error);
        }
        match purpose {
            StoreCallPurpose::Stage(cut) => self.staged(call, cut, outcome),
            StoreCallPurpose::Commit => self.commit_answered(call, outcome),
            StoreCallPurpose::Search => self.base_found(outcome),
            StoreCallPurpose::Publish => self.published(outcome),
            StoreCallPurpose::Housekeeping => {
                if let Stored::NotDone { failure } | Stored::Unknown { failure } = outcome {
                    self.warn(format!("old checkpoint files could not be removed: {failure}"));
                }
            }
        }
    }

    pub(crate) fn store(&mut self, purpose: StoreCallPurpose, call: StoreCall) -> CallId {
        let id = self.next_call;
        self.next_call = CallId(id.0 + 1);
        self.calls.insert(id, purpose);
        self.store_or_hold_back(id, call);
        id
    }

    pub(crate) fn answer(&mut self, id: OperationId, result: Result<String, String>) {
        self.out.push(Action::Answer { id, result });
    }

    pub(crate) fn notice(&mut self, event: view::Event) {
        self.out.push(Action::Notice(Box::new(event)));
    }

    pub(crate) fn warn(&mut self, text: String) {
        self.notice(view::Event::Warning { text });
    }

    /// Tells the registered container of a slot, if it is connected. One that is not is told what holds
    /// when it registers again.
    pub(crate) fn send(&mut self, slot: Slot, command: impl Into<Arc<Command>>) {
        if let Some(holder) = self.slots.holder(slot)
            && let Some(connection) = holder.connection
        {
            let member = Some(holder.member);
            self.out.push(Action::Send { connection, member, command: command.into() });
        }
    }

    /// Slots of the registered containers of a role.
    pub(crate) fn registered_slots(&self, role: Role) -> Vec<Slot> {
        self.slots.holders(role).map(|holder| holder.member.slot).collect()
    }

    pub(crate) fn stopped(&self, exit_code: ExitCode, message: &str) -> Outcome {
        Outcome { state: JobState::Stopped, exit_code, message: message.to_owned(), model: None }
    }

    /// Ends the job with an error.
    pub(crate) fn fail(&mut self, exit_code: ExitCode, message: String) {
        let outcome = Outcome { state: JobState::Failed, exit_code, message, model: None };
        self.end(outcome, self.config.limits.grace_ms);
    }
}

/// Whether an event tells of work alone: no slot is emptied or filled by it, no cut ends.
fn is_progress(event: &Event) -> bool {
    let Event::Report { report, .. } = event else {
        return false;
    };
    matches!(
        **report,
        Report::Progress { .. }
            | Report::TaskFinished { .. }
            | Report::TaskSteps { .. }
            | Report::Stepping { .. }
            | Report::Heartbeat(_)
    )
}

fn is_heartbeat(event: &Event) -> bool {
    matches!(event, Event::Report { report, .. } if matches!(**report, Report::Heartbeat(_)))
}
