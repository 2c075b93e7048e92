//! The container's control thread: performs what [`crate::machine`] decides.
//!
//! One thread with a single-threaded runtime, so that heartbeats go out however busy the rest of the
//! process is. One HTTP/1.1 connection: `POST /v1/hello` exchanges the challenge of
//! `heddle_protocol::handshake` in headers, `POST /v1/session` proves this side and then streams
//! lines both ways until either side closes.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use heddle_protocol::control::{Command, CommandEnvelope, HeartbeatStats, Report, ReportEnvelope};
use heddle_protocol::environment::AmAddress;
use heddle_protocol::handshake::{
    Channel, HEADER_ANSWER, HEADER_HELLO, HEADER_PROOF, Hello, NONCE_BYTES, PROOF_BYTES,
};
use heddle_protocol::ids::Attempt;
use heddle_protocol::lines::{LineBuffer, encode_line};
use http_body_util::BodyExt;
use http_body_util::channel::Channel as BodyChannel;
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::environment::{AmPlace, Environment};
use crate::leader::{self, ReadHighest};
use crate::machine::{Exit, Input, Machine, Output};

/// A connection that does not come about in this time is given up and tried again.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Pieces on their way to the socket.
const PIECES_IN_FLIGHT: usize = 32;
/// Bytes from which a piece is closed; lines are put together while they wait.
const PIECE_BYTES: usize = 64 * 1024;
/// Bytes that wait for a connection that takes no more. Then it is closed; the machine sends its reports again on the
/// next one.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// How soon waiting bytes are tried again.
const AGAIN: Duration = Duration::from_millis(20);
/// An ApplicationMaster whose machine is gone is noticed after 30 + 3 × 10 s without traffic, and with unacknowledged
/// bytes after a minute (`TCP_USER_TIMEOUT`, RFC 5482); the kernel alone takes a quarter of an hour.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(30))
    .with_interval(Duration::from_secs(10))
    .with_retries(3);
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(60);

/// What the application lends to the control thread. All of them are called on that thread and must not block.
pub struct Hooks {
    /// Makes the registration of a new connection: what is held or worked on now. None: that cannot be told yet; the
    /// connection is given up, and the next one asks again.
    pub register: Box<dyn FnMut() -> Option<Report> + Send>,
    /// Makes a heartbeat's figures.
    pub beat: Box<dyn FnMut() -> HeartbeatStats + Send>,
    /// Takes a command.
    pub command: Box<dyn FnMut(Command) + Send>,
    /// Ends the process with this reason; what follows the call is of no account.
    pub exit: Box<dyn FnMut(Exit) + Send>,
    /// Reads [`AmPlace::Directory`]; without it only the first ApplicationMaster is found.
    pub read_highest: Option<ReadHighest>,
}

/// Sends reports to the ApplicationMaster, in order, each at least once while it lives. Clones share the order.
#[derive(Clone, Debug)]
pub struct Reporter {
    reports: mpsc::UnboundedSender<Report>,
}

impl Reporter {
    /// Queues a report; the machine bounds how many wait. After the control thread's end it is dropped,
    /// which happens only while the process ends.
    pub fn send(&self, report: Report) {
        let _ended = self.reports.send(report);
    }
}

/// Ends the process. The reason of an end with an error is its last line on stderr: YARN shows the end of that file
/// to people.
pub fn leave(exit: &Exit) -> ! {
    if exit.code() != 0 {
        eprintln!("{exit}");
    }
    std::process::exit(i32::from(exit.code()))
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
    /// When the system gives no thread or no event queue.
    pub fn start(environment: Environment, hooks: Hooks) -> std::io::Result<Self> {
        let (reports, queue) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("control".into()).spawn(move || {
            runtime.block_on(Shell::new(environment, hooks).run(queue));
        })?;
        Ok(Self { reporter: Reporter { reports } })
    }

    /// A handle to report with.
    #[must_use]
    pub fn reporter(&self) -> Reporter {
        self.reporter.clone()
    }
}

/// The way to the socket. A line is never waited for: the loop that sends it also drives the timers by which this
/// container looks for another ApplicationMaster, or ends.
struct Lines {
    sender: http_body_util::channel::Sender<Bytes>,
    /// Pieces for which there was no room, and the one that grows.
    full: VecDeque<Bytes>,
    open: BytesMut,
    waiting_bytes: usize,
}

impl Lines {
    fn new(sender: http_body_util::channel::Sender<Bytes>) -> Self {
        Self { sender, full: VecDeque::new(), open: BytesMut::new(), waiting_bytes: 0 }
    }

    /// Queues a line; false when too much waits and the connection is to be closed.
    fn send(&mut self, line: &[u8]) -> bool {
        self.open.extend_from_slice(line);
        self.waiting_bytes += line.len();
        if self.open.len() >= PIECE_BYTES {
            self.full.push_back(self.open.split().freeze());
        }
        self.pass_on();
        self.waiting_bytes <= WAITING_BYTES_MAX
    }

    fn is_waiting(&self) -> bool {
        self.waiting_bytes > 0
    }

    /// Hands on what there is room for. The end of the connection comes as an event of its own.
    fn pass_on(&mut self) {
        while self.waiting_bytes > 0 {
            let piece = match self.full.pop_front() {
                Some(piece) => piece,
                None => self.open.split().freeze(),
            };
            let length = piece.len();
            if let Err(frame) = self.sender.try_send(Frame::data(piece)) {
                if let Ok(piece) = frame.into_data() {
                    self.full.push_front(piece);
                }
                return;
            }
            self.waiting_bytes -= length;
        }
    }
}

struct Shell {
    environment: Arc<Environment>,
    hooks: Hooks,
    started: Instant,
    machine: Machine,
    /// The way to the socket while a connection stands.
    lines: Option<Lines>,
    connection: u64,
    /// When the connection before the present one was lost.
    lost_at: Option<Instant>,
    /// The present connection was opened.
    open: bool,
    /// The connection's task: one to a machine that is cut off would never end by itself.
    task: Option<AbortHandle>,
    events: mpsc::UnboundedSender<(u64, ConnectionEvent)>,
    heard: mpsc::UnboundedReceiver<(u64, ConnectionEvent)>,
    /// Where the ApplicationMaster is, as far as known. Attempts never go down.
    leader: Option<AmAddress>,
    looking: bool,
    finds: mpsc::UnboundedSender<Option<AmAddress>>,
    found: mpsc::UnboundedReceiver<Option<AmAddress>>,
}

enum ConnectionEvent {
    Opened(Lines),
    SecretRefused,
    Line(Box<CommandEnvelope>),
    Ended(String),
}

impl Shell {
    fn new(environment: Environment, hooks: Hooks) -> Self {
        let (events, heard) = mpsc::unbounded_channel();
        let (finds, found) = mpsc::unbounded_channel();
        let leader = match &environment.am {
            AmPlace::File(_) => None,
            AmPlace::Directory { first, .. } => first.clone(),
        };
        Self {
            leader,
            looking: false,
            finds,
            found,
            task: None,
            environment: Arc::new(environment),
            hooks,
            started: Instant::now(),
            machine: Machine::new(0),
            lines: None,
            connection: 0,
            lost_at: None,
            open: false,
            events,
            heard,
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
            if self.lines.as_ref().is_some_and(Lines::is_waiting) {
                wait = wait.min(AGAIN);
            }
            let timer = pin!(tokio::time::sleep(wait));
            let input = tokio::select! {
                biased;
                Some((connection, event)) = self.heard.recv() => {
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
                            tracing::debug!(why, "control connection ended");
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
            let now = self.now();
            for output in self.machine.on(input, now) {
                self.perform(output);
            }
        }
    }

    /// Looks where the ApplicationMaster is, beside everything else. On one machine its file is read with each
    /// connection.
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
                tracing::debug!(%error, "the ApplicationMaster was not found");
            }
            let _ended = finds.send(found.ok());
        });
    }

    /// Takes in what a look-up found; its attempt, if it leads to another ApplicationMaster than the one known.
    fn learn(&mut self, found: Option<AmAddress>) -> Option<Attempt> {
        self.looking = false;
        let found = found?;
        let known = self.leader.as_ref().map(|leader| leader.attempt);
        if known >= Some(found.attempt) {
            return None;
        }
        tracing::info!(address = %found.address, attempt = found.attempt.0, "ApplicationMaster found");
        let attempt = found.attempt;
        self.leader = Some(found);
        Some(attempt)
    }

    /// The connection is over, if it ever was one.
    fn lost(&mut self) {
        if std::mem::take(&mut self.open) {
            self.lost_at = Some(Instant::now());
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
                        Err(SessionError::SecretRefused) => {
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
                    let why = "there was nothing to register with yet".to_owned();
                    let event = ConnectionEvent::Ended(why);
                    let _gone = self.events.send((self.connection, event));
                }
            }
            Output::Heartbeat => {
                let mut beat = (self.hooks.beat)();
                beat.control_lost_ms = self
                    .lost_at
                    .map(|at| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX));
                let report = Report::Heartbeat(beat);
                self.send(&ReportEnvelope { seq: 0, report });
            }
            Output::Send(line) => self.send(&line),
            Output::Deliver(command) => (self.hooks.command)(*command),
            Output::Close => {
                self.lines = None;
            }
            Output::Exit(exit) => (self.hooks.exit)(exit),
        }
    }

    fn send(&mut self, line: &ReportEnvelope) {
        let Some(lines) = &mut self.lines else { return };
        match encode_line(line) {
            Ok(bytes) => {
                if !lines.send(&bytes) {
                    tracing::warn!(
                        "the ApplicationMaster takes no more reports, its connection is closed"
                    );
                    self.lines = None;
                    // Its end comes as an event, with which the machine connects anew.
                    if let Some(task) = self.task.take() {
                        task.abort();
                    }
                    let why = "the ApplicationMaster reads nothing".to_owned();
                    let _ended = self.events.send((self.connection, ConnectionEvent::Ended(why)));
                }
            }
            Err(error) => tracing::error!(%error, "a report cannot be written as JSON"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum SessionError {
    #[error("{0}")]
    Leader(#[from] leader::LeaderError),
    #[error("no answer within {} s", CONNECT_LIMIT.as_secs())]
    Slow,
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Http(#[from] hyper::Error),
    #[error("{0}")]
    Protocol(String),
    #[error("the ApplicationMaster and this container do not share the secret")]
    SecretRefused,
}

/// One connection from its beginning to its end; lines that arrive go to `events`.
async fn connect(
    environment: &Environment,
    leader: Option<AmAddress>,
    connection: u64,
    events: &mpsc::UnboundedSender<(u64, ConnectionEvent)>,
) -> Result<(), SessionError> {
    let opening = async {
        let am = match (&environment.am, leader) {
            (AmPlace::File(_), _) => leader::look(&environment.am, None).await?,
            (AmPlace::Directory { .. }, Some(leader)) => leader,
            (AmPlace::Directory { .. }, None) => return Err(leader::LeaderError::NotYet.into()),
        };
        let stream = TcpStream::connect(am.address).await?;
        stream.set_nodelay(true)?;
        let socket = SockRef::from(&stream);
        socket.set_tcp_keepalive(&KEEPALIVE)?;
        socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
        open(environment, stream).await
    };
    let (lines, mut body) =
        tokio::time::timeout(CONNECT_LIMIT, opening).await.map_err(|_| SessionError::Slow)??;
    let _gone = events.send((connection, ConnectionEvent::Opened(lines)));
    let mut buffer = LineBuffer::default();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        buffer.push(&data).map_err(|error| SessionError::Protocol(error.to_string()))?;
        while let Some(line) = buffer.next_line() {
            let down: CommandEnvelope = serde_json::from_slice(&line)
                .map_err(|error| SessionError::Protocol(format!("unknown command: {error}")))?;
            let _gone = events.send((connection, ConnectionEvent::Line(Box::new(down))));
        }
    }
    Ok(())
}

async fn open(
    environment: &Environment,
    stream: TcpStream,
) -> Result<(Lines, Incoming), SessionError> {
    let (mut sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        if let Err(error) = driver.await {
            tracing::debug!(%error, "control connection broke");
        }
    });
    let wrong = |error: &dyn std::fmt::Display| SessionError::Protocol(error.to_string());
    let hello = Hello::new(environment.run, Some(environment.member)).map_err(|e| wrong(&e))?;
    let (_, empty) = BodyChannel::<Bytes>::new(1);
    let request = Request::post("/v1/hello")
        .header(hyper::header::HOST, "heddle")
        .header(HEADER_HELLO, hex::encode(hello.encode()))
        .body(empty)
        .map_err(|e| wrong(&e))?;
    let response = sender.send_request(request).await?;
    if response.status() != StatusCode::OK {
        return Err(SessionError::Protocol(format!("hello was answered {}", response.status())));
    }
    let mut answer = [0; NONCE_BYTES + PROOF_BYTES];
    response
        .headers()
        .get(HEADER_ANSWER)
        .and_then(|value| hex::decode_to_slice(value.as_bytes(), &mut answer).ok())
        .ok_or_else(|| SessionError::Protocol("hello was answered without a proof".into()))?;
    let proof = hello
        .client_proof(&environment.secret, Channel::Control, &answer)
        .map_err(|_| SessionError::SecretRefused)?;
    // The answer's body must be taken before the connection carries the next request.
    response.into_body().collect().await?;
    let (lines, body) = BodyChannel::<Bytes>::new(PIECES_IN_FLIGHT);
    let request = Request::post("/v1/session")
        .header(hyper::header::HOST, "heddle")
        .header(HEADER_PROOF, hex::encode(proof))
        .body(body)
        .map_err(|e| wrong(&e))?;
    let response = sender.send_request(request).await?;
    match response.status() {
        StatusCode::OK => Ok((Lines::new(lines), response.into_body())),
        StatusCode::UNAUTHORIZED => Err(SessionError::SecretRefused),
        status => Err(SessionError::Protocol(format!("session was answered {status}"))),
    }
}
