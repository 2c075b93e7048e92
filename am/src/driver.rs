//! The loop that turns IO into the core's events and the core's actions into IO.
//!
//! [`Driver::run`] is the whole loop: wait on all sources, make one event, call the core, perform its actions in order,
//! repeat. The driver decides nothing about the job. The core fixes the order of effects (journal first, then what
//! others can see): it holds actions back until [`Event::RecordDurable`]. The driver keeps journal and store calls in
//! the order given.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use heddle_am_core::{
    Action, ConnectionId, ContainerName, Core, Event, MonotonicMs, Now, OperationId, Outcome,
    Probe, ReceivedReports, Record, RecordId,
};
use heddle_channel::{PeerProbe, ProbeAnswer};
use heddle_protocol::control::{Command, CommandEnvelope, Report, ReportEnvelope};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{Attempt, Epoch, Member};
use heddle_protocol::view;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{Instrument as _, Span};

use crate::api::{ApiInput, CommandStream};
use crate::attempt_history::AttemptHistory;
use crate::cluster::ContainerSource;
use crate::encoded::Encoded;
use crate::event_log::EventLog;
use crate::mirrors::Mirrors;
use crate::wall_clock::wall_ms;

/// Shortest time between two updates of the view. Making a view walks every slot.
const VIEW_EVERY: Duration = Duration::from_millis(200);
/// Longest time between two updates of the view, also when nothing happens.
const VIEW_LATEST: Duration = Duration::from_secs(1);
/// Shortest time between two progress events.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// A loop that took no turn for this long stood still: it takes one at least every [`VIEW_LATEST`].
const STOOD_STILL: Duration = Duration::from_millis(1_500);

/// Queues of the tasks that write journal and store. Their results are events.
pub struct WorkerQueues {
    /// Journal records, in order.
    pub journal: mpsc::UnboundedSender<(RecordId, Box<Record>)>,
    /// Store calls, in order.
    pub store: mpsc::UnboundedSender<(heddle_am_core::CallId, Box<heddle_am_core::StoreCall>)>,
}

/// Everything the loop waits on.
pub struct Sources {
    /// From the HTTP server.
    pub inputs: mpsc::Receiver<ApiInput>,
    /// From the cluster, the workers and the probes.
    pub events: mpsc::UnboundedReceiver<Event>,
    /// The sending half of `events`.
    pub sender: mpsc::UnboundedSender<Event>,
    /// Warnings of the workers, which do not concern the core.
    pub notices: mpsc::UnboundedReceiver<view::JobEvent>,
    /// Orders to stop from outside the API: signals, and the end of the command line's process.
    pub stops: mpsc::UnboundedReceiver<heddle_protocol::control::Operation>,
}

/// What does not change while this process runs.
#[derive(Clone, Debug)]
pub struct About {
    /// Name of the job, for logs.
    pub job: String,
    /// The attempt of this ApplicationMaster. Every command carries it.
    pub attempt: Attempt,
    /// How many phases the job has.
    pub phases: u32,
    /// The YARN application, for display; `None` for a local run.
    pub application: Option<view::ApplicationView>,
    /// The history of earlier attempts.
    pub past: AttemptHistory,
    /// Probes the data ports of pservers.
    pub prober: PeerProbe,
    /// Copies checkpoints to other directories.
    pub mirrors: Mirrors,
}

/// An open control connection. The core has the container behind it; only the driver has its socket.
struct ContainerSession {
    member: Member,
    lines: CommandStream,
    registered: bool,
}

/// The loop's state.
pub struct Driver<C> {
    core: Core,
    cluster: C,
    about: About,
    workers: WorkerQueues,
    sources: Sources,
    view: watch::Sender<Arc<view::JobView>>,
    view_at: Instant,
    started: Instant,
    /// When the core was last entered.
    entered: Instant,
    sessions: HashMap<ConnectionId, ContainerSession>,
    encoded: Encoded,
    /// Sequence numbers of received reports.
    received: ReceivedReports,
    answers: HashMap<OperationId, oneshot::Sender<Result<(), String>>>,
    next_operation: u64,
    outcome: Option<Outcome>,
    events: EventLog,
    /// The last published progress, and when.
    progress: (Option<view::JobEvent>, Instant),
    /// What the store waits for.
    own_wait: Option<view::StorageWaitView>,
    /// Carries job, attempt and epoch to all log lines of the loop.
    span: Span,
}

impl<C: ContainerSource> Driver<C> {
    /// A driver that has not started.
    pub fn new(
        core: Core,
        cluster: C,
        about: About,
        workers: WorkerQueues,
        sources: Sources,
        view: watch::Sender<Arc<view::JobView>>,
        events: EventLog,
    ) -> Self {
        let started = Instant::now();
        let span = job_span(&about.job, about.attempt, None);
        Self {
            core,
            cluster,
            about,
            workers,
            sources,
            view,
            view_at: started,
            started,
            entered: started,
            sessions: HashMap::new(),
            encoded: Encoded::default(),
            received: ReceivedReports::default(),
            answers: HashMap::new(),
            next_operation: 1,
            outcome: None,
            events,
            progress: (None, started),
            own_wait: None,
            span,
        }
    }

    fn now(&self) -> Now {
        let mono = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Now { mono: MonotonicMs(mono), wall_ms: wall_ms() }
    }

    /// Runs the job from its first event to its end. Returns the outcome and the last view.
    pub async fn run(mut self, first: Event) -> (Outcome, view::JobView) {
        self.cluster.used_before(self.about.past.hosts());
        self.on(first);
        while self.outcome.is_none() {
            let wait = self.core.next_deadline().map_or(VIEW_LATEST, |at| {
                Duration::from_millis(at.since(self.now().mono)).min(VIEW_LATEST)
            });
            tokio::select! {
                Some(event) = self.sources.events.recv() => self.on(event),
                Some(input) = self.sources.inputs.recv() => self.input(input),
                Some(event) = self.sources.notices.recv() => {
                    if let view::JobEvent::StorageWait(wait) = &event {
                        self.own_wait = Some(wait.clone()).filter(|wait| wait.ended_ms.is_none());
                    }
                    self.publish(event);
                }
                Some(operation) = self.sources.stops.recv() => self.operation(operation, None),
                () = tokio::time::sleep(wait) => self.on(Event::Timer),
            }
            if self.view_at.elapsed() >= VIEW_EVERY {
                self.renew_view();
            }
        }
        let view = self.view();
        let outcome = self.outcome.take().unwrap_or_else(|| Outcome {
            state: view::JobState::Failed,
            exit_code: ExitCode::Internal,
            message: "the job ended without an outcome; this is a defect of the ApplicationMaster"
                .into(),
            model: None,
        });
        (outcome, view)
    }

    fn renew_view(&mut self) {
        self.view_at = Instant::now();
        let view = self.view();
        self.cluster.progress(done(&view, self.about.phases));
        self.publish_progress(&view);
        self.view.send_replace(Arc::new(view));
    }

    /// Publishes the figures of the training where they have changed.
    fn publish_progress(&mut self, view: &view::JobView) {
        let (last, at) = &self.progress;
        if view.state != view::JobState::Running || at.elapsed() < PROGRESS_EVERY {
            return;
        }
        let progress = view::JobEvent::Progress {
            text: view.phase_text.clone(),
            rows: view.rows,
            rows_per_second: view.rows_per_second,
            training_loss: view.training_loss,
            done: view.phase_done,
            left_ms: view.left_ms,
        };
        if last.as_ref() != Some(&progress) {
            self.progress = (Some(progress.clone()), Instant::now());
            self.publish(progress);
        }
    }

    /// The core's view with placements, application and history.
    fn view(&self) -> view::JobView {
        let mut view = self.core.view();
        view.application.clone_from(&self.about.application);
        view.history = self.events.history();
        view.mirrors = self.about.mirrors.views();
        view.storage_wait = view.storage_wait.or_else(|| self.own_wait.clone());
        self.about.past.precede(&mut view);
        for slot in &mut view.slots {
            slot.placement =
                self.cluster.placement(Member { slot: slot.slot, incarnation: slot.incarnation });
        }
        view
    }

    fn on(&mut self, event: Event) {
        let span = self.span.clone();
        let _entered = span.enter();
        let still = std::mem::replace(&mut self.entered, Instant::now()).elapsed();
        if still > STOOD_STILL {
            let ms = u64::try_from(still.as_millis()).unwrap_or(u64::MAX);
            tracing::info!(ms, "driver_stood_still");
            self.enter(Event::StoodStill { ms });
        }
        self.enter(event);
    }

    fn enter(&mut self, event: Event) {
        let now = self.now();
        for action in self.core.on(event, now) {
            self.perform(action);
        }
    }

    fn input(&mut self, input: ApiInput) {
        let span = self.span.clone();
        let _entered = span.enter();
        match input {
            ApiInput::SessionOpened { connection, member, lines } => {
                let session = ContainerSession { member, lines, registered: false };
                self.sessions.insert(connection, session);
            }
            ApiInput::SessionLine { connection, member, line } => {
                self.line(connection, member, *line);
            }
            ApiInput::SessionClosed { connection, .. } => self.closed(connection),
            ApiInput::Operation { operation, answer } => self.operation(operation, Some(answer)),
        }
    }

    fn operation(
        &mut self,
        operation: heddle_protocol::control::Operation,
        answer: Option<oneshot::Sender<Result<(), String>>>,
    ) {
        let id = OperationId(self.next_operation);
        self.next_operation += 1;
        if let Some(answer) = answer {
            self.answers.insert(id, answer);
        }
        self.on(Event::Operation { id, operation });
    }

    fn line(&mut self, connection: ConnectionId, member: Member, line: ReportEnvelope) {
        let Some(session) = self.sessions.get_mut(&connection) else {
            return;
        };
        match line.report {
            Report::Register(registration) => {
                if registration.member != member {
                    let named = registration.member;
                    tracing::warn!(%member, %named, "registration_rejected_wrong_member");
                    self.closed(connection);
                    return;
                }
                session.registered = true;
                if let Some(container) = &registration.container {
                    self.cluster.registered(&ContainerName(container.clone()), member);
                }
                self.on(Event::Registered { connection, registration });
                // The core drops what comes on the connection of a refused registration, so none of it is confirmed.
                if self.core.listens_on(connection) {
                    self.received.registered(member, connection);
                }
            }
            report => {
                if !session.registered {
                    tracing::warn!(%member, "report_rejected_before_registration");
                    self.closed(connection);
                    return;
                }
                if !self.received.takes(member, connection, line.seq) {
                    return;
                }
                let confirm = matches!(report, Report::Heartbeat(_));
                self.on(Event::Report { connection, report: Box::new(report) });
                // A heartbeat may show that its container must be given up.
                if confirm && self.core.listens_on(connection) {
                    self.send(connection, None);
                }
            }
        }
    }

    fn closed(&mut self, connection: ConnectionId) {
        if let Some(session) = self.sessions.remove(&connection)
            && session.registered
        {
            self.cluster.connection_closed(session.member);
            self.on(Event::Closed { connection });
        }
    }

    fn send(&mut self, connection: ConnectionId, command: Option<Arc<Command>>) {
        let Some(session) = self.sessions.get_mut(&connection) else {
            return;
        };
        let acknowledged = self.received.highest(session.member);
        let head = CommandEnvelope { attempt: self.about.attempt, acknowledged, command: None };
        let command = match command.map(|command| self.encoded.get(&command)).transpose() {
            Ok(command) => command,
            Err(error) => {
                tracing::error!(member = %session.member, %error, "command_not_encoded");
                return;
            }
        };
        if !session.lines.send(&head, command) {
            // Otherwise the container has closed it, as all do when the job ends.
            if session.lines.is_full() {
                tracing::warn!(member = %session.member, "control_connection_closed_queue_full");
            }
            // The close arrives as an event of its own: the core must not be entered while its actions are performed.
            session.lines.close();
        }
    }

    /// Adds an event to the log of events.
    fn publish(&mut self, mut event: view::JobEvent) {
        if let view::JobEvent::Ended { view, .. } = &mut event {
            // The core's view lacks the history and the placements.
            **view = self.view();
        }
        let cluster = &self.cluster;
        self.events
            .publish(event, |slot, incarnation| cluster.placement(Member { slot, incarnation }));
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Container(order) => self.cluster.order(order),
            Action::Send { connection, command, .. } => self.send(connection, Some(command)),
            Action::Disconnect { connection } => {
                if let Some(session) = self.sessions.get_mut(&connection) {
                    session.lines.close();
                }
            }
            Action::Journal { id, record } => {
                if let Record::Restore { epoch, .. } = &*record {
                    self.span = job_span(&self.about.job, self.about.attempt, Some(*epoch));
                }
                // A worker that has ended has sent the reason as an event before.
                let _ended = self.workers.journal.send((id, record));
            }
            Action::Store { id, call } => {
                let _ended = self.workers.store.send((id, call));
            }
            Action::ProbePort { member, endpoint } => {
                let events = self.sources.sender.clone();
                let span = tracing::info_span!("probe", slot = %member.slot);
                let prober = self.about.prober.clone();
                let probe = async move {
                    let outcome = outcome(prober.probe(endpoint).await);
                    let _ending = events.send(Event::Probed { member, outcome });
                };
                tokio::spawn(probe.instrument(span));
            }
            Action::Notice(event) => self.publish(*event),
            Action::Answer { id, result } => {
                if let Some(answer) = self.answers.remove(&id) {
                    let _gone = answer.send(result.map(drop));
                }
            }
            Action::Fault(fault) => heddle_self_faults::signal_self_soon(fault),
            Action::Finish(outcome) => self.outcome = Some(*outcome),
        }
    }
}

/// The span of log lines of a job. A span is made for each epoch: a field that is recorded again would be printed twice.
pub(crate) fn job_span(job: &str, attempt: Attempt, epoch: Option<Epoch>) -> Span {
    let epoch = epoch.map(tracing::field::display);
    tracing::info_span!(parent: None, "job", job, %attempt, epoch)
}

/// Finished share of the job, 0 … 1, as if all phases took the same time.
fn done(view: &view::JobView, phases: u32) -> f32 {
    let done =
        (f64::from(view.phase.0) + view.phase_done.unwrap_or(0.0)) / f64::from(phases.max(1));
    done.clamp(0.0, 1.0) as f32
}

fn outcome(answer: ProbeAnswer) -> Probe {
    match answer {
        ProbeAnswer::Refused => Probe::Refused,
        ProbeAnswer::Answered => Probe::Answered,
        ProbeAnswer::NoAnswer => Probe::NoAnswer,
        ProbeAnswer::Silent => Probe::Silent,
    }
}
