//! One connection: opened, authenticated, then frames in both directions until it breaks.
//!
//! Buffers: 64 KiB for received bytes ([`super::incoming`]; values go straight to their pull), at most 1 MiB of frames
//! taken from the machine for one write ([`super::outgoing`]; they refer to the caller's gradient, nothing is copied).

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use heddle_protocol::handshake::{
    Channel, HandshakeError, Hello, MECHANISM_HMAC, NONCE_BYTES, PROOF_BYTES, Verdict,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::incoming::Incoming;
use super::outgoing::Outgoing;
use super::state::{ClientState, NewConnection};
use crate::machine::Closed;

/// Opening and authentication: both are a round trip or two, so seconds mean that the pserver is stopped or gone.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Sent bytes without a TCP acknowledgement for this long break the connection: the remote machine is gone.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(10);

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
}

impl OpenError {
    fn how(&self) -> Closed {
        match self {
            Self::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => Closed::Refused,
            Self::Verdict(Some(Verdict::NotMember)) => Closed::NotMember,
            Self::Io(_) | Self::Timeout | Self::Handshake(_) | Self::Verdict(_) => Closed::Failed,
        }
    }
}

/// Opens the connection, serves it until it ends, and reports both to the machine.
pub(super) async fn run(state: Rc<ClientState>, connection: NewConnection) {
    let NewConnection { endpoint, serial, wake } = connection;
    let opened = tokio::time::timeout(OPEN_TIMEOUT, open(&state, endpoint)).await;
    let how = match opened.unwrap_or(Err(OpenError::Timeout)) {
        Ok(stream) if state.is_current(endpoint, serial) => {
            state.machine.borrow_mut().opened(endpoint);
            let error = serve(&state, endpoint, serial, &wake, &stream).await;
            tracing::debug!(%endpoint, %error, "data_connection_closed");
            Closed::Broke
        }
        Ok(_) => return,
        Err(error) => {
            tracing::debug!(%endpoint, error = &error as &dyn std::error::Error, "data_connection_not_opened");
            error.how()
        }
    };
    if state.is_current(endpoint, serial) {
        state.connections.borrow_mut().remove(&endpoint);
        state.machine.borrow_mut().closed(endpoint, how, state.now_ms());
        state.deliver();
    }
}

async fn open(state: &ClientState, endpoint: SocketAddr) -> Result<TcpStream, OpenError> {
    let mut stream = TcpStream::connect(endpoint).await?;
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(&stream);
    socket.set_tcp_keepalive(
        &socket2::TcpKeepalive::new()
            .with_time(UNACKNOWLEDGED_MAX / 2)
            .with_interval(UNACKNOWLEDGED_MAX / 4),
    )?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;

    let settings = &state.settings;
    let hello = Hello::new(settings.run, Some(settings.member))?;
    let mut first = vec![MECHANISM_HMAC];
    first.extend(hello.encode());
    stream.write_all(&first).await?;
    let mut answer = [0; NONCE_BYTES + PROOF_BYTES];
    stream.read_exact(&mut answer).await?;
    let proof = hello.client_proof(&settings.secret, Channel::Data, &answer)?;
    stream.write_all(&proof).await?;
    match Verdict::from_byte(stream.read_u8().await?) {
        Some(Verdict::Welcome) => Ok(stream),
        other => Err(OpenError::Verdict(other)),
    }
}

/// Carries frames until the connection ends. Returns the reason.
async fn serve(
    state: &ClientState,
    endpoint: SocketAddr,
    serial: u64,
    wake: &Notify,
    stream: &TcpStream,
) -> io::Error {
    let mut incoming = Incoming::new(endpoint);
    let mut outgoing = Outgoing::default();
    loop {
        // Without waiting for writability first: the socket nearly always has room.
        if let Err(error) = outgoing.write(state, endpoint, stream) {
            return error;
        }
        tokio::select! {
            ready = stream.readable() => {
                if let Err(error) = ready.and_then(|()| incoming.read(state, stream)) {
                    return error;
                }
                state.deliver();
            }
            ready = stream.writable(), if !outgoing.is_empty() => {
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
