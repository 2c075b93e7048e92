//! One connection of a trainer: frames in, replies out.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use heddle_protocol::frame::FrameError;
use heddle_protocol::handshake::Verdict;
use heddle_shard::{Conn, Flow};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::Thread;
use super::handshake::{self, Denied};
use super::receive_buffer::ReceiveBuffer;
use super::reply_buffer::ReplyBuffer;
use super::unproven::Place;

/// Replies that may wait for a peer that reads slowly, before no more of its requests are read.
const REPLIES_MAX: usize = 4096;
/// Reads of one connection in a row, before others have their turn.
const READS_IN_A_ROW: usize = 8;

/// A trainer whose machine is gone is noticed after 30 + 3 × 10 s without traffic, and with unacknowledged bytes after
/// two minutes (`TCP_USER_TIMEOUT`, RFC 5482). The kernel of a process that merely stands still answers for it.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(30))
    .with_interval(Duration::from_secs(10))
    .with_retries(3);
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(120);

/// What the thread knows of a connection.
pub(crate) struct Link {
    pub(crate) replies: RefCell<ReplyBuffer>,
    /// Told to close, without reading what is still in it.
    pub(crate) closed: Cell<bool>,
    /// Something changed for this connection, by another's doing.
    pub(crate) wake: Notify,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("closed without a proof, in favour of a newer connection")]
    Unproven,
    #[error("peer closed it")]
    ByPeer,
    #[error("closed unread: superseded or no member any more")]
    Unread,
    #[error("not a frame")]
    Frame(#[from] FrameError),
}

/// Serves a connection to its end.
pub(super) async fn serve(
    thread: &Rc<Thread>,
    mut stream: TcpStream,
    place: Place,
) -> Result<(), Ended> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    socket.set_tcp_keepalive(&KEEPALIVE)?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
    let member = tokio::select! {
        member = handshake::greet(&mut stream, thread.run, &thread.secret) => member?,
        () = place.closed() => return Err(Ended::Unproven),
    };
    drop(place);
    let Ok(conn) = thread.with_host(None, |host, _, out| host.connect(member, out)) else {
        handshake::answer(&mut stream, Verdict::NotMember).await?;
        return Err(Denied::NotMember.into());
    };
    let link = Rc::new(Link {
        replies: RefCell::default(),
        closed: Cell::new(false),
        wake: Notify::new(),
    });
    thread.links.borrow_mut().insert(conn, Rc::clone(&link));
    // Taken out again however serving ends, this task's being dropped included.
    let _listed = Listed { thread, conn };
    handshake::answer(&mut stream, Verdict::Welcome).await?;
    tracing::debug!(%member, %conn, "data connection opened");
    let mut session = Session {
        thread,
        link: &link,
        conn,
        stream,
        received: ReceiveBuffer::new(),
        blocked: false,
    };
    session.run().await
}

struct Listed<'a> {
    thread: &'a Thread,
    conn: Conn,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.thread.links.borrow_mut().remove(&self.conn);
        self.thread.host.borrow_mut().disconnect(self.conn);
    }
}

struct Session<'a> {
    thread: &'a Thread,
    link: &'a Link,
    conn: Conn,
    stream: TcpStream,
    received: ReceiveBuffer,
    /// The frame at the front was not taken: wait for a wake-up before trying again.
    blocked: bool,
}

impl Session<'_> {
    async fn run(&mut self) -> Result<(), Ended> {
        let mut in_a_row = 0;
        loop {
            if self.link.closed.get() {
                return Err(Ended::Unread);
            }
            self.take_frames()?;
            self.flush()?;
            let reading = !self.blocked && self.link.replies.borrow().len() < REPLIES_MAX;
            if reading && self.read()? {
                in_a_row += 1;
                if in_a_row == READS_IN_A_ROW {
                    in_a_row = 0;
                    tokio::task::yield_now().await;
                }
                continue;
            }
            in_a_row = 0;
            self.wait(reading).await?;
        }
    }

    /// Waits until there is something to read or room to write, or somebody wakes this connection.
    async fn wait(&mut self, reading: bool) -> io::Result<()> {
        let writing = !self.link.replies.borrow().is_empty();
        let interest = match (reading, writing) {
            (true, true) => Interest::READABLE | Interest::WRITABLE,
            (true, false) => Interest::READABLE,
            (false, true) => Interest::WRITABLE,
            (false, false) => {
                self.link.wake.notified().await;
                self.blocked = false;
                return Ok(());
            }
        };
        tokio::select! {
            ready = self.stream.ready(interest) => {
                ready?;
            }
            () = self.link.wake.notified() => self.blocked = false,
        }
        Ok(())
    }

    /// Reads once. Tells whether anything came.
    fn read(&mut self) -> Result<bool, Ended> {
        match self.stream.try_read(self.received.space()?) {
            Ok(0) => Err(Ended::ByPeer),
            Ok(bytes) => {
                self.received.filled(bytes);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Hands the frames that are wholly here to the host.
    fn take_frames(&mut self) -> Result<(), Ended> {
        let mut taken = 0;
        while !self.blocked && !self.link.closed.get() {
            let Some(frame) = self.received.front(self.conn)? else {
                break;
            };
            self.thread.hook.strike(&frame.header);
            let flow =
                self.thread.with_host(Some(self.conn), |host, _, out| host.on_frame(&frame, out));
            match flow {
                Flow::Taken => {
                    let bytes = frame.header.payload_bytes();
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
            // A barrier may have ended what made others wait.
            self.thread.unblock();
            self.thread.publish();
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut replies = self.link.replies.borrow_mut();
        if replies.is_empty() {
            return Ok(());
        }
        let host = self.thread.host.borrow();
        replies.flush(&host, |slices| self.stream.try_write_vectored(slices))
    }
}
