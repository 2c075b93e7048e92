//! One HTTP/1.1 connection to the ApplicationMaster, from the first byte to the last.
//!
//! `POST /v1/hello` exchanges the challenge of `heddle_protocol::handshake` in headers. `POST /v1/session` proves this
//! side and then streams lines both ways until either side closes.

use std::time::Duration;

use bytes::Bytes;
use heddle_channel::{ChannelStream, DialError, dial_stream};
use heddle_protocol::control::CommandEnvelope;
use heddle_protocol::environment::AmAddress;
use heddle_protocol::handshake::{
    Channel, HEADER_ANSWER, HEADER_HELLO, HEADER_PROOF, HandshakeError, Hello, Mechanism,
    NONCE_BYTES, PROOF_BYTES,
};
use heddle_protocol::lines::LineBuffer;
use http_body_util::BodyExt;
use http_body_util::channel::Channel as BodyChannel;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::leader::{self, LeaderError};
use super::outgoing::OutgoingLines;
use crate::environment::{AmPlace, ContainerEnvironment};

/// Longest time for opening a connection. After it the machine retries.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Pieces between the queue and the socket.
const PIECES_IN_FLIGHT: usize = 32;
/// What a connection reports to the control thread.
pub(super) enum ConnectionEvent {
    Opened(OutgoingLines),
    SecretRefused,
    Line(Box<CommandEnvelope>),
    Ended(String),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error("{0}")]
    Leader(#[from] LeaderError),
    #[error("no response within {} s", CONNECT_LIMIT.as_secs())]
    Slow,
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Http(#[from] hyper::Error),
    #[error("{0}")]
    Encrypted(#[from] DialError),
    #[error("{0}")]
    Protocol(String),
    #[error("the ApplicationMaster and this container do not share the secret")]
    SecretRefused,
}

/// Opens a connection and reads it to its end. Lines that arrive go to `events`.
pub(super) async fn connect(
    environment: &ContainerEnvironment,
    leader: Option<AmAddress>,
    connection: u64,
    events: &mpsc::UnboundedSender<(u64, ConnectionEvent)>,
) -> Result<(), ConnectionError> {
    let opening = async {
        let am = match (&environment.am, leader) {
            (AmPlace::File(_), _) => leader::look(&environment.am, None).await?,
            (AmPlace::Directory { .. }, Some(leader)) => leader,
            (AmPlace::Directory { .. }, None) => return Err(LeaderError::NotYet.into()),
        };
        let stream = TcpStream::connect(am.address).await?;
        environment.timeout.apply(&stream)?;
        let stream = secured(environment, stream).await?;
        open(environment, stream).await
    };
    let (lines, mut body) =
        tokio::time::timeout(CONNECT_LIMIT, opening).await.map_err(|_| ConnectionError::Slow)??;
    let _gone = events.send((connection, ConnectionEvent::Opened(lines)));
    let mut buffer = LineBuffer::default();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        buffer.push(&data).map_err(|error| ConnectionError::Protocol(error.to_string()))?;
        while let Some(line) = buffer.next_line() {
            let down = CommandEnvelope::from_json(&line)
                .map_err(|error| ConnectionError::Protocol(format!("unknown command: {error}")))?;
            let _gone = events.send((connection, ConnectionEvent::Line(Box::new(down))));
        }
    }
    Ok(())
}

/// Encrypts the connection where the job requires it. The challenge of HTTP follows in both cases.
async fn secured(
    environment: &ContainerEnvironment,
    stream: TcpStream,
) -> Result<ChannelStream, ConnectionError> {
    if environment.mechanism == Mechanism::Hmac {
        return Ok(ChannelStream::Plain(stream));
    }
    let hello = Hello::new(environment.run, Some(environment.member))
        .map_err(|error| ConnectionError::Protocol(error.to_string()))?;
    Ok(dial_stream(stream, &environment.secret, Channel::Control, &hello).await?)
}

async fn open(
    environment: &ContainerEnvironment,
    stream: ChannelStream,
) -> Result<(OutgoingLines, Incoming), ConnectionError> {
    let (mut sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        if let Err(error) = driver.await {
            tracing::debug!(%error, "control_connection_broke");
        }
    });
    let wrong = |error: &dyn std::fmt::Display| ConnectionError::Protocol(error.to_string());
    let hello = Hello::new(environment.run, Some(environment.member)).map_err(|e| wrong(&e))?;
    let (_, empty) = BodyChannel::<Bytes>::new(1);
    let request = Request::post("/v1/hello")
        .header(hyper::header::HOST, "heddle")
        .header(HEADER_HELLO, hex::encode(hello.encode()))
        .body(empty)
        .map_err(|e| wrong(&e))?;
    let response = sender.send_request(request).await?;
    if response.status() == StatusCode::UPGRADE_REQUIRED {
        return Err(ConnectionError::Protocol(HandshakeError::Unprotected.to_string()));
    }
    if response.status() != StatusCode::OK {
        return Err(ConnectionError::Protocol(format!(
            "hello failed with status {}",
            response.status()
        )));
    }
    let mut answer = [0; NONCE_BYTES + PROOF_BYTES];
    response
        .headers()
        .get(HEADER_ANSWER)
        .and_then(|value| hex::decode_to_slice(value.as_bytes(), &mut answer).ok())
        .ok_or_else(|| ConnectionError::Protocol("the response to hello has no proof".into()))?;
    let proof = hello
        .client_proof(&environment.secret, Channel::Control, &answer)
        .map_err(|_| ConnectionError::SecretRefused)?;
    // The connection carries the next request only after the body of this response was read.
    response.into_body().collect().await?;
    let (lines, body) = BodyChannel::<Bytes>::new(PIECES_IN_FLIGHT);
    let request = Request::post("/v1/session")
        .header(hyper::header::HOST, "heddle")
        .header(HEADER_PROOF, hex::encode(proof))
        .body(body)
        .map_err(|e| wrong(&e))?;
    let response = sender.send_request(request).await?;
    match response.status() {
        StatusCode::OK => Ok((OutgoingLines::new(lines), response.into_body())),
        StatusCode::UNAUTHORIZED => Err(ConnectionError::SecretRefused),
        status => Err(ConnectionError::Protocol(format!("session failed with status {status}"))),
    }
}
