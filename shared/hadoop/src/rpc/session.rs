//! One connection as a state machine without a socket: received bytes go in; events and bytes to send come out.
//!
//! ```text
//!  SIMPLE: preamble, context ─────────────────────────────────────▶ Open
//!  SASL:   preamble, NEGOTIATE ─▶ Negotiating ─agreed─▶ context ──▶ Open ─FATAL, fault─▶ the caller drops it
//! ```
//!
//! It has framing, authentication and protection. `connection` has the outstanding calls, the clock and the timeouts.

use std::collections::VecDeque;
use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

use super::error::ProtocolError;
use super::frame::{
    Delimited, FrameDecoder, RpcFrameError, put_frame, take_delimited, take_message,
};
use super::remote::RemoteException;
use crate::kerberos::KerberosTicket;
use crate::proto::common::rpc_request_header_proto::OperationProto;
use crate::proto::common::rpc_response_header_proto::RpcStatusProto;
use crate::proto::common::rpc_sasl_proto::SaslState;
use crate::proto::common::{
    IpcConnectionContextProto, RequestHeaderProto, RpcCallerContextProto, RpcKindProto,
    RpcRequestHeaderProto, RpcResponseHeaderProto, RpcSaslProto, UserInformationProto,
};
use crate::sasl::{
    Agreed, AuthMethod, Layer, LayerError, Negotiation, SaslError, SecurityPolicy, Step,
};
use crate::token::Token;
use crate::user::User;

/// `hrpc`, version 9, service class 0; the eighth byte names the authentication.
const PREAMBLE: [u8; 6] = *b"hrpc\x09\x00";
const AUTH_NONE: u8 = 0;
/// `AuthProtocol.SASL`, -33 as a byte.
const AUTH_SASL: u8 = 0xdf;

/// Longest frame in bytes before the end of the authentication. An unauthenticated server must not make the client store
/// or decode much. Offers have some hundred bytes, Kerberos tickets up to 64 KiB.
const HANDSHAKE_MAX: usize = 256 << 10;

const CALL_ID_CONTEXT: i32 = -3;
const CALL_ID_PING: i32 = -4;
const CALL_ID_SASL: i32 = -33;
/// `clientProtocolVersion` of every protocol of HDFS and YARN.
const PROTOCOL_VERSION: u64 = 1;

/// The settings of a connection.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Java name of the protocol's interface; the server checks its ACL.
    pub protocol: String,
    /// The user, as servers without security accept it.
    pub user: User,
    /// The token for this server, if any.
    pub token: Option<Token>,
    /// The security that the connection must have.
    pub policy: SecurityPolicy,
    /// New random text for DIGEST-MD5, without `"` and `\`.
    pub cnonce: String,
    /// Client id for retry caches; the same for all connections of a client.
    pub client_id: [u8; 16],
    /// Longest accepted frame, in bytes.
    pub response_max: usize,
    /// Longest frame sent, in bytes.
    pub request_max: usize,
    /// Caller context for the server's audit log.
    pub caller_context: Option<String>,
}

/// One call to send.
#[derive(Clone, Debug)]
pub struct CallFrame {
    /// Call id, at least 0; the same for each try of a call.
    pub id: i32,
    /// Number of the try, from 0.
    pub retry: i32,
    /// Name of the method in lower camel case.
    pub method: String,
    /// The encoded request.
    pub body: Delimited,
}

/// A decoded message of the server.
pub enum SessionEvent {
    /// Calls may be sent.
    Open(AuthMethod),
    /// The reply to a call: the undecoded delimited body, or the exception.
    Reply {
        /// The call.
        id: i32,
        /// Its result.
        result: Result<Bytes, RemoteException>,
    },
    /// The server ends the connection because of call `id`, which is negative for the connection itself.
    Fatal {
        /// The call, or a negative id.
        id: i32,
        /// The cause.
        exception: RemoteException,
    },
}

/// Only the length of bodies: replies may carry tokens.
impl fmt::Debug for SessionEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(method) => f.debug_tuple("Open").field(method).finish(),
            Self::Reply { id, result } => {
                let result = result.as_ref().map(|body| format!("[{} bytes]", body.len()));
                f.debug_struct("Reply").field("id", id).field("result", &result).finish()
            }
            Self::Fatal { id, exception } => {
                f.debug_struct("Fatal").field("id", id).field("exception", exception).finish()
            }
        }
    }
}

/// Why a connection fails.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RpcSessionError {
    /// The client ended the authentication.
    #[error(transparent)]
    Sasl(#[from] SaslError),
    /// The server's bytes break the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

impl From<RpcFrameError> for RpcSessionError {
    fn from(error: RpcFrameError) -> Self {
        Self::Protocol(error.into())
    }
}

/// See the module.
pub struct RpcSession {
    config: SessionConfig,
    phase: SessionPhase,
    input: FrameDecoder,
    output: BytesMut,
    events: VecDeque<SessionEvent>,
    /// The layer could not protect a message. No more bytes may be sent.
    broken: Option<LayerError>,
}

#[derive(Debug)]
enum SessionPhase {
    Negotiating(Box<Negotiation>),
    Open(Option<Box<Protection>>),
}

#[derive(Debug)]
struct Protection {
    layer: Layer,
    /// Unwrapped bytes; a frame may span several wrapped messages.
    clear: FrameDecoder,
}

impl fmt::Debug for RpcSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RpcSession")
            .field("config", &self.config)
            .field("phase", &self.phase)
            .field("input", &self.input)
            .field("output_bytes", &self.output.len())
            .finish_non_exhaustive()
    }
}

impl RpcSession {
    /// Starts a session. Its output has the preamble and the first message.
    ///
    /// The session uses SASL if security is required or a token is present, as Hadoop's own client does.
    pub fn start(config: SessionConfig) -> Self {
        Self::start_with(config, None)
    }

    /// Starts a session with a Kerberos ticket for the server; see [`RpcSession::start`].
    pub fn start_with(mut config: SessionConfig, ticket: Option<KerberosTicket>) -> Self {
        let mut output = BytesMut::with_capacity(256);
        output.extend_from_slice(&PREAMBLE);
        let input = FrameDecoder::new(config.response_max.min(HANDSHAKE_MAX));
        let uses_sasl = config.policy.required || config.token.is_some();
        output.put_u8(if uses_sasl { AUTH_SASL } else { AUTH_NONE });
        if uses_sasl {
            let cnonce = std::mem::take(&mut config.cnonce);
            let (negotiation, first) =
                Negotiation::start(config.token.take(), config.policy.clone(), cnonce);
            put_sasl(&mut output, first);
            let phase = SessionPhase::Negotiating(Box::new(negotiation.with_ticket(ticket)));
            return Self { config, phase, input, output, events: VecDeque::new(), broken: None };
        }
        let mut session = Self {
            config,
            phase: SessionPhase::Open(None),
            input,
            output,
            events: VecDeque::new(),
            broken: None,
        };
        session.open(Agreed { method: AuthMethod::Simple, layer: None });
        session
    }

    /// The buffers of received bytes and of bytes to send.
    pub fn buffers(&mut self) -> (&mut BytesMut, &mut BytesMut) {
        (self.input.buffer_mut(), &mut self.output)
    }

    /// Whether calls may be sent.
    pub fn is_open(&self) -> bool {
        matches!(self.phase, SessionPhase::Open(_))
    }

    /// Appends received bytes, like an append to the first of [`RpcSession::buffers`].
    pub fn receive(&mut self, bytes: &[u8]) {
        self.input.extend(bytes);
    }

    /// The next message of the server, or `None` until more bytes arrive.
    ///
    /// # Errors
    /// The caller must close the connection after any [`RpcSessionError`].
    pub fn poll(&mut self) -> Result<Option<SessionEvent>, RpcSessionError> {
        loop {
            if let Some(error) = &self.broken {
                return Err(ProtocolError::from(error.clone()).into());
            }
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            if let SessionPhase::Open(Some(protection)) = &mut self.phase
                && let Some(frame) = protection.clear.next_frame()?
            {
                let event = self.reply(frame)?;
                return Ok(Some(event));
            }
            let Some(frame) = self.input.next_frame()? else {
                return Ok(None);
            };
            match &mut self.phase {
                SessionPhase::Negotiating(_) => self.negotiate(frame)?,
                SessionPhase::Open(None) => {
                    let event = self.reply(frame)?;
                    self.events.push_back(event);
                }
                SessionPhase::Open(Some(protection)) => {
                    let bytes = protection
                        .layer
                        .unwrap(&wrapped_token(frame)?)
                        .map_err(ProtocolError::from)?;
                    protection.clear.extend(&bytes);
                }
            }
        }
    }

    /// Appends a call to the output.
    ///
    /// # Errors
    /// [`RpcFrameError::TooLong`]; the output is then unchanged.
    ///
    /// # Panics
    /// The session is not open.
    pub fn send(&mut self, call: &CallFrame) -> Result<(), RpcFrameError> {
        let header =
            RpcRequestHeaderProto {
                caller_context: self.config.caller_context.as_ref().map(|context| {
                    RpcCallerContextProto { context: context.clone(), signature: None }
                }),
                ..self.header(call.id, call.retry)
            };
        let request = RequestHeaderProto {
            method_name: call.method.clone(),
            declaring_class_protocol_name: self.config.protocol.clone(),
            client_protocol_version: PROTOCOL_VERSION,
        };
        let mut frame = BytesMut::new();
        put_frame(&mut frame, self.config.request_max, &[&header, &request, &call.body])?;
        self.put(&frame);
        Ok(())
    }

    /// Appends a ping to the output. It has no reply; the write fails if the peer is dead.
    ///
    /// # Panics
    /// The session is not open.
    pub fn ping(&mut self) {
        let header = self.header(CALL_ID_PING, -1);
        let mut frame = BytesMut::new();
        put_frame(&mut frame, usize::MAX, &[&header]).expect("a ping fits in a frame");
        self.put(&frame);
    }

    fn header(&self, call_id: i32, retry: i32) -> RpcRequestHeaderProto {
        header(call_id, retry, Bytes::copy_from_slice(&self.config.client_id))
    }

    /// Appends a frame to the output, wrapped if a security layer was negotiated.
    fn put(&mut self, frame: &[u8]) {
        match &mut self.phase {
            SessionPhase::Negotiating(_) => {
                panic!("only authentication messages may be sent before the session is open")
            }
            SessionPhase::Open(None) => self.output.extend_from_slice(frame),
            SessionPhase::Open(Some(protection)) => {
                let layer = &mut protection.layer;
                for piece in frame.chunks(layer.payload_max()) {
                    let token = match layer.wrap(piece) {
                        Ok(token) => token,
                        Err(error) => {
                            // A part of the frame must not follow: `poll` ends the connection.
                            self.broken = Some(error);
                            return;
                        }
                    };
                    let message = RpcSaslProto {
                        version: None,
                        state: SaslState::Wrap as i32,
                        token: Some(token.into()),
                        auths: Vec::new(),
                    };
                    put_sasl(&mut self.output, message.encode_to_vec().into());
                }
            }
        }
    }

    fn negotiate(&mut self, mut frame: Bytes) -> Result<(), RpcSessionError> {
        let head: RpcResponseHeaderProto = take_message(&mut frame, "RpcResponseHeader")?;
        let id = call_id(&head);
        match status(&head)? {
            RpcStatusProto::Fatal | RpcStatusProto::Error => {
                self.events.push_back(SessionEvent::Fatal {
                    id,
                    exception: RemoteException::from_header(&head),
                });
                return Ok(());
            }
            RpcStatusProto::Success if id == CALL_ID_SASL => {}
            RpcStatusProto::Success => return Err(ProtocolError::EarlyReply(id).into()),
        }
        let body = take_delimited(&mut frame, "RpcSaslProto")?;
        let SessionPhase::Negotiating(negotiation) = &mut self.phase else {
            unreachable!("the caller matched the phase")
        };
        match negotiation.receive(&body)? {
            Step::Send(message) => put_sasl(&mut self.output, message),
            Step::SendAndFinish(message, agreed) => {
                put_sasl(&mut self.output, message);
                self.open(agreed);
            }
            Step::Finish(agreed) => self.open(agreed),
        }
        Ok(())
    }

    /// Opens the session and sends the connection context, the first message under the negotiated protection.
    fn open(&mut self, agreed: Agreed) {
        let user_info = match agreed.method {
            AuthMethod::Simple => UserInformationProto {
                effective_user: Some(self.config.user.effective.clone()),
                real_user: self.config.user.real.clone(),
            },
            // The token determines the user. The server rejects a name here.
            AuthMethod::Token => UserInformationProto::default(),
            // The same for a ticket, except that its owner may act for another user.
            AuthMethod::Kerberos => UserInformationProto {
                effective_user: self
                    .config
                    .user
                    .real
                    .is_some()
                    .then(|| self.config.user.effective.clone()),
                real_user: None,
            },
        };
        let context = IpcConnectionContextProto {
            user_info: Some(user_info),
            protocol: Some(self.config.protocol.clone()),
        };
        let protection = agreed.layer.map(|layer| {
            Box::new(Protection { layer, clear: FrameDecoder::new(self.config.response_max) })
        });
        self.phase = SessionPhase::Open(protection);
        self.input.set_limit(match &self.phase {
            // A wrapped reply may be one piece, which is then longer than the reply.
            SessionPhase::Open(Some(_)) => self.config.response_max.saturating_add(1024),
            _ => self.config.response_max,
        });
        let mut frame = BytesMut::new();
        put_frame(&mut frame, usize::MAX, &[&self.header(CALL_ID_CONTEXT, -1), &context])
            .expect("a connection context fits in a frame");
        self.put(&frame);
        self.events.push_back(SessionEvent::Open(agreed.method));
    }

    fn reply(&self, mut frame: Bytes) -> Result<SessionEvent, ProtocolError> {
        let head: RpcResponseHeaderProto = take_message(&mut frame, "RpcResponseHeader")?;
        let id = call_id(&head);
        let status = status(&head)?;
        if status == RpcStatusProto::Fatal {
            return Ok(SessionEvent::Fatal { id, exception: RemoteException::from_header(&head) });
        }
        if id == CALL_ID_SASL {
            return Err(ProtocolError::UnexpectedSasl);
        }
        // Hadoop's client checks this too: a reply for another client must not be accepted.
        if head
            .client_id
            .as_ref()
            .is_some_and(|echo| !echo.is_empty() && echo[..] != self.config.client_id)
        {
            return Err(ProtocolError::ForeignClient);
        }
        let result = match status {
            RpcStatusProto::Success => Ok(frame),
            _ => Err(RemoteException::from_header(&head)),
        };
        Ok(SessionEvent::Reply { id, result })
    }
}

/// The token of a wrapped message.
fn wrapped_token(mut frame: Bytes) -> Result<Bytes, ProtocolError> {
    let head: RpcResponseHeaderProto = take_message(&mut frame, "RpcResponseHeader")?;
    if call_id(&head) != CALL_ID_SASL || status(&head)? != RpcStatusProto::Success {
        return Err(ProtocolError::Unprotected);
    }
    let message: RpcSaslProto = take_message(&mut frame, "RpcSaslProto")?;
    match message.token {
        Some(token) if message.state == SaslState::Wrap as i32 => Ok(token),
        _ => Err(ProtocolError::Unprotected),
    }
}

/// Request ids are zigzag-encoded and response ids are not: -33 returns as 4294967263.
fn call_id(head: &RpcResponseHeaderProto) -> i32 {
    head.call_id.cast_signed()
}

fn status(head: &RpcResponseHeaderProto) -> Result<RpcStatusProto, ProtocolError> {
    RpcStatusProto::try_from(head.status).map_err(|_| ProtocolError::UnknownStatus(head.status))
}

fn header(call_id: i32, retry: i32, client_id: Bytes) -> RpcRequestHeaderProto {
    RpcRequestHeaderProto {
        rpc_kind: Some(RpcKindProto::RpcProtocolBuffer as i32),
        rpc_op: Some(OperationProto::RpcFinalPacket as i32),
        call_id,
        client_id,
        retry_count: Some(retry),
        caller_context: None,
    }
}

/// Appends a SASL message. Its header has an empty client id.
fn put_sasl(output: &mut BytesMut, message: Bytes) {
    let header = header(CALL_ID_SASL, -1, Bytes::new());
    put_frame(output, usize::MAX, &[&header, &Delimited::of_encoded(&message)])
        .expect("a SASL message fits in a frame");
}

#[cfg(test)]
mod tests;
