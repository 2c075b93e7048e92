//! The shell around an [`RpcSession`]: one task, one socket, and the table of outstanding calls.
//!
//! One loop waits for bytes, for room to write, for the next call and for the earliest deadline. A call whose deadline
//! passes ends with an unknown outcome. If no byte arrived since it was sent, the connection is retired: calls in flight
//! may still end, and new calls get a new connection. So a server that hangs costs one deadline, and one slow call does
//! not close the connection of the others.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tracing::debug;

use super::dial::connect;
use super::error::{AuthError, ConnectError, LostCause, ProtocolError, RpcError};
use super::options::{RpcOptions, later};
use super::outstanding::{CallResult, OutstandingCalls, UnknownReply, WaitingCaller};
use super::remote::RemoteException;
use super::session::{CallFrame, RpcSession, RpcSessionError, SessionConfig, SessionEvent};
use crate::address::HostPort;
use crate::kerberos::{KerberosEngine, KerberosLogin, KerberosTicket, prepare, prepare_for};
use crate::proto::common::rpc_response_header_proto::RpcErrorCodeProto;
use crate::sasl::{KerberosFailure, SaslError};

/// Calls in the queue to the task. They are small; a caller waits when the queue is full.
const QUEUE_CALLS: usize = 64;
/// Most outstanding calls, expired ones included; then the connection is retired. Hadoop's call queues hold 100 calls
/// per handler, so a server with a thousand unanswered calls of one client does not answer.
const OUTSTANDING_MAX: usize = 1024;
/// Unwritten bytes above which the task accepts no call: a server that reads slowly must slow its clients down.
const OUTPUT_HIGH_BYTES: usize = 1 << 20;
/// Bytes of one read; most replies are far smaller.
const READ_BYTES: usize = 16 << 10;

/// A call that a caller submits to the task.
pub(super) struct PendingCall {
    pub frame: CallFrame,
    pub deadline: Instant,
    pub started: Instant,
    pub reply: oneshot::Sender<CallResult>,
    /// Time of sending; empty while no byte of the call can have reached the server.
    pub sent: Arc<OnceLock<Instant>>,
}

/// The callers' handle of a connection. When all are dropped, it closes as soon as no call is outstanding.
#[derive(Clone)]
pub(super) struct RpcConnection {
    calls: mpsc::Sender<PendingCall>,
    health: Arc<ConnectionHealth>,
}

/// A login by Kerberos, and the engine that makes its ticket.
pub(super) type KerberosSetup = (KerberosLogin, Arc<dyn KerberosEngine>);

/// The connection has ended and accepts no calls.
pub(super) struct ConnectionClosed;

/// State of a connection that callers and task share.
struct ConnectionHealth {
    /// Accepts no new calls.
    retired: AtomicBool,
    opened: Instant,
    /// Time of the last received bytes, in microseconds since `opened`.
    received_us: AtomicU64,
}

impl ConnectionHealth {
    fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    fn suspect(&self, sent: Instant) {
        if self.last_received() <= sent {
            self.retire();
        }
    }

    fn note_received(&self) {
        let micros = u64::try_from(self.opened.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.received_us.store(micros, Ordering::Release);
    }

    fn last_received(&self) -> Instant {
        self.opened + Duration::from_micros(self.received_us.load(Ordering::Acquire))
    }
}

impl RpcConnection {
    /// Starts the task that connects. Calls may be submitted at once; they wait until the connection is open.
    pub(super) fn open(
        address: HostPort,
        config: SessionConfig,
        kerberos: Option<KerberosSetup>,
        options: RpcOptions,
    ) -> Self {
        let (calls, queue) = mpsc::channel(QUEUE_CALLS);
        let now = Instant::now();
        let health = Arc::new(ConnectionHealth {
            retired: AtomicBool::new(false),
            opened: now,
            received_us: AtomicU64::new(0),
        });
        let driver = ConnectionTask {
            address,
            options,
            outstanding: OutstandingCalls::default(),
            health: health.clone(),
            has_replied: false,
            last_ping: now,
            idle_since: now,
        };
        tokio::spawn(driver.run(config, kerberos, queue));
        Self { calls, health }
    }

    /// Whether new calls may use the connection.
    pub(super) fn is_usable(&self) -> bool {
        !self.calls.is_closed() && !self.health.is_retired()
    }

    /// Submits a call.
    ///
    /// # Errors
    /// The connection has ended. Nothing was sent.
    pub(super) async fn submit(&self, call: PendingCall) -> Result<(), ConnectionClosed> {
        self.calls.send(call).await.map_err(|_| ConnectionClosed)
    }

    /// Retires the connection if no byte arrived since `sent`, the time of a call that has passed its deadline.
    pub(super) fn suspect(&self, sent: Instant) {
        self.health.suspect(sent);
    }
}

/// Why the connection ended.
enum ConnectionEnd {
    /// This client closed it, with no call outstanding.
    Done,
    Connect(ConnectError),
    Auth(AuthError),
    Lost(LostCause),
}

struct ConnectionTask {
    address: HostPort,
    options: RpcOptions,
    outstanding: OutstandingCalls,
    health: Arc<ConnectionHealth>,
    /// Whether the server has answered any call, and so has accepted the connection context.
    has_replied: bool,
    last_ping: Instant,
    idle_since: Instant,
}

impl ConnectionTask {
    async fn run(
        mut self,
        config: SessionConfig,
        kerberos: Option<KerberosSetup>,
        mut queue: mpsc::Receiver<PendingCall>,
    ) {
        let end = match kerberos {
            None => self.drive(config, None, &mut queue).await,
            Some(kerberos) => self.drive_by_ticket(config, kerberos, &mut queue).await,
        };
        // `submit` fails from here on. Calls that are in the queue were not sent.
        queue.close();
        debug!(address = %self.address, end = %end.describe(), "rpc_connection_closed");
        for waiting in self.outstanding.drain() {
            // The caller may have dropped its future.
            let _ = waiting.reply.send(Err(end.error(&self.address, true)));
        }
        while let Some(call) = queue.recv().await {
            let _ = call.reply.send(Err(end.error(&self.address, false)));
        }
    }

    /// Requests the ticket for the server before it is dialled: the wait for it does not count as one for the server.
    ///
    /// The server names its principal in its offer. If that is another one which the site permits, nothing has been sent, and the
    /// server is dialled again with a ticket for it.
    async fn drive_by_ticket(
        &mut self,
        config: SessionConfig,
        (login, engine): KerberosSetup,
        queue: &mut mpsc::Receiver<PendingCall>,
    ) -> ConnectionEnd {
        let failed = |error| ConnectionEnd::Auth(AuthError::Kerberos(error));
        let ticket = match prepare(Arc::clone(&engine), &login, &self.address).await {
            Ok(ticket) => ticket,
            Err(error) => return failed(error),
        };
        let end = self.drive(config.clone(), Some(ticket), queue).await;
        let Some(server) = end.other_server().and_then(|name| login.server.permitted(name)) else {
            return end;
        };
        match prepare_for(engine, &login, server).await {
            Ok(ticket) => self.drive(config, Some(ticket), queue).await,
            Err(error) => failed(error),
        }
    }

    /// The loop over all events of the connection.
    async fn drive(
        &mut self,
        config: SessionConfig,
        ticket: Option<KerberosTicket>,
        queue: &mut mpsc::Receiver<PendingCall>,
    ) -> ConnectionEnd {
        let limit = self.options.connect_timeout;
        let connect_by = later(Instant::now(), limit);
        let mut stream = match connect(&self.address, limit).await {
            Ok(stream) => stream,
            Err(error) => return ConnectionEnd::Connect(error),
        };
        let (mut reader, mut writer) = stream.split();
        let mut session = RpcSession::start_with(config, ticket);
        let mut has_callers = true;
        // Bytes that the server sent before it closed its end may explain a failed write, so reading continues.
        let mut write_error = None;
        self.idle_since = Instant::now();
        loop {
            loop {
                match session.poll() {
                    Ok(Some(event)) => {
                        if let Err(end) = self.handle(event, session.is_open()) {
                            return end;
                        }
                    }
                    Ok(None) => break,
                    Err(error) => return ended_by(error, session.is_open()),
                }
            }
            let is_idle = self.outstanding.is_idle();
            if is_idle && (!has_callers || self.health.is_retired()) && session.is_open() {
                return ConnectionEnd::Done;
            }
            let is_open = session.is_open();
            let wake = self.next_wake(is_open, is_idle, connect_by);
            let (input, output) = session.buffers();
            input.reserve(READ_BYTES);
            let takes_calls =
                is_open && has_callers && write_error.is_none() && output.len() < OUTPUT_HIGH_BYTES;
            let has_output = !output.is_empty() && write_error.is_none();
            tokio::select! {
                read = reader.read_buf(input) => match read {
                    Ok(0) => {
                        let cause = write_error.map_or(LostCause::Closed, LostCause::Io);
                        return lost(cause, is_open);
                    }
                    Ok(_) => self.health.note_received(),
                    Err(error) => return lost(LostCause::Io(Arc::new(error)), is_open),
                },
                written = writer.write_buf(output), if has_output => if let Err(error) = written {
                    self.health.retire();
                    write_error = Some(Arc::new(error));
                },
                call = queue.recv(), if takes_calls => match call {
                    Some(call) => self.send(&mut session, call),
                    None => has_callers = false,
                },
                () = sleep_until(wake) => match self.on_time(&mut session, connect_by) {
                    // A call that arrived as the idle time ended is still served.
                    Some(ConnectionEnd::Done) if takes_calls && !queue.is_empty() => {
                        self.idle_since = Instant::now();
                    }
                    Some(end) => return end,
                    None => {}
                },
            }
        }
    }

    fn send(&mut self, session: &mut RpcSession, call: PendingCall) {
        if call.reply.is_closed() {
            return;
        }
        let id = call.frame.id;
        if let Err(source) = session.send(&call.frame) {
            let method = call.frame.method;
            let _ = call.reply.send(Err(RpcError::Request { method, source }));
            return;
        }
        // The bytes are in the output buffer. This task writes them to the socket later.
        let sent = *call.sent.get_or_init(Instant::now);
        let waiting = WaitingCaller {
            reply: call.reply,
            method: call.frame.method,
            deadline: call.deadline,
            started: call.started,
            sent,
        };
        self.outstanding.add(id, waiting);
        if self.outstanding.len() >= OUTSTANDING_MAX {
            self.health.retire();
        }
    }

    fn handle(&mut self, event: SessionEvent, is_open: bool) -> Result<(), ConnectionEnd> {
        match event {
            SessionEvent::Open(method) => {
                debug!(address = %self.address, ?method, "rpc_connection_opened")
            }
            SessionEvent::Reply { id, result } => {
                let waiting = self.outstanding.reply(id).map_err(|UnknownReply| {
                    ConnectionEnd::Lost(LostCause::Protocol(ProtocolError::UnknownCall(id)))
                })?;
                self.has_replied = true;
                if let Some(WaitingCaller { reply, method, .. }) = waiting {
                    let address = self.address.clone();
                    let _ = reply.send(result.map_err(|source| RpcError::Remote {
                        address,
                        method,
                        source,
                    }));
                }
                self.idle_since = Instant::now();
            }
            SessionEvent::Fatal { id, exception } => {
                return Err(match self.outstanding.remove(id) {
                    Some(WaitingCaller { reply, method, .. }) => {
                        let address = self.address.clone();
                        let _ = reply.send(Err(RpcError::Remote {
                            address,
                            method,
                            source: exception.clone(),
                        }));
                        ConnectionEnd::Lost(LostCause::Fatal(exception))
                    }
                    // The server reads the context before any call. If it rejects the context, it executed no call.
                    None if !is_open || (!self.has_replied && is_unauthorized(&exception)) => {
                        ConnectionEnd::Auth(AuthError::Refused(exception))
                    }
                    None => ConnectionEnd::Lost(LostCause::Fatal(exception)),
                });
            }
        }
        Ok(())
    }

    /// The earliest deadline.
    fn next_wake(&self, is_open: bool, is_idle: bool, connect_by: Instant) -> Instant {
        if !is_open {
            return connect_by;
        }
        if is_idle {
            return later(self.idle_since, self.options.idle_timeout);
        }
        let ping = self.next_ping();
        self.outstanding.next_deadline().map_or(ping, |deadline| deadline.min(ping))
    }

    fn next_ping(&self) -> Instant {
        later(self.health.last_received().max(self.last_ping), self.options.ping_interval)
    }

    fn on_time(&mut self, session: &mut RpcSession, connect_by: Instant) -> Option<ConnectionEnd> {
        let now = Instant::now();
        if !session.is_open() {
            return (now >= connect_by).then_some(ConnectionEnd::Connect(ConnectError::TimedOut(
                self.options.connect_timeout,
            )));
        }
        for waiting in self.outstanding.expire(now) {
            self.health.suspect(waiting.sent);
            let expired = RpcError::Deadline {
                address: self.address.clone(),
                sent: true,
                waited: now.duration_since(waiting.started),
            };
            let _ = waiting.reply.send(Err(expired));
            self.idle_since = now;
        }
        let is_idle = self.outstanding.is_idle();
        if is_idle && now >= later(self.idle_since, self.options.idle_timeout) {
            return Some(ConnectionEnd::Done);
        }
        if !is_idle && now >= self.next_ping() {
            session.ping();
            self.last_ping = now;
        }
        None
    }
}

impl ConnectionEnd {
    /// What the server calls itself, if the ticket is for another one.
    fn other_server(&self) -> Option<&str> {
        match self {
            Self::Auth(AuthError::Sasl(SaslError::Kerberos(KerberosFailure::OtherServer {
                offered,
                ..
            }))) => Some(offered),
            _ => None,
        }
    }

    fn error(&self, address: &HostPort, sent: bool) -> RpcError {
        let address = address.clone();
        match self {
            Self::Done => RpcError::Lost { address, sent, source: LostCause::Local },
            Self::Connect(source) => RpcError::Connect { address, source: source.clone() },
            Self::Auth(source) => RpcError::Auth { address, source: source.clone() },
            Self::Lost(source) => RpcError::Lost { address, sent, source: source.clone() },
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Done => "closed by this client".to_owned(),
            Self::Connect(cause) => cause.to_string(),
            Self::Auth(cause) => cause.to_string(),
            Self::Lost(cause) => cause.to_string(),
        }
    }
}

/// A connection that ends before it is open counts as a failed connect.
fn lost(cause: LostCause, is_open: bool) -> ConnectionEnd {
    if is_open {
        ConnectionEnd::Lost(cause)
    } else {
        ConnectionEnd::Connect(ConnectError::Handshake(cause))
    }
}

fn ended_by(error: RpcSessionError, is_open: bool) -> ConnectionEnd {
    match error {
        RpcSessionError::Sasl(error) => ConnectionEnd::Auth(AuthError::Sasl(error)),
        RpcSessionError::Protocol(error) => lost(LostCause::Protocol(error), is_open),
    }
}

fn is_unauthorized(exception: &RemoteException) -> bool {
    exception.code() == Some(RpcErrorCodeProto::FatalUnauthorized)
}
