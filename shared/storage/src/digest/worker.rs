//! The threads that sum streams.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::{io, thread};

use bytes::Bytes;
use crossbeam::channel::{Receiver, Sender, unbounded};
use heddle_md5_lanes::{BLOCK_BYTES, Block, LANES_MAX, Md5Stream, update_together};
use heddle_protocol::manifest::Md5;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::background::lower_priority_of_thread;

/// Blocks of each stream that are summed before the next poll of the queue: 64 KiB, some 100 µs.
const BLOCKS_AT_ONCE: usize = 1024;
/// Cores for each summing thread. One thread sums several streams faster than a network of 10 Gbit/s delivers them.
const CORES_EACH: usize = 4;
/// Upper bound of the threads. More would sum faster than any of our machines writes.
const THREADS_MAX: usize = 4;

/// Names a stream.
pub(super) type Id = u64;

/// A message of a stream to its thread.
pub(super) enum Message {
    Begin(Id, Md5Stream),
    /// The permit is released when the bytes are summed, which bounds the stream's queued bytes.
    Piece(Id, Bytes, OwnedSemaphorePermit),
    Finish(Id, oneshot::Sender<Md5>),
    /// The stream was dropped; its sum is not needed.
    Forget(Id),
}

/// Registers a stream; returns its name and the channel to its thread.
///
/// # Errors
/// The system cannot create a thread.
pub(super) fn begin(sum: Md5Stream) -> io::Result<(Id, Sender<Message>)> {
    static THREADS: Mutex<Vec<Sender<Message>>> = Mutex::new(Vec::new());
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let wanted = thread::available_parallelism().map_or(1, |cores| cores.get() / CORES_EACH);
    let index = (id % wanted.clamp(1, THREADS_MAX) as u64) as usize;
    let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    if index >= threads.len() {
        let (to, messages) = unbounded();
        thread::Builder::new().name("md5".to_owned()).spawn(move || run(&messages))?;
        threads.push(to);
    }
    let to = threads[index.min(threads.len() - 1)].clone();
    // It lives as long as the process.
    let _taken = to.send(Message::Begin(id, sum));
    Ok((id, to))
}

fn run(messages: &Receiver<Message>) {
    lower_priority_of_thread();
    let mut streams = Streams::default();
    loop {
        // Without bytes to sum, wait for the next message; otherwise take the queued messages.
        if !streams.sum_some() {
            let Ok(message) = messages.recv() else {
                return;
            };
            streams.take(message);
        }
        messages.try_iter().for_each(|message| streams.take(message));
    }
}

struct Stream {
    sum: Md5Stream,
    pieces: VecDeque<(Bytes, OwnedSemaphorePermit)>,
    finish: Option<oneshot::Sender<Md5>>,
}

#[derive(Default)]
struct Streams {
    all: BTreeMap<Id, Stream>,
    /// The stream that was summed last.
    last: Id,
}

impl Streams {
    fn take(&mut self, message: Message) {
        match message {
            Message::Begin(id, sum) => {
                let stream = Stream { sum, pieces: VecDeque::new(), finish: None };
                self.all.insert(id, stream);
            }
            Message::Piece(id, bytes, permit) => {
                if let Some(stream) = self.all.get_mut(&id) {
                    stream.pieces.push_back((bytes, permit));
                }
            }
            Message::Finish(id, finish) => {
                if let Some(stream) = self.all.get_mut(&id) {
                    stream.finish = Some(finish);
                }
                self.finish_if_done(id);
            }
            Message::Forget(id) => {
                self.all.remove(&id);
            }
        }
    }

    fn finish_if_done(&mut self, id: Id) {
        let done = |stream: &Stream| stream.pieces.is_empty() && stream.finish.is_some();
        if self.all.get(&id).is_some_and(done)
            && let Some(stream) = self.all.remove(&id)
            && let Some(finish) = stream.finish
        {
            // A stream that was dropped does not receive its sum.
            let _nobody = finish.send(Md5(stream.sum.finish()));
        }
    }

    /// Sums some of the bytes of several streams; false if none has any.
    fn sum_some(&mut self) -> bool {
        // Round robin: the streams after the last one come first.
        let mut ids: Vec<Id> = self.all.range(self.last + 1..).map(|(id, _)| *id).collect();
        ids.extend(self.all.range(..=self.last).map(|(id, _)| *id));
        ids.retain(|id| self.align(*id));
        ids.truncate(LANES_MAX);
        let Some(last) = ids.last() else {
            return false;
        };
        self.last = *last;
        let mut sums: Vec<(&mut Md5Stream, &[Block])> = Vec::with_capacity(LANES_MAX);
        for (id, stream) in &mut self.all {
            if ids.contains(id)
                && let Some((bytes, _)) = stream.pieces.front()
            {
                sums.push((&mut stream.sum, bytes.as_chunks().0));
            }
        }
        let blocks = sums.iter().map(|(_, blocks)| blocks.len());
        let blocks = blocks.min().unwrap_or(0).min(BLOCKS_AT_ONCE);
        for (_, left) in &mut sums {
            *left = &left[..blocks];
        }
        update_together(&mut sums);
        for id in ids {
            if let Some((bytes, _)) = self.all.get_mut(&id).and_then(|it| it.pieces.front_mut()) {
                *bytes = bytes.slice(blocks * BLOCK_BYTES..);
            }
        }
        true
    }

    /// Sums the ends of pieces that are not whole blocks; returns whether a whole block is next. A stream without further
    /// bytes that waits for its sum gets it.
    fn align(&mut self, id: Id) -> bool {
        let Some(stream) = self.all.get_mut(&id) else {
            return false;
        };
        while let Some((bytes, _)) = stream.pieces.front_mut() {
            let begun = stream.sum.buffered();
            if begun == 0 && bytes.len() >= BLOCK_BYTES {
                return true;
            }
            let end = bytes.split_to(bytes.len().min(BLOCK_BYTES - begun));
            stream.sum.update(&end);
            if bytes.is_empty() {
                stream.pieces.pop_front();
            }
        }
        self.finish_if_done(id);
        false
    }
}
