//! One connection: opened, authenticated, then frames in both directions until it breaks.
//!
//! Buffers: 64 KiB for received bytes ([`super::incoming`]; values go straight to their pull), at most 1 MiB of frames
//! taken from the machine for one write ([`super::outgoing`]; they refer to the caller's gradient, nothing is copied).

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use heddle_channel::{ChannelStream, DialError, dial_stream};
use heddle_protocol::handshake::{
    Channel, HandshakeError, Hello, MECHANISM_HMAC, Mechanism, NONCE_BYTES, PROOF_BYTES, Verdict,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::incoming::Incoming;
use super::outgoing::Outgoing;
use super::path_watch::watch_path;
use super::settings::Settings;
use super::state::{ClientState, NewConnection};
use crate::machine::Closed;

/// Opening and authentication: both are a round trip or two, so seconds mean that the pserver is stopped or gone.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Why a connection could not be opened.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error("cannot connect")]
    Io(#[from] io::Error),
    #[error("timed out after {} s", OPEN_TIMEOUT.as_secs())]
    Timeout,
    #[error("handshake failed")]
    Handshake(#[from] HandshakeError),
    #[error("rejected by the pserver: {0:?}")]
    Verdict(Option<Verdict>),
    #[error("encrypted handshake failed")]
    Encrypted(#[from] DialError),
}

impl OpenError {
    fn how(&self) -> Closed {
        match self {
            Self::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => Closed::Refused,
            Self::Verdict(Some(Verdict::NotMember))
            | Self::Encrypted(DialError::Verdict(Some(Verdict::NotMember))) => Closed::NotMember,
            Self::Io(_)
            | Self::Timeout
            | Self::Handshake(_)
            | Self::Verdict(_)
            | Self::Encrypted(_) => Closed::Failed,
        }
    }
}

/// Opens the connection, serves it until it ends, and reports both to the machine.
pub(super) async fn run(state: Rc<ClientState>, connection: NewConnection) {
    let NewConnection { endpoint, serial, .. } = connection;
    let opened = tokio::time::timeout(OPEN_TIMEOUT, open(&state, endpoint)).await;
    let how = match opened.unwrap_or(Err(OpenError::Timeout)) {
        Ok(mut stream) if state.is_current(endpoint, serial) => {
            state.machine.borrow_mut().opened(endpoint, state.now_ms());
            let read_at = Cell::new(state.now_ms());
            let error = tokio::select! {
                error = serve(&state, &connection, &mut stream, &read_at) => error,
                never = watch_path(&state, endpoint, &read_at) => match never {},
            };
            tracing::debug!(%endpoint, %error, "data_connection_closed");
            Closed::Broke
        }
        Ok(_) => return,
        Err(error) => {
            let cause = &error as &dyn std::error::Error;
            tracing::debug!(%endpoint, error = cause, "data_connection_not_opened");
            error.how()
        }
    };
    if state.is_current(endpoint, serial) {
        state.connections.borrow_mut().remove(&endpoint);
        state.machine.borrow_mut().closed(endpoint, how, state.now_ms());
        state.deliver();
    }
}

async fn open(state: &ClientState, endpoint: SocketAddr) -> Result<ChannelStream, OpenError> {
    if let Some(left) = state.cut_left(endpoint) {
        // Longer than an attempt may take.
        tokio::time::sleep(left).await;
    }
    let stream = TcpStream::connect(endpoint).await?;
    state.settings.timeout.apply(&stream)?;
    let settings = &state.settings;
    let hello = Hello::new(settings.run, Some(settings.member))?;
    match settings.mechanism {
        Mechanism::Hmac => prove(settings, hello, stream).await,
        Mechanism::Noise => Ok(dial_stream(stream, &settings.secret, Channel::Data, &hello).await?),
    }
}

/// The challenge, after which plain bytes follow.
async fn prove(
    settings: &Settings,
    hello: Hello,
    mut stream: TcpStream,
) -> Result<ChannelStream, OpenError> {
    let mut first = vec![MECHANISM_HMAC];
    first.extend(hello.encode());
    stream.write_all(&first).await?;
    let mut answer = [0; NONCE_BYTES + PROOF_BYTES];
    let read = stream.read_exact(&mut answer).await;
    // A pserver that refuses plain bytes sends its verdict instead, and closes.
    if read.is_err() && answer[0] == Verdict::Unprotected as u8 && answer[1..] == [0; 63] {
        return Err(HandshakeError::Unprotected.into());
    }
    read?;
    let proof = hello.client_proof(&settings.secret, Channel::Data, &answer)?;
    stream.write_all(&proof).await?;
    match Verdict::from_byte(stream.read_u8().await?) {
        Some(Verdict::Welcome) => Ok(ChannelStream::Plain(stream)),
        other => Err(OpenError::Verdict(other)),
    }
}

/// Carries frames until the connection ends. Returns the reason.
async fn serve(
    state: &ClientState,
    connection: &NewConnection,
    stream: &mut ChannelStream,
    read_at: &Cell<u64>,
) -> io::Error {
    let &NewConnection { endpoint, serial, ref wake } = connection;
    let mut incoming = Incoming::new(endpoint);
    let mut outgoing = Outgoing::default();
    loop {
        if let Some(left) = state.cut_left(endpoint) {
            tokio::time::sleep(left).await;
        }
        // Without waiting for writability first: the socket nearly always has room.
        if let Err(error) = outgoing.write(state, endpoint, stream) {
            return error;
        }
        tokio::select! {
            ready = stream.readable() => {
                if let Err(error) = ready.and_then(|()| incoming.read(state, stream)) {
                    return error;
                }
                read_at.set(state.now_ms());
                state.deliver();
            }
            ready = stream.writable(), if !outgoing.is_empty() || stream.has_pending() => {
                if let Err(error) = ready {
                    return error;
                }
            }
            () = wake.notified() => {}
        }
        if !state.is_current(endpoint, serial) {
            return io::Error::other("the connection is not needed any more");
        }
    }
}
