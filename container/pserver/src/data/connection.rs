//! Serves one connection of a trainer: frames in, replies out.

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use heddle_channel::{ChannelStream, PeerTimeout};
use heddle_fail_points::fail_point;
use heddle_protocol::frame::{FrameError, Kind, flags};
use heddle_protocol::handshake::Verdict;
use heddle_shard::{Conn, Flow};
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::handshake::{self, Denied};
use super::pending_handshakes::PendingHandshake;
use super::receive_buffer::ReceiveBuffer;
use super::thread::{DataThread, TrainerConnection};

/// Replies that may wait for a slow peer before reading of its requests stops.
const REPLIES_MAX: usize = 4096;
/// Consecutive reads of one connection before others are served.
const READS_IN_A_ROW: usize = 8;
/// For this time the thread looks again and again for the rest of a step that has begun to come, before it sleeps: its trainer is
/// sending it, and would spend more on waking the thread for each part.
const SPIN: Duration = Duration::from_micros(50);

/// Why a connection closed.
#[derive(Debug, thiserror::Error)]
pub(super) enum DataConnectionEnd {
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("closed before its authentication, for a newer connection")]
    Unauthenticated,
    #[error("closed by the peer")]
    ByPeer,
    #[error("closed unread: the trainer is superseded or has left")]
    Unread,
    #[error("the peer must send frames")]
    Frame(#[from] FrameError),
}

/// Serves a connection until it closes.
pub(super) async fn serve(
    thread: &Rc<DataThread>,
    stream: TcpStream,
    handshake: PendingHandshake,
    timeout: PeerTimeout,
) -> Result<(), DataConnectionEnd> {
    timeout.apply(&stream)?;
    let (member, mut stream) = tokio::select! {
        greeted = handshake::greet(stream, thread.expected()) => greeted?,
        () = handshake.closed() => return Err(DataConnectionEnd::Unauthenticated),
    };
    drop(handshake);
    let Ok(conn) = thread.with_shards(None, |shards, _, out| shards.connect(member, out)) else {
        handshake::answer(&mut stream, Verdict::NotMember).await?;
        return Err(Denied::NotMember.into());
    };
    let connection = Rc::new(TrainerConnection::default());
    thread.add(conn, Rc::clone(&connection));
    // Removes the connection in every case, including a drop of this task.
    let _guard = RemoveOnDrop { thread, conn };
    handshake::answer(&mut stream, Verdict::Welcome).await?;
    tracing::debug!(%member, %conn, "data_connection_opened");
    let received = ReceiveBuffer::new();
    let connection = &*connection;
    FrameLoop { thread, connection, conn, stream, received, blocked: false, in_step: false }
        .run()
        .await
}

struct RemoveOnDrop<'a> {
    thread: &'a DataThread,
    conn: Conn,
}

impl Drop for RemoveOnDrop<'_> {
    fn drop(&mut self) {
        self.thread.remove(self.conn);
    }
}

struct FrameLoop<'a> {
    thread: &'a DataThread,
    connection: &'a TrainerConnection,
    conn: Conn,
    stream: ChannelStream,
    received: ReceiveBuffer,
    /// The frame at the front was not taken: wait for a wake-up before the next try.
    blocked: bool,
    /// The last frame was a push, and more of its step are to come.
    in_step: bool,
}

impl FrameLoop<'_> {
    async fn run(&mut self) -> Result<(), DataConnectionEnd> {
        let mut in_a_row = 0;
        let mut spinning: Option<Instant> = None;
        loop {
            if self.connection.closed.get() {
                return Err(DataConnectionEnd::Unread);
            }
            self.take_frames()?;
            self.flush()?;
            let reading = !self.blocked && self.connection.replies.borrow().len() < REPLIES_MAX;
            if reading && self.read()? {
                spinning = None;
                in_a_row += 1;
                if in_a_row == READS_IN_A_ROW {
                    in_a_row = 0;
                    tokio::task::yield_now().await;
                }
                continue;
            }
            in_a_row = 0;
            let more_is_coming = reading && (self.in_step || self.received.has_part());
            if more_is_coming && spinning.get_or_insert_with(Instant::now).elapsed() < SPIN {
                tokio::task::yield_now().await;
                continue;
            }
            self.wait(reading).await?;
        }
    }

    /// Waits until there is something to read or room to write, or another task wakes this connection.
    async fn wait(&mut self, reading: bool) -> io::Result<()> {
        let writing = !self.connection.replies.borrow().is_empty() || self.stream.has_pending();
        let interest = match (reading, writing) {
            (true, true) => Interest::READABLE | Interest::WRITABLE,
            (true, false) => Interest::READABLE,
            (false, true) => Interest::WRITABLE,
            (false, false) => {
                self.connection.wake.notified().await;
                self.blocked = false;
                return Ok(());
            }
        };
        tokio::select! {
            ready = self.stream.ready(interest) => {
                ready?;
            }
            () = self.connection.wake.notified() => self.blocked = false,
        }
        Ok(())
    }

    /// Reads once. Returns whether bytes came.
    fn read(&mut self) -> Result<bool, DataConnectionEnd> {
        match self.stream.try_read(self.received.space()?) {
            Ok(0) => Err(DataConnectionEnd::ByPeer),
            Ok(bytes) => {
                self.received.filled(bytes);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Passes complete frames to the shards.
    fn take_frames(&mut self) -> Result<(), DataConnectionEnd> {
        let mut taken = 0;
        while !self.blocked && !self.connection.closed.get() {
            let Some(frame) = self.received.front(self.conn)? else {
                break;
            };
            fail_point!(
                "frame-received",
                kind = format_args!("{:?}", frame.header.kind),
                step = frame.header.step,
            );
            let push = self.thread.times.begin(&frame.header, &self.thread.shards);
            let flow = self
                .thread
                .with_shards(Some(self.conn), |shards, _, out| shards.on_frame(&frame, out));
            if let Some(push) = push {
                self.thread.times.handled(push, &self.thread.shards);
            }
            match flow {
                Flow::Taken => {
                    let header = frame.header;
                    self.in_step = header.kind == Kind::Push && !header.has(flags::LAST);
                    let bytes = header.payload_bytes();
                    self.received.take(bytes);
                    taken += 1;
                }
                Flow::Wait => {
                    self.blocked = true;
                    self.thread.blocked.set(true);
                }
            }
        }
        if taken > 0 {
            // A barrier may have ended the wait of other connections.
            self.thread.unblock();
            self.thread.publish();
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush_pending()?;
        let mut replies = self.connection.replies.borrow_mut();
        if replies.is_empty() {
            return Ok(());
        }
        let shards = self.thread.shards.borrow();
        replies.flush(&shards, |slices| self.stream.try_write_vectored(slices))
    }
}
