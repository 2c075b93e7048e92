//! Events as lines on standard output, for the command line that started a local run.
//!
//! The reader may stop reading at any time: Ctrl-Z, a terminal that is not read, a slow program behind a pipe. A pipe
//! holds 64 KiB; then a write blocks. So the driver never writes: it queues, and a thread of its own writes. The queue
//! is bounded. A newer progress line replaces the one that still waits; of the others the oldest are dropped when the
//! queue is full, and a warning in their place gives their number. The beginning and the end of the job are never
//! dropped. At the end of the process [`flush`] waits for the reader for a moment; whoever comes back later finds the
//! outcome in the run directory.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use heddle_protocol::view::Event;

/// Bytes of lines that wait at the most, besides those that are never dropped: some 3,000 passes.
const WAITING_BYTES_MAX: usize = 1 << 20;

/// What may become of a line that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    /// A newer one replaces it.
    Progress,
    /// Dropped when the queue is full.
    Passing,
    /// Never dropped.
    Kept,
}

fn weight(event: &Event) -> Weight {
    match event {
        Event::Progress { .. } => Weight::Progress,
        Event::Started { .. } | Event::CheckpointDamaged { .. } | Event::Ended { .. } => {
            Weight::Kept
        }
        Event::Registered { .. }
        | Event::Lost { .. }
        | Event::PhaseBegun { .. }
        | Event::Evaluated(_)
        | Event::CheckpointCommitted(_)
        | Event::CheckpointGivenUp { .. }
        | Event::StorageWait(_)
        | Event::Recovered(_)
        | Event::Warning { .. } => Weight::Passing,
    }
}

#[derive(Default)]
struct LineQueue {
    lines: VecDeque<(Weight, String)>,
    /// Of the lines that may be dropped.
    bytes: usize,
    dropped: u64,
    /// A line is being written.
    writing: bool,
    /// The reader is gone: nothing is kept any more.
    gone: bool,
}

impl LineQueue {
    fn push(&mut self, weight: Weight, line: String) {
        if self.gone {
            return;
        }
        if weight == Weight::Progress {
            self.remove_first(Weight::Progress);
        }
        if weight != Weight::Kept {
            self.bytes += line.len();
        }
        self.lines.push_back((weight, line));
        while self.bytes > WAITING_BYTES_MAX && self.remove_first(Weight::Passing) {
            self.dropped += 1;
        }
    }

    fn remove_first(&mut self, weight: Weight) -> bool {
        let Some(at) = self.lines.iter().position(|(of, _)| *of == weight) else {
            return false;
        };
        if let Some((_, line)) = self.lines.remove(at) {
            self.bytes -= line.len();
        }
        true
    }

    fn pop(&mut self) -> Option<String> {
        // What was dropped stood behind the beginning and before everything else.
        let is_kept = matches!(self.lines.front(), Some((Weight::Kept, _)));
        if self.dropped > 0 && !is_kept {
            let text = format!(
                "{} events are not shown: the output was not read for a while",
                std::mem::take(&mut self.dropped)
            );
            return serde_json::to_string(&Event::Warning { text }).ok();
        }
        let (weight, line) = self.lines.pop_front()?;
        if weight != Weight::Kept {
            self.bytes -= line.len();
        }
        Some(line)
    }
}

/// A queue and the thread that writes it.
struct Notices {
    queue: Mutex<LineQueue>,
    changed: Condvar,
}

impl Notices {
    fn start(out: impl Write + Send + 'static) -> Arc<Self> {
        let notices = Arc::new(Self { queue: Mutex::default(), changed: Condvar::new() });
        let writer = Arc::clone(&notices);
        let started = std::thread::Builder::new()
            .name("notices".into())
            .stack_size(128 * 1024)
            .spawn(move || writer.write(out));
        if let Err(error) = started {
            tracing::error!(%error, "no thread for standard output: nothing is written there");
            notices.lock().gone = true;
        }
        notices
    }

    fn lock(&self) -> MutexGuard<'_, LineQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, weight: Weight, line: String) {
        self.lock().push(weight, line);
        self.changed.notify_all();
    }

    fn write(&self, mut out: impl Write) {
        loop {
            let mut queue = self.lock();
            let line = loop {
                queue.writing = false;
                if let Some(line) = queue.pop() {
                    queue.writing = true;
                    break line;
                }
                self.changed.notify_all();
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            };
            drop(queue);
            // The command line may be gone; the job is not.
            if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush()) {
                tracing::debug!(%error, "standard output is not read any more");
                *self.lock() = LineQueue { gone: true, ..LineQueue::default() };
                self.changed.notify_all();
                return;
            }
        }
    }

    /// Waits until everything is written or cannot be; false when the time is over before.
    fn flush(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        let mut queue = self.lock();
        while !queue.gone && (queue.writing || !queue.lines.is_empty()) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            (queue, _) =
                self.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }
}

/// Of standard output.
static STDOUT: OnceLock<Arc<Notices>> = OnceLock::new();

/// Queues an event as a line for standard output. Never blocks.
pub fn notice(event: &Event) {
    match serde_json::to_string(event) {
        Ok(line) => {
            STDOUT.get_or_init(|| Notices::start(std::io::stdout())).push(weight(event), line)
        }
        Err(error) => tracing::error!(%error, "an event cannot be written as JSON"),
    }
}

/// Waits until standard output has everything, for `limit` at the most.
pub fn flush(limit: Duration) {
    if let Some(notices) = STDOUT.get()
        && !notices.flush(limit)
    {
        tracing::warn!(
            limit_s = limit.as_secs(),
            "the last events are not written: standard output is not read"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning(n: usize) -> String {
        format!("{n:04} {}", "x".repeat(1019))
    }

    #[test]
    fn progress_lines_replace_each_other() {
        let mut queue = LineQueue::default();
        for n in 0..10_000 {
            queue.push(Weight::Progress, n.to_string());
        }
        assert_eq!(queue.pop().as_deref(), Some("9999"));
        assert_eq!(queue.pop(), None);
        assert_eq!(queue.bytes, 0);
    }

    #[test]
    fn the_oldest_lines_yield_but_beginning_and_end_stay() {
        let mut queue = LineQueue::default();
        queue.push(Weight::Kept, "started".into());
        for n in 0..3000 {
            queue.push(Weight::Passing, warning(n));
        }
        queue.push(Weight::Kept, "ended".into());
        assert!(queue.bytes <= WAITING_BYTES_MAX);
        let lines: Vec<String> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(lines.first().map(String::as_str), Some("started"));
        assert_eq!(lines.last().map(String::as_str), Some("ended"));
        assert_eq!(lines.len(), 1 + 1 + 1024 + 1);
        assert!(lines[1].contains("1976 events are not shown"), "{}", lines[1]);
        assert!(lines[2].starts_with("1976 "));
    }

    #[test]
    fn a_reader_that_does_not_read_blocks_nobody_and_gets_the_end() {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let notices = Notices::start(writer);
        notices.push(Weight::Kept, "started".into());
        for n in 0..3000 {
            notices.push(Weight::Passing, warning(n));
        }
        notices.push(Weight::Kept, "ended".into());
        assert!(!notices.flush(Duration::from_millis(20)), "nobody reads");
        let reading = std::thread::spawn(move || {
            let mut text = String::new();
            let mut byte = [0; 4096];
            while !text.ends_with("ended\n") {
                let read = std::io::Read::read(&mut reader, &mut byte).expect("read");
                text.push_str(&String::from_utf8_lossy(&byte[..read]));
            }
            text
        });
        let text = reading.join().expect("the end came");
        assert!(text.starts_with("started\n"));
        assert!(notices.flush(Duration::from_secs(20)));
    }

    #[test]
    fn a_reader_that_is_gone_ends_the_writing() {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let notices = Notices::start(writer);
        drop(reader);
        notices.push(Weight::Kept, "started".into());
        assert!(notices.flush(Duration::from_secs(20)));
        notices.push(Weight::Kept, "ended".into());
        assert!(notices.lock().lines.is_empty());
    }
}
