//! The server side of the handshake of a data connection.

use std::io;
use std::time::Duration;

use heddle_protocol::handshake::{
    Channel, HELLO_BYTES, HandshakeError, Hello, MECHANISM_HMAC, PROOF_BYTES, Secret, Verdict,
    random_nonce,
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
    #[error("the authentication mechanism must be {MECHANISM_HMAC} (got {0})")]
    Mechanism(u8),
    #[error(transparent)]
    Proof(#[from] HandshakeError),
    #[error("the peer belongs to run {0}")]
    Run(RunId),
    #[error("the peer is not a member of the job")]
    NotMember,
}

/// Authenticates the peer. The verdict is not sent yet.
pub(crate) async fn greet(
    stream: &mut TcpStream,
    run: RunId,
    secret: &Secret,
) -> Result<Member, Denied> {
    match tokio::time::timeout(LIMIT, exchange(stream, run, secret)).await {
        Ok(result) => result,
        Err(_) => Err(Denied::Slow),
    }
}

async fn exchange(stream: &mut TcpStream, run: RunId, secret: &Secret) -> Result<Member, Denied> {
    let mechanism = stream.read_u8().await?;
    if mechanism != MECHANISM_HMAC {
        return Err(Denied::Mechanism(mechanism));
    }
    let mut hello = [0; HELLO_BYTES];
    stream.read_exact(&mut hello).await?;
    let hello = Hello::decode(&hello)?;
    let nonce = random_nonce()?;
    stream.write_all(&hello.server_answer(secret, Channel::Data, &nonce)).await?;
    let mut proof = [0; PROOF_BYTES];
    stream.read_exact(&mut proof).await?;
    if let Err(error) = hello.check_client(secret, Channel::Data, &nonce, &proof) {
        answer(stream, Verdict::WrongSecret).await?;
        return Err(error.into());
    }
    // Only a peer with the secret gets details.
    if hello.run != run {
        answer(stream, Verdict::WrongRun).await?;
        return Err(Denied::Run(hello.run));
    }
    match hello.member {
        Some(member) => Ok(member),
        None => {
            answer(stream, Verdict::NotMember).await?;
            Err(Denied::NotMember)
        }
    }
}

/// Sends the verdict.
pub(crate) async fn answer(stream: &mut TcpStream, verdict: Verdict) -> io::Result<()> {
    stream.write_all(&[verdict as u8]).await
}
