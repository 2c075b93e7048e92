//! The control thread of a container: performs what [`crate::machine`] decides.
//!
//! The thread has a runtime of its own, so heartbeats are sent however busy the process is. It owns the connection
//! (`connection`), the lines that wait for it (`outgoing`), and the look-up of the ApplicationMaster (`leader`). Sockets,
//! threads and clocks of this crate are here and in [`crate::environment`] alone.

#![expect(clippy::disallowed_types, reason = "the shell has the sockets and the clock")]

mod connection;
mod leader;
mod log_context;
mod outgoing;
pub(crate) mod turn;

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use heddle_protocol::control::{
    Command, HeartbeatStats, InstallTokens, OrderedFault, Report, ReportEnvelope,
};
use heddle_protocol::environment::AmAddress;
use heddle_protocol::exit_code::ContainerExitCode;
use heddle_protocol::ids::Attempt;
use heddle_protocol::lines::encode_line;
use heddle_protocol::process_figures::{PROCESS, ProcessFigure, ProcessFigures};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::environment::{AmPlace, ContainerEnvironment, resident_bytes};
use crate::machine::{AgentExit, ControlMachine, Input, Output};
use connection::{ConnectionError, ConnectionEvent, connect};
pub use leader::{AddressLookup, ReadHighest};
pub use log_context::LogContext;
use outgoing::OutgoingLines;

/// How soon waiting bytes are tried again.
const AGAIN: Duration = Duration::from_millis(20);
/// Replaces tokens of this process by those of a credentials file. It may block.
pub type InstallTokensHook = Arc<dyn Fn(&[u8]) -> Result<(), String> + Send + Sync>;

/// Callbacks of the process. The control thread calls them; they must not block.
pub struct Hooks {
    /// Returns the registration of a new connection: the shards, lanes or tasks that the process holds. `None` if they
    /// are not known yet; the connection is then closed, and the next one calls again.
    pub register: Box<dyn FnMut() -> Option<Report> + Send>,
    /// Returns the state and figures of a heartbeat, without those that are counted in [`PROCESS`].
    pub heartbeat: Box<dyn FnMut() -> HeartbeatStats + Send>,
    /// Receives a command.
    pub command: Box<dyn FnMut(Command) + Send>,
    /// Ends the process for this reason. It does not return.
    pub exit: Box<dyn FnMut(AgentExit) + Send>,
    /// Reads [`AmPlace::Directory`]. Without it the process finds only the first ApplicationMaster.
    pub read_highest: Option<ReadHighest>,
    /// Replaces tokens of file systems. Without it the process keeps those that it started with.
    pub install_tokens: Option<InstallTokensHook>,
    /// The span of log lines, which follows the commands.
    pub log: LogContext,
}

/// Sends reports to the ApplicationMaster, in order, each at least once while the process lives. Clones share the order.
#[derive(Clone, Debug)]
pub struct Reporter {
    reports: mpsc::UnboundedSender<Report>,
}

impl Reporter {
    /// Queues a report. The machine bounds the number of reports that wait. After the end of the control thread, which
    /// is the end of the process, reports are dropped.
    pub fn send(&self, report: Report) {
        let _ended = self.reports.send(report);
    }
}

/// Ends the process. If it ends with an error, the reason is the last line on stderr, since YARN shows the end of that
/// file to users.
pub fn leave(exit: &AgentExit) -> ! {
    if exit.code() != ContainerExitCode::Stopped {
        eprintln!("{exit}");
    }
    std::process::exit(exit.code().number())
}

/// The running control thread.
#[derive(Debug)]
pub struct Agent {
    reporter: Reporter,
}

impl Agent {
    /// Starts the control thread.
    ///
    /// # Errors
    /// If the system provides no thread or no event queue.
    pub fn start(environment: ContainerEnvironment, hooks: Hooks) -> std::io::Result<Self> {
        let (reports, queue) = mpsc::unbounded_channel();
        let own = reports.downgrade();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("control".into()).spawn(move || {
            runtime.block_on(ControlThread::new(environment, hooks, own).run(queue));
        })?;
        Ok(Self { reporter: Reporter { reports } })
    }

    /// A handle for sending reports.
    #[must_use]
    pub fn reporter(&self) -> Reporter {
        self.reporter.clone()
    }
}

struct ControlThread {
    environment: Arc<ContainerEnvironment>,
    hooks: Hooks,
    /// For reports of this thread. It does not keep the queue open.
    reports: mpsc::WeakUnboundedSender<Report>,
    started: Instant,
    machine: ControlMachine,
    /// Lines to the ApplicationMaster while a connection is open.
    lines: Option<OutgoingLines>,
    connection: u64,
    /// Time at which the connection before the present one was lost.
    lost_at: Option<Instant>,
    /// Whether the present connection was opened.
    open: bool,
    /// The task of the connection. It is aborted, since one to a partitioned machine does not end by itself.
    task: Option<AbortHandle>,
    events: mpsc::UnboundedSender<(u64, ConnectionEvent)>,
    received: mpsc::UnboundedReceiver<(u64, ConnectionEvent)>,
    /// The last known address of the ApplicationMaster. Its attempt never decreases.
    leader: Option<AmAddress>,
    looking: bool,
    /// The figures of the last heartbeat.
    reported: ProcessFigures,
    finds: mpsc::UnboundedSender<Option<AmAddress>>,
    found: mpsc::UnboundedReceiver<Option<AmAddress>>,
}

impl ControlThread {
    fn new(
        environment: ContainerEnvironment,
        hooks: Hooks,
        reports: mpsc::WeakUnboundedSender<Report>,
    ) -> Self {
        let (events, received) = mpsc::unbounded_channel();
        let (finds, found) = mpsc::unbounded_channel();
        let leader = match &environment.am {
            AmPlace::File(_) => None,
            AmPlace::Directory { first, .. } => first.clone(),
        };
        Self {
            leader,
            looking: false,
            reported: ProcessFigures::default(),
            finds,
            found,
            task: None,
            environment: Arc::new(environment),
            hooks,
            reports,
            started: Instant::now(),
            machine: ControlMachine::new(0),
            lines: None,
            connection: 0,
            lost_at: None,
            open: false,
            events,
            received,
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    async fn run(mut self, mut reports: mpsc::UnboundedReceiver<Report>) {
        if let (None, AmPlace::Directory { .. }) = (&self.leader, &self.environment.am) {
            self.look();
        }
        loop {
            let mut wait =
                Duration::from_millis(self.machine.deadline().saturating_sub(self.now()));
            if self.lines.as_ref().is_some_and(OutgoingLines::is_waiting) {
                wait = wait.min(AGAIN);
            }
            let timer = pin!(tokio::time::sleep(wait));
            let input = tokio::select! {
                biased;
                Some((connection, event)) = self.received.recv() => {
                    if connection != self.connection {
                        continue;
                    }
                    match event {
                        ConnectionEvent::Opened(lines) => {
                            self.lines = Some(lines);
                            self.open = true;
                            Input::Opened
                        }
                        ConnectionEvent::SecretRefused => Input::SecretRefused,
                        ConnectionEvent::Line(line) => Input::Line(line),
                        ConnectionEvent::Ended(why) => {
                            tracing::debug!(why, "control_connection_ended");
                            self.lines = None;
                            self.lost();
                            Input::Closed
                        }
                    }
                }
                Some(found) = self.found.recv() => match self.learn(found) {
                    Some(attempt) => Input::Found(attempt),
                    None => continue,
                },
                report = reports.recv() => match report {
                    Some(report) => Input::Report(Box::new(report)),
                    None => return,
                },
                () = timer => {
                    if let Some(lines) = &mut self.lines {
                        lines.pass_on();
                    }
                    Input::Timer
                }
            };
            let _entered = self.hooks.log.span().entered();
            let now = self.now();
            for output in self.machine.on(input, now) {
                self.perform(output);
            }
        }
    }

    /// Starts a look-up of the ApplicationMaster's address. On one machine each connection reads its file instead.
    fn look(&mut self) {
        if matches!(self.environment.am, AmPlace::File(_))
            || std::mem::replace(&mut self.looking, true)
        {
            return;
        }
        let (environment, finds) = (Arc::clone(&self.environment), self.finds.clone());
        let read_highest = self.hooks.read_highest.clone();
        tokio::spawn(async move {
            let found = leader::look(&environment.am, read_highest).await;
            if let Err(error) = &found {
                tracing::debug!(%error, "am_not_found");
            }
            let _ended = finds.send(found.ok());
        });
    }

    /// Takes the result of a look-up. Returns the attempt if it is newer than the known one.
    fn learn(&mut self, found: Option<AmAddress>) -> Option<Attempt> {
        self.looking = false;
        let found = found?;
        let known = self.leader.as_ref().map(|leader| leader.attempt);
        if known >= Some(found.attempt) {
            return None;
        }
        let log = self.hooks.log.span();
        let attempt = found.attempt;
        let newest_attempt = attempt.0;
        tracing::info!(parent: &log, address = %found.address, newest_attempt, "am_found");
        self.leader = Some(found);
        Some(attempt)
    }

    /// Notes the loss of a connection that was open.
    fn lost(&mut self) {
        if std::mem::take(&mut self.open) {
            self.lost_at = Some(Instant::now());
            tracing::info!(parent: &self.hooks.log.span(), "control_connection_lost");
        }
    }

    fn abort(&mut self) {
        self.lines = None;
        self.lost();
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }

    fn perform(&mut self, output: Output) {
        match output {
            Output::Look => self.look(),
            Output::Connect => {
                self.abort();
                self.connection += 1;
                let events = self.events.clone();
                let environment = Arc::clone(&self.environment);
                let (connection, leader) = (self.connection, self.leader.clone());
                let task = tokio::spawn(async move {
                    let why = match connect(&environment, leader, connection, &events).await {
                        Ok(()) => "closed by the ApplicationMaster".to_owned(),
                        Err(ConnectionError::SecretRefused) => {
                            let _gone = events.send((connection, ConnectionEvent::SecretRefused));
                            return;
                        }
                        Err(error) => error.to_string(),
                    };
                    let _gone = events.send((connection, ConnectionEvent::Ended(why)));
                });
                self.task = Some(task.abort_handle());
            }
            Output::Register => {
                if let Some(report) = (self.hooks.register)() {
                    self.send(&ReportEnvelope { seq: 0, report });
                } else {
                    self.abort();
                    let why = "the process is not ready to register".to_owned();
                    let event = ConnectionEvent::Ended(why);
                    let _gone = self.events.send((self.connection, event));
                }
            }
            Output::Heartbeat { all } => {
                let mut beat = (self.hooks.heartbeat)();
                beat.figures.merge(&PROCESS.read());
                if beat.figures.known(ProcessFigure::ResidentBytes).is_none() {
                    beat.figures.set(ProcessFigure::ResidentBytes, resident_bytes());
                }
                let before = std::mem::replace(&mut self.reported, *beat.figures);
                if !all {
                    *beat.figures = self.reported.changed_since(&before);
                }
                beat.unheard_ms = self.machine.unheard_ms(self.now());
                beat.control_lost_ms = self
                    .lost_at
                    .map(|at| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX));
                let report = Report::Heartbeat(beat);
                self.send(&ReportEnvelope { seq: 0, report });
            }
            Output::Send(line) => self.send(&line),
            Output::Deliver(command) => {
                self.hooks.log.follow(self.machine.attempt(), &command);
                match *command {
                    Command::Tokens(tokens) => return self.install(tokens),
                    Command::Fault(fault) => return self.fault(fault),
                    Command::Welcome(ref welcome) => {
                        let _renewed = self.hooks.log.span().entered();
                        tracing::info!(run = %welcome.run, "container_registered");
                    }
                    _ => {}
                }
                (self.hooks.command)(*command)
            }
            Output::Close => {
                self.lines = None;
            }
            Output::Exit(exit) => (self.hooks.exit)(exit),
        }
    }

    /// Installs tokens on a thread of its own, since a disk may be slow. Those that cannot be written are not confirmed.
    fn install(&self, tokens: InstallTokens) {
        let Some(install) = self.hooks.install_tokens.clone() else {
            return;
        };
        let (reports, span) = (self.reports.clone(), self.hooks.log.span());
        tokio::task::spawn_blocking(move || {
            let _entered = span.entered();
            let InstallTokens { serial, credentials } = tokens;
            match install(&credentials.0) {
                Ok(()) => {
                    tracing::info!(serial, "tokens_installed");
                    if let Some(reports) = reports.upgrade() {
                        let _ended = reports.send(Report::TokensInstalled { serial });
                    }
                }
                Err(error) => tracing::warn!(serial, error, "tokens_not_installed"),
            }
        });
    }

    fn send(&mut self, line: &ReportEnvelope) {
        let Some(lines) = &mut self.lines else { return };
        match encode_line(line) {
            Ok(bytes) => {
                if !lines.send(&bytes) {
                    tracing::warn!("control_connection_closed_queue_full");
                    self.drop_connection("the ApplicationMaster does not read reports");
                }
            }
            Err(error) => tracing::error!(%error, "report_not_encoded"),
        }
    }

    /// Ends the connection. The machine connects again when it receives the end as an event.
    fn drop_connection(&mut self, why: &str) {
        self.lines = None;
        if let Some(task) = self.task.take() {
            task.abort();
        }
        let _ended = self.events.send((self.connection, ConnectionEvent::Ended(why.to_owned())));
    }

    /// Brings the fault that an operator ordered upon this process. Threads and data connections are the process's.
    fn fault(&mut self, fault: OrderedFault) {
        if let Some(fault) = heddle_self_faults::signal_self(fault) {
            if fault == OrderedFault::Drop {
                self.drop_connection("dropped by order");
            }
            (self.hooks.command)(Command::Fault(fault));
        }
    }
}
