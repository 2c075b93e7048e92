//! TCP connections, plain or encrypted, behind one type.
//!
//! A plain connection is its socket: each call is the socket's after one comparison, without a buffer.
//!
//! An encrypted one takes bytes into a record before it writes them. So after a write some sealed bytes may wait for the
//! socket: the `try_` calls leave them to [`ChannelStream::flush_pending`] and [`ChannelStream::has_pending`], the
//! asynchronous ones to `flush`.

use std::io::{self, IoSlice, IoSliceMut};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use heddle_protocol::handshake::{Channel, Hello, MECHANISM_NOISE, Secret, Verdict};
use heddle_protocol::ids::RunId;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadBuf, Ready};
use tokio::net::TcpStream;

use crate::opening::{ANSWER_BYTES, ChannelError, Dialing, OPENING_BYTES, RecordCipher, accept};
use crate::records::Records;

/// Proof of a client that it holds the keys, in its first record.
const CONFIRMATION: u8 = 0;

/// A connection between two processes of a job.
pub enum ChannelStream {
    /// Bytes as they are.
    Plain(TcpStream),
    /// Bytes in records.
    Encrypted(Box<EncryptedStream>),
}

/// A socket with its records.
pub struct EncryptedStream {
    socket: TcpStream,
    records: Records,
}

/// Why an encrypted connection was not opened.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The socket failed.
    #[error(
        "the connection ended during its encrypted handshake: the peer does not hold the job's secret, or offers less than network.protection requires"
    )]
    Io(#[from] io::Error),
    /// The peer sent something else.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The server holds the secret, and refuses this client.
    #[error("rejected by the peer: {0:?}")]
    Verdict(Option<Verdict>),
}

/// A client that has proved the secret. It waits for a [`Verdict`].
pub struct ProvenPeer {
    /// What it states of itself.
    pub hello: Hello,
    /// The kind of the connection.
    pub channel: Channel,
    /// The connection.
    pub stream: ChannelStream,
}

impl ProvenPeer {
    /// Sends the verdict.
    ///
    /// # Errors
    /// The connection ended.
    pub async fn answer(&mut self, verdict: Verdict) -> io::Result<()> {
        send_verdict(&mut self.stream, verdict).await
    }
}

async fn send_verdict(stream: &mut ChannelStream, verdict: Verdict) -> io::Result<()> {
    stream.write_all(&[verdict as u8]).await?;
    stream.flush().await
}

/// Opens an encrypted connection on a socket that is connected.
///
/// # Errors
/// The peer does not hold the secret, offers less, or refuses this client.
///
/// # Cancel safety
/// A dropped call leaves the socket closed.
pub async fn dial_stream(
    mut socket: TcpStream,
    secret: &Secret,
    channel: Channel,
    hello: &Hello,
) -> Result<ChannelStream, DialError> {
    let (dialing, opening) =
        Dialing::begin(secret, channel, hello, RecordCipher::of_this_machine())?;
    socket.write_all(&opening).await?;
    let mut answer = [0; ANSWER_BYTES];
    let read = socket.read_exact(&mut answer).await;
    // A server that does not accept the first bytes sends a verdict instead, and closes.
    if read.is_err()
        && answer[0] == Verdict::WrongSecret as u8
        && answer[1..] == [0; ANSWER_BYTES - 1]
    {
        return Err(ChannelError::Proof.into());
    }
    read?;
    let records = dialing.finish(&answer)?;
    let mut stream = ChannelStream::Encrypted(Box::new(EncryptedStream { socket, records }));
    stream.write_all(&[CONFIRMATION]).await?;
    stream.flush().await?;
    match Verdict::from_byte(stream.read_u8().await?) {
        Some(Verdict::Welcome) => Ok(stream),
        other => Err(DialError::Verdict(other)),
    }
}

/// Accepts an encrypted connection whose first byte, the mechanism, is read already.
///
/// # Errors
/// The peer does not hold the secret, or its connection is of another kind.
///
/// # Cancel safety
/// A dropped call leaves the socket closed.
pub async fn accept_stream(
    mut socket: TcpStream,
    secret: &Secret,
    run: RunId,
    channels: &[Channel],
) -> Result<ProvenPeer, DialError> {
    let mut opening = [MECHANISM_NOISE; OPENING_BYTES];
    socket.read_exact(&mut opening[1..]).await?;
    let accepted = match accept(secret, run, channels, &opening) {
        Err(error @ ChannelError::Proof) => {
            socket.write_all(&[Verdict::WrongSecret as u8]).await?;
            return Err(error.into());
        }
        accepted => accepted?,
    };
    socket.write_all(&accepted.answer).await?;
    let records = accepted.records;
    let mut stream = ChannelStream::Encrypted(Box::new(EncryptedStream { socket, records }));
    match stream.read_u8().await? {
        CONFIRMATION => Ok(ProvenPeer { hello: accepted.hello, channel: accepted.channel, stream }),
        _ => Err(ChannelError::Proof.into()),
    }
}

impl ChannelStream {
    /// Waits until [`Self::try_read`] may return bytes.
    ///
    /// # Errors
    /// As the socket's.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.readable().await,
            Self::Encrypted(stream) if stream.records.has_payload() => Ok(()),
            Self::Encrypted(stream) => stream.socket.readable().await,
        }
    }

    /// Waits until the socket has room.
    ///
    /// # Errors
    /// As the socket's.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn writable(&self) -> io::Result<()> {
        self.socket().writable().await
    }

    /// Waits for one of these states.
    ///
    /// # Errors
    /// As the socket's.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        match self {
            Self::Encrypted(stream) if interest.is_readable() && stream.records.has_payload() => {
                Ok(Ready::READABLE)
            }
            _ => self.socket().ready(interest).await,
        }
    }

    /// Reads what is there; 0 bytes at the end of the connection.
    ///
    /// # Errors
    /// `WouldBlock`, or the connection has to be closed.
    pub fn try_read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.try_read(out),
            Self::Encrypted(stream) => stream.try_read(out),
        }
    }

    /// Reads what is there into these buffers, in order.
    ///
    /// # Errors
    /// As [`Self::try_read`].
    pub fn try_read_vectored(&mut self, out: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.try_read_vectored(out),
            Self::Encrypted(stream) => {
                let mut filled = 0;
                for slice in out.iter_mut().filter(|slice| !slice.is_empty()) {
                    // Only the first one waits for the socket.
                    let read = match filled {
                        0 => stream.try_read(slice)?,
                        _ => stream.records.open(slice)?,
                    };
                    filled += read;
                    if read < slice.len() {
                        break;
                    }
                }
                Ok(filled)
            }
        }
    }

    /// Takes bytes from the front of the slices. They are in the socket, or wait for [`Self::flush_pending`].
    ///
    /// # Errors
    /// `WouldBlock` when nothing was taken, or the connection has to be closed.
    pub fn try_write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.try_write_vectored(slices),
            Self::Encrypted(stream) => {
                stream.flush()?;
                if !stream.records.pending().is_empty() {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                let taken = stream.records.seal(slices)?;
                stream.flush()?;
                Ok(taken)
            }
        }
    }

    /// Whether bytes that were taken are not in the socket yet. Always false on a plain connection.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Encrypted(stream) => !stream.records.pending().is_empty(),
        }
    }

    /// Writes waiting bytes while the socket has room.
    ///
    /// # Errors
    /// The connection has to be closed.
    pub fn flush_pending(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Encrypted(stream) => stream.flush(),
        }
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Encrypted(stream) => &stream.socket,
        }
    }
}

impl EncryptedStream {
    fn try_read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let opened = self.records.open(out)?;
            if opened > 0 || out.is_empty() {
                return Ok(opened);
            }
            match self.socket.try_read(self.records.space())? {
                0 => return self.end(),
                received => self.records.filled(received),
            }
        }
    }

    /// The peer has closed: in order, or in the middle of a record.
    fn end(&self) -> io::Result<usize> {
        match self.records.is_complete() {
            true => Ok(0),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.records.pending().is_empty() {
            match self.socket.try_write(self.records.pending()) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => self.records.sent(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.records.pending().is_empty() {
            let socket = Pin::new(&mut self.socket);
            match ready!(socket.poll_write(context, self.records.pending()))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.records.sent(sent),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let opened = self.records.open(out.initialize_unfilled())?;
            if opened > 0 || out.remaining() == 0 {
                out.advance(opened);
                return Poll::Ready(Ok(()));
            }
            let mut space = ReadBuf::new(self.records.space());
            ready!(Pin::new(&mut self.socket).poll_read(context, &mut space))?;
            match space.filled().len() {
                0 => return Poll::Ready(self.end().map(|_| ())),
                received => self.records.filled(received),
            }
        }
    }

    fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_flush(context))?;
        let taken = self.records.seal(slices)?;
        // What does not fit waits for the next call or for the flush, which have the waker.
        if let Poll::Ready(Err(error)) = self.poll_flush(context) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(taken))
    }
}

impl AsyncRead for ChannelStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(context, out),
            Self::Encrypted(stream) => stream.poll_read(context, out),
        }
    }
}

impl AsyncWrite for ChannelStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(context, bytes),
            Self::Encrypted(stream) => stream.poll_write(context, &[IoSlice::new(bytes)]),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write_vectored(context, slices),
            Self::Encrypted(stream) => stream.poll_write(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(context),
            Self::Encrypted(stream) => stream.poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(context),
            Self::Encrypted(stream) => {
                ready!(stream.poll_flush(context))?;
                Pin::new(&mut stream.socket).poll_shutdown(context)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use uuid::Uuid;

    use super::*;

    const RUN: RunId = RunId(Uuid::from_u128(7));

    fn secret(byte: u8) -> Secret {
        Secret::from_hex(&format!("{byte:02x}").repeat(32)).expect("64 digits")
    }

    async fn sockets() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let dialled = TcpStream::connect(listener.local_addr().expect("bound")).await;
        (dialled.expect("listening"), listener.accept().await.expect("dialled").0)
    }

    async fn pair() -> (ChannelStream, ChannelStream) {
        let (dialled, mut accepted) = sockets().await;
        let server = async {
            assert_eq!(accepted.read_u8().await.expect("a byte"), MECHANISM_NOISE);
            let mut incoming =
                accept_stream(accepted, &secret(1), RUN, &[Channel::Data]).await.expect("proved");
            incoming.answer(Verdict::Welcome).await.expect("open");
            incoming.stream
        };
        let hello = Hello::new(RUN, None).expect("random numbers");
        let secret = secret(1);
        let client = dial_stream(dialled, &secret, Channel::Data, &hello);
        let (client, server) = tokio::join!(client, server);
        (client.expect("welcome"), server)
    }

    #[tokio::test]
    async fn megabytes_pass_both_ways_at_once() {
        let (client, server) = pair().await;
        let sent: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        let side = |mut stream: ChannelStream, sent: Vec<u8>| async move {
            let (mut from, mut to) = tokio::io::split(&mut stream);
            let mut got = vec![0; sent.len()];
            let write = async {
                to.write_all(&sent).await.expect("open");
                to.flush().await.expect("open");
            };
            let (_, read) = tokio::join!(write, from.read_exact(&mut got));
            read.expect("all of it");
            assert!(got == sent);
            stream
        };
        let (client, mut server) = tokio::join!(side(client, sent.clone()), side(server, sent));
        drop(client);
        assert_eq!(server.read(&mut [0; 8]).await.expect("an end in order"), 0);
    }

    /// As data threads do it: no call waits, and what the socket does not take is flushed later.
    #[tokio::test]
    async fn try_calls_pass_more_than_a_socket_holds() {
        let (mut client, mut server) = pair().await;
        let sent: Vec<u8> = (0..20_000_000u32).map(|n| (n % 253) as u8).collect();
        let write = async {
            let mut rest = &sent[..];
            while !rest.is_empty() || client.has_pending() {
                client.flush_pending().expect("open");
                match client.try_write_vectored(&[IoSlice::new(rest)]) {
                    Ok(taken) => rest = &rest[taken..],
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        client.writable().await.expect("open");
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let read = async {
            let (mut got, mut head, mut body) = (Vec::new(), [0; 7], vec![0; 150_000]);
            while got.len() < 20_000_000 {
                server.readable().await.expect("open");
                let mut slices = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut body)];
                match server.try_read_vectored(&mut slices) {
                    Ok(0) => panic!("ended"),
                    Ok(n) => {
                        got.extend_from_slice(&head[..n.min(7)]);
                        got.extend_from_slice(&body[..n.saturating_sub(7)]);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => panic!("{error}"),
                }
            }
            got
        };
        let ((), got) = tokio::join!(write, read);
        assert!(got == sent);
    }

    #[tokio::test]
    async fn another_secret_ends_the_connection() {
        let (dialled, mut accepted) = sockets().await;
        let server = async {
            accepted.read_u8().await.expect("a byte");
            accept_stream(accepted, &secret(2), RUN, &[Channel::Data]).await.map(|_| ())
        };
        let hello = Hello::new(RUN, None).expect("random numbers");
        let secret = secret(1);
        let client = dial_stream(dialled, &secret, Channel::Data, &hello);
        let (client, server) = tokio::join!(client, server);
        assert!(matches!(server, Err(DialError::Channel(ChannelError::Proof))));
        assert!(matches!(client, Err(DialError::Channel(ChannelError::Proof))));
    }

    #[tokio::test]
    async fn bytes_that_were_not_sealed_end_the_connection() {
        let (client, mut server) = pair().await;
        let ChannelStream::Encrypted(inner) = client else { panic!("encrypted") };
        let mut socket = inner.socket;
        socket.write_all(&[7; 40]).await.expect("open");
        let error = server.read(&mut [0; 8]).await.expect_err("changed");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
