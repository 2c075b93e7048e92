//! Opens the connection of a primary to a backup: the same port and handshake as a trainer's, with a pserver's name.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use heddle_channel::{ChannelStream, DialError, PeerTimeout, dial_stream};
use heddle_protocol::handshake::{
    Channel, HandshakeError, Hello, MECHANISM_HMAC, Mechanism, NONCE_BYTES, PROOF_BYTES, Verdict,
};
use heddle_protocol::ids::Member;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::handshake::Expected;

/// Opening and authentication are a round trip or two.
const LIMIT: Duration = Duration::from_secs(5);

/// Why a connection to a backup could not be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum PeerDialError {
    #[error("cannot connect")]
    Io(#[from] io::Error),
    #[error("timed out after {} s", LIMIT.as_secs())]
    Slow,
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error(transparent)]
    Encrypted(#[from] DialError),
    #[error("rejected by the backup: {0:?}")]
    Verdict(Option<Verdict>),
}

/// Opens an authenticated connection as `own`.
pub(super) async fn dial(
    endpoint: SocketAddr,
    own: Member,
    proven: Expected<'_>,
    timeout: PeerTimeout,
) -> Result<ChannelStream, PeerDialError> {
    let opened = tokio::time::timeout(LIMIT, open(endpoint, own, proven, timeout));
    opened.await.unwrap_or(Err(PeerDialError::Slow))
}

async fn open(
    endpoint: SocketAddr,
    own: Member,
    Expected { run, secret, mechanism }: Expected<'_>,
    timeout: PeerTimeout,
) -> Result<ChannelStream, PeerDialError> {
    let mut stream = TcpStream::connect(endpoint).await?;
    timeout.apply(&stream)?;
    let hello = Hello::new(run, Some(own))?;
    if mechanism == Mechanism::Noise {
        return Ok(dial_stream(stream, secret, Channel::Data, &hello).await?);
    }
    let mut first = vec![MECHANISM_HMAC];
    first.extend(hello.encode());
    stream.write_all(&first).await?;
    let mut answer = [0; NONCE_BYTES + PROOF_BYTES];
    stream.read_exact(&mut answer).await?;
    let proof = hello.client_proof(secret, Channel::Data, &answer)?;
    stream.write_all(&proof).await?;
    match Verdict::from_byte(stream.read_u8().await?) {
        Some(Verdict::Welcome) => Ok(ChannelStream::Plain(stream)),
        other => Err(PeerDialError::Verdict(other)),
    }
}
