//! Streams of a data thread's primaries to their backups: one connection for each data thread that has a backup.
//!
//! The shards keep what a backup has not acknowledged, so a stream has no queue of its own: it takes the next entry when its
//! socket has room. After a new connection the entries that were not acknowledged come again; the backup takes only the next
//! one. Answers are read at any time, whatever waits to be written. Without replicas there is no stream.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::time::Duration;

use bytemuck::cast_slice;
use heddle_channel::ChannelStream;
use heddle_protocol::frame::{FrameError, HEADER_BYTES};
use heddle_protocol::ids::ShardId;
use heddle_shard::{Conn, Peer, StreamEntry};
use tokio::io::Interest;
use tokio::sync::Notify;

use super::peer_dial;
use super::receive_buffer::ReceiveBuffer;
use super::thread::DataThread;

/// How often the deadline of a refill that waits is checked.
const TICK: Duration = Duration::from_millis(100);
/// Wait between two attempts to connect: a backup that lives accepts at once.
const RETRY: Duration = Duration::from_millis(50);
/// Entries in one write: four slices each stay below the system's limit of 1024.
const ENTRIES_MAX: usize = 128;
/// Bytes of entries that are taken at a time.
const BYTES_MAX: usize = 1024 * 1024;

/// Opens and closes streams as the shards' views have them. Call it after each command.
pub(super) fn follow_views(thread: &Rc<DataThread>) {
    let wanted = thread.shards.borrow().peers();
    for (peer, wake) in thread.streams.want(wanted) {
        tokio::task::spawn_local(run(Rc::clone(thread), peer, wake));
    }
}

/// Keeps a stream open while it is wanted.
async fn run(thread: Rc<DataThread>, peer: Peer, wake: Rc<Notify>) {
    let (own, timeout) = thread.streams.identity();
    while thread.streams.is_wanted(peer, &wake) {
        match peer_dial::dial(peer.1, own, thread.expected(), timeout).await {
            Ok(stream) => {
                tracing::debug!(member = %peer.0, endpoint = %peer.1, "backup_connected");
                thread.shards_now().peer_connected(peer);
                let outgoing = OutgoingEntries::default();
                let received = ReceiveBuffer::new();
                let mut stream = EntryStream { thread: &thread, peer, stream, outgoing, received };
                let error = stream.serve(&wake).await;
                thread.shards.borrow_mut().peer_disconnected(peer);
                tracing::debug!(member = %peer.0, %error, "backup_disconnected");
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::debug!(
                    member = %peer.0,
                    endpoint = %peer.1,
                    error,
                    "backup_not_connected"
                );
            }
        }
        let _soon = tokio::time::timeout(RETRY, std::future::pending::<()>()).await;
    }
}

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
enum StreamEnd {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("closed by the backup")]
    ByBackup,
    #[error("a later view has no such backup")]
    NotWanted,
    #[error("the backup must send frames")]
    Frame(#[from] FrameError),
}

struct EntryStream<'a> {
    thread: &'a DataThread,
    peer: Peer,
    stream: ChannelStream,
    outgoing: OutgoingEntries,
    received: ReceiveBuffer,
}

impl EntryStream<'_> {
    async fn serve(&mut self, wake: &Rc<Notify>) -> StreamEnd {
        loop {
            if !self.thread.streams.is_wanted(self.peer, wake) {
                return StreamEnd::NotWanted;
            }
            match self.turn() {
                // Others take their turns between two reads.
                Ok(true) => tokio::task::yield_now().await,
                Ok(false) => {
                    if let Err(error) = self.wait(wake).await {
                        return error.into();
                    }
                }
                Err(end) => return end,
            }
        }
    }

    async fn wait(&self, wake: &Notify) -> io::Result<()> {
        let writing = !self.outgoing.entries.is_empty() || self.stream.has_pending();
        let both = Interest::READABLE | Interest::WRITABLE;
        let interest = if writing { both } else { Interest::READABLE };
        let has_deadline = self.thread.shards.borrow().deadline().is_some();
        tokio::select! {
            ready = self.stream.ready(interest) => ready.map(|_| ()),
            () = wake.notified() => Ok(()),
            () = tokio::time::sleep(TICK), if has_deadline => {
                // A refill may begin again.
                self.thread.tick();
                Ok(())
            }
        }
    }

    /// Writes and reads once. Returns whether bytes came.
    fn turn(&mut self) -> Result<bool, StreamEnd> {
        self.stream.flush_pending()?;
        self.outgoing.write(self.thread, self.peer, &mut self.stream)?;
        match self.stream.try_read(self.received.space()?) {
            Ok(0) => return Err(StreamEnd::ByBackup),
            Ok(bytes) => self.received.filled(bytes),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        while let Some(frame) = self.received.front(Conn(0))? {
            let reply = frame.header;
            self.received.take(reply.payload_bytes());
            let peer = self.peer;
            self.thread.with_shards(None, |shards, now, out| {
                shards.on_peer_reply(peer, &reply, now, out);
            });
        }
        // Frames of trainers may have waited for the backup.
        self.thread.unblock();
        self.thread.publish();
        Ok(true)
    }
}

/// Entries that are being written.
#[derive(Default)]
struct OutgoingEntries {
    entries: VecDeque<([[u8; HEADER_BYTES]; 2], StreamEntry)>,
    /// Written bytes of the first entry.
    written: usize,
    bytes: usize,
    /// Shards take turns.
    last: ShardId,
}

impl OutgoingEntries {
    fn write(
        &mut self,
        thread: &DataThread,
        peer: Peer,
        stream: &mut ChannelStream,
    ) -> io::Result<()> {
        loop {
            self.fill(thread, peer);
            if self.entries.is_empty() {
                return Ok(());
            }
            let slices = self.slices();
            match stream.try_write_vectored(&slices) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.advance(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn fill(&mut self, thread: &DataThread, peer: Peer) {
        let mut shards = thread.shards_now();
        while self.entries.len() < ENTRIES_MAX
            && self.bytes < BYTES_MAX
            && let Some(entry) = shards.next_entry(peer, self.last)
        {
            self.last = entry.head.shard;
            let heads = [entry.head.encode(), entry.change.frame().header.encode()];
            self.bytes += len(&entry);
            self.entries.push_back((heads, entry));
        }
    }

    fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut skip = self.written;
        let mut slices = Vec::with_capacity(self.entries.len() * 4);
        for (heads, entry) in &self.entries {
            let frame = entry.change.frame();
            let (keys, values) = (cast_slice(frame.keys), cast_slice(frame.values));
            for bytes in [&heads[0][..], &heads[1][..], keys, values] {
                let rest = &bytes[skip.min(bytes.len())..];
                skip -= bytes.len() - rest.len();
                if !rest.is_empty() {
                    slices.push(IoSlice::new(rest));
                }
            }
        }
        slices
    }

    fn advance(&mut self, count: usize) {
        self.written += count;
        while let Some((_, entry)) = self.entries.front() {
            let len = len(entry);
            if self.written < len {
                return;
            }
            self.written -= len;
            self.bytes -= len;
            self.entries.pop_front();
        }
    }
}

fn len(entry: &StreamEntry) -> usize {
    2 * HEADER_BYTES + entry.change.frame().header.payload_bytes()
}
