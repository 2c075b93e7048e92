//! One connection: opened, proven, then frames both ways until it breaks.
//!
//! Buffers: 64 KiB for what arrives ([`super::incoming`]; values go straight to their pull), at most
//! 1 MiB of frames taken from the machine for one write ([`super::outgoing`]; they refer to the caller's
//! gradient, nothing is copied).

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

use super::Shell;
use super::incoming::Incoming;
use super::outgoing::Outgoing;
use crate::machine::Closed;

/// Opening and proving: both are a round trip or two, so seconds mean that the other side is stopped or gone.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Sent bytes that nobody confirms for this long break the connection: its machine is gone.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Why a connection could not be opened.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error("cannot connect")]
    Io(#[from] io::Error),
    #[error("did not answer in time")]
    Timeout,
    #[error("handshake failed")]
    Handshake(#[from] HandshakeError),
    #[error("refused by the pserver: {0:?}")]
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

/// Opens the connection, serves it to its end, and tells the machine.
pub(super) async fn run(shell: Rc<Shell>, endpoint: SocketAddr, serial: u64, wake: Rc<Notify>) {
    let opened = tokio::time::timeout(OPEN_TIMEOUT, open(&shell, endpoint)).await;
    let how = match opened.unwrap_or(Err(OpenError::Timeout)) {
        Ok(stream) if shell.is_current(endpoint, serial) => {
            shell.machine.borrow_mut().opened(endpoint);
            let error = serve(&shell, endpoint, serial, &wake, &stream).await;
            tracing::debug!(%endpoint, %error, "data connection ended");
            Closed::Broke
        }
        Ok(_) => return,
        Err(error) => {
            tracing::debug!(%endpoint, error = &error as &dyn std::error::Error, "data connection not opened");
            error.how()
        }
    };
    if shell.is_current(endpoint, serial) {
        shell.connections.borrow_mut().remove(&endpoint);
        shell.machine.borrow_mut().closed(endpoint, how, shell.now_ms());
        shell.carry_out();
    }
}

async fn open(shell: &Shell, endpoint: SocketAddr) -> Result<TcpStream, OpenError> {
    let mut stream = TcpStream::connect(endpoint).await?;
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(&stream);
    socket.set_tcp_keepalive(
        &socket2::TcpKeepalive::new().with_time(SILENCE_MAX / 2).with_interval(SILENCE_MAX / 4),
    )?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(SILENCE_MAX))?;

    let settings = &shell.settings;
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

/// Carries frames until the connection ends. Returns why it did.
async fn serve(
    shell: &Rc<Shell>,
    endpoint: SocketAddr,
    serial: u64,
    wake: &Notify,
    stream: &TcpStream,
) -> io::Error {
    let mut incoming = Incoming::new(endpoint);
    let mut outgoing = Outgoing::default();
    loop {
        // At once, since the socket has room nearly always.
        if let Err(error) = outgoing.write(shell, endpoint, stream) {
            return error;
        }
        tokio::select! {
            ready = stream.readable() => {
                if let Err(error) = ready.and_then(|()| incoming.read(shell, stream)) {
                    return error;
                }
                shell.carry_out();
            }
            ready = stream.writable(), if !outgoing.is_empty() => {
                if let Err(error) = ready {
                    return error;
                }
            }
            () = wake.notified() => {}
        }
        if !shell.is_current(endpoint, serial) {
            return io::Error::other("not wanted any more");
        }
    }
}
