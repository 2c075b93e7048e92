//! The server side of the handshake of a data connection.

use std::io;
use std::time::Duration;

use heddle_channel::{ChannelStream, DialError, accept_stream};
use heddle_protocol::handshake::{
    Channel, HELLO_BYTES, HandshakeError, Hello, MECHANISM_HMAC, MECHANISM_NOISE, Mechanism,
    PROOF_BYTES, Secret, Verdict, random_nonce,
};
use heddle_protocol::ids::{Member, RunId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A peer without authentication after this time is disconnected: it is not part of the job.
const LIMIT: Duration = Duration::from_secs(5);

/// Why a peer is rejected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Denied {
    #[error("the handshake ended early")]
    Io(#[from] io::Error),
    #[error("the handshake took more than {} s", LIMIT.as_secs())]
    Slow,
    #[error("the authentication mechanism must be {MECHANISM_HMAC} or {MECHANISM_NOISE} (got {0})")]
    Mechanism(u8),
    #[error(
        "the connection must be encrypted (network.protection): mechanism {MECHANISM_NOISE}, not {MECHANISM_HMAC}"
    )]
    Unprotected,
    #[error(transparent)]
    Encrypted(#[from] DialError),
    #[error(transparent)]
    Proof(#[from] HandshakeError),
    #[error("the peer belongs to run {0}")]
    Run(RunId),
    #[error("the peer is not a member of the job")]
    NotMember,
}

/// The part of a data thread that a handshake needs.
pub(crate) struct Expected<'a> {
    pub(crate) run: RunId,
    pub(crate) secret: &'a Secret,
    /// The least that a peer must offer.
    pub(crate) mechanism: Mechanism,
}

/// Authenticates the peer. The verdict is not sent yet.
pub(crate) async fn greet(
    stream: TcpStream,
    expected: Expected<'_>,
) -> Result<(Member, ChannelStream), Denied> {
    match tokio::time::timeout(LIMIT, exchange(stream, expected)).await {
        Ok(result) => result,
        Err(_) => Err(Denied::Slow),
    }
}

async fn exchange(
    mut stream: TcpStream,
    expected: Expected<'_>,
) -> Result<(Member, ChannelStream), Denied> {
    let Expected { run, secret, mechanism } = expected;
    let (hello, mut stream) = match (stream.read_u8().await?, mechanism) {
        (MECHANISM_HMAC, Mechanism::Hmac) => {
            (challenge(&mut stream, secret).await?, ChannelStream::Plain(stream))
        }
        (MECHANISM_NOISE, _) => {
            let incoming = accept_stream(stream, secret, run, &[Channel::Data]).await?;
            (incoming.hello, incoming.stream)
        }
        (MECHANISM_HMAC, Mechanism::Noise) => {
            stream.write_all(&[Verdict::Unprotected as u8]).await?;
            return Err(Denied::Unprotected);
        }
        (other, _) => return Err(Denied::Mechanism(other)),
    };
    // Only a peer with the secret gets details.
    if hello.run != run {
        answer(&mut stream, Verdict::WrongRun).await?;
        return Err(Denied::Run(hello.run));
    }
    match hello.member {
        Some(member) => Ok((member, stream)),
        None => {
            answer(&mut stream, Verdict::NotMember).await?;
            Err(Denied::NotMember)
        }
    }
}

/// The challenge, after which plain bytes follow.
async fn challenge(stream: &mut TcpStream, secret: &Secret) -> Result<Hello, Denied> {
    let mut hello = [0; HELLO_BYTES];
    stream.read_exact(&mut hello).await?;
    let hello = Hello::decode(&hello)?;
    let nonce = random_nonce()?;
    stream.write_all(&hello.server_answer(secret, Channel::Data, &nonce)).await?;
    let mut proof = [0; PROOF_BYTES];
    stream.read_exact(&mut proof).await?;
    if let Err(error) = hello.check_client(secret, Channel::Data, &nonce, &proof) {
        stream.write_all(&[Verdict::WrongSecret as u8]).await?;
        return Err(error.into());
    }
    Ok(hello)
}

/// Sends the verdict.
pub(crate) async fn answer(stream: &mut ChannelStream, verdict: Verdict) -> io::Result<()> {
    stream.write_all(&[verdict as u8]).await?;
    stream.flush().await
}
